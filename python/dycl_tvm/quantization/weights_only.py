# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Weights alone in 8 or 4 bits: products read integers with a scale a group, and compute in float32; nothing is calibrated.

Integers are symmetric, without zero points: weights of trained layers lie evenly around zero, and a kernel needs nothing but the scales.
Of 8 bits they reach from -127 to 127, as llama.cpp's Q8_0 and torchao's int8 weights have it. Of 4 bits the scale has a sign, such that the
largest weight of a group is near -8 times it, as in llama.cpp's Q4_0: all 16 integers are used. Of some scales near that one, each group
has the one whose squared errors are least.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch

from dycl_tvm.errors import UsageError
from dycl_tvm.hcfg.grouped import LINEAR, ROWS, dequantised, in_bytes
from dycl_tvm.hcfg.interpreter import tensor_type
from dycl_tvm.hcfg.nodes import HCFG, Constant, Step, TensorOp, Value
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.passes.rewrite import static_argument
from dycl_tvm.quantization.layers import Layer, name_of, no_layers
from dycl_tvm.quantization.program import NOT_FINITE, SKIPPED, LayerLoss

#: Bits of the element types; the groups that may be asked for, and the one of 4 bits if none is.
BITS = {"int8": 8, "int4": 4}
GROUPS, _GROUP = (32, 64, 128), 64
#: Of the scale of 4 bits that has the largest weight at -8.
_FACTORS = (1.0, 0.95, 0.9, 0.85, 0.8, -8 / 7)

_EMBEDDING = "aten.embedding.default"


@dataclass(frozen=True)
class Kind:
    """Which integers weights become: their bits, and how many of a row have one scale; None for all."""

    bits: int
    group: int | None

    @staticmethod
    def of(weights_only: str, group_size: int | None) -> Kind:
        """Return what a user asks for.

        Raises
        ------
        UsageError
            If there is no such kind.
        """
        if not isinstance(weights_only, str) or weights_only not in BITS:
            raise UsageError(f"weights_only is 'int8' or 'int4', not {weights_only!r}")
        if group_size is not None and (type(group_size) is not int or group_size not in GROUPS):
            raise UsageError(f"group_size is one of {', '.join(map(str, GROUPS))}, not {group_size!r}")
        return Kind(BITS[weights_only], _GROUP if group_size is None and weights_only == "int4" else group_size)


@dataclass(frozen=True, eq=False)
class GroupedWeights:
    """The weights of a layer, (outputs, inputs), as integers with scales."""

    data: Constant
    scales: Constant
    group: int
    decibels: float

    @staticmethod
    def of(layer: Layer, kind: Kind) -> GroupedWeights:
        """Return the weights of a layer."""
        rows = layer.weight.data.detach().movedim(layer.channel, 0).contiguous()
        k = rows.shape[1]
        group = k if kind.group is None else min(kind.group, k)
        integers, scales = _integers(rows, group, kind.bits)
        data = in_bytes(integers, kind.bits)
        noise = float((dequantised(data, scales, group, k) - rows).double().square().sum())
        signal = float(rows.double().square().sum())
        decibels = math.inf if noise == 0 else 10 * math.log10(signal / noise)
        return GroupedWeights(_constant(data, layer.weight.name), _constant(scales, f"{layer.name}.scales"), group, decibels)


def takes(layer: Layer) -> bool:
    """Whether the weights of a layer can become integers with scales: a product's."""
    return layer.weight.data.dim() == 2


def round_weights(graph: HCFG, layers: Sequence[Layer], kind: Kind) -> Mapping[Constant, GroupedWeights]:
    """Make layers read rounded weights, in place; tables of embeddings that are such weights too. Return what the weights became."""
    made: dict[tuple[Constant, int], GroupedWeights] = {}
    of_step = {layer.step: layer for layer in layers}
    for layer in layers:
        if (layer.weight, layer.channel) not in made:
            made[layer.weight, layer.channel] = GroupedWeights.of(layer, kind)
    tables = _tied(graph, made)
    for block in graph.blocks:
        steps: list[Step] = []
        for step in block.steps:
            if isinstance(step, TensorOp) and step in of_step:
                layer = of_step[step]
                steps += _product(layer, made[layer.weight, layer.channel])
            elif _is_embedding(step) and _table(step) in tables:
                steps.append(_rows(step, tables[_table(step)]))
            else:
                steps.append(step)
        block.steps = steps
    return {**{weight: found for (weight, _), found in made.items()}, **tables}


