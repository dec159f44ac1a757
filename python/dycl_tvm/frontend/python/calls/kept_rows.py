# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What the items of a list that grows have in common: tensors of one shape, numbers of one type, lists of these, tuples and dicts.

All items are then the rows of a few tensors, of one for each tensor or number in an item. Tensors of another length each are rows that
are as long as the longest, beside a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.results import Row
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.elements import elements
from dycl_tvm.frontend.trace.values.extents import as_number, bounds_of, extent_of
from dycl_tvm.frontend.trace.values.grown import Grown, cut
from dycl_tvm.frontend.trace.values.grown_math import is_contiguous
from dycl_tvm.frontend.trace.values.layouts import marks_of
from dycl_tvm.frontend.trace.values.recorder import item, to_tensor
from dycl_tvm.frontend.trace.values.tensors import as_constant, read
from dycl_tvm.hcfg.hostops import OF_SHAPE
from dycl_tvm.hcfg.types import ScalarType

_DTYPES = {"float": torch.float64, "int": torch.int64, "bool": torch.bool}


@dataclass(frozen=True)
class Leaf:
    """A tensor of a shape, or a number of a ``kind``; ``name`` says where in an item it is."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str = ""

    @property
    def leaves(self) -> list[Leaf]:
        """All tensors and numbers in an item."""
        return [self]

    def row(self, x: Any) -> list[torch.Tensor] | None:
        """Return what an item is in the tensors that hold all; None if it is none of these."""
        if self.kind:
            is_number = (scalars.is_symbolic(x) and scalars.mixed_of(x) is None) or _is_plain_number(x)
            if not is_number or scalars._kind(scalars.operand_of(x)) != self.kind:
                return None
            return [to_tensor(x, self.dtype)]
        if not isinstance(x, torch.Tensor) or isinstance(x, Grown) or any(marks_of(x)) or not is_contiguous(x):
            return None
        if x.requires_grad:  # rows do not, and are no parameters
            return None
        return [x] if tuple(x.shape) == self.shape and x.dtype == self.dtype else None

    def sources(self, x: Any) -> list[Any]:
        """Return of what each row of an item is made."""
        return [x]

    def item(self, rows: Iterator[torch.Tensor], shown: Shown) -> Any:
        """Return an item of the rows that it is; ``shown`` is done with a tensor that the program gets."""
        return told(next(rows)) if self.kind else shown.tensor(next(rows))

    def described(self, columns: Iterator[torch.Tensor]) -> Any:
        """Return what stands for each item in the description of a result, of the tensors that hold all items."""
        return Row(next(columns), self.kind or "tensor")


@dataclass(frozen=True)
class Ragged:
    """A tensor of another length along a dimension in each item, of which a row of ``data`` holds the longest."""

    data: Leaf
    along: int

    @property
    def most(self) -> int:
        """How long the longest is."""
        return self.data.shape[self.along]

    @property
    def leaves(self) -> list[Leaf]:
        """What holds the tensors, and how long they are."""
        return [self.data, Leaf(f"{self.data.name} length", (), torch.int64, "int")]

    def row(self, x: Any) -> list[torch.Tensor] | None:
        """Return what an item is in the tensors that hold all; None if it is none of these."""
        form = form_of(x, self.data.name)
        if form is None or common([self, form]) != self:
            return None
        padding = [0, 0] * (len(self.data.shape) - 1 - self.along)
        if not isinstance(x, Grown):
            missing = self.most - x.shape[self.along]
            return [F.pad(x, [*padding, 0, missing]) if missing else x.clone(), torch.tensor(x.shape[self.along])]
        whole = x.padded()
        return [F.pad(whole, [*padding, 0, self.most - whole.shape[self.along]]), to_tensor(as_number(x.length), torch.int64)]

    def sources(self, x: Any) -> list[Any]:
        """Return of what each row of an item is made."""
        return [x, x]

    def item(self, rows: Iterator[torch.Tensor], shown: Shown) -> Any:
        """Return an item of the rows that it is; ``shown`` is done with a tensor that the program gets."""
        return shown.tensor(self.tensor(rows))

    def tensor(self, rows: Iterator[torch.Tensor]) -> torch.Tensor:
        """Return the tensor of the rows that it is."""
        data, length = next(rows), told(next(rows))
        made = cut(data, {self.along: extent_of(length, 0, self.most)})
        if isinstance(made, Grown):
            made.contiguous_ = True  # so was the item
        return made

    def widened(self, columns: Sequence[torch.Tensor], of: Form) -> list[torch.Tensor]:
        """Return the tensors that hold items of this form, given those that hold some of a form that this has room for."""
        rows = columns[0]
        held = of.leaves[0].shape[self.along]
        padded = F.pad(rows, [*[0, 0] * (len(self.data.shape) - 1 - self.along), 0, self.most - held]) if held < self.most else rows
        if isinstance(of, Ragged):
            return [padded, columns[1]]
        return [padded, torch.full((rows.shape[0],), held)]


@dataclass(frozen=True)
class Listed:
    """A list of numbers of a ``kind``, of another length in each item; the kind of one that is empty is not known."""

    numbers: Ragged
    kind: str

    @property
    def leaves(self) -> list[Leaf]:
        """What holds the numbers, and how many they are."""
        data, length = self.numbers.leaves
        return [replace(data, kind=self.kind or "int"), length]

    def row(self, x: Any) -> list[torch.Tensor] | None:
        """Return what an item is in the tensors that hold all; None if it is none of these."""
        form = form_of(x, self.numbers.data.name)
        if form is None or common([self, form]) != self:
            return None
        return self.numbers.row(_numbers_in(x).to(self.numbers.data.dtype))

    def sources(self, x: Any) -> list[Any]:
        """Return of what each row of an item is made."""
        return [x, x]

    def item(self, rows: Iterator[torch.Tensor], shown: Shown) -> Any:
        """Return an item of the rows that it is."""
        return shown.numbers(self.numbers.tensor(rows), number_form(self.kind or "int"))

    def widened(self, columns: Sequence[torch.Tensor], of: Form) -> list[torch.Tensor]:
        """Return the tensors that hold items of this form, given those that hold some of a form that this has room for."""
        assert isinstance(of, Listed)
        return self.numbers.widened([columns[0].to(self.numbers.data.dtype), columns[1]], of.numbers)


@dataclass(frozen=True)
class Same:
    """What is the same in all items: a text, or None."""

    value: str | None
    leaves: tuple[Leaf, ...] = ()

    def row(self, x: Any) -> list[torch.Tensor] | None:
        """Return what an item is in the tensors that hold all: nothing; None if it is another."""
        return [] if type(x) is type(self.value) and x == self.value else None

    def sources(self, x: Any) -> list[Any]:
        """Return of what each row of an item is made."""
        return []

    def item(self, rows: Iterator[torch.Tensor], shown: Shown) -> Any:
        """Return the item."""
        return self.value


@dataclass(frozen=True)
class Record:
    """A dict of such items, by the same keys in all."""

    keys: tuple[str, ...]
    parts: tuple[Form, ...]

    @property
    def leaves(self) -> list[Leaf]:
        """All tensors and numbers in an item."""
        return [leaf for part in self.parts for leaf in part.leaves]

    def row(self, x: Any) -> list[torch.Tensor] | None:
        """Return what an item is in the tensors that hold all; None if it is none of these."""
        if type(x) is not dict or tuple(x) != self.keys:
            return None
        return _rows_of_parts(self.parts, list(x.values()))

    def sources(self, x: Any) -> list[Any]:
        """Return of what each row of an item is made."""
        return [source for part, i in zip(self.parts, x.values()) for source in part.sources(settled(i))]

    def item(self, rows: Iterator[torch.Tensor], shown: Shown) -> Any:
        """Return an item of the rows that it is; ``shown`` is done with what the program gets."""
        return shown.record(dict(zip(self.keys, [part.item(rows, shown) for part in self.parts])))


@dataclass(frozen=True)
class Pair:
    """A tuple of such items."""

    cls: type
    parts: tuple[Form, ...]

    @property
    def leaves(self) -> list[Leaf]:
        """All tensors and numbers in an item."""
        return [leaf for part in self.parts for leaf in part.leaves]

    def row(self, x: Any) -> list[torch.Tensor] | None:
        """Return what an item is in the tensors that hold all; None if it is none of these."""
        items: Any = x
        if type(x) is not self.cls or len(items) != len(self.parts):
            return None
        return _rows_of_parts(self.parts, list(items))

    def sources(self, x: Any) -> list[Any]:
        """Return of what each row of an item is made."""
        return [source for part, i in zip(self.parts, x) for source in part.sources(settled(i))]

    def item(self, rows: Iterator[torch.Tensor], shown: Shown) -> Any:
        """Return an item of the rows that it is; ``shown`` is done with a tensor that the program gets."""
        return shown.record(self._of([part.item(rows, shown) for part in self.parts]))

    def described(self, columns: Iterator[torch.Tensor]) -> Any:
        """Return what stands for each item in the description of a result, of the tensors that hold all items."""
        return self._of([part.described(columns) for part in self.parts if isinstance(part, (Leaf, Pair))])  # it is even

    def _of(self, items: list[Any]) -> Any:
        return self.cls(*items) if hasattr(self.cls, "_fields") else self.cls(items)


Form = Leaf | Ragged | Listed | Same | Record | Pair


class Shown(Protocol):
    """What is done with the parts of an item that the program gets."""

    def tensor(self, t: torch.Tensor) -> torch.Tensor:
        """Return a tensor."""

    def numbers(self, rows: torch.Tensor, form: Leaf) -> Any:
        """Return the list of numbers of which these are the rows."""

    def record(self, x: Any) -> Any:
        """Return a dict or tuple."""


class HasRows:
    """Base of what stands for a list of which tensors hold the items."""

    __slots__ = ()

    def held(self) -> tuple[Form, list[torch.Tensor]]:
        """Return what an item is, and the tensors that have the items as their rows."""
        raise NotImplementedError


def _rows_of_parts(parts: Sequence[Form], items: Sequence[Any]) -> list[torch.Tensor] | None:
    found: list[torch.Tensor] = []
    for part, i in zip(parts, items):
        row = part.row(settled(i))
        if row is None:
            return None
        found += row
    return found


def form_of(x: Any, name: str = "", around: tuple[Any, ...] = ()) -> Form | None:
    """Return what kind of item something is; None if it can be none of a list that grows. ``around`` are the dicts that hold it."""
    form = _form_of(x, name, around)
    return form if form is not None and (name or form.leaves) else None


def _form_of(x: Any, name: str, around: tuple[Any, ...]) -> Form | None:
    if isinstance(x, Grown):
        return _ragged_form_of(x, name)
    if x is None or type(x) is str:
        return Same(x)
    if type(x) is list or issubclass(type(x), HasRows):
        return _listed_form_of(x, name)
    if type(x) is dict:
        if any(x is other for other in around):  # as locals() are, where a variable has them
            return None
        keys, around = tuple(x), (*around, x)
        found = [form_of(settled(v), f"{name}[{k!r}]", around) for k, v in x.items() if type(k) is str]
        return Record(keys, tuple([f for f in found if f])) if len(found) == len(keys) and all(found) else None
    if isinstance(x, torch.Tensor):
        return Leaf(name, tuple(x.shape), x.dtype)
    if _is_plain_number(x) or scalars.is_symbolic(x):
        return number_form(scalars._kind(scalars.operand_of(x)), name)
    fields = getattr(type(x), "_fields", None)
    if type(x) is not tuple and not (isinstance(x, tuple) and fields and type(x).__new__ is not tuple.__new__):
        return None
    parts = [form_of(settled(i), f"{name}.{fields[k]}" if fields else f"{name}[{k}]", around) for k, i in enumerate(x)]
    known = tuple([part for part in parts if part is not None])
    return Pair(type(x), known) if known and len(known) == len(parts) else None


def number_form(kind: str, name: str = "") -> Leaf:
    """Return what an item is that is a number of a kind."""
    return Leaf(name, (), _DTYPES[kind], kind)


def _listed_form_of(x: Any, name: str) -> Form | None:
    """Return what kind of item a list of numbers is."""
    t = _numbers_in(x)
    if t is None:
        return None
    kind = next(k for k, dtype in _DTYPES.items() if dtype == t.dtype)
    form = form_of(t, name)
    if isinstance(form, Leaf):
        form = Ragged(form, 0)
    is_empty = not isinstance(t, Grown) and t.shape[0] == 0
    return Listed(form, "" if is_empty else kind) if isinstance(form, Ragged) else None


def _numbers_in(x: Any) -> Any:
    """Return the numbers of a list as a tensor in a row; None if it has other items."""
    if issubclass(type(x), HasRows):
        form, rows = type(x).held(x)
        return rows[0] if isinstance(form, Leaf) and form.kind else None
    forms = [form_of(settled(i)) for i in x]
    if not forms:
        return torch.zeros(0, dtype=torch.int64)
    if not isinstance(forms[0], Leaf) or not forms[0].kind or any(form != forms[0] for form in forms):
        return None
    return torch.stack([to_tensor(settled(i), forms[0].dtype) for i in x])


def number_row(x: Any) -> torch.Tensor | None:
    """Return an int or a truth as a tensor of an int, if it is one."""
    kind = scalars._kind(scalars.operand_of(x)) if scalars.is_symbolic(x) or _is_plain_number(x) else "float"
    row = None if kind == "float" else number_form(kind).row(x)
    return None if row is None else row[0].to(torch.int64)


def _ragged_form_of(x: Grown, name: str) -> Form | None:
    if len(x.lengths) > 1 or not is_contiguous(x) or any(marks_of(x)):
        return None
    shape = list(x.buffer.shape)
    shape[x.along] = max(bounds_of(x.length)[1], shape[x.along])  # all of the buffer has a place in a row
    return Ragged(Leaf(name, tuple(shape), x.dtype), x.along)


def common(forms: Sequence[Form | None]) -> Form | None:
    """Return what kind of item all of some are; None if there is none."""
    first = forms[0]
    if first is None or all(form == first for form in forms):
        return first
    if all(isinstance(form, (Pair, Record)) for form in forms):
        return _common_parts(forms)  # type: ignore[arg-type]  # all are
    if all(isinstance(form, Listed) for form in forms):
        return _common_lists(forms)  # type: ignore[arg-type]  # all are
    if not all(isinstance(form, Ragged) or (isinstance(form, Leaf) and not form.kind) for form in forms):
        return None
    leaves = [form.leaves[0] for form in forms if form is not None]
    ranks = {(leaf.name, len(leaf.shape), leaf.dtype) for leaf in leaves}
    differing = {d for d, sizes in enumerate(zip(*[leaf.shape for leaf in leaves])) if len(set(sizes)) > 1}
    differing |= {form.along for form in forms if isinstance(form, Ragged)}
    if len(ranks) > 1 or len(differing) != 1:
        return None
    along = differing.pop()
    shape = list(leaves[0].shape)
    shape[along] = max(leaf.shape[along] for leaf in leaves)
    return Ragged(replace(leaves[0], shape=tuple(shape)), along)


def _common_parts(forms: Sequence[Pair | Record]) -> Form | None:
    if len({(form.cls if isinstance(form, Pair) else form.keys, len(form.parts)) for form in forms}) > 1:
        return None
    parts = [common(parts) for parts in zip(*[form.parts for form in forms])]
    known = tuple([part for part in parts if part is not None])
    return replace(forms[0], parts=known) if len(known) == len(parts) else None


def _common_lists(forms: Sequence[Listed]) -> Form | None:
    kinds = {form.kind: form.numbers.data.dtype for form in forms if form.kind}
    if len(kinds) > 1:
        return None
    kind, dtype = next(iter(kinds.items()), ("", torch.int64))
    numbers = common([replace(form.numbers, data=replace(form.numbers.data, dtype=dtype)) for form in forms])
    return Listed(numbers, kind) if isinstance(numbers, Ragged) else None


def is_even(form: Form) -> bool:
    """Whether an item is of tensors of one shape, numbers and tuples only: such lists are kept, and described in results."""
    return isinstance(form, Leaf) or (isinstance(form, Pair) and all(map(is_even, form.parts)))


def in_form(form: Form, columns: Sequence[torch.Tensor], of: Form) -> list[torch.Tensor] | None:
    """Return the tensors that hold items of a form, given those that hold some of another; None if it has no room for these."""
    if form == of:
        return list(columns)
    if common([form, of]) != form:
        return None
    if isinstance(form, (Ragged, Listed)):
        return form.widened(columns, of)
    assert isinstance(form, (Pair, Record)) and isinstance(of, (Pair, Record))
    found: list[torch.Tensor] = []
    left = list(columns)
    for part, other in zip(form.parts, of.parts):
        own, left = left[: len(other.leaves)], left[len(other.leaves) :]
        found += in_form(part, own, other) or []
    return found


def row_of(form: Form, x: Any) -> list[torch.Tensor] | None:
    """Return what an item is in the tensors that hold all; None if it is of another kind."""
    return form.row(settled(x))


def _is_plain_number(x: Any) -> bool:
    """Whether a tensor of its kind can hold a number of Python's."""
    return type(x) in (bool, float) or (type(x) is int and -(2**63) <= x < 2**63)


