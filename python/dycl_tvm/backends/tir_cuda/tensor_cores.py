# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutions and products on tensor cores: factors in float16, sums in float32.

Whatever adds up products of two factors is a product of matrices once its axes are sorted: axes of both factors are the *batch*, those
of one its *rows*, those of the other its *columns*, what is added up are the *terms*. A convolution's rows are its filters, its columns the
pixels of all images, its terms channels and taps; the matrix of patches is never stored, its elements are computed where they are
copied to shared memory (padding and other work on the image with them).

A block computes a tile of ``rows x columns``. It goes through the terms in steps of :data:`TERMS`; while the tensor cores work on one
step, the loads of the next are under way in registers. Beyond the edges factors are zero and results are not stored, so no size must be
a multiple of anything. The tile's results go through shared memory to what follows the product (bias, activation, residual).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.reading.stages import Stage, inlined, loads_of, read_stages, replace_loads, substitute, uses
from dycl_tvm.backends.tir_cuda.blocks import threads_for
from dycl_tvm.backends.tir_cuda.cost import Mma, adding_up, mma_cycles
from dycl_tvm.backends.tir_cuda.device import Gpu, gpu_of

#: Terms of a step; an instruction takes 16.
TERMS = 32
#: A side of what one instruction multiplies.
_SIDE = 16
#: Elements that a row of a tile is longer in shared memory: so neighbouring rows begin in different banks, aligned as the loads want it.
_SKEW = 8
#: Fewer rows, columns or terms leave most of an instruction idle.
_LEAST = 8
_MOST_PARTS = 16


@dataclass(frozen=True)
class Axes:
    """Axes that count as one, the last one fastest."""

    variables: tuple[Any, ...]
    extents: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many values they have together."""
        return math.prod(self.extents)

    def at(self, number: Any) -> list[Any]:
        """Return the value of each axis where they are at ``number`` together."""
        values = []
        for k, extent in enumerate(self.extents):
            inner = math.prod(self.extents[k + 1 :])
            value = number if inner == 1 else tirx.floordiv(number, _int(inner))
            leads = math.prod(self.extents[:k]) == 1
            values.append(_int(0) if extent == 1 else value if leads else tirx.floormod(value, _int(extent)))
        return values


@dataclass(frozen=True)
class Factor:
    """A factor of a product, as an expression of float16; ``terms_last``: neighbouring terms are neighbours in memory."""

    value: Any
    terms_last: bool


@dataclass(frozen=True)
class Product:
    """``left[batch, row, term] * right[batch, column, term]`` added up over the terms, then ``finish`` (a stage) if there is one."""

    batch: Axes
    rows: Axes
    columns: Axes
    terms: Axes
    left: Factor
    right: Factor
    total: Stage
    finish: Stage | None


@dataclass(frozen=True)
class Tile:
    """Warps of a block over rows and columns, the 16x16 results of a warp, and among how many blocks the terms are split."""

    row_warps: int
    column_warps: int
    row_results: int
    column_results: int
    parts: int = 1

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return _SIDE * self.row_warps * self.row_results

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return _SIDE * self.column_warps * self.column_results

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.row_warps * self.column_warps

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: both factors, and the results."""
        return 2 * (self.rows + self.columns + 2 * _SKEW) * (TERMS + _SKEW) + 4 * self.rows * self.columns


#: (row warps, column warps, results of a warp in rows and columns)
_TILES = (
    (4, 1, 1, 1), (1, 4, 1, 1), (2, 2, 1, 1), (2, 2, 1, 2), (2, 2, 2, 1), (2, 2, 2, 2), (4, 2, 1, 2), (2, 4, 2, 1), (4, 2, 2, 2),
    (2, 4, 2, 2),
)  # fmt: skip


