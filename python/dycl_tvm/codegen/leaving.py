# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Branches at which a run may leave the network early, whatever the condition says.

One side returns at once, the other goes on to further decisions, and nothing but the choice hangs on the condition: it is computed from
items of tensors of floats or truths alone. Conditions on integers say how far a loop has come, how long a tensor is or which place an
index means, and truths that are joined or kept say which values there are at all; what stands behind a test of those may rely on it.
So may a division or a logarithm behind a test of its number: a side on which the host may raise an error does not leave.
"""

from __future__ import annotations

from collections.abc import Sequence

from dycl_tvm.compile.program import CodeBlock, CondGoto, Fail, Goto, HostInstr, Instr, Leave, Program, ReadItem, Reg, SwitchGoto
from dycl_tvm.hcfg.hostops import raises_like_eager
from dycl_tvm.hcfg.nodes import HostOp, Value
from dycl_tvm.hcfg.types import ScalarType

_FLOATS_AND_TRUTHS = ("float64", "float32", "float16", "bfloat16", "bool")


def leaving_sides(program: Program) -> dict[int, int]:
    """Return, by its decision, the side of each such branch that leaves: 1 that of a true condition, 0 the other.

    A side leaves if a return follows without a further decision, and so without a loop, and nothing on the way may raise.
    """
    if program.device is not None:  # branches may be taken there, where nobody looks at the time
        return {}
    of_data = _of_data(program)
    found = {}
    for block in program.blocks:
        end = block.end
        if isinstance(end, CondGoto) and isinstance(end.cond, Reg) and end.cond.index in of_data:
            side = _side(program.blocks, end)
            if side is not None:
                found[end.decision] = side
    return found


def _of_data(program: Program) -> set[int]:
    """Return the registers that follow from items of tensors of floats and truths, from floats of the caller, and from nothing else."""
    made: dict[int, list[Instr]] = {}
    for block in program.blocks:
        for instr in block.all_instrs():
            dst = getattr(instr, "dst", None)
            if isinstance(dst, Reg):
                made.setdefault(dst.index, []).append(instr)
    found = {home.index for home in program.inputs if isinstance(home, Reg) and home.kind == "float" and home.index not in made}
    found |= {index for index, instrs in made.items() if len(instrs) == 1 and _may_be_of_data(instrs[0])}
    found -= {kept.home.index for kept in program.state if isinstance(kept.home, Reg)}
    # What follows from another register is taken out with that one.
    readers: dict[int, list[int]] = {}
    todo = []
    for index in found & made.keys():
        for arg in getattr(made[index][0], "args", ()):
            if isinstance(arg, Reg):
                readers.setdefault(arg.index, []).append(index)
                todo += [] if arg.index in found else [index]
    while todo:
        index = todo.pop()
        if index in found:
            found.remove(index)
            todo += readers.get(index, ())
    return found


def _may_be_of_data(instr: Instr) -> bool:
    """Whether the result is of data if the registers are that it follows from."""
    if isinstance(instr, ReadItem):
        return instr.src.type.dtype in _FLOATS_AND_TRUTHS
    return isinstance(instr, HostInstr) and instr.dst.kind != "int" and len(instr.args) > 0


def _side(blocks: Sequence[CodeBlock], end: CondGoto) -> int | None:
    ways = [_way(blocks, edge) for edge in (end.orelse, end.then)]
    for side in (0, 1):
        way, other = ways[side], ways[1 - side][-1].end
        raises = any(_may_raise(instr) for block in way for instr in block.instrs)
        if isinstance(way[-1].end, Leave) and isinstance(other, (CondGoto, SwitchGoto)) and not raises:
            return side
    return None


def _way(blocks: Sequence[CodeBlock], edge: Goto) -> list[CodeBlock]:
    """Return the blocks behind an edge up to the first decision, return or raise; a loop that nothing leaves once."""
    way: dict[int, CodeBlock] = {}
    end: Goto | CondGoto | SwitchGoto | Leave | Fail = edge
    while isinstance(end, Goto) and end.target not in way:
        way[end.target] = blocks[end.target]
        end = blocks[end.target].end
    return list(way.values())


def _may_raise(instr: Instr) -> bool:
    """Whether an instruction of the host may raise what the user's program raises; kernels do not."""
    if isinstance(instr, ReadItem):  # nan has no int
        return instr.dst.kind == "int" and "float" in instr.src.type.dtype
    if not isinstance(instr, HostInstr):
        return False
    args = tuple(Value(ScalarType(arg.kind)) if isinstance(arg, Reg) else arg for arg in instr.args)
    return raises_like_eager(HostOp(instr.op, args, Value(ScalarType(instr.dst.kind))))
