# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Elements that are moved together and apart: kernels, what other targets make of the operators, and what is wanted of them."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dycl_tvm
from dycl_tvm.backends.extents import Bounds, Extent
from dycl_tvm.backends.tir_cpu import kernels
from dycl_tvm.backends.tir_cpu.reading.channelwise_op import ChannelwiseOp
from dycl_tvm.backends.tir_cpu.words.attention import Attention, Strided
from dycl_tvm.compile.ops import moving, semantics
from dycl_tvm.compile.ops.moving import Moving, moving_of
from dycl_tvm.compile.program import KernelLibrary
from dycl_tvm.compile.templates import source_of
from dycl_tvm.compile.wanted import Holds, Moved, Table, _looked_up, of_attention
from dycl_tvm.errors import VerificationError
from dycl_tvm.hcfg.moving import apart, together
from dycl_tvm.verify.memory import CompiledKernels

H, W = Extent(0, 1, 0), Extent(1, 1, 0)
#: The dimensions with a length, of a buffer (2, 4, 3, 5).
DIMS = [(0,), (1,), (3,), (0, 2), (1, 3), (0, 1, 2, 3)]
SHAPE = (2, 4, 3, 5)


def lengths_of(dims: tuple[int, ...]) -> list[list[torch.Tensor]]:
    """Return lengths of each kind, too long ones among them: a check ends such a call later."""
    pick = [[0, 1, SHAPE[d] - 1, SHAPE[d], SHAPE[d] + 3] for d in dims]
    return [[torch.tensor(n) for n in some] for some in itertools.islice(itertools.product(*pick), 60)]


def expected(x: torch.Tensor, lengths: list[torch.Tensor], dims: tuple[int, ...]) -> torch.Tensor:
    part = x[tuple(slice(int(lengths[dims.index(d)])) if d in dims else slice(None) for d in range(x.dim()))].reshape(-1)
    return torch.cat([part, x.new_zeros(x.numel() - part.numel())])


@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_operators_and_kernels_move_what_comes_before_the_lengths(dims: tuple[int, ...]) -> None:
    symbols = {(to, fills): Moving(to, dims, fills).symbol for to in (True, False) for fills in (True, False)}
    assert all(moving_of(s) == Moving(to, dims, fills) for (to, fills), s in symbols.items())
    compiled = CompiledKernels(KernelLibrary((), (("templates.cc", source_of(symbols.values())),), ()))
    for dtype in (torch.float32, torch.int64, torch.float16, torch.bool):
        x = torch.randint(1, 90, SHAPE).to(dtype)
        for lengths in lengths_of(dims):
            want = expected(x, lengths, dims)
            back = torch.zeros_like(x)
            inside = tuple(slice(int(lengths[dims.index(d)])) if d in dims else slice(None) for d in range(4))
            back[inside] = x[inside]
            assert torch.equal(together(x, lengths, dims), want) and torch.equal(apart(want, lengths, dims, SHAPE), back)
            count = int(math.prod(x[inside].shape))
            for fills in (True, False):
                got, again = torch.full((x.numel(),), 99).to(dtype), torch.full(SHAPE, 99).to(dtype)
                compiled.call(symbols[True, fills], 0, [x, *lengths, got])
                compiled.call(symbols[False, fills], 0, [want, *lengths, again])
                assert torch.equal(got[:count], want[:count]) and torch.equal(again[inside], back[inside])
                assert not fills or (torch.equal(got, want) and torch.equal(again, back))


def test_a_vector_that_is_too_short_is_read_no_further() -> None:
    compiled = CompiledKernels(KernelLibrary((), (("templates.cc", source_of([Moving(False, (0, 1)).symbol])),), ()))
    x, lengths = torch.arange(1.0, 6.0), [torch.tensor(2), torch.tensor(4)]
    got = torch.full((2, 5), 9.0)
    compiled.call(Moving(False, (0, 1)).symbol, 0, [x, *lengths, got])
    assert got.tolist() == apart(x, lengths, [0, 1], [2, 5]).tolist() == [[1, 2, 3, 4, 0], [5, 0, 0, 0, 0]]


def moves(x: torch.Tensor) -> Any:
    y = x.reshape(x.shape[0] * x.shape[1], 3)
    return y + y, y.reshape(x.shape[1], x.shape[0], 3), x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64, torch.int8], ids=str)
