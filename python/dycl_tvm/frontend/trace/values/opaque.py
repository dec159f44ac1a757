# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What ``id(t)`` and ``t.data_ptr()`` give of a tensor: numbers that mean nothing but which object, or which memory, it is."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.identity import are_one, settle
from dycl_tvm.frontend.trace.values.tensors import SELECT_AT, StagedTensor, storage_of


class _Opaque:
    """A number of which only equality is known."""

    what: str

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._same(other)

    def __hash__(self) -> int:
        raise NotImplementedError

    def _same(self, other: Any) -> bool:
        raise NotImplementedError

    def _refuse(self, *_args: Any) -> Any:
        raise UnsupportedError(f"{self.what} of a tensor is used as a number", current().origin(), "compare it with another one, by ==")

    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __floordiv__ = _refuse
    __int__ = __index__ = __float__ = __str__ = __repr__ = __and__ = __rshift__ = __lshift__ = __xor__ = __format__ = _refuse


class ObjectId(_Opaque):
    """``id(t)``, of a tensor of which it is settled which one it is."""

    what = "the id"

    def __init__(self, t: torch.Tensor) -> None:
        self._tensor = t

    def _same(self, other: Any) -> bool:
        return are_one(self._tensor, other._tensor)

    def __hash__(self) -> int:
        return hash(self._tensor)


class Address(_Opaque):
    """``t.data_ptr()``: an offset in a memory of which it is settled which one it is."""

    what = "the address"

    def __init__(self, t: torch.Tensor) -> None:
        self._storage, self._offset = storage_of(t), offset_of(t) * t.element_size()

    def _same(self, other: Any) -> bool:
        return self._offset == other._offset and are_one(self._storage, other._storage)

    def __hash__(self) -> int:
        return hash((id(self._storage), self._offset))


class Memory:
    """``t.untyped_storage()``."""

    def __init__(self, t: torch.Tensor) -> None:
        settle(storage_of(t), "the memory")
        self._address = Address(t)
        self._address._offset = 0

    def data_ptr(self) -> Address:
        """Return the address at which it begins."""
        return self._address

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedError(f"`{name}` of the memory of a tensor", current().origin(), "compute on the tensor itself")


def is_set_to(t: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same part of one memory, seen in one way."""
    return Address(t) == Address(other) and t.shape == other.shape and t.stride() == other.stride()


def offset_of(t: torch.Tensor) -> int:
    """Return where a tensor begins in its memory."""
    settle(storage_of(t), "the offset")
    if isinstance(t, StagedTensor) and any(op is SELECT_AT for op, _, _ in t.chain):
        raise UnsupportedError(
            "where a tensor selected at a run-time index lies in memory", current().origin(), "compare the indices instead"
        )
    return int(t.storage_offset())
