# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Attention, softmax(f(q k^T)) v: each row of scores stays in scratch memory from the first product to the second.

A piece of work is a head, or some of its rows. The keys of a head are transposed to (depth, keys) once a piece, padded to whole
vectors; then a tile of rows at a time is multiplied with them, masked, made exponentials of, and multiplied with the values; what
divides by the rows' sums is the last product's result, which is shorter than a row. Few rows are multiplied with the keys as they
lie, as dot products. Where a size of the call decides how many keys count, all loops over keys end at the vector that has the last of them.
In bfloat16 (``rounded``) the factors of both products are words of two neighbours in the sum (:mod:`bf16`): queries and exponentials of
a tile, keys and values of a head. Scores, exponentials and all sums stay float32. With AMX, tiles of 16 rows multiply these words.

Error, with u = 2^-24 and p the exact weights: |error| <= sum p |v| b with b = (2 d + m + 2 keys + 32) u, where d is the largest error of a
score in units of u (depth + 8 times the sum of |q k|, scaled, and that of the steps between), m the largest distance of a score that is
not -inf from its row's maximum: differences and products are rounded before exponentials are taken.
With rounded factors, |error| <= sum p |v| (e^(2 s) (1 + t) - 1 + b), t = 2^-7 + 2^-16 + (keys + 8) 2^-23, where
s = (2^-7 + 2^-16 + (depth + 8) 2^-23) sum |q k|, scaled, is the largest error of a score.
NaN in a row of scores gives NaN. A row of -inf gives NaN, or 0 if ``empty_rows``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir.expr import Var

from dycl_tvm.backends.extents import Bounds, Extent, Limit, outer
from dycl_tvm.backends.tir_cpu.families.family import Maker
from dycl_tvm.backends.tir_cpu.words.amx import amx_func
from dycl_tvm.backends.tir_cpu.words.amx_attention import FACTORS, TiledAttention
from dycl_tvm.backends.tir_cpu.words.attention import DOT_ROWS, Attention
from dycl_tvm.backends.tir_cpu.words.attention_loops import AttentionLoops, seconds_of, tile_rows
from dycl_tvm.backends.tir_cpu.words.bf16 import bf16_func
from dycl_tvm.backends.tir_cpu.words.loops import prim_func
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.transposition import with_transposition
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Epilogue

#: What one kernel on one core needs to be no slower than three: vectors of keys where these are read as they lie, otherwise rows and
#: scores of a head. Below that each short row waits for its own maximum and sum, while separate kernels have the next rows to go on with
#: (measured: up to 1.3 times slower).
_KEY_VECTORS, _ROWS, _SCORES = 4, 32, 1024
#: Time of products and softmax by themselves, over that of one kernel on as many cores; measured: 1.05 to 1.2.
_APART = 1.1


def wins(work: Attention, machine: Machine) -> bool:
    """Whether one kernel is estimated to be faster than products and softmax by themselves, which cut also a single row in pieces."""
    alone = seconds_of(work, machine)
    if alone <= 3 * machine.launch:
        if not work.plain:  # separate kernels would copy
            return True
        if work.rows <= DOT_ROWS:
            return work.keys >= _KEY_VECTORS * machine.lanes
        return work.rows >= _ROWS and work.rows * work.keys >= _SCORES
    pieces = min(machine.cores, work.heads * -(-work.rows // tile_rows(work, machine)))
    return alone / pieces <= _APART * alone / machine.cores + 2 * machine.launch


def kernel(work: Attention, machine: Machine, between: Epilogue = NOTHING, epilogue: Epilogue = NOTHING, used: Extent | None = None) -> Any:
    """Return the PrimFunc (q, k, v, operands of ``between``, operands of ``epilogue``, y).

    Parameters
    ----------
    work : Attention
    machine : Machine
    between : Epilogue
        What is done to each score, as an epilogue of ``work.scores``.
    epilogue : Epilogue
        What is done to each result, as one of ``work.y``.
    used : Extent, optional
        How many of the keys count, where a size of the call decides it: the size, an int64, is one more input before y.
    """
    named = [(f"score_{k}", t) for k, t in enumerate(between.operands)] + [(f"operand_{k}", t) for k, t in enumerate(epilogue.operands)]
    buffers = [
        *((name, (s.size,), "float32") for name, s in (("q", work.q), ("k", work.k), ("v", work.v))),
        *((name, t.shape, t.dtype) for name, t in named),
        *([] if used is None else [("keys", (), "int64")]),
        ("y", work.y.shape, "float32"),
    ]

    tiled = work.tiles and used is None
    loops = (TiledAttention if tiled else AttentionLoops)(work, machine, between, epilogue)

    def body(*args: Any) -> None:
        *inputs, y = args
        count = None if used is None else inputs.pop()[()] * used.factor + used.constant
        loops.emit([*inputs, y], count)

    made = amx_func(FACTORS, buffers, body) if tiled else (bf16_func if work.rounded else prim_func)(buffers, body)
    return with_transposition(made, machine.lanes)


@dataclass(frozen=True)
class AttentionMaker(Maker):
    """Makes the kernel of an attention, also for a number of keys that a size of the call decides: what is its own."""

    work: Attention
    machine: Machine
    between: Epilogue
    epilogue: Epilogue

    def __call__(self, own: Sequence[Limit | None] = ()) -> Any:
        """Return the PrimFunc, as :func:`kernel` does."""
        return kernel(self.work, self.machine, self.between, self.epilogue, outer(own[0]) if own else None)

    def read(self, used: Extent, bounds: Bounds) -> Extent | None:
        """Return how many keys are looked at where so many count; None for all."""
        lanes = self.machine.lanes

        def taken(size: int) -> int:
            return min(self.work.keys, max(1, -(-(used.factor * size + used.constant) // lanes)) * lanes)

        return bounds.shortened(bounds.covering(used.size, taken), self.work.keys) if used.factor else None

    @property
    def rows_dim(self) -> int:
        """The dimension of the output that has the rows."""
        return self.work.order.index(len(self.work.lead))

    def closing(self) -> list[int]:
        """Return the inputs that are added to a score as they are: where one is -inf, the key counts for nothing."""
        value, loads = Var("score", "float32"), [Var(f"operand_{k}", t.dtype) for k, t in enumerate(self.between.operands)]
        added = [self.between.element(value, loads)] if loads else []
        found: list[Any] = []
        while added:
            term = added.pop()
            if isinstance(term, tirx.Add):
                added += [term.a, term.b]
            else:
                found.append(term)
        keys = self.work.keys
        return [
            3 + k for k, (v, t) in enumerate(zip(loads, self.between.operands)) if t.shape[-1] == keys and any(v.same_as(f) for f in found)
        ]
