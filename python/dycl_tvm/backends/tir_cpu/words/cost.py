# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What plans cost: into how many pieces a kernel is cut, and how long cores take that share them."""

from __future__ import annotations

from collections.abc import Sequence

from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D

#: Rows from which a panel of weights takes as long to compute as the next one takes to come from memory.
MANY_ROWS = 16
#: Seconds of a piece, and the part of the work that it adds where threads of other numbers than the machine's cores share it.
PIECE, UNEVEN = 2e-8, 0.02


def one_core(work: Conv2D, machine: Machine) -> float:
    """Return about how long one core takes, in seconds: whether threads are worth it."""
    return 2 * work.macs / (machine.gflops * 1e9)


def overlapped(computing: float, moving: float, rest: float = 0.1) -> float:
    """Return the seconds of computing and moving at once: the shorter of the two hides behind the longer, but for a ``rest`` of it."""
    return max(computing, moving) + rest * min(computing, moving)


def multiply_add_loss(rows: int, wide: int, panel_bytes: int, machine: Machine) -> float:
    """Return what multiply-adds of tiles of ``rows`` and ``wide`` vectors cost, over the peak.

    Each step loads its rows' factors and its panel's vectors. A panel that L1 does not keep comes from L2 for every tile, which more rows
    share.
    """
    return max(1.06, (rows + wide) / (rows * wide)) + (0.35 / rows if 2 * panel_bytes > machine.l1 else 0.0)


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


def shared_product(
    alone: float, tiles: int, panels: int, pieces: tuple[int, int], machine: Machine, once: float = 0.0, along_k: int = 1
) -> float:
    """Return the seconds of a product whose tiles of rows and panels of columns are cut into (row, column) ``pieces``.

    Parameters
    ----------
    alone : float
        Seconds of one core.
    tiles, panels : int
    pieces : tuple of int
    machine : Machine
    once : float
        Seconds of what a piece of rows does beforehand, such as rounding them: each of the columns' pieces does it again.
    along_k : int
        Pieces of the sum.
    """
    row_pieces, column_pieces = pieces
    count = row_pieces * column_pieces
    # the largest piece, over the mean
    largest = -(-tiles // row_pieces) * -(-panels // column_pieces) * count / (tiles * panels)
    if alone <= 3 * machine.launch:
        return alone + once
    return alone * largest / min(machine.cores, max(along_k, count)) + once * column_pieces / machine.cores + machine.launch


def turns(pieces: int, images: int, shares: Sequence[tuple[int, int]], machine: Machine) -> float:
    """Return how long the core with the most pieces is busy, over all of the work on one core.

    ``shares`` are (things, parts) of what each image is cut along: the largest part is one whole thing larger than the others.
    """
    largest = 1.0
    for count, parts in shares:
        largest *= -(-count // parts) / count
    return -(-pieces // machine.cores) * largest / images


def shared_pieces(alone: float, pieces: int, busy: float, serial: bool, machine: Machine) -> float:
    """Return the seconds of work that takes one core ``alone`` seconds, in pieces of which a core has ``busy`` (:func:`turns`)."""
    seconds = alone if serial or pieces == 1 else alone * max(busy, 1 / machine.cores) + machine.launch
    return seconds + PIECE * pieces + UNEVEN * alone / pieces
