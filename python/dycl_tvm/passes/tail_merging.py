# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tail merging: blocks that end alike share their ends, so that paths that a fork kept apart meet again.

Blocks are compared from their ends upwards: the same terminator (targets, return structure, place in the user's source),
then step by step the same operation with the same static arguments and the same flow of values within the tail. Values
from before the tail that differ become parameters of the shared block. Weights must be the same: a layer with other
weights is another layer. Paths of special sizes share nothing with others, which compute no more than their sizes say.
Blocks near the exits go first, so that whole trees fold from their leaves.

Invariant: every path runs the same steps. Source: K. Cooper and L. Torczon, "Engineering a compiler", 2nd ed., 10.3.3;
the congruence of values by W. Chen et al., "Code compaction of matching single-entry multiple-exit regions", SAS 2003.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from dycl_tvm.hcfg.analysis import definitions, reverse_postorder
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
    Step,
    Switch,
    TensorOp,
    Terminator,
    Value,
    block_operands,
    edges_of,
    map_operands,
    operand_type,
    rewrite_terminator,
)
from dycl_tvm.hcfg.special_sizes import special_paths
from dycl_tvm.passes.rewrite import Replacement, freeze


def tail_merging(graph: HCFG) -> int:
    """Share equal tails; return the number of blocks that gave theirs away."""
    return _Merger(graph).run()


