# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Depthwise convolutions of 8-bit integers whose images are narrower than a quad.

They are the kernels of depthwise.py, whose elements are widened to int32 before they are multiplied.
"""

from __future__ import annotations

from dycl_tvm.backends.tir_cpu.families import depthwise
from dycl_tvm.backends.tir_cpu.words import int8
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D


class _Int8DepthwiseNarrow(depthwise.Depthwise):
    """The family ``int8`` of convolutions of one channel a group, for what int8_depthwise.py does not take."""

    name = "int8"

    def plans(self, work: Conv2D, machine: Machine) -> list[depthwise.DepthwisePlan]:
        """Return tiles of columns, as for float32; sums take the same registers."""
        if work.border or not int8.takes(work.dtypes) or not depthwise.is_depthwise(work, machine):
            return []
        return [] if int8.allowed(machine) and work.x.shape[3] >= int8.QUAD else self.tiled(work, machine)


FAMILY = _Int8DepthwiseNarrow()
