# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Running a network on calibration inputs: the ranges of tensors, by path, and what quantisation would change in each layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from dycl_tvm.errors import DyclError, RunError
from dycl_tvm.hcfg.interpreted import InterpretedModule
from dycl_tvm.hcfg.interpreter import Watcher, run_tensor_op
from dycl_tvm.hcfg.nodes import HCFG, Block, Constant, TensorOp, Value, map_operands
from dycl_tvm.quantization.layers import Layer
from dycl_tvm.quantization.numbers import Grid, Range, quantised_weights

#: The arguments of one call: positional and by name.
Call = tuple[tuple[Any, ...], dict[str, Any]]


#: How much coarser a grid may become so that two layers read the integers of one tensor: one bit of eight.
MOST_COARSER = 2.0


class Ranges(Watcher):
    """The least and largest numbers of some values, and the sides of decisions that were taken.

    Values that feed the same weights, wherever and on whichever path, have one range; so a layer has one.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._group: dict[Any, Any] = {}
        for layer in layers:
            self._join(layer.x, layer.weight)
        self._wanted = {layer.x for layer in layers}
        self._weights = {layer.step: layer.weight for layer in layers}
        self._used: set[Constant] = set()
        self._found: dict[Any, Range] = {}
        self._own: dict[Any, float] = {}  # the width of the narrowest range in one that several groups share
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

    def share(self, values: Iterable[Value]) -> None:
        """Give values that were seen one range, as far as no grid becomes more than so much coarser than that of its own range."""
        groups = sorted(dict.fromkeys(map(self._root, values)), key=lambda group: self._found[group].width)
        for first, second in pairwise(groups):
            into = self._root(first)
            joined = self._found[into].joined(self._found[second])
            own = min(self._own.get(group, self._found[group].width) for group in (into, second))
            if joined.width <= MOST_COARSER * own:
                self._join(second, into)
                self._found[into], self._own[into] = joined, own

    def took(self, block: Block, index: int) -> None:
        """Take note of an edge."""
        self.edges.add((block, index))

    def ran(self, step: TensorOp, frame: Mapping[Value, Any], results: Sequence[Any]) -> None:
        """Take note of a layer that is used; others on paths that nothing took may read the same values."""
        if step in self._weights:
            self._used.add(self._weights[step])

    def of(self, layer: Layer) -> Range | None:
        """Return the range of what a layer reads; None if it has none, as ``missing`` says."""
        return None if self.missing(layer) else self._found[self._root(layer.x)]

    def missing(self, layer: Layer) -> str:
        """Say why a layer has no range: what is not a number has none, and what was not seen."""
        group = self._root(layer.x)
        if group in self._endless:
            return "its input was infinite or not a number in calibration"
        return "" if group in self._found and layer.weight in self._used else "no calibration input comes to it"

    def _root(self, key: Any) -> Any:
        while key in self._group:
            key = self._group[key]
        return key

    def _join(self, a: Any, b: Any) -> None:
        first, second = self._root(a), self._root(b)
        if first is not second:
            self._group[first] = second


class Losses(Watcher):
    """The power of each layer's output, and of what quantising its input and weights changes in it, for each place by itself.

    A layer that is used on large and on small numbers loses the small ones, which a sum over its places would not show.
    """

    def __init__(self, layers: Sequence[Layer], grids: Mapping[Value, Grid]) -> None:
        self._layers = {layer.step: layer for layer in layers}
        self._grids = grids
        self._weights: dict[Any, torch.Tensor] = {}
        self.signal: dict[TensorOp, float] = {}
        self.noise: dict[TensorOp, float] = {}

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
        self.signal[step] = self.signal.get(step, 0.0) + float(exact.square().sum())
        self.noise[step] = self.noise.get(step, 0.0) + float((changed.double() - exact).square().sum())

    def decibels(self, places: Iterable[Layer]) -> float | None:
        """Return the ratio of signal to noise of a layer at the worst of its places; None if it never ran."""
        return min((self._decibels(layer.step) for layer in places if layer.step in self.signal), default=None)

    def _decibels(self, step: TensorOp) -> float:
        signal, noise = self.signal[step], self.noise[step]
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
