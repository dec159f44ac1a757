# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Attention, softmax(f(q k^T)) v: each row of scores stays in scratch memory from the first product to the second.

A piece of work is a head, or some of its rows. The keys of a head are transposed to (depth, keys) once a piece, padded to whole
vectors; then a tile of rows at a time is multiplied with them, masked, made exponentials of, and multiplied with the values; what
divides by the rows' sums is the last product's result, which is shorter than a row. Few rows are multiplied with the keys as they
lie, as dot products. Where a size of the call decides how many keys count, all loops over keys end at the vector that has the last of them.
In bfloat16 (``rounded``) the factors of both products are words of two neighbours in the sum (:mod:`bf16`): queries and exponentials of
a tile, keys and values of a head. Scores, exponentials and all sums stay float32.

Error, with u = 2^-24 and p the exact weights: |error| <= sum p |v| b with b = (2 d + m + 2 keys + 32) u, where d is the largest error of a
score in units of u (depth + 8 times the sum of |q k|, scaled, and that of the steps between), m the largest distance of a score that is
not -inf from its row's maximum: differences and products are rounded before exponentials are taken.
With rounded factors, |error| <= sum p |v| (e^(2 s) (1 + t) - 1 + b), t = 2^-7 + 2^-16 + (keys + 8) 2^-23, where
s = (2^-7 + 2^-16 + (depth + 8) 2^-23) sum |q k|, scaled, is the largest error of a score.
NaN in a row of scores gives NaN. A row of -inf gives NaN, or 0 if ``empty_rows``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir.expr import Var
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.extents import Bounds, Extent, Limit, outer
from dycl_tvm.backends.tir_cpu.families.family import Maker
from dycl_tvm.backends.tir_cpu.words.bf16 import LANES, PAIRS, bf16_func, has_instructions, multiply_add_pairs, zipped
from dycl_tvm.backends.tir_cpu.words.bf16 import pairs as words_of
from dycl_tvm.backends.tir_cpu.words.epilogue import finish
from dycl_tvm.backends.tir_cpu.words.loops import parallel, prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.softmax_row import softmax_row
from dycl_tvm.backends.tir_cpu.words.sums import add_splits, dots, multiply_add
from dycl_tvm.backends.tir_cpu.words.tiles import even_tiles, pieces
from dycl_tvm.backends.tir_cpu.words.transposition import transpose_block, with_transposition
from dycl_tvm.backends.tir_cpu.words.vectors import clear, vectors, zeros
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Epilogue, Tensor

#: Rows up to which keys are read as they lie.
_DOT_ROWS = 3
#: What one kernel on one core needs to be no slower than three: vectors of keys where these are read as they lie, otherwise rows and
#: scores of a head. Below that each short row waits for its own maximum and sum, while separate kernels have the next rows to go on with
#: (measured: up to 1.3 times slower).
_KEY_VECTORS, _ROWS, _SCORES = 4, 32, 1024
#: Time of products and softmax by themselves, over that of one kernel on as many cores; measured: 1.05 to 1.2.
_APART = 1.1


