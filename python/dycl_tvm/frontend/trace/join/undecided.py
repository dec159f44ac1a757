# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A bool on some paths and a tensor of one on others: ``accept = error < 1`` and then ``if step <= least: accept = True``.

Which of them it is parts the paths, as for any :class:`.poison.Poison`. Whether it is true does not: a tensor is read where the program
asks for that, a bool is known by then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.frontend.trace.join.captured import Captured, NumberLeaf, TensorLeaf
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.folding import full
from dycl_tvm.frontend.trace.values.storage import Stale, Storage
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, storage_of
from dycl_tvm.hcfg.nodes import Operand, Value
from dycl_tvm.hcfg.types import BOOL, TensorType, Type

_TENSOR = TensorType((), "bool")


@dataclass
class _Parts:
    """What such a value is made of: whether it is a tensor, the bool and the tensor; the one that it is not is False.

    ``memories`` are those of the tensors, with their versions where the value was taken; 0 if the paths have not met yet.
    """

    is_tensor: Operand
    number: Operand
    tensor: Value
    memories: list[tuple[Storage, int]]


class Undecided(Poison):
    """Stands for such a value."""

    __slots__ = ("_parts",)


def undecided(poison: Poison, found: list[Captured], operand: Callable[[Type, list[Operand]], Operand]) -> Poison:
    """Return a poison of which the truth can be asked, if what it is on each path allows that; else the poison.

    Parameters
    ----------
    poison : Poison
    found : list of Captured
        What it is on each path.
    operand : callable
        Makes one operand of those of the paths.
    """
    parts = [_parts(c) for c in found]
    if any(p is None for p in parts):
        return poison
    of_paths: list[Any] = parts
    made = object.__new__(Undecided)
    for name in Poison.__slots__:
        object.__setattr__(made, name, object.__getattribute__(poison, name))
    is_tensor, number = (operand(BOOL, [getattr(p, part) for p in of_paths]) for part in ("is_tensor", "number"))
    tensor: Any = operand(_TENSOR, [p.tensor for p in of_paths])
    object.__setattr__(made, "_parts", _Parts(is_tensor, number, tensor, [memory for p in of_paths for memory in p.memories]))
    return made


def note_contents(x: Any) -> None:
    """Note what the memories hold of which such a value was made, where the paths have met."""
    memories = object.__getattribute__(x, "_parts").memories
    memories[:] = [(memory, version or memory.version) for memory, version in memories]


def truth_of(x: Poison) -> Operand:
    """Return whether a poison is true, where that can be told; else the paths part. What was changed in place since is another truth."""
    parts: _Parts | None = object.__getattribute__(x, "_parts") if type(x) is Undecided else None
    if parts is None or any(memory.version != version for memory, version in parts.memories):
        use(x)
    assert parts is not None
    builder = current().builder
    tensor, number, joined = (builder.new_block(name) for name in ("tensor", "number", "truth"))
    truth = builder.add_param(joined, BOOL, "")
    builder.branch(parts.is_tensor, tensor, number)
    builder.block = tensor
    builder.jump(joined, [scalars.operand_of(scalars.emit("item", parts.tensor, type_=BOOL))])
    builder.block = number
    builder.jump(joined, [parts.number])
    builder.block = joined
    return truth


def _parts(c: Captured) -> _Parts | None:
    """Return what a value of one path is made of; None if it is neither a bool, nor a tensor of one, nor undecided itself."""
    if isinstance(c, NumberLeaf):
        no = full(torch.empty((), dtype=torch.bool, device="meta"), False)
        is_bool = scalars._kind(c.operand) == "bool" and not scalars.mixed_of(c.obj)
        return _Parts(False, c.operand, no, []) if is_bool else None
    if isinstance(c, TensorLeaf):
        plain = type(c.obj) is StagedTensor and c.obj.compared is None and not isinstance(c.value, Stale)
        return _Parts(True, False, c.value, [(storage_of(c.obj), 0)]) if plain and c.value.type == _TENSOR else None
    if type(c.obj) is not Undecided:
        return None
    parts: _Parts = object.__getattribute__(c.obj, "_parts")
    return parts
