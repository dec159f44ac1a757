# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``sum()``: the additions that it makes depend on the version of Python, which adds up floats by itself.

Since Python 3.12 a sum of floats has what its additions rounded away added to it at the end. Numbers that are known only at run time
are objects to Python's own ``sum()``, which would add them up one by one. So while a model is staged there is another in its place, for
code that is not rewritten too.
"""

from __future__ import annotations

import builtins
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.calls.kept_lists import KeptList
from dycl_tvm.frontend.python.calls.list_uses import adds_up_one_by_one, sum_of
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.source import plain_lists
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars

#: Whether a sum of floats makes up for what its additions round away.
COMPENSATES = sys.version_info >= (3, 12)
_TEXTS = (str, bytes, bytearray)
_PYTHONS = builtins.sum


def summed(items: Any, /, start: Any = 0) -> Any:
    """Return what ``sum(items, start)`` does, for numbers that are known only at run time too."""
    if isinstance(start, _TEXTS):
        return _PYTHONS(items, start)  # which says what is wrong with it
    if type(start) is int and start == 0 and issubclass(type(items), KeptList) and (found := sum_of(items, COMPENSATES)) is not None:
        return found
    if issubclass(type(items), KeptList) and adds_up_one_by_one(items, start):
        return program().run_function(cast(Any, plain_lists.total), (items, start), {})
    total, lost = start, 0.0
    floats, ints = COMPENSATES and _is_float(total), COMPENSATES and _kind(total) == "int" and _is_int(total)
    for x in items:
        if floats and _is_float(x):
            total, lost = total + x, lost + _rounded_away(total, x)
        elif (floats or (ints and _kind(x))) and _is_int(x):
            total = total + x
            ints = ints and _is_int(total)
        elif floats:  # all that follows is added up as objects are
            total, floats = _made_up(total, lost) + x, False
        else:
            total = total + x
            floats, ints = ints and _is_float(total), False
    return _made_up(total, lost) if floats else total


summed.__wrapped__ = _PYTHONS  # type: ignore[attr-defined]


@contextmanager
def sums_of_the_program() -> Iterator[None]:
    """Put the other ``sum()`` in the place of Python's, where that matters and nobody else has."""
    if not COMPENSATES or builtins.sum is not _PYTHONS:
        yield
        return
    builtins.sum = summed
    try:
        yield
    finally:
        builtins.sum = _PYTHONS


def handed(x: Any) -> Any:
    """Return what code that is not rewritten is given in the place of an argument."""
    return summed if x is _PYTHONS and COMPENSATES else x


def _kind(x: Any) -> str:
    """Return ``int``, ``float`` or ``bool`` for Python's own numbers, and nothing for all else."""
    return x.node.kind if scalars.is_symbolic(x) else type(x).__name__ if type(x) in (int, float, bool) else ""


def _is_int(x: Any) -> bool:
    """Whether Python adds a number to others as one of 64 bits."""
    if scalars.is_symbolic(x):
        return x.node.kind != "float"  # type: ignore[no-any-return]
    return isinstance(x, int) and -(2**63) <= x < 2**63


def _is_float(x: Any) -> bool:
    if _kind(x) != "float":
        return False
    scalars.refuse_mixed(scalars.mixed_of(x), "added up by sum(), which treats floats in a way of their own")
    return True


def _rounded_away(a: Any, b: Any) -> Any:
    """Return by how much the sum of two floats is less than their true sum, by Knuth's six operations, which need no branch."""
    total = a + b
    part = total - a
    return (a - (total - part)) + (b - part)


def _made_up(total: Any, lost: Any) -> Any:
    """Return a sum with what was lost on the way, if that is a number and not zero."""
    wanted = lost - lost < abs(lost)
    return scalars.select(wanted, total + lost, total) if scalars.is_symbolic(wanted) else total + lost if wanted else total


def _sum(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return summed(*args, **kwargs)


def _sum_of_products(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``math.sumprod``: of floats it is rounded once, as if computed exactly."""
    rows = [list(row) for row in args]
    if any(scalars.is_symbolic(x) for row in rows for x in row) and any(_kind(x) == "float" for row in rows for x in row):
        raise UnsupportedError(
            "math.sumprod() of floats that are known only at run time is more exact than additions are",
            current().origin(),
            "use sum(a * b for a, b in zip(p, q)), or torch.dot()",
        )
    return callee(*rows, **kwargs)


TABLE: dict[Any, Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    _PYTHONS: _sum,
    summed: _sum,
    **({getattr(math, "sumprod"): _sum_of_products} if hasattr(math, "sumprod") else {}),  # noqa: B009  (Python 3.12 and later)
}
