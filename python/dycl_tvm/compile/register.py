# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators that users add: their own, or those of PyTorch's that have no converter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dycl_tvm.compile import composed  # noqa: F401  # they register
from dycl_tvm.compile.decompose import DECOMPOSITIONS, overload
from dycl_tvm.compile.ops import CONVERTERS
from dycl_tvm.errors import UsageError
from dycl_tvm.hcfg.added import ADDED

Function = TypeVar("Function", bound=Callable[..., Any])


def register_operator(operator: Any, *, in_torch: bool = False, replace: bool = False) -> Callable[[Function], Function]:
    """Say what an operator becomes: a decorator of a function that is called with the operator's arguments.

    Parameters
    ----------
    operator : str or torch operator
        ``"mylib::wave"``, ``"mylib::wave.Tensor"`` for an overload with a name, or ``torch.ops.mylib.wave.default``.
    in_torch : bool
        The function computes the result with other operators of PyTorch; it is traced. Otherwise it is a converter
        ``fn(ctx, *args)``: ``ctx`` is an :class:`dycl_tvm.compile.ops.OpContext`, tensors are Relax expressions, all arguments of the
        schema are given in order, and it returns an expression or a tuple of them.
    replace : bool
        An operator that is supported already gets another implementation.

    Raises
    ------
    UsageError
        If PyTorch does not know the operator, or if it is supported already and ``replace`` is not given.
    """
    name = _name(operator)
    if not replace and (name in CONVERTERS or name in DECOMPOSITIONS):
        raise UsageError(f"the operator {name} is supported already; replace=True gives it another implementation")

    def register(function: Function) -> Function:
        CONVERTERS.pop(name, None)
        DECOMPOSITIONS.pop(name, None)
        (DECOMPOSITIONS if in_torch else CONVERTERS)[name] = function
        ADDED[name] = function if in_torch else None
        return function

    return register


def _name(operator: Any) -> str:
    """Return the name of an operator as graphs have it."""
    text = operator if isinstance(operator, str) else getattr(operator, "_qualname", None) or str(operator)
    namespace, _, rest = text.replace("::", ".").partition(".")
    packet, _, which = rest.partition(".")
    name = f"{namespace}.{packet}.{which or 'default'}"
    try:
        overload(name)
    except (AttributeError, ValueError, RuntimeError):
        raise UsageError(
            f"PyTorch has no operator {text!r}: define it first (torch.library.custom_op, torch.library.define); "
            "the name of an overload follows a dot, as in 'aten::add.Tensor'"
        ) from None
    return name