@pytest.mark.parametrize("in_kernels", [True, False])
def test_the_same_without_kernels_of_their_own(
    in_kernels: bool, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_kernels:  # as on a GPU
        monkeypatch.setattr(moving, "semantics", type("Elsewhere", (), {"is_for_cpu": staticmethod(lambda: False)}))
    assert semantics.is_for_cpu()
    given = [torch.randint(0, 2, (a, b, 3)).to(dtype) for a, b in ((2, 2), (4, 5), (1, 5), (4, 1), (0, 3), (3, 0))]
    sizes = ({0: dycl_tvm.Dim("A", min=0, max=4), 1: dycl_tvm.Dim("B", min=0, max=5)},)
    artifact = dycl_tvm.build(moves, (given[0],), dynamic_shapes=sizes)
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    assert any(moving_of(k.symbol) for k in artifact._lowered.program.kernels) == in_kernels
    call = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")
    for x in given:
        torch.testing.assert_close(call(x), moves(x))


# -- what is wanted ------------------------------------------------------------------------------------------------------------
def test_products_of_sizes_are_sizes() -> None:
    bounds = Bounds([(0, 8), (2, 5), (1, 3)], multiplies=True)
    area = bounds.product(H.scaled(4), W.scaled(2))
    assert area == Extent(3, 8, 0) and bounds.product(W, H) == Extent(3, 1, 0) and bounds.range(area) == (0, 320)
    volume = bounds.product(Extent(2, 1, 0), area)
    assert volume is not None and volume == bounds.product(bounds.product(H, Extent(2, 1, 0)), W.scaled(8))
    assert bounds.numbers([7, 3, 2])[volume.size] * volume.factor == 7 * 3 * 2 * 8
    assert bounds.product(H.scaled(1, 1), W) is None and bounds.product(H, Extent.number(3)) == H.scaled(3)
    assert Bounds([(0, 8), (2, 5)]).product(H, W) is None
    assert Bounds([(0, 1 << 30)] * 2, multiplies=True).product(H, W) is None


def test_what_is_wanted_of_moved_elements() -> None:
    bounds = Bounds([(1, 4), (1, 3)], multiplies=True)
    facts = [None, Holds(H), Holds(W)]
    to = Moved(Moving(True, (1, 2)), [(2, 4, 3, 5), (), (), (120,)])
    assert to.inputs((None,), facts, bounds)[0] == (None, H, W, None)
    assert to.inputs((None,), [None, Holds(H), None], bounds)[0] == (None, H, None, None)
    all_of_it = Extent(2, 10, 0)
    assert moving_of(to.front((all_of_it,), facts, bounds)).fills is False  # type: ignore[union-attr]
    assert moving_of(to.front((all_of_it.scaled(1, 1),), facts, bounds)).fills  # type: ignore[union-attr]
    assert moving_of(to.front((None,), facts, bounds)).fills  # type: ignore[union-attr]
    back = Moved(Moving(False, (1, 2)), [(120,), (), (), (2, 4, 3, 5)])
    assert back.inputs((None,) * 4, facts, bounds)[0] == (all_of_it,)
    assert moving_of(back.front((None, H, W, None), facts, bounds)).fills is False  # type: ignore[union-attr]
    assert moving_of(back.front((None, H, None, None), facts, bounds)).fills  # type: ignore[union-attr]
    # What lies behind a length that is not known may be wanted.
    assert moving_of(back.front((None, H, None, None), [None, Holds(H), None], bounds)).fills  # type: ignore[union-attr]


def test_how_far_a_table_leads() -> None:
    bounds = Bounds([(1, 8)])
    for numbers in ([0, 0, 1, 1, 2, 2, 3, 3], [3, 0, 0, 0, 7, 1, 2, 5], [0] * 8, [7, 6, 5, 4, 3, 2, 1, 0]):
        for extent in (H, H.scaled(2, -3), H.scaled(1, 4), Extent.number(3), Extent.number(-1)):
            found = _looked_up(extent, Table(tuple(numbers)), bounds)
            assert found is not None
            for size in range(1, 9):
                assert found.at([size]) >= max([n + 1 for n in numbers[: max(extent.at([size]), 0)]], default=0)
    assert _looked_up(H.scaled(2), Table(tuple(n // 2 for n in range(16))), bounds) == H
    assert _looked_up(H, None, bounds) is None


def test_what_an_attention_reads_of_its_arrays() -> None:
    """Queries, keys and values in one array (batch, rows, three times 2 heads of 4)."""
    bounds, strides = Bounds([(1, 8)]), (240, 4, 24, 1)
    parts = [Strided(8 * 240, 8 * k, strides) for k in range(3)]
    work = Attention((8, 2), 10, 10, 4, 4, *parts, order=(2, 0, 1, 3))
    found = of_attention(work, (None, H, None, None), [(80, 24), (8, 10, 24), (1920,)], bounds)
    assert found == [(H.scaled(10), Extent.number(8)), (H, None, Extent.number(16)), (H.scaled(240),)]
    rows = of_attention(work, (H, None, None, None), [(8, 10, 24)] * 3, bounds)
    assert rows == [(None, H, Extent.number(8)), (None, None, Extent.number(16)), (None, None, None)]


# -- networks ------------------------------------------------------------------------------------------------------------------
class Pictures(nn.Module):
    """Convolutions of each kind of reach, masks between them, and a row for each place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(4, 16, 3, padding=1, stride=2), nn.Conv2d(16, 16, 3, padding=1)
        self.wide, self.rows = nn.Conv2d(16, 8, 5, padding=4, dilation=2), nn.Linear(8, 8)

    def forward(self, x):
        y = torch.relu(self.second(torch.relu(self.first(x))))
        z = self.wide(nn.functional.interpolate(nn.functional.max_pool2d(y, 2), scale_factor=2.0))
        return z, self.rows(z.flatten(2).transpose(1, 2)).mean(1)


class Sequences(nn.Module):
    """Batches of sequences, with the batch in front and behind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.turned = nn.Linear(32, 16)

    def forward(self, x):
        y = self.layer(x)
        return self.turned(y.transpose(0, 1)).transpose(0, 1).reshape(-1, 16), y[:, 0]


@pytest.mark.parametrize("broken", ["a window", "element by element", "what nobody reads"])
def test_the_check_sees_what_is_computed_too_little(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "a window":
        monkeypatch.setattr(kernels, "_reach_of", lambda chosen: [(0, 1, 0), (-1, 0, 0), (2, 2, -1), (3, 2, -1)])
    elif broken == "element by element":
        monkeypatch.setattr(ChannelwiseOp, "reach", property(lambda op: [[(2, 1, -1)] * len(t.shape) for t in op.inputs]))
    else:
        monkeypatch.setattr(Moved, "front", lambda moved, *_: Moving(moved.moving.together, moved.moving.dims, False).symbol)
    h, w = dycl_tvm.Dim("H", min=1, max=6), dycl_tvm.Dim("W", min=1, max=5)
    with pytest.raises(VerificationError):
        dycl_tvm.build(Pictures().eval(), (torch.randn(1, 4, 8, 8),), dynamic_shapes=({2: 4 * h, 3: 4 * w},))


def test_networks_with_several_lengths_are_right_at_every_size(tmp_path: Path) -> None:
    h, w, b, t = (dycl_tvm.Dim(name, min=1, max=most) for name, most in (("H", 6), ("W", 5), ("B", 4), ("T", 9)))
    cases: list[tuple[nn.Module, Any, Any, list[tuple[int, int]], set[str]]] = [
        (
            *(Pictures(), lambda a, b: torch.randn(1, 4, 4 * a, 4 * b), {2: 4 * h, 3: 4 * w}, [(6, 5), (1, 1), (6, 1), (2, 5), (3, 3)]),
            {"conv2d", "where", "max_pool2d", "resize", "unpack"},
        ),
        (
            *(Sequences(), lambda b, t: torch.randn(b, t, 32), {0: b, 1: t}, [(4, 9), (1, 1), (4, 1), (1, 9), (3, 5)]),
            {"attention", "matmul", "layer_norm"},
        ),
    ]
    for number, (model, make, dims, sizes, families) in enumerate(cases):
        model = model.eval()
        artifact = dycl_tvm.build(model, (make(2, 2),), dynamic_shapes=(dims,))
        artifact.export_library(tmp_path / f"{number}.so")
        artifact.save_params(tmp_path / f"{number}.params")
        symbols = [k.symbol for k in artifact._lowered.program.kernels]
        # of each family all kernels are cut
        for family in families:
            assert all("_front_" in s for s in symbols if s.startswith(f"dycl_{family}")), (
                family,
                [s for s in symbols if "_front_" not in s],
            )
        call = dycl_tvm.load(tmp_path / f"{number}.so", tmp_path / f"{number}.params")
        with torch.no_grad():
            for size in (*sizes, *sizes[::-1]):
                x = make(*size)
                torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-5)
        beyond = make(sizes[0][0], sizes[0][1] + 1)
        with pytest.raises(dycl_tvm.InputError):
            call(beyond)
