# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Analyses against their definitions, on random graphs, and on graphs too deep for recursion."""

from __future__ import annotations

import random

import pytest

from dycl_tvm.hcfg.analysis import (
    components,
    count_paths,
    dominators,
    liveness,
    natural_loops,
    postdominators,
    predecessors,
    reachable,
    reverse_postorder,
)
from dycl_tvm.hcfg.builder import GraphBuilder, tensor
from dycl_tvm.hcfg.nodes import HCFG, Block, Edge, Return, Switch, block_operands
from dycl_tvm.hcfg.types import BOOL, INT
from dycl_tvm.hcfg.verify import verify


def tangle(seed: int, size: int = 12) -> HCFG:
    """Any control flow at all: unreachable blocks, loops of two entrances, edges that stand twice."""
    rng = random.Random(seed)
    g = GraphBuilder("tangle", {"i": INT})
    blocks = [g.block(f"b{k}") for k in range(size)]
    for b in [g.entry, *blocks]:
        targets = rng.choices(blocks, k=rng.randint(0, 3))
        if targets:
            g.switch(b, g.params[0], *targets)
        else:
            g.leave(b, 1)
    return g.graph


def flood(start: list[Block], without: Block | None, edges: dict[Block, list[Block]]) -> set[Block]:
    found, work = set(), [b for b in start if b is not without]
    while work:
        b = work.pop()
        if b not in found:
            found.add(b)
            work.extend(s for s in edges[b] if s is not without)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_dominance_is_cutting_off(seed: int) -> None:
    graph = tangle(seed)
    forward = {b: b.successors() for b in graph.blocks}
    backward = {b: [s for s, _ in into] for b, into in predecessors(graph).items()}
    alive = reachable(graph)
    assert alive == flood([graph.entry], None, forward)
    tree, post = dominators(graph), postdominators(graph)
    leaving = [b for b in alive if isinstance(b.terminator, Return)]
    ending = flood(leaving, None, backward) & alive
    for a in alive:
        cut = flood([graph.entry], a, forward)
        assert {b for b in alive if tree.dominates(a, b)} == alive - cut
        if a in ending:
            cut = flood(leaving, a, backward) & alive
            assert {b for b in ending if post.dominates(a, b)} == ending - cut
    some = random.Random(seed).sample(sorted(alive, key=lambda b: b.name), min(3, len(alive)))
    above = [b for b in alive if all(tree.dominates(b, s) for s in some)]
    assert tree.common(some) is max(above, key=tree.depth.__getitem__)


@pytest.mark.parametrize("seed", range(40))
def test_orders_loops_and_components(seed: int) -> None:
    graph = tangle(seed)
    order = reverse_postorder(graph)
    position = {b: k for k, b in enumerate(order)}
    tree, nest = dominators(graph), natural_loops(graph)
    for loop in nest.loops:
        assert all(tree.dominates(loop.header, b) for b in loop.body)
        assert all(loop.header in latch.successors() for latch in loop.latches)
    retreating = {(b, s) for b in order for s in b.successors() if position[s] <= position[b]}
    backs = {(latch, loop.header) for loop in nest.loops for latch in loop.latches}
    assert retreating == backs | set(nest.irreducible)
    found = components([[position[s] for s in b.successors()] for b in order])
    assert sorted(n for c in found for n in c) == list(range(len(order)))
    number = {n: k for k, c in enumerate(found) for n in c}
    forward = {b: b.successors() for b in graph.blocks}
    for b in order:
        for s in b.successors():
            assert number[position[s]] <= number[position[b]]
            assert (number[position[s]] == number[position[b]]) == (b in flood([s], None, forward))


def looped() -> GraphBuilder:
    g = GraphBuilder("looped", {"x": tensor(2), "n": INT, "c": BOOL})
    x, n, c = g.params
    head, body, stop, end = g.block("head", INT), g.block("body"), g.block("stop"), g.block("end")
    g.jump(g.entry, head, 0)
    g.branch(head, g.host(head, "lt", head.params[0], n), body, end)
    g.branch(body, c, Edge(head, [g.host(body, "add", head.params[0], 1)]), stop)
    g.leave(stop, x)
    g.leave(end, head.params[0])
    return g


def test_liveness_at_the_borders() -> None:
    g = looped()
    x, n, c = g.params
    entry, head, body, stop, end = g.graph.blocks
    live = liveness(g.graph)
    k = head.params[0]
    assert live.live_in == {entry: set(), head: {x, n, c}, body: {x, n, c, k}, stop: {x}, end: {k}}
    assert live.live_out == {entry: {x, n, c}, head: {x, n, c, k}, body: {x, n, c}, stop: set(), end: set()}
    for block in g.graph.blocks:
        assert live.live_in[block] <= live.live_out[block] | set(block_operands(block))


def test_numbers_of_paths() -> None:
    assert count_paths(looped().graph) == 2
    g = GraphBuilder("gates", {"c": BOOL})
    block = g.entry
    for _ in range(5000):
        yes, join = g.block("yes"), g.block("join")
        g.branch(block, g.params[0], yes, join)
        g.jump(yes, join)
        block = join
    g.leave(block, 1)
    assert count_paths(g.graph) == 2**5000
    assert "about 10^1505 paths" in str(g.graph).splitlines()[0]


def test_deep_graphs_do_not_recurse() -> None:
    g = GraphBuilder("deep", {"i": INT})
    block, exits = g.entry, g.block("exit")
    for _ in range(5000):
        nxt = g.block("next")
        g.switch(block, g.params[0], nxt, exits)
        block = nxt
    g.leave(block, 1)
    g.leave(exits, 2)
    verify(g.graph)
    tree = dominators(g.graph)
    assert tree.depth[block] == 5000
    assert tree.idom[exits] is g.entry
    assert natural_loops(g.graph).loops == []
    assert len(liveness(g.graph).live_in[block]) == 0
    assert isinstance(g.entry.terminator, Switch)
