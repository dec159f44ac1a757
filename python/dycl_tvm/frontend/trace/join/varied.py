# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors of another length on each path, or in each trip, if one is known only at run time: a buffer for the longest, and a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dycl_tvm.frontend.trace.join.captured import Captured, TensorLeaf, differing_dimension
from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.values.aligned import extent_at, is_same
from dycl_tvm.frontend.trace.values.extents import Extent, as_number, bounds_of
from dycl_tvm.frontend.trace.values.grown import Grown, buffer_type, rank_of, same_kind
from dycl_tvm.frontend.trace.values.grown_math import is_contiguous
from dycl_tvm.frontend.trace.values.grown_shapes import MOST_ELEMENTS
from dycl_tvm.frontend.trace.values.layouts import marks_of
from dycl_tvm.frontend.trace.values.lengths import Counter, Length
from dycl_tvm.frontend.trace.values.numbers import operand_of
from dycl_tvm.frontend.trace.values.raising import limit
from dycl_tvm.frontend.trace.values.storage import Stale, Storage
from dycl_tvm.frontend.trace.values.tensors import emit_one
from dycl_tvm.hcfg.nodes import Operand, Value
from dycl_tvm.hcfg.types import TensorType

aten = torch.ops.aten
#: So often is a buffer made longer because the body leaves a longer one than the header has.
_MOST_WIDENINGS = 4
#: So often are buffers made for more trips, because a round found more.
_MOST_REVISIONS = 1


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
    others : tuple of (int, Length)
        Lengths along other dimensions, which all of them have.
    contiguous : bool
        Whether all surely lie in memory as tensors that were made anew do.
    """

    along: int
    least: int
    most: int
    type: TensorType
    others: tuple[tuple[int, Length], ...] = ()
    contiguous: bool = False

    def sized(self, least: int, most: int) -> Varied:
        """Return the same with other bounds of the length."""
        shape = self.type.shape
        type_ = TensorType((*shape[: self.along], most, *shape[self.along + 1 :]), self.type.dtype)
        return replace(self, least=max(least, 0), most=most, type=type_)

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
        return operand_of(as_number(_extent(leaf.obj, self.along)))

    def tensor(self, buffer: Value, length: Value, decision: Any) -> Grown:
        """Make the tensor that stands for all; ``decision`` is what tells them apart."""
        own = Length(Counter(length, self.most, decision, first=self.least), 1, 0)
        made = Grown(Storage(buffer), (), buffer, {**dict(self.others), self.along: own})
        made.contiguous_ = self.contiguous
        return made


def _extent(t: torch.Tensor, dim: int) -> Extent:
    found = extent_at(t, rank_of(t) - dim)
    assert found is not None
    return found


def _same_in_all(tensors: Sequence[torch.Tensor], dim: int) -> Length | None:
    """Return the one length that tensors have along a dimension; None if they have several, or a plain size."""
    found = [t.lengths.get(dim) if isinstance(t, Grown) else None for t in tensors]
    return found[0] if all(is_same(n, found[0]) for n in found) else None


def one_for_both(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether one tensor may stand for two: both have one fixed shape, or the same lengths along several dimensions."""
    if not (isinstance(before, Grown) and isinstance(after, Grown)):
        return same_kind(before, after)
    if before.buffer != after.buffer or list(before.lengths) != list(after.lengths) or len(before.lengths) == 1:
        return False
    return all(_same_in_all([before, after], d) is not None for d in before.lengths)


def varied(found: Sequence[Captured], before: Varied | None = None) -> Varied | None:
    """Return what tensors have in common of which one has a length of the run; None if one cannot stand for them all.

    ``before`` is what was found of others of them.
    """
    leaves = [c for c in found if isinstance(c, TensorLeaf)]
    grown = [c.obj for c in leaves if isinstance(c.obj, Grown)]
    if len(leaves) < len(found) or (not grown and before is None) or any(isinstance(c.value, Stale) for c in leaves):
        return None
    if any(any(marks_of(c.obj)) for c in leaves if not isinstance(c.obj, Grown)) or len({rank_of(c.obj) for c in leaves}) > 1:
        return None
    dims = sorted({d for t in grown for d in t.lengths})
    same = {d: n for d in dims if (n := _same_in_all([c.obj for c in leaves], d)) is not None}
    others: dict[int, Length] = {} if before is None else dict(before.others)
    if before is not None:
        along = before.along
    elif len(dims) == 1:
        along = dims[0]
    else:
        differing = [d for d in dims if d not in same]
        if len(differing) != 1:
            return None
        along, others = differing[0], {d: same[d] for d in dims if d in same}
    if set(dims) - {along} != set(others) or any(not is_same(same.get(d), n) for d, n in others.items()):
        return None
    types = [buffer_type(c.obj) for c in leaves] + ([] if before is None else [before.type])
    if len({(t.dtype, len(t.shape), tuple(n for d, n in enumerate(t.shape) if d != along)) for t in types}) > 1:
        return None
    if len(types[0].shape) <= along:
        return None
    bounds = [bounds_of(_extent(c.obj, along)) for c in leaves] + ([] if before is None else [(before.least, before.most)])
    least, most = min(b[0] for b in bounds), max(b[1] for b in bounds)
    shape = types[0].shape
    type_ = TensorType((*shape[:along], most, *shape[along + 1 :]), types[0].dtype)
    contiguous = all(is_contiguous(c.obj) for c in leaves) and (before is None or before.contiguous)
    return Varied(along, max(least, 0), most, type_, tuple(others.items()), contiguous)


class _Endless(OfOneRun):
    """Which tensors every trip of a loop makes longer: by the place of the loop and the path of the tensor."""

    def __init__(self) -> None:
        self.found: frozenset[tuple[Any, ...]] = frozenset()


