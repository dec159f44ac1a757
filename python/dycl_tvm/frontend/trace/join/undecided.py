# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A number on some paths and a tensor of rank 0 on others: ``accept = error < 1`` and then ``if step <= least: accept = True``, or
``at = places[-1]`` if there are any, and else ``at = int(length * rate)``.

Which of them it is parts the paths, as for any :class:`.poison.Poison`. Whether it is true does not: a tensor is read where the program
asks for that, a number is known by then. Nor does arithmetic: what it gives is computed of the one or the other in place, and joined.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from dycl_tvm.frontend.trace.join.captured import Captured, NumberLeaf, TensorLeaf
from dycl_tvm.frontend.trace.join.kinds import placeholder
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.layouts import marks_of
from dycl_tvm.frontend.trace.values.recorder import truth_of as truth_of_one
from dycl_tvm.frontend.trace.values.storage import Stale, Storage
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, fresh, storage_of
from dycl_tvm.hcfg.nodes import Operand, Value
from dycl_tvm.hcfg.types import BOOL, ScalarType, TensorType, Type


@dataclass
class _Parts:
    """What such a value is made of: whether it is a tensor, the number and the tensor; None for the one that it is not on a path.

    ``memories`` are those of the tensors, with their versions where the value was taken; 0 if the paths have not met yet.
    """

    is_tensor: Operand
    number: Operand | None
    tensor: Value | None
    memories: list[tuple[Storage, int]]


class Undecided(Poison):
    """Stands for such a value."""

    __slots__ = ("_parts",)


class Choices:
    """How one of two is computed where the run says which.

    Attributes
    ----------
    choose : callable or None
        Given a truth, what to do if it holds, and what if not: returns what both give, joined. A layer above may know.
    of_the_program : callable
        Whether code is the program's, as that layer has rewritten it: there ``x += u`` never comes as ``x + u``.
    """

    choose: Callable[[Any, Callable[[], Any], Callable[[], Any]], Any] | None = None
    of_the_program: Callable[[CodeType], bool]


def undecided(poison: Poison, found: list[Captured], operand: Callable[[Type, list[Operand]], Operand]) -> Poison:
    """Return a poison of which the truth can be asked, and with which can be computed, if what it is on each path allows that.

    Parameters
    ----------
    poison : Poison
        What is returned else.
    found : list of Captured
        What it is on each path.
    operand : callable
        Makes one operand of those of the paths.
    """
    parts = [_parts(c) for c in found]
    kinds, types = _kinds(parts), {p.tensor.type for p in parts if p is not None and p.tensor is not None}
    if any(p is None for p in parts) or len(kinds) != 1 or len(types) != 1:
        return poison
    of_paths: list[Any] = parts
    number, tensor = ScalarType(kinds.pop()), types.pop()
    made = object.__new__(Undecided)
    for name in Poison.__slots__:
        object.__setattr__(made, name, object.__getattribute__(poison, name))
    is_tensor = operand(BOOL, [p.is_tensor for p in of_paths])
    numbers = operand(number, [placeholder(number) if p.number is None else p.number for p in of_paths])
    tensors: Any = operand(tensor, [placeholder(tensor) if p.tensor is None else p.tensor for p in of_paths])
    object.__setattr__(made, "_parts", _Parts(is_tensor, numbers, tensors, [memory for p in of_paths for memory in p.memories]))
    return made


def are_truths(found: list[Captured]) -> bool:
    """Whether all of some values are bools, tensors of one, or undecided between these."""
    parts = [_parts(c) for c in found]
    types = {p.tensor.type for p in parts if p is not None and p.tensor is not None}
    return not any(p is None for p in parts) and _kinds(parts) <= {"bool"} and types <= {TensorType((), "bool")}


def note_contents(x: Any) -> None:
    """Note what the memories hold of which such a value was made, where the paths have met."""
    memories = object.__getattribute__(x, "_parts").memories
    memories[:] = [(memory, version or memory.version) for memory, version in memories]


def truth_of(x: Poison) -> Operand:
    """Return whether a poison is true, where that can be told; else the paths part. What was changed in place since is another truth."""
    if not is_known(x):
        use(x)
    parts: _Parts = object.__getattribute__(x, "_parts")
    builder = current().builder
    tensor, number, joined = (builder.new_block(name) for name in ("tensor", "number", "truth"))
    truth = builder.add_param(joined, BOOL, "")
    builder.branch(parts.is_tensor, tensor, number)
    builder.block = tensor
    assert parts.tensor is not None
    builder.jump(joined, [truth_of_one(fresh(parts.tensor))])
    builder.block = number
    builder.jump(joined, [truth_of_one(scalars.wrap(parts.number))])  # type: ignore[arg-type]  # it is not None
    builder.block = joined
    return truth


def is_known(x: Any) -> bool:
    """Whether something is such a value, and nothing of which it was made has been changed in place since."""
    return type(x) is Undecided and all(memory.version == version for memory, version in object.__getattribute__(x, "_parts").memories)


def can_be_an_operand(x: Any) -> bool:
    """Whether arithmetic of something with such a value is what it is with the number, or the tensor, that this is."""
    return isinstance(x, torch.Tensor) or scalars.is_symbolic(x) or type(x) in (bool, int, float, Undecided)


def computed(x: Any, function: Callable[[Any], Any]) -> Any:
    """Return what a function that changes nothing of its argument gives for such a value; where that cannot be joined, the paths part."""
    choose = current().get(Choices).choose
    if choose is None or not is_known(x):
        use(x)
    assert choose is not None
    parts: Any = object.__getattribute__(x, "_parts")
    return choose(scalars.wrap(parts.is_tensor), lambda: function(fresh(parts.tensor)), lambda: function(scalars.wrap(parts.number)))


def _operator(function: Callable[..., Any]) -> Any:
    def method(x: Any, *others: Any) -> Any:
        if not current().get(Choices).of_the_program(sys._getframe(1).f_code) or not all(map(can_be_an_operand, others)):
            use(x)
        return computed(x, lambda one: function(one, *others))

    return method


def _reflected(function: Callable[[Any, Any], Any]) -> Any:
    return _operator(lambda one, other: function(other, one))


# a division by a number raises where one by a tensor does not
for _name in ("add", "sub", "mul", "neg", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Undecided, f"__{_name}__", _operator(getattr(operator, _name)))
for _name in ("add", "sub", "mul"):
    setattr(Undecided, f"__r{_name}__", _reflected(getattr(operator, _name)))


def _kinds(parts: list[_Parts | None]) -> set[Any]:
    return {scalars._kind(p.number) for p in parts if p is not None and p.number is not None}


def _parts(c: Captured) -> _Parts | None:
    """Return what a value of one path is made of; None if it is neither a number, nor a tensor of rank 0, nor undecided itself."""
    if isinstance(c, NumberLeaf):
        return None if scalars.mixed_of(c.obj) else _Parts(False, c.operand, None, [])
    if isinstance(c, TensorLeaf):
        plain = type(c.obj) is StagedTensor and c.obj.compared is None and not isinstance(c.value, Stale) and not any(marks_of(c.obj))
        is_one = plain and isinstance(c.value.type, TensorType) and not c.value.type.shape
        return _Parts(True, None, c.value, [(storage_of(c.obj), 0)]) if is_one else None
    if type(c.obj) is not Undecided:
        return None
    parts: _Parts = object.__getattribute__(c.obj, "_parts")
    return parts
