# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Random control flow graphs over one arena: no value is clobbered."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hcfg_utils import new_machine, run_program

from dycl_tvm.compile.call_list import Call, CallList
from dycl_tvm.compile.lowering import Lowering
from dycl_tvm.hcfg.builder import GraphBuilder, constant, tensor
from dycl_tvm.hcfg.nodes import Block, StateVar, SubDNN, SubDNNCall, Value
from dycl_tvm.hcfg.types import INT, TensorType

Datum = Any


def mix(symbol: str, arrays: Sequence[np.ndarray]) -> None:
    """A kernel that spoils its outputs before it reads its inputs."""
    n_in = int(symbol.split("_")[1])
    for out in arrays[n_in:]:
        out[...] = -1
    total = sum(int(a.sum()) * (k + 3) for k, a in enumerate(arrays[:n_in])) % 1000003
    for k, out in enumerate(arrays[n_in:]):
        out[...] = (np.arange(out.size, dtype=np.int64) * 7 + total * (k + 1) + 1).reshape(out.shape) % 1000003


class Generator:
    """Makes a random graph: branches, loops whose values swap, views, several results, state."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lists: dict[str, CallList] = {}
        self.types = [tensor(n, dtype="int64") for n in (1, 3, 8, 9, 17, 40)]
        state = [
            StateVar("a", self.types[3], constant(torch.arange(9))),
            StateVar("b", self.types[3], constant(torch.ones(9, dtype=torch.int64))),
        ]
        self.gb = GraphBuilder("random", {"x": self.types[2], "y": self.types[3]}, state)
        self.constants = [constant(torch.arange(t.numel) + 5) for t in self.types]
        self.count = 0
        end, values = self.sequence(self.gb.entry, list(self.gb.params), 3)
        nines = [v for v in values if v.type == self.types[3]]
        self.gb.leave(
            end, *self.rng.sample(values, min(4, len(values))), self.gb.params[2], state=[self.rng.choice(nines), self.rng.choice(nines)]
        )

    def call(self, block: Block, values: list[Value]) -> None:
        """Append a sub-DNN of a few kernels and perhaps a view."""
        rng = self.rng
        args = [rng.choice([*values, *values, *self.constants]) for _ in range(rng.randint(1, 3))]
        lst = CallList(f"s{self.count}", [a.type for a in args], len(args))  # type: ignore[misc]  # all are tensors
        self.count += 1
        for _ in range(rng.randint(0, 3)):
            inputs = tuple(rng.randrange(len(lst.types)) for _ in range(rng.randint(1, 2)))
            outputs = []
            for _ in range(rng.randint(1, 2)):
                outputs.append(len(lst.types))
                lst.types.append(rng.choice(self.types))
            lst.calls.append(Call(f"mix_{len(inputs)}", "tvm", inputs, tuple(outputs)))
        if rng.random() < 0.4:
            source = rng.randrange(len(lst.types))
            lst.alias[len(lst.types)] = source
            lst.types.append(TensorType((lst.types[source].numel,), "int64"))
        lst.results = [rng.randrange(len(lst.types)) for _ in range(rng.randint(1, 3))]
        sub = SubDNN(lst.name, [Value(a.type) for a in args], [], [Value(lst.types[r]) for r in lst.results])
        outputs_ = [Value(lst.types[r]) for r in lst.results]
        self.lists[lst.name] = lst
        block.steps.append(SubDNNCall(sub, list(args), outputs_))
        values.extend(outputs_)

    def sequence(self, block: Block, values: list[Value], depth: int) -> tuple[Block, list[Value]]:
        """Append random statements; returns the block and the values at their end."""
        for _ in range(self.rng.randint(1, 4)):
            kind = self.rng.random()
            if kind < 0.55 or depth == 0:
                self.call(block, values)
            elif kind < 0.8:
                block, values = self.branch(block, values, depth)
            else:
                block, values = self.loop(block, values, depth)
        return block, values

    def condition(self, block: Block, values: list[Value], threshold: int = 500000) -> Value:
        """Append a condition on a value."""
        source = self.rng.choice(values)
        sub = CallList(f"s{self.count}", [source.type, self.types[0]], 1, calls=[Call("mix_1", "tvm", (0,), (1,))], results=[1])  # type: ignore[list-item]
        self.count += 1
        self.lists[sub.name] = sub
        one = Value(self.types[0])
        block.steps.append(SubDNNCall(SubDNN(sub.name, [Value(source.type)], [], [Value(self.types[0])]), [source], [one]))
        return self.gb.host(block, "lt", self.gb.host(block, "item", one), threshold)

    def some(self, values: list[Value]) -> list[Value]:
        return [self.rng.choice(values) for _ in range(self.rng.randint(1, 4))]

    def same_typed(self, values: list[Value], types: Sequence[Any]) -> list[Any]:
        return [self.rng.choice([v for v in [*values, *self.constants] if v.type == t]) for t in types]

    def branch(self, block: Block, values: list[Value], depth: int) -> tuple[Block, list[Value]]:
        from dycl_tvm.hcfg.nodes import Edge

        cond = self.condition(block, values)
        then, orelse = self.gb.block("then"), self.gb.block("else")
        types = [v.type for v in self.some(values)]
        join = self.gb.block("join", *types)
        self.gb.branch(block, cond, then, orelse)
        for side in (then, orelse):
            end, inner = self.sequence(side, list(values), depth - 1)
            self.gb.jump(end, join, *self.same_typed(inner, types))
        assert Edge
        return join, values + join.params

    def loop(self, block: Block, values: list[Value], depth: int) -> tuple[Block, list[Value]]:
        carried = self.some(values)
        types = [v.type for v in carried]
        head = self.gb.block("head", INT, *types)
        body, after = self.gb.block("body"), self.gb.block("after")
        self.gb.jump(block, head, 0, *carried)
        counter, *params = head.params
        self.gb.branch(head, self.gb.host(head, "lt", counter, self.rng.randint(1, 3)), body, after)
        end, inner = self.sequence(body, values + params, depth - 1)
        pool = params if self.rng.random() < 0.5 else inner  # often a permutation of the carried values
        self.gb.jump(end, head, self.gb.host(end, "add", counter, 1), *self.same_typed(pool, types))
        return after, values + params


def reference(gen: Generator, inputs: list[np.ndarray], state: list[np.ndarray]) -> list[np.ndarray]:
    """Run the graph with every value in memory of its own; ``state`` is replaced."""
    from dycl_tvm.hcfg.hostops import evaluate
    from dycl_tvm.hcfg.nodes import Branch, Constant, HostOp, Return

    graph = gen.gb.graph
    env: dict[Any, Any] = dict(zip(graph.entry.params, [*inputs, *state]))

    def get(v: Any) -> Any:
        if isinstance(v, Constant):
            return v.data.numpy()
        return env[v] if isinstance(v, Value) else v

    block = graph.entry
    while True:
        for step in block.steps:
            if isinstance(step, HostOp):
                args = [get(a) for a in step.args]
                env[step.output] = args[0].reshape(-1)[0].item() if step.op == "item" else evaluate(step.op, args, step.output.type)  # type: ignore[arg-type]
                continue
            assert isinstance(step, SubDNNCall)
            lst = gen.lists[step.callee.name]
            local = {k: get(a) for k, a in enumerate(step.args)}
            for call in lst.calls:
                ins = [local[lst.root(n)] for n in call.inputs]
                outs = [np.zeros(lst.types[n].shape, np.int64) for n in call.outputs]
                mix(call.symbol, [*ins, *outs])
                local.update(zip(call.outputs, outs))
            for v, r in zip(step.outputs, lst.results):
                env[v] = local[lst.root(r)].reshape(lst.types[r].shape)
        term = block.terminator
        if isinstance(term, Return):
            state[:] = [np.array(get(v)) for v in term.state]
            return [np.array(get(v)) for v in term.values]
        edge = (term.then if get(term.cond) else term.orelse) if isinstance(term, Branch) else term.edge  # type: ignore[union-attr]
        env.update(zip(edge.target.params, [get(a) for a in edge.args]))
        block = edge.target


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("seed", range(60))
def test_no_value_is_clobbered(seed: int, share: bool) -> None:
    gen = Generator(seed)
    lowering = Lowering(gen.gb.graph, gen.lists, {}, share)
    program = lowering.run()
    assert lowering.plan is not None
    assert lowering.plan.bytes >= lowering.plan.lower_bound or not share
    machine = new_machine(program)
    state = [np.arange(9), np.ones(9, np.int64)]
    rng = np.random.default_rng(seed)
    for _ in range(4):
        inputs = [rng.integers(0, 1000, 8), rng.integers(0, 1000, 9)]
        before = [np.array(x) for x in state]
        want = reference(gen, inputs, state)
        _, got = run_program(machine, mix, *inputs)
        assert np.array_equal(got[-1], before[0])  # the state that the call found, returned next to the new one
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g, w)


def test_sharing_saves_bytes() -> None:
    saved = 0
    for seed in range(20):
        gen = Generator(seed)
        small, large = (Lowering(gen.gb.graph, gen.lists, {}, s).run().arena_bytes for s in (True, False))
        assert small <= large
        saved += large - small
    assert saved > 20 * 256
