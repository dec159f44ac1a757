# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What ``int``, ``float``, ``bool``, ``complex`` and ``len`` give, of numbers known only at run time and of the user's objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.frontend.python.calls.kept_lists import KeptList, length_of
from dycl_tvm.frontend.python.calls.ranges import RunTimeRange
from dycl_tvm.frontend.python.flow.truth import kind_of, length_from, truth
from dycl_tvm.frontend.python.program import special_method
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.arrays import RunTimeArray, number_of
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.complex_numbers import refuse_complex
from dycl_tvm.frontend.trace.values.grown import Grown, number
from dycl_tvm.frontend.trace.values.recorder import item


def plain(args: tuple[Any, ...]) -> bool:
    """Whether all arguments are known to Python."""
    for a in args:
        if isinstance(a, Poison):
            use(a)
    return not any(scalars.is_symbolic(a) or isinstance(a, torch.Tensor) or type(a) is RunTimeArray for a in args)


def number_in(x: Any, text: str | None = None) -> Any:
    """Return a tensor of one element, or a number of NumPy's, as a number; numbers stay. ``text`` is that of the ``item`` of a tensor."""
    return item(x, text) if isinstance(x, torch.Tensor) else number_of(x)


def conversion(kind: str) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
    """Return what stands for the class of a kind of numbers where it is called."""

    def convert(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kind == "bool" and len(args) == 1 and not kwargs:
            return scalars.wrap(truth(args[0]))
        method = special_method(args[0], f"__{kind}__") if len(args) == 1 else None
        if method is not None:
            return convert(callee, (_given(kind, args[0], method()),), {})
        if len(args) != 1 or plain(args):
            return callee(*args, **kwargs)
        return scalars.convert(number_in(args[0]), kind)

    return convert


def _given(kind: str, x: Any, given: Any) -> Any:
    """Return what a special method of the user's gave for a number of some kind, as Python checks it."""
    if isinstance(given, Poison):
        use(given)
    if kind_of(given) not in (("int", "bool") if kind == "int" else (kind,)):
        told = f"{'' if kind == 'int' else type(x).__name__ + '.'}__{kind}__ returned non-{kind}"
        raise of_program(TypeError(f"{told} (type {kind_of(given)})"))
    return given


def make_complex(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``complex(...)``."""
    method = special_method(args[0], "__complex__") if len(args) == 1 else None
    parts = (method(),) if method is not None else tuple(map(number_in, args))
    return callee(*parts, **kwargs) if plain((*parts, *kwargs.values())) else refuse_complex()


def length(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``len(x)``."""
    if isinstance(args[0], Poison):
        use(args[0])
    if issubclass(type(args[0]), RunTimeRange):
        return args[0].length()
    if isinstance(args[0], Grown) and 0 in args[0].lengths:
        return number(args[0].lengths[0])
    if issubclass(type(args[0]), KeptList):
        return length_of(args[0])
    method = special_method(args[0], "__len__")
    return len(args[0]) if method is None else length_from(method())
