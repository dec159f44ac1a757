# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A lowered Program run by Python: its memory, its registers, and every instruction but kernels."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.compile.program import CopyTensor, HostInstr, Program, ReadItem, Reg, SetReg, Slot, WriteItem
from dycl_tvm.errors import VerificationError
from dycl_tvm.hcfg.hostops import evaluate
from dycl_tvm.hcfg.types import ScalarType, TensorType
from dycl_tvm.verify.memory import Memory
from dycl_tvm.verify.noise import noise


class Machine:
    """The state of one session."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.memory = Memory(program)
        self.regs: list[Any] = [0] * len(program.regs)

    def begin(self) -> None:
        """Give the state variables the values with which a session begins."""
        for home in self.program.state:
            if isinstance(home.home, Slot):
                data = self.program.weights[int(home.initial)].data
                self.memory.state[home.home.index] = data.clone().reshape(home.home.type.shape)
            else:
                self.regs[home.home.index] = home.initial

    def execute(self, instr: Any) -> None:
        """Run an instruction."""
        if isinstance(instr, CopyTensor):
            self.read(instr.dst).copy_(self.read(instr.src).reshape(instr.dst.type.shape))
        elif isinstance(instr, SetReg):
            self.regs[instr.dst.index] = self.scalar(instr.src)
        elif isinstance(instr, ReadItem):
            self.regs[instr.dst.index] = {"int": int, "float": float, "bool": bool}[instr.dst.kind](self.read(instr.src).item())
        elif isinstance(instr, WriteItem):
            self.read(instr.dst).fill_(self.scalar(instr.src))
        elif isinstance(instr, HostInstr):
            args = [self.scalar(a) for a in instr.args]
            self.regs[instr.dst.index] = 0 if instr.op == "print" else evaluate(instr.op, args, ScalarType(instr.dst.kind))
        else:
            raise VerificationError(f"a kernel stands where none should be: {instr}")

    def scalar(self, scalar: Any) -> Any:
        """Return a number: what a register holds, or the number itself."""
        return self.regs[scalar.index] if isinstance(scalar, Reg) else scalar

    def read(self, slot: Slot) -> torch.Tensor:
        """Return the tensor at a place."""
        return self.memory.tensor(slot)


def random_tensor(type_: TensorType, generator: torch.Generator) -> torch.Tensor:
    """Return normally distributed numbers, or zeros and ones where the type is not a floating-point one."""
    dtype = getattr(torch, type_.dtype)
    if dtype.is_floating_point:
        return noise(type_.shape, lambda count: torch.randn(count, generator=generator).to(dtype))
    return noise(type_.shape, lambda count: torch.randint(0, 2, (count,), generator=generator).to(dtype))
