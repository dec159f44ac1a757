# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Structured control flow from the graph of blocks: branches become ``If``, natural loops become ``Loop``.

Method: each block is written where its immediate dominator is, merge blocks after the branch that parts the ways to them, as in
N. Ramsey, "Beyond Relooper: recursive translation of unstructured control flow to structured control flow", ICFP 2022. ONNX has no jump
out of a body, so a piece of code that may go on at several places gives a *selector* (the number of the place) and the arguments for
each place; those of places that it does not go to are zeros, or tensors without elements. Every block is written once.

Readers bound how deep bodies may nest. A block that would stand too deep (behind the fortieth early exit, say) is not written where its
dominator is but after the outermost ``If`` of its loop, like a merge block; what it reads of the blocks between comes along as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from onnx import helper

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.analysis import DominatorTree, dominators, liveness, natural_loops, postdominators
from dycl_tvm.hcfg.nodes import (
    HCFG,
    Block,
    Branch,
    Constant,
    Edge,
    HostOp,
    Jump,
    Operand,
    Raise,
    Return,
    SubDNNCall,
    Switch,
    Terminator,
    Value,
    operand_type,
)
from dycl_tvm.hcfg.types import INT, Type
from dycl_tvm.onnx_export.host_ops import emit_host_op
from dycl_tvm.onnx_export.operators import Inliner
from dycl_tvm.onnx_export.scope import Scope, dtype_of

#: Where code may go on: a block, ``("again", header)`` for the next round of a loop, or EXIT.
Target = Any
EXIT = "exit"
#: Bodies within bodies: protobuf's readers stop at a hundred messages in one another, and a body takes three.
MAX_DEPTH = 30
#: Branches and loops in one another before blocks are put further out; below the bound, for sub-DNNs may have bodies of their own.
FLAT_FROM = 28


@dataclass
class Outcome:
    """Where a piece of code goes on, and with which values. ``selector`` names the number of the place if there are several."""

    args: dict[Target, list[str]] = field(default_factory=dict)
    selector: str | None = None


Env = dict[Value, str]
#: A method that writes code: it yields other such methods' calls, and gets what they return (see :func:`_driven`).
Writing = Generator[Any, Any, Outcome]


