# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators that users add: right on all paths, checked against the operator itself, and refused where they say too little."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tvm import tirx

import dycl_tvm
from dycl_tvm.compile.decompose import DECOMPOSITIONS
from dycl_tvm.compile.ops import CONVERTERS
from dycl_tvm.errors import UnsupportedError, UsageError, VerificationError
from dycl_tvm.hcfg.added import ADDED

LIBRARY = torch.library.Library("dycl_added", "DEF")
LIBRARY.define("saw(Tensor x, float period=2.) -> Tensor")
LIBRARY.define("relu_(Tensor(a!) x) -> Tensor(a!)")
LIBRARY.define("split(Tensor x, int n, int dim=0) -> Tensor")
LIBRARY.impl("split", lambda x, n, dim=0: x * n, "CompositeExplicitAutograd")


@torch.library.custom_op("dycl_added::wave", mutates_args=())
def wave(x: torch.Tensor, period: float) -> torch.Tensor:
    return torch.from_numpy(np.sin(x.numpy() * np.float32(2 * math.pi / period)))


@wave.register_fake
def _(x: torch.Tensor, period: float) -> torch.Tensor:
    return torch.empty_like(x)


def _saw(x: torch.Tensor, period: float = 2.0) -> torch.Tensor:
    if x.dtype != torch.float32:
        raise NotImplementedError("for float32 only")
    return x - period * torch.floor(x / period)


LIBRARY.impl("saw", _saw, "CPU")
X = torch.linspace(-2, 5, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Take back what a test has registered."""
    tables: list[dict[str, Any]] = [CONVERTERS, DECOMPOSITIONS, ADDED]
    before = [dict(table) for table in tables]
    yield
    for table, kept in zip(tables, before):
        table.clear()
        table.update(kept)


def _convert(ctx: Any, x: Any, period: float) -> Any:
    scale = tirx.const(2 * math.pi / period, ctx.dtype(x))
    return ctx.elementwise(lambda v: tirx.sin(v * scale), x, name="wave")


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = wave(x, 3.0)
        return torch.ops.dycl_added.saw(y) if y.sum() > 0 else torch.ops.dycl_added.saw(y, 0.5) + 1


def test_operators_in_relax_and_in_torch_are_compiled(tmp_path: Path) -> None:
    dycl_tvm.register_operator("dycl_added::wave")(_convert)
    dycl_tvm.register_operator(torch.ops.dycl_added.saw.default, in_torch=True)(lambda x, period=2.0: x - period * torch.floor(x / period))
    net = Net()
    art = dycl_tvm.build(net, (X,))
    mod = dycl_tvm.load(art.export_library(tmp_path / "m.so"), art.save_params(tmp_path / "m.params"))
    taken = set()
    for x in (X, -X, X + 0.7):
        torch.testing.assert_close(torch.as_tensor(mod(x)), net(x), rtol=1e-5, atol=1e-5)
        taken.add(mod.last_path.key())
    assert len(taken) == 2
    kernels = art.certificate["kernels"]
    assert kernels["checked"] == kernels["total"] > 0


@pytest.mark.parametrize("in_torch", [False, True])
def test_a_wrong_one_is_found_by_the_build(in_torch: bool) -> None:
    if in_torch:  # wrong on a few numbers only
        dycl_tvm.register_operator("dycl_added::saw", in_torch=True)(lambda x, period=2.0: x - period * torch.floor(x / period + 1e-3))
        program = lambda x: torch.ops.dycl_added.saw(x)  # noqa: E731
    else:
        dycl_tvm.register_operator(wave)(lambda ctx, x, period: _convert(ctx, x, 2 * period))
        program = lambda x: wave(x, 3.0)  # noqa: E731
    with pytest.raises(VerificationError, match="differs from"):
        dycl_tvm.build(program, (X,))


def test_what_is_supported_is_replaced_only_if_asked_for() -> None:
    dycl_tvm.register_operator("dycl_added::wave")(_convert)
    for name in ("dycl_added::wave", wave, "aten::add.Tensor", "aten.median.dim"):
        with pytest.raises(UsageError, match="replace=True"):
            dycl_tvm.register_operator(name)
    dycl_tvm.register_operator("dycl_added::wave", in_torch=True, replace=True)(lambda x, period: x)
    assert "dycl_added.wave.default" not in CONVERTERS
    with pytest.raises(UsageError, match="no operator 'dycl_added::none'"):
        dycl_tvm.register_operator("dycl_added::none")


def test_a_missing_operator_says_so_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.special.airy_ai(x)

    with pytest.raises(UnsupportedError, match=r"airy_ai.default is missing") as caught:
        dycl_tvm.build(program, (X,))
    text = str(caught.value)
    assert "return torch.special.airy_ai(x)" in text and "register_operator('aten.special_airy_ai.default')" in text
    with pytest.raises(UnsupportedError, match=r"dycl_added.saw.default is missing.*\n.*register_fake\('dycl_added::saw'\)"):
        dycl_tvm.stage(lambda x: torch.ops.dycl_added.saw(x), (X,))
    assert "BlockBuilder" not in "".join(capfd.readouterr())


def test_namesakes_of_pytorchs_operators_are_not_taken_for_them() -> None:
    program = lambda x: torch.ops.dycl_added.split(x, 3)  # noqa: E731
    torch.testing.assert_close(dycl_tvm.stage(program, (X,)).interpret()(X), 3 * X)
    with pytest.raises(UnsupportedError, match="no form that returns a new tensor"):
        dycl_tvm.stage(lambda x: torch.ops.dycl_added.relu_(x.clone()), (X,))
