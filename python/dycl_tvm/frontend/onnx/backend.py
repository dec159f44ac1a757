# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``onnx.backend.base.Backend`` on top of this package: the form in which ONNX's own test suite runs a compiler.

A prepared model is built when it is first run, for only then the lengths of sequences are known. Inputs from whose values shapes follow
(the second input of Reshape, where the model does not hold it as a constant) are fixed to the values of that run;
:attr:`Prepared.fixed` names them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx.backend.base import Backend, BackendRep

import dycl_tvm
from dycl_tvm.frontend.onnx.model import load_model
from dycl_tvm.frontend.onnx.node import from_array
from dycl_tvm.frontend.onnx.stage import stage_onnx
from dycl_tvm.frontend.onnx.values import NeedsValue
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.runtime.structure import flatten_call

Run = Callable[[dict[str, Any]], Any]


class Prepared(BackendRep):
    """A model that is ready to run.

    Attributes
    ----------
    fixed : tuple of str
        Inputs that the last build fixed.
    """

    def __init__(self, model: Any, make: Callable[..., Run]) -> None:
        self.model, self.make = load_model(model), make
        graph = self.model.proto.graph
        weights = {i.name for i in graph.initializer}
        self.names = [i.name for i in graph.input if i.name not in weights]
        self.outputs = [o.name for o in graph.output]
        self.fixed: tuple[str, ...] = ()
        self._built: dict[Any, tuple[tuple[str, ...], Run]] = {}

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run on inputs in the order of the model's."""
        given = dict(zip(self.names, inputs.values() if isinstance(inputs, dict) else inputs))
        key = repr({name: _shape(value) for name, value in given.items()})
        names: tuple[str, ...] = self._built[key][0] if key in self._built else ()
        values = tuple(np.asarray(given[name]).tobytes() if not isinstance(given[name], list) else repr(given[name]) for name in names)
        if (key, values) not in self._built:
            names, run = self._build(given)
            values = tuple(np.asarray(given[name]).tobytes() if not isinstance(given[name], list) else repr(given[name]) for name in names)
            self._built[key] = self._built[key, values] = (names, run)
        self.fixed, run = self._built[key, values]
        result = run({name: value for name, value in given.items() if name not in self.fixed})
        found = [result] if len(self.outputs) == 1 else [result[name] for name in self.outputs]
        return tuple(to_numpy(x, o.type) for x, o in zip(found, self.model.proto.graph.output))

    def _build(self, given: dict[str, Any]) -> tuple[tuple[str, ...], Run]:
        shapes = {name: _shape(value) for name, value in given.items()}
        fixed: tuple[str, ...] = ()
        while True:
            try:
                return fixed, self.make(
                    self.model.proto if not self.model.base else self.model.file,
                    {name: shape for name, shape in shapes.items() if name not in fixed},
                    {name: given[name] for name in fixed},
                )
            except NeedsValue as error:
                new = tuple(name for name in error.inputs if name not in fixed)
                if not new:
                    raise
                fixed += new


def _shape(value: Any) -> Any:
    if value is None:
        return None
    return [tuple(np.shape(v)) for v in value] if isinstance(value, list) else tuple(np.shape(value))


def to_numpy(x: Any, type_: Any) -> Any:
    """Return an output, of which the model tells the type, as ONNX's tests have it."""
    if isinstance(x, list):
        return [to_numpy(item, type_) for item in x]
    if isinstance(x, torch.Tensor):
        x = x.contiguous()
        x = (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()
    if x is None:
        return None
    x = np.asarray(x)
    if type_.tensor_type.elem_type == onnx.TensorProto.BFLOAT16 and x.dtype.itemsize == 2:
        # NumPy has no such type of its own; artefacts and interpreter give its bits.
        return x.view(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))
    return x


def interpreted(model: Any, shapes: dict[str, Any], values: dict[str, Any]) -> Run:
    """Make a model run in the reference interpreter: no compilation, for wide tests."""
    graph = stage_onnx(model, input_shapes=shapes, input_values=values)
    verify(graph)
    return lambda given: run_graph(graph, given)


def run_graph(graph: HCFG, given: dict[str, Any]) -> Any:
    """Run a graph in the reference interpreter, on inputs by name."""
    leaves = flatten_call(graph.input_structure, (), given, graph.input_names)
    return interpret(graph, [from_array(value) for _, value in leaves])[0]


def compiled(model: Any, shapes: dict[str, Any], values: dict[str, Any]) -> Run:
    """Build a model for this machine and load it."""
    artifact = dycl_tvm.build(model, input_shapes=shapes, input_values=values)
    folder = tempfile.TemporaryDirectory(prefix="dycl-onnx-")
    library = artifact.export_library(Path(folder.name) / "model.so", embed_params=True)
    module = dycl_tvm.load(library)

    def run(given: dict[str, Any]) -> Any:
        assert folder.name  # the library lives as long as the module
        return module(**{name: _ready(value) for name, value in given.items()})

    return run


def _ready(value: Any) -> Any:
    if isinstance(value, list):
        return [_ready(v) for v in value]
    return None if value is None else np.asarray(value)  # an optional without an element


class CompiledBackend(Backend):
    """Runs models as compiled artefacts on the CPU."""

    make: Callable[..., Run] = staticmethod(compiled)

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Prepared:
        """Return a model that is built when it is first run."""
        if isinstance(model, onnx.ModelProto):
            onnx.checker.check_model(model)
        return Prepared(model, cls.make)

    @classmethod
    def run_node(cls, node: Any, inputs: Sequence[Any], device: str = "CPU", outputs_info: Any = None, **kwargs: Any) -> tuple[Any, ...]:
        """Run one node on inputs."""
        graph_inputs = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(np.asarray(x).dtype), np.shape(x))
            for name, x in zip(node.input, inputs)
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        version = kwargs.get("opset_version", onnx.defs.onnx_opset_version())
        graph = onnx.helper.make_graph([node], "node", graph_inputs, outputs)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(node.domain, version)])
        return Prepared(model, cls.make).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models run on a device; here, the CPU."""
        return device == "CPU"


class InterpretedBackend(CompiledBackend):
    """Runs models in the reference interpreter."""

    make = staticmethod(interpreted)
