# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sums of quantised numbers as integers: the same numbers as a reference in NumPy, and nothing that might not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dycl_tvm.build import stage
from dycl_tvm.hcfg.builder import GraphBuilder, constant, tensor
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.passes.integer_products import integer_products

D = torch.ops.quantized_decomposed
Weights = tuple[torch.Tensor, torch.Tensor]


def _weights(*shape: int, dtype: torch.dtype = torch.int8) -> Weights:
    generator = torch.Generator().manual_seed(1)
    info = torch.iinfo(dtype)
    data = torch.randint(info.min, info.max + 1, shape, generator=generator).to(dtype)
    return data, torch.rand(shape[0], generator=generator) / 100 + 0.001


def _ops(graph: HCFG) -> list[str]:
    return [s.op for b in graph.blocks for s in b.steps]  # type: ignore[union-attr]


def _layer(
    op: str, x_shape: tuple[int, ...], weights: Weights, *, x_dtype: str = "uint8", zero: int = 7, zeros: Any = None, bias: Any = None,
    rest: tuple[Any, ...] = (),
) -> HCFG:  # fmt: skip
    """Return the graph of a layer of quantised numbers."""
    data, scales = weights
    b = GraphBuilder("layer", {"q": tensor(*x_shape, dtype=x_dtype)})
    (q,) = b.params
    x_type, w_type = getattr(torch, x_dtype), data.dtype
    limits = [(torch.iinfo(t).min, torch.iinfo(t).max, t) for t in (x_type, w_type)]
    x = b.op(b.entry, "quantized_decomposed.dequantize_per_tensor.default", q, 0.0371, zero, *limits[0])
    points = constant(torch.zeros(len(scales), dtype=torch.int64) if zeros is None else zeros)
    w = b.op(b.entry, "quantized_decomposed.dequantize_per_channel.default", constant(data), constant(scales), points, 0, *limits[1])
    b.leave(b.entry, b.op(b.entry, op, x, w, None if bias is None else constant(bias), *rest))
    return b.graph


@pytest.mark.parametrize("x_dtype, zero", [("uint8", 0), ("uint8", 7), ("int8", -3)])
def test_convolutions_are_sums_of_integers(x_dtype: str, zero: int) -> None:
    data, scales = weights = _weights(6, 4, 3, 3)
    graph = _layer("aten.conv2d.default", (2, 4, 7, 6), weights, x_dtype=x_dtype, zero=zero, rest=([2, 1], [1, 1]))
    before = graph.blocks[0].steps[-1]
    assert integer_products(graph) and before not in graph.blocks[0].steps
    verify(graph)
    info = torch.iinfo(getattr(torch, x_dtype))
    q = torch.randint(info.min, info.max + 1, (2, 4, 7, 6)).to(getattr(torch, x_dtype))
    (found,), _ = interpret(graph, [q])
    wide = np.pad(q.numpy().astype(np.int64) - zero, ((0, 0), (0, 0), (1, 1), (1, 1)))
    sums = np.zeros(found.shape, np.int64)
    for i, j in np.ndindex(sums.shape[2:]):
        sums[:, :, i, j] = np.einsum("nchw,ochw->no", wide[:, :, 2 * i : 2 * i + 3, j : j + 3], data.numpy().astype(np.int64))
    factors = np.float32(0.0371) * scales.numpy()
    np.testing.assert_array_equal(found.numpy(), sums.astype(np.float32) * factors[:, None, None])


@pytest.mark.parametrize("op", ["aten.linear.default", "aten.conv2d.default"])
def test_integer_biases_are_added_to_the_sums(op: str) -> None:
    convolution = "conv" in op
    data, scales = weights = _weights(5, 8, 1, 1) if convolution else _weights(5, 8)
    shape = (3, 8, 2, 2) if convolution else (3, 8)
    graph = _layer(op, shape, weights, bias=torch.zeros(5))
    b8 = torch.arange(-2, 3, dtype=torch.int32) * 1000
    factors = torch.tensor(0.0371) * scales
    block = graph.blocks[0]
    builder = GraphBuilder("other", {})
    block.steps.insert(0, _dequantised_bias(builder, b8, factors))
    step = block.steps[-1]
    step.args = (*step.args[:2], block.steps[0].outputs[0])  # type: ignore[union-attr, misc]
    integer_products(graph)
    assert "aten.add.Tensor" in _ops(graph) and not any(o.startswith("aten.linear") for o in _ops(graph))
    q = torch.randint(0, 256, shape).to(torch.uint8)
    (found,), _ = interpret(graph, [q])
    sums = np.einsum("nk...,ok->no...", q.numpy().astype(np.int64) - 7, data.numpy().astype(np.int64).reshape(5, 8))
    each = (slice(None), *(None,) * (found.dim() - 2))
    expected = (sums + b8.numpy()[each]).astype(np.float32) * factors.numpy()[each]
    np.testing.assert_array_equal(found.numpy(), expected)


