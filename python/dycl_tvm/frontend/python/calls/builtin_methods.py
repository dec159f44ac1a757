# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Methods of builtin classes: what they may change is saved before."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from dycl_tvm.frontend.python.attributes import deleting
from dycl_tvm.frontend.python.flow.iteration import advancing
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.trace.session import current

#: Methods of Python's own containers that change nothing.
_READING = frozenset(["keys", "values", "items", "get", "copy", "count", "index", "__len__", "__contains__", "__iter__"])

#: Methods of NumPy's arrays that change nothing but what they are given as ``out``.
_READING_ARRAYS = frozenset(
    ["all", "any", "argmax", "argmin", "argsort", "astype", "clip", "conj", "cumprod", "cumsum", "diagonal", "dot", "flatten", "item"]
    + ["max", "mean", "min", "nonzero", "prod", "ravel", "repeat", "reshape", "round", "searchsorted", "squeeze", "std", "sum"]
    + ["swapaxes", "take", "tobytes", "tolist", "trace", "transpose", "var", "view"]
)


def note_method(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Save what a method of a builtin class, bound or not, may change."""
    bound = isinstance(callee, (types.BuiltinFunctionType, types.MethodWrapperType))
    owner = callee.__self__ if bound else args[0] if args else None
    rest = args if bound else args[1:]
    program().trampolines.hand_over(owner)
    advancing(owner)
    if callee.__name__ == "__delattr__" and rest:
        deleting(owner, rest[0])
    if callee.__name__ in ("__setattr__", "__delattr__") and rest:
        current().heap.changing_attribute(owner, rest[0])
    if type(owner) is np.ndarray and callee.__name__ in _READING_ARRAYS:
        for out in filter(lambda a: isinstance(a, np.ndarray), (*rest, *kwargs.values())):
            current().heap.changing(out)
    elif callee.__name__ not in _READING:
        if program().state.lives_on(owner):
            program().state.unread.note_filled(owner)
        current().heap.changing(owner)
