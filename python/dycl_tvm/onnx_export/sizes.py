# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sizes of tensors that each call has: of inputs, whose extents the model asks for, and of results, which are cut to theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import helper

from dycl_tvm.hcfg.nodes import HCFG, Block, Branch, Edge, HostOp, Jump, Operand, Raise, Value
from dycl_tvm.hcfg.sizes import SizedDim
from dycl_tvm.hcfg.types import BOOL, INT, TensorType
from dycl_tvm.onnx_export.scope import Scope, dtype_of, shape_of


def sized_dims(graph: HCFG) -> list[SizedDim]:
    """Return the dimensions of inputs that each call decides."""
    return [d for size in graph.sizes for d in size.dims]


def from_extents(graph: HCFG) -> HCFG:
    """Return a graph that is given the extent of each such dimension instead of the sizes, and begins with their checks.

    An extent that is out of the bounds of its size, or does not agree with another, is the error ``InputError``.
    """
    if not graph.sizes:
        return graph
    inputs, sizes = len(graph.input_names), len(graph.sizes)
    params, rest = graph.entry.params, Block("sized", [], graph.entry.steps, graph.entry.terminator, graph.entry.origin)
    extents = [Value(INT, f"{graph.input_names[d.input]}.{d.dim}") for d in sized_dims(graph)]
    block = entry = Block(graph.entry.name, [*params[:inputs], *extents, *params[inputs + sizes :]], origin=graph.entry.origin)
    blocks, known = [entry], iter(extents)

    def host(op: str, a: Operand, b: Operand, output: Value) -> Value:
        block.steps.append(HostOp(op, (a, b), output))
        return output

    def unless(holds: Value, message: str) -> None:
        nonlocal block
        wrong, fine = Block(f"{block.name}.wrong"), Block(f"{block.name}.fits")
        wrong.terminator = Raise("InputError", message, None)
        block.terminator = Branch(holds, Edge(fine), Edge(wrong), None)
        blocks.extend((wrong, fine))
        block = fine

    for size, value in zip(graph.sizes, params[inputs : inputs + sizes]):
        for k, d in enumerate(size.dims):
            extent, where = next(known), f"input '{graph.input_names[d.input]}': dimension {d.dim}"
            if k == 0:
                there = host("sub", extent, d.constant, Value(INT))
                host("floordiv", there, d.factor, value)
                message = f"{where} is none of {d.text(size.name)} = {d.at(size.least)} to {d.at(size.most)}"
                unless(host("ge", value, size.least, Value(BOOL)), message)
                unless(host("le", value, size.most, Value(BOOL)), message)
            expected = host("add", host("mul", value, d.factor, Value(INT)), d.constant, Value(INT))
            unless(host("eq", extent, expected, Value(BOOL)), f"{where} does not agree with {d.text(size.name)}")
    block.terminator = Jump(Edge(rest))
    made = [*blocks, rest, *graph.blocks[1:]]
    return HCFG(graph.name, graph.input_structure, graph.input_names, made, graph.state, graph.input_pairs, graph.left_out)


def input_shape(graph: HCFG, number: int) -> tuple[int | str, ...]:
    """Return the shape of an input; what each call decides has the name of its size."""
    shape: list[int | str] = list(shape_of(graph.inputs[number].type))
    for size in graph.sizes:
        for d in size.dims:
            if d.input == number:
                shape[d.dim] = d.text(size.name)
    return tuple(shape)


def buffer(scope: Scope, graph: HCFG, number: int, name: str) -> str:
    """Append the nodes that put an input to the front of a buffer of its largest shape."""
    type_ = graph.inputs[number].type
    dims = {d.dim for d in sized_dims(graph) if d.input == number}
    if not dims:
        return name
    assert isinstance(type_, TensorType)
    # Where a size is fixed, or the input larger than it may be, nothing is missing.
    whole = scope.constant(type_.shape, "int64", "largest")
    missing = scope.emit("Sub", [whole, scope.emit("Shape", [name], "int64")], "int64")
    missing = scope.emit("Max", [missing, scope.constant([0], "int64")], "int64", "missing")
    pads = scope.emit("Concat", [scope.constant([0] * len(type_.shape), "int64"), missing], "int64", "pads", axis=0)
    return scope.emit("Pad", [name, pads], type_.dtype, f"{name}.buffer")


def extent(scope: Scope, dim: SizedDim, name: str) -> str:
    """Append the nodes that give an extent of an input, as a host scalar."""
    found = scope.emit("Shape", [name], "int64", "extent", start=dim.dim, end=dim.dim + 1)
    return scope.emit("Reshape", [found, scope.constant([], "int64", "scalar_shape")], "int64", "extent")


def cut(scope: Scope, result: str, type_: TensorType, parts: Sequence[tuple[str, Mapping[int, str]]]) -> str:
    """Append the nodes that leave of a result the elements that there are.

    Parameters
    ----------
    result : str
    type_ : TensorType
        Its type at its largest.
    parts : sequence of (str, mapping)
        A condition, and if it holds how long which dimensions are: as many of the first elements count.
    """
    row = scope.constant([1], "int64", "one")
    for holds, lengths in parts:
        extents = [
            scope.emit("Reshape", [lengths[d], row], "int64", "length") if d in lengths else scope.constant([n], "int64", "extent")
            for d, n in enumerate(type_.shape)
        ]
        shape = scope.emit("Concat", extents, "int64", "shape", axis=0)
        then, orelse = Scope(scope), Scope(scope)
        count = then.emit("Reshape", [then.emit("ReduceProd", [shape], "int64", keepdims=0), row], "int64", "count")
        flat = then.emit("Reshape", [result, then.constant([-1], "int64")], type_.dtype)
        first = then.emit("Slice", [flat, then.constant([0], "int64"), count], type_.dtype)
        made = then.emit("Reshape", [first, shape], type_.dtype, allowzero=1)
        graphs = {"then_branch": then.body("then", [made]), "else_branch": orelse.body("else", [result])}
        name = scope.fresh("part", dtype_of(type_))
        scope.nodes.append(helper.make_node("If", [holds], [name], **graphs))
        result = name
    return result
