# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Lists that calls of the model make longer: a tensor has the items as its rows, and is kept like any other that grows.

While a model is staged something stands for such a list that knows what is done with histories. Any other use of it, and a refusal for
another reason, begins staging anew with the list itself.
"""

from __future__ import annotations

import collections
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.calls.kept_items import Items, KeptMethod
from dycl_tvm.frontend.python.calls.kept_rows import (
    Form,
    HasRows,
    Leaf,
    beginning,
    common,
    form_of,
    in_form,
    is_even,
    number_row,
    row_of,
    settled,
    told,
)
from dycl_tvm.frontend.python.calls.sealed import Sealed, is_stagings, sealed_kind
from dycl_tvm.frontend.python.calls.stand_ins import StandIns, begin_anew
from dycl_tvm.frontend.python.flow.iteration import ByIndex, InTurn
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.trace.heap.places import attribute_of
from dycl_tvm.frontend.trace.join.captured import PlaceState
from dycl_tvm.frontend.trace.results import Rows
from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.extents import as_number, decided_length
from dycl_tvm.frontend.trace.values.grown import Grown
from dycl_tvm.frontend.trace.values.identity import Identity, identity_of, join_identities
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.raising import limit
from dycl_tvm.frontend.trace.values.recorder import item as number
from dycl_tvm.frontend.trace.values.storage import may_be_one
from dycl_tvm.frontend.trace.values.tensors import storage_of


def _not_in_a_list(item: Any) -> str:
    """Return what Python says of an item that is in no list; of a number that only the run knows it says nothing here."""
    if scalars.is_symbolic(item):
        return "the item is not in the list"
    try:
        [].index(item)
    except ValueError as error:
        return str(error)
    raise AssertionError("an empty list has no items")


class _OneOfThem:
    """In the place of a decision: an item of such a list, and a tensor that may be one of them."""

    index = -1

    def refuse(self, reason: str, others: object = "") -> None:
        """Refuse to read one after a change of the other, or to say whether they are one."""
        raise UnsupportedError(reason, current().origin(), "append a copy: self.kept.append(x.clone())")


class KeptList(Sealed, ByIndex, HasRows):
    """Stands for a list or deque; see :func:`_kind_of`."""

    __slots__ = ("_items",)
    written_by = frozenset(
        [
            "append",
            "extend",
            "pop",
            "clear",
            "insert",
            "appendleft",
            "popleft",
            "__iadd__",
            "__setitem__",
            "__delitem__",
            "__getitem__",
            "count",
            "index",
            "reverse",
            "sort",
            "copy",
        ]
    )

    @staticmethod
    def shown(method: Any) -> Any:
        """Return a method that does not lead to the list."""
        return KeptMethod(method)

    def append(self, item: Any) -> None:
        """Add a tensor behind the last."""
        _put(self, _joined(self, item, lambda rows, row: torch.cat([rows, row])), newest_last=True)

    def appendleft(self, item: Any) -> None:
        """Add a tensor before the first."""
        _put_first(self, item)

    def insert(self, index: Any, item: Any) -> None:
        """Add a tensor before the first; elsewhere is another use."""
        if type(index) is not int or index or items_of(self).is_deque:
            used_otherwise(self)
        _put_first(self, item)

    def extend(self, items: Any) -> None:
        """Add tensors behind the last."""
        if issubclass(type(items), KeptList) and items is not self:
            own, other = items_of(self), items_of(items)
            _widen_for(own, other.form)
            columns = in_form(own.form, other.rows, other.form)
            if columns is not None:
                _put(self, [torch.cat(both) for both in zip(own.rows, columns)], newest_last=True)
                return
        for item in items:
            self.append(item)

    def pop(self, index: Any = -1) -> Any:
        """Take the first or the last away."""
        if type(index) is not int or index not in (0, -1) or (index == 0 and items_of(self).is_deque):
            used_otherwise(self)
        return _take(self, index)

    def popleft(self) -> Any:
        """Take the first away."""
        return _take(self, 0)

    def clear(self) -> None:
        """Take all away."""
        _put(self, [rows[:0] for rows in items_of(self).rows], newest_last=True)

    def __iadd__(self, items: Any) -> Any:
        self.extend(items)
        return self

    def __add__(self, items: Any) -> Any:
        if _kind(self) is not list or not isinstance(items, list):
            used_otherwise(self)
        made = self.copy()
        made.extend(items)
        return made

    def __radd__(self, items: Any) -> Any:
        if _kind(self) is not list or not isinstance(items, list):
            used_otherwise(self)
        made = self.copy()
        for item in reversed(items):
            made.insert(0, item)
        return made

    def held(self) -> tuple[Form, list[torch.Tensor]]:
        """Return what an item is, and the tensors that have the items as their rows."""
        return items_of(self).form, items_of(self).rows

    def __len__(self) -> int:
        rows = items_of(self).rows[0]
        return decided_length(rows, 0) if isinstance(rows, Grown) else len(rows)

    def are_any(self) -> Any:
        """Return whether there are any items."""
        return length_of(self) > 0

    def __bool__(self) -> bool:
        return bool(length_of(self) > 0)

    def __getitem__(self, index: Any) -> Any:
        rows = items_of(self).rows
        if isinstance(index, slice):
            if type(index.step) not in (int, type(None)) or index.step in (0, *range(-2, -64, -1)) or items_of(self).is_deque:
                used_otherwise(self)
            if index.step == -1 and (index.start is not None or index.stop is not None):
                used_otherwise(self)
            part = [column.flip(0) if index.step == -1 else column[index] for column in rows]
            return program().state.lists.copied(self, _kind(self), part)
        place = _place_in(self, index, f"{_kind(self).__name__} index out of range")
        return _item(self, [column[place] for column in rows])

    def __setitem__(self, index: Any, item: Any) -> None:
        if isinstance(index, slice) or items_of(self).is_deque:
            used_otherwise(self)
        place, length = _place_in(self, index, "list assignment index out of range"), length_of(self)
        _put(self, _joined(self, item, lambda rows, row: _with_row(rows, place, length, row)), newest_last=True)

    def __delitem__(self, index: Any) -> None:
        part = index if isinstance(index, slice) else slice(None, 1) if index == 0 else slice(-1, None) if index == -1 else None
        if part is None or part.step not in (None, 1) or (part.start is not None and part.stop is not None):
            used_otherwise(self)
        if not isinstance(index, slice):
            require(length_of(self) > 0, IndexError("list assignment index out of range"))
        rest = slice(part.stop, None) if part.start is None else slice(None, part.start)
        none = part.start is None and part.stop is None
        _put(self, [rows[:0] if none else rows[rest] for rows in items_of(self).rows], newest_last=True)

    def __iter__(self) -> Iterator[Any]:
        with KeptList.gone_over(self):  # what is written meanwhile Python's own iterator would see
            yield from _listed(self, items_of(self).rows)

    def __contains__(self, item: Any) -> Any:
        found = contained(self, item)
        return item in as_it_was(self) if found is None else found

    def __eq__(self, other: object) -> Any:
        return self is other if is_stagings(sys._getframe(1)) else _as_long_and_equal(self, other)

    def __ne__(self, other: object) -> Any:
        return self is not other if is_stagings(sys._getframe(1)) else scalars.logical_not(_as_long_and_equal(self, other))

    __hash__ = Sealed.__hash__

    def count(self, item: Any) -> Any:
        """Return how many items are equal to one."""
        equal = _equal_to(self, item)
        return as_it_was(self).count(item) if equal is None else told(equal.sum())

    def index(self, item: Any, *between: Any) -> Any:
        """Return where the first item is that is equal to one."""
        equal = None if between else _equal_to(self, item)
        if equal is None or (scalars.is_symbolic(item) and current().may_be_caught(ValueError)):
            return as_it_was(self).index(item, *between)
        require(told(equal.any()), ValueError(_not_in_a_list(item)))
        return told(torch.where(equal, torch.arange(length_of(self)), 2**62).amin(0))

    def reverse(self) -> None:
        """Turn the order of the items around."""
        if items_of(self).is_deque:
            used_otherwise(self)
        _put(self, [rows.flip(0) for rows in items_of(self).rows], newest_last=True)

    def sort(self, **given: Any) -> None:
        """Put the items in order."""
        made = program().operators.call(sorted, self, **given)
        if not issubclass(type(made), KeptList):
            used_otherwise(self)
        _put(self, items_of(made).rows, newest_last=True)

    def in_turn(self) -> InTurn:
        """Return what a loop goes over; as long as it does the list stays as it is."""
        return InTurn(length_of(self), lambda index: self[index], (self,))

    @contextlib.contextmanager
    def gone_over(self) -> Iterator[None]:
        """Let a loop go over the items: what changes the list meanwhile is another use."""
        items_of(self).loops += 1
        try:
            yield
        finally:
            items_of(self).loops -= 1

    def copy(self) -> Any:
        """Return a list of the items."""
        return program().state.lists.copied(self, _kind(self))

    def __reversed__(self) -> Iterator[Any]:
        return reversed(as_it_was(self))


def items_of(x: Any) -> Any:
    """Return what a list holds."""
    return object.__getattribute__(x, "_items")


def _kind(x: Any) -> Any:
    return object.__getattribute__(x, "_kind")


def used_otherwise(x: Any) -> NoReturn:
    """Begin anew with a list itself, as it is used in a way that what stands for it does not know."""
    object.__getattribute__(x, "_used")()
    raise AssertionError("unreachable")


def _parent_of(x: Any) -> Any:
    parent = items_of(x).parent
    return x if parent is None else parent


def length_of(x: Any) -> Any:
    """Return how long a list is, which may be a number of the run."""
    rows = items_of(x).rows[0]
    return as_number(rows.length) if isinstance(rows, Grown) else len(rows)


def _place_in(x: Any, index: Any, outside: str) -> Any:
    """Return the number that Python makes of an index; the path ends with an IndexError where a list has no such item."""
    if type(index) is bool or isinstance(index, np.integer):
        index = int(index)
    elif isinstance(index, torch.Tensor) and not isinstance(index, Grown) and index.numel() == 1 and not index.dtype.is_floating_point:
        index = number(index)
    if scalars.is_symbolic(index) and index.node.is_bool():
        index = scalars.select(index, 1, 0)
    if type(index) is not int and not (scalars.is_symbolic(index) and index.node.is_int()):
        used_otherwise(x)  # which Python refuses, or asks for its `__index__`
    length = length_of(x)
    require((index >= -length) & (index < length), IndexError(outside))
    return index


def _equal_to(x: Any, item: Any) -> torch.Tensor | None:
    """Return which items are equal to a number; None where they are gone over one by one.

    A NaN is equal to none, but may be one of the items: a call that looks for one ends with an error.
    """
    form = items_of(x).form
    row = form.row(item) if isinstance(form, Leaf) and form.kind else None
    if row is None:
        return None
    if form.kind == "float":
        limit(scalars.operand_of(item == item), "a NaN is looked for in a list, in which it may be itself,")
    return items_of(x).rows[0] == row[0]


def _as_long_and_equal(x: Any, other: Any) -> Any:
    """Return whether a list of ints or truths is equal to a plain list of such; another comparison is another use."""
    kind = getattr(items_of(x).form, "kind", "float")
    rows = None if type(other) is not list or kind not in ("int", "bool") else [number_row(n) for n in other]
    if rows is None or any(row is None for row in rows) or _kind(x) is not list:
        used_otherwise(x)
    own = items_of(x).rows[0]
    held = own.padded() if isinstance(own, Grown) else own
    if held.shape[0] < len(other):
        return False
    equal = held[: len(other)].to(torch.int64) == torch.stack(rows) if rows else torch.ones(0, dtype=torch.bool)  # type: ignore[arg-type]  # none is None
    return (length_of(x) == len(other)) & told(equal.all())


def contained(x: Any, item: Any) -> Any:
    """Return whether a number is in a list; None where the items are gone over one by one."""
    equal = _equal_to(x, item)
    return None if equal is None else told(equal.any())


def _joined(x: Any, item: Any, make: Callable[[Any, Any], torch.Tensor]) -> list[torch.Tensor]:
    """Return the rows with another one."""
    items = items_of(x)
    row = row_of(items.form, item)
    if row is None:
        _widen_for(items, form_of(settled(item)))
        used_otherwise(x)
    _hold(x, item)
    columns = zip(items.form.leaves, items.rows, row, items.form.sources(settled(item)))
    return [
        made if leaf.kind else _with_identity(x, rows, source, made)
        for leaf, rows, t, source in columns
        if (made := make(rows, t.unsqueeze(0))) is not None
    ]


def _widen_for(items: Items, form: Form | None) -> None:
    """Begin anew with room for items of another form, if there is one for all."""
    wider = None if form is None or items.widen is None else common([items.form, form])
    if wider is not None and wider != items.form:
        items.widen(wider)  # type: ignore[misc]  # it is not None


def _with_identity(x: Any, rows: torch.Tensor, item: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Note that rows with another one hold a tensor of the program's."""
    both, decision = [storage_of(rows), storage_of(item)], _OneOfThem()
    for storage in both:
        may_be_one(storage_of(made), storage, decision)
    join_identities(storage_of(made), both, decision, [Identity(born=current().heap.birth(made))])
    known = current().get(_Appended).items.setdefault(id(_parent_of(x)), [])
    known.append(identity_of(item))
    return made


