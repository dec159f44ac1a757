# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Random numbers of Python's and NumPy's own generators: they may be drawn, and are refused where the program uses them."""

from __future__ import annotations

import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.trace.join.poison import Poison, Refusing, Why
from dycl_tvm.frontend.trace.session import current

#: Whose methods are ``random.uniform``, ``np.random.uniform`` and their like: all calls of methods are asked, so by identity.
_GENERATORS = frozenset(map(id, (random.random.__self__, np.random.uniform.__self__)))  # type: ignore[attr-defined]


def substitute_of(callee: Any) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None:
    """Return what is called in place of a method of one of the generators; None for anything else."""
    if type(callee) not in (types.MethodType, types.BuiltinMethodType):
        return None
    return draw if id(callee.__self__) in _GENERATORS else None


def draw(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Draw a number that nobody may use: as long as nobody does, eager gives the same without it."""
    reason = f"{callee.__name__}() gives another result at every call"
    drawn = Refusing(current().origin(), "pass the random number in as an input, or draw it with PyTorch: torch.rand(())")
    if not all(map(_is_number, (*args, *kwargs.values()))) or not _gives_something(callee, args, kwargs):
        drawn.refuse(reason)
    program().leave_out("a random number that nothing reads")
    return Poison(drawn, Why(reason, "a random number"))


def _is_number(x: Any) -> bool:
    return x is None or type(x) in (bool, int, float) or (type(x) is tuple and all(map(_is_number, x)))


def _gives_something(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a method gives a result and no error, asked of another generator: the program's own stays as it is."""
    try:
        return getattr(type(callee.__self__)(), callee.__name__)(*args, **kwargs) is not None
    except Exception:
        return False
