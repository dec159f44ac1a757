# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What moves, joins, compares and averages dequantised tensors does so with their integers: the same numbers, averages of exact sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dycl_tvm.hcfg.builder import GraphBuilder, constant, tensor
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.quantized import ADD, BYTES, DEQUANTIZE, DIVIDED, MATMUL, QUANTIZE, SCALED, SHIFTED, SIGNED, WINDOW_SUMS
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.passes.integer_products import integer_products

Make = Callable[[GraphBuilder, Any], Any]
SCALE = 0.0371
KINDS = [("uint8", 7), ("int8", -3)]


def _dequantised(b: GraphBuilder, q: Any, scale: float = SCALE, zero: int = 7) -> Any:
    kind = getattr(torch, q.type.dtype)
    info = torch.iinfo(kind)
    return b.op(b.entry, "quantized_decomposed.dequantize_per_tensor.default", q, scale, zero, info.min, info.max, kind)


def _graph(make: Make, kind: str = "uint8", zero: int = 7, shape: tuple[int, ...] = (2, 5, 8, 6)) -> HCFG:
    b = GraphBuilder("part", {"q": tensor(*shape, dtype=kind)})
    b.leave(b.entry, make(b, _dequantised(b, b.params[0], zero=zero)))
    return b.graph


def _numbers(kind: str, shape: tuple[int, ...] = (2, 5, 8, 6)) -> torch.Tensor:
    info = torch.iinfo(getattr(torch, kind))
    return torch.randint(info.min, info.max + 1, shape, generator=torch.Generator().manual_seed(3)).to(getattr(torch, kind))


def _ops(graph: HCFG) -> list[str]:
    return [s.op for b in graph.blocks for s in b.steps]  # type: ignore[union-attr]


def _types(graph: HCFG, op: str) -> set[str]:
    """Return the types of what an operation reads."""
    return {s.args[0].type.dtype for b in graph.blocks for s in b.steps if s.op == op and not isinstance(s.args[0], list)}  # type: ignore[union-attr]


def _op(name: str, *args: Any) -> Make:
    return lambda b, x: b.op(b.entry, name, x, *args)


#: PyTorch does not move int8 so.
MOVED_AS_FLOAT = "aten.upsample_nearest2d.default"
MOVES = {
    "reshape": _op("aten.reshape.default", [2, 5, 48]),
    "slice": _op("aten.slice.Tensor", 2, 1, 5),
    "expand": lambda b, x: b.op(b.entry, "aten.expand.default", b.op(b.entry, "aten.unsqueeze.default", x, 0), [3, 2, 5, 8, 6]),
    "nearest": _op("aten.upsample_nearest2d.default", [16, 12]),
    "maximum": _op("aten.max_pool2d.default", [3, 2], [2, 2], [1, 1], [1, 1], True),
    "padding": _op("aten.constant_pad_nd.default", [1, 2, 0, 1]),
    "join": lambda b, x: b.op(b.entry, "aten.cat.default", [x, _dequantised(b, b.params[0]), x], 1),
}


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("kind, zero", KINDS)
def test_moved_elements_are_those_of_the_integers(name: str, kind: str, zero: int) -> None:
    zero = 7 if name == "join" else zero
    graph = _graph(MOVES[name], kind, zero)
    q = _numbers(kind)
    (expected,), _ = interpret(graph, [q])
    assert integer_products(graph)
    verify(graph)
    assert _ops(graph)[-1] == (DEQUANTIZE if (name, kind) != ("nearest", "int8") else MOVED_AS_FLOAT)
    assert torch.equal(interpret(graph, [q])[0][0], expected)


