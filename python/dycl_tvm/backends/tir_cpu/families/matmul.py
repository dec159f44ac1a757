# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of two run-time tensors, batched: (batch, m, k) x (batch, k, n), the right side also given transposed (batch, n, k).

Where several tiles of rows read a panel of the right side, or it is transposed, it is first copied into a panel of contiguous rows that
stays in L2. A transposed right side under few rows is read along k instead, as dot products.
Error: that of a float32 product, |error| <= k 2^-24 sum |a b|.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words.epilogue import epilogue_buffers, finish
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.sums import dots, multiply_add
from dycl_tvm.backends.tir_cpu.words.tiles import block_of, even_tiles
from dycl_tvm.backends.tir_cpu.words.vectors import clear, vectors, zeros
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Dense, Epilogue, Tensor

#: Rows up to which a transposed right side is read in place.
_DOT_ROWS = 4


def tile_of(m: int, n: int, machine: Machine) -> tuple[int, int]:
    """Return (rows, columns) of the register tile."""
    wide = min(-(-n // machine.lanes), 4 if machine.registers >= 32 else 3)
    rows = max(1, (machine.registers - wide - 1) // wide)
    return min(m, rows, 12), wide * machine.lanes


def copy_transposed(source: Callable[[Any, Any], Any], target: Callable[[Any, Any, Any], None], columns: int, k: int, lanes: int) -> None:
    """Emit target(i, j) = source(j, i) for i < k and j < columns: a vector is gathered from ``lanes`` rows."""
    with T.serial(0, k) as i:
        vectors(columns, lanes, lambda j: target(i, j, source(j, i)))


def matmul(work: Dense, machine: Machine, epilogue: Epilogue = NOTHING, transposed: bool = False) -> Any:
    """Return the PrimFunc (a (batch, m, k), b, epilogue operands, y (batch, m, n)).

    b is (batch, k, n), or (batch, n, k) if ``transposed``, without the batch if ``work.shared``.
    """
    sides = (work.n, work.k) if transposed else (work.k, work.n)
    out = Tensor((work.batch, work.m, work.n))
    buffers = [
        ("a", (work.batch, work.m, work.k), "float32"),
        ("b", sides if work.shared else (work.batch, *sides), "float32"),
        *epilogue_buffers(epilogue),
        ("y", out.shape, "float32"),
    ]
    rows, width = tile_of(work.m, work.n, machine)
    lanes = machine.lanes
    seconds = 2.2 * work.macs / (machine.gflops * 1e9)

    def body(a: Any, b: Any, *rest: Any) -> None:
        operands, y = rest[:-1], rest[-1]

        def right(batch: Any, k: Any, j: Any) -> Any:
            at = (j, k) if transposed else (k, j)
            return b[at if work.shared else (batch, *at)]

        def put(batch: Any, row: Any, first: Any, valid: int, sums: Sequence[Any]) -> None:
            for r, total in enumerate(sums):

                def element(j: Any, r: int = r, total: Any = total) -> None:
                    index = [batch, row + r, first + j]
                    store(y, index, finish(epilogue, operands, out, total[j], index))

                vectors(valid, lanes, element)

        def panel_of(batch: Any, first: Any, valid: int) -> None:
            tiles = -(-work.m // rows)
            packed = T.alloc_buffer((work.k, width), "float32") if transposed or tiles > 2 else None
            if transposed:
                copy_transposed(
                    lambda j, k: right(batch, k, first + j), lambda k, j, value: store(packed, [k, j], value), valid, work.k, lanes
                )
            elif packed is not None:
                with T.serial(0, work.k) as k:
                    vectors(valid, lanes, lambda j: store(packed, [k, j], right(batch, k, first + j)))

            def tile(count: int, row: Any) -> None:
                sums = zeros(count, width)
                clear(sums, width, lanes)
                load = (lambda k, j: right(batch, k, first + j)) if packed is None else (lambda k, j: packed[k, j])
                multiply_add(sums, valid, lanes, work.k, lambda r, k: a[batch, row + r, k], load)
                put(batch, row, first, valid, sums)

            with T.serial(0, tiles) as index:
                even_tiles(work.m, rows, index, tile)

        def in_registers(batch: Any, first: Any, valid: int) -> None:
            """Emit all rows x some columns as sums along k."""
            sums = dots(work.m, valid, work.k, lanes, lambda r, k: a[batch, r, k], lambda j, k: right(batch, k, first + j))
            put(batch, 0, first, valid, sums)

        in_place = transposed and work.m <= _DOT_ROWS
        step = max(1, (machine.registers // 2) // work.m) if in_place else width
        emit = in_registers if in_place else panel_of
        columns = -(-work.n // step)
        tasks = work.batch * columns
        cut = min(tasks, 8 * machine.cores)
        with parallel(cut, machine, seconds) as part, T.serial(part * tasks // cut, (part + 1) * tasks // cut) as task:
            batch, column = (task // columns, task % columns) if columns > 1 else (task, 0)
            block_of(column, work.n, step, lambda at, count: emit(batch, at * step, count))

    return prim_func(buffers, body)
