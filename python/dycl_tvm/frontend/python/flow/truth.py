# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The truth of any value."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.frontend.python.flow.iteration import ByIndex
from dycl_tvm.frontend.python.program import special_method
from dycl_tvm.frontend.trace.join import undecided
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.arrays import RunTimeArray
from dycl_tvm.frontend.trace.values.blame import attempt, of_program
from dycl_tvm.frontend.trace.values.recorder import truth_of


def truth(x: Any) -> Any:
    """Return the truth of a value: a bool, or an operand of type bool."""
    if isinstance(x, Poison):
        return undecided.truth_of(x)
    if type(x) is RunTimeArray and x.size == 1:
        x = x.tensor
    if isinstance(x, torch.Tensor):
        return truth_of(x)
    if scalars.is_symbolic(x):
        return scalars.truth_operand(x)
    if issubclass(type(x), ByIndex):
        return truth(type(x).are_any(x))
    for name in ("__bool__", "__len__"):
        method = special_method(x, name)
        if method is not None:
            return _answer(name, method())
        if hasattr(type(x), name):
            break
    return bool(x)


def _answer(name: str, given: Any) -> Any:
    """Return the truth that a special method of the user's stands for."""
    if isinstance(given, Poison):
        use(given)
    if not scalars.is_symbolic(given):
        if name == "__bool__" and not isinstance(given, bool):
            raise of_program(TypeError(f"__bool__ should return bool, returned {type(given).__name__}"))
        if name == "__len__":
            return attempt(len, _Sized(given)) > 0
    return truth(given)


class _Sized:
    """Lets Python check what ``__len__`` gave."""

    def __init__(self, length: Any) -> None:
        self._length = length

    def __len__(self) -> int:
        length: int = self._length
        return length
