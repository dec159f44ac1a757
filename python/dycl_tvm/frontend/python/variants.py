# Licensed under the Apache License, Version 2.0; see LICENSE.
"""State that is of one kind in some calls and of another in others: None and then a tensor, two modules, a list that grows to a bound.

One state variable says which kinds there are, of all places together, and each kind has variables of its own for what it holds. The
network begins with tests of the first, so every run of the forward knows what it finds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.kept_lengths import Kept, kept
from dycl_tvm.frontend.trace.heap.places import MISSING
from dycl_tvm.frontend.trace.join.captured import (
    Captured,
    Items,
    NumberLeaf,
    PlaceState,
    Plain,
    TensorLeaf,
    capture,
    is_container,
    rebuild,
    same_number,
    same_plain,
    same_structure,
)
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.unrecorded import unrecorded
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.constants import constants
from dycl_tvm.frontend.trace.values.grown import Grown, buffer_type
from dycl_tvm.frontend.trace.values.identity import the_role_of
from dycl_tvm.frontend.trace.values.layouts import marks_of, with_marks
from dycl_tvm.frontend.trace.values.roles import PLAIN, Role
from dycl_tvm.frontend.trace.values.storage import DTYPES, Stale, tensor_type
from dycl_tvm.frontend.trace.values.tensors import storage_of
from dycl_tvm.hcfg.nodes import Constant, Operand, Origin, Value
from dycl_tvm.hcfg.types import ScalarType, Type

#: How many kinds one value, and the contents of one container, may have: each is a way through the network of its own.
_MOST, MOST_CONTENTS = 4, 12
#: How many combinations of kinds calls may leave.
_MOST_COMBINATIONS = 24
_EMPTY = {"int": 0, "float": 0.0, "bool": False}
_NUMBERS: dict[type, ScalarType] = {int: ScalarType("int"), float: ScalarType("float"), bool: ScalarType("bool")}


@dataclass(frozen=True)
class Layout:
    """How tensors of one kind lie in memory, and are marked; what they are beside their elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    marks: tuple[bool, bool]
    role: Role = PLAIN

    @staticmethod
    def of(t: torch.Tensor) -> Layout:
        return Layout(tuple(t.shape), t.stride(), t.dtype, marks_of(t), the_role_of(t))

    def meta(self) -> torch.Tensor:
        """Return a tensor without data."""
        return with_marks(torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta"), *self.marks)


@dataclass
class Variant:
    """One kind of value: an object that is the same in every call, or a type.

    Attributes
    ----------
    obj : object
        The object, which may be a number; the layout of tensors; a container that was taken down; None for any numbers of a type.
    type : Type or None
        That of tensors and numbers.
    initial : Constant or number
        What the variable of this kind holds before the first call.
    kept : Kept or None
        Of tensors whose length differs from call to call.
    """

    obj: Any
    type: Type | None = None
    initial: Constant | int | float | bool = 0
    kept: Kept | None = None

    def is_of(self, c: Captured) -> bool:
        """Whether a value is of this kind."""
        if self.kept is not None:
            return isinstance(c, TensorLeaf) and self.kept.holds(c.obj)
        if isinstance(c, TensorLeaf):
            return not isinstance(c.obj, Grown) and self.type == tensor_type(c.obj) and self.obj == Layout.of(c.obj)
        if isinstance(c, NumberLeaf):
            return self.type == _number_type(c) or self.is_number(c)
        if isinstance(c, Items) or isinstance(self.obj, Items):
            return isinstance(c, Items) and isinstance(self.obj, Items) and same_structure(self.obj, c)
        return self.type is None and (self.obj is c.obj or same_plain([self.obj, c.obj]))

    def is_number(self, c: NumberLeaf) -> bool:
        """Whether this is one number, and a value that number."""
        return self.type is None and type(self.obj) in _NUMBERS and same_number(NumberLeaf(self.obj, self.obj), c)


class Variants:
    """The kinds of one value, the first of them what it is before the first call."""

    def __init__(self, first: Captured, lives_on: Callable[[Any], bool]) -> None:
        self._lives_on = lives_on
        self.known = [_variant(_with_objects(first, lives_on))]
        #: How often a kind has become more: one number a type of numbers, one length any length.
        self.widened = 0

    def which(self, c: Captured) -> int | None:
        """Return the number of a value's kind, which may be a new one; None if no variable can keep it."""
        _part_at_poisons(c)
        if (isinstance(c, TensorLeaf) and isinstance(c.value, Stale)) or scalars.mixed_of(c.obj) is not None:
            return None
        c = _with_objects(c, self._lives_on)
        found = next((i for i, v in enumerate(self.known) if v.is_of(c)), None)
        if found is None and isinstance(c, NumberLeaf):
            return self._of_other_number(c)
        if found is None and isinstance(c, TensorLeaf) and (found := self._of_other_length(c.obj)) is not None:
            return found if found >= 0 else None
        most = MOST_CONTENTS if isinstance(c, Items) else _MOST
        if found is None and can_vary(c, self._lives_on) and len(self.known) < most:
            made = _variant(_blank(c))
            if isinstance(c, TensorLeaf):
                made.obj = replace(made.obj, role=the_role_of(c.obj))
            self.known.append(made)
            found = len(self.known) - 1
        return found

    def _of_other_length(self, t: torch.Tensor) -> int | None:
        """Return the number of the kind of a tensor that differs in its length only; -1 if that has no end, None if it is of none."""
        if the_role_of(t) != PLAIN:
            return None
        varies = current().limits.length is not None or isinstance(t, Grown) or len(self.known) == _MOST
        for i, v in enumerate(self.known):
            one = v.kept
            if one is None and varies and isinstance(v.obj, Layout) and v.obj.role == PLAIN and isinstance(v.initial, Constant):
                one = kept(v.obj.meta(), v.initial.data, t)
            if one is None or not one.is_alike(t):
                continue
            self.widened += 1
            self.known[i] = Variant(None, one.form.type, v.initial, one)
            self.known = [w for w in self.known if not isinstance(w.obj, Layout) or not one.is_alike(w.obj.meta())]
            return i if one.widen(t) else -1
        return None

    def _of_other_number(self, c: NumberLeaf) -> int | None:
        """Return the number of the kind of a number that is of none: one is known at build time as long as calls leave no other."""
        if not can_vary(c, self._lives_on):
            return None
        one = next((i for i, v in enumerate(self.known) if v.type is None and _NUMBERS.get(type(v.obj)) == _number_type(c)), None)
        if one is not None:
            self.known[one] = Variant(None, _number_type(c), self.known[one].obj)
            self.widened += 1
        elif len(self.known) < _MOST:
            self.known.append(_variant(_blank(c)) if isinstance(c.operand, Value) else Variant(c.operand))
            one = len(self.known) - 1
        return one


class ContentsVariants:
    """The kinds of contents of one container, the first of them what it holds before the first call."""

    def __init__(self, first: PlaceState, lives_on: Callable[[Any], bool]) -> None:
        self._lives_on = lives_on
        self.known = [first]

    def which(self, now: PlaceState) -> int | None:
        """Return the number of the kind of contents, which may be a new one; None if no variables can keep them."""
        found = next((i for i, state in enumerate(self.known) if state.structure == now.structure), None)
        for c in now.items if found is None else ():
            _part_at_poisons(c)
        if found is None and len(self.known) < MOST_CONTENTS and all(can_vary(c, self._lives_on) for c in (*now.items, *_keys_of(now))):
            self.known.append(replace(now, items=[_blank(_with_objects(c, self._lives_on)) for c in now.items]))
            found = len(self.known) - 1
        return found


class Kinds:
    """The combinations of kinds that calls leave: places that always change together are not told apart one by one."""

    def __init__(self) -> None:
        self.known: list[dict[Any, int]] = [{}]
        #: Grows with every combination that is found, and when all are forgotten.
        self.found = 0
        #: Those that the runs of the session at hand may find; more may be known at its end.
        self._told_apart = self.known
        #: Of which kind a place is in the run at hand; the first, if it is not here.
        self._at_hand: dict[Any, int] = {}
        #: What flags are in a combination, by its number; None where calls leave both. A flag is mostly set with what it tells of.
        self._flags: dict[tuple[int, Any], bool | None] = {}

    def forget(self) -> None:
        """Find the combinations anew: another place has kinds."""
        self.known = [{}]
        self._flags.clear()
        self.found += 1

    def begin(self) -> None:
        """Tell those apart, in all runs of the session to come, that are known now."""
        self._told_apart = list(self.known)

    def enter(self, number: Operand, origin: Origin | None) -> None:
        """Decide which combination the run at hand finds."""
        session = current()
        for i, kinds in enumerate(self._told_apart[1:], 1):
            if session.decisions.decide(session.builder.host_op("eq", (number, i), ScalarType("bool")), origin):
                self._at_hand = kinds
                return
        self._at_hand = self._told_apart[0]

    def at_entry(self, place: Any) -> int:
        """Return of which kind a place is in the run at hand."""
        return self._at_hand.get(place, 0)

    def flag_at_entry(self, flag: Any, initial: bool) -> bool | None:
        """Return what a flag is in the run at hand; None if that is not known."""
        self._flags.setdefault((0, flag), initial)
        return self._flags.get((self._told_apart.index(self._at_hand), flag))

    def leave_flag(self, combination: int, flag: Any, value: bool | None) -> None:
        """Note what a path leaves of a flag, with the number of the combination that it leaves; None if it may be both."""
        known = self._flags.setdefault((combination, flag), value)
        if known is not None and known != value:
            self._flags[combination, flag] = None
            self.found += 1

    def leave(self, changed: dict[Any, int]) -> int:
        """Return the number of the combination that a path leaves, if it has changed the kinds of some places."""
        now = {place: kind for place, kind in {**self._at_hand, **changed}.items() if kind}
        if now not in self.known:
            self.known.append(now)
            self.found += 1
        if len(self.known) > _MOST_COMBINATIONS:
            raise UnsupportedError(
                f"calls leave what the model keeps in more than {_MOST_COMBINATIONS} combinations of kinds",
                current().origin(),
                "give each attribute its final type in __init__, and bound the length of lists and dicts",
            )
        return self.known.index(now)


def _keys_of(state: PlaceState) -> list[Captured]:
    """Return the keys of a dict, or the items of a set: a part of the structure."""
    owner = state.place.owner
    return [capture(k[0] if isinstance(owner, dict) else k) for k in state.raw] if isinstance(owner, (dict, set)) else []


def _part_at_poisons(c: Captured) -> None:
    """Have the paths part that leave different values here."""
    if isinstance(c.obj, Poison):
        use(c.obj)
    for item in c.items if isinstance(c, Items) else ():
        _part_at_poisons(item)


def _with_objects(c: Captured, lives_on: Callable[[Any], bool]) -> Captured:
    """Return a value with the containers of the model's in it as the objects that they are: what these hold are places of their own."""
    if not isinstance(c, Items):
        return c
    return Plain(c.obj) if lives_on(c.obj) else replace(c, items=[_with_objects(i, lives_on) for i in c.items])


def _blank(c: Captured) -> Captured:
    """Return what a variable holds before there is anything to hold: zeros in the place of what is known at run time only."""
    if isinstance(c, TensorLeaf):
        return capture(_zeros(c.obj))
    if isinstance(c, NumberLeaf) and isinstance(c.operand, Value):
        return capture(_EMPTY[scalars._kind(c.operand)])
    if isinstance(c, Items):  # not the object itself: a path that leaves it there has changed the place
        blank = copy.copy(c.obj) if is_container(c.obj) else rebuild(c, [i.obj for i in c.items])
        return replace(c, obj=blank, items=[_blank(i) for i in c.items])
    return c


def can_vary(c: Captured, lives_on: Callable[[Any], bool]) -> bool:
    """Whether a value is of a kind that a place can have beside others: it is not an object that a call has made."""
    if isinstance(c, Items):
        return all(can_vary(i, lives_on) for i in (*c.items, *map(capture, c.keys)))
    if isinstance(c, TensorLeaf):
        return not isinstance(c.value, Stale) and not storage_of(c.obj).shared
    if isinstance(c, NumberLeaf):
        return scalars.mixed_of(c.obj) is None
    return isinstance(c, Plain) and (c.obj is MISSING or same_plain([c.obj, c.obj]) or lives_on(c.obj)) and not isinstance(c.obj, Poison)


def sort_of(c: Captured) -> Any:
    """Return what tells apart the values that a place may hold, for places that are alike."""
    return buffer_type(c.obj) if isinstance(c, TensorLeaf) else (type(c.obj), len(c.items)) if isinstance(c, Items) else type(c.obj)


def _variant(c: Captured) -> Variant:
    if isinstance(c, TensorLeaf):
        return Variant(Layout.of(c.obj), tensor_type(c.obj), constants().of(c.obj))
    if isinstance(c, NumberLeaf):
        assert not isinstance(c.operand, Value)
        return Variant(None, _number_type(c), c.operand)
    return Variant(c if isinstance(c, Items) else c.obj)


def _zeros(like: torch.Tensor) -> torch.Tensor:
    """Return a real tensor: what a variable holds before there is anything to hold."""
    with unrecorded():
        if isinstance(like, Grown):
            return torch.zeros(like.buffer.shape, dtype=DTYPES[like.buffer.dtype])
        return with_marks(torch.empty_strided(tuple(like.shape), like.stride(), dtype=like.dtype).zero_(), *marks_of(like))


def _number_type(c: NumberLeaf) -> ScalarType:
    return ScalarType(scalars._kind(c.operand))  # type: ignore[arg-type]  # the kinds are those of ScalarType
