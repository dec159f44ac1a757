# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Running a network on calibration inputs: the ranges of tensors, by path, and what quantisation would change in each layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from dycl_tvm.errors import DyclError, RunError
from dycl_tvm.hcfg.interpreted import InterpretedModule
from dycl_tvm.hcfg.interpreter import Watcher, run_tensor_op
from dycl_tvm.hcfg.nodes import HCFG, Block, TensorOp, Value, map_operands
from dycl_tvm.quantization.layers import Layer
from dycl_tvm.quantization.numbers import Grid, Range, quantised_weights

#: The arguments of one call: positional and by name.
Call = tuple[tuple[Any, ...], dict[str, Any]]


class Ranges(Watcher):
    """The least and largest numbers of some values, and the sides of decisions that were taken.

    Values that feed the same weights, wherever and on whichever path, have one range; so a layer has one.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._group: dict[Any, Any] = {}
        for layer in layers:
            self._join(layer.x, layer.weight)
        self._wanted = {layer.x for layer in layers}
        self._found: dict[Any, Range] = {}
        self._endless: set[Any] = set()
        self.edges: set[tuple[Block, int]] = set()

    def defined(self, value: Value, data: Any) -> None:
        """Take note of a value that is computed or passed on."""
        if value in self._wanted and data.numel():
            low, high = torch.aminmax(data.detach())
            group = self._root(value)
            known = self._found.get(group)
            here = Range(float(low), float(high))
            if not (math.isfinite(here.low) and math.isfinite(here.high)):
                self._endless.add(group)
            self._found[group] = here if known is None else known.joined(here)

    def took(self, block: Block, index: int) -> None:
        """Take note of an edge."""
        self.edges.add((block, index))

    def of(self, value: Value) -> Range | None:
        """Return the range of a value; None if it has none, as ``missing`` says."""
        return None if self.missing(value) else self._found[self._root(value)]

    def missing(self, value: Value) -> str:
        """Say why a value has no range: what is not a number has none, and what was not seen."""
        group = self._root(value)
        if group in self._endless:
            return "its input was infinite or not a number in calibration"
        return "" if group in self._found else "no calibration input comes to it"

    def _root(self, key: Any) -> Any:
        while key in self._group:
            key = self._group[key]
        return key

    def _join(self, a: Any, b: Any) -> None:
        first, second = self._root(a), self._root(b)
        if first is not second:
            self._group[first] = second


class Losses(Watcher):
    """The power of each layer's output, and of what quantising its input and weights changes in it."""

    def __init__(self, layers: Sequence[Layer], grids: Mapping[Value, Grid]) -> None:
        self._layers = {layer.step: layer for layer in layers if layer.x in grids}
        self._grids = grids
        self._weights: dict[Any, torch.Tensor] = {}
        self.signal: dict[Any, float] = {}
        self.noise: dict[Any, float] = {}

    def ran(self, step: TensorOp, frame: Mapping[Value, Any], results: Sequence[Any]) -> None:
        """Run a layer once more, with what its numbers are rounded to."""
        layer = self._layers.get(step)
        if layer is None:
            return
        key = (layer.weight, layer.channel)
        if key not in self._weights:
            data, scales = quantised_weights(layer.weight.data, layer.channel)
            shape = [1] * data.dim()
            shape[layer.channel] = -1
            self._weights[key] = data.to(torch.float32) * scales.reshape(shape)

        def operand(value: Value) -> Any:
            if value is layer.weight:
                return self._weights[key]
            data = value.data if hasattr(value, "data") else frame[value]
            return self._grids[value].rounded(data) if value is layer.x else data

        (changed,) = run_tensor_op(step, map_operands(step.args, operand), map_operands(step.kwargs, operand))
        exact = results[0].double()
        self.signal[layer.weight] = self.signal.get(layer.weight, 0.0) + float(exact.square().sum())
        self.noise[layer.weight] = self.noise.get(layer.weight, 0.0) + float((changed.double() - exact).square().sum())

    def decibels(self, layer: Layer) -> float | None:
        """Return the ratio of signal to noise of a layer; None if it never ran."""
        if layer.weight not in self.signal:
            return None
        signal, noise = self.signal[layer.weight], self.noise[layer.weight]
        return math.inf if noise == 0 else -math.inf if signal == 0 else 10 * math.log10(signal / noise)


def watch(graph: HCFG, calls: Iterable[Call], watcher: Watcher) -> None:
    """Run a graph from its initial state for each call.

    Raises
    ------
    RunError
        If the network raises an error for one; the message says for which.
    """
    module = InterpretedModule(graph, watcher)
    for k, call in enumerate(calls):
        of = f"calibration input {k}"
        try:
            run_call(module, call, of)
        except RunError as error:
            run_call(InterpretedModule(graph), call, of)
            raise (error.__cause__ or error) from None  # not the network's own, but of who watches it


def run_call(module: InterpretedModule, call: Call, of: str) -> Any:
    """Run a graph from its initial state for a call; an error of the network says of what it is."""
    args, kwargs = call
    module.reset()
    try:
        return module(*args, **kwargs)
    except DyclError:
        raise
    except Exception as error:
        raise RunError.of(f"{of}: {error}", type(error).__name__) from error
