# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Depthwise convolutions of 8-bit integers: the kernels of depthwise.py, whose elements are widened to int32 before they are multiplied."""

from __future__ import annotations

from typing import Any

from dycl_tvm.backends.tir_cpu.families import channelwise, depthwise
from dycl_tvm.backends.tir_cpu.machine import Machine
from dycl_tvm.backends.tir_cpu.workload import NOTHING, Accuracy, Conv2D, Epilogue, Plan, Tensor


class _Int8Depthwise(depthwise.Depthwise):
    """The family ``int8`` of convolutions of one channel a group."""

    name = "int8"
    packed_dtype = "int8"

    def plans(self, work: Conv2D, machine: Machine, accuracy: Accuracy = "default") -> list[Plan]:
        """Return tiles of columns, as for float32; sums take the same registers."""
        if work.x.dtype != "uint8" or not depthwise.is_depthwise(work, machine):
            return []
        return self.tiled(work, machine)

    def kernel(self, work: Conv2D, plan: Plan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x, packed weights, epilogue operands, y)."""
        filters = Tensor((1, work.x.shape[1], *work.kernel), "int8", machine.lanes)
        operator = depthwise.operator(work, "int8", "int32")
        return channelwise.kernel(operator, [work.x, filters, work.y], machine, epilogue, plan["tile"])


FAMILY = _Int8Depthwise()
