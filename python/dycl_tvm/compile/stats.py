# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a lowering did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from dycl_tvm.backends.partition import Offload


@dataclass
class CompileStats:
    """Numbers of one lowering.

    Attributes
    ----------
    sub_dnns, kernels, calls : int
        Distinct sub-DNNs, distinct compiled kernels, kernel calls in the program.
    unscheduled : tuple of str
        Kernels without a schedule: plain loops, slow.
    folded_calls : int
        Calls that depend on weights only and were run at build time.
    arena_bytes, arena_lower_bound : int
        Planned size, and the largest live set, below which no plan can be.
    weight_bytes : int
    copies : int
        Tensor copies on edges that the planner could not avoid.
    coalesced : int
        Those that it could.
    in_place : int
        Kernel calls whose result takes the memory of an operand.
    measured, estimated : int
        Different convolutions and products whose kernel was chosen by a measurement, and by the cost model.
    halved : int
        float32 tensors between kernels that are stored as bfloat16, each distinct sub-DNN counted once.
    seconds : dict
        By phase.
    offload : dict
        By backend: nodes, MACs, regions taken and rejected.
    families : dict
        Kernel family of the backend ``tir_cpu`` to the number of places that it computes, each distinct sub-DNN counted once. For a
        GPU: the rule of a schedule to the number of kernels that have it.
    generic : tuple of str
        Convolutions and products that no family takes: they have the generic schedule, which is slower.
    generic_kernels : tuple of str
        All kernels of the generic schedule: these, and what is left of other operators.
    """

    sub_dnns: int = 0
    kernels: int = 0
    unscheduled: tuple[str, ...] = ()
    calls: int = 0
    folded_calls: int = 0
    arena_bytes: int = 0
    arena_lower_bound: int = 0
    weight_bytes: int = 0
    copies: int = 0
    coalesced: int = 0
    in_place: int = 0
    measured: int = 0
    estimated: int = 0
    halved: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    offload: dict[str, Offload] = field(default_factory=dict)
    families: dict[str, int] = field(default_factory=dict)
    generic: tuple[str, ...] = ()
    generic_kernels: tuple[str, ...] = ()

    def offload_ratio(self) -> tuple[float, float]:
        """Return the share of (nodes, MACs) that went to backends other than TVM itself."""
        nodes = sum(o.nodes for o in self.offload.values())
        macs = sum(o.macs for o in self.offload.values())
        rest = self.offload.get("tvm", Offload())
        return (1 - rest.nodes / nodes if nodes else 0.0, 1 - rest.macs / macs if macs else 0.0)
