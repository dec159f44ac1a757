# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What sessions need that are made for smaller sizes: the memory of the blocks that calls of such sizes may reach.

A path of its own for smaller sizes (``HCFG.special_sizes``) has smaller tensors, and shares none with the path for all sizes. Which blocks
calls may reach follows from the ranges of numbers at these sizes, not from where the tests of the sizes came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dycl_tvm.compile.arena import round_up
from dycl_tvm.compile.program import CodeBlock, Leave, Need, Slot, slots_of
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.ranges import Range, Ranges


class Region(NamedTuple):
    """The numbers of the blocks that calls reach whose sizes are at most ``most``."""

    most: tuple[int, ...]
    blocks: set[int]


def regions(graph: HCFG) -> list[Region]:
    """Return the regions of the sizes that have a path of their own, as far as a session can be made for them: from the least size on."""
    found: dict[tuple[int, ...], Region] = {}
    for special in graph.special_sizes:
        if any(special[size.name][0] > size.least for size in graph.sizes if size.name in special):
            continue
        most = tuple(special[size.name][1] if size.name in special else size.most for size in graph.sizes)
        given = {value: Range(size.least, n) for value, size, n in zip(graph.size_params, graph.sizes, most, strict=True)}
        ranges = Ranges(graph, given)
        found[most] = Region(most, {k for k, block in enumerate(graph.blocks) if ranges.can_be_reached(block)})
    return list(found.values())


def needs(found: Sequence[Region], blocks: Sequence[CodeBlock], arena: int) -> list[Need]:
    """Return what sessions of these regions need, where it is less than ``arena``, the bytes that the others need."""
    made = []
    for region in found:
        used = [slot for k in region.blocks for slot in _slots(blocks[k], region.blocks) if slot.space == "arena"]
        end = max((slot.offset + round_up(slot.type.nbytes) for slot in used), default=0)
        if end < arena:
            made.append(Need(region.most, end))
    return made


def _slots(block: CodeBlock, region: set[int]) -> Iterator[Slot]:
    """Yield the tensors that a block and its edges into a region read or write."""
    moves = [move for edge in block.gotos() if edge.target in region for move in edge.moves]
    left = block.end if isinstance(block.end, Leave) else None
    for instr in (*block.instrs, *moves, *(left.moves if left is not None else ())):
        yield from slots_of(instr)
    yield from (value for value in (left.values if left is not None else ()) if isinstance(value, Slot))
