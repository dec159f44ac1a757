# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``quantize``: stage, simplify, calibrate, round, make integers; read from top to bottom."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dycl_tvm.coverage import flow_of_graph
from dycl_tvm.errors import UsageError
from dycl_tvm.hcfg.copies import copied_graph
from dycl_tvm.hcfg.nodes import HCFG, Branch, Switch
from dycl_tvm.passes import run_passes
from dycl_tvm.progress import Phases, ProgressLike
from dycl_tvm.quantization.layers import Layer, layers_of, without
from dycl_tvm.quantization.numbers import Grid
from dycl_tvm.quantization.observe import Call, Losses, Ranges, watch
from dycl_tvm.quantization.program import LayerLoss, QuantizationReport, Quantized
from dycl_tvm.quantization.rewrite import round_layers
from dycl_tvm.staging import StagingOptions, stage_model

if TYPE_CHECKING:
    from typing_extensions import Unpack


def quantize(
    model: Any,
    calibration_inputs: Iterable[Any],
    *,
    held_out: Iterable[Any] = (),
    skip: Collection[str] = (),
    progress: ProgressLike = None,
    **options: Unpack[StagingOptions],
) -> Quantized:
    """Make a network compute in 8 bits: static quantisation after training.

    Convolutions of two dimensions and products with constant weights compute with integers: weights are int8 with a scale an
    output channel, what they read is uint8 with one scale and zero point, sums are exact. All else, decisions and their
    thresholds among it, stays float32. docs/quantization.md says what the numbers are, to the bit.

    Parameters
    ----------
    model : nn.Module, function, torch.export.ExportedProgram, ONNX model
        What ``build`` takes; it is not changed.
    calibration_inputs : iterable
        Inputs like those of use: each a tensor, a tuple of positional arguments, or a dict of keyword arguments. The network runs on
        each, by whichever path it takes; the ranges of its tensors are those that were seen. The first one is the example input of
        the build.
    held_out : iterable
        Inputs on which the paths and outputs are compared with those of float32, for the report.
    skip : collection of str
        Names of layers, or of modules whose layers, stay float32.
    progress, options
        As :func:`dycl_tvm.stage` has them.

    Returns
    -------
    Quantized
        What ``build`` takes, with a ``report``.

    Raises
    ------
    UsageError
        If there are no calibration inputs, or a name in ``skip`` is none.
    UnsupportedError
        As :func:`dycl_tvm.build`.
    """
    phases = Phases(progress)
    calls = [_call(inputs) for inputs in calibration_inputs]
    if not calls:
        raise UsageError("calibration_inputs is empty: give some inputs like those of use")
    graph = _staged(model, calls[0], options, phases)
    exact = copied_graph(graph)

    # ranges of what layers read, by whichever path, and the losses that follow from them
    layers = layers_of(graph)
    chosen = [layer for layer in without(layers, skip) if layer.is_finite]
    with phases.phase("calibrate", f"{len(calls)} inputs, {len(chosen)} layers"):
        ranges = Ranges(chosen)
        watch(graph, calls, ranges)
        found = {layer.x: ranges.of(layer.x) for layer in chosen}
        grids = {x: Grid.of(r) for x, r in found.items() if r is not None}
        losses = Losses(chosen, grids)
        watch(graph, calls, losses)

    # the network in integers, which is its meaning from here on
    not_taken = _not_taken(graph, ranges)
    with phases.phase("quantize", f"{len(grids)} tensors"):
        round_layers(graph, chosen, grids)
        run_passes(graph, outlined=False)
    made = Quantized(graph, exact, calls[0])
    compared = [_call(inputs) for inputs in held_out]
    with phases.phase("compare", f"{len(compared)} inputs"):
        agreement = made.agreement(compared) if compared else None
    made.report = QuantizationReport(_losses(layers, chosen, losses, ranges), not_taken, agreement)
    return made


def _staged(model: Any, call: Call, options: StagingOptions, phases: Phases) -> HCFG:
    args, kwargs = call
    graph = stage_model(model, args or None, example_kwargs=kwargs or None, phases=phases, **options)
    run_passes(graph, outlined=False)
    return graph


def _call(inputs: Any) -> Call:
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    raise UsageError(f"a calibration input is a tensor, a tuple of arguments or a dict of keyword arguments, not a {type(inputs).__name__}")


def _losses(layers: Sequence[Layer], chosen: Sequence[Layer], losses: Losses, ranges: Ranges) -> tuple[LayerLoss, ...]:
    """Return the layers by what they lose."""
    places: dict[Any, list[Layer]] = {}
    for layer in layers:
        places.setdefault(layer.weight, []).append(layer)
    found = []
    for same in places.values():
        decibels = losses.decibels(same[0])
        why = "" if decibels is not None else _why_not(same[0], chosen, ranges)
        found.append(LayerLoss(same[0].name, len(same), decibels, why))
    return tuple(sorted(found, key=lambda loss: (loss.decibels is None, loss.decibels or 0.0)))


def _why_not(layer: Layer, chosen: Sequence[Layer], ranges: Ranges) -> str:
    if not layer.is_finite:
        return "its weights are infinite or not a number in places"
    return ranges.missing(layer.x) if layer in chosen else "skipped"


def _not_taken(graph: HCFG, ranges: Ranges) -> tuple[str, ...]:
    """Return the sides of decisions that no run took, in the user's terms."""
    flow = flow_of_graph(graph)
    blocks = [b for b in graph.blocks if isinstance(b.terminator, (Branch, Switch))]
    taken = set()
    for block, index in ranges.edges:
        if isinstance(block.terminator, Branch):
            taken.add((blocks.index(block), 1 - index))  # the first edge of a branch is that of True
        elif isinstance(block.terminator, Switch):
            taken.add((blocks.index(block), index))
    return tuple(str(flow.describe((side,))[0]) for side in flow.sides() if side not in taken)
