# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What functions make of lists of which tensors have the items as their rows: sums, extremes, sorted lists, tensors.

Each gives what it gives for the items one by one, or nothing where the rows do not tell that.
"""

from __future__ import annotations

import sys
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.frontend.python.calls.comprehensions import listed
from dycl_tvm.frontend.python.calls.growing_lists import GrowingLists
from dycl_tvm.frontend.python.calls.iterators import Map, own
from dycl_tvm.frontend.python.calls.kept_lists import KeptList, KeptMethod, as_it_was, items_of, length_of, used_otherwise
from dycl_tvm.frontend.python.calls.kept_rows import Leaf, Ragged, told
from dycl_tvm.frontend.python.flow.branches import ifexp
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.source.bytecode import only_stores_attributes
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.grown import Grown
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.raising import limit

#: Of these elements a sum has another type.
_NO_SUMS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32)


def sum_of(x: Any, compensates: bool) -> Any:
    """Return the sum of the floats, truths or tensors of a list; None where the items are gone over one by one (an int has any size).

    Floats and tensors are added up in their order; a sum of floats that ``compensates`` has what the additions rounded away added to it at
    the end.
    """
    form, rows = items_of(x).form, items_of(x).rows[0]
    if not isinstance(form, Leaf) or form.kind == "int" or form.dtype in _NO_SUMS or not length_of(x) > 0:
        return None
    if form.kind == "bool":
        return told(rows.sum())
    totals = rows.cumsum(0)
    if not form.kind:
        return 0 + totals[-1]
    if not compensates:
        return told(totals[-1]) + 0.0
    before = torch.cat([rows.new_zeros(1), totals[:-1]])
    part = totals - before
    lost = ((before - (totals - part)) + (rows - part)).cumsum(0)[-1]
    return told(torch.where(lost - lost < lost.abs(), totals[-1] + lost, totals[-1])) + 0.0


def adds_up_one_by_one(x: Any, start: Any) -> bool:
    """Whether a loop may add up the items of a list: tensors beginning with one, or ints, which no addition rounds."""
    form = items_of(x).form
    if not isinstance(form, Leaf) or not scalars.is_symbolic(length_of(x)):
        return False
    is_int = type(start) is int or (scalars.is_symbolic(start) and start.node.is_int())
    return isinstance(start, torch.Tensor) if not form.kind else form.kind != "float" and is_int


def extreme_of(callee: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Return what ``max`` or ``min``, the callee, gives for the items of a list: the first of the largest; None where rows do not tell."""
    if not given.keys() <= {"key", "default"} or len(args) != 1 or not issubclass(type(args[0]), KeptList):
        return None
    x, key = args[0], given.get("key")
    keys = x if key is None else _keys_of(x, key)
    if keys is None or _numbers_of(keys) is None:
        return None

    def best() -> Any:
        numbers = key is None and items_of(x).form.kind  # a tensor is one of them, and no new one
        return _extreme(x, callee is max) if numbers else x[_place_of_extreme(keys, callee is max)]

    if "default" in given:
        return ifexp(length_of(x) > 0, best, lambda: given["default"])
    require(length_of(x) > 0, _error_of(callee))
    return best()


def _keys_of(x: Any, key: Any) -> Any:
    """Return the list of what a function gives for each item; None if it is no list of numbers."""
    keys = listed(Map(function=key, sources=(own(x),)), "keys")
    return keys if issubclass(type(keys), KeptList) else None


def _numbers_of(x: Any) -> torch.Tensor | None:
    """Return the numbers of a list, one a row: its items, or tensors of one element; None if it has others."""
    form, rows = items_of(x).form, items_of(x).rows[0]
    if not isinstance(form, Leaf) or form.dtype.is_complex or any(n != 1 for n in form.shape):
        return None
    return rows.flatten() if form.shape else rows  # type: ignore[no-any-return]


def _extreme(x: Any, largest: bool) -> Any:
    """Return the first of the largest numbers. Nothing is larger than a NaN, so one that comes first stays, and another is passed over."""
    kind, rows = items_of(x).form.kind, items_of(x).rows[0]
    if kind == "bool":
        return told(rows.any() if largest else rows.all())
    if kind == "int":
        return told(rows.amax(0) if largest else rows.amin(0))
    return told(rows[_place_of_extreme(x, largest)])


