# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A quantised network: its graph of integers, which is its meaning, and a report of what was lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.hcfg.copies import copied_graph
from dycl_tvm.hcfg.interpreted import InterpretedModule
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.quantization.observe import Call, run_call

#: Why a layer stays float32.
NOT_FINITE, SKIPPED = "its weights are infinite or not a number in places", "skipped"


@dataclass(frozen=True)
class LayerLoss:
    """A layer: how many places it runs at, and what quantising its input and weights changes in its output.

    ``decibels`` is the power of its output over that of the change, on the calibration inputs; where weights alone are quantised, the
    power of the weights over that of their change. It is None for a layer that stays float32, and ``why`` says why it does.
    """

    name: str
    places: int
    decibels: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Agreement:
    """How a quantised network compares with the float32 one on some inputs.

    Attributes
    ----------
    inputs : int
    paths : int
        Inputs for which all decisions fall alike.
    largest : int
        Inputs for which the largest number of the first tensor is at the same place, in every row: top-1 of a classifier.
    """

    inputs: int
    paths: int
    largest: int

    def __str__(self) -> str:
        return f"of {self.inputs} inputs {self.paths} take the same path, {self.largest} have the same largest output"


@dataclass(frozen=True)
class QuantizationReport:
    """What became of a network.

    Attributes
    ----------
    layers : tuple of LayerLoss
        The worst first, then those that stay float32.
    not_taken : tuple of str
        Sides of decisions that no calibration input took, with their lines: layers there that share no weights with others stay float32.
    held_out : Agreement or None
        On the inputs that were held out.
    """

    layers: tuple[LayerLoss, ...]
    not_taken: tuple[str, ...]
    held_out: Agreement | None = None

    def __str__(self) -> str:
        rows = [f"  {layer.decibels:6.1f} dB  {layer.name}" for layer in self.layers if layer.decibels is not None]
        rows += [f"  float32    {layer.name}: {layer.why}" for layer in self.layers if layer.decibels is None]
        rows += [f"  no calibration input took {side}" for side in self.not_taken]
        rows += [] if self.held_out is None else [f"  held out: {self.held_out}"]
        return "\n".join(["quantised layers, signal over noise", *rows])


class Quantized:
    """A network after :func:`dycl_tvm.quantize`: what ``build`` takes in the place of the model.

    Called like the model it runs the integer reference, without compiling: an artefact of it gives the same bits.

    Attributes
    ----------
    hcfg : HCFG
        The graph, with integer operations.
    report : QuantizationReport
    """

    def __init__(self, graph: HCFG, exact: HCFG, example: Call | None) -> None:
        self.hcfg, self._exact, self._example = graph, exact, example
        self._module = InterpretedModule(graph)
        self.report = QuantizationReport((), ())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the integer reference; its state is kept from call to call, as that of the model."""
        return self._module(*args, **kwargs)

    def reset(self) -> None:
        """Put the state back to its beginning."""
        self._module.reset()

    def graph(self) -> HCFG:
        """Return a copy of the graph, for passes to change."""
        return copied_graph(self.hcfg)

    @property
    def example(self) -> Call | None:
        """A call of the network; None for one that was staged without."""
        return self._example

    def agreement(self, calls: Iterable[Call]) -> Agreement:
        """Compare paths and outputs with those of the float32 network."""
        ours, theirs = InterpretedModule(self.hcfg), InterpretedModule(self._exact)
        inputs = paths = largest = 0
        for k, call in enumerate(calls):
            found = []
            for module in (ours, theirs):
                result = run_call(module, call, f"held-out input {k}")
                found.append((_largest(result), [(b.origin, b.choice) for b in module.last_path.branches]))
            inputs += 1
            largest += _equal(found[0][0], found[1][0])
            paths += found[0][1] == found[1][1]
        return Agreement(inputs, paths, largest)


def _largest(result: Any) -> torch.Tensor | None:
    leaves: Sequence[Any] = torch.utils._pytree.tree_leaves(result)
    first = next((t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point() and t.dim()), None)
    return None if first is None else first.argmax(-1)


def _equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and a.shape == b.shape and bool((a == b).all()))
