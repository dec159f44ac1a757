# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Putting quantisations into a graph: each layer reads rounded inputs, weights and biases, in PyTorch's own words.

What the integers then are is the matter of the pass ``integer_products``. A tensor that a layer reads is rounded where it is made, once,
and all operations read it rounded; results of the network and what the host reads stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dycl_tvm.hcfg.interpreter import tensor_type
from dycl_tvm.hcfg.nodes import HCFG, Constant, Origin, Step, TensorOp, Value, map_operands
from dycl_tvm.hcfg.quantized import DECOMPOSED
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.quantization.layers import Layer, argument_at
from dycl_tvm.quantization.numbers import LEAST, MOST, WEIGHT_LEAST, WEIGHT_MOST, Grid, quantised_weights

_INT32 = torch.iinfo(torch.int32)


def round_layers(graph: HCFG, layers: Sequence[Layer], grids: Mapping[Value, Grid]) -> None:
    """Round the inputs, weights and biases of layers, in place.

    Parameters
    ----------
    graph : HCFG
        Before its sub-DNNs are formed.
    layers : sequence of Layer
        Of this graph.
    grids : mapping
        Of the inputs.
    """
    rounded = _round_values(graph, {layer.x: grids[layer.x] for layer in layers})
    made = _Weights()
    of_step = {layer.step: layer for layer in layers}
    for block in graph.blocks:
        steps: list[Step] = []
        for step in block.steps:
            layer = of_step.get(step) if isinstance(step, TensorOp) else None
            if layer is not None:
                steps += made.put(layer, grids[layer.x])
            steps.append(step)
        block.steps = steps
    for block in graph.blocks:
        for step in block.steps:
            if isinstance(step, TensorOp) and not step.op.startswith(f"{DECOMPOSED}.quantize_per_tensor"):
                step.args = map_operands(step.args, lambda v: rounded.get(v, v))
                step.kwargs = map_operands(step.kwargs, lambda v: rounded.get(v, v))


def _round_values(graph: HCFG, grids: Mapping[Value, Grid]) -> dict[Value, Value]:
    """Add the rounding of values behind their definitions; return what each becomes."""
    rounded: dict[Value, Value] = {}
    constants: dict[Any, Constant] = {}

    def one(number: float | int, dtype: torch.dtype) -> Constant:
        data = torch.tensor(number, dtype=dtype)
        return constants.setdefault((number, dtype), Constant(tensor_type(data), data))

    def steps_for(value: Value, origin: Origin | None) -> list[Step]:
        grid, kind = grids[value], value.type
        assert isinstance(kind, TensorType)
        q, out = Value(TensorType(kind.shape, "uint8"), value.name), Value(kind, value.name)
        how = (one(grid.scale, torch.float32), one(grid.zero, torch.int32), LEAST, MOST, torch.uint8)
        rounded[value] = out
        return [
            TensorOp(f"{DECOMPOSED}.quantize_per_tensor.tensor", (value, *how), {}, (q,), origin),
            TensorOp(f"{DECOMPOSED}.dequantize_per_tensor.tensor", (q, *how), {}, (out,), origin),
        ]

    for block in graph.blocks:
        steps = [new for param in block.params if param in grids for new in steps_for(param, block.origin)]
        for step in block.steps:
            steps.append(step)
            steps += [new for value in step.results() if value in grids for new in steps_for(value, step.origin)]
        block.steps = steps
    return rounded


class _Weights:
    """Weights and biases as integers, each once."""

    def __init__(self) -> None:
        self._weights: dict[tuple[Constant, int], tuple[Constant, Constant]] = {}
        self._biases: dict[Any, tuple[Constant, Constant] | None] = {}

    def put(self, layer: Layer, grid: Grid) -> list[Step]:
        """Make a layer read its weights and bias dequantised; return the steps that it then needs before it."""
        step, kind = layer.step, layer.weight.type
        key = (layer.weight, layer.channel)  # x @ w and linear(x, w) read one weight in two ways
        if key not in self._weights:
            whole, units = quantised_weights(layer.weight.data, layer.channel)
            self._weights[key] = _constant(whole, layer.weight.name), _constant(units, f"{layer.name}.scales")
        data, scales = self._weights[key]
        weight = Value(kind, layer.weight.name)
        how = (scales, None, layer.channel, WEIGHT_LEAST, WEIGHT_MOST, torch.int8)
        steps: list[Step] = [TensorOp(f"{DECOMPOSED}.dequantize_per_channel.default", (data, *how), {}, (weight,), step.origin)]
        _set(step, argument_at(step, layer.names[1]), weight)
        found = self._bias(layer, grid, scales)
        if found is not None and layer.bias is not None:
            integers, factors = found
            bias = Value(layer.bias.type, layer.bias.name)
            how = (factors, None, 0, _INT32.min, _INT32.max, torch.int32)
            steps.append(TensorOp(f"{DECOMPOSED}.dequantize_per_channel.default", (integers, *how), {}, (bias,), step.origin))
            _set(step, argument_at(step, layer.names[2]), bias)
        return steps

    def _bias(self, layer: Layer, grid: Grid, scales: Constant) -> tuple[Constant, Constant] | None:
        """Return the bias in units of the sums, and these units; None if it does not fit or is no vector."""
        if layer.bias is None or layer.bias.data.shape != scales.data.shape:
            return None
        key = (layer.bias, layer.weight, layer.channel, grid)
        if key not in self._biases:
            factors = torch.tensor(grid.scale, dtype=torch.float32) * scales.data
            whole = torch.round(layer.bias.data.double() / factors.double())
            fits = bool((whole.abs() < _INT32.max / 2).all())
            name = layer.bias.name
            self._biases[key] = (_constant(whole.to(torch.int32), name), _constant(factors, f"{name}.scales")) if fits else None
        return self._biases[key]


def _set(step: TensorOp, at: Any, value: Value) -> None:
    if isinstance(at, str):
        step.kwargs = {**step.kwargs, at: value}
    else:
        step.args = (*step.args[:at], value, *step.args[at + 1 :])


def _constant(data: torch.Tensor, name: str) -> Constant:
    data = data.contiguous()
    return Constant(tensor_type(data), data, name)
