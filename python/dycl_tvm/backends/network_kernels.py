# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Who makes the kernels of a network, of all that no backend has taken as a region: one interface for those who ask."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import tvm

from dycl_tvm.backends.offload import Offload


@dataclass(frozen=True)
class Network:
    """What the maker of its kernels is told of a network and its build.

    Attributes
    ----------
    target : tvm.target.Target
    options : KernelOptions
    constants : mapping
        Of each sub-DNN the parameters that are weights wherever it is called.
    weight_bytes : int
        All weights, plain.
    varied : bool
        Whether calls decide sizes.
    progress : callable, optional
        Called with (phase, done, total).
    """

    target: tvm.target.Target
    options: Any
    constants: Mapping[str, Collection[int]] = field(default_factory=dict)
    weight_bytes: int = 0
    varied: bool = False
    progress: Callable[[str, int, int], None] | None = None


class Blocks(Protocol):
    """The layouts at the borders of sub-DNNs: by name, the block of channels of each parameter and result (1: plain)."""

    @property
    def params(self) -> Mapping[str, Sequence[int]]:
        """Of the parameters."""

    @property
    def results(self) -> Mapping[str, Sequence[int]]:
        """Of the results."""


@dataclass
class Chosen:
    """What was chosen for a network.

    Attributes
    ----------
    offload : Offload
        The operators that were taken.
    families : dict
        Kind of a kernel to the number of places that it computes.
    left : tuple of str
        Convolutions and products that were not taken.
    measured, estimated : int
        Choices by measurements and by estimates.
    halved : int
        Tensors between kernels that are stored as bfloat16, each in one sub-DNN.
    """

    offload: Offload = field(default_factory=Offload)
    families: dict[str, int] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    measured: int = 0
    estimated: int = 0
    halved: int = 0


class NetworkKernels(Protocol):
    """Makes the kernels of one network; its methods are called in the order in which they stand here."""

    def prepare(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return the module that is to be legalised."""

    def choose(self, mod: tvm.IRModule, names: Sequence[str], plan: Callable[[Mapping[str, Any], Any], Blocks]) -> tvm.IRModule:
        """Return a legalised module with kernels in it.

        Parameters
        ----------
        mod : tvm.IRModule
        names : sequence of str
            Its sub-DNNs.
        plan : callable
            ``plan(graphs, kernels)`` returns the layouts at borders: of the sub-DNNs' graphs, and of what tells their nodes' wishes.
        """

    @property
    def makers(self) -> Mapping[str, Any]:
        """By the name of its function, what makes a kernel again for fewer keys."""

    def schedule(self, functions: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of the PrimFuncs that are left, by symbol, that have kernels here."""

    def chosen(self) -> Chosen:
        """Return what was chosen."""


class LeftToTVM:
    """No kernels: TVM's operators with generic schedules."""

    makers: Mapping[str, Any] = {}

    def prepare(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return the module as it is."""
        return mod

    def choose(self, mod: tvm.IRModule, names: Sequence[str], plan: Callable[[Mapping[str, Any], Any], Blocks]) -> tvm.IRModule:
        """Return the module as it is; all tensors are plain."""
        return mod

    def schedule(self, functions: Mapping[str, Any]) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def chosen(self) -> Chosen:
        """Return nothing."""
        return Chosen()
