# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operations on constants alone: their results are constants, computed while the program is staged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.arguments import key_of, leaves, map_leaves, opname
from dycl_tvm.frontend.trace.values.storage import tensor_type
from dycl_tvm.hcfg.nodes import Constant, Value
from dycl_tvm.hcfg.types import TensorType

#: Results larger than this (elements) are not computed at build time unless they are no larger than their operands.
FOLD_LIMIT = 1 << 20


class Folded:
    """The results of operations on constants: one for each in a session, so that replays agree."""

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}


def fold_one(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], type_: TensorType, operands: list[Value]) -> Constant | None:
    """Return the one result of an operation whose operands are all constants; None if they are not, or it is too large."""
    constants = [v for v in operands if isinstance(v, Constant)]
    if not constants or len(constants) < len(operands) or type_.numel > max(FOLD_LIMIT, sum(v.data.numel() for v in constants)):
        return None
    rest = map_leaves(lambda leaf: None if isinstance(leaf, Value) else leaf, (args, kwargs))
    key = (func, tuple(map(id, operands)), key_of(rest))
    known = current().get(Folded).known
    if key not in known:
        with plainly():
            made = func(*map_leaves(_data, args), **map_leaves(_data, kwargs))
            known[key] = (constant_of(made, name_of_folded(operands)), operands)
    constant: Constant = known[key][0]
    return constant


def constant_of(t: torch.Tensor, name: str = "") -> Constant:
    """Return the constant of what a tensor holds."""
    return Constant(tensor_type(t), t.detach().clone(memory_format=torch.contiguous_format), name)


def name_of_folded(operands: Iterable[Value]) -> str:
    """Return what a constant that is computed of others is called: after the one of them that has a name."""
    names = {v.name.removesuffix(".folded") for v in operands if v.name}
    return f"{names.pop()}.folded" if len(names) == 1 else ""


def made_once(key: tuple[Any, ...], make: Callable[[], torch.Tensor]) -> Constant:
    """Return the constant of a tensor that is made while staging: one in all runs of the program, so that replays agree."""
    known = current().get(Folded).known
    if key not in known:
        with plainly():
            known[key] = constant_of(make())
    made: Constant = known[key]
    return made


def _data(leaf: Any) -> Any:
    return leaf.data if isinstance(leaf, Constant) else leaf


#: Operators that give 0 (False) where one operand is 0, whatever the other is; and those that give True where one is True.
_AND, _OR = frozenset(["bitwise_and", "logical_and", "mul"]), frozenset(["bitwise_or", "logical_or"])
#: Comparisons that hold for no number, NaN included, if the second operand is this, or the first one its negative.
_NEVER = {"gt": math.inf, "lt": -math.inf}


def absorbed(func: Any, args: tuple[Any, ...], values: list[Value], meta: Any) -> Constant | None:
    """Return the result of an operation that one constant operand decides; None if there is none.

    Integers and bools are absorbed by 0 and True, nothing is beyond an infinity, and of rows that are all alike each is the first.
    """
    name = opname(func)
    if type(meta) is not torch.Tensor or meta.is_floating_point() or meta.is_complex() or meta.numel() > FOLD_LIMIT:
        return None
    if name == "index_select":
        return any_row(values[0], int(args[1]), tuple(meta.shape))
    if name in _NEVER and len(args) == 2:
        tensors = iter(values)
        first, second = (next(tensors) if isinstance(a, (torch.Tensor, Value)) else a for a in args)
        return full(meta, False) if _is_all(second, _NEVER[name]) or _is_all(first, -_NEVER[name]) else None
    if not (name in _AND or name in _OR) or (name in _OR and meta.dtype != torch.bool):
        return None
    for c in values:
        if not isinstance(c, Constant):
            continue
        with plainly():
            decides = not c.data.is_floating_point() and not bool((c.data == 0).any() if name in _OR else (c.data != 0).any())
        if not decides:
            continue
        return full(meta, name in _OR)
    return None


def any_row(value: Value, dim: int, shape: tuple[int, ...]) -> Constant | None:
    """Return rows of a constant along a dimension where all of it are one and the same; None otherwise."""
    if not isinstance(value, Constant) or not value.data.numel():
        return None
    with plainly():
        first = value.data.narrow(dim, 0, 1)
        alike = bool((value.data == first).all())
    return made_once(("any row", value, dim, shape), lambda: first.expand(shape)) if alike else None


def _is_all(operand: Any, number: float) -> bool:
    """Whether an operand is a number, or a constant that holds nothing else."""
    if not isinstance(operand, Constant):
        return type(operand) is float and operand == number
    with plainly():
        return operand.data.is_floating_point() and bool((operand.data == number).all())


#: Operators that give a tensor of one number, and take nothing but the shape and type of a tensor: the number, or None for ``fill_value``.
FILLS = {"zeros_like": 0, "new_zeros": 0, "ones_like": 1, "new_ones": 1, "full_like": None, "new_full": None}


def full(meta: torch.Tensor, number: Any) -> Constant:
    """Return the constant of a tensor that holds one number only."""
    shape, dtype = tuple(meta.shape), meta.dtype
    return made_once(("full", shape, dtype, type(number), repr(number)), lambda: torch.full(shape, number, dtype=dtype))


def without_elements(value: Value) -> Value:
    """Return the constant that a value without elements is; any other as it is."""
    if isinstance(value, Constant) or not isinstance(value.type, TensorType) or value.type.numel:
        return value
    return full(torch.empty(value.type.shape, dtype=getattr(torch, value.type.dtype), device="meta"), 0)


def is_empty(metas: Any) -> bool:
    """Whether all that an operation gives is tensors without elements."""
    if isinstance(metas, torch.Tensor):
        return not metas.numel()
    return all(isinstance(m, torch.Tensor) and not m.numel() for m in leaves(metas)) if metas else False