#: Averages, with the kernel, stride, padding and ceil_mode of their windows, and what each sum is divided by.
AVERAGES: dict[str, tuple[Make, tuple[Any, ...], Callable[[torch.Tensor], Any]]] = {
    "global": (_op("aten.mean.dim", [2, 3], True), ([8, 6], [8, 6], 0, False), lambda inside: 48),
    "flat": (_op("aten.mean.dim", [-1, -2]), ([8, 6], [8, 6], 0, False), lambda inside: 48),
    "adaptive": (_op("aten._adaptive_avg_pool2d.default", [2, 3]), ([4, 2], [4, 2], 0, False), lambda inside: 8),
    "window": (_op("aten.avg_pool2d.default", [3, 3], [2, 2]), ([3, 3], [2, 2], 0, False), lambda inside: 9),
    "border": (_op("aten.avg_pool2d.default", [3, 3], [1, 1], [1, 1]), ([3, 3], [1, 1], 1, False), lambda inside: 9),
    "inside": (_op("aten.avg_pool2d.default", [3, 3], [1, 1], [1, 1], False, False), ([3, 3], 1, 1, False), lambda inside: inside),
    "divisor": (_op("aten.avg_pool2d.default", [2, 3], [], [0, 0], False, True, 5), ([2, 3], [2, 3], 0, False), lambda inside: 5),
    "ceil": (_op("aten.avg_pool2d.default", [3, 3], [2, 2], [0, 0], True, False), ([3, 3], [2, 2], 0, True), lambda inside: inside),
}


