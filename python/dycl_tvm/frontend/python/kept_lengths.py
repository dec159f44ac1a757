# Licensed under the Apache License, Version 2.0; see LICENSE.
"""State that has another length after each call: caches, histories, windows.

Such a tensor is a buffer for the longest that calls leave, and its length is a state variable of its own. How long it gets is found
round by round, as at the header of a loop; where each call makes it longer, the user's ``max_length`` ends that, by an error at run time.
Tensors that are equally long after every call have one length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from dycl_tvm.frontend.trace.join.captured import TensorLeaf
from dycl_tvm.frontend.trace.join.varied import Varied
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.aligned import is_same
from dycl_tvm.frontend.trace.values.extents import Extent, as_number, bounds_of
from dycl_tvm.frontend.trace.values.grown import Grown, OfTheRun
from dycl_tvm.frontend.trace.values.grown_math import is_contiguous
from dycl_tvm.frontend.trace.values.layouts import marks_of
from dycl_tvm.frontend.trace.values.lengths import Counter, Length
from dycl_tvm.frontend.trace.values.numbers import operand_of
from dycl_tvm.frontend.trace.values.raising import limit
from dycl_tvm.frontend.trace.values.storage import Storage, tensor_type
from dycl_tvm.hcfg.nodes import Constant, Operand, Value
from dycl_tvm.hcfg.sizes import padded

Path = tuple[Any, ...]
#: Where nobody gives a bound: so much longer is a buffer made that calls outgrow, until it is longer than this.
_FACTOR, _MOST = 4, 4096


@dataclass
class Kept:
    """What tensors have in common that a place holds after calls.

    Attributes
    ----------
    form : Varied
    initial : torch.Tensor
        What it holds before the first call.
    bound : int or None
        What the user lets it grow to.
    contiguous : bool
        Whether all of them surely lie in memory as tensors that were made anew do.
    seen : int
        How long the paths of a round leave one at most.
    narrowed : bool
        Whether the buffer was made as short as was seen.
    """

    form: Varied
    initial: torch.Tensor
    bound: int | None
    contiguous: bool = True
    seen: int = 0
    narrowed: bool = False

    @property
    def first_length(self) -> int:
        """The length before the first call."""
        return int(self.initial.shape[self.form.along])

    def constant(self) -> Constant:
        """Return what the buffer holds before the first call."""
        with plainly():
            return Constant(self.form.type, padded(self.initial, self.form.type.shape).contiguous())

    def is_alike(self, t: torch.Tensor) -> bool:
        """Whether a tensor differs in its length only."""
        form = _of_tensor(t, self.form.along)
        return form is not None and _is_alike(form, self.form)

    def holds(self, t: torch.Tensor) -> bool:
        """Whether a tensor is of this kind, as far as it is known."""
        form = _of_tensor(t, self.form.along)
        if form is None or not _is_alike(form, self.form):
            return False
        self.seen = max(self.seen, form.most)
        fits = form.most <= self.form.most or (self.bound is not None and self.form.most >= self.bound)
        return fits and form.least >= self.form.least and is_contiguous(t) >= self.contiguous

    def widen(self, t: torch.Tensor) -> bool:
        """Let a tensor be of this kind that is longer, or shorter, than those that were known; whether there is an end to it."""
        form = _of_tensor(t, self.form.along)
        assert form is not None, "a tensor of this kind"
        most = self.form.most
        if form.most > most:
            most = self.bound if self.bound is not None else max(form.most, _FACTOR * most)
        self.form = self.form.sized(0 if form.least < self.form.least else self.form.least, most)
        self.contiguous &= is_contiguous(t)
        return self.bound is not None or most <= _MOST

    def narrow(self) -> bool:
        """Make the buffer no longer than it has to be, once; whether it was."""
        most = max(self.seen, self.first_length, 1)
        if self.narrowed or most >= self.form.most:
            return False
        self.form, self.narrowed = self.form.sized(self.form.least, most), True
        return True


def kept(like: torch.Tensor, initial: torch.Tensor, t: torch.Tensor) -> Kept | None:
    """Return what tensors like one of fixed shape and another have in common, if they differ in one dimension at most.

    ``initial`` is what there is before the first call.
    """
    type_ = tensor_type(like)
    if isinstance(t, Grown):
        along = next(iter(t.lengths)) if len(t.lengths) == 1 else None
    else:
        along = _differing(type_.shape, tuple(t.shape))
    form = None if along is None or any(marks_of(like)) else _of_tensor(t, along)
    if form is None or len(type_.shape) <= form.along:
        return None
    known = Varied(form.along, 0, 0, type_).sized(*(type_.shape[form.along],) * 2)
    bound = current().limits.length
    bound = None if bound is None else max(bound, int(initial.shape[form.along]))
    most = max(known.most, 1) if bound is None else bound
    return Kept(known.sized(known.least, most), initial, bound, bool(is_contiguous(like))) if _is_alike(form, known) else None


def _differing(shape: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    """Return the one dimension in which two shapes differ; None if there are others, or is none."""
    found = [d for d, (n, m) in enumerate(zip(shape, other)) if n != m]
    return found[0] if len(found) == 1 and len(shape) == len(other) else None


def _of_tensor(t: torch.Tensor, along: int) -> Varied | None:
    """Return the form of one tensor; None if another dimension of it has a length of the run."""
    if isinstance(t, Grown):
        return Varied(along, 0, 0, t.buffer).sized(*t.length.bounds) if list(t.lengths) == [along] else None
    type_ = tensor_type(t)
    if any(marks_of(t)) or len(type_.shape) <= along:
        return None
    return Varied(along, type_.shape[along], type_.shape[along], type_)


def _is_alike(a: Varied, b: Varied) -> bool:
    return a.along == b.along and len(a.type.shape) == len(b.type.shape) and a.sized(0, 0) == b.sized(0, 0)


@dataclass
class _Group:
    """Tensors that are equally long after every call."""

    number: int
    names: list[str] = field(default_factory=list)
    form: Varied | None = None
    initial: int = 0


class KeptLengths:
    """The lengths of a model's state: which of them are one."""

    def __init__(self) -> None:
        #: What tells those apart that were found to have different lengths.
        self._apart: dict[Path, int] = {}
        self.found = 0
        self._groups: dict[Path, _Group] = {}
        self._at_entry: dict[int, Length] = {}
        self._present: dict[Path, Extent] = {}

    def begin_round(self, known: Iterable[tuple[Path, str, Kept]]) -> list[tuple[int, str, int]]:
        """Group the tensors; return the number of each group, a name for its length, and that before the first call."""
        groups: dict[Any, _Group] = {}
        self._groups = {}
        for path, name, one in known:
            one.seen = 0
            key = (self._apart.get(path, 0), one.first_length, one.form.least, one.form.most)
            group = groups.setdefault(key, _Group(len(groups), [], one.form, one.first_length))
            group.names.append(name)
            self._groups[path] = group
        return [(g.number, f"the length of {', '.join(dict.fromkeys(g.names))}", g.initial) for g in groups.values()]

    def begin_run(self) -> None:
        """Forget what the last run found at its entry."""
        self._at_entry, self._present = {}, {}

    def at_entry(self, path: Path, one: Kept, buffer: Value, number: Operand) -> Grown:
        """Return the tensor that an earlier call has left."""
        group = self._groups[path]
        assert isinstance(number, Value)
        made = self._at_entry.get(group.number)
        if made is None:
            form = one.form
            made = self._at_entry[group.number] = Length(Counter(number, form.most, OfTheRun(), first=form.least), 1, 0)
        self._present[path] = made
        tensor = Grown(Storage(buffer), (), buffer, {one.form.along: made})
        tensor.contiguous_ = one.contiguous
        return tensor

    def number_of(self, path: Path) -> int:
        """Return the number of the group that a tensor belongs to."""
        return self._groups[path].number

    def leave(self, left: Mapping[Path, tuple[Kept, TensorLeaf, str]]) -> dict[Any, Operand]:
        """Return what buffers and lengths, by the numbers of their groups, are at the end of a path."""
        found: dict[Any, Operand] = {}
        lengths = dict(self._present)
        known: dict[int, Extent] = {}
        for path, (one, c, name) in left.items():
            length = lengths[path] = c.obj.length if isinstance(c.obj, Grown) else int(c.obj.shape[one.form.along])
            number = self._groups[path].number
            if number not in known or not is_same(known[number], length):
                known[number], n, most = length, as_number(length), one.form.most
                if bounds_of(length)[1] > most:
                    limit(operand_of(n <= most), f"`{name}` is longer after the call than max_length = {most}")
                found[number] = operand_of(n)
            found[path] = one.form.buffer(c)
        self._part(lengths)
        return found

    def _part(self, lengths: dict[Path, Extent]) -> None:
        """Note which tensors of a group are not equally long at the end of a path."""
        classes: dict[int, list[tuple[Extent, int]]] = {}
        for path, length in lengths.items():
            known = classes.setdefault(self._groups[path].number, [])
            which = next((k for other, k in known if is_same(other, length)), None)
            if which is None:
                if known:
                    self.found += 1
                which = self.found if known else -1
                known.append((length, which))
            if which >= 0:
                self._apart[path] = which
