# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A network without loops as PyTorch's compilers take it: its branches are ``torch.cond``, nested where one decides about another.

What lies between a branch and the block at which its sides meet again (its immediate postdominator) is a graph for each side; what comes
where more than one block leads within a side stands there more than once. Numbers are tensors of rank 0.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.analysis import natural_loops, postdominators
from dycl_tvm.hcfg.interpreter import graph_initial, resolve
from dycl_tvm.hcfg.nodes import (
    HCFG,
    Block,
    Branch,
    Constant,
    Edge,
    HostOp,
    Jump,
    Raise,
    Return,
    SubDNNCall,
    Switch,
    Value,
    operand_type,
)
from dycl_tvm.hcfg.types import ScalarType, TensorType
from speed.static import SCALAR_DTYPE, TENSOR_FORM, written


def conditional_module(graph: HCFG) -> nn.Module:
    """Return a network as a module of ATen operations and ``torch.cond``; it gives a tuple of tensors.

    Parameters
    ----------
    graph : HCFG
        After the passes. State variables have their initial values.

    Raises
    ------
    UnsupportedError
        If it has loops, paths that end in an exception, or host operations that tensors have no form of.
    """
    if natural_loops(graph).loops:
        raise UnsupportedError("it has loops")
    return _Writer(graph).module()


class _Body:
    """A graph that is being written: the whole, or a side of a branch."""

    def __init__(self) -> None:
        self.root, self.graph = nn.Module(), fx.Graph()
        self.nodes: dict[Value, fx.Node] = {}

    def node(self, operand: Any) -> fx.Node:
        """Return what an operand is, as a tensor."""
        if isinstance(operand, Constant) and operand not in self.nodes:
            name = f"weight_{len(self.nodes)}"
            self.root.register_buffer(name, operand.data)
            self.nodes[operand] = self.graph.get_attr(name)
        if isinstance(operand, Value):
            return self.nodes[operand]
        dtype = {bool: torch.bool, int: torch.int64, float: torch.float64}[type(operand)]
        return self.graph.call_function(torch.ops.aten.scalar_tensor.default, (operand,), {"dtype": dtype})

    def apply(self, op: str, *args: Any, **kwargs: Any) -> fx.Node:
        return self.graph.call_function(resolve(op), args, kwargs)