@pytest.mark.parametrize("name", AVERAGES)
@pytest.mark.parametrize("kind, zero", KINDS)
def test_averages_are_exact_sums_that_are_scaled_once(name: str, kind: str, zero: int) -> None:
    make, window, divisor = AVERAGES[name]
    graph, q = _graph(make, kind, zero), _numbers(kind)
    (before,), _ = interpret(graph, [q])
    assert integer_products(graph) and WINDOW_SUMS in _ops(graph)
    verify(graph)
    (found,), _ = interpret(graph, [q])
    torch.testing.assert_close(found, before, rtol=1e-5, atol=1e-6)

    def summed(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(x.double(), *window[:3], ceil_mode=window[3], divisor_override=1)

    factor = (torch.tensor(SCALE).double() / divisor(summed(torch.ones(q.shape)))).float()
    assert torch.equal(found.reshape(-1), (summed(q.double() - zero).float() * factor).reshape(-1))


def test_an_average_of_a_window_on_the_border_counts_what_torch_counts() -> None:
    graph = _graph(_op("aten.avg_pool2d.default", [3, 2], [2, 2], [1, 1], True))
    q = _numbers("uint8")
    (before,), _ = interpret(graph, [q])
    assert integer_products(graph)
    torch.testing.assert_close(interpret(graph, [q])[0][0], before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [
    _op("aten.max_pool2d.default", [2, 2], [1, 1], [1, 1], [7, 1]),  # windows may hold nothing of the image
    _op("aten.constant_pad_nd.default", [1, 1], 0.5),  # no number of the grid
    _op("aten._adaptive_avg_pool2d.default", [3, 3]),  # windows of several sizes
    _op("aten.mean.dim", [1], True),
    lambda b, x: b.op(b.entry, "aten.cat.default", [x, _dequantised(b, b.params[0], 0.05)], 1),  # two grids
])  # fmt: skip
def test_what_integers_alone_do_not_tell_stays(make: Make) -> None:
    graph = _graph(make)
    before = _ops(graph)[-1]
    integer_products(graph)
    assert _ops(graph)[-1] == before and WINDOW_SUMS not in _ops(graph)


def test_a_zero_point_that_is_no_byte_has_no_border() -> None:
    graph = _graph(MOVES["padding"], zero=300)
    integer_products(graph)
    assert _types(graph, "aten.constant_pad_nd.default") == {"float32"}


@pytest.mark.parametrize("op, summed", [(QUANTIZE, True), (QUANTIZE, False), (DIVIDED, False)])
def test_int8_is_read_as_uint8_and_made_so_where_nothing_is_nan(op: str, summed: bool) -> None:
    b = GraphBuilder("part", {"x": tensor(2, 3, 4, 4, dtype="int32" if summed else "float32")})
    how = (constant(torch.tensor(20.0)), constant(torch.tensor(-3.0)), -127, 127, torch.int8)
    made = b.op(b.entry, SCALED, b.params[0], constant(torch.tensor(0.01))) if summed else b.params[0]
    q = b.op(b.entry, op, made, *how)
    x = _dequantised(b, q, zero=-3)
    b.leave(b.entry, q, b.op(b.entry, "aten.constant_pad_nd.default", x, [1, 1]))
    given = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 10
    given[0, 0, 0, :2] = torch.tensor([float("inf"), -float("inf")])
    given[0, 0, 0, 2:3] = float("nan") if op == QUANTIZE else 0.0  # ONNX does not say what NaN is
    given = (given.nan_to_num(0.0, 1e6, -1e6) * 100).int() if summed else given
    before = interpret(b.graph, [given])[0]
    assert integer_products(b.graph)
    assert not integer_products(b.graph)
    verify(b.graph)
    assert _types(b.graph, "aten.constant_pad_nd.default") == {"uint8"}
    assert (SIGNED in _ops(b.graph)) == (summed or op == DIVIDED) != (BYTES in _ops(b.graph))
    assert all(torch.equal(a, e) for a, e in zip(interpret(b.graph, [given])[0], before))


@pytest.mark.parametrize("zero", [3e7, 0.5])
def test_a_zero_point_that_float32_adds_with_a_rounding_stays(zero: float) -> None:
    b = GraphBuilder("part", {"x": tensor(4)})
    b.leave(b.entry, b.op(b.entry, DIVIDED, b.params[0], constant(torch.tensor(1.0)), constant(torch.tensor(zero)), -128, 127, torch.int8))
    assert not integer_products(b.graph)


def test_of_two_tensors_that_are_added_the_first_is_read_as_integers() -> None:
    for swapped in (False, True):
        b = GraphBuilder("part", {"x": tensor(2, 4), "y": tensor(2, 4)})
        how = (constant(torch.tensor(20.0)), constant(torch.tensor(3.0)), 0, 255, torch.uint8)
        first, second = (b.op(b.entry, QUANTIZE, p, *how) for p in b.params)
        terms = [_dequantised(b, q, zero=3) for q in (first, second)]
        b.leave(b.entry, b.op(b.entry, "aten.add.Tensor", *(terms[::-1] if swapped else terms)))
        given = [torch.randn(2, 4) for _ in range(2)]
        (before,), _ = interpret(b.graph, given)
        integer_products(b.graph)
        (added,) = [s for s in b.entry.steps if s.op == ADD]  # type: ignore[union-attr]
        assert added.args[1] is first  # type: ignore[union-attr]
        assert torch.equal(interpret(b.graph, given)[0][0], before)


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_a_scale_that_each_call_chooses_is_a_factor_of_exact_sums(kind: str) -> None:
    info = torch.iinfo(getattr(torch, kind))
    b = GraphBuilder("layer", {"x": tensor(3, 4, 16)})
    limits = (info.min, info.max)
    scale, zero = b.ops(b.entry, "quantized_decomposed.choose_qparams.tensor", b.params[0], *limits, 1e-7, getattr(torch, kind))
    how = (scale, zero, *limits, getattr(torch, kind))
    q = b.op(b.entry, "quantized_decomposed.quantize_per_tensor.tensor", b.params[0], *how)
    x = b.op(b.entry, "quantized_decomposed.dequantize_per_tensor.tensor", q, *how)
    weights = torch.randint(-127, 128, (5, 16), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    w = b.op(b.entry, "quantized_decomposed.dequantize_per_tensor.default", constant(weights), 0.01, 0, -127, 127, torch.int8)
    x = b.op(b.entry, "aten.reshape.default", x, [12, 16])
    b.leave(b.entry, b.op(b.entry, "aten.linear.default", x, w, constant(torch.arange(5.0))))
    given = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(0)) + 0.3
    (before,), _ = interpret(b.graph, [given])
    assert integer_products(b.graph)
    verify(b.graph)
    assert {MATMUL, SHIFTED} <= set(_ops(b.graph)) and (BYTES in _ops(b.graph)) == (kind == "int8")
    torch.testing.assert_close(interpret(b.graph, [given])[0][0], before, rtol=1e-5, atol=1e-5)


def test_a_zero_point_of_unknown_origin_might_leave_int32() -> None:
    b = GraphBuilder("layer", {"q": tensor(3, 16, dtype="uint8"), "scale": tensor(1, dtype="float64"), "zero": tensor(1, dtype="int64")})
    q, scale, zero = b.params
    x = b.op(b.entry, "quantized_decomposed.dequantize_per_tensor.tensor", q, scale, zero, 0, 255, torch.uint8)
    weights = constant(torch.ones(5, 16, dtype=torch.int8))
    w = b.op(b.entry, "quantized_decomposed.dequantize_per_tensor.default", weights, 0.01, 0, -127, 127, torch.int8)
    b.leave(b.entry, b.op(b.entry, "aten.linear.default", x, w))
    integer_products(b.graph)
    assert "aten.linear.default" in _ops(b.graph)
