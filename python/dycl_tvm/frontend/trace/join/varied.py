# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors of another length on each path, or in each trip, if one is known only at run time: a buffer for the longest, and a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.frontend.trace.join.captured import Captured, TensorLeaf
from dycl_tvm.frontend.trace.values.grown import Grown, number
from dycl_tvm.frontend.trace.values.layouts import marks_of
from dycl_tvm.frontend.trace.values.lengths import Counter, Length
from dycl_tvm.frontend.trace.values.numbers import operand_of
from dycl_tvm.frontend.trace.values.storage import Stale, Storage, tensor_type
from dycl_tvm.frontend.trace.values.tensors import emit_one
from dycl_tvm.hcfg.nodes import Operand, Value
from dycl_tvm.hcfg.types import TensorType

aten = torch.ops.aten
#: So often is a buffer made longer because the body leaves a longer one than the header has.
_MOST_WIDENINGS = 4


@dataclass(frozen=True)
class Varied:
    """What tensors have in common that may stand for each other: all but the length along one dimension.

    Attributes
    ----------
    along : int
    least, most : int
        Bounds of the length.
    type : TensorType
        Of the buffer.
    """

    along: int
    least: int
    most: int
    type: TensorType

    def buffer(self, leaf: TensorLeaf) -> Value:
        """Return what a tensor holds, in a buffer."""
        value = leaf.value
        assert isinstance(value.type, TensorType)
        missing = self.most - value.type.shape[self.along]
        if missing > 0:
            rank = len(value.type.shape)
            return emit_one(aten.constant_pad_nd.default, (value, [0, 0] * (rank - 1 - self.along) + [0, missing], 0), self.type)
        return emit_one(aten.slice.Tensor, (value, self.along, 0, self.most), self.type) if missing < 0 else value

    def length(self, leaf: TensorLeaf) -> Operand:
        """Return how long a tensor is."""
        t = leaf.obj
        return operand_of(number(t.length)) if isinstance(t, Grown) else int(t.shape[self.along])

    def tensor(self, buffer: Value, length: Value, decision: Any) -> Grown:
        """Make the tensor that stands for all; ``decision`` is what tells them apart."""
        return Grown(Storage(buffer), (), buffer, self.along, Length(Counter(length, self.most, decision, first=self.least), 1, 0))


def varied(found: Sequence[Captured], before: Varied | None = None) -> Varied | None:
    """Return what tensors have in common of which one has a length of the run; None if one cannot stand for them all.

    ``before`` is what was found of others of them.
    """
    leaves = [c for c in found if isinstance(c, TensorLeaf)]
    grown = [c.obj for c in leaves if isinstance(c.obj, Grown)]
    if len(leaves) < len(found) or (not grown and before is None) or any(isinstance(c.value, Stale) for c in leaves):
        return None
    along = before.along if before is not None else grown[0].along
    if any(t.along != along for t in grown) or any(any(marks_of(c.obj)) for c in leaves if not isinstance(c.obj, Grown)):
        return None
    types = [c.obj.buffer if isinstance(c.obj, Grown) else tensor_type(c.obj) for c in leaves]
    forms = {(t.dtype, len(t.shape), tuple(n for d, n in enumerate(t.shape) if d != along)) for t in types}
    bounds = [
        c.obj.length.bounds if isinstance(c.obj, Grown) else (t.shape[along],) * 2 for c, t in zip(leaves, types) if len(t.shape) > along
    ]
    if before is not None:
        forms.add((before.type.dtype, len(before.type.shape), tuple(n for d, n in enumerate(before.type.shape) if d != along)))
        bounds.append((before.least, before.most))
    if len(forms) > 1 or len(bounds) < len(leaves):
        return None
    least, most = min(b[0] for b in bounds), max(b[1] for b in bounds)
    shape = types[0].shape
    return Varied(along, max(least, 0), most, TensorType((*shape[:along], most, *shape[along + 1 :]), types[0].dtype))


class VariedState:
    """Which tensors at the header of a loop have a length of the run, as far as it is known."""

    def __init__(self) -> None:
        self.forms: dict[tuple[Any, ...], Varied] = {}
        self._widened: dict[tuple[Any, ...], int] = {}

    def size(self) -> tuple[int, ...]:
        """Return what changes with every round that found something."""
        return (len(self.forms), sum(self._widened.values()))

    def notes(self, path: tuple[Any, ...], found: Sequence[Captured]) -> bool:
        """Note what tensors at the header and at the end of the body have in common; whether one can stand for them."""
        form = varied(found)
        if form is None or form.most < 1:
            return False
        self.forms[path] = form
        return True

    def holds(self, path: tuple[Any, ...], back: Captured) -> bool | None:
        """Whether the tensor at the header can stand for that at the end of the body; None if it can in the next round."""
        before = self.forms[path]
        form = varied([back], before)
        if form is None:
            return False
        if form == before:
            return True
        self._widened[path] = self._widened.get(path, 0) + 1
        if form.most > before.most and self._widened[path] > _MOST_WIDENINGS:
            return False
        self.forms[path] = form if form.least == before.least else Varied(form.along, 0, form.most, form.type)
        return None