def told(t: torch.Tensor) -> Any:
    """Return a number that follows from items which are numbers: tensors were asked for these before, and for nothing now."""
    if as_constant(t) is not None:
        return item(t)
    value = read(t)
    kind: Any = "float" if t.dtype.is_floating_point else "bool" if t.dtype == torch.bool else "int"
    found = scalars.emit("item", value, type_=ScalarType(kind), text=OF_SHAPE)
    if kind == "int":
        found.node.bounds, found.node.base = elements().of(value), elements().base_of(value)
    return found


def settled(x: Any) -> Any:
    """Return a value; the paths part if it depends on them."""
    if isinstance(x, Poison):
        use(x)
    return x


def beginning(form: Form, items: list[Any]) -> dict[str, torch.Tensor]:
    """Return the tensors that hold what a list has before the first call, by their names."""
    columns: dict[str, list[Any]] = {leaf.name: [] for leaf in form.leaves}
    for x in items:
        for leaf, value in zip(form.leaves, _flat(x)):
            columns[leaf.name].append(torch.tensor(value, dtype=leaf.dtype))
    made = {leaf.name: torch.zeros((0, *leaf.shape), dtype=leaf.dtype) for leaf in form.leaves}
    return {name: torch.stack(column) if column else made[name] for name, column in columns.items()}


def _flat(x: Any) -> list[Any]:
    return [v for part in x for v in _flat(part)] if isinstance(x, tuple) else [x]