def _place_of_extreme(x: Any, largest: bool) -> Any:
    rows: Any = _numbers_of(x)
    rows = rows.to(torch.int64) if rows.dtype == torch.bool else rows
    known = torch.where(rows != rows, float("-inf") if largest else float("inf"), rows) if rows.dtype.is_floating_point else rows
    best = known.amax(0) if largest else known.amin(0)
    first = torch.where(rows == best, torch.arange(length_of(x)), 2**62).amin(0)
    return told(torch.where(rows[0] != rows[0], 0, first) if rows.dtype.is_floating_point else first)


def quantified(x: Any, every: bool) -> Any:
    """Return whether all numbers of a list, or tensors of one element, are true, or any; None where the rows do not tell."""
    if not issubclass(type(x), KeptList):
        return None
    rows: Any = items_of(x).rows[0] if getattr(items_of(x).form, "kind", "") else _numbers_of(x)
    if rows is None:
        return None
    return told((rows != 0).all() if every else (rows != 0).any())


def sorted_of(x: Any, given: dict[str, Any]) -> Any:
    """Return the items of a list in the order of numbers, or of what a key gives; None where the rows do not tell.

    Where a NaN goes no order says: a call that sorts one ends with an error.
    """
    key, down = given.get("key"), given.get("reverse", False)
    if not given.keys() <= {"key", "reverse"} or type(down) not in (bool, int):
        return None
    keys = x if key is None else _keys_of(x, key)
    numbers = None if keys is None else _numbers_of(keys)
    if numbers is None:
        return None
    if numbers.dtype.is_floating_point:
        limit(scalars.operand_of(told((numbers == numbers).all())), "sorted() is given a NaN, whose place Python does not define,")
    ordered, places = torch.sort(numbers, stable=True, descending=bool(down))
    columns = [ordered] if key is None and items_of(x).form.kind else [_moved(rows, places) for rows in items_of(x).rows]
    return program().state.lists.copied(x, list, columns)


