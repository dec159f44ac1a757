# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How many elements of a mask are true: masks that follow from one another have counts that do.

A test whether any or all elements are true is a test of that count. It is made one if Python needs to know the count on the path behind
it: staging begins anew then. Else it stays a question of its own, which checks of the build may answer as they like.
"""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.deciding import Deciding, Tests
from dycl_tvm.frontend.trace.values.elements import elements
from dycl_tvm.frontend.trace.values.extents import as_number, extent_of
from dycl_tvm.frontend.trace.values.grown import Grown
from dycl_tvm.frontend.trace.values.grown_math import buffer_of
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, as_constant, fresh, read
from dycl_tvm.hcfg.hostops import OF_SHAPE
from dycl_tvm.hcfg.nodes import Value
from dycl_tvm.hcfg.types import INT, TensorType


class _Roots(OfOneRun):
    """What stands for the number of true elements of a mask, by what the mask is computed of."""

    def __init__(self) -> None:
        self.of: dict[Any, object] = {}


#: Operators whose result has the elements of the first operand, each once; and each equally often.
_ONCE = "alias clone contiguous detach flip permute reshape squeeze t transpose unsqueeze view _unsafe_view"
_MOVED = frozenset((*_ONCE.split(), "expand", "repeat"))
_NEGATED = frozenset(("bitwise_not", "logical_not"))


def _origin(value: Value) -> tuple[Value, int, int]:
    """Return a mask from which another follows, and how the count of the latter does: so many times the former's, and a constant."""
    factor, constant = 1, 0
    while (step := elements().maker_of(value)) is not None and step.op.startswith("aten."):
        given, name = step.args[0] if step.args else None, step.op.split(".")[1]
        if name not in _MOVED | _NEGATED or not isinstance(given, Value) or not _size(given) or given.type.dtype != "bool":  # type: ignore[union-attr]
            break
        times = _size(value) // _size(given)
        if name in _NEGATED:
            factor, constant = -factor, constant + factor * _size(value)
        value, factor = given, factor * times
    return value, factor, constant


def _size(value: Value) -> int:
    assert isinstance(value.type, TensorType)
    return value.type.numel


def _root(key: Any) -> object:
    return current().get(_Roots).of.setdefault(key, object())


def count(mask: torch.Tensor, of: torch.Tensor) -> Any:
    """Return how many elements of a mask are true, a number of the run or a plain one; ``of`` is the mask as the program has it."""
    if isinstance(of, Grown):
        return _counted(mask, (elements().computed_as(read(buffer_of(of))), tuple(of.lengths.items())))
    value, factor, constant = _origin(read(of))
    if (factor, constant) == (1, 0):
        return _counted(mask if value is read(of) else fresh(value), (elements().computed_as(value), None))
    return _counted(fresh(value), (elements().computed_as(value), None)) * factor + constant


def _counted(mask: torch.Tensor, key: Any) -> Any:
    total = mask.reshape(-1).sum()
    if (known := as_constant(total)) is not None:
        return int(known.data)
    root, size = _root(key), mask.numel()
    made = scalars.emit("item", read(total), type_=INT, text=OF_SHAPE)
    made.node.base, made.node.bounds = (root, 0), (0, size)
    return as_number(extent_of(made, 0, size))


def tested(x: Any) -> Any:
    """Return a test of the number of true elements for a tensor that says whether any are, or all, where such a test is wanted."""
    step = elements().maker_of(read(x)) if isinstance(x, StagedTensor) and not isinstance(x, Grown) and as_constant(x) is None else None
    if step is None or step.op not in _QUANTIFIERS:
        return x
    mask: Any = step.args[0]
    if mask.type.dtype != "bool":
        return x
    root, origin, deciding = _root((elements().computed_as(_origin(mask)[0]), None)), current().origin(), current().get(Deciding)
    if origin not in current().get(Tests).of_counts and deciding.tested.get(root, origin) is not None:
        deciding.tested[root] = origin
        return x
    deciding.tested[root] = None
    n = count(fresh(mask), fresh(mask))
    return n >= (1 if step.op == "aten.any.default" else _size(mask))


_QUANTIFIERS = ("aten.any.default", "aten.all.default")
