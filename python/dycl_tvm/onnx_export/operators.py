# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sub-DNNs as ONNX graphs, by PyTorch's own exporter (which needs onnxscript), and their calls, which are inlined."""

from __future__ import annotations

import contextlib
import io
import logging
import operator
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import onnx
import torch

from dycl_tvm.errors import UnsupportedError, UsageError
from dycl_tvm.hcfg.interpreter import resolve
from dycl_tvm.hcfg.nodes import SubDNN, TensorOp, map_operands
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.onnx_export.scope import ELEMENT, Scope

#: The version of ONNX's operators that is written: the oldest that has all that is needed (LayerNormalization, ReduceMax with axes).
OPSET = 18
_RESHAPES = dict.fromkeys(("aten.view.default", "aten._unsafe_view.default"), "aten.reshape.default")
#: What was exported: a network is often written in both forms.
_KEPT: weakref.WeakKeyDictionary[SubDNN, onnx.ModelProto] = weakref.WeakKeyDictionary()
_DTYPES = {value: name for name, value in ELEMENT.items()}


def export_sub_dnn(sub: SubDNN) -> onnx.ModelProto:
    """Return a sub-DNN as a model: inputs ``p0, p1, ...`` are its parameters, outputs ``r0, r1, ...`` its results.

    Raises
    ------
    UsageError
        If onnxscript is missing.
    UnsupportedError
        For an operator that has no form in ONNX; it names the user's line.
    """
    if sub in _KEPT:
        return _KEPT[sub]
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise UsageError("export to ONNX needs onnxscript: pip install 'dycl-tvm[onnx]'") from None
    shapes = [p.type for p in sub.params]
    examples = tuple(torch.zeros(t.shape, dtype=getattr(torch, t.dtype)) for t in shapes if isinstance(t, TensorType))
    inputs, outputs = [f"p{k}" for k in range(len(sub.params))], [f"r{k}" for k in range(len(sub.results))]
    try:
        with _quiet(), torch.no_grad():
            program = torch.export.export(_module_of(sub), examples)
            made = torch.onnx.export(program, (), dynamo=True, verbose=False, opset_version=OPSET, input_names=inputs, output_names=outputs)
        assert made is not None
        model = made.model_proto
    except Exception as error:
        raise _refusal(sub, error) from error
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)  # type: ignore[attr-defined]
    foreign = sorted({o.domain for o in model.opset_import} & {n.domain for n in model.graph.node} - {"", "ai.onnx"})
    if foreign:
        raise UnsupportedError(f"{sub.name} needs operators of {', '.join(foreign)}, which are not ONNX's own", sub.ops[0].origin)
    return model


def _module_of(sub: SubDNN) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    env: dict[Any, torch.fx.Node] = {p: graph.placeholder(f"p{k}") for k, p in enumerate(sub.params)}
    for op in sub.ops:
        # A view in an HCFG is the value in another shape, whatever the strides of its operand are here.
        target = resolve(_RESHAPES.get(op.op, op.op))
        node = graph.call_function(target, map_operands(op.args, env.__getitem__), map_operands(op.kwargs, env.__getitem__))
        returns = target._schema.returns
        several = len(returns) > 1 or str(returns[0].type).startswith("List")
        for k, output in enumerate(op.outputs):
            if output is not None:
                env[output] = graph.call_function(operator.getitem, (node, k)) if several else node
    graph.output(tuple(env[r] for r in sub.results))
    graph.eliminate_dead_code()
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _refusal(sub: SubDNN, error: Exception) -> UnsupportedError:
    """Return an error that names the operator, if it is one that the exporter does not know."""
    text = str(error)
    culprit: TensorOp | None = next((op for op in sub.ops if op.op in text), None)
    origin = culprit.origin if culprit is not None else sub.ops[0].origin if sub.ops else None
    what = f"the operator {culprit.op} cannot be written as ONNX" if culprit is not None else f"{sub.name} cannot be written as ONNX"
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return UnsupportedError(f"{what}: {first}", origin)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter has to say about other packages from the user's terminal."""
    disabled = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(disabled)


class Inliner:
    """Puts the graphs of sub-DNNs where they are called; each is exported once."""

    def __init__(self) -> None:
        self._models: dict[SubDNN, onnx.ModelProto] = {}
        self._weights: dict[tuple[SubDNN, str], str] = {}

    def call(self, scope: Scope, sub: SubDNN, args: list[str]) -> list[str]:
        """Append the nodes of a call and return the names of its results."""
        if sub not in self._models:
            self._models[sub] = export_sub_dnn(sub)
        graph = self._models[sub].graph
        names = dict(zip((i.name for i in graph.input), args))
        for tensor in graph.initializer:
            names[tensor.name] = self._initializer(scope, sub, tensor)
        types = {v.name: _DTYPES.get(v.type.tensor_type.elem_type, "float32") for v in (*graph.value_info, *graph.output)}
        for node in graph.node:
            scope.nodes.append(_renamed(node, names, scope, types))
        for result, output in zip(sub.results, graph.output):
            assert isinstance(result.type, TensorType)
            scope.root.dtypes[names[output.name]] = result.type.dtype
        return [names[o.name] for o in graph.output]

    def _initializer(self, scope: Scope, sub: SubDNN, tensor: onnx.TensorProto) -> str:
        key = (sub, tensor.name)
        if key not in self._weights:
            root = scope.root
            name = root.fresh(f"{sub.name}.{tensor.name}", _DTYPES[tensor.data_type])
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            copy.name = name
            root.initializers[name] = copy
            self._weights[key] = name
        return self._weights[key]


def _renamed(node: onnx.NodeProto, names: dict[str, str], scope: Scope, types: dict[str, str]) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = ""
    copy.doc_string = ""
    del copy.metadata_props[:]
    copy.input[:] = [names.get(i, i) for i in node.input]
    for k, output in enumerate(node.output):
        if output:
            names[output] = copy.output[k] = scope.fresh(_short(output), types.get(output, "float32"))
    for attribute in copy.attribute:
        for graph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
            inner = dict(names)
            for value in (*graph.input, *graph.initializer):
                inner[value.name] = value.name = scope.fresh(_short(value.name), "float32")
            made = [_renamed(n, inner, scope, types) for n in graph.node]
            del graph.node[:]
            graph.node.extend(made)
            for value in graph.output:
                value.name = inner[value.name]
    return copy


def _short(name: str) -> str:
    """Return a name without the path that the exporter gives it."""
    return name.rsplit("/", 1)[-1]