@dataclass(frozen=True)
class Strided:
    """A tensor inside of an array of ``size`` elements: element i is at ``offset + sum(i * strides)``."""

    size: int
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Attention:
    """The workload, for tensors of equal leading dimensions ``lead``.

    Attributes
    ----------
    lead : tuple of int
        Batch, heads.
    rows, keys, depth, width : int
        The queries are (lead, rows, depth), the keys (lead, keys, depth), the values (lead, keys, width).
    q, k, v : Strided
        Where they are; rows of values are contiguous.
    order : tuple of int
        The output's dimensions, numbered in (lead, rows, width); the last one is the width.
    causal : bool
        Row i sees the keys up to i.
    empty_rows : bool
        A row that sees no key is 0; otherwise NaN.
    rounded : bool
        Factors of both products are rounded to bfloat16 (:meth:`may_round`).
    """

    lead: tuple[int, ...]
    rows: int
    keys: int
    depth: int
    width: int
    q: Strided
    k: Strided
    v: Strided
    order: tuple[int, ...]
    causal: bool = False
    empty_rows: bool = False
    rounded: bool = False

    def may_round(self, machine: Machine) -> bool:
        """Whether there is a kernel in bfloat16: rows are whole vectors of words, and so many that keys and values are worth a copy."""
        whole = self.depth % (2 * LANES) == self.width % LANES == 0 and self.q.strides[-1] == self.k.strides[-1] == self.v.strides[-1] == 1
        return has_instructions(machine) and whole and self.rows > _DOT_ROWS

    @property
    def heads(self) -> int:
        """Number of independent attentions."""
        return math.prod(self.lead)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of both products."""
        return self.heads * self.rows * self.keys * (self.depth + self.width)

    @property
    def plain(self) -> bool:
        """Whether separate kernels could read and write the arrays as they lie, and there is no mask of the kernel's own."""
        shape = (*self.lead, self.rows, self.width)
        order = [k for k in self.order if shape[k] > 1]
        parts = ((self.q, self.rows, self.depth), (self.k, self.keys, self.depth), (self.v, self.keys, self.width))
        return (
            not (self.causal or self.empty_rows)
            and order == sorted(order)
            and all(_is_plain(s, (*self.lead, rows, columns)) for s, rows, columns in parts)
        )

    @property
    def scores(self) -> Tensor:
        """The scores, which no array holds."""
        return Tensor((*self.lead, self.rows, self.keys))

    @property
    def y(self) -> Tensor:
        """The output."""
        shape = (*self.lead, self.rows, self.width)
        return Tensor(tuple(shape[k] for k in self.order))


def _is_plain(s: Strided, shape: Sequence[int]) -> bool:
    """Whether a tensor is all of its array, row by row."""
    strides = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    return s.size == math.prod(shape) and all(size == 1 or a == b for size, a, b in zip(shape, s.strides, strides))


def seconds_of(work: Attention, machine: Machine) -> float:
    """Estimate the time of one core."""
    scores = work.heads * work.rows * work.keys
    products = 2.6 * work.macs / (machine.gflops * 1e9)
    copies = 0.5e-9 * work.heads * work.keys * work.depth if work.rows > _DOT_ROWS else 0.0
    return products + 7e-9 * scores / machine.lanes + copies