def choose(batch: int, rows: int, columns: int, terms: int, gpu: Gpu) -> Tile:
    """Return the tile of the lowest estimated cost; of equal ones the first."""

    def cost(tile: Tile) -> float:
        blocks = tile.parts * batch * -(-rows // tile.rows) * -(-columns // tile.columns)
        steps = math.ceil(math.ceil(terms / TERMS) / tile.parts)
        work = Mma(blocks, tile.threads, steps, TERMS * (tile.rows + tile.columns), tile.rows * tile.columns * TERMS, tile.shared_bytes)
        return mma_cycles(work, gpu) + adding_up(tile.parts, batch * rows * columns, gpu)

    parts = [p for p in (1, 2, 4, 8, _MOST_PARTS) if p == 1 or p * 2 * TERMS <= terms]
    found = [Tile(*sizes, parts=p) for sizes, p in itertools.product(_TILES, parts)]
    return min((t for t in found if t.shared_bytes <= gpu.shared_bytes), key=cost)


def tensor_cores(fn: Any, target: tvm.target.Target, half: bool) -> Any:
    """Return a function that computes a product of matrices, a convolution for example, on tensor cores, with what follows it.

    Parameters
    ----------
    fn : tvm.tirx.PrimFunc
        Unscheduled.
    target : tvm.target.Target
    half : bool
        Whether factors of float32 may be rounded to float16; those of float16 are taken anyway.

    Returns
    -------
    tvm.tirx.PrimFunc or None
        None where the GPU has no tensor cores, and for other computations.
    """
    gpu = gpu_of(target)
    product = read_product(fn, half) if gpu.tensor_macs else None
    if product is None or min(product.rows.size, product.columns.size, product.terms.size) < _LEAST:
        return None
    tile = choose(product.batch.size, product.rows.size, product.columns.size, product.terms.size, gpu)
    with IRBuilder() as ib, T.prim_func(s_tir=True):
        _Kernel(product, tile, gpu).emit()
    return fn.with_body(ib.get().body)


def read_product(fn: Any, half: bool) -> Product | None:
    """Return the product that a function computes, or None."""
    stages = read_stages(fn)
    stages = None if stages is None else inlined(stages)
    if stages is None or not 1 <= len(stages) <= 2 or not stages[0].reduced or (len(stages) == 2 and stages[1].reduced):
        return None
    total, finish = stages[0], stages[1] if len(stages) == 2 else None
    if not (finish or total).out.same_as(fn.params[-1]) or (finish is not None and _places(total, finish) is None):
        return None
    factors = _factors(total, half)
    if factors is None:
        return None
    used = [[uses(f, [v]) for v in total.axes] for f in factors]
    kinds = [(a, b) if extent > 1 else (True, True) for a, b, extent in zip(*used, total.extents)]
    if (False, False) in kinds:
        return None

    def axes(kind: tuple[bool, bool]) -> Axes:
        chosen = [k for k, found in enumerate(kinds) if found == kind]
        return Axes(tuple(total.axes[k] for k in chosen), tuple(total.extents[k] for k in chosen))

    # the columns are neighbours in memory: they have the last axis of the result
    last = next((kind for kind in reversed(kinds) if kind != (True, True)), None)
    if last is None:
        return None
    order = (1, 0) if last == (True, False) else (0, 1)
    rows, columns = axes((last[1], last[0])), axes(last)
    left, right = (Factor(factors[k], _terms_last(factors[k], own.variables)) for k, own in zip(order, (rows, columns)))
    return Product(axes((True, True)), rows, columns, Axes(total.reduced, total.windows), left, right, total, finish)


def _factors(total: Stage, half: bool) -> list[Any] | None:
    """Return the two factors in float16; None where others than float16 were added up, or not in float32, or not products."""
    value = total.value
    if str(total.out.dtype) != "float32" or not isinstance(value, tirx.Add) or not isinstance(total.init, tirx.FloatImm):
        return None
    for before, product in ((value.a, value.b), (value.b, value.a)):
        if isinstance(product, tirx.Mul) and getattr(before, "source", None) is not None and before.source.same_as(total.out):
            found = [_half(f, half) for f in (product.a, product.b)]
            return None if total.init.value != 0 or any(f is None or _reads(f, total.out) for f in found) else found
    return None


def _half(factor: Any, round_it: bool) -> Any:
    while isinstance(factor, tirx.Cast) and str(factor.value.ty.dtype) in ("float16", "float32"):
        factor = factor.value
    dtype = str(factor.ty.dtype)
    if dtype == "float16":
        return factor
    return tirx.Cast("float16", factor) if dtype == "float32" and round_it else None


def _reads(expr: Any, buffer: Any) -> bool:
    return any(load.source.same_as(buffer) for load in loads_of(expr))


def _terms_last(factor: Any, own: Sequence[Any]) -> bool:
    """Whether the last index of what is loaded that is an index at all does not move with the factor's own axes."""
    for load in loads_of(factor):
        indices = [i for i, size in zip(load.indices, load.source.shape) if int(size) > 1]
        if indices:
            return not uses(indices[-1], own)
    return False


def _places(total: Stage, finish: Stage) -> list[Any] | None:
    """Return, for each axis of a stage that follows a product element by element, the product's axis; None where it does not."""
    found: list[Any] = [None] * len(finish.axes)
    for load in loads_of(finish.value):
        if not load.source.same_as(total.out):
            continue
        here: list[Any] = [None] * len(finish.axes)
        for k, index in enumerate(load.indices):
            place = next((n for n, axis in enumerate(finish.axes) if index.same_as(axis)), None)
            if place is None:
                if not (isinstance(index, tirx.IntImm) and int(index) == 0 and total.extents[k] == 1):
                    return None
            elif here[place] is not None or finish.extents[place] != total.extents[k]:
                return None
            else:
                here[place] = k
        if found != here and any(f is not None for f in found):
            return None
        found = here
    return found if all(k is not None or extent == 1 for k, extent in zip(found, finish.extents)) else None


def _int(value: int) -> Any:
    return tirx.IntImm("int64", value)


class _Kernel:
    """Emits the launches of a product."""

    def __init__(self, product: Product, tile: Tile, gpu: Gpu) -> None:
        self.p, self.tile, self.gpu = product, tile, gpu
        p = product
        self.grid = (-(-p.columns.size // tile.columns), -(-p.rows.size // tile.rows), p.batch.size * tile.parts)

    def emit(self) -> None:
        """Emit one launch, or two where the terms are split."""
        p, tile = self.p, self.tile
        partial = None
        if tile.parts > 1:
            partial = T.alloc_buffer((tile.parts, p.batch.size, p.rows.size, p.columns.size), "float32")
        bx, by, bz = (T.launch_thread(f"blockIdx.{axis}", _int(extent)) for axis, extent in zip("xyz", self.grid))
        with bx as x, by as y, bz as z, T.launch_thread("threadIdx.x", _int(tile.threads)) as thread:
            self._tile(x, y, z, thread, partial)
        if partial is not None:
            self._add_up(partial)

    def _tile(self, x: Any, y: Any, z: Any, thread: Any, partial: Any) -> None:
        p, tile = self.p, self.tile
        batch, part = (z, _int(0)) if tile.parts == 1 else (tirx.floordiv(z, _int(tile.parts)), tirx.floormod(z, _int(tile.parts)))
        steps = -(-p.terms.size // TERMS)
        each = -(-steps // tile.parts)
        left = _Copy(p, p.left, p.rows, tile.rows, tile.threads, thread, batch, y * _int(tile.rows))
        right = _Copy(p, p.right, p.columns, tile.columns, tile.threads, thread, batch, x * _int(tile.columns))
        sums = T.alloc_buffer((tile.row_results * tile.column_results * 8,), "float32", scope="local")
        results = T.alloc_buffer((tile.rows * tile.columns,), "float32", scope="shared")
        with T.unroll(0, tile.row_results * tile.column_results * 8) as k:
            T.buffer_store(sums, tirx.FloatImm("float32", 0.0), [k])
        warp = tirx.floordiv(thread, _int(32))
        row = tirx.floordiv(warp, _int(tile.column_warps)) * _int(_SIDE * tile.row_results)
        column = tirx.floormod(warp, _int(tile.column_warps)) * _int(_SIDE * tile.column_results)
        first = part * _int(each * TERMS)
        left.load(first)
        right.load(first)
        with T.serial(_int(0), _int(each)) as step:
            left.put()
            right.put()
            T.evaluate(T.tvm_storage_sync("shared"))
            with T.If(step + _int(1) < _int(each)), T.Then():
                left.load(first + (step + _int(1)) * _int(TERMS))
                right.load(first + (step + _int(1)) * _int(TERMS))
            shape = f"{tile.row_results}, {tile.column_results}, {TERMS}, {int(p.left.terms_last)}, {int(p.right.terms_last)}"
            arguments = [T.address_of(sums[0]), left.address(row), left.stride, right.address(column), right.stride]
            T.evaluate(T.call_extern("int32", f"dycl_mma<{shape}>", *arguments))
            T.evaluate(T.tvm_storage_sync("shared"))
        to = T.address_of(results[row * _int(tile.columns) + column])
        store = f"dycl_mma_store<{tile.row_results}, {tile.column_results}>"
        T.evaluate(T.call_extern("int32", store, to, tile.columns, T.address_of(sums[0])))
        T.evaluate(T.tvm_storage_sync("shared"))
        result = T.alloc_buffer((1,), "float32", scope="local")
        with T.serial(_int(0), _int(tile.rows * tile.columns // tile.threads)) as k:
            place = k * _int(tile.threads) + thread
            # outside of the condition: TVM makes the array as large as what it sees read, and the store above writes all of it
            T.buffer_store(result, results[place], [0])
            i, j = tirx.floordiv(place, _int(tile.columns)), tirx.floormod(place, _int(tile.columns))
            gi, gj = y * _int(tile.rows) + i, x * _int(tile.columns) + j
            with T.If(_inside((gi, p.rows.size, tile.rows), (gj, p.columns.size, tile.columns))), T.Then():
                if partial is None:
                    self._finish(result[0], batch, gi, gj)
                else:
                    T.buffer_store(partial, result[0], [part, batch, gi, gj])

    def _add_up(self, partial: Any) -> None:
        """Let a thread add up the parts of each result."""
        p = self.p
        count = p.batch.size * p.rows.size * p.columns.size
        threads = threads_for(count, self.gpu.multiprocessors)
        with T.launch_thread("blockIdx.x", _int(-(-count // threads))) as block, T.launch_thread("threadIdx.x", _int(threads)) as thread:
            place = block * _int(threads) + thread
            total = T.alloc_buffer((1,), "float32", scope="local")
            with T.If(_inside((place, count, threads))), T.Then():
                batch, i, j = Axes((), (p.batch.size, p.rows.size, p.columns.size)).at(place)
                T.buffer_store(total, tirx.FloatImm("float32", 0.0), [0])
                with T.serial(_int(0), _int(self.tile.parts)) as part:
                    T.buffer_store(total, total[0] + partial[part, batch, i, j], [0])
                self._finish(total[0], batch, i, j)

    def _finish(self, value: Any, batch: Any, row: Any, column: Any) -> None:
        """Store a result, after what follows the product."""
        p, total, finish = self.p, self.p.total, self.p.finish
        where: list[Any] = [None] * len(total.axes)
        for axes, number in ((p.batch, batch), (p.rows, row), (p.columns, column)):
            for variable, at in zip(axes.variables, axes.at(number)):
                where[next(k for k, v in enumerate(total.axes) if v.same_as(variable))] = at
        if finish is None:
            T.buffer_store(total.out, value, where)
            return
        places = _places(total, finish)
        assert places is not None
        at = [_int(0) if k is None else where[k] for k in places]
        put = replace_loads(finish.value, lambda load: value if load.source.same_as(total.out) else load)
        T.buffer_store(finish.out, substitute(put, finish.axes, at), at)


class _Copy:
    """A tile of a factor on its way from memory through registers to shared memory."""

    def __init__(self, p: Product, factor: Factor, own: Axes, extent: int, threads: int, thread: Any, batch: Any, first: Any) -> None:
        self.p, self.factor, self.own, self.batch, self.first = p, factor, own, batch, first
        self.extent, self.threads, self.thread = extent, threads, thread
        lines, self.stride = (extent, TERMS + _SKEW) if factor.terms_last else (TERMS, extent + _SKEW)
        # one dimension: TVM would leave out columns that are never written
        self.shared = T.alloc_buffer((lines * self.stride,), "float16", scope="shared")
        self.registers = T.alloc_buffer((extent * TERMS // threads,), "float16", scope="local")

    def _each(self, body: Callable[[Any, Any, Any], None]) -> None:
        """Emit ``body(register, own, term)`` for each element that this thread copies: neighbours in memory by neighbouring threads."""
        with T.unroll(_int(0), _int(self.extent * TERMS // self.threads)) as k:
            place = k * _int(self.threads) + self.thread
            if self.factor.terms_last:
                body(k, tirx.floordiv(place, _int(TERMS)), tirx.floormod(place, _int(TERMS)))
            else:
                body(k, tirx.floormod(place, _int(self.extent)), tirx.floordiv(place, _int(self.extent)))

    def load(self, first_term: Any) -> None:
        """Load the elements of a step; beyond the edges they are zero."""

        def one(k: Any, own: Any, term: Any) -> None:
            i, t = self.first + own, first_term + term
            p = self.p
            variables = [*p.batch.variables, *self.own.variables, *p.terms.variables]
            value = substitute(self.factor.value, variables, [*p.batch.at(self.batch), *self.own.at(i), *p.terms.at(t)])
            inside = _inside((i, self.own.size, self.extent), (t, p.terms.size, 1))
            T.buffer_store(self.registers, tirx.if_then_else(inside, value, tirx.FloatImm("float16", 0.0)), [k])

        self._each(one)

    def put(self) -> None:
        """Store the elements of a step to shared memory."""
        self._each(lambda k, own, term: T.buffer_store(self.shared, self.registers[k], [self._place(own, term)]))

    def address(self, own: Any) -> Any:
        """Return where the part of a warp begins that has this row or column as its first."""
        return T.address_of(self.shared[self._place(own, _int(0))])

    def _place(self, own: Any, term: Any) -> Any:
        line, column = (own, term) if self.factor.terms_last else (term, own)
        return line * _int(self.stride) + column


def _inside(*bounds: tuple[Any, int, int]) -> Any:
    """Return the condition that each number is below its size, where tiles do not fit the size evenly."""
    needed = [number < _int(size) for number, size, tile in bounds if tile == 1 or size % tile]
    return tirx.all(*needed) if needed else tirx.IntImm("bool", 1)
