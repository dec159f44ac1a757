# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Copies that happen at once, put in an order in which none overwrites what a later one reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dycl_tvm.compile.program import CopyTensor, Instr, Reg, Scalar, SetReg, Slot


def overlap(a: Slot, b: Slot) -> bool:
    """Whether two slots share bytes."""
    if a.space != b.space:
        return False
    if a.space != "arena":
        return a.index == b.index
    return a.offset < b.offset + b.type.nbytes and b.offset < a.offset + a.type.nbytes


def order_copies(copies: Sequence[tuple[Slot, Slot]], scratch: Callable[[Slot, int], Slot]) -> list[Instr]:
    """Order tensor copies (destination, source).

    Parameters
    ----------
    copies : sequence of (destination, source)
        Destinations do not overlap one another.
    scratch : callable
        ``scratch(like, k)`` gives the k-th place outside of all slots, for a tensor that must be saved in a cycle.
    """
    pending = [(d, s) for d, s in copies if not _same(d, s)]
    done: list[Instr] = []
    saved = 0
    while pending:
        ready = [c for c in pending if not any(o is not c and overlap(c[0], o[1]) for o in pending)]
        if ready:
            done += [CopyTensor(d, s) for d, s in ready]
            pending = [c for c in pending if c not in ready]
            continue
        # every destination is still to be read by another copy: save what the first would overwrite
        blocker = pending[0][0]
        for k, (d, s) in enumerate(pending):
            if overlap(blocker, s) and d is not blocker:
                place = scratch(s, saved)
                saved += 1
                done.append(CopyTensor(place, s))
                pending[k] = (d, place)
    return done


def _same(a: Slot, b: Slot) -> bool:
    return a.space == b.space and a.index == b.index and a.offset == b.offset


def order_sets(sets: Sequence[tuple[Reg, Scalar]], spare: Callable[[Any], Reg]) -> list[Instr]:
    """Order register assignments; ``spare(kind)`` gives a register that nothing else uses."""
    pending = [(d, s) for d, s in sets if d != s]
    done: list[Instr] = []
    while pending:
        ready = [c for c in pending if not any(o is not c and o[1] == c[0] for o in pending)]
        if ready:
            done += [SetReg(d, s) for d, s in ready]
            pending = [c for c in pending if c not in ready]
            continue
        target = pending[0][0]
        keep = spare(target.kind)
        done.append(SetReg(keep, target))
        pending = [(d, keep if s == target else s) for d, s in pending]
    return done
