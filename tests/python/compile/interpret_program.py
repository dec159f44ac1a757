# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Runs a lowered Program in Python over one real arena."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hcfg_utils import aligned

from dycl_tvm.compile.program import (
    CondGoto,
    CopyTensor,
    Fail,
    Goto,
    HostInstr,
    KernelCall,
    Leave,
    Program,
    ReadItem,
    Reg,
    SetReg,
    Slot,
    SwitchGoto,
    WriteItem,
)
from dycl_tvm.hcfg.hostops import evaluate
from dycl_tvm.hcfg.types import ScalarType


class Session:
    """One execution state of a Program; ``kernels(symbol, arrays)`` runs a kernel."""

    def __init__(self, program: Program, kernels: Callable[[str, Sequence[np.ndarray]], None]) -> None:
        self.program, self.kernels = program, kernels
        self.arena = aligned(program.arena_bytes + 1)
        self.arena[...] = 0xFF  # NaN in every float type
        self.weights = [self._copy(w.data.numpy()) for w in program.weights]
        self.regs: dict[int, Any] = {}
        self.state: dict[int, np.ndarray] = {}
        self.path: list[tuple[int, int]] = []
        for home in program.state:
            if isinstance(home.home, Reg):
                self.regs[home.home.index] = home.initial
            else:
                self.state[home.home.index] = self._copy(self.weights[int(home.initial)])
        self.inputs: list[Any] = []

    @staticmethod
    def _copy(data: np.ndarray) -> np.ndarray:
        place = aligned(max(1, data.nbytes))[: data.nbytes].view(data.dtype).reshape(data.shape)
        place[...] = data
        return place

    def array(self, slot: Slot) -> np.ndarray:
        """Return the memory of a slot."""
        if slot.space == "arena":
            assert slot.offset % 64 == 0 and slot.offset + slot.type.nbytes <= self.program.arena_bytes
            found = self.arena[slot.offset : slot.offset + slot.type.nbytes].view(slot.type.dtype)
        elif slot.space == "weight":
            found = self.weights[slot.index]
        else:
            found = self.inputs[slot.index] if slot.space == "input" else self.state[slot.index]
        return found.reshape(slot.type.shape)

    def value(self, scalar: Any) -> Any:
        """Return the value of a register or number."""
        return self.regs[scalar.index] if isinstance(scalar, Reg) else scalar

    def run(self, *inputs: Any) -> tuple[int, list[Any]]:
        """Return (return site, leaves); tensors are views of the session's memory."""
        self.inputs, self.path = [self._copy(x) if isinstance(x, np.ndarray) else x for x in inputs], []
        for place, x in zip(self.program.inputs, inputs):
            if isinstance(place, Reg):
                self.regs[place.index] = x
        block = self.program.blocks[0]
        while True:
            for instr in block.instrs:
                self.step(instr)
            end = block.end
            if isinstance(end, Fail):
                raise RuntimeError(f"{end.kind}: {end.message}")
            if isinstance(end, Leave):
                for instr in end.moves:
                    self.step(instr)
                return end.site, [self.array(v) if isinstance(v, Slot) else self.value(v) for v in end.values]
            goto: Goto
            if isinstance(end, CondGoto):
                taken = 0 if self.value(end.cond) else 1
                self.path.append((end.decision, taken))
                goto = (end.then, end.orelse)[taken]
            elif isinstance(end, SwitchGoto):
                taken = self.value(end.index)
                self.path.append((end.decision, taken))
                goto = end.targets[taken]
            else:
                goto = end
            for instr in goto.moves:
                self.step(instr)
            block = self.program.blocks[goto.target]

    def step(self, instr: Any) -> None:
        """Run one instruction."""
        if isinstance(instr, KernelCall):
            kernel = self.program.kernels[instr.kernel]
            self.kernels(kernel.symbol, [self.array(s) for s in instr.args])
        elif isinstance(instr, HostInstr):
            self.regs[instr.dst.index] = evaluate(instr.op, [self.value(a) for a in instr.args], ScalarType(instr.dst.kind))
        elif isinstance(instr, SetReg):
            self.regs[instr.dst.index] = self.value(instr.src)
        elif isinstance(instr, ReadItem):
            self.regs[instr.dst.index] = self.array(instr.src).reshape(-1)[0].item()
        elif isinstance(instr, WriteItem):
            self.array(instr.dst).reshape(-1)[0] = self.value(instr.src)
        elif isinstance(instr, CopyTensor):
            assert not np.shares_memory(self.array(instr.dst), self.array(instr.src)) or instr.dst == instr.src
            self.array(instr.dst)[...] = self.array(instr.src)
        else:
            raise AssertionError(instr)
