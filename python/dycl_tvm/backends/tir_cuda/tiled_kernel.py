# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The launches of a tiled product of matrices (``matrices.py``), whatever multiplies.

A block computes a tile of ``rows x columns``. It goes through the terms in steps of :data:`TERMS`; while one step is computed, the loads of
the next are under way in registers. Beyond the edges factors are zero and results are not stored, so no size must be a
multiple of anything. Few tiles of many terms are split among blocks, and a second launch adds their results up.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.reading.stages import replace_loads, substitute
from dycl_tvm.backends.tir_cuda.blocks import threads_for
from dycl_tvm.backends.tir_cuda.cost import adding_up
from dycl_tvm.backends.tir_cuda.device import Gpu
from dycl_tvm.backends.tir_cuda.matrices import Axes, Factor, Product, places_of, whole

#: Terms of a step.
TERMS = 32
#: With fewer rows, columns or terms most of a tile is idle.
_LEAST = 8
#: Among how many blocks the terms may be split.
_PARTS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Tile:
    """How the work is cut: groups of threads over rows and columns, the results of each, and among how many blocks the terms are split.

    Attributes
    ----------
    UNIT : tuple of int
        Rows and columns of a result: what a group computes at once.
    LANES : int
        Threads of a group.
    """

    UNIT: ClassVar[tuple[int, int]]
    LANES: ClassVar[int]

    row_groups: int
    column_groups: int
    row_results: int
    column_results: int
    parts: int = 1

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.UNIT[0] * self.row_groups * self.row_results

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.UNIT[1] * self.column_groups * self.column_results

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.LANES * self.row_groups * self.column_groups

    @property
    def results(self) -> int:
        """Results of a group."""
        return self.row_results * self.column_results

    def first(self, thread: Any) -> tuple[Any, Any]:
        """Return the first row and column of a thread's group, whose results lie side by side."""
        group = tirx.floordiv(thread, whole(self.LANES))
        row, column = tirx.floordiv(group, whole(self.column_groups)), tirx.floormod(group, whole(self.column_groups))
        return row * whole(self.UNIT[0] * self.row_results), column * whole(self.UNIT[1] * self.column_results)


_T = TypeVar("_T", bound=Tile)


