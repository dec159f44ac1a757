# Licensed under the Apache License, Version 2.0; see LICENSE.
"""One arena for a whole control flow graph: which storages may share bytes, and where they lie.

The planner knows nothing of HCFGs: it sees blocks of points. At each point some storages are read and some are written; what is
written is live from there on, across edges, until its last read on any path.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

ALIGN = 64


@dataclass
class Point:
    """One instruction: storages that it reads, storages that it writes (all of them, before it has finished to read).

    ``in_place``: pairs (written, read) of equal size that may be the same bytes, since each element is read before it is written.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    in_place: tuple[tuple[int, int], ...] = ()


@dataclass
class EdgeMoves:
    """An edge: its target block and the copies (destination storage, source storage) made on it, at once.

    A source of None comes from outside of the arena.
    """

    target: int
    moves: list[tuple[int, int | None]] = field(default_factory=list)


@dataclass
class FlowBlock:
    """A block: its points, what its end reads, and its edges."""

    points: list[Point] = field(default_factory=list)
    end_reads: tuple[int, ...] = ()
    edges: list[EdgeMoves] = field(default_factory=list)


@dataclass
class Plan:
    """Where the storages lie.

    Attributes
    ----------
    offset : list of int
        One per storage; storages that nothing reads or writes have offset 0.
    bytes : int
        Size of the arena.
    lower_bound : int
        The largest sum of sizes that are live at one point: no plan can be smaller.
    coalesced : int
        Copies on edges that disappear because both ends are the same bytes.
    in_place : int
        Results that overwrite an operand.
    live_in : list of set
        For each block the storages that are live where it begins; copies to others must not be made.
    same : list of int
        One per storage, equal for those that are the same bytes on purpose. Others that lie at one place are never live together.
    """

    offset: list[int]
    bytes: int
    lower_bound: int
    coalesced: int
    in_place: int
    live_in: list[set[int]]
    same: list[int]


def plan(sizes: Sequence[int], blocks: Sequence[FlowBlock], share: bool = True, regions: Sequence[set[int]] = ()) -> Plan:
    """Place storages.

    Parameters
    ----------
    sizes : sequence of int
        Bytes of each storage.
    blocks : sequence of FlowBlock
    share : bool
        False gives every storage bytes of its own (the ablation); copies on edges then all stay.
    regions : sequence of set
        Numbers of blocks: what those of the first read and write is put as near to the beginning as it can be, then that of the second,
        and so on.
    """
    rounded = [round_up(s) for s in sizes]
    live_in = _live_in(blocks)
    interferes, soft, bound, used = _interference(rounded, blocks, live_in)
    if not share:
        offset, total = [0] * len(sizes), 0
        for k in range(len(sizes)):
            if k in used:
                offset[k], total = total, total + rounded[k]
        return Plan(offset, total, bound, 0, 0, live_in, list(range(len(sizes))))
    classes = _Classes(interferes)
    in_place = 0
    for written, read in soft:
        if rounded[written] == rounded[read] and read not in interferes[written] and classes.join(written, read):
            in_place += 1
        else:
            classes.part(written, read)
    coalesced = 0
    for block in blocks:
        for edge in block.edges:
            for target, source in edge.moves:
                if source is not None and rounded[target] == rounded[source] and classes.join(target, source):
                    coalesced += 1
    offset, total = _best_fit(rounded, classes, used, _ranks(len(sizes), blocks, regions))
    return Plan(offset, total, bound, coalesced, in_place, live_in, [classes.find(k) for k in range(len(sizes))])


def _ranks(count: int, blocks: Sequence[FlowBlock], regions: Sequence[set[int]]) -> list[tuple[int, bool]]:
    """Return for each storage the first region that reads or writes it, and whether it does alone; those that are in none come last."""
    ranks = [(len(regions), True)] * count
    for rank, region in reversed(list(enumerate(regions))):
        inside = {s for k in region for s in _touched(blocks[k], region)}
        outside = {s for k, block in enumerate(blocks) if k not in region for s in _touched(block, range(len(blocks)))}
        for s in inside:
            ranks[s] = (rank, s not in outside)
    return ranks


def _touched(block: FlowBlock, targets: Container[int]) -> Iterator[int]:
    """Yield the storages that a block and its edges to some targets read or write."""
    yield from block.end_reads
    for point in block.points:
        yield from (*point.reads, *point.writes)
    for edge in block.edges:
        if edge.target in targets:
            yield from (s for move in edge.moves for s in move if s is not None)


