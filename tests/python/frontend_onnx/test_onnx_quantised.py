# Licensed under the Apache License, Version 2.0; see LICENSE.
"""ONNX models with QuantizeLinear and DequantizeLinear: integers to the bit, sums as integers, weights of 4 bits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import dycl_tvm
from dycl_tvm.build import stage
from dycl_tvm.errors import UnsupportedError


def _model(nodes: list[Any], initializers: dict[str, Any], x: tuple[int, ...], y: tuple[int, ...], y_type: int = TensorProto.FLOAT) -> Any:
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", y_type, y)],
        [t if isinstance(t, onnx.TensorProto) else numpy_helper.from_array(np.asarray(t), n) for n, t in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantisation_is_that_of_the_reference_at_every_half(dtype: Any) -> None:
    zero = np.array(3, dtype)
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = _model(nodes, {"s": np.float32(0.1), "z": zero}, (600,), (600,), kind)
    x = (np.arange(600, dtype=np.float32) - 300) * np.float32(0.05)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(stage(model).interpret()(torch.from_numpy(x)).numpy(), expected)


def _int4(name: str, values: Any, kind: int) -> Any:
    return helper.make_tensor(name, kind, values.shape, values.ravel().tolist())


def _qdq(weights: Any, zeros: Any) -> Any:
    dequantise = helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wf"], axis=1)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["xf"]),
        dequantise,
        helper.make_node("MatMul", ["xf", "wf"], ["m"]),
        helper.make_node("Relu", ["m"], ["y"]),
    ]
    scales = {"s": np.float32(0.02), "z": np.uint8(100), "sw": np.array([0.01, 0.02, 0.03], np.float32)}
    return _model(nodes, {**scales, "w": weights, "zw": zeros}, (2, 4), (2, 3))


@pytest.mark.parametrize("kind", ["int8", "uint8", "int4", "uint4"])
def test_products_of_dequantised_tensors_are_sums_of_integers(kind: str) -> None:
    values = np.arange(12).reshape(4, 3) - (0 if kind.startswith("u") else 6)
    zeros = np.array([0, 0, 0] if not kind.startswith("u") else [8, 7, 6])
    if kind.endswith("8"):
        model = _qdq(values.astype(kind), zeros.astype(kind))
    else:
        number = getattr(TensorProto, kind.upper())
        model = _qdq(_int4("w", values, number), _int4("zw", zeros, number))
    before = model.SerializeToString()
    graph = stage(model)
    assert model.SerializeToString() == before
    assert "dycl_quantized.matmul.default" in {s.op for f in graph.sub_dnns() for s in f.ops}
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    q = np.clip(np.rint(x / np.float32(0.02)) + 100, 0, 255).astype(np.int64) - 100
    sums = (q @ (values - zeros)).astype(np.float32)
    expected = np.maximum(sums * (np.float32(0.02) * np.array([0.01, 0.02, 0.03], np.float32)), 0)
    np.testing.assert_array_equal(graph.interpret()(torch.from_numpy(x)).numpy(), expected)


def test_4_bits_that_are_not_only_dequantised_are_refused() -> None:
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])]
    model = _model(nodes, {"s": np.float32(0.1), "z": _int4("z", np.array(1), TensorProto.INT4)}, (4,), (4,))
    with pytest.raises(UnsupportedError, match="int4"):
        stage(model)


def _network(dtype: Any) -> Any:
    """Return convolutions with borders, a residual, a join of two grids and averages, as quantisers write them."""
    generator, zero = np.random.default_rng(0), np.array(0 if dtype == np.int8 else 120, dtype)
    initializers: dict[str, Any] = {"z": zero, "zw": np.int8(0)}
    nodes: list[Any] = []

    def fake(x: str, scale: float) -> str:
        name = f"{x}_{len(nodes)}"
        initializers[f"{name}_s"] = np.float32(scale)
        nodes.append(helper.make_node("QuantizeLinear", [x, f"{name}_s", "z"], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s", "z"], [name]))
        return name

    def weight(name: str, shape: tuple[int, ...]) -> str:
        initializers[f"{name}_w"], initializers[f"{name}_sw"] = generator.integers(-127, 128, shape).astype(np.int8), np.float32(0.003)
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_w", f"{name}_sw", "zw"], [f"{name}_wf"]))
        return f"{name}_wf"

    def node(op: str, inputs: list[str], out: str, scale: float, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [out], **attributes))
        return fake(out, scale)

    x = fake("x", 0.02)
    a = node("Conv", [x, weight("a", (16, 3, 3, 3))], "a", 0.03, pads=[1, 1, 1, 1])
    b = node("Conv", [a, weight("b", (16, 16, 3, 3))], "b", 0.04, pads=[1, 1, 1, 1])
    c = node("Add", [b, a], "c", 0.05)
    d = node("MaxPool", [c], "d", 0.05, kernel_shape=[2, 2], strides=[2, 2])
    e = node("AveragePool", [a], "e", 0.02, kernel_shape=[2, 2], strides=[2, 2])
    f = node("Concat", [d, e], "f", 0.04, axis=1)
    g = node("GlobalAveragePool", [f], "g", 0.01)
    h = node("Flatten", [g], "h", 0.01)
    nodes.append(helper.make_node("Gemm", [h, weight("i", (5, 32))], ["y"], transB=1))
    return _model(nodes, initializers, (1, 3, 8, 8), (1, 5))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_a_network_of_a_quantiser_is_computed_in_bytes(dtype: Any, tmp_path: Path) -> None:
    model = _network(dtype)
    graph = stage(model)
    ops = [o for f in graph.sub_dnns() for o in f.ops]
    of_images = ("convolution", "conv2d", "addmm", "mm", "mean", "avg_pool2d", "adaptive_avg_pool2d")
    assert not [o.op for o in ops if o.op.startswith("aten.") and o.op.split(".")[1].lstrip("_") in of_images]
    joined = [v.type.dtype for o in ops if o.op in ("aten.cat.default", "aten.max_pool2d_with_indices.default") for v in o.operands()]
    assert set(joined) == {"uint8"}
    art = dycl_tvm.build(model, target="native")
    families = art.report().families  # which of the two depends on the CPU
    assert families.get("int8", 0) + families.get("amx", 0) == 3
    kernels = set(re.findall(r"__tvm_ffi_dycl_([a-z0-9]+)", art.source()))
    assert not kernels & {"pad", "pack", "unpack", "fused"}  # borders are the convolutions' own, and images of few channels are read plain
    art.export_library(tmp_path / "m.so")
    art.save_params(tmp_path / "m.params")
    module, generator = dycl_tvm.load(tmp_path / "m.so", tmp_path / "m.params"), np.random.default_rng(1)
    for _ in range(3):
        x = generator.normal(size=(1, 3, 8, 8)).astype(np.float32)
        found = np.asarray(module(x))
        np.testing.assert_array_equal(found, graph.interpret()(torch.from_numpy(x)).numpy())
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
        # a step of what Gemm reads, times its weights, at most
        np.testing.assert_allclose(found, expected, atol=0.01 * 0.003 * 127 * 3)
