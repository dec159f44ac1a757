# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Analyses of an HCFG: orders, dominators, loops, liveness, numbers of paths. None recurses; all are near linear."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dycl_tvm.hcfg.dominance import immediate_dominators
from dycl_tvm.hcfg.nodes import HCFG, Block, Constant, Edge, Raise, Return, Value, block_operands


def predecessors(graph: HCFG) -> dict[Block, list[tuple[Block, Edge]]]:
    """Return the incoming edges of each block, each with the block it leaves; unreachable blocks count."""
    found: dict[Block, list[tuple[Block, Edge]]] = {b: [] for b in graph.blocks}
    for block in graph.blocks:
        for edge in block.edges():
            found[edge.target].append((block, edge))
    return found


def reverse_postorder(graph: HCFG) -> list[Block]:
    """Return the reachable blocks, each before its successors except along retreating edges."""
    order: list[Block] = []
    seen = {graph.entry}
    stack = [(graph.entry, iter(reversed(graph.entry.successors())))]
    while stack:
        block, rest = stack[-1]
        for successor in rest:
            if successor not in seen:
                seen.add(successor)
                stack.append((successor, iter(reversed(successor.successors()))))
                break
        else:
            order.append(block)
            stack.pop()
    order.reverse()
    return order


def reachable(graph: HCFG) -> set[Block]:
    """Return the blocks that the entry reaches."""
    return set(reverse_postorder(graph))


@dataclass
class DominatorTree:
    """Who dominates whom.

    Attributes
    ----------
    order : list of Block
        The reachable blocks, each after its immediate dominator.
    idom : dict
        The immediate dominator; the root has none.
    children : dict
        The blocks that a block dominates immediately.
    depth : dict
        Number of strict dominators.
    """

    order: list[Block]
    idom: dict[Block, Block]
    children: dict[Block, list[Block]]
    depth: dict[Block, int]
    _first: dict[Block, int]
    _last: dict[Block, int]

    def dominates(self, a: Block, b: Block) -> bool:
        """Tell whether every path from the root to ``b`` passes ``a``; a block dominates itself."""
        return self._first[a] <= self._first[b] <= self._last[a]

    def common(self, blocks: Iterable[Block]) -> Block:
        """Return the deepest block that dominates all of ``blocks``."""
        distinct = set(blocks)
        # The ancestor of all is that of the first and the last in preorder.
        low = min(distinct, key=self._first.__getitem__)
        high = self._first[max(distinct, key=self._first.__getitem__)]
        while self._last[low] < high:
            low = self.idom[low]
        return low


def dominators(graph: HCFG) -> DominatorTree:
    """Return the dominator tree of the reachable blocks."""
    order = reverse_postorder(graph)
    index = {b: i for i, b in enumerate(order)}
    idom = immediate_dominators([[index[s] for s in b.successors()] for b in order], 0)
    return _tree(order, {b: order[idom[i]] for i, b in enumerate(order) if i})


def postdominators(graph: HCFG) -> DominatorTree:
    """Return the dominator tree of the reversed graph; its root is a block that stands for the outside.

    ``tree.dominates(a, b)`` then says that every path from ``b`` to an exit passes ``a``.
    """
    order = [Block("<exit>"), *reverse_postorder(graph)]
    index = {b: i for i, b in enumerate(order)}
    reverse: list[list[int]] = [[] for _ in order]
    for block in order[1:]:
        if isinstance(block.terminator, (Return, Raise)):
            reverse[0].append(index[block])
        for successor in block.successors():
            reverse[index[successor]].append(index[block])
    idom = immediate_dominators(reverse, 0)
    return _tree(order, {b: order[idom[i]] for i, b in enumerate(order) if i and idom[i] >= 0})


def _tree(order: list[Block], idom: dict[Block, Block]) -> DominatorTree:
    children: dict[Block, list[Block]] = {b: [] for b in order}
    for block in order:
        if block in idom:
            children[idom[block]].append(block)
    preorder: list[Block] = []
    depth = {order[0]: 0}
    stack = [order[0]]
    while stack:
        block = stack.pop()
        preorder.append(block)
        for child in reversed(children[block]):
            depth[child] = depth[block] + 1
            stack.append(child)
    first = {b: i for i, b in enumerate(preorder)}
    last = dict(first)
    for block in reversed(preorder[1:]):
        last[idom[block]] = max(last[idom[block]], last[block])
    return DominatorTree(preorder, idom, children, depth, first, last)


@dataclass
class Loop:
    """A natural loop: the header dominates the body; the back edges lead from latches to the header."""

    header: Block
    latches: list[Block]
    body: set[Block]


