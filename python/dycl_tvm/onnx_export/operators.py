# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sub-DNNs as ONNX graphs, by PyTorch's own exporter (which needs onnxscript), and their calls, which are inlined."""

from __future__ import annotations

import contextlib
import io
import logging
import operator
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
import torch

from dycl_tvm.errors import UnsupportedError, UsageError
from dycl_tvm.hcfg.checks import NAMESPACE, WITHIN, answered_by, demands
from dycl_tvm.hcfg.interpreter import resolve
from dycl_tvm.hcfg.nodes import SubDNN, TensorOp, map_operands
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.onnx_export.scope import ELEMENT, Scope
from dycl_tvm.onnx_export.written import WRITTEN, element_or

#: The version of ONNX's operators that is written: the oldest that has all that is needed (LayerNormalization, ReduceMax with axes).
OPSET = 18
_RESHAPES = dict.fromkeys(("aten.view.default", "aten._unsafe_view.default"), "aten.reshape.default")
#: What was exported: a network is often written in both forms.
_KEPT: weakref.WeakKeyDictionary[SubDNN, onnx.ModelProto] = weakref.WeakKeyDictionary()
_DTYPES = {value: name for name, value in ELEMENT.items()}


def export_sub_dnns(subs: Sequence[SubDNN]) -> dict[SubDNN, onnx.ModelProto]:
    """Return sub-DNNs as models: inputs ``p0, p1, ...`` are the parameters, outputs ``r0, r1, ...`` the results.

    All go through the exporter at once, as one graph of separate parts: what it costs is mostly the same for one part and for many.

    Raises
    ------
    UsageError
        If onnxscript is missing.
    UnsupportedError
        For an operator that has no form in ONNX; it names the user's line.
    """
    wanted = [sub for sub in subs if sub not in _KEPT]
    if wanted:
        _KEPT.update(_export(wanted))
    return {sub: _KEPT[sub] for sub in subs}


def _export(subs: Sequence[SubDNN]) -> dict[SubDNN, onnx.ModelProto]:
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise UsageError("export to ONNX needs onnxscript: pip install 'dycl-tvm[onnx]'") from None
    graph = torch.fx.Graph()
    params = [(k, p) for k, sub in enumerate(subs) for p in range(len(sub.params))]
    inputs = {key: graph.placeholder(f"s{key[0]}_p{key[1]}") for key in params}
    outputs = [out for k, sub in enumerate(subs) for out in _add(graph, sub, [inputs[k, p] for p in range(len(sub.params))])]
    graph.output(tuple(outputs))
    graph.eliminate_dead_code()
    types = [subs[k].params[p].type for k, p in params]
    examples = tuple(torch.zeros(t.shape, dtype=getattr(torch, t.dtype)) for t in types if isinstance(t, TensorType))
    given = [f"s{k}_p{p}" for k, p in params]
    names = [f"s{k}_r{r}" for k, sub in enumerate(subs) for r in range(len(sub.results))]
    try:
        with _quiet(), torch.no_grad():
            program = torch.export.export(torch.fx.GraphModule(torch.nn.Module(), graph), examples)
            made = torch.onnx.export(program, (), dynamo=True, verbose=False, opset_version=OPSET, input_names=given, output_names=names)
        assert made is not None
        model = made.model_proto
    except Exception as error:
        raise _refusal(subs, error) from error
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)  # type: ignore[attr-defined]
    foreign = sorted({n.domain for n in model.graph.node} - {"", "ai.onnx"})
    if foreign:
        raise UnsupportedError(f"the network needs operators of {', '.join(foreign)}, which are not ONNX's own")
    return {sub: _part(model, k, sub) for k, sub in enumerate(subs)}


