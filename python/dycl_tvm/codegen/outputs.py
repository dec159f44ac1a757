# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which tensors a caller's memory may stand for: results that kernels can write where the caller wants them, without a copy.

A result lies in a *home*: slots of the arena that need one another's bytes and nobody else's (:class:`dycl_tvm.compile.program.Slot`). So a
home can be anywhere, and the memory that a caller has for one leaf can be the home of that leaf, if the leaf is all that ever comes out
of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from dycl_tvm.compile.program import Leave, Program, Slot


def direct_homes(program: Program, slots: list[Slot]) -> list[tuple[int, int]]:
    """Return pairs (leaf, home) such that the memory of a caller for the leaf may be the home.

    Parameters
    ----------
    program : Program
    slots : list of Slot
        All that occur in it.
    """
    if program.device is not None:
        return []  # they lie on the device
    leaves_of: dict[int, set[int]] = {}
    slot_of: dict[int, Slot] = {}
    for leaf, slot in _returned(program):
        leaves_of.setdefault(slot.index, set()).add(leaf)
        slot_of.setdefault(slot.index, slot)
    found: list[tuple[int, int]] = []
    for home, leaves in sorted(leaves_of.items()):
        at, first = slot_of[home], min(leaves)
        members = [s for s in slots if s.space == "arena" and s.index == home]
        fits = all(s.offset == at.offset and s.type.nbytes <= at.type.nbytes for s in members)
        # two homes that share bytes are never needed at once, and so may be one memory
        others = [slot_of[h] for leaf, h in found if leaf == first]
        if len(leaves) == 1 and first >= 0 and fits and all(_share_bytes(at, other) for other in others):
            found.append((first, home))
    return found


def _returned(program: Program) -> Iterator[tuple[int, Slot]]:
    """Yield the leaves that lie in a home, with their slots; -1 for one that does not look as its site says."""
    for block in program.blocks:
        if isinstance(block.end, Leave):
            types = program.sites[block.end.site].types
            for leaf, value in enumerate(block.end.values):
                if isinstance(value, Slot) and value.space == "arena" and value.index and value.type.nbytes:
                    yield (leaf if types[leaf] == value.type else -1), value


def _share_bytes(a: Slot, b: Slot) -> bool:
    return a.offset < b.offset + b.type.nbytes and b.offset < a.offset + a.type.nbytes