class VariedState:
    """Which tensors at the header of a loop have a length of the run, as far as it is known.

    Parameters
    ----------
    loop : object
        The decision of the loop.
    """

    def __init__(self, loop: Any) -> None:
        self.forms: dict[tuple[Any, ...], Varied] = {}
        self._loop = loop
        self._widened: dict[tuple[Any, ...], int] = {}
        #: What the rounds of this loop have found where another loop ran it before; a path that repeats another finds what that one did.
        self._endless: frozenset[tuple[Any, ...]] = current().builder.event(("endless",), lambda: current().get(_Endless).found)
        #: Tensors that are as long as they may get, and by how much a trip made them longer; where one gets longer, the network ends
        #: with an error.
        self._bounded: dict[tuple[Any, ...], int] = {}
        #: How many trips the loop makes at most, if a number that its test bounds tells: by the last round, and by the one at hand.
        self._trips: int | None = None
        self._counted: int | None = None
        #: How often a round found more trips than a buffer had been made for.
        self._revisions = 0

    def size(self) -> tuple[int, ...]:
        """Return what changes with every round that found something."""
        trips = self._trips if self.forms else None
        return (len(self.forms), sum(self._widened.values()), sum(form.contiguous for form in self.forms.values()), trips or 0)

    def count(self, trips: int | None) -> None:
        """Note how many trips the loop makes at most, by a number in it."""
        self._counted = min((n for n in (trips, self._counted) if n is not None), default=None)

    def end_round(self) -> None:
        """Go on with what this round says of the trips; what an earlier one said is not so if the loop has turned out more general.

        Where that goes on, it is the length of a buffer that says how many trips there are, and the trips say how long it is.
        """
        if self._trips is not None and (self._counted is None or self._counted > self._trips):
            self._revisions += bool(self._bounded)
            self._bounded.clear()
            self._widened.clear()
        self._trips, self._counted = self._counted if self._revisions <= _MOST_REVISIONS else None, None

    def notes(self, path: tuple[Any, ...], found: Sequence[Captured]) -> bool:
        """Note what tensors at the header and at the end of the body have in common; whether one can stand for them."""
        form = varied(found) or self._lengthened(found)
        if form is None or form.most < 1:
            return False
        before = bounds_of(_extent(found[0].obj, form.along))[1]  # type: ignore[arg-type]  # all are tensors
        self.forms[path] = self._ended(path, form, before) or form
        return True

    def _lengthened(self, found: Sequence[Captured]) -> Varied | None:
        """Return what tensors of fixed shapes have in common, one of which is longer, if somebody says how long they may get."""
        leaves = [c for c in found if isinstance(c, TensorLeaf) and not isinstance(c.obj, Grown)]
        if self._bound(0, 1) is None or len(leaves) < len(found) or (along := differing_dimension(leaves)) is None:
            return None
        types = [buffer_type(c.obj) for c in leaves]
        sizes = [t.shape[along] for t in types]
        contiguous = all(is_contiguous(c.obj) for c in leaves)
        return Varied(along, 0, 0, types[0], contiguous=contiguous).sized(min(sizes), max(sizes))

    def holds(self, path: tuple[Any, ...], back: Captured) -> bool | None:
        """Whether the tensor at the header can stand for that at the end of the body; None if it can in the next round."""
        before = self.forms[path]
        form = varied([back], before)
        if form is None:
            return False
        if path in self._bounded and (form.most - before.most <= self._bounded[path] or self._widened.get(path, 0) > _MOST_WIDENINGS):
            form = form.sized(form.least, before.most)
        if form == before:
            return True
        if replace(form, contiguous=True) == before:
            self.forms[path] = form
            return None
        self._widened[path] = self._widened.get(path, 0) + 1
        ended = self._ended(path, form, before.most)
        if ended is None and form.most > before.most and self._widened[path] > _MOST_WIDENINGS:
            return False
        form = ended or form
        self.forms[path] = form if form.least == before.least else replace(form, least=0)
        return None

    def _ended(self, path: tuple[Any, ...], form: Varied, before: int) -> Varied | None:
        """Return what stands for a tensor as long as somebody lets it get, where each trip makes it longer, or it is as long already."""
        if form.most <= before:
            return None
        given, known, more = current().limits.length, (self._loop.origin, path), form.most - before
        bound, widened = self._bound(before, more), self._widened.get(path, 0)
        is_endless = widened > (_MOST_WIDENINGS if self._loop.trips is None and self._trips is None else 0)
        if bound is None or not (is_endless or known in self._endless or form.most >= (given or math.inf)):
            return None
        self._bounded[path] = more
        current().get(_Endless).found |= {known}
        return form.sized(form.least, bound)

    def _bound(self, most: int, more: int) -> int | None:
        """Return how long a tensor may get that is so much longer after each trip; None if nobody says."""
        given = current().limits.length
        if given is not None:
            return max(given, most)
        counted = self._trips if self._trips is not None and most + more * self._trips <= MOST_ELEMENTS else None
        trips = next((n for n in (self._loop.most, self._loop.trips, counted, current().limits.loop_trips) if n is not None), None)
        return None if trips is None else most + more * trips

    def limit(self, path: tuple[Any, ...], back: TensorLeaf) -> None:
        """End the network where a tensor is longer after the trip than it may be."""
        form = self.forms[path]
        length = _extent(back.obj, form.along)
        if bounds_of(length)[1] > form.most:
            limit(
                operand_of(as_number(length) <= form.most),
                f"a loop makes a tensor longer than {form.most}, which max_length or the trips bound",
            )
