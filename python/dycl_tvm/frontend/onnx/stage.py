# Licensed under the Apache License, Version 2.0; see LICENSE.
"""From an ONNX model to an HCFG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dycl_tvm.errors import UnsupportedError, UsageError
from dycl_tvm.frontend.onnx import control, ops, sequences  # noqa: F401  # they register
from dycl_tvm.frontend.onnx.execute import Executor, Scope, declared_shapes
from dycl_tvm.frontend.onnx.model import Input, Model, inputs_of, load_model
from dycl_tvm.frontend.onnx.node import from_array
from dycl_tvm.frontend.onnx.recorder import Recorder
from dycl_tvm.frontend.onnx.values import DTYPE_NAMES, Datum, NeedsValue, Outcome
from dycl_tvm.hcfg.analysis import reverse_postorder
from dycl_tvm.hcfg.nodes import HCFG, Block, Operand, Origin, Return, ReturnSite, Value
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.runtime.structure import Structure

#: Ways through a graph that cannot be joined, at most.
MAX_PATHS = 256
#: Attempts, each of which learns of one join or loop that must be taken apart.
MAX_ATTEMPTS = 64


def stage_onnx(
    model: Any,
    *,
    input_shapes: Mapping[str, Any] | None = None,
    input_values: Mapping[str, Any] | None = None,
    name: str | None = None,
    max_paths: int | None = None,
) -> HCFG:
    """Turn an ONNX model into a control flow graph.

    Parameters
    ----------
    model : path, or onnx.ModelProto
    input_shapes : mapping, optional
        Shape by name of an input, or size by name of a symbolic dimension. A sequence has a list of shapes, an optional that is
        absent None.
    input_values : mapping, optional
        Inputs whose value is fixed now, so that shapes may follow from it; the artefact does not have them.
    name : str, optional
        Name of the graph.
    max_paths : int, optional
        Bound on the ways that cannot be joined.

    Returns
    -------
    HCFG
        Its inputs have the names of the model's; one output is returned as it is, several as a dict by their names.

    Raises
    ------
    UsageError
        If shapes are missing; the message says what to give.
    NeedsValue
        If a shape follows from the value of an input; ``inputs`` names it.
    UnsupportedError
        For what cannot be compiled, with the node.
    """
    loaded = load_model(model)
    fixed = fixed_values(input_values)
    inputs = inputs_of(loaded, input_shapes, fixed)
    forced: set[tuple[str, str]] = set()
    for _ in range(MAX_ATTEMPTS):
        try:
            return _stage(loaded, inputs, fixed, forced, name or loaded.proto.graph.name or "model", max_paths or MAX_PATHS)
        except NeedsValue as error:
            # A join or a rolled loop hid a value from which a shape follows: once more, with each way for itself.
            new = {c for c in error.causes if c[0] in ("merge", "loop")} - forced
            if not new:
                raise _advised(error) from None
            forced |= new
    raise UnsupportedError(f"the shapes in {loaded.file} depend on more than {MAX_ATTEMPTS} branches and loops")


def _advised(error: NeedsValue) -> NeedsValue:
    if error.suggestion or not error.inputs:
        return error
    values = ", ".join(f"{name!r}: ..." for name in error.inputs)
    advice = f"fix the inputs that it follows from: input_values={{{values}}}; the artefact then does not have them"
    return NeedsValue(error.reason, error.origin, error.causes, advice)


def fixed_values(given: Mapping[str, Any] | None) -> dict[str, Datum]:
    """Return the values that inputs have, as data.

    Raises
    ------
    UsageError
        If one is no array.
    """
    return {name: _fixed(name, value) for name, value in (given or {}).items()}


def _fixed(name: str, value: Any) -> Datum:
    if value is None or isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (list, tuple)) and any(isinstance(v, (np.ndarray, torch.Tensor)) for v in value):
        return [_fixed(name, v) for v in value]
    if isinstance(value, list) and not value:
        return []
    try:
        return from_array(value)
    except (AttributeError, TypeError, KeyError, ValueError):
        raise UsageError(f"input_values[{name!r}] is a {type(value).__name__}; give an array or a tensor") from None


def _stage(model: Model, inputs: list[Input], fixed: Mapping[str, Datum], forced: set[tuple[str, str]], name: str, max_paths: int) -> HCFG:
    graph = model.proto.graph
    entry = Block("entry", origin=Origin(model.file, 0, graph.name))
    recorder = Recorder(entry)
    leaves = _Inputs(recorder)
    env: dict[str, Datum] = {i.name: leaves.add(i) for i in inputs}
    executor = Executor(recorder, model.functions, model.file, forced, max_paths, model.base)
    with torch.no_grad(), recorder:
        executor.add_initializers(graph, env)
        env.update(fixed)
        outcomes = executor.run_nodes(
            graph.node, Scope("main", model.opsets, None, declared_shapes(graph)), env, [o.name for o in graph.output]
        )
        for outcome in executor.join(outcomes, "main"):
            _leave(recorder, outcome, [o.name for o in graph.output])
    entry.params = leaves.params
    result = HCFG(name, {"dict": leaves.structure}, leaves.names, [entry])
    result.blocks = reverse_postorder(result)
    return result


class _Inputs:
    """The parameters of the entry."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.params: list[Value] = []
        self.names: list[str] = []
        self.structure: list[list[Any]] = []

    def add(self, given: Input) -> Datum:
        """Add one input of the graph and return it as a datum."""
        if given.shape is None:
            self.structure.append([given.name, {"const": None}])
            return None
        if not isinstance(given.shape, list):
            structure, datum = self._leaf(given.name, given.name, given.shape, given.dtype)
            self.structure.append([given.name, structure])
            return datum
        items = [self._leaf(f"{given.name}[{k}]", given.name, shape, given.dtype) for k, shape in enumerate(given.shape)]
        self.structure.append([given.name, {"list": [s for s, _ in items]}])
        return [d for _, d in items]

    def _leaf(self, name: str, cause: str, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Structure, Datum]:
        param = Value(TensorType(shape, DTYPE_NAMES[dtype]), name)
        self.params.append(param)
        self.names.append(name)
        fake = self.recorder.wrap(param, frozenset({("input", cause)}))
        # Of a tensor without elements everything is known.
        datum = fake if fake.numel() else torch.empty(shape, dtype=dtype)
        return {"leaf": len(self.params) - 1, "type": "tensor"}, datum


def _leave(recorder: Recorder, outcome: Outcome, names: list[str]) -> None:
    values: list[Operand] = []

    def describe(x: Datum) -> Structure:
        if x is None:
            return {"const": None}
        if isinstance(x, list):
            return {"list": [describe(item) for item in x]}
        values.append(recorder.operand(x))
        return {"leaf": len(values) - 1, "type": "tensor"}

    structures = [describe(v) for v in outcome.values]
    whole: Structure = structures[0] if len(structures) == 1 else {"dict": [[n, s] for n, s in zip(names, structures)]}
    origin = outcome.block.origin
    outcome.block.terminator = Return(ReturnSite(whole, origin), values)
