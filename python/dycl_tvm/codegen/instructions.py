# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Instructions of straight-line code as C++ statements: the vocabulary is in ``src/runtime/dispatch.h``."""

from __future__ import annotations

from collections.abc import Sequence

from dycl_tvm.codegen.scalar_ops import C_TYPES, assign, host_instr, kind_of, read_item, register, scalar, write_item
from dycl_tvm.codegen.tables import Tables
from dycl_tvm.codegen.text import comment
from dycl_tvm.compile.program import CopyTensor, HostInstr, Instr, KernelCall, Pop, Push, ReadItem, SetReg, Slot, WriteItem


class Instructions:
    """Prints instructions of a program whose tensors are in CPU memory."""

    #: What defines the vocabulary.
    header = "dispatch.h"

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def text(self, instrs: Sequence[Instr]) -> list[str]:
        """Return the statements of instructions that run one after the other."""
        lines: list[str] = []
        at = 0
        while at < len(instrs):
            count = self.group(instrs, at)
            lines += self.print_group(instrs[at : at + count])
            at += count
        return lines

    def group(self, instrs: Sequence[Instr], at: int) -> int:
        """Return how many instructions from ``at`` on are printed together: calls that follow each other are one loop over a table."""
        end = at + 1
        while end < len(instrs) and _follows(instrs[end - 1], instrs[end]):
            end += 1
        return end - at

    def print_group(self, group: Sequence[Instr]) -> list[str]:
        """Return the statements of instructions that :meth:`group` put together."""
        first = group[0]
        if isinstance(first, KernelCall):
            names = dict.fromkeys(call.sub_dnn for call in group if isinstance(call, KernelCall))
            return [f"CALLS({first.number}, {len(group)});  // {comment(', '.join(names))}"]
        return [self.one(first)]

    def one(self, instr: Instr) -> str:
        """Return the statement of an instruction that stands alone."""
        tensor = self.tables.tensor
        if isinstance(instr, HostInstr):
            return host_instr(instr, self.tables.origin(instr.origin))
        if isinstance(instr, SetReg):
            return assign(instr.dst, instr.src)
        if isinstance(instr, ReadItem):
            return read_item(instr.dst, instr.src.type.dtype, tensor(instr.src))
        if isinstance(instr, WriteItem):
            return write_item(instr.dst.type.dtype, tensor(instr.dst), instr.src)
        if isinstance(instr, Push):
            src = instr.src
            pushed = (
                f"PushTensor(f, {tensor(src)}, {src.type.nbytes})"
                if isinstance(src, Slot)
                else f"Push<{C_TYPES[kind_of(src)]}>(f, {scalar(src)})"
            )
            return f"STACK({pushed});"
        if isinstance(instr, Pop):
            dst = instr.dst
            return f"PopTensor(f, {tensor(dst)}, {dst.type.nbytes});" if isinstance(dst, Slot) else f"Pop(f, &{register(dst)});"
        assert isinstance(instr, CopyTensor)
        return f"CopyTensor(f, {tensor(instr.dst)}, {tensor(instr.src)}, {instr.src.type.nbytes});"


def _follows(before: Instr, after: Instr) -> bool:
    return isinstance(before, KernelCall) and isinstance(after, KernelCall) and after.number == before.number + 1
