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

from dycl_tvm.frontend.python.calls.kept_lists import KeptList, as_it_was, items_of, length_of, used_otherwise
from dycl_tvm.frontend.python.calls.kept_rows import Leaf, told
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.grown import Grown
from dycl_tvm.frontend.trace.values.indices import require

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


def extreme_of(callee: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Return what ``max`` or ``min``, the callee, gives for the numbers of a list: the first of the largest; None where rows do not tell.

    Nothing is larger than a NaN, so one that comes first stays, and another is passed over.
    """
    if given or len(args) != 1 or not issubclass(type(args[0]), KeptList):
        return None
    (x,) = args
    form, rows = items_of(x).form, items_of(x).rows[0]
    if not isinstance(form, Leaf) or not form.kind:
        return None
    require(length_of(x) > 0, _error_of(callee))
    if form.kind == "bool":
        return told(rows.any() if callee is max else rows.all())
    if form.kind == "int":
        return told(rows.amax(0) if callee is max else rows.amin(0))
    known = torch.where(rows != rows, float("-inf") if callee is max else float("inf"), rows)
    best = known.amax(0) if callee is max else known.amin(0)
    first = torch.where(rows == best, torch.arange(length_of(x)), 2**62).amin(0)
    return told(rows[told(torch.where(rows[0] != rows[0], 0, first))])


def quantified(x: Any, every: bool) -> Any:
    """Return whether all numbers of a list are true, or any; None where the rows do not tell."""
    if not issubclass(type(x), KeptList):
        return None
    form, rows = items_of(x).form, items_of(x).rows[0]
    if not isinstance(form, Leaf) or not form.kind:
        return None
    return told((rows != 0).all() if every else (rows != 0).any())


def sorted_of(x: Any, given: dict[str, Any]) -> Any:
    """Return the ints or truths of a list in their order; None where the rows do not tell: where a NaN goes, no order says."""
    form, rows = items_of(x).form, items_of(x).rows[0]
    if not isinstance(form, Leaf) or form.kind not in ("int", "bool") or not given.keys() <= {"reverse"}:
        return None
    down = given.get("reverse", False)
    if type(down) is not bool:
        return None
    return program().state.lists.copied(x, list, [torch.sort(rows, stable=True, descending=down)[0]])


def call_with_list(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call native code with such lists: what stacks, joins or takes all of the items takes the rows, all else gets the items."""
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
    """Whether native code makes an item of a list that it is given, and does nothing else with it."""
    return type(callee) is types.BuiltinFunctionType and type(callee.__self__) in (list, deque, dict) and callee.__name__ in _KEEPING


def _as_tensor(x: Any, dtype: Any = None, **others: Any) -> torch.Tensor | None:
    form = items_of(x).form
    if others or not isinstance(form, Leaf) or not form.kind:
        return None
    default = torch.get_default_dtype()
    if dtype is None and form.kind != "float" and not length_of(x) > 0:  # there is nothing to tell the type by
        return torch.zeros(0, dtype=default)
    return items_of(x).rows[0].to(dtype or (default if form.kind == "float" else form.dtype)).clone()  # type: ignore[no-any-return]


def _stacked(callee: Any, x: Any, dim: Any = 0, **others: Any) -> torch.Tensor | None:
    form, rows = items_of(x).form, items_of(x).rows[0]
    if others or not isinstance(form, Leaf) or form.kind:
        return None
    rank = len((rows.buffer if isinstance(rows, Grown) else rows).shape)
    dims = rank if callee is torch.stack else rank - 1
    if type(dim) is not int or not -dims <= dim < dims:
        return None
    require(length_of(x) > 0, _error_of(callee))
    turned = torch.movedim(rows, 0, dim % dims)
    return (turned if callee is torch.stack else turned.flatten(dim % dims, dim % dims + 1)).clone()


def _error_of(callee: Any) -> Exception:
    """Return what eager raises for an empty list."""
    try:
        with plainly():
            callee([])
    except Exception as error:
        return error.with_traceback(None)
    raise AssertionError(f"{callee.__name__} takes an empty list")
