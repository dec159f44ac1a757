# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Errors that depend on the elements of tensors: an index out of range, a division by zero, a singular matrix.

In a compiled network they end the call (:mod:`dycl_tvm.hcfg.checks`). Where the program itself would catch such an error it is refused:
its handler is a path of the network. Which functions have such errors is not listed: each is tried on elements that are at the limits of
its operands' types.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import OfOneRun, apart, current
from dycl_tvm.frontend.trace.unrecorded import plainly, same_random_numbers
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.arguments import key_of, map_leaves, tensors_of
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.layouts import layouts_of, strides_of
from dycl_tvm.frontend.trace.values.recorder import known_bounds
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, read

_NUMBERS: dict[str, Any] = {"int": int, "float": float, "bool": bool}
_IDENTITY = None
#: Operands that hardly any function refuses, and such as many do. Matrices are one with one of the first.
_FINE = (1, 0, _IDENTITY)
_TRIED = (0, -1, 1 << 20, math.nan)
#: Functions of floating-point operands larger than this (elements) are not tried: they are layers, and would take seconds.
_LARGE = 1 << 20
#: Functions are tried for no more ways in which their operands may lie in memory than this.
_MOST_LAYOUTS = 16


class _Tried(OfOneRun):
    """The errors of functions that were tried, by function and what is known of the operands."""

    def __init__(self) -> None:
        self.errors: dict[Any, tuple[tuple[list[Exception], bool], Any]] = {}


def called(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
    """Stage a call of a function of PyTorch, which ``run`` does, in a program that has a handler; refuse what that may catch."""
    doubt = refuse_if_caught(function, args, kwargs)
    made = run()
    if doubt is not None:  # staging sees no error where eager has one, for these elements at least
        _refuse(function, doubt)
    return made


def refuse_if_caught(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
    """Refuse a function of PyTorch that raises an error for some elements of its operands, where a handler of the program catches it.

    Of one that raises for all elements that are tried the error is returned, if it would be caught: staging may see it too.
    """
    session = current()
    handlers = [] if session.all_pass_on() else [h for h in session.handlers if h.is_for_libraries()]
    errors, always = _errors_by_elements(function, args, kwargs) if handlers else ((), False)
    for error in errors:
        if isinstance(error, NotImplementedError):  # PyTorch has no kernel for the types of its operands, whatever the elements
            raise of_program(error)
        if any(h.catches(error) for h in handlers):
            if always:
                return error
            _refuse(function, error)
    return None


def _refuse(function: Any, error: Exception) -> None:
    name = getattr(function, "__name__", str(function)).strip("_")
    raise UnsupportedError(
        f"{name}() raises {type(error).__name__} for some elements of its tensors, which the program would catch: "
        "in a compiled network it ends the call",
        current().origin(),
        "ask before (`if bool((index < size).all()):`), or move the operation out of the `try` or `with`",
    )


def _errors_by_elements(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Exception], bool]:
    """Return the errors that a function raises for some elements of its operands, and whether it raises one for all that were tried."""
    tensors = tensors_of(args, kwargs)
    staged = [x for x in tensors if isinstance(x, StagedTensor)]
    if not staged or (sum(x.numel() for x in staged) > _LARGE and all(x.is_floating_point() for x in staged)):
        return [], False
    choices = list(itertools.islice(itertools.product(*map(strides_of, staged)), _MOST_LAYOUTS + 1))
    if len(choices) > _MOST_LAYOUTS:
        next(layouts for layouts in map(layouts_of, staged) if layouts is not None).settle()
    tried = current().get(_Tried).errors
    others = [x for x in tensors if not isinstance(x, StagedTensor)]
    given = map_leaves(lambda x: scalars._kind(scalars.operand_of(x)) if scalars.is_symbolic(x) else x, (args, kwargs))
    key = (function, key_of(given), tuple(map(_bounds, staged)), tuple(choices), tuple(map(id, others)))
    if key not in tried:
        found: list[Exception] = []
        always = False
        for strides in choices:
            raised = functools.partial(_raised, function, args, kwargs, {id(x): s for x, s in zip(staged, strides)})
            fine = [raised(element) for element in _FINE]
            if all(isinstance(e, NotImplementedError) for e in fine):
                found.append(fine[0])  # type: ignore[arg-type]  # none is None
                continue
            errors = [*fine, *map(raised, _TRIED)]
            always = always or None not in errors
            found += [e for e in (errors if None not in errors else errors[len(fine) :] if None in fine else ()) if e is not None]
        tried[key] = (found, always), others  # which keep their ids
    return tried[key][0]


def _bounds(t: torch.Tensor) -> tuple[int, int] | None:
    return known_bounds().get(read(t))


def _raised(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], strides: dict[int, tuple[int, ...]], element: float | None
) -> Exception | None:
    """Return what a function raises where all elements that are known only at run time are equal to one.

    ``strides`` are those of the tensors known only at run time, by id.
    """
    stand_ins = map_leaves(lambda x: _stand_in(x, strides, element), (args, kwargs))
    try:
        with apart(), plainly(), same_random_numbers():
            function(*stand_ins[0], **stand_ins[1])
    except Exception as error:
        return error.with_traceback(None)
    return None


def _stand_in(x: Any, strides: dict[int, tuple[int, ...]], element: float | None) -> Any:
    if isinstance(x, StagedTensor):
        bounds = _bounds(x)
        with plainly():
            return _filled(x, strides[id(x)], element if bounds is None or element is None else bounds[element not in (0, -1)])
    if isinstance(x, torch.Tensor):
        with plainly():
            return x.detach().clone()  # it may be written
    if scalars.is_symbolic(x):
        return _NUMBERS[scalars._kind(scalars.operand_of(x))](element if element in (0, -1) else 1)
    return torch.Generator() if isinstance(x, torch.Generator) else x


def _filled(x: torch.Tensor, strides: tuple[int, ...], element: float | None) -> torch.Tensor:
    made = torch.empty_strided(x.shape, strides, dtype=x.dtype)
    if 0 in strides:
        made = torch.empty(x.shape, dtype=x.dtype)
    if element is _IDENTITY:
        made.zero_()
        if made.dim() > 1:
            made.diagonal(dim1=-2, dim2=-1).fill_(1)
        return made
    limit = element if x.is_floating_point() or math.isfinite(element) else -1
    return made.copy_(torch.tensor(limit))
