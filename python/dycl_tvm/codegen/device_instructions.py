# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Instructions of a program whose tensors are on a device: the vocabulary is in ``src/runtime/device_dispatch.h``.

Kernels and copies are put on a stream and not waited for. Only an item that the host needs is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dycl_tvm.codegen.instructions import Instructions
from dycl_tvm.codegen.scalar_ops import read_item, scalar
from dycl_tvm.codegen.text import DTYPES
from dycl_tvm.compile.program import CopyTensor, HostInstr, Instr, ReadItem, Reg, Scalar, SetReg, WriteItem

#: Items that one wait can bring; kFetchSlots of src/runtime/device.h.
FETCH_SLOTS = 64


class DeviceInstructions(Instructions):
    """Prints instructions of a program whose tensors are on a device."""

    header = "device_dispatch.h"

    def text(self, instrs: Sequence[Instr]) -> list[str]:
        """Return the statements of instructions that run one after the other.

        An item is fetched where it is read, and waited for where its register is needed, or at the end: the kernels between are
        not held up, and the items of a branch come with one wait.
        """
        lines: list[str] = []
        fetched: list[ReadItem] = []

        def take() -> None:
            if fetched:
                lines.append("WAIT();")
                lines.extend(read_item(r.dst, r.src.type.dtype, slot, "Fetched") for slot, r in enumerate(fetched))
                fetched.clear()

        at = 0
        while at < len(instrs):
            count = self.group(instrs, at)
            group = instrs[at : at + count]
            first = group[0]
            if any(r.dst in _registers(first) for r in fetched) or (isinstance(first, ReadItem) and len(fetched) == FETCH_SLOTS):
                take()
            if isinstance(first, ReadItem):
                lines.append(f"FETCH({len(fetched)}, {self.tables.tensor(first.src)}, DType::{DTYPES[first.src.type.dtype]});")
                fetched.append(first)
            else:
                lines += self.print_group(group)
            at += count
        take()
        return lines

    def one(self, instr: Instr) -> str:
        """Return the statement of an instruction that stands alone."""
        tensor = self.tables.tensor
        if isinstance(instr, WriteItem):
            return f"STORE(DType::{DTYPES[instr.dst.type.dtype]}, {tensor(instr.dst)}, {scalar(instr.src)});"
        if isinstance(instr, CopyTensor):
            return f"COPY({tensor(instr.dst)}, {tensor(instr.src)}, {instr.src.type.nbytes});"
        return super().one(instr)


def _registers(instr: Instr) -> set[Any]:
    """Return the registers that an instruction reads or writes."""
    found: list[Scalar] = []
    if isinstance(instr, (HostInstr, SetReg, ReadItem)):
        found.append(instr.dst)
    if isinstance(instr, HostInstr):
        found += instr.args
    if isinstance(instr, (SetReg, WriteItem)):
        found.append(instr.src)
    return {value for value in found if isinstance(value, Reg)}
