# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Staging: from any model that ``build`` takes to its control flow graph, by the front end for its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from dycl_tvm.errors import UnsupportedError, UsageError
from dycl_tvm.example_inputs import check_model, identifier, is_exported_program, name_of, normalise
from dycl_tvm.frontend.onnx import is_onnx
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.progress import Phases


class StagingOptions(TypedDict, total=False):
    """How a model is staged, as :func:`build` has it."""

    input_shapes: Mapping[str, Any] | None
    input_values: Mapping[str, Any] | None
    name: str | None
    max_paths: int | None
    max_loop_trips: int | None
    max_recursion: int | None
    max_length: int | None
    dynamic_shapes: Any
    specialize: Any
    max_seconds: float | None
    max_memory: int | None
    keep_print: bool
    device: str


def stage_model(
    model: Any,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    input_shapes: Mapping[str, Any] | None = None,
    input_values: Mapping[str, Any] | None = None,
    name: str | None = None,
    max_paths: int | None = None,
    max_loop_trips: int | None = None,
    max_recursion: int | None = None,
    max_length: int | None = None,
    dynamic_shapes: Any = None,
    specialize: Any = None,
    max_seconds: float | None = None,
    max_memory: int | None = None,
    keep_print: bool = False,
    device: str = "cpu",
    phases: Phases,
) -> HCFG:
    """Return the control flow graph of a model as the front end sees it; the parameters are those of :func:`build`."""
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        raise UsageError(f"max_length = {max_length!r} is no length: give a whole number from 1 on")
    if is_onnx(model):
        if example_inputs is not None or example_kwargs:
            raise UsageError("an ONNX model says itself what its inputs are; give sizes that it leaves open as input_shapes")
    elif input_values is not None:
        raise UsageError("input_values is for ONNX models; in Python, give a function that has the value")
    if is_exported_program(model):
        return _stage_exported(model, example_inputs, example_kwargs, input_shapes, name, phases, dynamic_shapes, max_length, specialize)
    bounds = {
        "max_paths": max_paths,
        "max_loop_trips": max_loop_trips,
        "max_recursion": max_recursion,
        "max_length": max_length,
        "max_seconds": max_seconds,
        "max_memory": max_memory,
    }
    options: dict[str, Any] = {k: v for k, v in bounds.items() if v is not None}
    options |= {"keep_print": keep_print, "device": device, "specialize": specialize}
    if is_onnx(model):
        return _stage_onnx(model, input_shapes, input_values, dynamic_shapes, name, phases, options)
    if input_shapes is not None:
        raise UsageError("input_shapes is for models with dynamic dimensions of their own; this one takes those of its example inputs")
    check_model(model)
    args, kwargs = normalise(example_inputs, example_kwargs)
    with phases.phase("stage", "run the forward symbolically"):
        graph = stage(model, args, kwargs, name=identifier(name) if name else name_of(model), dynamic_shapes=dynamic_shapes, **options)
        verify(graph)
    return graph


def example_call(
    model: Any, example_inputs: Any, example_kwargs: Mapping[str, Any] | None, input_shapes: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the example inputs of a model as a call; None for a model that has none (ONNX)."""
    if is_onnx(model):
        return None
    if is_exported_program(model) and example_inputs is None and not example_kwargs:
        from dycl_tvm.frontend import exported

        return normalise(*exported.example_inputs_of(model, input_shapes))
    return normalise(example_inputs, example_kwargs)


def _stage_onnx(
    model: Any,
    input_shapes: Mapping[str, Any] | None,
    input_values: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    name: str | None,
    phases: Phases,
    options: dict[str, Any],
) -> HCFG:
    from dycl_tvm.frontend.onnx import NeedsValue, open_dimensions, stage_onnx

    if dynamic_shapes is None and "max_length" in options:
        dynamic_shapes = open_dimensions(model, input_shapes, input_values, options["max_length"])
    with phases.phase("stage", "run the ONNX graph symbolically"):
        if dynamic_shapes or options["specialize"]:
            graph = _as_program(model, input_shapes, input_values, dynamic_shapes or {}, name, options)
        else:
            try:
                graph = stage_onnx(model, input_shapes=input_shapes, input_values=input_values, max_paths=options.get("max_paths"))
            except NeedsValue as refusal:
                # Some shape follows from data: as a program the model may have lengths that are known only at run time.
                try:
                    graph = _as_program(model, input_shapes, input_values, {}, name, options)
                except UnsupportedError:
                    raise refusal from None
        graph.name = identifier(name or graph.name)
        verify(graph)
    return graph


def _as_program(
    model: Any,
    input_shapes: Mapping[str, Any] | None,
    input_values: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    name: str | None,
    options: dict[str, Any],
) -> HCFG:
    from dycl_tvm.frontend.onnx import open_model

    opened = open_model(model, input_shapes, input_values, dynamic_shapes)
    bounds = opened.dynamic_shapes or None
    return opened.named(stage(opened.program.function, opened.examples, name=opened.name, dynamic_shapes=bounds, **options))


def _stage_exported(
    program: Any,
    example_inputs: Any,
    example_kwargs: Any,
    input_shapes: Mapping[str, Sequence[int]] | None,
    name: str | None,
    phases: Phases,
    dynamic_shapes: Any,
    max_length: int | None,
    specialize: Any,
) -> HCFG:
    from dycl_tvm.frontend import exported

    fixed = None
    if example_inputs is None and not example_kwargs:
        args, kwargs = normalise(*exported.example_inputs_of(program, input_shapes))
        fixed = tuple(input_shapes or ())
    elif input_shapes is not None:
        raise UsageError("give the shapes of an exported program by example_inputs or by input_shapes, not by both")
    else:
        args, kwargs = normalise(example_inputs, example_kwargs)
    with phases.phase("stage", f"read {len(program.graph.nodes)} nodes"):
        graph = exported.stage_exported(
            program,
            args,
            kwargs,
            name=identifier(name or "exported"),
            dynamic_shapes=dynamic_shapes,
            fixed=fixed,
            max_length=max_length,
            specialize=specialize,
        )
        verify(graph)
    return graph
