# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators that ONNX defines by others: the function that stands for a call of one, and models in which they are written out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import inliner
from onnx.defs import SchemaError

from dycl_tvm.errors import UnsupportedError


def function_of(proto: Any, opset: int, domain: str, types: Sequence[Any]) -> Any:
    """Return the function that defines a node's operator; None if none does.

    Parameters
    ----------
    proto : onnx.NodeProto
        With attributes that refer to no other.
    opset : int
    domain : str
    types : sequence of onnx.TypeProto
        Of its inputs; empty for one that is left out.
    """
    try:
        schema = onnx.defs.get_schema(proto.op_type, opset, domain)
    except SchemaError:
        return None
    if schema.has_context_dependent_function:
        known = schema.context_dependent_function_opset_versions
        version = max([v for v in known if v <= opset] or known)
        data = schema.get_context_dependent_function_with_opset_version(
            version, proto.SerializeToString(), [t.SerializeToString() for t in types]
        )
    elif schema.has_function:
        known = schema.function_opset_versions
        data = schema.get_function_with_opset_version(max([v for v in known if v <= opset] or known))
    else:
        return None
    if not data:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(data)
    given = {a.name for a in proto.attribute} | {a.name for a in function.attribute_proto}
    for attribute in schema.attributes.values():  # defaults of the operator are defaults of the body
        if attribute.default_value.name and attribute.default_value.name not in given:
            function.attribute_proto.append(attribute.default_value)
    return function


def written_out(model: Any, file: str, known: Collection[tuple[str, str]]) -> Any:
    """Return the graph of a model with functions, its own and those of ONNX, as the nodes that they consist of.

    Parameters
    ----------
    model : onnx.ModelProto
    file : str
    known : collection
        Domains and names of the operators that stay as they are.

    Raises
    ------
    UnsupportedError
        If ONNX does not know enough of a value's type.
    """
    functions = {(f.domain, f.name) for f in model.functions}
    if not functions and all(_key(node) in known for node in _nodes(model.graph)):
        return model.graph
    try:
        if not functions:
            # ONNX's inliner asks for the type of inputs that are left out: such calls are written out here.
            while any(_is_call(node, known) and "" in node.input for node in model.graph.node):
                model = _one_round(onnx.shape_inference.infer_shapes(model), known)
        return inliner.inline_selected_functions(model, list(known), exclude=True, inline_schema_functions=True).graph
    except RuntimeError as error:  # of ONNX's own: it does not know all types
        reason = f"functions of {file} cannot be written out: {error}"
        raise UnsupportedError(reason, None, "run onnx.inliner and onnx.shape_inference on the model") from error


def _key(node: Any) -> tuple[str, str]:
    return node.domain if node.domain != "ai.onnx" else "", node.op_type


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g)


def _is_call(node: Any, known: Collection[tuple[str, str]]) -> bool:
    return _key(node) not in known and onnx.defs.has(node.op_type, node.domain)


def _one_round(model: Any, known: Collection[tuple[str, str]]) -> Any:
    """Return a model with the calls of its main graph that leave inputs out written out; those within them stay."""
    graph, opsets = model.graph, {("" if o.domain == "ai.onnx" else o.domain): int(o.version) for o in model.opset_import}
    types = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    for t in graph.initializer:
        types[t.name] = onnx.helper.make_tensor_type_proto(t.data_type, list(t.dims))
    nodes: list[Any] = []
    for k, node in enumerate(graph.node):
        if not (_is_call(node, known) and "" in node.input):
            nodes.append(node)
            continue
        domain, _ = _key(node)
        function = function_of(node, opsets.get(domain, 1), domain, [types.get(name, onnx.TypeProto()) for name in node.input])
        if function is None or not _is_of_version(function, opsets):
            raise RuntimeError(f"{node.op_type} has no function of operator set {opsets.get(domain, 1)}")
        nodes += _body(node, function, f"{node.op_type}_{k}_")
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _is_of_version(function: Any, opsets: Mapping[str, int]) -> bool:
    """Whether the operators of a function mean in a model's operator sets what they mean in its own."""
    own = {("" if o.domain == "ai.onnx" else o.domain): int(o.version) for o in function.opset_import}
    for node in function.node:
        domain, name = _key(node)
        versions = [onnx.defs.get_schema(name, of.get(domain, 1), domain).since_version for of in (own, opsets)]
        if versions[0] != versions[1]:
            return False
    return True


def _body(call: Any, function: Any, prefix: str) -> list[Any]:
    """Return the nodes of a function with the names and attributes of a call."""
    names = {"": ""}
    for own, given in ((function.input, call.input), (function.output, call.output)):
        names.update(zip(own, given))
    names.update(dict.fromkeys(function.input[len(call.input) :], ""))
    names.update({name: prefix + name for name in function.output if not names.get(name)})
    attributes = {a.name: a for a in (*function.attribute_proto, *call.attribute)}
    return [_renamed(node, names, attributes, prefix) for node in function.node]


def _renamed(node: Any, names: Mapping[str, str], attributes: Mapping[str, Any], prefix: str) -> Any:
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[:] = [names.get(name, prefix + name) for name in node.input]
    made.output[:] = [names.get(name, prefix + name) for name in node.output]
    del made.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name and attribute.ref_attr_name not in attributes:
            continue  # one that the call leaves out, and that has no default
        copy = made.attribute.add()
        copy.CopyFrom(attributes[attribute.ref_attr_name] if attribute.ref_attr_name else attribute)
        copy.name = attribute.name
        if copy.type == onnx.AttributeProto.GRAPH:
            graph = copy.g
            own = {v.name for v in (*graph.input, *graph.initializer)} | {name for n in graph.node for name in n.output}
            inner = {**names, **{name: name for name in own}}
            nodes = [_renamed(n, inner, attributes, prefix) for n in graph.node]
            del graph.node[:]
            graph.node.extend(nodes)
    return made