def round_up(size: int) -> int:
    """Return the bytes that a storage takes."""
    return max(ALIGN, -(-size // ALIGN) * ALIGN)


def _interference(
    sizes: Sequence[int], blocks: Sequence[FlowBlock], live_in: Sequence[set[int]]
) -> tuple[list[set[int]], list[tuple[int, int]], int, set[int]]:
    """Return (interference graph, pairs that interfere only unless they are the same bytes, largest live set in bytes, storages in use)."""
    interferes: list[set[int]] = [set() for _ in sizes]
    soft: dict[tuple[int, int], None] = {}
    used: set[int] = set()
    bound = 0

    def meet(written: Iterable[int], live: set[int]) -> None:
        for w in written:
            used.add(w)
            others = live - {w}
            interferes[w] |= others
            for o in others:
                interferes[o].add(w)

    for block in blocks:
        live = set(block.end_reads)
        for edge in block.edges:
            entering = live_in[edge.target]
            written = [t for t, _ in edge.moves if t in entering]
            # destinations meet what else is live after the edge; sources have been read by then
            meet(written, entering)
            bound = max(bound, sum(sizes[s] for s in entering))
            live |= _through(edge, entering)
        used |= live
        bound = max(bound, sum(sizes[s] for s in live))
        for point in reversed(block.points):
            at = live | set(point.writes) | set(point.reads)
            # an operand that is read on later, or twice here, must keep its bytes
            dying = [(w, r) for w, r in point.in_place if r not in live and r not in point.writes and point.reads.count(r) == 1]
            soft.update(dict.fromkeys(dying))
            for w in point.writes:
                meet([w], at - {r for v, r in dying if v == w})
            bound = max(bound, sum(sizes[s] for s in at) - sum(sizes[w] for w in {w for w, _ in dying}))
            live = (live - set(point.writes)) | set(point.reads)
            used |= at
    return interferes, list(soft), bound, used


def _through(edge: EdgeMoves, entering: set[int]) -> set[int]:
    """Return what must be live before an edge: live after it and not written on it, and the sources of what is written."""
    written = {t for t, _ in edge.moves}
    return (entering - written) | {s for t, s in edge.moves if s is not None and t in entering}


def _live_in(blocks: Sequence[FlowBlock]) -> list[set[int]]:
    preds: list[list[int]] = [[] for _ in blocks]
    for k, block in enumerate(blocks):
        for edge in block.edges:
            preds[edge.target].append(k)
    upward: list[tuple[set[int], set[int]]] = []
    for block in blocks:
        read: set[int] = set()
        written: set[int] = set()
        for point in block.points:
            read |= set(point.reads) - written
            written |= set(point.writes)
        upward.append((read, written))
    live: list[set[int]] = [set() for _ in blocks]
    work = list(range(len(blocks)))
    queued = set(work)
    while work:
        k = work.pop()
        queued.discard(k)
        block = blocks[k]
        out = set(block.end_reads)
        for edge in block.edges:
            out |= _through(edge, live[edge.target])
        read, written = upward[k]
        new = read | (out - written)
        if new != live[k]:
            live[k] = new
            for p in preds[k]:
                if p not in queued:
                    queued.add(p)
                    work.append(p)
    return live


class _Classes:
    """Storages that are the same bytes, with the interference of whole classes."""

    def __init__(self, interferes: list[set[int]]) -> None:
        self.parent = list(range(len(interferes)))
        self.interferes = interferes
        self.members: list[list[int]] = [[k] for k in range(len(interferes))]

    def find(self, k: int) -> int:
        while self.parent[k] != k:
            self.parent[k] = self.parent[self.parent[k]]
            k = self.parent[k]
        return k

    def part(self, a: int, b: int) -> None:
        """Make two storages interfere."""
        if self.find(a) != self.find(b):
            for x, y in ((a, b), (b, a)):
                self.interferes[self.find(x)] = self.interferes[self.find(x)] | {y}

    def join(self, a: int, b: int) -> bool:
        """Make two storages one, unless they are live together; returns whether they are one now."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return True
        if any(self.find(n) == b for n in self.interferes[a]):
            return False
        if len(self.members[a]) < len(self.members[b]):
            a, b = b, a
        self.parent[b] = a
        self.members[a] += self.members[b]
        self.interferes[a] = self.interferes[a] | self.interferes[b]
        return True


def _best_fit(sizes: Sequence[int], classes: _Classes, used: set[int], ranks: Sequence[tuple[int, bool]]) -> tuple[list[int], int]:
    """Place classes by rank, of one rank large ones first, each in the smallest gap between placed ones that it interferes with."""
    offset = [0] * len(sizes)

    def order(root: int) -> tuple[tuple[int, bool], int, int]:
        members = classes.members[root]
        return min(ranks[m] for m in members), -max(sizes[m] for m in members), min(members)

    # a class is in use if any member is: a destination that nothing reads shares the bytes of its source
    roots = sorted({classes.find(k) for k in used}, key=order)
    placed: dict[int, tuple[int, int]] = {}
    total = 0
    for root in roots:
        size = max(sizes[m] for m in classes.members[root])
        taken = sorted({placed[c] for c in {classes.find(n) for n in classes.interferes[root]} if c in placed})
        best: tuple[int, int] | None = None
        at = 0
        for start, end in taken:
            gap = start - at
            if gap >= size and (best is None or gap < best[0]):
                best = (gap, at)
            at = max(at, end)
        place = best[1] if best is not None else at
        placed[root] = (place, place + size)
        total = max(total, place + size)
    for root, (start, _) in placed.items():
        for member in classes.members[root]:
            offset[member] = start
    return offset, total