class Copy(ABC):
    """A tile of a factor on its way from memory through registers to shared memory, in units of ``PER`` terms.

    Lines of shared memory have the units of a row or column if ``own_lines``, else the rows or columns of a unit.

    Attributes
    ----------
    PER, SKEW : int
        Terms of a unit, and units that a line is longer: so what is read or written at once lies in different banks.
    DTYPE : str
        The type of a unit.

    Parameters
    ----------
    p : Product
    tile : Tile
    factor : Factor
    own : Axes
        The rows, or the columns: those of the factor.
    extent : int
        How many of them a tile has.
    thread, batch, first : PrimExpr
        The number of the thread, the place in the batch, the first row or column of the tile.
    """

    PER = 1
    SKEW: int
    DTYPE: str

    def __init__(self, p: Product, tile: Tile, factor: Factor, own: Axes, extent: int, thread: Any, batch: Any, first: Any) -> None:
        self.p, self.factor, self.own, self.batch, self.first = p, factor, own, batch, first
        self.extent, self.threads, self.thread = extent, tile.threads, thread
        self.units, self.own_lines = TERMS // self.PER, self._own_lines(tile)
        lines, width = (extent, self.units) if self.own_lines else (self.units, extent)
        self.stride = width + self.SKEW
        # one dimension: TVM would leave out columns that are never written
        self.shared = T.alloc_buffer((lines * self.stride,), self.DTYPE, scope="shared")
        self.registers = T.alloc_buffer((extent * self.units // self.threads,), self.DTYPE, scope="local")

    @abstractmethod
    def _own_lines(self, tile: Tile) -> bool:
        """Whether a line has the units of a row or column."""

    @abstractmethod
    def _unit(self, own: Any, term: Any) -> Any:
        """Return the unit that begins with a term; beyond the edges it is zero."""

    def _place(self, own: Any, unit: Any) -> Any:
        """Return the place of a unit in shared memory."""
        line, column = (own, unit) if self.own_lines else (unit, own)
        return line * whole(self.stride) + column

    def address(self, own: Any) -> Any:
        """Return where a row or column begins."""
        return T.address_of(self.shared[self._place(own, whole(0))])

    def _each(self, body: Callable[[Any, Any, Any], None]) -> None:
        """Emit ``body(register, own, unit)`` for each unit that this thread copies: neighbours in memory by neighbouring threads."""
        with T.unroll(whole(0), whole(self.extent * self.units // self.threads)) as k:
            at = k * whole(self.threads) + self.thread
            if self.factor.terms_last:
                body(k, tirx.floordiv(at, whole(self.units)), tirx.floormod(at, whole(self.units)))
            else:
                body(k, tirx.floormod(at, whole(self.extent)), tirx.floordiv(at, whole(self.extent)))

    def load(self, first_term: Any) -> None:
        """Load the units of a step."""
        self._each(
            lambda k, own, unit: T.buffer_store(
                self.registers,
                self._unit(self.first + own, first_term + unit * whole(self.PER) if self.PER > 1 else first_term + unit),
                [k],
            )
        )

    def put(self) -> None:
        """Store the units of a step to shared memory."""
        self._each(lambda k, own, unit: T.buffer_store(self.shared, self.registers[k], [self._place(own, unit)]))

    def element(self, own: Any, term: Any, further: int = 0) -> Any:
        """Return the factor at a row or column and a term, or at one so much further along the last axis of the terms."""
        p = self.p
        *outer, last = p.terms.at(term)
        variables = [*p.batch.variables, *self.own.variables, *p.terms.variables]
        return substitute(self.factor.value, variables, [*p.batch.at(self.batch), *self.own.at(own), *outer, last + whole(further)])

    def inside(self, own: Any, term: Any) -> Any:
        """Return the condition that there are a row or column and a term."""
        return inside((own, self.own.size, self.extent), (term, self.p.terms.size, 1))


class TiledKernel(ABC):
    """Emits the launches of a product.

    Attributes
    ----------
    SUMS : str
        The type in which is added up.
    COPY : type of Copy
        What copies a factor.
    """

    SUMS: str
    COPY: type[Copy]

    def __init__(self, product: Product, tile: Tile, gpu: Gpu) -> None:
        self.p, self.tile, self.gpu = product, tile, gpu
        p = product
        self.grid = (-(-p.columns.size // tile.columns), -(-p.rows.size // tile.rows), p.batch.size * tile.parts)

    def function(self, fn: Any) -> Any:
        """Return a function with this kernel as its body."""
        with IRBuilder() as ib, T.prim_func(s_tir=True):
            self._emit()
        return fn.with_body(ib.get().body)

    def _emit(self) -> None:
        """Emit one launch, or two where the terms are split."""
        p, tile = self.p, self.tile
        partial = None
        if tile.parts > 1:
            partial = T.alloc_buffer((tile.parts, p.batch.size, p.rows.size, p.columns.size), self.SUMS)
        bx, by, bz = (T.launch_thread(f"blockIdx.{axis}", whole(extent)) for axis, extent in zip("xyz", self.grid))
        with bx as x, by as y, bz as z, T.launch_thread("threadIdx.x", whole(tile.threads)) as thread:
            one = tile.parts == 1
            batch, part = (z, whole(0)) if one else (tirx.floordiv(z, whole(tile.parts)), tirx.floormod(z, whole(tile.parts)))
            self._tile(x * whole(tile.columns), y * whole(tile.rows), batch, part, thread, partial)
        if partial is not None:
            self._add_up(partial)

    @abstractmethod
    def _tile(self, column: Any, row: Any, batch: Any, part: Any, thread: Any, partial: Any) -> None:
        """Emit what a block does for the tile that begins at a row and a column."""

    def _copies(self, column: Any, row: Any, batch: Any, thread: Any) -> tuple[Any, Any]:
        """Emit the memory of both factors of the tile that begins at a row and a column; return what copies them."""
        p, tile = self.p, self.tile
        left = self.COPY(p, tile, p.left, p.rows, tile.rows, thread, batch, row)
        return left, self.COPY(p, tile, p.right, p.columns, tile.columns, thread, batch, column)

    def _sums(self, count: int) -> Any:
        """Emit the sums of a thread, which begin at zero."""
        sums = T.alloc_buffer((count,), self.SUMS, scope="local")
        with T.unroll(0, count) as k:
            T.buffer_store(sums, self._zero(), [k])
        return sums

    def _steps(self, part: Any, left: Copy, right: Copy, compute: Callable[[], None]) -> None:
        """Emit the way through the terms: copies of both factors, and ``compute()`` on each step."""
        steps = -(-self.p.terms.size // TERMS)
        each = -(-steps // self.tile.parts)
        first = part * whole(each * TERMS)
        left.load(first)
        right.load(first)
        with T.serial(whole(0), whole(each)) as step:
            left.put()
            right.put()
            T.evaluate(T.tvm_storage_sync("shared"))
            with T.If(step + whole(1) < whole(each)), T.Then():
                left.load(first + (step + whole(1)) * whole(TERMS))
                right.load(first + (step + whole(1)) * whole(TERMS))
            compute()
            T.evaluate(T.tvm_storage_sync("shared"))

    def _zero(self) -> Any:
        return tirx.const(0, self.SUMS)

    def _store(self, value: Any, batch: Any, row: Any, column: Any, part: Any, partial: Any) -> None:
        """Store a result, or its part, if there is such a row and column."""
        p, tile = self.p, self.tile
        with T.If(inside((row, p.rows.size, tile.rows), (column, p.columns.size, tile.columns))), T.Then():
            if partial is None:
                self._finish(value, batch, row, column)
            else:
                T.buffer_store(partial, value, [part, batch, row, column])

    def _add_up(self, partial: Any) -> None:
        """Let a thread add up the parts of each result."""
        p = self.p
        count = p.batch.size * p.rows.size * p.columns.size
        threads = threads_for(count, self.gpu.multiprocessors)
        with T.launch_thread("blockIdx.x", whole(-(-count // threads))) as block, T.launch_thread("threadIdx.x", whole(threads)) as thread:
            place = block * whole(threads) + thread
            total = T.alloc_buffer((1,), self.SUMS, scope="local")
            with T.If(inside((place, count, threads))), T.Then():
                batch, i, j = Axes((), (p.batch.size, p.rows.size, p.columns.size)).at(place)
                T.buffer_store(total, self._zero(), [0])
                with T.serial(whole(0), whole(self.tile.parts)) as part:
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
        places = places_of(total, finish)
        assert places is not None
        at = [whole(0) if k is None else where[k] for k in places]
        put = replace_loads(finish.value, lambda load: value if load.source.same_as(total.out) else load)
        T.buffer_store(finish.out, substitute(put, finish.axes, at), at)


def is_worth_tiles(product: Product) -> bool:
    """Whether a product fills tiles at all."""
    return min(product.rows.size, product.columns.size, product.terms.size) >= _LEAST


def cheapest(product: Product, tiles: Iterable[_T], gpu: Gpu, cycles: Callable[[_T, int, int], float]) -> _T:
    """Return the tile of the lowest estimated cost, of equal ones the first.

    Parameters
    ----------
    product : Product
    tiles : iterable of Tile
        Without a split of the terms.
    gpu : Gpu
    cycles : callable
        Of a tile, how many blocks there are and how many steps each takes.
    """
    batch, rows, columns, terms = (axes.size for axes in (product.batch, product.rows, product.columns, product.terms))

    def cost(tile: _T) -> float:
        blocks = tile.parts * batch * -(-rows // tile.rows) * -(-columns // tile.columns)
        steps = math.ceil(math.ceil(terms / TERMS) / tile.parts)
        return cycles(tile, blocks, steps) + adding_up(tile.parts, batch * rows * columns, gpu)

    parts = [p for p in _PARTS if p == 1 or p * 2 * TERMS <= terms]
    return min((replace(tile, parts=p) for tile in tiles for p in parts), key=cost)


def inside(*bounds: tuple[Any, int, int]) -> Any:
    """Return the condition that each number is below its size, where tiles do not fit the size evenly."""
    needed = [number < whole(size) for number, size, tile in bounds if tile == 1 or size % tile]
    return tirx.all(*needed) if needed else tirx.IntImm("bool", 1)