class _Merger:
    def __init__(self, graph: HCFG) -> None:
        self.graph = graph
        self.order = reverse_postorder(graph)
        self.home = {v: b for b in self.order for v in definitions(b)}
        #: Number of reads in other blocks than the value's own.
        self.outside: Counter[Value] = Counter()
        self.incoming: dict[Block, list[Edge]] = {b: [] for b in self.order}
        self.owner: dict[Edge, Block] = {}
        self.numbers: dict[Any, int] = {}
        self.step_keys: dict[Step, int] = {}
        self.gone: set[Block] = set()
        self.special = special_paths(graph)
        self.added: list[Block] = []
        for block in self.order:
            self.count(block, 1)
            for edge in block.edges():
                self.incoming[edge.target].append(edge)
                self.owner[edge] = block

    def run(self) -> int:
        levels: dict[int, list[Block]] = {}
        height: dict[Block, int] = {}
        for block in reversed(self.order):
            # Edges that lead back do not count: their targets have no height yet.
            height[block] = 1 + max((height[s] for s in block.successors() if s in height), default=-1)
            levels.setdefault(height[block], []).append(block)
        merged = level = 0
        while level in levels:
            pool = levels[level]
            while True:
                groups = self.groups([b for b in pool if b not in self.gone])
                for group, k in groups:
                    pool.append(self.merge(group, k))
                    # What is left of the members ends in a jump to the new block: one level up.
                    levels.setdefault(level + 1, []).extend(b for b in group if b not in self.gone)
                    merged += len(group) - 1
                taken = {b for group, _ in groups for b in group}
                pool = [b for b in pool if b not in taken]
                if not groups:
                    break
            level += 1
        if merged:
            # A block that nothing reaches may still lead to one that went: it goes too.
            kept = set(self.order) - self.gone
            self.graph.blocks = [b for b in self.graph.blocks if b in kept] + [b for b in self.added if b not in self.gone]
        return merged

    def count(self, block: Block, sign: int) -> None:
        for value in block_operands(block):
            if self.home.get(value) is not block:
                self.outside[value] += sign

    def number(self, key: Any) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def step_key(self, step: Step) -> int:
        key = self.step_keys.get(step)
        if key is None:
            key = self.step_keys[step] = self.number(_step_key(step))
        return key

    def groups(self, pool: list[Block]) -> list[tuple[list[Block], int]]:
        """Return disjoint groups of blocks with a tail in common, each with its number of steps."""
        buckets: dict[Any, list[tuple[tuple[int, ...], int, Block]]] = {}
        for k, block in enumerate(dict.fromkeys(pool)):
            keys = tuple(self.step_key(s) for s in reversed(block.steps))
            key = self.special.get(block), _terminator_key(block.terminator)
            buckets.setdefault(key, []).append((keys, k, block))
        found = []
        for bucket in buckets.values():
            if len(bucket) < 2:
                continue
            blocks = [b for _, _, b in sorted(bucket, key=lambda item: item[:2])]  # equal ends become neighbours
            lengths = [self.match(a, b) for a, b in itertools.pairwise(blocks)]
            used = [False] * len(blocks)
            for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
                k = lengths[i]
                if k < 0 or used[i] or used[i + 1]:
                    continue
                group = [blocks[i], blocks[i + 1]]
                j = i + 1
                while j < len(lengths) and not used[j + 1] and lengths[j] == k and self.match(blocks[i], blocks[j + 1]) >= k:
                    group.append(blocks[j + 1])
                    j += 1
                used[i : j + 1] = [True] * (j + 1 - i)
                found.append((group, k))
        return found

    def match(self, a: Block, b: Block) -> int:
        """Return the length of the tail that two blocks with equal terminators share, -1 if it is not worth sharing."""
        partners: dict[Any, set[Any]] = {}

        def pair(ours: list[Operand], theirs: list[Operand]) -> None:
            for x, y in zip(ours, theirs):
                partners.setdefault((0, x) if isinstance(x, Value) else None, set()).add(_key(y))
                partners.setdefault((1, y) if isinstance(y, Value) else None, set()).add(_key(x))

        def twins(x: Value, y: Value) -> bool:
            closed = not self.outside[x] and not self.outside[y]
            return closed and partners.get((0, x), set()) <= {_key(y)} and partners.get((1, y), set()) <= {_key(x)}

        pair(_operands(a.terminator), _operands(b.terminator))
        k = tensor_ops = 0
        for x, y in zip(reversed(a.steps), reversed(b.steps)):
            if self.step_key(x) != self.step_key(y):
                break
            if not all(twins(v, w) for v, w in zip(x.results(), y.results())):
                break
            pair(_step_operands(x), _step_operands(y))
            tensor_ops += isinstance(x, TensorOp)
            k += 1
        whole = self.whole(a, k) and self.whole(b, k)
        return k if tensor_ops or whole else -1

    def whole(self, block: Block, k: int) -> bool:
        """Tell whether a tail of ``k`` steps is all of the block, so that the block can go."""
        return k == len(block.steps) and block is not self.graph.entry and not any(self.outside[p] for p in block.params)

    def merge(self, group: list[Block], k: int) -> Block:
        """Make a block of the common tail; the members jump there, or go if nothing is left of them."""
        leader = group[0]
        whole = [self.whole(b, k) for b in group]
        touched = dict.fromkeys(group)
        for block, all_of_it in zip(group, whole):
            if all_of_it:
                touched.update(dict.fromkeys(self.owner[e] for e in self.incoming[block] if e in self.owner))
        for block in touched:
            self.count(block, -1)

        cut = [len(b.steps) - k for b in group]
        tail = Block(leader.name if whole[0] else f"{leader.name}.tail", origin=leader.origin)
        if not whole[0] and k:
            tail.origin = leader.steps[cut[0]].origin or leader.origin
        vectors = self.unify(tail, group, cut)
        tail.steps, tail.terminator = leader.steps[cut[0] :], leader.terminator
        for step in tail.steps:
            self.home.update(dict.fromkeys(step.results(), tail))
        self.home.update(dict.fromkeys(tail.params, tail))
        self.incoming[tail] = []
        if leader in self.special:
            self.special[tail] = self.special[leader]
        for edge in tail.edges():
            self.owner[edge] = tail
        for i, block in enumerate(group):
            if block is not leader:
                for edge in block.edges():
                    del self.owner[edge]
            args = [vector[i] for vector in vectors]
            if whole[i]:
                self.redirect(block, tail, args)
            else:
                block.steps = block.steps[: cut[i]]
                jump = Edge(tail, args)
                block.terminator = Jump(jump)
                self.incoming[tail].append(jump)
                self.owner[jump] = block
        self.added.append(tail)
        for block in [*touched, tail]:
            if block not in self.gone:
                self.count(block, 1)
        return tail

    def unify(self, tail: Block, group: list[Block], cut: list[int]) -> list[tuple[Operand, ...]]:
        """Turn the operands of the leader's tail that differ among the members into parameters of ``tail``.

        Returns
        -------
        list of tuple
            For each parameter, the operand that each member gives to it.
        """
        leader = group[0]
        inside = {v for step in leader.steps[cut[0] :] for v in step.results()}
        vectors: dict[Any, tuple[Value, tuple[Operand, ...]]] = {}

        def shared(operands: tuple[Operand, ...]) -> Operand:
            first = operands[0]
            key = tuple(map(_key, operands))
            if first in inside or len(set(key)) == 1:
                return first
            if key not in vectors:
                name = first.name if isinstance(first, Value) else ""
                vectors[key] = (Value(operand_type(first), name), operands)
                tail.params.append(vectors[key][0])
            return vectors[key][0]

        for steps in zip(*(b.steps[c:] for b, c in zip(group, cut))):
            new = iter([shared(o) for o in zip(*map(_step_operands, steps))])
            _replace_operands(steps[0], _taker(new))
        rewrite_terminator(leader.terminator, _taker(iter([shared(o) for o in zip(*(_operands(b.terminator) for b in group))])))
        return [operands for _, operands in vectors.values()]

    def redirect(self, block: Block, tail: Block, args: list[Operand]) -> None:
        for edge in self.incoming.pop(block):
            if edge not in self.owner:
                continue  # it belonged to a member that gave its terminator away
            given: dict[Any, Operand] = dict(zip(block.params, edge.args))
            edge.args = [given.get(a, a) if isinstance(a, Value) else a for a in args]
            edge.target = tail
            self.incoming[tail].append(edge)
        self.gone.add(block)


