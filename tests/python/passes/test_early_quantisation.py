# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Quantisations that are exchanged with what makes their operands: the same integers, for numbers that are none too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dycl_tvm.hcfg.builder import GraphBuilder, constant, tensor
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.quantized import DEQUANTIZE, DIVIDED, QUANTIZE, SCALED
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.passes.dead_code import dead_code
from dycl_tvm.passes.early_quantisation import early_quantisation

Make = Callable[[GraphBuilder, Any], Any]
Grid = tuple[int, int, torch.dtype]
BYTES: Grid = (0, 255, torch.uint8)


def _graph(
    make: Make, *, sums: bool = False, scale: float = 0.05, zero: int = 0, factor: float = 0.01, twice: bool = False, grid: Grid = BYTES
) -> HCFG:
    """Return the graph that quantises what is made of its input, or of sums of integers times a factor."""
    b = GraphBuilder("layer", {"x": tensor(1, 4, 6, 6, dtype="int32" if sums else "float32")})
    (x,) = b.params
    value = b.op(b.entry, SCALED, x, constant(torch.full((1, 4, 1, 1), factor))) if sums else x
    made = make(b, value)
    last = b.op(b.entry, QUANTIZE, made, constant(torch.tensor(1 / scale)), constant(torch.tensor(float(zero))), *grid)
    b.leave(b.entry, *([last, made] if twice else [last]))
    return b.graph


def _pool(b: GraphBuilder, x: Any) -> Any:
    return b.op(b.entry, "aten.max_pool2d.default", x, [3, 3], [2, 2], [1, 1])


def _spread_pool(b: GraphBuilder, x: Any) -> Any:
    return b.op(b.entry, "aten.max_pool2d.default", x, [2, 2], [1, 1], [1, 1], [7, 1])


def _relu(b: GraphBuilder, x: Any) -> Any:
    return b.op(b.entry, "aten.relu.default", x)


def _pad(b: GraphBuilder, x: Any) -> Any:
    return b.op(b.entry, "aten.constant_pad_nd.default", x, [1, 0, 2, 1], 0.3)


def _clip(b: GraphBuilder, x: Any) -> Any:
    return b.op(b.entry, "aten.hardtanh.default", x, 0.0, 6.0)


def _halves(b: GraphBuilder, x: Any) -> Any:
    parts = [b.op(b.entry, "aten.relu.default", b.op(b.entry, "aten.slice.Tensor", x, 1, *ends)) for ends in ((0, 3), (3, 4))]
    return b.op(b.entry, "aten.cat.default", [*parts, parts[0]], 1)


def _inputs(sums: bool) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    if sums:
        return [torch.randint(-2000, 2000, (1, 4, 6, 6), generator=generator, dtype=torch.int32)]
    x = torch.randn(1, 4, 6, 6, generator=generator) * 5
    odd = x.clone()
    odd[0, 0, 0, :4] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    return [x, odd]


def _ops(graph: HCFG) -> list[str]:
    return [s.op for b in graph.blocks for s in b.steps]  # type: ignore[union-attr]


@pytest.mark.parametrize("make, sums, scale, zero", [
    (_pool, True, 0.05, 3), (lambda b, x: _pool(b, _relu(b, x)), True, 0.05, 3), (_pad, False, 0.05, 7), (_pad, True, 1e-3, 0),
    (_halves, False, 0.05, 3), (lambda b, x: b.op(b.entry, "aten.permute.default", x, [0, 2, 3, 1]), False, 0.05, 3),
    (_spread_pool, True, 0.05, 3), (_relu, False, 0.05, 0), (_clip, False, 6 / 255, 0), (_clip, False, 0.01, 0),
])  # fmt: skip
def test_exchanged_quantisations_give_the_same_integers(make: Make, sums: bool, scale: float, zero: int) -> None:
    graph = _graph(make, sums=sums, scale=scale, zero=zero)
    inputs = _inputs(sums)
    expected = [interpret(graph, [x])[0][0] for x in inputs]
    assert early_quantisation(graph)
    dead_code(graph)
    verify(graph)
    assert _ops(graph)[-1] != QUANTIZE or len(_ops(graph)) == 1
    for x, wanted in zip(inputs, expected):
        assert torch.equal(interpret(graph, [x])[0][0], wanted)


@pytest.mark.parametrize("make, options", [
    (_pool, {}),  # NaN may come
    (_pool, {"sums": True, "factor": float("inf")}),  # 0 * inf is NaN
    (_pool, {"sums": True, "twice": True}),  # the maximum is wanted as it is
    (_relu, {"zero": 1}),  # numbers below 0 have integers of their own
    (lambda b, x: b.op(b.entry, "aten.slice.Tensor", x, 2, 0, 3), {}),  # fewer elements are left
    (_clip, {"scale": 0.05}),  # so have those above 6
    (lambda b, x: b.op(b.entry, "aten.clamp.default", x, float("nan"), 6.0), {}),
    (lambda b, x: b.op(b.entry, "aten.constant_pad_nd.default", x, [1, 1], float("nan")), {}),
    # the window of the first row lies outside the image: its maximum is -128, which is not of the grid
    (_spread_pool, {"sums": True, "grid": (-127, 127, torch.int8)}),
])  # fmt: skip
def test_what_would_be_other_integers_stays(make: Make, options: dict[str, Any]) -> None:
    graph = _graph(make, **options)
    assert not early_quantisation(graph)


def _again(scale: float, zero: int, op: str, unit: float, point: int, limits: Grid = BYTES, dtype: str = "uint8") -> HCFG:
    """Return the graph that dequantises integers and quantises them again."""
    b = GraphBuilder("twice", {"q": tensor(256, dtype=dtype)})
    numbers = (constant(torch.tensor(float(n), dtype=torch.float32)) for n in (scale, zero, unit, point))
    x = b.op(b.entry, DEQUANTIZE, b.params[0], next(numbers), next(numbers))
    b.leave(b.entry, b.op(b.entry, op, x, next(numbers), next(numbers), *limits))
    return b.graph


@pytest.mark.parametrize("scale", [0.05, 1 / 3, 7.0, 1e-9, 123456.7])
@pytest.mark.parametrize("zero", [0, 7, 255])
@pytest.mark.parametrize("op", [QUANTIZE, DIVIDED])
def test_what_was_dequantised_on_the_same_grid_is_its_integers(scale: float, zero: int, op: str) -> None:
    graph = _again(scale, zero, op, 1 / scale if op == QUANTIZE else scale, zero)
    q = torch.arange(256).to(torch.uint8)
    assert torch.equal(interpret(graph, [q])[0][0], q)
    assert early_quantisation(graph)
    dead_code(graph)
    verify(graph)
    assert not _ops(graph) and torch.equal(interpret(graph, [q])[0][0], q)


@pytest.mark.parametrize("make", [
    lambda: _again(0.05, 7, QUANTIZE, 1 / 0.0501, 7),
    lambda: _again(0.05, 7, DIVIDED, 0.05, 8),
    lambda: _again(0.05, 7, QUANTIZE, 20.0, 7, (0, 127, torch.uint8)),
    lambda: _again(0.05, 7, QUANTIZE, 20.0, 7, (-128, 127, torch.int8)),
    lambda: _again(1e-38, 7, DIVIDED, 1e-38, 7),  # numbers so small lose digits
])  # fmt: skip
def test_another_grid_has_other_integers(make: Callable[[], HCFG]) -> None:
    graph = make()
    early_quantisation(graph)
    assert len(_ops(graph)) == 2
