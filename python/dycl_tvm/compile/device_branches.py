# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which branches a device can take by itself, without a value going to the host and back.

A branch is such where its condition is an item as a kernel wrote it (or that a bool is false), where its sides meet again at its
immediate post-dominator, and where each side on the way there is one chain of kernels and copies. Branches that follow each other with
nothing but kernels and copies between them are one segment: the host starts it and goes on behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dycl_tvm.compile.program import (
    CodeBlock,
    CondGoto,
    CopyTensor,
    DeviceBranch,
    DeviceStep,
    Goto,
    HostInstr,
    Instr,
    KernelCall,
    Leave,
    Program,
    ReadItem,
    Reg,
    Scalar,
    Segment,
    SetReg,
    SwitchGoto,
    WriteItem,
)
from dycl_tvm.hcfg.dominance import immediate_dominators

#: Types of items that the runtime's device functions read: conditions, and numbers of sides.
_CONDITIONS, _INDICES = frozenset({"bool"}), frozenset({"int32", "int64"})


def find_segments(program: Program) -> tuple[Segment, ...]:
    """Return the stretches of a program whose branches the device can take, in the order of their first blocks; none overlap."""
    joins = _post_dominators(program.blocks)
    single = _registers_used_once(program)
    branches = {}
    for index, join in enumerate(joins):
        found = _branch(program.blocks, index, join, single)
        if found is not None:
            branches[index] = found
    segments, inside = [], set[int]()
    for index in sorted(branches):
        if index in inside:
            continue
        before = _before_item(program.blocks[index])
        start = _device_only_from(before)
        steps = [*_device_steps(before[start:]), branches[index]]
        at = joins[index]
        while at in branches and at not in inside and _device_only_from(_before_item(program.blocks[at])) == 0:
            inside.add(at)
            steps += [*_device_steps(_before_item(program.blocks[at])), branches[at]]
            at = joins[at]
        segments.append(Segment(index, start, tuple(steps), at))
    return tuple(segments)


def _post_dominators(blocks: Sequence[CodeBlock]) -> list[int]:
    """Return the immediate post-dominator of each block; -1 where there is none: behind it the program ends, or never does."""
    end = len(blocks)
    reverse: list[list[int]] = [[] for _ in range(end + 1)]
    for index, block in enumerate(blocks):
        edges = block.gotos()
        for edge in edges:
            reverse[edge.target].append(index)
        if not edges:
            reverse[end].append(index)
    return [-1 if above == end else above for above in immediate_dominators(reverse, end)[:end]]


def _branch(blocks: Sequence[CodeBlock], index: int, join: int, single: set[Reg]) -> DeviceBranch | None:
    block = blocks[index]
    end = block.end
    instrs = [i for i in block.instrs[len(_before_item(block)) :] if isinstance(i, (ReadItem, HostInstr))]
    if not isinstance(end, (CondGoto, SwitchGoto)) or not instrs or join < 0:
        return None
    item = instrs[0]
    assert isinstance(item, ReadItem)
    decides, types = (end.cond, _CONDITIONS) if isinstance(end, CondGoto) else (end.index, _INDICES)
    negated = len(instrs) > 1
    if item.src.type.dtype not in types or any(instr.dst not in single for instr in instrs) or instrs[-1].dst != decides:
        return None
    edges = (end.orelse, end.then) if isinstance(end, CondGoto) else end.targets
    sides = [_side(blocks, edge, join) for edge in edges]
    found = tuple(side for side in sides if side is not None)
    # A graph's conditional node has a body for each number; nothing says that one may be empty.
    enough = any(found) if isinstance(end, CondGoto) else all(found)
    return DeviceBranch(end.decision, item.src, found, negated) if len(found) == len(sides) and enough else None


def _before_item(block: CodeBlock) -> list[Instr]:
    """Return what stands before the item that a block ends with, read and perhaps negated; all, if it does not end so."""
    count = len(block.instrs)
    for at in range(max(count - 2, 0), count):
        rest = block.instrs[at:]
        negation = rest[1] if len(rest) == 2 else None
        if isinstance(rest[0], ReadItem) and (
            len(rest) == 1 or (isinstance(negation, HostInstr) and negation.op == "not" and negation.args == (rest[0].dst,))
        ):
            return block.instrs[:at]
    return block.instrs


def _side(blocks: Sequence[CodeBlock], edge: Goto, join: int) -> tuple[DeviceStep, ...] | None:
    """Return what is done from an edge to the join; None where that is no chain of kernels and copies."""
    instrs = list(edge.moves)
    for _ in blocks:
        if edge.target == join:
            steps = _device_steps(instrs)
            return tuple(steps) if _device_only_from(instrs) == 0 else None
        block = blocks[edge.target]
        if not isinstance(block.end, Goto):
            return None
        edge = block.end
        instrs += [*block.instrs, *edge.moves]
    return None


def _device_only_from(instrs: Sequence[Instr]) -> int:
    """Return the number of the first instruction after which there are only kernels and copies."""
    host = [k for k, instr in enumerate(instrs) if not isinstance(instr, (KernelCall, CopyTensor))]
    return host[-1] + 1 if host else 0


def _device_steps(instrs: Sequence[Instr]) -> list[DeviceStep]:
    """Return the kernels, and the copies that copy anything."""
    steps = [instr for instr in instrs if isinstance(instr, (KernelCall, CopyTensor))]
    return [s for s in steps if isinstance(s, KernelCall) or (s.dst != s.src and s.src.type.nbytes != 0)]


def _registers_used_once(program: Program) -> set[Reg]:
    """Return the registers that are written once and read once."""
    reads, writes = Counter[Scalar](), Counter[Reg]()
    homes = [*program.inputs, *(state.home for state in program.state)]
    writes.update(home for home in homes if isinstance(home, Reg))
    for block in program.blocks:
        end = block.end
        reads.update([end.cond] if isinstance(end, CondGoto) else [end.index] if isinstance(end, SwitchGoto) else [])
        if isinstance(end, Leave):
            reads.update(v for v in end.values if isinstance(v, Reg))
        for instr in block.all_instrs():
            if isinstance(instr, (HostInstr, SetReg, ReadItem)):
                writes[instr.dst] += 1
            if isinstance(instr, HostInstr):
                reads.update(a for a in instr.args if isinstance(a, Reg))
            if isinstance(instr, (SetReg, WriteItem)) and isinstance(instr.src, Reg):
                reads[instr.src] += 1
    return {reg for reg, count in writes.items() if count == 1 and reads[reg] == 1}