class Structurer:
    """Writes one graph, whose blocks hold calls of sub-DNNs and host operations.

    Parameters
    ----------
    graph : HCFG
    leave : callable
        Gets the scope, the terminator (a return or raise) and a function that names operands; gives the arguments of EXIT.
    types : list of Type
        Of these arguments.
    constant : callable
        Names a constant.
    """

    def __init__(self, graph: HCFG, leave: Callable[..., list[str]], types: list[Type], constant: Callable[[Constant], str]) -> None:
        self.leave, self.types, self.constant = leave, types, constant
        self.inliner = Inliner(graph.sub_dnns())
        tree = dominators(graph)
        nest = natural_loops(graph, tree)
        if nest.irreducible:
            block = nest.irreducible[0][1]
            raise UnsupportedError("a loop with more than one entrance cannot be written as ONNX's Loop", block.origin)
        self.order = tree.order
        self.headers = {loop.header for loop in nest.loops}
        self.loops: dict[Block, list[Any]] = {b: [p for p in nest.loops if b in p.body] for b in tree.order}  # inner ones first
        self.number: dict[Target, int] = {EXIT: 0}
        for k, block in enumerate(tree.order):
            self.number[block] = 2 * k + 1
            self.number["again", block] = 2 * k + 2
        entering: dict[Block, int] = dict.fromkeys(tree.order, 0)
        for block in tree.order:
            for target in block.successors():
                entering[target] += not self._is_back(block, target)
        #: Merge blocks by the block, or by the loop, after which they stand.
        self.within: dict[Block, list[Block]] = {b: [] for b in tree.order}
        self.after: dict[Block, list[Block]] = {b: [] for b in tree.order}
        self.inline: set[Block] = set()
        live = liveness(graph).live_in
        home = {v: b for b in tree.order for v in (*b.params, *(o for s in b.steps for o in s.results()))}
        #: Values that are not at hand where a block is written (from inside of loops, or blocks further in): they come along as arguments.
        self.extras: dict[Block, list[Value]] = {}
        places = self._places(tree, postdominators(graph))
        for block in tree.order:
            around, place = set(map(id, self.loops[block])), places.get(block)

            def brought(v: Value, block: Block = block, around: set[int] = around, place: Block | None = place) -> bool:
                beyond = place is not None and not tree.dominates(home[v], place)
                return v in live[block] and (beyond or any(id(p) not in around for p in self.loops[home[v]]))

            self.extras[block] = [v for v in home if brought(v)]
            if place is not None:
                self.within[place].append(block)
            elif block in tree.idom:
                left = self._left(block, tree)
                if left:
                    self.after[left[-1].header].append(block)
                elif entering[block] == 1:
                    self.inline.add(block)
                else:
                    self.within[tree.idom[block]].append(block)

    def _left(self, block: Block, tree: DominatorTree) -> list[Any]:
        """Return the loops that end between a block and its dominator, inner ones first."""
        around = set(map(id, self.loops[block]))
        return [p for p in self.loops[tree.idom[block]] if id(p) not in around]

    def _places(self, tree: DominatorTree, ends: DominatorTree) -> dict[Block, Block]:
        """Return the blocks that are written further out, with the block after whose terminator that is.

        These are what would nest too deep, where every level of loops has an equal share of the depth, and the merge blocks to which such
        blocks lead.
        """
        shares = 1 + max(map(len, self.loops.values()))
        outside: dict[Block, int] = {}  # depth at which a block, or the loop that it begins, stands
        places: dict[Block, Block] = {}
        moved: dict[Block, list[Block]] = {}  # the blocks in ``places`` among a block and its dominators
        sources: dict[Block, list[Block]] = {b: [] for b in tree.order}
        for block in tree.order:
            for target in block.successors():
                sources[target].append(block)
        for block in tree.order:
            is_header = block in self.headers
            enclosing = self.loops[block][is_header:]
            place = enclosing[0].header if enclosing else tree.order[0]
            depth, outer = 0, False
            if block in tree.idom:
                above = tree.idom[block]
                left = self._left(block, tree)
                anchor = left[-1].header if left else above
                # Where all ways come to it, a merge block needs no test.
                meets = 0 if block in ends.depth and anchor in ends.depth and ends.dominates(block, anchor) else 1
                inside = outside[above] + (above in self.headers)
                single = sum(not self._is_back(source, block) for source in sources[block]) == 1
                depth = outside[anchor] + meets if left else inside + (_nesting(above.terminator) if single else meets)
                inner = {b for s in sources[block] for b in moved.get(s, ()) if b not in moved[above]}
                outer = any(places[b] is not anchor and tree.dominates(places[b], anchor) for b in inner)
            deep = depth + is_header + _nesting(block.terminator) > FLAT_FROM * (len(self.loops[block]) + 1) // shares
            if (deep or outer) and place is not block and (enclosing or place not in self.headers):
                places[block] = place
                depth = outside[place] + (place in self.headers) + 1
            outside[block] = depth
            moved[block] = moved.get(tree.idom[block], []) if block in tree.idom else []
            if block in places:
                moved[block] = [*moved[block], block]
        return places

    def _is_back(self, source: Block, target: Block) -> bool:
        return any(p.header is target for p in self.loops[source])

    def run(self, scope: Scope, env: Env) -> list[str]:
        """Write the whole graph into a scope; return the arguments of EXIT."""
        outcome = _driven(self.block(self.order[0], scope, env))
        assert list(outcome.args) == [EXIT], "a path does not end in a return"
        return outcome.args[EXIT]

    # -- blocks --------------------------------------------------------------------------------------------------------
    def block(self, block: Block, scope: Scope, env: Env) -> Writing:
        """Write a block and all that it dominates, its parameters being bound."""
        if block in self.headers:
            return (yield self.merges(self.after[block], (yield self.loop(block, scope, env)), scope, env))
        return (yield self.inside(block, scope, env))

    def inside(self, block: Block, scope: Scope, env: Env) -> Writing:
        def read(operand: Operand) -> str:
            return self.read(operand, scope, env)

        for step in block.steps:
            if isinstance(step, SubDNNCall):
                env.update(zip(step.outputs, self.inliner.call(scope, step.callee, [read(a) for a in step.args]), strict=True))
            else:
                assert isinstance(step, HostOp), "tensor operations are outlined"
                env[step.output] = emit_host_op(scope, step, read)
        return (yield self.merges(self.within[block], (yield self.terminator(block, scope, env)), scope, env))

    def read(self, operand: Operand, scope: Scope, env: Env) -> str:
        if isinstance(operand, Constant):
            return self.constant(operand)
        if isinstance(operand, Value):
            return env[operand]
        return scope.constant(operand, dtype_of(operand_type(operand)))

    def terminator(self, block: Block, scope: Scope, env: Env) -> Writing:
        term = block.terminator
        if isinstance(term, Jump):
            return (yield self.edge(block, term.edge, scope, env))
        if isinstance(term, Branch):
            if not isinstance(term.cond, Value):
                return (yield self.edge(block, term.then if term.cond else term.orelse, scope, env))
            cond = self.read(term.cond, scope, env)
            sides = [lambda s, e=e: self.edge(block, e, s, dict(env)) for e in (term.then, term.orelse)]  # type: ignore[misc]
            return (yield self.choose(scope, cond, *sides))
        if isinstance(term, Switch):
            return (yield self.switch(block, self.read(term.index, scope, env), term.edges, 0, scope, env))
        assert isinstance(term, (Return, Raise))
        return Outcome({EXIT: self.leave(scope, term, lambda operand: self.read(operand, scope, env))})

    def switch(self, block: Block, index: str, edges: list[Edge], low: int, scope: Scope, env: Env) -> Writing:
        """Choose among edges by halves; ``low`` is the number of the first."""
        if len(edges) == 1:
            return (yield self.edge(block, edges[0], scope, env))
        half = len(edges) // 2
        smaller = scope.emit("Less", [index, scope.constant(low + half, "int64")], "bool", "case")
        return (
            yield self.choose(
                scope,
                smaller,
                lambda s: self.switch(block, index, edges[:half], low, s, dict(env)),
                lambda s: self.switch(block, index, edges[half:], low + half, s, dict(env)),
            )
        )

    def edge(self, source: Block, edge: Edge, scope: Scope, env: Env) -> Writing:
        target = edge.target
        args = [self.read(a, scope, env) for a in edge.args]
        if self._is_back(source, target):
            return Outcome({("again", target): args})
        if target in self.inline:
            env.update(zip(target.params, args, strict=True))
            return (yield self.block(target, scope, env))
        return Outcome({target: [*args, *(env[v] for v in self.extras[target])]})

    def types_of(self, target: Target) -> list[Type]:
        """Return the types of the arguments that a target takes."""
        if target == EXIT:
            return self.types
        block = target if isinstance(target, Block) else target[1]
        extras = self.extras[block] if block is target else []
        return [v.type for v in (*block.params, *extras)]

    # -- places where ways meet ----------------------------------------------------------------------------------------
    def merges(self, blocks: list[Block], outcome: Outcome, scope: Scope, env: Env) -> Writing:
        """Write the merge blocks, in order, each where the code before goes on at it."""
        for block in blocks:
            if block not in outcome.args:
                continue
            args = outcome.args.pop(block)
            bound = dict(env) | dict(zip([*block.params, *self.extras[block]], args, strict=True))
            if not outcome.args:
                outcome = yield self.block(block, scope, bound)
                continue
            assert outcome.selector is not None
            here = scope.emit("Equal", [outcome.selector, scope.constant(self.number[block], "int64")], "bool", "goes_on")
            rest = outcome if len(outcome.args) > 1 else Outcome(outcome.args)
            outcome = yield self.choose(scope, here, lambda s, b=block, e=bound: self.block(b, s, e), lambda s, r=rest: r)  # type: ignore[misc]
        return outcome

    def choose(self, scope: Scope, cond: str, then: Callable[[Scope], Any], orelse: Callable[[Scope], Any]) -> Writing:
        """Write an ``If``; the names that both sides agree on and that are known outside need not pass through it."""
        bodies = [self.nested(scope), self.nested(scope)]
        sides = [(yield then(bodies[0])), (yield orelse(bodies[1]))]
        result = Outcome()
        outputs: dict[tuple[str, ...], str] = {}

        def joined(names: list[str], hint: str) -> str:
            key = tuple(names)
            if names[0] == names[1] and scope.sees(names[0]):
                return names[0]
            if key not in outputs:
                outputs[key] = scope.fresh(hint, scope.root.dtypes[names[0]])
            return outputs[key]

        for target in dict.fromkeys([*sides[0].args, *sides[1].args]):
            columns = [side.args.get(target) for side in sides]
            full = target != EXIT or scope.in_loop
            filled = [[b.spare(t, full) for t in self.types_of(target)] if c is None else c for b, c in zip(bodies, columns)]
            result.args[target] = [joined(list(pair), "merged") for pair in zip(*filled, strict=True)]
        if len(result.args) > 1:
            places = [side.selector or scope.constant(self.number[next(iter(side.args))], "int64") for side in sides]
            result.selector = joined(places, "place")
        if outputs:
            graphs = [body.body(name, [key[k] for key in outputs]) for k, (body, name) in enumerate(zip(bodies, ("then", "else")))]
            node = helper.make_node("If", [cond], list(outputs.values()), then_branch=graphs[0], else_branch=graphs[1])
            scope.nodes.append(node)
        return result

    def nested(self, scope: Scope, is_loop: bool = False) -> Scope:
        """Open a body in a scope."""
        if scope.depth == MAX_DEPTH:
            raise UnsupportedError(
                f"the network nests so many loops that it takes more than {MAX_DEPTH} bodies in one another; readers of ONNX stop there",
                None,
                "export_onnx(folder, split=True) has no such bound",
            )
        return Scope(scope, is_loop)

    # -- loops -----------------------------------------------------------------------------------------------------------
    def loop(self, header: Block, scope: Scope, env: Env) -> Writing:
        """Write a ``Loop`` whose state is the header's parameters, then what its ways out give."""
        body = self.nested(scope, is_loop=True)
        types = scope.root.dtypes
        counter, going = body.fresh("round", "int64"), body.fresh("going", "bool")
        initial = [env[p] for p in header.params]
        carried = [body.fresh(p.name or "carried", dtype_of(p.type)) for p in header.params]
        outcome = yield self.inside(header, body, dict(env) | dict(zip(header.params, carried)))
        again = outcome.args.pop(("again", header))
        result = Outcome()
        states: dict[str, str] = {}
        before: list[str] = []

        def leaving(name: str, type_: Type) -> str:
            if scope.sees(name):
                return name
            if name not in states:
                states[name] = scope.fresh("left", types[name])
                before.append(scope.spare(type_, full=True))
            return states[name]

        for target, args in outcome.args.items():
            result.args[target] = [leaving(a, t) for a, t in zip(args, self.types_of(target), strict=True)]
        assert outcome.selector is not None, "a loop without a way out"
        if len(result.args) > 1:
            result.selector = leaving(outcome.selector, INT)
        goes_on = body.emit("Equal", [outcome.selector, scope.constant(self.number["again", header], "int64")], "bool", "goes_on")
        # The values that leave are state too, of no use before the last round.
        spare = [body.fresh("unused", types[n]) for n in states]
        graph = body.body("body", [goes_on, *again, *states], [counter, going, *carried, *spare])
        finals = [scope.fresh("final", types[c]) for c in carried]
        start = [*initial, *before]
        scope.nodes.append(helper.make_node("Loop", ["", scope.constant(True, "bool"), *start], [*finals, *states.values()], body=graph))
        return result


def _nesting(term: Terminator | None) -> int:
    """Return how many bodies in one another the choice at the end of a block takes, at most."""
    return (len(term.edges) - 1).bit_length() if isinstance(term, Switch) else int(isinstance(term, Branch))


def _driven(writing: Writing) -> Outcome:
    """Run a writing method with all that it yields, on a stack of our own: blocks stand in one another many thousand times."""
    stack, result = [writing], None
    while stack:
        try:
            result = stack[-1].send(result)
        except StopIteration as stop:
            stack.pop()
            result = stop.value
        else:
            if isinstance(result, Generator):
                stack.append(result)
                result = None
    assert isinstance(result, Outcome)
    return result
