# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Instructions whose tensors have a place, but no bytes yet: what the planner of the arena reads, and what becomes an instruction then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from dycl_tvm.compile import arena
from dycl_tvm.compile.program import Instr, KernelCall, Pop, Push, ReadItem, Reg, Scalar, Slot, WriteItem
from dycl_tvm.hcfg.nodes import Origin
from dycl_tvm.hcfg.types import TensorType


@dataclass(frozen=True, eq=False)
class Place:
    """Where a tensor is: a storage of the arena, a fixed slot, or a constant that becomes a weight if it is read.

    Attributes
    ----------
    storage : int or None
        Number of the storage.
    fixed : Slot or None
    constant : tuple or None
        The data, and a name for them.
    """

    storage: int | None = None
    fixed: Slot | None = None
    constant: tuple[Any, str] | None = None


@dataclass(frozen=True)
class Operand:
    """A tensor of an instruction: its place, and its type there."""

    place: Place
    type: TensorType


class Planned(Protocol):
    """What is known once the arena is planned."""

    def slot(self, operand: Operand) -> Slot:
        """Return where an operand lies."""

    def next_call(self) -> int:
        """Return the number of a kernel call: the program's calls are counted in the order of its instructions."""


class Draft(Protocol):
    """An instruction that is to be."""

    def point(self) -> arena.Point | None:
        """Return what the planner has to know of it; None for nothing."""

    def instruction(self, planned: Planned) -> Instr:
        """Return the instruction."""


@dataclass(frozen=True)
class OnHost:
    """One that touches no tensor."""

    made: Instr

    def point(self) -> None:
        """Return None: it has nothing in the arena."""

    def instruction(self, planned: Planned) -> Instr:
        """Return the instruction."""
        return self.made


@dataclass(frozen=True)
class Read:
    """The only element of a tensor becomes a number."""

    to: Reg
    source: Operand

    def point(self) -> arena.Point:
        """Return what the planner has to know of it."""
        return arena.Point(storages([self.source.place]), ())

    def instruction(self, planned: Planned) -> Instr:
        """Return the instruction."""
        return ReadItem(self.to, planned.slot(self.source))


@dataclass(frozen=True)
class Write:
    """A number becomes the only element of a tensor."""

    to: Operand
    number: Scalar

    def point(self) -> arena.Point:
        """Return what the planner has to know of it."""
        return arena.Point((), storages([self.to.place]))

    def instruction(self, planned: Planned) -> Instr:
        """Return the instruction."""
        return WriteItem(planned.slot(self.to), self.number)


@dataclass(frozen=True)
class Save:
    """A tensor goes to the stack of a recursive function."""

    source: Operand

    def point(self) -> arena.Point:
        """Return what the planner has to know of it."""
        return arena.Point(storages([self.source.place]), ())

    def instruction(self, planned: Planned) -> Instr:
        """Return the instruction."""
        return Push(planned.slot(self.source))


@dataclass(frozen=True)
class Restore:
    """A tensor comes back from there."""

    to: Operand

    def point(self) -> arena.Point:
        """Return what the planner has to know of it."""
        return arena.Point((), storages([self.to.place]))

    def instruction(self, planned: Planned) -> Instr:
        """Return the instruction."""
        return Pop(planned.slot(self.to))


@dataclass(frozen=True)
class Run:
    """A kernel is called.

    Attributes
    ----------
    kernel : int
        Which of the program's kernels.
    inputs, outputs : tuple of Operand
    sub_dnn : str
        Whose call it is.
    lines : tuple of Origin
        The user's lines that this call of the sub-DNN computes.
    in_place : tuple of int
        The inputs that the output may lie over.
    """

    kernel: int
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    sub_dnn: str
    lines: tuple[Origin, ...]
    in_place: tuple[int, ...]

    def point(self) -> arena.Point:
        """Return what the planner has to know of it."""
        pairs = [(self.outputs[0].place.storage, self.inputs[k].place.storage) for k in self.in_place]
        over = tuple((w, r) for w, r in pairs if w is not None and r is not None)
        return arena.Point(storages(o.place for o in self.inputs), storages(o.place for o in self.outputs), over)

    def instruction(self, planned: Planned) -> Instr:
        """Return the instruction."""
        args = tuple(planned.slot(o) for o in (*self.inputs, *self.outputs))
        return KernelCall(planned.next_call(), self.kernel, args, self.sub_dnn, len(self.inputs), self.lines)


def storages(places: Iterable[Place]) -> tuple[int, ...]:
    """Return the storages of the arena among places."""
    return tuple([p.storage for p in places if p.storage is not None])
