# Licensed under the Apache License, Version 2.0; see LICENSE.
"""One step of an LSTM or GRU cell in one kernel: both products, the gates and the new state, while the sums are in registers.

The packed array has one row a block of hidden units: for each input the columns of all gates of these units, for each hidden unit the
same, then the biases. So a tile computes all gates of its units, and the weights are read once, in order. PyTorch's gate order:
LSTM i, f, g, o; GRU r, z, n, with n = tanh(Wx + b + r (Uh + b')).
Error: that of the products (see dense), then 3e-7 of the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.families.dense import add_splits, clear, even_tiles, multiply_add, vectors, zeros
from dycl_tvm.backends.tir_cpu.families.vector_math import sigmoid, tanh
from dycl_tvm.backends.tir_cpu.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.machine import Machine

#: Sums that a unit keeps: LSTM i, f, g, o; GRU r, z, and n's two products apart.
_SUMS = 4


@dataclass(frozen=True)
class Cell:
    """A recurrent cell: x (batch, inputs), h (batch, hidden), for an LSTM c (batch, hidden)."""

    kind: Literal["lstm", "gru"]
    batch: int
    inputs: int
    hidden: int
    bias: bool = True

    @property
    def gates(self) -> int:
        """Blocks of rows in the plain weights."""
        return 4 if self.kind == "lstm" else 3


def packed_shape(cell: Cell, machine: Machine) -> tuple[int, int]:
    """Return (blocks of hidden units, floats of one)."""
    lanes = machine.lanes
    return (-(-cell.hidden // lanes), ((cell.inputs + cell.hidden) * cell.gates + _SUMS) * lanes)


def pack(cell: Cell, machine: Machine) -> Any:
    """Return the PrimFunc (w_ih (gates * hidden, inputs), w_hh (gates * hidden, hidden), b_ih, b_hh (gates * hidden), packed).

    Without bias the PrimFunc lacks the two.
    """
    lanes, gates, hidden = machine.lanes, cell.gates, cell.hidden
    rows = cell.inputs + hidden

    def body(w: Any, u: Any, *rest: Any) -> None:
        packed = rest[-1]

        def entry(matrix: Any, block: Any, gate: Any, lane: Any, *column: Any) -> Any:
            unit = block * lanes + lane
            index = (gate * hidden + tirx.min(unit, hidden - 1), *column)
            value = matrix[index]
            return tirx.if_then_else(unit < hidden, value, tirx.const(0, "float32"))

        with T.serial(0, packed.shape[0]) as block:
            for matrix, size, start in ((w, cell.inputs, 0), (u, hidden, cell.inputs)):
                with T.serial(0, size) as k, T.serial(0, gates) as gate, T.serial(0, lanes) as lane:
                    store(packed, [block, ((start + k) * gates + gate) * lanes + lane], entry(matrix, block, gate, lane, k))
            for total in range(_SUMS):
                with T.serial(0, lanes) as lane:
                    value = tirx.const(0, "float32")
                    if cell.bias:
                        both = [entry(b, block, min(total, gates - 1), lane) for b in rest[:2]]
                        # the two biases of n belong to different products
                        value = both[0] + both[1] if cell.kind == "lstm" or total < 2 else both[total - 2]
                    store(packed, [block, (rows * gates + total) * lanes + lane], value)

    biases = [(name, (gates * hidden,), "float32") for name in ("b_ih", "b_hh") if cell.bias]
    return prim_func(
        [
            ("w_ih", (gates * hidden, cell.inputs), "float32"),
            ("w_hh", (gates * hidden, hidden), "float32"),
            *biases,
            ("packed", packed_shape(cell, machine), "float32"),
        ],
        body,
    )


def seconds(cell: Cell, machine: Machine) -> float:
    """Estimate the time of one core."""
    weights = 4.0 * packed_shape(cell, machine)[0] * packed_shape(cell, machine)[1]
    stream = weights / (machine.bandwidth * 1e9 * (1.5 if weights > machine.l3 / 2 else 2.5 if weights > machine.l2 / 2 else 5.0))
    return max(stream, cell.batch * weights / 2 / (machine.gflops * 1e9)) + cell.batch * cell.hidden * 3e-9


def kernel(cell: Cell, machine: Machine) -> Any:
    """Return the PrimFunc (x, h, c, packed, new h, new c) of an LSTM, (x, h, packed, new h) of a GRU."""
    lanes, gates, batch, hidden, inputs = machine.lanes, cell.gates, cell.batch, cell.hidden, cell.inputs
    blocks = packed_shape(cell, machine)[0]
    most = max(1, (machine.registers - _SUMS - 1) // _SUMS)
    rows = min(batch, most)
    splits = 2 if rows == 1 and most >= 2 else 1
    lstm = cell.kind == "lstm"

    def tile(buffers: tuple[Any, ...], count: int, row: Any, block: Any) -> None:
        x, h, packed = buffers[0], buffers[1], buffers[3 if lstm else 2]
        width = gates * lanes
        sums = zeros(count * splits, _SUMS * lanes)
        clear(sums, _SUMS * lanes, lanes)
        multiply_add(sums, width, lanes, inputs, lambda r, k: x[row + r, k], lambda k, j: packed[block, k * width + j], splits)
        multiply_add(
            sums,
            width,
            lanes,
            hidden,
            lambda r, k: h[row + r, k],
            lambda k, j: packed[block, (inputs + k) * width + j],
            splits,
            # of a GRU the hidden state's part of n is kept apart
            lambda start: start if lstm or start < 2 * lanes else start + lanes,
        )
        sums = add_splits(sums, _SUMS * lanes, lanes, splits)

        def emit(valid: int, first: Any) -> None:
            for r, total in enumerate(sums):

                def gate(number: int, v: Any, total: Any = total) -> Any:
                    return total[number * lanes + v] + packed[block, (inputs + hidden) * width + number * lanes + v]

                _state(buffers, row + r, lambda fn: vectors(valid, lanes, fn), first, gate)

        rest = hidden - (blocks - 1) * lanes
        if rest == lanes:
            emit(lanes, block * lanes)
        elif blocks == 1:
            emit(rest, 0)
        else:
            with T.If(block < blocks - 1):
                with T.Then():
                    emit(lanes, block * lanes)
                with T.Else():
                    emit(rest, (blocks - 1) * lanes)

    def _state(
        buffers: tuple[Any, ...], row: Any, each: Callable[[Callable[[Any], None]], None], first: Any, gate: Callable[[int, Any], Any]
    ) -> None:
        # one function a statement: TVM's passes take long over nested ones
        values = [T.alloc_buffer((lanes,), "float32") for _ in range(_SUMS)]

        def put(number: int, value: Callable[[Any], Any]) -> None:
            each(lambda v: store(values[number], [v], value(v)))

        def activate(number: int, fn: Callable[[Any], Any]) -> None:
            put(number, lambda v: fn(gate(number, v)))

        if lstm:
            c, new_h, new_c = buffers[2], buffers[4], buffers[5]
            for number, fn in ((0, sigmoid), (1, sigmoid), (2, tanh), (3, sigmoid)):
                activate(number, fn)
            put(2, lambda v: values[1][v] * c[row, first + v] + values[0][v] * values[2][v])
            each(lambda v: store(new_c, [row, first + v], values[2][v]))
            put(0, lambda v: tanh(values[2][v]))
            each(lambda v: store(new_h, [row, first + v], values[3][v] * values[0][v]))
            return
        h, new_h = buffers[1], buffers[3]
        activate(0, sigmoid)
        activate(1, sigmoid)
        put(2, lambda v: gate(2, v) + values[0][v] * gate(3, v))
        put(3, lambda v: tanh(values[2][v]))
        # PyTorch's form: n + z (h - n)
        minus = tirx.const(-1, "float32")
        each(lambda v: store(new_h, [row, first + v], values[3][v] + values[1][v] * (h[row, first + v] + minus * values[3][v])))

    def body(*buffers: Any) -> None:
        tiles = -(-batch // rows)
        pieces = min(blocks, 4 * machine.cores)
        with (
            parallel(pieces, machine, seconds(cell, machine)) as piece,
            T.serial(piece * blocks // pieces, (piece + 1) * blocks // pieces) as block,
            T.serial(0, tiles) as index,
        ):
            even_tiles(batch, rows, index, lambda count, row: tile(buffers, count, row, block))

    state = (batch, hidden)
    names = ["h", "c"] if lstm else ["h"]
    return prim_func(
        [
            ("x", (batch, inputs), "float32"),
            *[(name, state, "float32") for name in names],
            ("packed", packed_shape(cell, machine), "float32"),
            *[(f"new_{name}", state, "float32") for name in names],
        ],
        body,
    )
