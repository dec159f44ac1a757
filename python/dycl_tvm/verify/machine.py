# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A lowered Program run by Python: its memory, its registers, and every instruction but kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dycl_tvm.compile.program import (
    CondGoto,
    CopyTensor,
    Fail,
    Goto,
    HostInstr,
    KernelCall,
    Leave,
    Pop,
    Program,
    Push,
    ReadItem,
    Reg,
    SetReg,
    Slot,
    SwitchGoto,
    WriteItem,
)
from dycl_tvm.errors import VerificationError
from dycl_tvm.hcfg.clocks import SOME
from dycl_tvm.hcfg.hostops import error_of, evaluate
from dycl_tvm.hcfg.types import ScalarType, TensorType
from dycl_tvm.runtime.structure import first, parts_of
from dycl_tvm.verify.memory import Memory, plain
from dycl_tvm.verify.noise import noise

#: After so many blocks without a kernel a call is given up.
_MOST_BLOCKS = 20_000


class Checked(Exception):
    """What a check of elements raises; its text is the kind."""


class Endless(Exception):
    """A call that goes on for very long without a kernel."""


class Machine:
    """The state of one session.

    Attributes
    ----------
    path : list of (int, int)
        The decisions of the last call, with the way out that was taken.
    ended : Leave or str
        How it ended: where it returned, or the kind of error that it raised.
    results : list
        What it returned.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.memory = Memory(program)
        self.regs: list[Any] = [0] * len(program.regs)
        self.path: list[tuple[int, int]] = []
        self.ended: Leave | str = ""
        self.results: list[Any] = []
        #: What recursive functions keep.
        self.stack: list[Any] = []

    def begin(self) -> None:
        """Give the state variables the values with which a session begins."""
        for home in self.program.state:
            if isinstance(home.home, Slot):
                data = self.program.weights[int(home.initial)].data
                type_ = home.home.type
                self.memory.state[home.home.index] = data.clone().view(getattr(torch, type_.dtype)).reshape(type_.shape)
            else:
                self.regs[home.home.index] = home.initial

    def call(self, inputs: Sequence[Any]) -> Iterator[KernelCall]:
        """Make a call: yield each kernel, which the caller runs; raise :class:`Endless` where none comes for long."""
        self.path, self.results, self.stack = [], [], []
        for home, value in zip(self.program.inputs, inputs, strict=True):
            if isinstance(home, Slot):
                self.memory.inputs[home.index] = value.clone()
            else:
                self.regs[home.index] = value
        return self._blocks()

    def _blocks(self) -> Iterator[KernelCall]:
        at = passed = 0
        try:
            while True:
                block = self.program.blocks[at]
                passed += 1
                if passed > _MOST_BLOCKS:
                    raise Endless
                for instr in block.instrs:
                    if isinstance(instr, KernelCall):
                        yield instr
                        passed = 0
                    else:
                        self.execute(instr)
                end = block.end
                if isinstance(end, Fail):
                    self.ended = end.kind
                    return
                goto = end if isinstance(end, Leave) else self._decide(end)
                for move in goto.moves:
                    self.execute(move)
                if isinstance(goto, Leave):
                    self.ended = goto
                    self.results = [self._result(v) if isinstance(v, Slot) else self.scalar(v) for v in goto.values]
                    for leaf, cuts in parts_of(self.program.sites[goto.site].structure).items():
                        self.results[leaf] = first(self.results[leaf], [(along, self.results[length]) for along, length in cuts])
                    return
                at = goto.target
        except Checked as error:
            self.ended = str(error)
        except (ArithmeticError, ValueError, IndexError) as error:
            self.ended = type(error).__name__

    def _decide(self, end: Goto | CondGoto | SwitchGoto) -> Goto:
        if isinstance(end, Goto):
            return end
        if isinstance(end, CondGoto):
            taken = bool(self.scalar(end.cond))
            self.path.append((end.decision, int(taken)))
            return end.then if taken else end.orelse
        index = self.scalar(end.index)
        if not 0 <= index < len(end.targets):
            raise IndexError(index)
        self.path.append((end.decision, index))
        return end.targets[index]

    def execute(self, instr: Any) -> None:
        """Run an instruction."""
        if isinstance(instr, CopyTensor):
            plain(self.read(instr.dst)).copy_(plain(self.read(instr.src)).reshape(instr.dst.type.shape))
        elif isinstance(instr, SetReg):
            self.regs[instr.dst.index] = self.scalar(instr.src)
        elif isinstance(instr, ReadItem):
            self.regs[instr.dst.index] = {"int": int, "float": float, "bool": bool}[instr.dst.kind](self.read(instr.src).item())
        elif isinstance(instr, WriteItem):
            self.read(instr.dst).fill_(self.scalar(instr.src))
        elif isinstance(instr, Push):
            self.stack.append(plain(self.read(instr.src)).clone() if isinstance(instr.src, Slot) else self.scalar(instr.src))
        elif isinstance(instr, Pop) and isinstance(instr.dst, Slot):
            plain(self.read(instr.dst)).copy_(self.stack.pop().reshape(instr.dst.type.shape))
        elif isinstance(instr, Pop):
            self.regs[instr.dst.index] = self.stack.pop()
        elif isinstance(instr, HostInstr):
            args = [self.scalar(a) for a in instr.args]
            if instr.op == "check" and args[0]:
                raise Checked(error_of(instr.text or "")[0])
            self.regs[instr.dst.index] = (
                SOME[instr.dst.kind]
                if instr.op == "clock"
                else 0
                if instr.op in ("print", "check")
                else evaluate(instr.op, args, ScalarType(instr.dst.kind))
            )
        else:
            raise VerificationError(f"a kernel stands where none should be: {instr}")

    def _result(self, slot: Slot) -> torch.Tensor:
        tensor = self.read(slot)
        return plain(tensor).clone().view(tensor.dtype)

    def scalar(self, scalar: Any) -> Any:
        """Return a number: what a register holds, or the number itself."""
        return self.regs[scalar.index] if isinstance(scalar, Reg) else scalar

    def read(self, slot: Slot) -> torch.Tensor:
        """Return the tensor at a place."""
        return self.memory.tensor(slot)


def random_tensor(type_: TensorType, generator: torch.Generator) -> torch.Tensor:
    """Return normally distributed numbers, or zeros and ones where the type is not a floating-point one."""
    if type_.is_complex:
        return torch.view_as_complex(random_tensor(type_.parts, generator))
    dtype = getattr(torch, type_.dtype)
    if dtype.is_floating_point:
        return noise(type_.shape, lambda count: torch.randn(count, generator=generator).to(dtype))
    return noise(type_.shape, lambda count: torch.randint(0, 2, (count,), generator=generator).to(dtype))
