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
from dycl_tvm.frontend.trace.values.raising import check
from dycl_tvm.frontend.trace.values.recorder import truth_of
from dycl_tvm.frontend.trace.values.tensors import StagedTensor


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


def answers_by_code(x: Any) -> bool:
    """Whether code of the user's runs where an object is asked for its truth."""
    return any(special_method(x, name) is not None for name in ("__bool__", "__len__"))


def _answer(name: str, given: Any) -> Any:
    """Return the truth that a special method of the user's stands for."""
    if name == "__len__":
        return truth(length_from(given))
    if isinstance(given, Poison):
        use(given)
    if kind_of(given) != "bool":
        raise of_program(TypeError(f"__bool__ should return bool, returned {kind_of(given)}"))
    return truth(given)


def length_from(given: Any) -> Any:
    """Return the length that a method ``__len__`` of the user's gave, as Python checks it."""
    if isinstance(given, Poison):
        use(given)
    if isinstance(given, torch.Tensor):
        if given.numel() != 1 or given.dtype.is_floating_point or given.dtype.is_complex:
            raise of_program(TypeError("only integer tensors of a single element can be converted to an index"))
        given = given.item()
    if not scalars.is_symbolic(given) or kind_of(given) == "float":
        return attempt(len, _Sized(0.0 if scalars.is_symbolic(given) else given))
    length = scalars.convert(given, "int")
    check(scalars.truth_operand(length < 0), ValueError("__len__() should return >= 0"), wanted=False)
    return length


def kind_of(x: Any) -> str:
    """Return the name of the type that a value has in eager; that of a number is of Python's, known only at run time or not."""
    if scalars.is_symbolic(x):
        return str(x.node.kind)
    own = "Tensor" if isinstance(x, StagedTensor) else type(x).__name__
    return next((t.__name__ for t in (bool, int, float) if isinstance(x, t)), own)


class _Sized:
    """Lets Python check what ``__len__`` gave."""

    def __init__(self, length: Any) -> None:
        self._length = length

    def __len__(self) -> int:
        length: int = self._length
        return length
