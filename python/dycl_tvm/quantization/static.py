# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``quantize``: stage, simplify, calibrate, round, make integers; read from top to bottom."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from dycl_tvm.coverage import flow_of_graph
from dycl_tvm.errors import UsageError
from dycl_tvm.hcfg.copies import copied_graph
from dycl_tvm.hcfg.nodes import HCFG, Branch, Switch
from dycl_tvm.passes import run_passes
from dycl_tvm.progress import Phases, ProgressLike
from dycl_tvm.quantization.layers import Layer, layers_of, no_layers, without
from dycl_tvm.quantization.numbers import Grid
from dycl_tvm.quantization.observe import Call, Losses, Ranges, watch
from dycl_tvm.quantization.program import NOT_FINITE, SKIPPED, Agreement, LayerLoss, QuantizationReport, Quantized
from dycl_tvm.quantization.rewrite import round_layers
from dycl_tvm.quantization.sources import families
from dycl_tvm.quantization.weights_only import Kind, round_weights, takes, weight_losses
from dycl_tvm.staging import StagingOptions, stage_model

if TYPE_CHECKING:
    from typing_extensions import Unpack


def quantize(
    model: Any,
    calibration_inputs: Iterable[Any] = (),
    *,
    weights_only: Literal["int8", "int4"] | None = None,
    group_size: int | None = None,
    held_out: Iterable[Any] = (),
    skip: Collection[str] = (),
    progress: ProgressLike = None,
    **options: Unpack[StagingOptions],
) -> Quantized:
    """Make a network compute in 8 bits, or keep its weights in 8 or 4 bits: quantisation after training.

    Convolutions of two dimensions and products with constant weights compute with integers: weights are int8 with a scale an
    output channel, what they read is uint8 with one scale and zero point, sums are exact. All else, decisions and their
    thresholds among it, stays float32. docs/quantization.md says what the numbers are, to the bit.

    With ``weights_only`` nothing but the weights of products is rounded, and of embeddings that share them: what networks need that
    wait for their weights, such as decoders of one token at a time.

    Parameters
    ----------
    model : nn.Module, function, torch.export.ExportedProgram, ONNX model
        What ``build`` takes; it is not changed.
    calibration_inputs : iterable
        Inputs like those of use: each a tensor, a tuple of positional arguments, or a dict of keyword arguments. The network runs on
        each, by whichever path it takes; the ranges of its tensors are those that were seen. The first one is the example input of
        the build. With ``weights_only`` the first one alone is used, and models that need no example input need none.
    weights_only : {"int8", "int4"}, optional
        Keep only weights as integers, and compute in float32.
    group_size : int, optional
        How many neighbours of a row of weights have one scale: 32, 64 or 128. By default 64 for 4 bits, and the whole row for 8.
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
        If there are no calibration inputs, a name in ``skip`` is none, there are no such integers or groups, or the model is
        quantised already.
    UnsupportedError
        As :func:`dycl_tvm.build`.
    """
    if isinstance(model, Quantized):
        raise UsageError("the network is quantised already: quantize takes the model that it was made of")
    phases = Phases(progress)
    calls = [_call(inputs) for inputs in calibration_inputs]
    if weights_only is not None:
        kind = Kind.of(weights_only, group_size)
        return _weights_only(model, calls[0] if calls else None, kind, held_out, skip, options, phases)
    if group_size is not None:
        raise UsageError("group_size is for weights_only")
    if not calls:
        raise UsageError("calibration_inputs is empty: give some inputs like those of use")
    graph = _staged(model, calls[0], options, phases)
    exact = copied_graph(graph)

    # ranges of what layers read, by whichever path, and the losses that follow from them
    layers = layers_of(graph)
    others = [LayerLoss(name, n, None, why) for name, n, why in no_layers(graph)]
    chosen = [layer for layer in without(layers, skip) if layer.is_finite]
    with phases.phase("calibrate", f"{len(calls)} inputs, {len(chosen)} layers"):
        ranges = Ranges(chosen)
        watch(graph, calls, ranges)
        for values in families(graph, dict.fromkeys(layer.x for layer in chosen if not ranges.missing(layer))):
            ranges.share(values)
        rounded = [(layer, r) for layer in chosen if (r := ranges.of(layer)) is not None]
        grids = {layer.x: Grid.of(r) for layer, r in rounded}
        losses = Losses([layer for layer, _ in rounded], grids)
        watch(graph, calls, losses)

    # the network in integers, which is its meaning from here on
    not_taken = _not_taken(graph, ranges)
    with phases.phase("quantize", f"{len(grids)} tensors"):
        round_layers(graph, [layer for layer, _ in rounded], grids)
        run_passes(graph, outlined=False)
    made = Quantized(graph, exact, calls[0])
    agreement = _agreement(made, held_out, phases)
    made.report = QuantizationReport((*_losses(layers, chosen, losses, ranges), *others), not_taken, agreement)
    return made


def _weights_only(
    model: Any, call: Call | None, kind: Kind, held_out: Iterable[Any], skip: Collection[str], options: StagingOptions, phases: Phases
) -> Quantized:
    graph = _staged(model, call, options, phases)
    exact = copied_graph(graph)
    layers = layers_of(graph)
    chosen = [layer for layer in without(layers, skip) if takes(layer) and layer.is_finite]
    with phases.phase("quantize", f"{len(chosen)} layers"):
        found = round_weights(graph, chosen, kind)
        losses = weight_losses(graph, layers, found)
        run_passes(graph, outlined=False)
    made = Quantized(graph, exact, call)
    made.report = QuantizationReport(losses, (), _agreement(made, held_out, phases))
    return made


def _agreement(made: Quantized, held_out: Iterable[Any], phases: Phases) -> Agreement | None:
    compared = [_call(inputs) for inputs in held_out]
    with phases.phase("compare", f"{len(compared)} inputs"):
        return made.agreement(compared) if compared else None


def _staged(model: Any, call: Call | None, options: StagingOptions, phases: Phases) -> HCFG:
    args, kwargs = call or ((), {})
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
        decibels = losses.decibels(same)
        why = "" if decibels is not None else _why_not(same[0], chosen, ranges)
        found.append(LayerLoss(same[0].name, len(same), decibels, why))
    return tuple(sorted(found, key=lambda loss: (loss.decibels is None, loss.decibels or 0.0)))


def _why_not(layer: Layer, chosen: Sequence[Layer], ranges: Ranges) -> str:
    if not layer.is_finite:
        return NOT_FINITE
    return ranges.missing(layer) if layer in chosen else SKIPPED


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
