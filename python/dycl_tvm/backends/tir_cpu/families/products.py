# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of which calls decide how many rows there are: a kernel of more than one body, chosen by the rows of the call.

A tile of registers is computed whole, and few rows wait for their weights where many wait for their multiply-adds. So the kernel asks at
its start whether all rows that are wanted are among the first, and computes those as a product of so few rows is best computed; of
others no row is read that is not wanted, and the last tile may be one of half the rows, where a family has such kernels (``kernel_of``).
All bodies read the same packed weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from dycl_tvm.backends.extents import Bounds, Extent, Limit, Wanted, parts_of, sizes_of
from dycl_tvm.backends.front import found, is_one_of
from dycl_tvm.backends.tir_cpu.families.family import Candidate, Maker
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.rows import WantedRows
from dycl_tvm.backends.tir_cpu.words.workload import Dense, Epilogue

_TEXT = "pragma_import_llvm"


@dataclass(frozen=True)
class ProductMaker(Maker):
    """Makes the kernel of a product, also one with bodies for few rows: its own is what is wanted along the dimensions of rows.

    Attributes
    ----------
    product : Candidate
    fewer : tuple of Candidate
        Of the first rows alone, the fewest first; each reads the weights as ``product`` does.
    """

    product: Candidate[Dense]
    fewer: tuple[Candidate[Dense], ...]
    machine: Machine
    epilogue: Epilogue

    def own(self, wanted: Wanted, bounds: Bounds) -> tuple[Limit | None, ...]:
        """Return what the kernel is to ask for where this much is wanted, and behind that the least of all calls' last rows.

        That is nothing if it computes all calls' rows in one way.
        """
        rows = tuple(wanted[:-1])
        least = 0
        for size, extent in _parts(self.product.work, rows):
            least = least * size + (size if extent is None else min(size, bounds.range(extent)[0])) - 1
        few = self.fewer[-1].work.batch * self.fewer[-1].work.m if self.fewer else 0
        asks = sizes_of(rows) and (least < few or self._of_wanted is not None)
        return (*rows, Extent.number(max(least, 0))) if asks else ()

    @property
    def _of_wanted(self) -> Any:
        """What makes the product's kernel of the rows that are wanted."""
        return getattr(self.product.family, "kernel_of", None)

    def __call__(self, own: Sequence[Limit | None] = ()) -> Any:
        """Return the PrimFunc (x, packed weights, epilogue operands, sizes of the call, y)."""
        if not own:
            return self.product.kernel(self.machine, self.epilogue)
        sizes = sizes_of(own)
        lengths = {k: tirx.decl_buffer((), "int64", name=f"length_{k}") for k in sizes}

        def number(size: int, extent: Extent | None) -> Any:
            if extent is None or not extent.factor:
                return None if extent is None or extent.constant >= size else tirx.const(extent.constant, "int32")
            there = tirx.BufferLoad(lengths[extent.size], []) * extent.factor + extent.constant
            return tirx.min(there, tirx.const(size, "int64")).astype("int32")

        *rows, least = own
        parts = _parts(self.product.work, rows)
        wanted, product, of_wanted = WantedRows([(n, number(n, e)) for n, e in parts]), self.product, self._of_wanted
        made = (
            product.kernel(self.machine, self.epilogue)
            if of_wanted is None
            else of_wanted(product.work, product.plan, self.machine, self.epilogue, wanted)
        )
        body, texts = _without_texts(made.body)
        for few in reversed(self.fewer):
            assert isinstance(least, Extent)
            if few.work.batch * few.work.m <= least.constant:
                continue
            small = few.kernel(self.machine, _of_rows(self.epilogue, few.work))
            other, same = _without_texts(_in_place_of(small, made.params))
            if same != texts or not tvm_ffi.structural_equal(small.attrs, made.attrs):
                continue  # functions or instructions of its own
            body = tirx.IfThenElse(wanted.last < few.work.batch * few.work.m, other, body)
        for text in reversed(texts):
            body = tirx.AttrStmt(tirx.const(0, "int32"), _TEXT, tvm.ir.StringImm(text), body)
        *inputs, y = made.params
        return tirx.PrimFunc([*inputs, *(lengths[k] for k in sizes), y], body, made.ret_type, made.attrs)


def first_rows(work: Dense, rows: int) -> Dense | None:
    """Return the product of the first rows alone, whose elements have the same indices; None if there are no more than these."""
    if work.batch * work.m <= rows:
        return None
    if work.m == 1:
        return replace(work, batch=rows)
    return replace(work, batch=1, m=rows) if rows <= work.m else None


def _parts(work: Dense, rows: Sequence[Limit | None]) -> list[tuple[int, Extent | None]]:
    """Return of each dimension that counts rows, the outermost first, its size and how many places are wanted."""
    parts = [part for size, limit in zip((work.batch, work.m), rows, strict=True) for part in parts_of(size, limit) if size > 1]
    return parts or [(1, None)]


def _of_rows(epilogue: Epilogue, work: Dense) -> Epilogue:
    """Return an epilogue whose operands are as large as the results of a product of fewer rows."""
    most = (work.batch, work.m, work.n)
    cut = [replace(t, shape=tuple(map(min, t.shape, most[3 - len(t.shape) :]))) for t in epilogue.operands]
    return replace(epilogue, operands=tuple(cut))


def _in_place_of(fn: Any, params: Sequence[Any]) -> Any:
    """Return the body of a function on the tensors of another one, of which it knows the first rows."""
    own = list(fn.params)

    def other(buffer: Any) -> Any:
        return next((p for b, p in zip(own, params, strict=True) if b.same_as(buffer)), buffer)

    body = tvm_ffi.structural_map(
        fn.body,
        [
            (TensorLoad, lambda load: tirx.BufferLoad(other(load.source), list(load.indices))),
            (tirx.BufferStore, lambda s: tirx.BufferStore(other(s.buffer), s.value, list(s.indices))),
        ],
    )
    known = [v.source for v in found(body, TensorLoad)] + [s.buffer for s in found(body, tirx.BufferStore)]
    raw = [c for c in found(body, tvm.ir.Call) if getattr(c.op, "name", "") in ("tirx.buffer_data", "tirx.tvm_access_ptr")]
    assert not raw and not any(is_one_of(b, own) for b in known), "a product names its tensors by their elements"
    return body


def _without_texts(body: Any) -> tuple[Any, list[str]]:
    """Return a body without the functions in LLVM's language around it, and these."""
    texts = []
    while isinstance(body, tirx.AttrStmt) and body.attr_key == _TEXT:
        texts.append(str(body.value.value))
        body = body.body
    return body, texts
