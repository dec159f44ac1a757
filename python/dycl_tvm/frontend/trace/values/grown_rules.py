# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What PyTorch itself says of a function, from which follows what it does with tensors whose length is known only at run time.

The operators of ATen that have its name say whether it works element by element, and which one changes a tensor in place; of a function
that is written in Python its body says what it is.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable
from typing import Any

import torch

_T = torch.Tensor
_BUILTIN = (type(torch.sum), type(_T.sum), type(_T.__add__))
#: Element by element too, though ATen has no tag for them.
_POINTWISE = ("hardswish", "log_sigmoid", "float_power", "relu6", "isclose", "isreal", "special_expit", "polar", "complex")


def named(names: str, *holders: Any) -> list[Any]:
    """Return the functions of some names, with blanks between, that modules and classes of PyTorch's have."""
    return [getattr(h, name) for name in names.split() for h in holders if hasattr(h, name)]


def _operators(func: Any) -> list[Any]:
    """Return the operators of ATen that a function of PyTorch's may be, but for those that write to ``out``."""
    packet = getattr(torch.ops.aten, func.__name__, None) if isinstance(func, _BUILTIN) else None
    found = [getattr(packet, name) for name in packet.overloads()] if isinstance(packet, torch._ops.OpOverloadPacket) else []
    return [f for f in found if not any(a.is_out for a in f._schema.arguments)]


def _overloads(func: Any) -> list[Any]:
    """Return those of them that take tensors."""
    return [f for f in _operators(func) if any("Tensor" in str(a.type) for a in f._schema.arguments)]


@functools.cache
def _parameters(func: Any) -> list[tuple[list[str], set[str]]]:
    """Return how a function that is not written in Python may be called: the names of the arguments that have positions, and all names."""
    is_method = func is getattr(_T, getattr(func, "__name__", ""), None)
    found = []
    for schema in [f._schema for f in _operators(func)]:
        names = ["input" if a.name == "self" else a.name for a in schema.arguments]
        if not is_method or names[:1] == ["input"]:
            found.append(([n for n, a in zip(names, schema.arguments) if not a.kwarg_only], set(names)))
    return found


def by_position(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with those given by name at their positions, as far as there is no gap: rules know them so."""
    if not kwargs:
        return args, kwargs
    fitting = [(names, every) for names, every in _parameters(func) if kwargs.keys().isdisjoint(names[: len(args)])]
    names = next((names for names, every in fitting if kwargs.keys() <= every), fitting[0][0] if fitting else [])
    own = [*itertools.takewhile(kwargs.__contains__, names[len(args) :])]
    return (*args, *[kwargs[n] for n in own]), {n: x for n, x in kwargs.items() if n not in own}


@functools.cache
def is_elementwise(func: Any) -> bool:
    """Whether a function gives one tensor, each element of which follows from those at its place."""
    found = [f for f in _overloads(func) if "list" not in f._overloadname]
    return bool(found) and all(_is_pointwise(f) for f in found)


def _is_pointwise(operator: Any) -> bool:
    schema, tags = operator._schema, operator.tags
    pure = not schema.is_mutable and torch.Tag.nondeterministic_seeded not in tags
    return pure and [str(r.type) for r in schema.returns] == ["Tensor"] and (torch.Tag.pointwise in tags or schema.name[6:] in _POINTWISE)


@functools.cache
def functional_of(func: Any) -> Any:
    """Return the function that gives anew what another leaves in the tensor that it changes; None if that is not what it does."""
    name = getattr(func, "__name__", "")
    if func is not getattr(_T, name, None) and func is not getattr(torch, name, None):
        return None
    if name.startswith("__i") and name[3:] in _INFIX:
        return getattr(_T, f"__{name[3:]}")
    changed = [f for f in _overloads(func) if f._schema.is_mutable]
    changes = name.endswith("_") and changed and not any(torch.Tag.inplace_view in f.tags or _draws(f) for f in changed)
    return getattr(_T, name[:-1], None) if changes else None


_INFIX = [f"{name}__" for name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"]]


def _draws(operator: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in operator.tags


def _none(*_tensors: Any) -> bool:
    return False


@functools.cache
def body_of(func: Any) -> Callable[..., Any] | None:
    """Return the body of a function of PyTorch's that is written in Python, which first asks whether another class computes it."""
    if not isinstance(func, types.FunctionType) or not func.__module__.startswith("torch."):
        return None
    asked = [name for name in func.__code__.co_names if name.startswith("has_torch_function")]
    if not asked:
        return None
    made = types.FunctionType(
        func.__code__, {**func.__globals__, **dict.fromkeys(asked, _none)}, func.__name__, func.__defaults__, func.__closure__
    )
    made.__kwdefaults__ = func.__kwdefaults__
    return made