class _Writer:
    def __init__(self, graph: HCFG) -> None:
        self.hcfg = graph
        self.meets = postdominators(graph).idom
        #: What every path returns: ``torch.cond`` takes no sides that return other numbers of tensors, or others shapes, so each return has
        #: a place for what any of them returns, of which it leaves some empty.
        self.places: list[Any] = []
        for site in [b.terminator for b in graph.blocks if isinstance(b.terminator, Return)]:
            types = [operand_type(v) for v in site.values]
            for type_ in dict.fromkeys(types):
                self.places += [type_] * (types.count(type_) - self.places.count(type_))

    def module(self) -> nn.Module:
        body, entry = _Body(), self.hcfg.entry
        given = len(entry.params) - len(self.hcfg.state)
        for k, param in enumerate(entry.params[:given]):
            body.nodes[param] = body.graph.placeholder(f"x{k}")
        for param, var in zip(entry.params[given:], self.hcfg.state, strict=True):
            initial = graph_initial(var.initial)
            body.nodes[param] = body.node(Constant(param.type, initial) if isinstance(initial, torch.Tensor) else initial)
        body.graph.output(tuple(self.blocks(entry, None, body)))
        return fx.GraphModule(body.root, body.graph)

    def blocks(self, block: Block, stop: Block | None, body: _Body) -> list[fx.Node]:
        """Write from a block up to another one; return the arguments of that, or without one the leaves of the result."""
        while True:
            for step in block.steps:
                self.step(step, body)
            term = block.terminator
            if isinstance(term, Return):
                return self.leave(term, body)
            if isinstance(term, Raise) or term is None:
                raise UnsupportedError("a path ends in an exception", term.origin if term else None)
            if isinstance(term, Jump):
                target, args = term.edge.target, [body.node(a) for a in term.edge.args]
            else:
                meets = self.meets.get(block)
                target = meets if meets is not None and meets in self.meets else None
                by, first = (term.index, 0) if isinstance(term, Switch) else (term.cond, None)
                args = self.choose(by, _edges(block), target, body, first)
                if target is None:
                    return args
            if target is stop:
                return args
            body.nodes.update(zip(target.params, args, strict=True))
            block = target

    def leave(self, term: Return, body: _Body) -> list[fx.Node]:
        """Write the leaves of a result, each in the first place of its type that is free."""
        found: dict[int, fx.Node] = {}
        for value in term.values:
            type_ = operand_type(value)
            k = next(k for k, t in enumerate(self.places) if t == type_ and k not in found)
            found[k] = body.node(value)
        for k, type_ in enumerate(self.places):
            if k not in found:
                shape = list(type_.shape) if isinstance(type_, TensorType) else []
                dtype = getattr(torch, type_.dtype) if isinstance(type_, TensorType) else SCALAR_DTYPE[type_.kind]
                found[k] = body.apply("aten.full.default", shape, 0, dtype=dtype)
        return [found[k] for k in range(len(self.places))]

    def choose(self, by: Any, edges: Sequence[Edge], stop: Block | None, body: _Body, first: int | None) -> list[fx.Node]:
        """Write a choice among edges, by halves: ``first`` is the number of the first one, None where there are those of false and true."""
        if len(edges) == 1:
            return self.edge(edges[0], stop, body)
        half, read = len(edges) // 2, body.node(by)
        pred = read if first is None else body.apply("aten.ge.Scalar", read, first + half)
        sides, captured = [], list(self.captured(edges, stop, by))
        for part, number in ((edges[:half], first), (edges[half:], None if first is None else first + half)):
            side = _Body()
            side.nodes.update((v, side.graph.placeholder(f"a{k}")) for k, v in enumerate(captured))
            found = self.choose(by, part, stop, side, number)
            side.graph.output(tuple(self.whole(node, side, node in found[:k]) for k, node in enumerate(found)))
            sides.append(fx.GraphModule(side.root, side.graph))
        names = [f"side_{len(body.graph.nodes)}_{k}" for k in range(2)]
        for name, side_module in zip(names, sides):
            body.root.add_module(name, side_module)
        orelse, then = (body.graph.get_attr(name) for name in names)
        outer = tuple(body.node(v) for v in captured)
        made = body.graph.call_function(torch.ops.higher_order.cond, (pred, then, orelse, outer))
        return [body.graph.call_function(operator.getitem, (made, k)) for k in range(len(found))]

    def edge(self, edge: Edge, stop: Block | None, body: _Body) -> list[fx.Node]:
        args = [body.node(a) for a in edge.args]
        if edge.target is stop:
            return args
        body.nodes.update(zip(edge.target.params, args, strict=True))
        return self.blocks(edge.target, stop, body)

    @staticmethod
    def whole(node: fx.Node, side: _Body, again: bool) -> fx.Node:
        """Return a result that is no view of what a side was given, and none that it has already: ``torch.cond`` refuses both."""
        source = node.args[0] if node.target is operator.getitem else node
        returns = getattr(getattr(source.target, "_schema", None), "returns", ())
        if again or node.op in ("placeholder", "get_attr") or any(r.alias_info is not None for r in returns):
            return side.apply("aten.clone.default", node, memory_format=torch.contiguous_format)
        return node

    def captured(self, edges: Sequence[Edge], stop: Block | None, by: Any) -> Iterator[Value]:
        """Yield the values from outside that sides read."""
        made: set[Value] = set()
        read: dict[Value, None] = {by: None} if isinstance(by, Value) else {}
        seen: set[Block] = set()
        pending = list(edges)
        while pending:
            edge = pending.pop()
            read.update((a, None) for a in edge.args if isinstance(a, Value))
            block = edge.target
            if block is stop or block in seen:
                continue
            seen.add(block)
            made.update(block.params)
            for step in block.steps:
                read.update((a, None) for a in step.args if isinstance(a, Value))
                made.update(step.results())
            read.update((a, None) for a in _read_at_end(block) if isinstance(a, Value))
            pending += _edges(block)
        yield from (v for v in read if v not in made)

    def step(self, step: Any, body: _Body) -> None:
        if isinstance(step, SubDNNCall):
            made = written(step, [body.node(a) for a in step.args], body.graph)
            body.nodes.update(zip(step.outputs, made, strict=True))
            return
        body.nodes[step.output] = self.number(step, body)

    def number(self, step: HostOp, body: _Body) -> fx.Node:
        type_ = step.output.type
        dtype = getattr(torch, type_.dtype) if isinstance(type_, TensorType) else SCALAR_DTYPE[type_.kind]
        args = [body.node(a) for a in step.args]
        if step.op == "truediv":
            args = [body.apply("aten._to_copy.default", a, dtype=torch.float64) for a in args]
        if step.op == "item":
            made = body.apply("aten.reshape.default", args[0], [])
        elif step.op in ("to_int", "to_float", "to_bool", "to_tensor"):
            made = args[0]
        elif step.op in TENSOR_FORM and isinstance(type_, ScalarType):
            made = body.apply(TENSOR_FORM[step.op], *args)
        else:
            raise UnsupportedError(f"the host operation {step.op} has no form on tensors here", step.origin)
        return body.apply("aten._to_copy.default", made, dtype=dtype)


def _edges(block: Block) -> list[Edge]:
    term = block.terminator
    if isinstance(term, Jump):
        return [term.edge]
    if isinstance(term, Branch):
        return [term.orelse, term.then]
    return list(term.edges) if isinstance(term, Switch) else []


def _read_at_end(block: Block) -> Iterable[Any]:
    term = block.terminator
    if isinstance(term, Return):
        return term.values
    if isinstance(term, Branch):
        return (term.cond,)
    return (term.index,) if isinstance(term, Switch) else ()