def _with_row(rows: torch.Tensor, index: Any, length: Any, row: torch.Tensor) -> torch.Tensor:
    """Return the rows with another one in a place, which counts from the end if it is negative."""
    places = torch.arange(length).view(-1, *[1] * (row.dim() - 1))
    return torch.where((places == index) | (places == index + length), row, rows)


class _Appended(OfOneRun):
    """The tensors that became items of a list, by the list."""

    def __init__(self) -> None:
        self.items: dict[int, list[Identity]] = {}
        #: Tuples, dicts and lists of which a list knows what they held.
        self.alive: list[Any] = []


def _put(x: Any, columns: list[torch.Tensor], newest_last: bool) -> None:
    items = items_of(x)
    if items.loops:
        used_otherwise(x)
    for name, rows in zip(items.columns, columns):
        if items.most is not None:
            rows = rows[:0] if items.most == 0 else rows[-items.most :] if newest_last else rows[: items.most]
        current().journal.touch(attribute_of(items, name))
        vars(items)[name] = rows


def _put_first(x: Any, item: Any) -> None:
    _put(x, _joined(x, item, lambda rows, row: torch.cat([row, rows])), newest_last=False)


def _take(x: Any, index: int) -> Any:
    outside = "pop from an empty deque" if items_of(x).is_deque else "pop from empty list"
    require(length_of(x) > 0, IndexError(outside))
    item = _item(x, [column[index] for column in items_of(x).rows])
    _put(x, [rows[1:] if index == 0 else rows[:-1] for rows in items_of(x).rows], newest_last=True)
    return item


