# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Recurrent cells in whole builds against PyTorch in float64: error at most 2e-6 (sums of 100 products of numbers near 1)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dycl_tvm
from dycl_tvm.compile.stats import CompileStats

torch.set_num_threads(1)


class Cell(nn.Module):
    """A cell of PyTorch's own."""

    def __init__(self, kind: str, batch: int, inputs: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.cell = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}[kind](inputs, hidden, bias)
        self.args = tuple(torch.randn(batch, n) for n in (inputs, hidden, *([hidden] if kind == "lstm" else [])))

    def forward(self, x: Tensor, *state: Tensor) -> Any:
        return self.cell(x, state if len(state) > 1 else state[0])


class Sequence(nn.Module):
    """Three steps of a recurrent layer: one product for all inputs, one cell a step."""

    def __init__(self, kind: str, hidden: int) -> None:
        super().__init__()
        self.layer = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](5, hidden)
        self.args = (torch.randn(3, 2, 5),)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x)


class Written(nn.Module):
    """An LSTM written by hand: one product of the concatenation, its gates in an order of its own, a peephole, a mask on the state."""

    def __init__(self, batch: int, inputs: int, hidden: int) -> None:
        super().__init__()
        self.linear, self.peephole = nn.Linear(inputs + hidden, 4 * hidden), nn.Parameter(torch.randn(hidden))
        self.args = (torch.randn(batch, inputs), torch.randn(batch, hidden), torch.randn(batch, hidden), torch.rand(batch, 1))

    def forward(self, x: Tensor, h: Tensor, c: Tensor, mask: Tensor) -> Any:
        o, g, i, f = self.linear(torch.cat([x, h], dim=1)).chunk(4, dim=1)
        new = torch.sigmoid(f + self.peephole * c) * c + torch.sigmoid(i) * torch.tanh(g)
        new = mask * new + (1 - mask) * c
        return torch.sigmoid(o) * torch.tanh(new), new


class Separate(nn.Module):
    """A GRU with a product for each gate, the last of the reset state."""

    def __init__(self, batch: int, inputs: int, hidden: int) -> None:
        super().__init__()
        self.x = nn.ModuleList(nn.Linear(inputs, hidden) for _ in range(3))
        self.h = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(3))
        self.args = (torch.randn(batch, inputs), torch.randn(batch, hidden))

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        r = torch.sigmoid(self.x[0](x) + self.h[0](h))
        z = torch.sigmoid(self.x[1](x) + self.h[1](h))
        n = torch.tanh(self.x[2](x) + self.h[2](r * h))
        return (1 - z) * n + z * h


class Tree(nn.Module):
    """A node of a Tree-LSTM: five gates; and a leaf, whose cell is a slice that is a result."""

    def __init__(self, batch: int, hidden: int) -> None:
        super().__init__()
        self.leaf, self.compose = nn.Linear(7, 2 * hidden), nn.Linear(2 * hidden, 5 * hidden)
        self.args = (torch.randn(batch, 7), torch.randn(batch, hidden), torch.randn(batch, hidden))

    def forward(self, word: Tensor, right: Tensor, right_c: Tensor) -> Any:
        c, o = self.leaf(word).chunk(2, dim=1)
        i, f_left, f_right, o2, u = self.compose(torch.cat([torch.sigmoid(o) * torch.tanh(c), right], dim=1)).chunk(5, dim=1)
        new = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f_left) * c + torch.sigmoid(f_right) * right_c
        return torch.sigmoid(o2) * torch.tanh(new), new, c


class Unit(nn.Module):
    """A gated linear unit of three dimensions, of slices that overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 40)
        self.args = (torch.randn(2, 3, 6),)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return F.silu(y[..., :19]) * y[..., 10:29]


class Loop(nn.Module):
    """A cell in a loop whose end is known at run time only; the concatenation is read elsewhere too."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.halt = nn.GRUCell(9, 20), nn.Linear(29, 1)
        self.args = (torch.randn(1, 9), torch.randn(1, 20))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, int]:
        steps, total = 0, torch.zeros(1, 1)
        while total.sum() < 2.5 and steps < 9:
            h = self.cell(x, h)
            total = total + torch.sigmoid(self.halt(torch.cat([x, h], dim=1)))
            steps += 1
        return h, steps


CASES: dict[str, Callable[[], Any]] = {
    "lstm": lambda: Cell("lstm", 1, 64, 40),
    "lstm, batch": lambda: Cell("lstm", 3, 19, 21),
    "lstm without bias": lambda: Cell("lstm", 2, 6, 16, bias=False),
    "gru": lambda: Cell("gru", 1, 64, 40),
    "gru, one unit": lambda: Cell("gru", 1, 4, 1),
    "gru, batch": lambda: Cell("gru", 9, 19, 21),
    "steps of an lstm": lambda: Sequence("lstm", 20),
    "steps of a gru": lambda: Sequence("gru", 17),
    "written by hand": lambda: Written(3, 7, 18),
    "a product a gate": lambda: Separate(1, 12, 33),
    "tree": lambda: Tree(1, 24),
    "gated linear unit": Unit,
    "loop": Loop,
}
NAMES = list(CASES)


def _leaves(result: Any) -> list[Any]:
    return [leaf for r in result for leaf in _leaves(r)] if isinstance(result, (tuple, list)) else [result]


class All(nn.Module):
    """All cases in one build."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.models = nn.ModuleList(CASES[name]() for name in NAMES)

    def forward(self, *args: Any) -> list[Any]:
        return [m(*a) for m, a in zip(self.models, args)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[All, Any, CompileStats]:
    model, folder = All().eval(), tmp_path_factory.mktemp("cells")
    args = tuple(m.args for m in model.models)
    artifact = dycl_tvm.build(model, args)
    module = dycl_tvm.load(artifact.export_library(folder / "m.so"), artifact.save_params(folder / "m.params"))
    return model, module(*args), artifact._lowered.stats


@pytest.mark.parametrize("name", NAMES)
def test_results(name: str, built: Any) -> None:
    model, found, _ = built
    one = model.models[NAMES.index(name)]
    with torch.inference_mode():
        expected = copy.deepcopy(one).double()(*(a.double() for a in one.args))
    results = list(zip(_leaves(expected), _leaves(found[NAMES.index(name)]), strict=True))
    assert results
    for exact, actual in results:
        np.testing.assert_allclose(actual, np.asarray(exact), rtol=2e-6, atol=2e-6)


def test_each_product_is_taken_by_a_family(built: Any) -> None:
    assert built[2].families["dense"] > len(CASES)
    assert not built[2].generic
