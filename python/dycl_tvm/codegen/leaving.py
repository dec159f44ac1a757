# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Branches at which a run may leave the network early, whatever the condition says.

One side returns at once, the other goes on to further decisions, and nothing but the choice hangs on the condition: it is computed from
items of tensors of floats or truths alone. Conditions on integers say how far a loop has come, how long a tensor is or which place an
index means, and truths that are joined or kept say which values there are at all; what stands behind a test of those may rely on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dycl_tvm.compile.program import CodeBlock, CondGoto, Fail, Goto, HostInstr, Instr, Leave, Program, ReadItem, Reg, SwitchGoto

_FLOATS_AND_TRUTHS = ("float64", "float32", "float16", "bfloat16", "bool")


def leaving_sides(program: Program) -> dict[int, int]:
    """Return, by its decision, the side of each such branch that leaves: 1 that of a true condition, 0 the other.

    A side leaves if a return follows without a further decision, and so without a loop.
    """
    if program.device is not None:  # branches may be taken there, where nobody looks at the time
        return {}
    made: dict[int, list[Instr]] = {}
    for block in program.blocks:
        for instr in block.all_instrs():
            dst = getattr(instr, "dst", None)
            if isinstance(dst, Reg):
                made.setdefault(dst.index, []).append(instr)
    kept = {home.home.index for home in program.state if isinstance(home.home, Reg)}
    found = {}
    for block in program.blocks:
        end = block.end
        if isinstance(end, CondGoto) and isinstance(end.cond, Reg) and _is_of_data(end.cond, made, kept):
            side = _side(program.blocks, end)
            if side is not None:
                found[end.decision] = side
    return found


def _is_of_data(reg: Reg, made: dict[int, list[Instr]], kept: set[int]) -> bool:
    """Whether a register follows from items of tensors of floats and truths, from floats of the caller, and from nothing else."""
    if reg.kind == "int" or reg.index in kept:
        return False
    if reg.index not in made:
        return reg.kind == "float"  # an input
    if len(made[reg.index]) > 1:
        return False
    (instr,) = made[reg.index]
    if isinstance(instr, ReadItem):
        return instr.src.type.dtype in _FLOATS_AND_TRUTHS
    if not isinstance(instr, HostInstr) or not instr.args:
        return False
    return all(_is_of_data(arg, made, kept) if isinstance(arg, Reg) else isinstance(arg, (int, float)) for arg in instr.args)


def _side(blocks: Sequence[CodeBlock], end: CondGoto) -> int | None:
    ends = [_end(blocks, edge) for edge in (end.orelse, end.then)]
    for side in (0, 1):
        if isinstance(ends[side], Leave) and isinstance(ends[1 - side], (CondGoto, SwitchGoto)):
            return side
    return None


def _end(blocks: Sequence[CodeBlock], edge: Goto) -> CondGoto | SwitchGoto | Leave | Fail | None:
    """Return what follows an edge: the first decision, return or raise; None for a loop that nothing leaves."""
    seen: set[int] = set()
    while edge.target not in seen:
        seen.add(edge.target)
        end = blocks[edge.target].end
        if not isinstance(end, Goto):
            return end
        edge = end
    return None
