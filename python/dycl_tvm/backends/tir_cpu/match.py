# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Nodes as workloads: what a convolution or a product asks of the kernel families."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from dycl_tvm.backends.tir_cpu.graph import Node, Var
from dycl_tvm.backends.tir_cpu.reading.borders import Border
from dycl_tvm.backends.tir_cpu.words.workload import FLOAT32, Conv2D, Dense, DTypes, Tensor

#: Inputs of at most this many channels are read in plain layout: a packed block of them would be mostly zeros.
FEW_CHANNELS = 4


def conv_work(node: Node, lanes: int) -> Conv2D | None:
    """Return the workload of a convolution with packed output, or None if no family could take it."""
    if node.anchor not in ("relax.nn.conv2d", "relax.nn.conv1d") or len(node.inputs) != 2 or node.output is None or is_product(node):
        return None
    x, w = node.inputs
    attrs: Any = node.value.attrs
    integers = is_integer(node)
    if not w.constant or x.constant or not (integers or x.tensor.dtype == "float32") or str(attrs.data_layout) not in ("NCHW", "NCW"):
        return None
    border = node.border or Border((0, 0, 0, 0), 0)
    one_d = node.anchor == "relax.nn.conv1d"
    stride, padding, dilation = ([int(v) for v in getattr(attrs, a)] for a in ("strides", "padding", "dilation"))
    if one_d:
        stride, dilation = [1, *stride], [1, *dilation]
        padding = [0, padding[0], 0, padding[1]]
    padding = [own + around for own, around in zip(padding, border.widths)]
    shape, out = image_shape(x.tensor.shape), image_shape(node.output.tensor.shape)
    kernel = w.tensor.shape[2:] if not one_d else (1, *w.tensor.shape[2:])
    few = shape[1] <= FEW_CHANNELS and not (int(attrs.groups) == shape[1] == out[1] > 1)  # depthwise kernels read vectors
    return Conv2D(
        Tensor(shape, x.tensor.dtype, 1 if few else lanes),
        Tensor(out, node.last.tensor.dtype if integers else "float32", lanes),
        (kernel[0], kernel[1]),
        (stride[0], stride[1]),
        (padding[0], padding[1], padding[2], padding[3]),
        (dilation[0], dilation[1]),
        int(attrs.groups),
        *(("int8", "int32") if integers else ("float32", "float32")),
        border.number,
    )


def is_integer(node: Node) -> bool:
    """Whether a convolution or product sums products of uint8 and int8 in int32."""
    if node.output is None or len(node.inputs) != 2 or node.output.tensor.dtype != "int32":
        return False
    return (node.inputs[0].tensor.dtype, node.inputs[1].tensor.dtype) == ("uint8", "int8")


def image_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape with two spatial dimensions."""
    return shape if len(shape) != 3 else (shape[0], shape[1], 1, shape[2])


def is_product(node: Node) -> bool:
    """Whether a convolution is a product of (N, C) and (C, O): one pixel, one tap."""
    if node.anchor != "relax.nn.conv2d" or len(node.inputs) != 2 or node.output is None or int(node.value.attrs.groups) != 1:
        return False
    return all(v.tensor.shape[2:] == (1, 1) for v in (*node.inputs, node.output))


def dense_work(node: Node) -> Dense | None:
    """Return the workload of a product with a weight on its right side.

    For a convolution that is one, the weights are (n, k).
    """
    if is_product(node):
        x, w = node.inputs
        if not w.constant or x.constant or not (is_integer(node) or x.tensor.dtype == "float32"):
            return None
        return _dense(node, x.tensor.shape[0], w.tensor.shape[0], w.tensor.shape[1])
    if node.anchor != "relax.matmul" or len(node.inputs) != 2 or node.output is None:
        return None
    x, w = node.inputs
    if not w.constant or x.constant or len(w.tensor.shape) != 2:
        return None
    if not is_integer(node) and {x.tensor.dtype, w.tensor.dtype} != {"float32"}:
        return None
    k, n = w.tensor.shape
    return _dense(node, math.prod(x.tensor.shape[:-1]), n, k)


def grouped_work(node: Node) -> Dense | None:
    """Return the workload of a product whose weights are dequantised for it alone, as one of their integers."""
    work = dense_work(node) if node.anchor == "relax.matmul" else None
    made = node.inputs[1].producer if work is not None else None
    if work is None or made is None or not made.group:
        return None
    weights = {"int8": "int8", "uint8": "int4"}[made.inputs[0].tensor.dtype]  # of 4 bits a byte has two
    return replace(work, dtypes=DTypes(weights=weights), group=made.group)


def _dense(node: Node, m: int, n: int, k: int) -> Dense:
    return Dense(1, m, n, k, dtypes=DTypes("uint8", "int8", "int32", node.last.tensor.dtype) if is_integer(node) else FLOAT32)


def matmul_work(node: Node) -> Dense | None:
    """Return the workload of a product of two run-time tensors; each side's leading dimensions are the same, or the right has none."""
    if node.anchor != "relax.matmul" or len(node.inputs) != 2 or node.output is None:
        return None
    x, w = node.inputs
    if w.constant or x.tensor.dtype != "float32" or w.tensor.dtype != "float32":
        return None
    a, b = x.tensor.shape, w.tensor.shape
    if len(a) < 2 or len(b) < 2:
        return None
    if math.prod(b[:-2]) == 1:
        return Dense(1, math.prod(a[:-1]), b[-1], b[-2], constant=False)
    if a[:-2] != b[:-2]:
        return None
    return Dense(math.prod(a[:-2]), a[-2], b[-1], a[-1], constant=False, shared=False)


def transposed_source(var: Var) -> Var | None:
    """Return what a tensor is the transposed matrices of, if that is nothing but a transposition."""
    node = var.producer
    return node.inputs[0] if node is not None and node.transposes and node.host is None and not var.constant else None


def product_operand(tensor: Tensor, out: tuple[int, ...], work: Dense) -> tuple[int, int, int] | None:
    """Return the shape of an epilogue operand as the kernel of a product sees it, or None if it cannot be one.

    Parameters
    ----------
    tensor : Tensor
        Broadcast to ``out``.
    out : tuple of int
        The node's own output shape, whose leading dimensions the kernel sees as (batch, m).
    work : Dense
    """
    shape = (1,) * (len(out) - len(tensor.shape)) + tensor.shape
    while len(out) > 2 and out[-1] == 1 and shape[-1] == 1:  # an image of one pixel
        out, shape = out[:-1], shape[:-1]
    if shape == out:
        return (work.batch, work.m, work.n)
    if math.prod(shape[:-1]) == 1:
        return (1, 1, shape[-1])
    if shape[-1] == 1 and shape[:-1] == out[:-1]:
        return (work.batch, work.m, 1)
    return None
