# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Batch norm folding: in inference a batch norm is one multiplication and one addition a channel.

Invariant: per channel, ``y = (x - mean) / sqrt(var + eps) * weight + bias`` with constant statistics; the factors are
computed in float64 and rounded once. A convolution before it, whose output nobody else reads, takes them into its
weight and bias. Source: R. Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference", 2018, 3.2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.hcfg.interpreter import resolve, tensor_type
from dycl_tvm.hcfg.nodes import HCFG, Constant, Operand, Step, TensorOp, Value, rewrite_step
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.passes.rewrite import count_uses, replacer, static_argument, substitute

_NORMS = frozenset({
    "aten._native_batch_norm_legit_no_training.default", "aten.native_batch_norm.default", "aten._native_batch_norm_legit.default",
    "aten.batch_norm.default", "aten.cudnn_batch_norm.default", "aten.miopen_batch_norm.default", "aten._batch_norm_no_update.default",
})  # fmt: skip

_CONVOLUTIONS = frozenset({
    "aten.convolution.default", "aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default",
    "aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding",
})  # fmt: skip


@dataclass
class _Affine:
    """``y = x * scale + shift`` for each channel, in float64."""

    scale: torch.Tensor
    shift: torch.Tensor


def fold_batch_norm(graph: HCFG) -> int:
    """Fold the batch norms with constant statistics; return their number."""
    uses = count_uses(graph)
    made: dict[Value, TensorOp] = {}
    for block in graph.blocks:
        for step in block.steps:
            if isinstance(step, TensorOp):
                made.update(dict.fromkeys(step.results(), step))
    mapping: dict[Value, Operand] = {}
    follow = replacer(mapping)
    # Unrolled loops and forks repeat layers: equal constants must come out as one.
    memo: dict[Any, tuple[Constant, Constant]] = {}
    changes = 0
    for block in graph.blocks:
        kept: list[Step] = []
        for step in block.steps:
            if any(v in mapping for v in step.operands()):
                rewrite_step(step, follow)
            if not isinstance(step, TensorOp) or not _foldable(step, uses):
                kept.append(step)
                continue
            source, out = step.args[0], step.outputs[0]
            assert out is not None
            conv = made.get(source)
            if conv is not None and uses[source] == 1 and _takes_affine(conv):
                _fold_into(conv, step, memo)
                mapping[out] = source
                uses[source] = uses[out]
            else:
                kept.extend(_two_operations(step, memo))
            changes += 1
        block.steps = kept
    substitute(graph, mapping)
    return changes


def _foldable(step: TensorOp, uses: Any) -> bool:
    if step.op not in _NORMS or step.outputs[0] is None or any(uses[v] for v in step.results()[1:]):
        return False
    if any(a.name == "training" for a in _schema(step)) and static_argument(step, "training") is not False:
        return False
    statistics = [static_argument(step, "running_mean"), static_argument(step, "running_var")]
    scales = [static_argument(step, "weight"), static_argument(step, "bias")]
    constant = all(isinstance(v, Constant) for v in statistics) and all(v is None or isinstance(v, Constant) for v in scales)
    kind = step.outputs[0].type
    return constant and isinstance(kind, TensorType) and len(kind.shape) >= 2 and "float" in kind.dtype


def _schema(step: TensorOp) -> Any:
    return resolve(step.op)._schema.arguments


def _affine(step: TensorOp) -> _Affine:
    mean, var = (static_argument(step, n).data.double() for n in ("running_mean", "running_var"))
    weight, bias = static_argument(step, "weight"), static_argument(step, "bias")
    scale = torch.rsqrt(var + _eps(step))
    if weight is not None:
        scale = scale * weight.data.double()
    return _Affine(scale, (0.0 if bias is None else bias.data.double()) - mean * scale)  # no bias is +0, as in eager


def _eps(step: TensorOp) -> float:
    name = "eps" if any(a.name == "eps" for a in _schema(step)) else "epsilon"
    return static_argument(step, name)


def _key(step: TensorOp) -> tuple[Any, ...]:
    return (*(static_argument(step, n) for n in ("weight", "bias", "running_mean", "running_var")), _eps(step))


def _takes_affine(conv: TensorOp) -> bool:
    """Tell whether a step is a convolution with constant weights that can take a factor for each output channel."""
    if conv.op not in _CONVOLUTIONS or (conv.op == "aten.convolution.default" and static_argument(conv, "transposed")):
        return False
    weight, bias = static_argument(conv, "weight"), static_argument(conv, "bias")
    batched = conv.outputs[0] is not None and len(conv.outputs[0].type.shape) == len(weight.type.shape)  # type: ignore[union-attr]
    return batched and isinstance(weight, Constant) and (bias is None or isinstance(bias, Constant))


def _fold_into(conv: TensorOp, norm: TensorOp, memo: dict[Any, tuple[Constant, Constant]]) -> None:
    weight, bias = static_argument(conv, "weight"), static_argument(conv, "bias")
    key = ("conv", weight, bias, *_key(norm))
    if key not in memo:
        affine = _affine(norm)
        extents = [-1] + [1] * (weight.data.dim() - 1)
        shift = affine.shift if bias is None else affine.shift + bias.data.double() * affine.scale
        stem = weight.name.removesuffix(".weight")
        memo[key] = (
            _rounded(weight.data.double() * affine.scale.reshape(extents), weight.data.dtype, weight.name),
            _rounded(shift, weight.data.dtype, bias.name if bias is not None else f"{stem}.bias" if stem else ""),
        )
    _set_argument(conv, "weight", memo[key][0])
    _set_argument(conv, "bias", memo[key][1])


def _two_operations(step: TensorOp, memo: dict[Any, tuple[Constant, Constant]]) -> list[Step]:
    out = step.outputs[0]
    assert out is not None
    assert isinstance(out.type, TensorType)
    key = ("affine", out.type.dtype, len(out.type.shape), *_key(step))
    if key not in memo:
        affine = _affine(step)
        extents = [1, -1] + [1] * (len(out.type.shape) - 2)
        dtype = getattr(torch, out.type.dtype)
        weight = static_argument(step, "weight")
        stem = (weight if weight is not None else static_argument(step, "running_mean")).name.rpartition(".")[0]
        memo[key] = (
            _rounded(affine.scale.reshape(extents), dtype, f"{stem}.scale" if stem else ""),
            _rounded(affine.shift.reshape(extents), dtype, f"{stem}.shift" if stem else ""),
        )
    scale, shift = memo[key]
    scaled = Value(out.type, f"{out.name}.scaled" if out.name else "")
    return [
        TensorOp("aten.mul.Tensor", (step.args[0], scale), {}, (scaled,), step.origin),
        TensorOp("aten.add.Tensor", (scaled, shift), {}, (out,), step.origin),
    ]


def _rounded(data: torch.Tensor, dtype: torch.dtype, name: str) -> Constant:
    data = data.to(dtype).contiguous()
    return Constant(tensor_type(data), data, name)


def _set_argument(step: TensorOp, name: str, value: Value) -> None:
    """Replace an argument by name; positions that the step leaves out are filled with the schema's defaults."""
    arguments = _schema(step)
    position = next(k for k, a in enumerate(arguments) if a.name == name)
    if name in step.kwargs or any(a.name in step.kwargs for a in arguments[:position]):
        step.kwargs[name] = value
        return
    args = list(step.args)
    args += [a.default_value for a in arguments[len(args) : position + 1]]
    args[position] = value
    step.args = tuple(args)
