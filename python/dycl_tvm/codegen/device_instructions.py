# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Instructions of a program whose tensors are on a device: the vocabulary is in ``src/runtime/device_dispatch.h``.

Kernels and copies are put on a stream and not waited for. Only reading an item waits; reads that follow each other wait once.
"""

from __future__ import annotations

from collections.abc import Sequence

from dycl_tvm.codegen.instructions import Instructions
from dycl_tvm.codegen.scalar_ops import read_item, scalar
from dycl_tvm.codegen.text import DTYPES
from dycl_tvm.compile.program import CopyTensor, Instr, ReadItem, WriteItem

#: Items that one wait can bring; kFetchSlots of src/runtime/device.h.
FETCH_SLOTS = 64


class DeviceInstructions(Instructions):
    """Prints instructions of a program whose tensors are on a device."""

    header = "device_dispatch.h"

    def group(self, instrs: Sequence[Instr], at: int) -> int:
        """Return how many instructions from ``at`` on are printed together."""
        if not isinstance(instrs[at], ReadItem):
            return super().group(instrs, at)
        end = at
        while end < len(instrs) and end - at < FETCH_SLOTS and isinstance(instrs[end], ReadItem):
            end += 1
        return end - at

    def print_group(self, group: Sequence[Instr]) -> list[str]:
        """Return the statements of instructions that :meth:`group` put together."""
        reads = [instr for instr in group if isinstance(instr, ReadItem)]
        if not reads:
            return super().print_group(group)
        fetches = [f"FETCH({slot}, {self.tables.tensor(r.src)}, DType::{DTYPES[r.src.type.dtype]});" for slot, r in enumerate(reads)]
        takes = [read_item(r.dst, r.src.type.dtype, slot, "Fetched") for slot, r in enumerate(reads)]
        return [*fetches, "WAIT();", *takes]

    def one(self, instr: Instr) -> str:
        """Return the statement of an instruction that stands alone."""
        tensor = self.tables.tensor
        if isinstance(instr, WriteItem):
            return f"STORE(DType::{DTYPES[instr.dst.type.dtype]}, {tensor(instr.dst)}, {scalar(instr.src)});"
        if isinstance(instr, CopyTensor):
            return f"COPY({tensor(instr.dst)}, {tensor(instr.src)}, {instr.src.type.nbytes});"
        return super().one(instr)
