# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What plans cost: into how many pieces a kernel is cut, and how long cores take that share them."""

from __future__ import annotations

from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D


def one_core(work: Conv2D, machine: Machine) -> float:
    """Return about how long one core takes, in seconds: whether threads are worth it."""
    return 2 * work.macs / (machine.gflops * 1e9)


def pieces_of(tiles: int, panels: int, machine: Machine) -> tuple[int, int]:
    """Return pieces of the rows and of the columns: 2 a core, of the columns first, as then no core reads another one's weights."""
    wanted = 4 * machine.cores
    columns = max((p for p in range(1, min(panels, wanted) + 1) if p % machine.cores == 0 or p == 1), default=1)
    if panels >= 2 * wanted or tiles == 1:
        return 1, columns
    return min(tiles, max(1, wanted // columns)), columns


def pieces_of_rows(rows: int, machine: Machine) -> int:
    """Return in how many pieces independent rows are cut."""
    return min(rows, 4 * machine.cores)
