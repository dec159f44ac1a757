# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The memory of tensors: what it holds, and which memory may be one with another."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.clock import clock
from dycl_tvm.frontend.trace.heap.places import One
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.identity import Apart, Carrier, Identity
from dycl_tvm.hcfg.nodes import Value
from dycl_tvm.hcfg.types import ITEM_BYTES, TensorType

DTYPE_NAMES = {getattr(torch, name): name for name in ITEM_BYTES}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


def tensor_type(t: torch.Tensor) -> TensorType:
    """Return the HCFG type of a tensor."""
    name = DTYPE_NAMES.get(t.dtype)
    if name is None:
        raise UnsupportedError(f"tensors of {t.dtype} are not supported", current().origin(), f"use one of {', '.join(ITEM_BYTES)}")
    return TensorType(tuple(map(int, t.shape)), name)


_CHANGED = "a tensor is changed in place that grows in a loop"
_CHANGED_COPY = (
    "a tensor whose lengths are known only at run time is changed in place, or a view of one, which has another view whose elements "
    "were copied (it merges or splits dimensions, or may be a copy in eager)"
)


def check_shape_undoable(storage: Storage) -> None:
    """Fork if the shape of a tensor in a memory is to be changed in place that was not made on the path at hand."""
    current().heap.check_undoable(storage, "the shape of a tensor made before a branch is changed in place in it")


class Stale(Value):
    """Contents of a storage that may have been changed through another storage: in eager they may, or may not, be one."""

    __slots__ = ("decision",)

    def __init__(self, type_: Any, decision: Any) -> None:
        super().__init__(type_)
        self.decision = decision

    def refuse(self) -> Any:
        """Say why the contents cannot be read."""
        current().decisions.fork(self.decision, "a tensor is read that may, or may not, have been changed in place under another name")


class Storage(Carrier, One):
    """The memory that tensors share. Also a place of the journal.

    Attributes
    ----------
    value : Value
        The contents, in the shape of the base tensor.
    version : int
        Changes with ``value``; no number is used twice.
    """

    __slots__ = (
        "__weakref__",
        "born",
        "cached",
        "cut",
        "growing",
        "identity",
        "lent",
        "memory",
        "mergers",
        "real",
        "shadows",
        "shared",
        "sources",
        "value",
        "version",
    )

    def __init__(self, value: Value) -> None:
        self.value = value
        self.identity: Identity | None = None
        self.version = self.born = next(clock)
        #: The real tensor that lies in all of this memory, if it is that of the model.
        self.real: torch.Tensor | None = None
        self.memory: int | None = None
        #: Whether that memory may be an array's too.
        self.shared = False
        #: Whether a cached function keeps the tensor for later calls of the network.
        self.cached = False
        #: The loop in which a tensor that lies in the memory grows from trip to trip, or what decides the lengths of one of which a view
        #: is a copy.
        self.growing: Any = None
        #: Whether it is that of a tensor of fixed shape, and what grows in it are views of that one.
        self.cut = False
        #: Whether an object that is no tensor shares the memory.
        self.lent = False
        #: (weak reference to a storage, decision): joins in which this storage and the other became, or may be, one.
        self.mergers: list[tuple[weakref.ref[Storage], Any]] = []
        #: The storages that this one may be, by a join or a header: they live as long, for what they may be one with this may be too.
        self.sources: list[Storage] = []
        #: The same of storages that no fork can tell apart: a change of one makes the other's contents unreadable.
        self.shadows: list[tuple[weakref.ref[Storage], Any]] = []

    @property
    def owner(self) -> Storage:
        return self

    @property
    def key(self) -> Any:
        return (id(self) if self.memory is None else self.memory, "storage")

    @property
    def text(self) -> str:
        return "a tensor"

    def read(self) -> Any:
        return (self.value, self.version)

    def write(self, contents: Any) -> None:
        self.value, self.version = contents

    def flatten(self, contents: Any) -> tuple[Any, Sequence[Any]]:
        return (), (contents[0],)

    def unflatten(self, contents: Any, items: Sequence[Any]) -> Any:
        return contents if items[0] is contents[0] else (items[0], next(clock))

    def set(self, value: Value) -> None:
        """Change the contents."""
        session = current()
        if self.shared:
            raise UnsupportedError(
                "a tensor is changed in place that may lie in the memory of a NumPy array",
                session.origin(),
                "give it memory of its own: t = torch.tensor(array), or t.clone()",
            )
        if self.cached:
            raise UnsupportedError(
                "a tensor is changed in place that a cached function keeps: later calls of the network would find it changed",
                session.origin(),
                "copy it before: t = t.clone()",
            )
        if self.growing is not None and session.decisions.holds(self.growing):
            what = _CHANGED if getattr(self.growing, "is_loop", False) else _CHANGED_COPY
            session.decisions.fork(self.growing, what)
        if self.identity is not None:
            session.get(Apart).note_change(self.identity)
        if self.lent:
            session.heap.lend(self)
            session.heap.check_lent(self)
        twins = self._twins()
        for storage in (self, *twins):
            for other, decision in storage.mergers:
                if other() is not None and session.decisions.holds(decision):
                    session.decisions.fork(decision, "a tensor is changed in place that is one of two, depending on the branch taken")
        for twin, decision in twins.items():
            session.journal.touch(twin)
            twin.value, twin.version = Stale(twin.value.type, decision), next(clock)
        session.journal.touch(self)
        self.value, self.version = value, next(clock)

    def joined_with(self) -> list[Storage]:
        """Return this, and the storages of which one became it in a join, that it was joined with, or that it may be one with, also by
        way of others."""
        found, todo = {self: None}, [self]
        while todo:
            storage = todo.pop()
            for reference, _ in (*storage.mergers, *storage.shadows):
                other = reference()
                if other is not None and other not in found:
                    found[other] = None
                    todo.append(other)
        return list(found)

    def _twins(self) -> dict[Storage, Any]:
        """Return the storages that may be one with this, also by way of others, and what would have to tell them apart."""
        found: dict[Storage, Any] = {}
        todo: list[Storage] = [self]
        holds = current().decisions.holds
        while todo:
            for shadow, decision in todo.pop().shadows:
                twin = shadow()
                if twin is not None and twin is not self and twin not in found and holds(decision):
                    found[twin] = decision
                    todo.append(twin)
        return found


def may_be_one(a: Storage, b: Storage, decision: Any) -> None:
    """Let two storages know that they may be one in eager; reading one after a change of the other forks (or refuses) ``decision``.

    The second lives as long as the first, which is made later: what it may be one with, the first may be too.
    """
    if a is not b:
        a.shadows.append((weakref.ref(b), decision))
        b.shadows.append((weakref.ref(a), decision))
        a.sources.append(b)