def _taker(new: Iterator[Operand]) -> Replacement:
    """Return a replacement that gives ``new``, one after the other, whatever the operand."""
    return lambda _: next(new)


def _key(operand: Operand) -> Any:
    return freeze(operand, lambda v: v)


def _step_key(step: Step) -> Any:
    """Return what must be equal of two steps: all but the values that are not constants."""

    def name(value: Value) -> Any:
        return value if isinstance(value, Constant) else value.type

    if isinstance(step, HostOp):
        return ("host", step.op, step.text, freeze(step.args, name), step.output.type)
    if isinstance(step, TensorOp):
        outputs = tuple(None if v is None else v.type for v in step.outputs)
        return ("tensor", step.op, freeze(step.args, name), freeze(step.kwargs, name), outputs)
    return ("call", step)


def _terminator_key(term: Terminator | None) -> Any:
    """Return what must be equal of two terminators: all but the operands, whose types must be."""
    types = tuple(operand_type(o) for o in _operands(term))
    targets = tuple(e.target for e in edges_of(term))
    if isinstance(term, Return):
        return ("return", json.dumps(term.site.structure), term.site.origin, types)
    if isinstance(term, Raise):
        return ("raise", term.kind, term.message, term.origin)
    origin = term.origin if isinstance(term, (Branch, Switch)) else None
    return (type(term).__name__, origin, targets, types)


def _operands(term: Terminator | None) -> list[Operand]:
    """Return the operands of a terminator, numbers too, in the order of ``rewrite_terminator``."""
    found: list[Operand] = []

    def see(operand: Operand) -> Operand:
        found.append(operand)
        return operand

    rewrite_terminator(term, see)
    return found


def _step_operands(step: Step) -> list[Operand]:
    """Return the operands of a step; keyword arguments in alphabetic order, for equal steps may write them in another."""
    if isinstance(step, HostOp):
        return list(step.args)
    found: list[Operand] = []
    if isinstance(step, TensorOp):
        map_operands([step.args, *(step.kwargs[k] for k in sorted(step.kwargs))], found.append)
    return found


def _replace_operands(step: Step, fn: Replacement) -> None:
    """Replace the operands in the order of :func:`_step_operands`."""
    if isinstance(step, HostOp):
        step.args = tuple(fn(a) for a in step.args)
    elif isinstance(step, TensorOp):
        step.args = map_operands(step.args, fn)
        step.kwargs = {k: map_operands(step.kwargs[k], fn) for k in sorted(step.kwargs)}