def _tied(graph: HCFG, made: Mapping[tuple[Constant, int], GroupedWeights]) -> dict[Constant, GroupedWeights]:
    """Return the tables of embeddings that hold the weights of a layer: products may read them transposed, as another constant."""
    found = {}
    for table in _tables(graph):
        for (weight, channel), weights in made.items():
            rows = weight.data.movedim(channel, 0)
            if torch.equal(rows, table.data):  # the same constant is none if the outputs of the product are its columns
                found[table] = weights
    return found


def weight_losses(graph: HCFG, layers: Sequence[Layer], found: Mapping[Constant, GroupedWeights]) -> tuple[LayerLoss, ...]:
    """Return the layers by what their weights lost, then those that stay float32, tables of embeddings of the graph among them."""
    places = Counter(layer.weight for layer in layers)
    losses = []
    for layer in {layer.weight: layer for layer in layers}.values():
        made = found.get(layer.weight)
        why = "" if made is not None else _why_not(layer)
        losses.append(LayerLoss(layer.name, places[layer.weight], None if made is None else made.decibels, why))
    losses += [LayerLoss(name_of(t), n, None, "an embedding whose rows are no rounded product's") for t, n in _tables(graph).items()]
    losses += [LayerLoss(name, n, None, why) for name, n, why in no_layers(graph)]
    return tuple(sorted(losses, key=lambda loss: (loss.decibels is None, loss.decibels or 0.0)))


def _why_not(layer: Layer) -> str:
    if not takes(layer):
        return "a convolution"
    return SKIPPED if layer.is_finite else NOT_FINITE


def _tables(graph: HCFG) -> Counter[Constant]:
    """Return the tables of embeddings, and at how many places each is read."""
    return Counter(_table(step) for block in graph.blocks for step in block.steps if _is_embedding(step))


def _is_embedding(step: Step) -> TypeGuard[TensorOp]:
    return isinstance(step, TensorOp) and step.op == _EMBEDDING and isinstance(_table(step), Constant)


def _table(step: TensorOp) -> Any:
    return static_argument(step, "weight")


def _product(layer: Layer, weights: GroupedWeights) -> list[Step]:
    step, (out,) = layer.step, layer.step.outputs
    assert out is not None
    bias = None if layer.names[2] is None else static_argument(step, layer.names[2])
    made = out if bias is None else Value(out.type)
    steps: list[Step] = [TensorOp(LINEAR, (layer.x, weights.data, weights.scales, weights.group), {}, (made,), step.origin)]
    if bias is not None:
        steps.append(TensorOp("aten.add.Tensor", (made, bias), {}, (out,), step.origin))
    return steps


def _rows(step: TensorOp, weights: GroupedWeights) -> TensorOp:
    table = _table(step).type
    assert isinstance(table, TensorType)
    args = (weights.data, weights.scales, weights.group, table.shape[1], static_argument(step, "indices"))
    return TensorOp(ROWS, args, {}, step.outputs, step.origin)


def _integers(rows: torch.Tensor, group: int, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return integers (n, k) and scales (n, groups)."""
    n, k = rows.shape
    grouped = torch.nn.functional.pad(rows, (0, -k % group)).reshape(n, -1, group)
    if bits == 8:
        scales = _usable(grouped.abs().amax(-1, keepdim=True) / 127)
        scales = torch.where((127 * scales).isinf(), scales.nextafter(torch.zeros(())), scales)  # next to the largest float32
        integers = torch.round(grouped / scales).clamp(-127, 127)
    else:
        largest = grouped.gather(-1, grouped.abs().argmax(-1, keepdim=True))
        scales, integers = torch.ones_like(largest), torch.zeros_like(grouped)
        least = torch.full_like(largest, math.inf)
        for factor in _FACTORS:
            tried = _usable(largest * (factor / -8))
            found = torch.round(grouped / tried).clamp(-8, 7)
            errors = ((found * tried - grouped) / largest).square().sum(-1, keepdim=True)  # squares of any weights are numbers
            better = errors < least
            scales, integers, least = (torch.where(better, a, b) for a, b in ((tried, scales), (found, integers), (errors, least)))
    return integers.to(torch.int8).reshape(n, -1)[:, :k], scales.squeeze(-1)


def _usable(scales: torch.Tensor) -> torch.Tensor:
    """Return scales by which can be divided: where there is none, weights become zero."""
    return torch.where(scales != 0, scales, 1.0)


def _constant(data: torch.Tensor, name: str) -> Constant:
    data = data.contiguous()
    return Constant(tensor_type(data), data, name)