def _moved(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return rows in another order."""
    if isinstance(places, Grown) and isinstance(rows, Grown):
        places.below = rows.length  # there is a place for each
    return rows.index_select(0, places)


def call_with_list(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call native code with such lists: what stacks, joins or takes all of the items takes the rows, all else gets the items."""
    if type(callee) is KeptMethod:
        return callee(*args, **kwargs)  # of such a list too
    if type(callee) is types.BuiltinFunctionType and callee.__name__ == "extend" and issubclass(type(args[0]), KeptList):
        current().get(GrowingLists).extended(callee.__self__, args[0])
    if args and callee in (torch.tensor, torch.as_tensor) and issubclass(type(args[0]), KeptList):
        made = _as_tensor(args[0], *args[1:], **kwargs)
        if made is not None:
            return made
    if args and callee in (torch.stack, torch.cat, torch.concat) and issubclass(type(args[0]), KeptList):
        made = _stacked(callee, args[0], *args[1:], **kwargs)
        if made is not None:
            return made
    if callee is sorted and len(args) == 1 and issubclass(type(args[0]), KeptList) and (found := sorted_of(args[0], kwargs)) is not None:
        return found
    return _with_items(callee, args, kwargs)


def _with_items(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call native code with the items of such lists; code that changes, keeps or returns what it is given needs the list itself."""
    lists = list({id(x): x for x in (*args, *kwargs.values()) if issubclass(type(x), KeptList)}.values())
    given = [as_it_was(x) for x in lists]
    instead = {id(x): items for x, items in zip(lists, given)}
    taken, named = tuple([instead.get(id(x), x) for x in args]), {name: instead.get(id(x), x) for name, x in kwargs.items()}
    held, references = list(map(list, given)), _references(given)
    try:
        result = program().trampolines.watch(callee, taken, named)
    finally:
        for x, is_same in zip(lists, map(_same_items, given, held)):
            if not is_same:
                used_otherwise(x)
    for x, now, before in zip(lists, _references(given), references):
        if now > before:
            used_otherwise(x)
    return result


def _same_items(items: Any, before: list[Any]) -> bool:
    return len(items) == len(before) and all(a is b for a, b in zip(items, before))


def _references(objects: list[Any]) -> list[int]:
    """Return how often each object is referred to; an empty tuple is one object everywhere."""
    return [0 if x == () else sys.getrefcount(x) for x in objects]


#: The methods of containers that take a list for an item, and look no further.
_KEEPING = frozenset(["append", "appendleft", "insert", "setdefault"])


def only_keeps(callee: Any) -> bool:
    """Whether native code makes an item or an attribute of a list that it is given, and does nothing else with it."""
    if isinstance(callee, type):
        return only_stores_attributes(callee)
    return type(callee) is types.BuiltinFunctionType and type(callee.__self__) in (list, deque, dict) and callee.__name__ in _KEEPING


def _as_tensor(x: Any, dtype: Any = None, **others: Any) -> torch.Tensor | None:
    form = items_of(x).form
    if others or not isinstance(form, Leaf) or not form.kind:
        return None
    default = torch.get_default_dtype()
    if dtype is None and form.kind != "float" and not length_of(x) > 0:  # there is nothing to tell the type by
        return torch.zeros(0, dtype=default)
    return items_of(x).rows[0].to(dtype or (default if form.kind == "float" else form.dtype)).clone()  # type: ignore[no-any-return]


def tensors_of_lists(index: Any) -> Any:
    """Return an index of a tensor with tensors in the place of lists of numbers: PyTorch makes these of them too."""
    if type(index) is tuple:
        return tuple(map(_places_of, index))
    return _places_of(index)


def _places_of(x: Any) -> Any:
    """Return what PyTorch takes a list for that is an index: positions or, if its items are truths and there are any, a mask."""
    if type(x) is list and any(map(scalars.is_symbolic, x)) and all(map(_is_whole, x)):
        return program().operators.call(torch.tensor, x)
    if not issubclass(type(x), KeptList):
        return x
    form = items_of(x).form
    if not isinstance(form, Leaf) or form.kind not in ("int", "bool"):
        used_otherwise(x)
    if form.kind == "bool" and not length_of(x) > 0:
        return torch.zeros(0, dtype=torch.int64)
    return items_of(x).rows[0]


def _is_whole(x: Any) -> bool:
    """Whether a value is an int or a bool, of the run too."""
    return not x.node.is_float() if scalars.is_symbolic(x) else type(x) in (int, bool)


def _stacked(callee: Any, x: Any, dim: Any = 0, **others: Any) -> torch.Tensor | None:
    form, rows = items_of(x).form, items_of(x).rows[0]
    if isinstance(form, Ragged) and callee is not torch.stack and not others:
        return _in_a_row(callee, x, dim)
    if others or not isinstance(form, Leaf) or form.kind:
        return None
    rank = len((rows.buffer if isinstance(rows, Grown) else rows).shape)
    dims = rank if callee is torch.stack else rank - 1
    if type(dim) is not int or not -dims <= dim < dims:
        return None
    require(length_of(x) > 0, _error_of(callee))
    turned = torch.movedim(rows, 0, dim % dims)
    return (turned if callee is torch.stack else turned.flatten(dim % dims, dim % dims + 1)).clone()


def _in_a_row(callee: Any, x: Any, dim: Any) -> torch.Tensor | None:
    """Return what ``torch.cat`` makes of tensors of several lengths, along the dimension in which these differ."""
    form, (rows, lengths) = items_of(x).form, items_of(x).rows
    rank = len(form.data.shape)
    if type(dim) is not int or not -rank <= dim < rank or dim % rank != form.along:
        return None
    require(length_of(x) > 0, _error_of(callee))
    there = torch.arange(form.most) < lengths[:, None]
    return torch.movedim(torch.movedim(rows, form.along + 1, 1)[there], 0, form.along).contiguous()


def _error_of(callee: Any) -> Exception:
    """Return what eager raises for an empty list."""
    try:
        with plainly():
            callee([])
    except Exception as error:
        return error.with_traceback(None)
    raise AssertionError(f"{callee.__name__} takes an empty list")
