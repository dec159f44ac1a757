# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What the items of a list that grows have in common: tensors of one shape, numbers of one type, or tuples of these.

All items are then the rows of a few tensors, of one for each tensor or number in an item.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.results import Row
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.elements import elements
from dycl_tvm.frontend.trace.values.grown import Grown
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

    def item(self, rows: Iterator[torch.Tensor]) -> Any:
        """Return an item of the rows that it is."""
        return told(next(rows)) if self.kind else next(rows)

    def described(self, columns: Iterator[torch.Tensor]) -> Any:
        """Return what stands for each item in the description of a result, of the tensors that hold all items."""
        return Row(next(columns), self.kind or "tensor")


@dataclass(frozen=True)
class Pair:
    """A tuple of such items."""

    cls: type
    parts: tuple[Leaf | Pair, ...]

    @property
    def leaves(self) -> list[Leaf]:
        """All tensors and numbers in an item."""
        return [leaf for part in self.parts for leaf in part.leaves]

    def row(self, x: Any) -> list[torch.Tensor] | None:
        """Return what an item is in the tensors that hold all; None if it is none of these."""
        items: Any = x
        if type(x) is not self.cls or len(items) != len(self.parts):
            return None
        found: list[torch.Tensor] = []
        for part, i in zip(self.parts, items):
            row = part.row(settled(i))
            if row is None:
                return None
            found += row
        return found

    def item(self, rows: Iterator[torch.Tensor]) -> Any:
        """Return an item of the rows that it is."""
        return self._of([part.item(rows) for part in self.parts])

    def described(self, columns: Iterator[torch.Tensor]) -> Any:
        """Return what stands for each item in the description of a result, of the tensors that hold all items."""
        return self._of([part.described(columns) for part in self.parts])

    def _of(self, items: list[Any]) -> Any:
        return self.cls(*items) if hasattr(self.cls, "_fields") else self.cls(items)


Form = Leaf | Pair


def form_of(x: Any, name: str = "") -> Form | None:
    """Return what kind of item something is; None if it can be none of a list that grows."""
    if isinstance(x, torch.Tensor):
        return None if isinstance(x, Grown) else Leaf(name, tuple(x.shape), x.dtype)
    if _is_plain_number(x) or scalars.is_symbolic(x):
        kind = scalars._kind(scalars.operand_of(x))
        return Leaf(name, (), _DTYPES[kind], kind)
    fields = getattr(type(x), "_fields", None)
    if type(x) is not tuple and not (isinstance(x, tuple) and fields and type(x).__new__ is not tuple.__new__):
        return None
    parts = [form_of(i, f"{name}.{fields[k]}" if fields else f"{name}[{k}]") for k, i in enumerate(x)]
    known = tuple([part for part in parts if part is not None])
    return Pair(type(x), known) if known and len(known) == len(parts) else None


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
