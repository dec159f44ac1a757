# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Random graphs run the same before and after the passes, and never do more work."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dycl_tvm.hcfg import interpreter
from dycl_tvm.hcfg.analysis import reachable
from dycl_tvm.hcfg.builder import GraphBuilder, constant, tensor
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import HCFG, Block, Edge, HostOp, Operand, Origin, StateVar, SubDNNCall, TensorOp, Value, operand_type
from dycl_tvm.hcfg.ranges import Ranges
from dycl_tvm.hcfg.types import BOOL, FLOAT, INT, Type
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.passes import PASSES, run_passes

VECTOR = tensor(4)
KINDS: list[Type] = [VECTOR, INT, FLOAT, BOOL]
Scope = list[Operand]


class Generator:
    """Writes a random structured program: ifs that merge or fork, loops with breaks, switches, returns, exceptions."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        weights = torch.Generator().manual_seed(seed)
        zero = constant(torch.zeros(4), "h")
        self.g = GraphBuilder(
            "random", {"x": VECTOR, "y": VECTOR, "n": INT, "flag": BOOL}, [StateVar("h", VECTOR, zero), StateVar("count", INT, 0)]
        )
        self.constants = [constant(torch.randn(4, generator=weights), f"w{k}") for k in range(2)]
        self.left = 60
        number = self.g.host(self.g.entry, "to_float", self.g.params[2])
        scope: Scope = [*self.g.params, *self.g.params, *self.constants, 1, number, 0.5, True]
        self.sequence(self.g.entry, scope, 3, self.finish)

    def pick(self, scope: Scope, kind: Type) -> Operand:
        return self.rng.choice([v for v in scope if operand_type(v) == kind])

    def finish(self, block: Block, scope: Scope) -> None:
        if self.rng.random() < 0.05:
            self.g.fail(block, "ValueError", "no way out")
            return
        values = [self.pick(scope, k) for k in self.rng.choices(KINDS, k=self.rng.randint(1, 3))]
        state = [self.pick(scope, VECTOR), self.pick(scope, INT)]
        self.g.leave(block, *values, state=state, origin=Origin("model.py", self.rng.randint(1, 2)))

    def sequence(self, block: Block, scope: Scope, depth: int, then: Any) -> None:
        """Write some statements, then what ``then`` writes."""
        self.statements(block, scope, depth, self.rng.randint(1, 6), then)

    def statements(self, block: Block, scope: Scope, depth: int, count: int, then: Any) -> None:
        while count > 0 and self.left > 0:
            count -= 1
            self.left -= 1
            kind = self.rng.random()
            if depth and kind < 0.35:
                write = self.rng.choice([self.merge, self.merge, self.fork, self.loop, self.switch, self.skip, self.correlated, self.exits])
                write(block, scope, depth - 1, lambda b, s, n=count: self.statements(b, s, depth, n, then))
                return
            scope.append(self.tensor_op(block, scope) if kind < 0.75 else self.host_op(block, scope))
        then(block, scope)

    def tensor_op(self, block: Block, scope: Scope) -> Value:
        a, b = self.pick(scope, VECTOR), self.pick(scope, VECTOR)
        op = self.rng.choice(
            ["relu", "tanh", "add", "mul", "sub", "clone", "view", "max", "zeros_like", "cat", "scalar", "expand", "dropout", "const"]
        )
        if op in ("relu", "tanh", "clone", "zeros_like"):
            return self.g.op(block, f"aten.{op}.default", a)
        if op in ("add", "mul", "sub"):
            return self.g.op(block, f"aten.{op}.Tensor", a, b)
        if op == "view":
            flat = self.g.op(block, "aten.view.default", a, [2, 2])
            return self.g.op(block, "aten.view.default", flat, [4])
        if op == "max":
            best, _ = self.g.ops(block, "aten.max.dim", self.g.op(block, "aten.view.default", a, [1, 4]), 0)
            return best
        if op == "cat":
            first = self.rng.choice([0, 2, 4])
            return self.g.op(block, "aten.slice.Tensor", self.g.op(block, "aten.cat.default", [a, b]), 0, first, first + 4)
        if op == "scalar":
            number = self.g.host(block, "to_tensor", self.pick(scope, FLOAT), type=tensor())
            return self.g.op(block, "aten.mul.Tensor", a, number)
        if op == "expand":
            return self.g.op(block, "aten.expand.default", a, [4])
        if op == "dropout":
            return self.g.op(block, "aten.native_dropout.default", a, 0.5, False)
        return self.g.op(block, "aten.add.Tensor", *self.constants)

    def host_op(self, block: Block, scope: Scope) -> Value:
        host, pick = self.g.host, lambda kind: self.pick(scope, kind)
        op = self.rng.choice(["item", "item", "arith", "compare", "logic", "floordiv", "select", "to_int", "float", "not"])
        if op == "item":
            return host(block, "item", self.g.op(block, "aten.mean.default", pick(VECTOR)))
        if op == "arith":
            kind = self.rng.choice([INT, FLOAT])
            return host(block, self.rng.choice(["add", "sub", "min", "max"]), pick(kind), pick(kind))
        if op == "compare":
            kind = self.rng.choice([INT, FLOAT])
            return host(block, self.rng.choice(["eq", "lt", "ge"]), pick(kind), self.rng.choice([pick(kind), 0 if kind == INT else 0.1]))
        if op == "logic":
            return host(block, self.rng.choice(["and", "or", "xor"]), pick(BOOL), self.rng.choice([pick(BOOL), False]))
        if op == "floordiv":
            return host(block, self.rng.choice(["floordiv", "mod"]), pick(INT), self.rng.choice([pick(INT), 3, 3]))
        if op == "select":
            kind = self.rng.choice([INT, FLOAT])
            return host(block, "select", pick(BOOL), pick(kind), pick(kind))
        if op == "to_int":
            return host(block, self.rng.choice(["to_int", "round"]), pick(FLOAT))
        return host(block, "not", pick(BOOL)) if op == "not" else host(block, "to_float", pick(INT))

    def condition(self, block: Block, scope: Scope) -> Operand:
        if self.rng.random() < 0.3:
            return self.pick(scope, BOOL)
        mean = self.g.host(block, "item", self.g.op(block, "aten.mean.default", self.pick(scope, VECTOR)))
        return self.g.host(block, "gt", mean, self.rng.choice([-0.2, 0.0, 0.2]))

    def merge(self, block: Block, scope: Scope, depth: int, then: Any) -> None:
        kinds = self.rng.choices(KINDS, k=self.rng.randint(0, 3))
        yes, no, join = self.g.block("yes"), self.g.block("no"), self.g.block("join", *kinds)
        self.g.branch(block, self.condition(block, scope), yes, no, self.rng.choice([None, Origin("model.py", 7)]))

        def side(b: Block, s: Scope) -> None:
            self.g.jump(b, join, *(self.pick(s, k) for k in kinds))

        for b in (yes, no):
            self.sequence(b, list(scope), depth, self.finish if self.rng.random() < 0.15 else side)
        then(join, [*scope, *join.params])

    def fork(self, block: Block, scope: Scope, depth: int, then: Any) -> None:
        yes, no = self.g.block("yes"), self.g.block("no")
        self.g.branch(block, self.condition(block, scope), yes, no)
        marks: list[Any] = []

        def rest(b: Block, s: Scope) -> None:
            # Both sides go on by the same decisions: the tails are alike.
            if not marks:
                marks.append((self.rng.getstate(), self.left))
            self.rng.setstate(marks[0][0])
            self.left = marks[0][1]
            then(b, [*scope, *[v for v in s[len(scope) :] if operand_type(v) == VECTOR][:1]])

        for b in (yes, no):
            self.statements(b, [*scope, self.tensor_op(b, scope)], 0, self.rng.randint(0, 2), rest)

    def skip(self, block: Block, scope: Scope, depth: int, then: Any) -> None:
        """A branch with an edge that carries values straight to the join."""
        work, join = self.g.block("work"), self.g.block("join", VECTOR)
        early = self.tensor_op(block, scope)
        self.g.branch(block, self.condition(block, scope), work, Edge(join, [early]))
        self.sequence(work, list(scope), depth, lambda b, s: self.g.jump(b, join, self.pick(s, VECTOR)))
        then(join, [*scope, *join.params])

    def correlated(self, block: Block, scope: Scope, depth: int, then: Any) -> None:
        """A flag set by one branch and read by the next."""
        join, yes, no, end = self.g.block("flag", BOOL, VECTOR), self.g.block("yes"), self.g.block("no"), self.g.block("end", VECTOR)
        a, b = self.pick(scope, VECTOR), self.pick(scope, VECTOR)
        self.g.branch(block, self.condition(block, scope), Edge(join, [True, a]), Edge(join, [self.pick(scope, BOOL), b]))
        self.g.branch(join, join.params[0], yes, no)
        for side in (yes, no):
            self.sequence(side, [*scope, *join.params], depth, lambda blk, s: self.g.jump(blk, end, self.pick(s, VECTOR)))
        then(end, [*scope, *end.params])

    def exits(self, block: Block, scope: Scope, depth: int, then: Any) -> None:
        """Which way was taken, as a number that the next block switches by; all that it knows is read below."""
        count = self.rng.randint(2, 4)
        join, end = self.g.block("which", INT, VECTOR), self.g.block("end", INT)
        for k in range(count - 1):
            on = self.g.block("on")
            self.g.branch(block, self.condition(block, scope), Edge(join, [k, self.pick(scope, VECTOR)]), on)
            block = on
        last = self.rng.choice([count - 1, count - 1, self.pick(scope, INT)])
        self.g.jump(block, join, last, self.tensor_op(block, scope))
        sides = [self.g.block(f"exit{k}") for k in range(count)]
        self.g.switch(join, join.params[0], *sides)
        for k, b in enumerate(sides):
            self.sequence(b, [*scope, *join.params], 0, lambda blk, s, k=k: self.g.jump(blk, end, self.rng.choice([k, self.pick(s, INT)])))
        then(end, [*scope, *join.params, *end.params])

    def switch(self, block: Block, scope: Scope, depth: int, then: Any) -> None:
        sides = [self.g.block(f"case{k}") for k in range(3)]
        join = self.g.block("join", VECTOR)
        index = self.g.host(block, "mod", self.pick(scope, INT), self.rng.choice([3, 3, 4]))
        self.g.switch(block, index, *sides)
        for b in sides:
            self.sequence(b, list(scope), 0, lambda blk, s: self.g.jump(blk, join, self.pick(s, VECTOR)))
        then(join, [*scope, *join.params])

    def loop(self, block: Block, scope: Scope, depth: int, then: Any) -> None:
        kinds = self.rng.choices(KINDS, k=self.rng.randint(0, 3))
        head, body, end = self.g.block("head", INT, *kinds), self.g.block("body"), self.g.block("end")
        self.g.jump(block, head, 0, *(self.pick(scope, k) for k in kinds))
        inner = [*scope, *head.params]
        if self.rng.random() < 0.3:
            inner.append(self.tensor_op(head, inner))
        self.g.branch(head, self.g.host(head, "lt", head.params[0], self.rng.randint(0, 3)), body, end)

        def again(b: Block, s: Scope) -> None:
            nxt = [self.g.host(b, "add", head.params[0], 1), *(self.pick(s, k) for k in kinds)]
            if self.rng.random() < 0.3:
                self.g.branch(b, self.condition(b, s), end, Edge(head, nxt))
            else:
                self.g.jump(b, head, *nxt)

        self.sequence(body, list(inner), depth, again)
        then(end, list(inner))


def outcome(graph: HCFG, inputs: list[Any]) -> tuple[Any, Counter[str]]:
    """Two calls in a row, with the state between them; exceptions count as results."""
    counts: Counter[str] = Counter()
    state = [v.initial if isinstance(v.initial, (int, float)) else v.initial.data for v in graph.state]
    found = []
    for _ in range(2):
        try:
            found.append(interpret(graph, inputs, state, counts=counts, max_blocks=5000)[0])
        except (ArithmeticError, ValueError, IndexError) as error:
            found.append(type(error).__name__)
            break
    return found, counts


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


INPUTS = [
    [torch.tensor([0.5, -1.0, 2.0, 0.25]), torch.tensor([0.1, 0.7, -0.2, 0.4]), 2, True],
    [torch.tensor([-1.0, -0.5, 0.3, 0.1]), torch.tensor([-0.9, 0.2, 0.8, -0.3]), -3, False],
    [torch.zeros(4), torch.ones(4), 0, True],
]


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**30), st.permutations(PASSES[:-1]))
def test_any_order_of_passes_keeps_the_results(seed: int, order: list[Any]) -> None:
    before = Generator(seed).g.graph
    verify(before)
    graph = Generator(seed).g.graph
    for name, fn in [*order, *order]:
        fn(graph)
        try:
            verify(graph)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error
    check(before, graph)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**30))
def test_the_pipeline_keeps_the_results(seed: int) -> None:
    graph = Generator(seed).g.graph
    run_passes(graph)
    assert reachable(graph) == set(graph.blocks)
    assert not any(isinstance(s, TensorOp) for b in graph.blocks for s in b.steps)
    check(Generator(seed).g.graph, graph)


@pytest.mark.parametrize("name", [name for name, _ in PASSES[:-1]])
def test_the_pipeline_without_one_pass(name: str) -> None:
    for seed in range(4):
        graph = Generator(seed).g.graph
        run_passes(graph, {name})
        check(Generator(seed).g.graph, graph)


def check(before: HCFG, after: HCFG) -> None:
    for inputs in INPUTS:
        want, work = outcome(before, inputs)
        got, done = outcome(after, inputs)
        assert same(want, got), (want, got)
        if not isinstance(want[-1], str):
            more = {op: (n, work[op]) for op, n in done.items() if n > work[op]}
            assert not more, more


def test_calls_of_shared_bodies() -> None:
    """The generator makes what the test is about: in some graph two calls share a sub-DNN."""
    shared = 0
    for seed in range(20):
        graph = Generator(seed).g.graph
        run_passes(graph, {"tail_merging"})
        calls = [s for b in graph.blocks for s in b.steps if isinstance(s, SubDNNCall)]
        shared += len(calls) - len(graph.sub_dnns())
    assert shared > 0


def test_numbers_of_a_run_lie_in_their_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """On random graphs; and in some of them a range is narrow and an edge cannot be taken, or the test would say nothing."""
    found: list[tuple[Value, int]] = []

    def observed(step: HostOp, args: list) -> object:
        result = run(step, args)
        if isinstance(result, int):
            found.append((step.output, int(result)))
        return result

    run = interpreter.run_host_op
    monkeypatch.setattr(interpreter, "run_host_op", observed)
    narrow = closed = 0
    for seed in range(30):
        graph = Generator(seed).g.graph
        ranges = Ranges(graph)
        closed += sum(not ranges.can_be_taken(e) for b in graph.blocks for e in b.edges())
        for inputs in INPUTS:
            found.clear()
            outcome(graph, inputs)
            for value, number in found:
                known = ranges.of(value)
                assert known is not None and number in known, (seed, value, number, known)
                narrow += known.high - known.low < 5 and value.type == INT
    assert narrow > 50 and closed > 5