def _dequantised_bias(builder: GraphBuilder, data: torch.Tensor, scales: torch.Tensor) -> Any:
    limits = torch.iinfo(torch.int32).min, torch.iinfo(torch.int32).max, torch.int32
    name = "quantized_decomposed.dequantize_per_channel.default"
    builder.op(builder.entry, name, constant(data), constant(scales), None, 0, *limits)
    return builder.entry.steps[0]


def _of_weights_with_zero_points() -> HCFG:
    data, scales = _weights(4, 8, dtype=torch.uint8)
    return _layer("aten.linear.default", (3, 8), (data // 2 + 64, scales), zeros=torch.tensor([128, 100, 90, 64]))


def test_zero_points_of_weights_are_taken_off_where_they_leave_8_bits() -> None:
    graph = _of_weights_with_zero_points()
    q = torch.randint(0, 256, (3, 8)).to(torch.uint8)
    (before,), _ = interpret(graph, [q])
    assert integer_products(graph)
    assert "dycl_quantized.matmul.default" in _ops(graph)
    torch.testing.assert_close(interpret(graph, [q])[0][0], before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op, groups", [("aten.linear.default", 1), ("aten.conv2d.default", 1), ("aten.conv2d.default", 2)])
@pytest.mark.parametrize("x_dtype, zero", [("uint8", 0), ("uint8", 7), ("int8", -3)])
def test_weights_of_nine_bits_are_those_of_eight_and_a_number_a_channel(op: str, groups: int, x_dtype: str, zero: int) -> None:
    convolution = "conv" in op
    data, scales = weights = _weights(6, 4 // groups, 3, 2, dtype=torch.uint8) if convolution else _weights(6, 4, dtype=torch.uint8)
    zeros = torch.tensor([0, 255, 100, 128, 7, 200])
    shape = (2, 4, 6, 5) if convolution else (3, 4)
    rest = ([2, 1], [1, 1], [1, 1], groups) if convolution else ()
    graph = _layer(op, shape, weights, x_dtype=x_dtype, zero=zero, zeros=zeros, rest=rest)
    info = torch.iinfo(getattr(torch, x_dtype))
    q = torch.randint(info.min, info.max + 1, shape).to(getattr(torch, x_dtype))
    assert integer_products(graph) and op not in _ops(graph)
    verify(graph)
    (found,), _ = interpret(graph, [q])
    x, w = q.double() - zero, data.double() - zeros.reshape(-1, *[1] * (data.dim() - 1))
    sums = torch.conv2d(x, w, None, *rest) if convolution else x @ w.T
    factors = torch.tensor(0.0371) * scales
    assert torch.equal(found, sums.float() * (factors[:, None, None] if convolution else factors))


def test_an_exact_product_of_int8_is_one_of_bytes() -> None:
    data, _ = _weights(8, 5)
    b = GraphBuilder("layer", {"q": tensor(20, 8, dtype="int8")})
    b.leave(b.entry, b.op(b.entry, "aten._int_mm.default", b.params[0], constant(data)))
    assert integer_products(b.graph) and "dycl_quantized.matmul.default" in _ops(b.graph)
    q = torch.randint(-128, 128, (20, 8)).to(torch.int8)
    assert torch.equal(interpret(b.graph, [q])[0][0], (q.double() @ data.double()).int())


def test_weights_that_are_transposed_by_a_step_of_their_own_are_found() -> None:
    data, _ = _weights(5, 8)
    b = GraphBuilder("layer", {"q": tensor(3, 8, dtype="uint8")})
    x = b.op(b.entry, "quantized_decomposed.dequantize_per_tensor.default", b.params[0], 0.0371, 7, 0, 255, torch.uint8)
    w = b.op(b.entry, "quantized_decomposed.dequantize_per_tensor.default", constant(data), 0.01, 0, -128, 127, torch.int8)
    b.leave(b.entry, b.op(b.entry, "aten.mm.default", x, b.op(b.entry, "aten.t.default", w)))
    assert integer_products(b.graph) and "dycl_quantized.matmul.default" in _ops(b.graph)


def test_a_bias_that_the_sums_have_no_room_for_is_added_afterwards() -> None:
    graph = _layer("aten.linear.default", (3, 8), _weights(5, 8), bias=torch.zeros(5))
    builder = GraphBuilder("other", {})
    b8 = torch.full((5,), 2**31 - 5, dtype=torch.int32)
    block = graph.blocks[0]
    block.steps.insert(0, _dequantised_bias(builder, b8, torch.tensor(0.0371) * _weights(5, 8)[1]))
    step = block.steps[-1]
    step.args = (*step.args[:2], block.steps[0].outputs[0])  # type: ignore[union-attr, misc]
    q = torch.randint(0, 256, (3, 8)).to(torch.uint8)
    (before,), _ = interpret(graph, [q])
    assert integer_products(graph) and "dycl_quantized.matmul.default" in _ops(graph)
    torch.testing.assert_close(interpret(graph, [q])[0][0], before)


def _too_long() -> HCFG:
    return _layer("aten.linear.default", (1, 66_400), (torch.full((2, 66_400), 127, dtype=torch.int8), torch.ones(2)), zero=0)


def _scale_along_the_sum() -> HCFG:
    b = GraphBuilder("layer", {"q": tensor(3, 4, dtype="uint8")})
    (q,) = b.params
    x = b.op(b.entry, "quantized_decomposed.dequantize_per_tensor.default", q, 0.1, 0, 0, 255, torch.uint8)
    data, scales = _weights(4, 4)
    w = b.op(
        b.entry, "quantized_decomposed.dequantize_per_channel.default", constant(data), constant(scales), None, 1, -128, 127, torch.int8
    )
    b.leave(b.entry, b.op(b.entry, "aten.linear.default", x, w))
    return b.graph


@pytest.mark.parametrize("make", [_too_long, _scale_along_the_sum])
def test_what_might_not_fit_stays_float(make: Callable[[], HCFG]) -> None:
    graph = make()
    integer_products(graph)
    assert "aten.linear.default" in _ops(graph)


class _Network(torch.nn.Module):
    """Quantised by hand, with a branch; its weights are int8 buffers."""

    def __init__(self) -> None:
        super().__init__()
        data, scales = _weights(8, 3, 3, 3)
        self.register_buffer("w", data)
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros(8, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = D.quantize_per_tensor(x, 0.02, 128, 0, 255, torch.uint8)
        x = D.dequantize_per_tensor(q, 0.02, 128, 0, 255, torch.uint8)
        w = D.dequantize_per_channel(self.w, self.scales, self.zeros, 0, -128, 127, torch.int8)
        y = torch.relu(torch.conv2d(x, w, padding=1))
        if y.mean() > 0.5:
            y = y + D.dequantize_per_tensor(D.quantize_per_tensor(y, 0.5, 3, 0, 255, torch.uint8), 0.5, 3, 0, 255, torch.uint8)
        return y


def test_a_program_of_pytorchs_quantised_operators_is_staged_and_equals_eager_up_to_rounding() -> None:
    model, x = _Network().eval(), torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    plain = stage(model, (x,), disable_passes=["integer_products"]).interpret()
    whole = stage(model, (x,)).interpret()
    used = {s.op for f in whole.graph.sub_dnns() for s in f.ops}
    assert {"dycl_quantized.conv2d.default", "dycl_quantized.add.default"} <= used
    paths = set()
    for scale in (0.1, 1.0, 3.0):
        assert torch.equal(plain(scale * x), model(scale * x))
        torch.testing.assert_close(whole(scale * x), model(scale * x), rtol=1e-5, atol=1e-5)
        paths.add(whole.last_path.branches[0].choice)
    assert paths == {False, True}


@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 5), (4, 1), (4, 5)])
@pytest.mark.parametrize("outputs", [5, 1])
def test_a_bias_of_integers_may_have_any_shape_that_spreads_to_the_product(shape: tuple[int, ...], outputs: int) -> None:
    shape = tuple(min(extent, outputs) if d == len(shape) - 1 else extent for d, extent in enumerate(shape))
    generator = torch.Generator().manual_seed(2)
    weights = torch.randint(-127, 128, (3, outputs), dtype=torch.int8, generator=generator)
    bias = torch.randint(-9000, 9000, shape, dtype=torch.int32, generator=generator)
    unit = float(torch.tensor(0.02) * torch.tensor(0.005))
    b = GraphBuilder("layer", {"q": tensor(4, 3, dtype="uint8")})
    x = b.op(b.entry, "quantized_decomposed.dequantize_per_tensor.default", b.params[0], 0.02, 7, 0, 255, torch.uint8)
    w = b.op(b.entry, "quantized_decomposed.dequantize_per_tensor.default", constant(weights), 0.005, 0, -128, 127, torch.int8)
    limits = (-(2**31), 2**31 - 1, torch.int32)
    added = b.op(b.entry, "quantized_decomposed.dequantize_per_tensor.default", constant(bias), unit, 0, *limits)
    b.leave(b.entry, b.op(b.entry, "aten.addmm.default", added, x, w))
    q = torch.randint(0, 256, (4, 3), dtype=torch.uint8, generator=generator)
    (expected,), _ = interpret(b.graph, [q])
    assert integer_products(b.graph)
    verify(b.graph)
    (found,), _ = interpret(b.graph, [q])
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected)
