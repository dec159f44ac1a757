# Licensed under the Apache License, Version 2.0; see LICENSE.
"""ONNX models some of whose dimensions each call decides: as a program, with examples of its inputs and the bounds of their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.errors import UsageError
from dycl_tvm.frontend.onnx.model import Input, inputs_of, left_open, load_model
from dycl_tvm.frontend.onnx.program import Program, program_of
from dycl_tvm.frontend.onnx.stage import fixed_values
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.sizes import Dim


@dataclass
class OpenModel:
    """A model as a program, which the front end for Python stages.

    Attributes
    ----------
    name : str
    program : Program
    examples : tuple
        Its arguments.
    dynamic_shapes : dict
        By parameter of the program.
    """

    name: str
    program: Program
    examples: tuple[Any, ...]
    dynamic_shapes: dict[str, dict[int, Dim]]

    def named(self, graph: HCFG) -> HCFG:
        """Give the inputs of the program's graph the names that they have in the model."""
        parameters = {parameter: name for name, parameter in self.program.inputs.items()}
        graph.input_structure["dict"] = [[parameters[p], of] for p, of in graph.input_structure["dict"]]
        for k, name in enumerate(graph.input_names):
            parameter, bracket, rest = name.partition("[")
            graph.input_names[k] = graph.entry.params[k].name = f"{parameters[parameter]}{bracket}{rest}"
        return graph


def open_model(
    model: Any, input_shapes: Mapping[str, Any] | None, input_values: Mapping[str, Any] | None, dynamic_shapes: Any
) -> OpenModel:
    """Return a model as a program.

    Parameters
    ----------
    model : path, or onnx.ModelProto
    input_shapes, input_values : mapping, optional
        As for :func:`dycl_tvm.frontend.onnx.stage_onnx`.
    dynamic_shapes : mapping
        From the name of a symbolic dimension to a :class:`Dim`, or from that of an input to those of its dimensions.

    Raises
    ------
    UsageError
        If shapes or bounds are missing; the message says what to give.
    UnsupportedError
        For what cannot be written as a program, with the node.
    """
    if not isinstance(dynamic_shapes, Mapping):
        raise UsageError(f"dynamic_shapes is {dynamic_shapes!r}; for an ONNX model it is a dict by symbol, or by the name of an input")
    loaded = load_model(model)
    fixed = fixed_values(input_values)
    inputs = inputs_of(loaded, input_shapes, fixed, dynamic_shapes)
    program = program_of(loaded, [i.name for i in inputs], fixed)
    bounds = {program.inputs[i.name]: i.open for i in inputs if i.open}
    return OpenModel(loaded.proto.graph.name or "model", program, tuple(map(_example, inputs)), bounds)


def open_dimensions(
    model: Any, input_shapes: Mapping[str, Any] | None, input_values: Mapping[str, Any] | None, most: int
) -> dict[str, dict[int, Dim]]:
    """Return the dimensions that a model leaves open, up to ``most``, as ``dynamic_shapes`` has them; the parameters are those of
    :func:`open_model`."""
    return left_open(load_model(model), input_shapes, fixed_values(input_values), most)


def _example(given: Input) -> Any:
    if given.shape is None:
        return None
    if isinstance(given.shape, list):
        return [torch.zeros(shape, dtype=given.dtype) for shape in given.shape]
    return torch.zeros(given.shape, dtype=given.dtype)
