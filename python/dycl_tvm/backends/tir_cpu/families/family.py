# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a family of convolutions or of products is to those who choose among them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from dycl_tvm.backends.extents import Limit
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.plan import Plan
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Conv2D, Dense, Epilogue, Tensor

W = TypeVar("W", Conv2D, Dense)
_W = TypeVar("_W", Conv2D, Dense, contravariant=True)
_P = TypeVar("_P", bound=Plan)


class Family(Protocol[_W, _P]):
    """The kernels of one algorithm, for workloads with constant weights."""

    @property
    def name(self) -> str:
        """What it is called in reports, in databases and by users who disable it."""

    def plans(self, work: _W, machine: Machine) -> list[_P]:
        """Return the ways it can compute a workload, best estimate first; [] if it does not take its shapes, layouts or types."""

    def packed(self, work: _W, plan: _P, machine: Machine) -> Tensor:
        """Return the array of the packed weights. Elements that are no numbers of NumPy lie in it as words of float32."""

    def pack(self, work: _W, plan: _P, machine: Machine) -> Any:
        """Return the PrimFunc (plain weights, packed weights), for the build to run once; the plain ones are one array or more."""

    def kernel(self, work: _W, plan: _P, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (input, packed weights, epilogue operands, output), ready for code generation."""


class Maker(ABC):
    """Makes a kernel; also one whose loops ask sizes of the call themselves, where tests of trips would come too late."""

    @abstractmethod
    def __call__(self, own: Sequence[Limit | None] = ()) -> Any:
        """Return the PrimFunc. The sizes that ``own`` asks for are inputs before the output, in order, each an int64."""


@dataclass(frozen=True)
class Candidate(Generic[W]):
    """A workload, in types that are allowed, with one way to compute it."""

    work: W
    family: Family[W, Any]
    plan: Plan

    @property
    def name(self) -> str:
        """The name of the family."""
        return self.family.name

    def packed(self, machine: Machine) -> Tensor:
        """See :meth:`Family.packed`."""
        return self.family.packed(self.work, self.plan, machine)

    def pack(self, machine: Machine) -> Any:
        """See :meth:`Family.pack`."""
        return self.family.pack(self.work, self.plan, machine)

    def kernel(self, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """See :meth:`Family.kernel`."""
        return self.family.kernel(self.work, self.plan, machine, epilogue)
