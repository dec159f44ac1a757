# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The verifier: every invariant that the rooms of the compiler rely on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from dycl_tvm.errors import InvariantError
from dycl_tvm.hcfg.analysis import DominatorTree, components, dominators
from dycl_tvm.hcfg.hostops import INT64_MAX, INT64_MIN, result_type, wrong_text
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
    Step,
    SubDNN,
    SubDNNCall,
    Switch,
    TensorOp,
    Value,
    operand_type,
    terminator_operands,
)
from dycl_tvm.hcfg.types import BOOL, INT, ScalarType, TensorType, Type, scalar_type_of
from dycl_tvm.runtime.structure import leaf_types


def verify(graph: HCFG) -> None:
    """Check every invariant of an HCFG.

    Raises
    ------
    InvariantError
        At the first breach; the message names the graph, the block and the value.
    """
    _Verifier(graph).run()


class _Verifier:
    def __init__(self, graph: HCFG) -> None:
        self.graph = graph
        self.known = set(graph.blocks)
        #: Where each value is defined: its block, and the number of the step (-1 for a parameter).
        self.home: dict[Value, tuple[Block, int]] = {}

    def run(self) -> None:
        graph = self.graph
        if not graph.blocks:
            self.fail("there is no block")
        if len(self.known) != len(graph.blocks):
            self.fail("a block stands twice in the list of blocks")
        for block in graph.blocks:
            self.check_terminator(block)
        self.check_entry()
        for block in graph.blocks:
            self.define(block)
        for callee in graph.sub_dnns():
            self.check_sub_dnn(callee)
        for block in graph.blocks:
            for step in block.steps:
                self.check_step(block, step)
            for edge in block.edges():
                self.check_edge(block, edge)
        tree = dominators(graph)
        self.check_uses(tree)
        self.check_exits(tree.order)

    def fail(self, message: str, block: Block | None = None, step: Step | None = None) -> NoReturn:
        where = f"HCFG {self.graph.name!r}"
        if block is not None:
            where += f", block {block.name!r}"
        origin = step.origin if step is not None and step.origin is not None else block.origin if block is not None else None
        raise InvariantError(f"{where}: {message}" + (f" (from {origin})" if origin is not None else ""))

    def check_terminator(self, block: Block) -> None:
        """Check what the walks over the graph need, and the operands of the terminator itself."""
        term = block.terminator
        if term is None:
            self.fail("has no terminator", block)
        for edge in block.edges():
            if edge.target not in self.known:
                self.fail(f"leads to block {edge.target.name!r}, which is not in the list of blocks", block)
            if edge.target is self.graph.entry:
                self.fail("leads to the entry block", block)
        if isinstance(term, Branch):
            self.expect(operand_type(term.cond) == BOOL, f"branches on {_show(term.cond)}, which is not a bool", block)
        elif isinstance(term, Switch):
            self.expect(operand_type(term.index) == INT, f"switches on {_show(term.index)}, which is not an int", block)
            self.expect(bool(term.edges), "has a switch without edges", block)
        elif isinstance(term, Return):
            self.check_return(block, term)
        elif not isinstance(term, (Jump, Raise)):
            self.fail(f"ends in a {type(term).__name__}", block)

    def check_return(self, block: Block, term: Return) -> None:
        want = leaf_types(term.site.structure)
        if len(want) != len(term.values):
            self.fail(f"returns {len(term.values)} values where the structure has {len(want)} leaves", block)
        for k, (kind, value) in enumerate(zip(want, term.values)):
            if _leaf_kind(operand_type(value)) != kind:
                self.fail(f"returns {_show(value)} as leaf {k}, which is a {kind}", block)
        for leaf, along, length in [(leaf, *cut) for leaf, cuts in term.site.cut.items() for cut in cuts]:
            whole, number = term.values[leaf], term.values[length]
            type_ = operand_type(whole)
            self.expect(
                isinstance(type_, TensorType) and along < len(type_.shape) and operand_type(number) == INT,
                f"returns the first elements of {_show(whole)} along dimension {along}, as many as {_show(number)}",
                block,
            )
        if len(term.state) != len(self.graph.state):
            self.fail(f"returns {len(term.state)} state values, the graph has {len(self.graph.state)}", block)
        for var, value in zip(self.graph.state, term.state):
            if operand_type(value) != var.type:
                self.fail(f"gives {_show(value)} to the state variable {var.name!r}, which is a {var.type}", block)

    def check_entry(self) -> None:
        graph, params = self.graph, self.graph.entry.params
        names, state, sizes = graph.input_names, graph.state, graph.sizes
        if len(params) != len(names) + len(sizes) + len(state):
            what = f"{len(names)} inputs, {len(sizes)} sizes and {len(state)} state variables"
            self.fail(f"has {len(params)} parameters for {what}", graph.entry)
        leaves = leaf_types(graph.input_structure)
        if len(leaves) != len(names):
            self.fail(f"names {len(names)} inputs, but the input structure has {len(leaves)} leaves")
        for name, kind, param in zip(names, leaves, params):
            if _leaf_kind(param.type) != kind:
                self.fail(f"the input {name!r} is a {kind} in the structure and a {param.type} as {_show(param)}", graph.entry)
        for size, param in zip(sizes, params[len(names) :]):
            if param.type != INT:
                self.fail(f"the size {size.name!r} is an int, its parameter is {_show(param)}", graph.entry)
            for d in size.dims:
                shape = params[d.input].type.shape  # type: ignore[union-attr]  # a tensor's: its name and type are checked above
                if shape[d.dim] != d.at(size.most):
                    self.fail(f"the size {size.name!r} needs a dimension of {d.at(size.most)}, not {_show(params[d.input])}", graph.entry)
        for var, param in zip(state, params[len(names) + len(sizes) :]):
            if param.type != var.type:
                self.fail(f"the state variable {var.name!r} is a {var.type}, its parameter is {_show(param)}", graph.entry)
            initial = var.initial
            found = initial.type if isinstance(initial, Constant) else scalar_type_of(initial)
            if found != var.type:
                self.fail(f"the state variable {var.name!r} is a {var.type}, its initial value a {found}")

    def define(self, block: Block) -> None:
        for param in block.params:
            self.define_one(param, block, -1, None)
        for k, step in enumerate(block.steps):
            for value in step.results():
                self.define_one(value, block, k, step)

    def define_one(self, value: Value, block: Block, k: int, step: Step | None) -> None:
        if isinstance(value, Constant):
            self.fail(f"defines {_show(value)}, which is a constant", block, step)
        if value in self.home:
            self.fail(f"defines {_show(value)} again; it is defined in block {self.home[value][0].name!r}", block, step)
        self.home[value] = (block, k)

    def check_step(self, block: Block, step: Step) -> None:
        if isinstance(step, HostOp):
            wrong = result_type(step.op, [operand_type(a) for a in step.args], step.output.type) or wrong_text(step)
            if wrong:
                self.fail(f"{_show(step.output)}: {wrong}", block, step)
            for arg in step.args:
                if isinstance(arg, int) and not INT64_MIN <= arg <= INT64_MAX:
                    self.fail(f"{step.op} takes {arg}, which does not fit int64", block, step)
        elif isinstance(step, TensorOp):
            wrong = _wrong_tensor_op(step)
            if wrong:
                self.fail(wrong, block, step)
        elif isinstance(step, SubDNNCall):
            self.match(f"the call of {step.callee.name}", step.args, [p.type for p in step.callee.params], block, step)
            self.match(f"the results of {step.callee.name}", step.outputs, [r.type for r in step.callee.results], block, step)
        else:
            self.fail(f"has a {type(step).__name__} as a step", block)

    def check_edge(self, block: Block, edge: Edge) -> None:
        self.match(f"the edge to {edge.target.name!r}", edge.args, [p.type for p in edge.target.params], block, None)

    def match(self, what: str, operands: Sequence[Any], types: Sequence[Type], block: Block, step: Step | None) -> None:
        if len(operands) != len(types):
            self.fail(f"{what} has {len(operands)} values for {len(types)} places", block, step)
        for k, (operand, want) in enumerate(zip(operands, types)):
            if operand_type(operand) != want:
                self.fail(f"{what} has {_show(operand)} at place {k}, which takes {want}", block, step)

    def check_sub_dnn(self, callee: SubDNN) -> None:
        where = f"sub-DNN {callee.name!r}"
        inside: set[Value] = set()
        for param in callee.params:
            self.expect(isinstance(param.type, TensorType), f"{where} has the parameter {_show(param)}, which is no tensor")
            self.expect(param not in inside, f"{where} has the parameter {_show(param)} twice")
            inside.add(param)
        for op in callee.ops:
            wrong = _wrong_tensor_op(op) if isinstance(op, TensorOp) else f"has a {type(op).__name__} in its body"
            if wrong:
                self.fail(f"{where}: {wrong}", None, op)
            for value in op.operands():
                self.expect(value in inside, f"{where}: {op.op} reads {_show(value)}, which the body does not define before")
            for value in op.results():
                self.expect(value not in inside, f"{where} defines {_show(value)} twice")
                self.expect(value not in self.home, f"{where} defines {_show(value)}, which a block defines too")
                inside.add(value)
        for value in callee.results:
            self.expect(value in inside, f"{where} gives {_show(value)}, which its body does not define")
        self.expect(inside.isdisjoint(self.home), f"{where} shares a value with a block")

    def check_uses(self, tree: DominatorTree) -> None:
        """Check that definitions dominate uses; in a block that is never reached, only that they exist."""
        for block in self.graph.blocks:
            reached = block in tree.depth
            for k, step in enumerate(block.steps):
                for value in step.operands():
                    self.check_use(value, block, k, reached, tree, step)
            for value in terminator_operands(block.terminator):
                self.check_use(value, block, len(block.steps), reached, tree, None)

    def check_use(self, value: Value, block: Block, k: int, reached: bool, tree: DominatorTree, step: Step | None) -> None:
        if isinstance(value, Constant):
            return
        place = self.home.get(value)
        reader = "its terminator" if step is None else f"step {k}"
        if place is None:
            self.fail(f"{reader} reads {_show(value)}, which nothing defines", block, step)
        home, at = place
        if home is block:
            if at >= k:
                self.fail(f"{reader} reads {_show(value)}, which is defined later, by step {at}", block, step)
        elif reached and not (home in tree.depth and tree.dominates(home, block)):
            self.fail(f"{reader} reads {_show(value)}, but its block {home.name!r} does not dominate this one", block, step)

    def check_exits(self, order: Sequence[Block]) -> None:
        """Check that every reachable block can reach an exit: a loop that nothing leaves is a defect."""
        index = {b: i for i, b in enumerate(order)}
        successors = [[index[s] for s in b.successors()] for b in order]
        exiting = [isinstance(b.terminator, (Return, Raise)) for b in order]
        for component in components(successors):  # each comes after those that it leads to
            if not any(exiting[node] or any(exiting[s] for s in successors[node]) for node in component):
                self.fail("cannot reach a return or a raise", order[min(component)])
            for node in component:
                exiting[node] = True

    def expect(self, holds: bool, message: str, block: Block | None = None) -> None:
        if not holds:
            self.fail(message, block)


def _wrong_tensor_op(step: TensorOp) -> str | None:
    for value in step.operands():
        if not isinstance(value.type, TensorType):
            return f"{step.op} takes {_show(value)}, a host scalar; it needs a to_tensor"
    for value in step.results():
        if not isinstance(value.type, TensorType):
            return f"{step.op} gives {_show(value)}, which is no tensor"
    return None


def _leaf_kind(kind: Type) -> str:
    return kind.kind if isinstance(kind, ScalarType) else "tensor"


def _show(operand: Any) -> str:
    if isinstance(operand, Value):
        return f"{operand.name or 'a value without a name'} ({operand.type})"
    return f"{operand!r} ({operand_type(operand)})"
