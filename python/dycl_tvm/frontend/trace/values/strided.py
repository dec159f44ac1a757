# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``as_strided``: a view of the memory that a tensor lies in, by sizes, strides and an offset that Python knows.

The values of the HCFG have no memory, so such a view takes the elements of its base by their positions there.
"""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.constants import constants
from dycl_tvm.frontend.trace.values.layouts import layouts_of, marks_of, meta_of
from dycl_tvm.frontend.trace.values.storage import DTYPES, Storage
from dycl_tvm.frontend.trace.values.tensors import OwnStep, StagedTensor, emit_one, home, read, view_of
from dycl_tvm.hcfg.nodes import Constant, Value
from dycl_tvm.hcfg.types import TensorType

aten = torch.ops.aten
#: Views of more elements are not made by positions.
_LARGE = 1 << 24


class _Positions(OwnStep):
    """The step from a base to some of its elements.

    Its arguments are the base's dimensions in the order of its memory, the positions there (None: all, in order) and the shape.
    """

    _opname = "as_strided"

    def read(self, base: Value, order: tuple[int, ...], positions: Constant | None, shape: tuple[int, ...]) -> Value:
        flat = _flat(base, order)
        if positions is not None:
            flat = emit_one(aten.index_select.default, (flat, 0, positions), TensorType(positions.type.shape, flat.type.dtype))  # type: ignore[union-attr]
        return emit_one(aten.view.default, (flat, list(shape)), TensorType(shape, flat.type.dtype))  # type: ignore[union-attr]

    def write(self, base: Value, value: Value, order: tuple[int, ...], positions: Constant | None, shape: tuple[int, ...]) -> Value:
        base_type = base.type
        assert isinstance(base_type, TensorType)
        new = emit_one(aten.view.default, (value, [-1]), TensorType((value.type.numel,), base_type.dtype))  # type: ignore[union-attr]
        if positions is not None:
            with plainly():
                overlaps = positions.data.unique().numel() < positions.data.numel()
            if overlaps:
                raise UnsupportedError(
                    "an in-place change through a view made by as_strided() whose elements overlap",
                    current().origin(),
                    "write the result to a new tensor instead of changing it in place",
                )
            flat = _flat(base, order)
            assert isinstance(flat.type, TensorType)
            new = emit_one(aten.scatter.src, (flat, 0, positions, new), flat.type)
        sizes = tuple(base_type.shape[d] for d in order)
        new = emit_one(aten.view.default, (new, list(sizes)), TensorType(sizes, base_type.dtype))
        return _permuted(new, tuple(order.index(d) for d in range(len(order))))


POSITIONS = _Positions()


def as_strided(base: torch.Tensor, size: Any, stride: Any, offset: int | None = None) -> StagedTensor:
    """Return the view by sizes and strides of the memory that ``base`` lies in."""
    read(base)  # refuses what cannot be read
    storage, _ = home(base)
    if base.dtype != DTYPES[storage.value.type.dtype] or any(marks_of(base)):  # type: ignore[union-attr]
        raise UnsupportedError(
            "as_strided() on a tensor that sees its memory as other numbers", current().origin(), "copy it before: t = t.clone()"
        )
    shape, strides = tuple(map(int, size)), tuple(map(int, stride))
    offset = int(base.storage_offset()) if offset is None else int(offset)
    order = _order_in_memory(base, storage)
    count = storage.value.type.numel  # type: ignore[union-attr]
    with plainly():
        positions = torch.tensor(offset)
        for n, s in zip(shape, strides):
            if positions.numel() * n > _LARGE:
                raise UnsupportedError("a view of too many elements by as_strided()", current().origin(), "use view, reshape or unfold")
            positions = positions[..., None] + torch.arange(n) * s
        if positions.numel() and int(positions.max()) >= count:
            raise UnsupportedError("as_strided() goes beyond the memory of its tensor", current().origin(), "use sizes within it")
        positions = positions.reshape(-1)
        all_of_it = positions.numel() == count and torch.equal(positions, torch.arange(count))
        meta = meta_of(shape, strides, base.dtype)
    args = (order, None if all_of_it else constants().of(positions), shape)
    value = POSITIONS.read(storage.value, *args)
    return view_of(base, StagedTensor(meta, storage, ((POSITIONS, args, {}),), value, offset))


def _order_in_memory(base: torch.Tensor, storage: Storage) -> tuple[int, ...]:
    """Return the dimensions of a storage's contents in the order of its memory."""
    root: Any = storage.real
    if root is None:
        root = base if isinstance(base, StagedTensor) and not base.chain else getattr(base, "base", None)
    type_ = storage.value.type
    assert isinstance(type_, TensorType)
    if root is not None:
        layouts = layouts_of(root)
        if layouts is not None:
            layouts.settle()
        order = tuple(sorted(range(root.dim()), key=lambda d: (-root.stride(d), -root.shape[d])))
        memory = meta_of(type_.shape, tuple(root.stride()), DTYPES[type_.dtype])
        if tuple(root.shape) == type_.shape and memory.permute(order).is_contiguous():
            return order
    raise UnsupportedError("as_strided() on a tensor whose memory is not known", current().origin(), "use view, reshape, unfold or indices")


def _flat(base: Value, order: tuple[int, ...]) -> Value:
    permuted = _permuted(base, order)
    assert isinstance(permuted.type, TensorType)
    return emit_one(aten.view.default, (permuted, [-1]), TensorType((permuted.type.numel,), permuted.type.dtype))


def _permuted(value: Value, order: tuple[int, ...]) -> Value:
    type_ = value.type
    assert isinstance(type_, TensorType)
    if order == tuple(range(len(order))):
        return value
    return emit_one(aten.permute.default, (value, list(order)), TensorType(tuple(type_.shape[d] for d in order), type_.dtype))