@dataclass
class LoopNest:
    """The loops of a graph.

    Attributes
    ----------
    loops : list of Loop
        Inner loops before those around them.
    innermost : dict
        The innermost loop of each block that is in one.
    irreducible : list of (Block, Block)
        Retreating edges whose target does not dominate their source: cycles with more than one entrance.
    """

    loops: list[Loop]
    innermost: dict[Block, Loop]
    irreducible: list[tuple[Block, Block]]


def natural_loops(graph: HCFG, tree: DominatorTree | None = None) -> LoopNest:
    """Return the natural loops; loops with one header count as one."""
    tree = tree or dominators(graph)
    order = reverse_postorder(graph)
    position = {b: i for i, b in enumerate(order)}
    sources: dict[Block, list[Block]] = {b: [] for b in order}
    latches: dict[Block, list[Block]] = {}
    irreducible = []
    for block in order:
        for target in dict.fromkeys(block.successors()):
            sources[target].append(block)
            if position[target] <= position[block]:
                if tree.dominates(target, block):
                    latches.setdefault(target, []).append(block)
                else:
                    irreducible.append((block, target))
    nest = LoopNest([], {}, irreducible)
    for header in sorted(latches, key=lambda b: -position[b]):  # inner headers come later in reverse postorder
        body = {header}
        stack = list(latches[header])
        while stack:
            block = stack.pop()
            if block not in body:
                body.add(block)
                stack.extend(sources[block])
        loop = Loop(header, latches[header], body)
        nest.loops.append(loop)
        for block in body:
            nest.innermost.setdefault(block, loop)
    return nest


@dataclass
class Liveness:
    """The values alive at the borders of the blocks.

    ``live_in`` holds neither the block's own parameters nor constants; a value that a block passes along an edge is
    read at the end of that block, so it is in ``live_out`` only if a later block reads it itself.
    """

    live_in: dict[Block, set[Value]]
    live_out: dict[Block, set[Value]]


def liveness(graph: HCFG) -> Liveness:
    """Return the live values of the reachable blocks.

    Method: from each use upwards to the definition, as in F. Brandner et al., "Computing liveness sets for SSA-form
    programs", INRIA RR-7503, 2011; the work is linear in the size of the result.
    """
    order = reverse_postorder(graph)
    sources: dict[Block, list[Block]] = {b: [] for b in order}
    home: dict[Value, Block] = {}
    for block in order:
        for target in dict.fromkeys(block.successors()):
            sources[target].append(block)
        for value in definitions(block):
            home[value] = block
    result = Liveness({b: set() for b in order}, {b: set() for b in order})
    for block in order:
        for value in block_operands(block):
            if isinstance(value, Constant):
                continue
            defined = home.get(value)
            stack = [block]
            while stack:
                at = stack.pop()
                if at is defined or value in result.live_in[at]:
                    continue
                result.live_in[at].add(value)
                for source in sources[at]:
                    result.live_out[source].add(value)
                    stack.append(source)
    return result


def definitions(block: Block) -> list[Value]:
    """Return the values that a block defines, its parameters first."""
    found = list(block.params)
    for step in block.steps:
        found.extend(step.results())
    return found


def components(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the strongly connected components, each after those it leads to (Tarjan 1972, without recursion)."""
    n = len(successors)
    number, low = [-1] * n, [0] * n
    on_stack = [False] * n
    found: list[list[int]] = []
    stack: list[int] = []
    count = 0
    for start in range(n):
        if number[start] >= 0:
            continue
        work = [(start, 0)]
        while work:
            node, k = work.pop()
            if k == 0:
                number[node] = low[node] = count
                count += 1
                stack.append(node)
                on_stack[node] = True
            else:
                low[node] = min(low[node], low[successors[node][k - 1]])
            while k < len(successors[node]):
                s = successors[node][k]
                k += 1
                if number[s] < 0:
                    work += [(node, k), (s, 0)]
                    break
                if on_stack[s]:
                    low[node] = min(low[node], number[s])
            else:
                if low[node] == number[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack[component[-1]] = False
                    found.append(component)
    return found


def count_paths(graph: HCFG) -> int:
    """Return the number of ways from the entry to an exit; a loop counts as one block that has all its ways out.

    The number is exact and may be huge: it doubles with every gate.
    """
    order = reverse_postorder(graph)
    index = {b: i for i, b in enumerate(order)}
    successors = [[index[s] for s in b.successors()] for b in order]
    ways: list[int] = [0] * len(order)
    for component in components(successors):
        inside = set(component)
        total = 0
        for node in component:
            total += isinstance(order[node].terminator, (Return, Raise))
            total += sum(ways[s] for s in successors[node] if s not in inside)
        for node in component:
            ways[node] = total
    return ways[0]