def _item(x: Any, rows: list[torch.Tensor]) -> Any:
    """Return an item that is made of the rows of it."""
    form = items_of(x).form
    return form.item(iter(rows), _Shown(x))


class _Shown:
    """Makes the parts of an item that the program gets of a list. What is changed of a dict or list would have to show there."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def tensor(self, t: torch.Tensor) -> torch.Tensor:
        """Return a tensor, which is changed where it lies in the rows."""
        return _is_item(self._of, t)

    def numbers(self, rows: torch.Tensor, form: Leaf) -> Any:
        """Return a list of numbers, which nothing may change."""
        items = current().heap.born(Items(form, {form.name: rows}, None))
        return self._held(stand_in(list, items, object.__getattribute__(_parent_of(self._of), "_used")))

    def record(self, x: Any) -> Any:
        """Return a tuple, or a dict, which nothing may change."""
        return self._held(x)

    def _held(self, made: Any) -> Any:
        known = current().get(_Appended).items.get(id(_parent_of(self._of)), [])
        join_identities(current().heap.born(made), [], _OneOfThem(), list(known))
        _freeze(made)
        return made


def _hold(x: Any, item: Any) -> None:
    """Note that a list holds the tuples, dicts and lists in an item: a change of one is refused from now on."""
    item = settled(item)
    if isinstance(item, (tuple, dict)):
        for part in item.values() if isinstance(item, dict) else item:
            _hold(x, part)
    if isinstance(item, (tuple, dict, list)) or issubclass(type(item), KeptList):
        appended = current().get(_Appended)
        appended.items.setdefault(id(_parent_of(x)), []).append(identity_of(item))
        appended.alive.append(item)
        _freeze(item)


def _freeze(x: Any) -> None:
    if issubclass(type(x), KeptList):
        items_of(x).loops += 1
    elif not isinstance(x, tuple):
        current().heap.guarded[id(x)] = _OneOfThem()


def _is_item(x: Any, row: torch.Tensor) -> torch.Tensor:
    """Note that a row stands for a tensor that was appended in this call, or in an earlier one."""
    known = current().get(_Appended).items.get(id(_parent_of(x)), [])
    join_identities(row, [], _OneOfThem(), [*known, Identity(outside="state")])
    return row


def _listed(x: Any, columns: list[torch.Tensor]) -> list[Any]:
    """Return the items of a list one by one: each length is a path of its own."""
    count = decided_length(columns[0], 0) if isinstance(columns[0], Grown) else len(columns[0])
    return [_item(x, [rows[i] for rows in columns]) for i in range(count)]


def as_it_was(x: Any) -> Any:
    """Return a list, tuple or deque of the items."""
    kind, items = _kind(x), list(x)
    return tuple(items) if kind is tuple else current().heap.born(items if kind is list else kind(items, items_of(x).most))


def stand_in(kind: type, items: Items, used: Callable[[], None]) -> Any:
    """Return what stands for a container; ``used`` is called where it is used in a way that is not known, and begins anew."""
    made = _kind_of(kind)(kind, used)
    object.__setattr__(made, "_items", items)
    return made


class KeptLists:
    """The lists of a model for which something stands, until a use shows that it cannot."""

    def __init__(self) -> None:
        #: By identity: the list, and what stands for it.
        self.stand_ins = StandIns[int, tuple[Any, Any]]()
        self._tried: list[tuple[Any, Form, list[Any]]] = []
        self._given_up_before = 0
        #: The lists whose copies are lists.
        self._one_by_one: dict[int, Any] = {}

    @property
    def size(self) -> tuple[int, int, int]:
        """Differs with everything found."""
        return len(self.stand_ins.known), len(self.stand_ins.given_up), len(self._one_by_one)

    def try_one(self, initial: PlaceState, now: PlaceState) -> bool:
        """Let something stand for a list in the next round that calls leave with other tensors in it; whether it can."""
        x: Any = initial.place.owner
        form = form_of(now.items[-1].obj) if type(x) in _KINDS and now.items else None
        if form is None or not is_even(form) or (initial.items and not all(form_of(c.obj) == form for c in initial.items)):
            return False
        if initial.items and not all(leaf.kind for leaf in form.leaves):  # a tensor may have another name
            return False
        bounded = current().limits.length is not None or getattr(x, "maxlen", None) is not None
        if not bounded or self.is_given_up(x) or self.stands_for(x):
            return False
        self._tried.append((x, form, [c.obj for c in initial.items]))
        return True

    def begin_round(self) -> list[tuple[Any, Any, Items]]:
        """Return the lists for which something stands from now on, what it is, and what holds the items."""
        tried, self._tried = {id(x): (x, form, held) for x, form, held in self._tried}, []
        return [(x, *self._stand_in(x, form, held)) for x, form, held in tried.values()]

    def _stand_in(self, x: Any, form: Form, held: list[Any]) -> tuple[Any, Items]:
        kind: Any = type(x)
        items = Items(form, beginning(form, held), x)
        made = stand_in(kind, items, lambda: self.stand_ins.used(id(x)))
        self.stand_ins.known[id(x)] = (x, made)
        return made, items

    def stands_for(self, x: Any) -> bool:
        """Whether something stands for a list."""
        return id(x) in self.stand_ins.known

    def copied(self, x: Any, kind: type, columns: list[torch.Tensor] | None = None) -> Any:
        """Return a list or tuple of the items of such a list, or of those in some columns; what is done with it is done with the rows."""
        parent, form = _parent_of(x), items_of(x).form
        columns = items_of(x).rows if columns is None else columns
        if id(parent) in self._one_by_one:
            found = _listed(x, columns)
            return current().heap.born(found) if kind is list else kind(found)
        items = current().heap.born(Items(form, {leaf.name: rows for leaf, rows in zip(form.leaves, columns)}, None))
        items.parent = parent
        is_kept = any(made is parent for _, made in self.stand_ins.known.values())
        used = (lambda: self._want_items(parent)) if is_kept else object.__getattribute__(parent, "_used")
        return current().heap.born(stand_in(kind, items, used))

    def _want_items(self, parent: Any) -> None:
        """Let copies of a list be lists in the next round."""
        self._one_by_one[id(parent)] = parent
        begin_anew()

    def in_results(self, value: Any) -> Any:
        """Return what the network returns: a list whose length is a number of the run as the rows that it is, others item by item."""
        if issubclass(type(value), KeptList):
            items = items_of(value)
            is_plain = _kind(value) is not list or not isinstance(items.rows[0], Grown) or not is_even(items.form)
            return as_it_was(value) if is_plain else Rows(items.form.described(iter(items.rows)))
        if type(value) not in (tuple, list, dict):
            return value
        parts = value.values() if type(value) is dict else value
        found = [self.in_results(v) for v in parts]
        if all(v is known for v, known in zip(found, parts)):
            return value
        return dict(zip(value, found)) if type(value) is dict else type(value)(found)

    def is_given_up(self, x: Any) -> bool:
        """Whether an object is a list that was found to be used otherwise."""
        return id(x) in self.stand_ins.given_up

    def begin_anew(self) -> bool:
        """Whether lists were given up since this was asked: what was found of them is not so of the lists themselves."""
        before, self._given_up_before = self._given_up_before, len(self.stand_ins.given_up)
        return before != self._given_up_before


_KINDS = (list, collections.deque)
_kinds: dict[type, Any] = {}


def _written_by(kind: type) -> frozenset[str]:
    return frozenset(n for n in KeptList.written_by if hasattr(kind, n))


def _kind_of(kind: type) -> Any:
    """Return the class of what stands for containers of a class."""
    if kind not in _kinds:
        sealed = sealed_kind(kind)
        own = {n: v for n, v in vars(KeptList).items() if n not in ("__dict__", "__weakref__", "_items", "__doc__")}
        only = {n: v for n, v in own.items() if hasattr(kind, n) or not n.startswith("__") or n in ("__bool__", "__radd__")}
        if not hasattr(kind, "__iadd__"):
            only["__iadd__"] = lambda x, items: NotImplemented  # another tuple is made
        _kinds[kind] = type(f"kept {kind.__name__}", (KeptList, sealed), {**only, "__slots__": (), "written_by": _written_by(kind)})
    return _kinds[kind]