def _tile_rows(work: Attention, machine: Machine) -> int:
    """Return the rows of a tile: so many sums of both products that additions need not wait for each other."""
    narrow = work.width <= (2 if machine.registers >= 32 else 1) * machine.lanes
    most = (8 if narrow else 6) if machine.registers >= 32 else (6 if narrow else 4)
    return -(-work.rows // -(-work.rows // most))


def wins(work: Attention, machine: Machine) -> bool:
    """Whether one kernel is estimated to be faster than products and softmax by themselves, which cut also a single row in pieces."""
    alone = seconds_of(work, machine)
    if alone <= 3 * machine.launch:
        if not work.plain:  # separate kernels would copy
            return True
        if work.rows <= _DOT_ROWS:
            return work.keys >= _KEY_VECTORS * machine.lanes
        return work.rows >= _ROWS and work.rows * work.keys >= _SCORES
    pieces = min(machine.cores, work.heads * -(-work.rows // _tile_rows(work, machine)))
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

    def body(*args: Any) -> None:
        *inputs, y = args
        count = None if used is None else inputs.pop()[()] * used.factor + used.constant
        _Kernel(work, machine, between, epilogue, [*inputs, y]).emit(count)

    return with_transposition((bf16_func if work.rounded else prim_func)(buffers, body), machine.lanes)


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


class _Kernel:
    """The loops of one kernel; a row of scores is called as its buffer is, ``p``."""

    def __init__(self, work: Attention, machine: Machine, between: Epilogue, epilogue: Epilogue, args: Sequence[Any]) -> None:
        self.work, self.machine, self.lanes = work, machine, machine.lanes
        self.between, self.epilogue = between, epilogue
        self.q, self.k, self.v, *rest, self.y = args
        self.score_operands, self.operands = rest[: len(between.operands)], rest[len(between.operands) :]
        self.padded = -(-work.keys // self.lanes) * self.lanes
        self.tile = _tile_rows(work, machine)
        self.in_place = work.rows <= _DOT_ROWS and work.k.strides[-1] == work.q.strides[-1] == 1
        #: How many keys are looked at, in whole vectors, where a size of the call decides it: at least one vector, at most ``padded``.
        self.live: Any = None
        #: The values of a head as words, (pairs of keys, width), where they are rounded.
        self.values: Any = None

    def _panel(self, columns: int) -> int:
        """Return the columns of a register tile."""
        all_vectors = -(-columns // self.lanes)
        wide = min((self.machine.registers - 1) // (self.tile + 1), 512 // self.machine.vector_bytes)
        return -(-all_vectors // -(-all_vectors // wide)) * self.lanes

    def emit(self, count: Any = None) -> None:
        """Emit the loops; ``count`` is how many keys count, an expression, where a size of the call decides it."""
        work, cores = self.work, self.machine.cores
        if count is not None:
            most = tirx.const(self.padded // self.lanes, "int64")
            parts = tirx.truncdiv(count + (self.lanes - 1), tirx.const(self.lanes, "int64"))
            self.live = T.bind((tirx.max(tirx.min(parts, most), tirx.const(1, "int64")) * self.lanes).astype("int32"))
        tiles = -(-work.rows // self.tile)
        parts = min(tiles, max(1, 4 * cores // work.heads))  # of a head
        tasks = work.heads * parts
        cut = min(tasks, 8 * cores)
        with (
            parallel(cut, self.machine, seconds_of(work, self.machine)) as turn,
            T.serial(turn * tasks // cut, (turn + 1) * tasks // cut) as task,
        ):
            head, part = (task // parts, task % parts) if parts > 1 else (task, 0)
            lead = self._lead(head)
            keys = None if self.in_place else self._paired_keys(lead) if work.rounded else self._transposed_keys(lead)
            self.values = self._paired_values(lead) if work.rounded else None
            p = T.alloc_buffer((self.tile, self.padded), "float32")
            first = part * tiles // parts
            with T.serial(0, (part + 1) * tiles // parts - first if parts > 1 else tiles) as t:
                even_tiles(work.rows, self.tile, first + t, lambda count, row: self._rows(lead, row, count, keys, p))

    def _lead(self, head: Any) -> list[Any]:
        index = []
        for size in reversed(self.work.lead):
            index.append(head % size if size > 1 else 0)
            head = head // size if size > 1 else head
        return index[::-1]

    def _all_keys(self, emit: Callable[[int, Any], None]) -> None:
        """Emit ``emit(first, count)`` for all keys; where calls decide how many, for whole vectors, then for what is left of one."""
        keys = self.work.keys
        if self.live is None:
            emit(0, keys)
            return
        whole = keys - keys % self.lanes
        if whole:
            emit(0, tirx.min(self.live, whole))
        if whole < keys:
            with T.If(self.live > whole), T.Then():
                emit(whole, keys - whole)

    def _along_keys(self, size: int, emit: Callable[[Any, int], None], unit: int) -> None:
        """Emit ``emit(first, count)`` for pieces of the keys, of ``size`` and, where calls decide how many there are, of ``unit``."""
        self._all_keys(lambda start, total: pieces(total, size, lambda first, count: emit(start + first, count), unit))

    @staticmethod
    def _at(s: Strided, lead: Sequence[Any], row: Any, column: Any) -> Any:
        where: Any = s.offset
        for i, stride in zip((*lead, row, column), s.strides):
            where = where + i * stride
        return where

    def _transposed_keys(self, lead: Sequence[Any]) -> Any:
        """Emit the copy of the keys of a head to (depth, keys), zero beyond the last key."""
        work, lanes = self.work, self.lanes
        keys = T.alloc_buffer((work.depth * self.padded,), "float32")
        squares = work.depth // lanes if work.k.strides[-1] == 1 else 0

        def block(first: Any, count: int) -> None:
            if count == lanes and squares:
                with T.serial(0, squares) as d:
                    at = self._at(work.k, lead, first, d * lanes)
                    transpose_block(self.k, at, work.k.strides[-2], keys, d * (lanes * self.padded) + first, self.padded, lanes)
            done = squares * lanes if count == lanes else 0
            with T.serial(0, work.depth - done) as d:
                row = (done + d) * self.padded + first
                vectors(count, lanes, lambda j: store(keys, [row + j], self.k[self._at(work.k, lead, first + j, done + d)]))
                if count < lanes:
                    vectors(lanes - count, lanes, lambda j: store(keys, [row + count + j], tirx.const(0, "float32")))

        self._along_keys(lanes, block, lanes)
        return keys

    def _paired_keys(self, lead: Sequence[Any]) -> Any:
        """Emit the copy of the keys of a head to (pairs of the depth, keys): they are rounded, then words are transposed."""
        work, words = self.work, self.work.depth // 2
        keys = T.alloc_buffer((words * self.padded,), "float32")
        rounded = T.alloc_buffer((LANES, words), "int32")

        def block(first: Any, count: int) -> None:
            with T.serial(0, count) as j:
                self._round(work.depth, lambda at: self.k[T.ramp(self._at(work.k, lead, first + j, at), 1, LANES)], rounded, j)
            # TVM takes away what it sees nobody write
            with T.serial(0, LANES - count) as j, T.serial(0, words // PAIRS) as d:
                store(rounded, [count + j, T.ramp(d * PAIRS, 1, PAIRS)], T.broadcast(T.int32(0), PAIRS))
            with T.serial(0, words // LANES) as s:
                transpose_block(rounded, (0, s * LANES), words, keys, s * (LANES * self.padded) + first, self.padded, LANES)

        self._along_keys(LANES, block, LANES)
        return keys

    def _paired_values(self, lead: Sequence[Any]) -> Any:
        """Emit the copy of the values of a head to (pairs of keys, width), zero beyond the last key."""
        work = self.work
        values = T.alloc_buffer((self.padded // 2, work.width), "float32")
        zero = T.broadcast(T.float32(0), LANES)

        def pair(index: Any, there: int) -> None:
            with T.serial(0, work.width // LANES) as e:
                load = lambda k: self.v[T.ramp(self._at(work.v, lead, 2 * index + k, e * LANES), 1, LANES)] if k < there else zero  # noqa: E731
                store(values, [index, T.ramp(e * LANES, 1, LANES)], zipped(load(0), load(1)))

        whole = work.keys // 2
        with T.serial(0, whole if self.live is None else tirx.min(whole, self.live // 2)) as index:
            pair(index, 2)
        for index in range(whole, self.padded // 2):
            pair(index, work.keys % 2 if index == whole else 0)
        return values

    def _rows(self, lead: Sequence[Any], row: Any, count: int, keys: Any, p: Any) -> None:
        """Emit the attention of ``count`` queries from ``row``."""
        if keys is None:
            self._dot_scores(lead, row, count, p)
        else:
            self._scores(lead, row, count, keys, p)
        scale = T.alloc_buffer((count,), "float32")
        with T.serial(0, count) as r:
            self._exponentials(r, p, scale)
        self._values(lead, row, count, p, scale)

    def _put_scores(self, lead: Sequence[Any], row: Any, first: Any, valid: int, sums: Sequence[Any], p: Any) -> None:
        """Emit what is done to scores of keys from ``first``, and their stores."""

        def element(j: Any, r: int, total: Any) -> None:
            value = finish(self.between, self.score_operands, self.work.scores, total[j], [*lead, row + r, first + j])
            if self.work.causal:
                value = tirx.Select(first + j <= row + r, value, tirx.const(-math.inf, "float32"))
            store(p, [r, first + j], value)

        for r, total in enumerate(sums):
            vectors(valid, self.lanes, lambda j, r=r, total=total: element(j, r, total))  # type: ignore[misc]

    def _pad(self, count: int, p: Any) -> None:
        """Emit -inf in the lanes beyond the last key: they count for nothing in a row's maximum and sum."""
        keys, beyond = self.work.keys, self.padded - self.work.keys
        for r in range(count if beyond else 0):
            vectors(beyond, self.lanes, lambda j, r=r: store(p, [r, keys + j], tirx.const(-math.inf, "float32")))  # type: ignore[misc]

    def _scores(self, lead: Sequence[Any], row: Any, count: int, keys: Any, p: Any) -> None:
        work, lanes, width = self.work, self.lanes, self._panel(self.work.keys)
        words = T.alloc_buffer((count, work.depth // 2), "int32") if work.rounded else None
        if words is not None:
            with T.serial(0, count) as r:
                self._round(work.depth, lambda at: self.q[T.ramp(self._at(work.q, lead, row + r, at), 1, LANES)], words, r)

        def panel(first: Any, valid: int) -> None:
            columns = -(-valid // lanes) * lanes
            sums = zeros(count, columns)
            clear(sums, columns, lanes)
            if words is None:
                left = lambda r, d: self.q[self._at(work.q, lead, row + r, d)]  # noqa: E731
                multiply_add(sums, columns, lanes, work.depth, left, lambda d, j: keys[d * self.padded + first + j])
            else:
                vector = lambda d, j: keys[T.ramp(d * self.padded + first + j, 1, LANES)]  # noqa: E731
                multiply_add_pairs(sums, columns, work.depth // 2, lambda r, d: words[r, d], vector)
            self._put_scores(lead, row, first, valid, sums, p)

        self._along_keys(width, panel, lanes)
        self._pad(count, p)

    def _dot_scores(self, lead: Sequence[Any], row: Any, count: int, p: Any) -> None:
        """Emit scores as sums along the depth, of some keys at a time."""
        work, lanes = self.work, self.lanes
        step = self._divisor(min(work.keys, max(1, self.machine.registers // 2 // count)))

        def block(first: Any, valid: int) -> None:
            left = lambda r, d: self.q[self._at(work.q, lead, row + r, d)]  # noqa: E731
            right = lambda j, d: self.k[self._at(work.k, lead, first + j, d)]  # noqa: E731
            self._put_scores(lead, row, first, valid, dots(count, valid, work.depth, lanes, left, right), p)

        self._along_keys(step, block, step)
        self._pad(count, p)

    def _divisor(self, most: int) -> int:
        """Return ``most``; where calls decide how many keys there are, the most of a vector that divides it."""
        return most if self.live is None else 1 << (min(most, self.lanes).bit_length() - 1)

    def _exponentials(self, r: Any, p: Any, scale: Any) -> None:
        """Emit a row's exponentials in place, and one over their sum."""
        zero, one = tirx.const(0, "float32"), tirx.const(1, "float32")

        def settle(peak: Any) -> None:  # no distance from -inf
            if self.work.empty_rows:
                store(peak, [0], tirx.Select(peak[0] == tirx.const(-math.inf, "float32"), zero, peak[0]))

        keys = self.padded if self.live is None else self.live
        _, total = softmax_row(keys, self.lanes, lambda j: p[r, j], lambda j, e: store(p, [r, j], e), lambda j: p[r, j], settle)
        inverse = one / total[0]
        store(scale, [r], tirx.Select(total[0] == zero, zero, inverse) if self.work.empty_rows else inverse)

    @staticmethod
    def _round(count: Any, vector: Callable[[Any], Any], words: Any, row: Any) -> None:
        """Emit the rounding of whole vectors, ``vector(first element)``, to a row of words."""
        with T.serial(0, count // LANES) as i:
            store(words, [row, T.ramp(i * PAIRS, 1, PAIRS)], words_of(vector(i * LANES)))

    def _values(self, lead: Sequence[Any], row: Any, count: int, p: Any, scale: Any) -> None:
        work, lanes, width = self.work, self.lanes, self._panel(self.work.width)
        splits = self._divisor(max(1, min(4, self.machine.registers // 2 // (count * width // lanes), work.keys)))
        keys = self.padded if self.live is None else self.live
        words = T.alloc_buffer((count, self.padded // 2), "int32") if work.rounded else None
        if words is not None:
            with T.serial(0, count) as r:
                self._round(keys, lambda at: p[r, T.ramp(at, 1, LANES)], words, r)

        def panel(first: Any, valid: int) -> None:
            sums = zeros(count * splits, valid)
            clear(sums, valid, lanes)
            right = lambda j, e: self.v[self._at(work.v, lead, j, first + e)]  # noqa: E731

            def weigh(start: int, count: Any) -> None:
                multiply_add(sums, valid, lanes, count, lambda r, j: p[r, start + j], lambda j, e: right(start + j, e), splits)

            if words is None:
                self._all_keys(weigh)
            else:
                vector = lambda j, e: self.values[j, T.ramp(first + e, 1, LANES)]  # noqa: E731
                multiply_add_pairs(sums, valid, keys // 2, lambda r, j: words[r, j], vector, splits)
            for r, total in enumerate(add_splits(sums, valid, lanes, splits)):

                def element(e: Any, r: int = r, total: Any = total) -> None:
                    index = [*lead, row + r, first + e]
                    place = [index[k] for k in work.order]
                    store(self.y, place, finish(self.epilogue, self.operands, work.y, total[e] * scale[r], place))

                vectors(valid, lanes, element)

        pieces(work.width, width, panel)