def _add(graph: torch.fx.Graph, sub: SubDNN, params: list[torch.fx.Node]) -> list[torch.fx.Node]:
    """Append the operators of a sub-DNN and return its results."""
    env: dict[Any, torch.fx.Node] = dict(zip(sub.params, params, strict=True))
    failed: torch.fx.Node | None = None
    for op in sub.ops:
        given = env if failed is None else {**env, **_harmless(graph, op, env, failed)}
        # A view in an HCFG is the value in another shape, whatever the strides of its operand are here.
        target = resolve(_RESHAPES.get(op.op, op.op))
        function = WRITTEN.get(op.op, target)
        node = graph.call_function(function, map_operands(op.args, given.__getitem__), map_operands(op.kwargs, given.__getitem__))
        returns = target._schema.returns
        several = len(returns) > 1 or str(returns[0].type).startswith("List")
        for k, output in enumerate(op.outputs):
            if output is not None:
                env[output] = graph.call_function(operator.getitem, (node, k)) if several else node
        if op.op.startswith(f"{NAMESPACE}.") and op.op != WITHIN:
            failed = node if failed is None else graph.call_function(torch.ops.aten.logical_or.default, (failed, node))
    return [env[r] for r in sub.results]


def _harmless(graph: torch.fx.Graph, op: TensorOp, env: dict[Any, torch.fx.Node], failed: torch.fx.Node) -> dict[Any, torch.fx.Node]:
    """Return what an operator gets where a question before it is answered by yes.

    Readers of ONNX have errors of their own for places and divisors. The one that eager raises comes when the answer is looked at, behind
    the sub-DNN; until then they get nothing that they would refuse.
    """
    elements = {demand.value: element for demand in demands(op) if (element := answered_by(demand.question)) is not None}
    return {value: graph.call_function(element_or, (failed, element, env[value])) for value, element in elements.items() if value in env}


def _part(model: onnx.ModelProto, k: int, sub: SubDNN) -> onnx.ModelProto:
    """Cut the part of one sub-DNN out of the model of all."""
    graph = model.graph
    outputs = [f"s{k}_r{r}" for r in range(len(sub.results))]
    needed = set(outputs)
    nodes = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(_read_by(node))
    part = onnx.GraphProto(name=sub.name)
    part.node.extend(reversed(nodes))
    part.initializer.extend(t for t in graph.initializer if t.name in needed)
    part.value_info.extend(v for v in graph.value_info if v.name in needed)
    part.input.extend(v for v in graph.input if v.name.startswith(f"s{k}_p"))
    by_name = {v.name: v for v in graph.output}
    part.output.extend(by_name[name] for name in outputs)
    for node in part.node:
        del node.metadata_props[:]
    cut = onnx.ModelProto(ir_version=model.ir_version, producer_name="dycl_tvm", graph=_plain_names(part, f"s{k}_"))
    cut.opset_import.extend(o for o in model.opset_import if o.domain in ("", "ai.onnx"))
    return cut


def _read_by(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node reads, those that its bodies capture included."""
    found = set(node.input)
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
            found.update(*(_read_by(n) for n in graph.node), (o.name for o in graph.output))
    return found


def _plain_names(graph: onnx.GraphProto, prefix: str) -> onnx.GraphProto:
    """Take a prefix off the names of inputs and outputs."""
    names = {v.name: v.name.removeprefix(prefix) for v in (*graph.input, *graph.output)}

    def rename(part: onnx.GraphProto) -> None:
        for value in (*part.input, *part.output):
            value.name = names.get(value.name, value.name)
        for node in part.node:
            node.input[:] = [names.get(n, n) for n in node.input]
            node.output[:] = [names.get(n, n) for n in node.output]
            for attribute in node.attribute:
                for inner in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
                    rename(inner)

    rename(graph)
    return graph


def _refusal(subs: Sequence[SubDNN], error: Exception) -> UnsupportedError:
    """Return an error that names the operator, if it is one that the exporter does not know."""
    text = str(error)
    culprit: TensorOp | None = next((op for sub in subs for op in sub.ops if op.op in text), None)
    what = f"the operator {culprit.op}" if culprit is not None else "the network"
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return UnsupportedError(f"{what} cannot be written as ONNX: {first}", culprit.origin if culprit is not None else None)


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
    """Puts the graphs of sub-DNNs where they are called."""

    def __init__(self, subs: Sequence[SubDNN]) -> None:
        self._models = export_sub_dnns(subs)
        self._weights: dict[tuple[SubDNN, str], str] = {}

    def call(self, scope: Scope, sub: SubDNN, args: list[str]) -> list[str]:
        """Append the nodes of a call and return the names of its results."""
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
