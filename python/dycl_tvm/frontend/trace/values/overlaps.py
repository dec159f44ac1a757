# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What eager refuses of a change in place where a length is known only at run time: to read memory through another view that overlaps.

Eager raises an error where it sees the overlap (``m[1:] += m[:-1]``), and gives what follows from the order of the elements where it does
not. Here parts along one dimension are compared when the network runs, which is an error where they overlap; other views are refused.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import dims_of
from dycl_tvm.frontend.trace.values.arguments import tensors_of
from dycl_tvm.frontend.trace.values.extents import NARROW_AT
from dycl_tvm.frontend.trace.values.grown import Grown, buffer_type, number
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.layouts import meta_of
from dycl_tvm.frontend.trace.values.recorder import item
from dycl_tvm.frontend.trace.values.tensors import SELECT_AT, StagedTensor, ViewStep, fresh

aten = torch.ops.aten
_ROW = (aten.select.int, SELECT_AT)
_PART = (aten.slice.Tensor, NARROW_AT)


def check_overlap(target: torch.Tensor, read: Any, itself: bool = True) -> None:
    """See that what is read for a change of all of ``target`` lies elsewhere, or is the same elements if it may be the tensor itself."""
    if not isinstance(target, StagedTensor):
        return
    for t in tensors_of((read,), {}):
        if not isinstance(t, StagedTensor) or t.storage_ is not target.storage_ or not (isinstance(t, Grown) or isinstance(target, Grown)):
            continue
        if not itself:
            _refuse()
        if t is not target:
            _check(target, t)


def check_apart(target: torch.Tensor, value: torch.Tensor) -> None:
    """Refuse a value for picked elements of a tensor that lies in the memory of that tensor."""
    if isinstance(target, StagedTensor) and isinstance(value, StagedTensor) and value.storage_ is target.storage_:
        _refuse()


def _check(target: StagedTensor, t: StagedTensor) -> None:
    a, b = _Steps(target), _Steps(t)
    alike = 0
    while alike < min(len(a.steps), len(b.steps)) and a.steps[alike] == b.steps[alike]:
        alike += 1
    along = dims_of([target, t])
    empty = _is_empty(target) | _is_empty(t)
    counts = [_count(target, d) == _count(t, d) for d in along] if target.dim() == t.dim() else [False]
    as_long = functools.reduce(operator.and_, counts)
    if len(a.steps) == len(b.steps) == alike:
        _require(as_long | empty)
        return
    first, second = a.interval(alike, b), b.interval(alike, a)
    if first is None or second is None or first[0] != second[0]:
        _refuse()
        return
    (_, _, start, count), (_, _, begin, length) = first, second
    fine = (start + count <= begin) | (begin + length <= start)
    same = _takes_the_same(a, b, alike)
    fine = fine if same is None else fine | (same & as_long)
    if fine is False:
        _refuse()
    _require(fine | empty)


def _takes_the_same(a: _Steps, b: _Steps, alike: int) -> Any:
    """Whether the steps from one on take the same elements each; None if that is not known, or if they do not."""
    same: Any = True
    for k in range(alike, most := max(len(a.steps), len(b.steps))):
        if most > alike + 1 and len(a.steps) != len(b.steps):
            return None
        if k < min(len(a.steps), len(b.steps)) and a.steps[k] == b.steps[k]:
            continue
        first, second = a.interval(k, b), b.interval(k, a)
        if first is None or second is None or first[:2] != second[:2]:
            return None
        same = same & (first[2] == second[2]) & (first[3] == second[3])
    return same


class _Steps:
    """The views that lead to a tensor, less those that change nothing, and the shapes on the way."""

    def __init__(self, t: StagedTensor) -> None:
        self.t = t
        self.steps: list[ViewStep] = []
        shape: tuple[int, ...] = tuple(t.storage_.value.type.shape)  # type: ignore[union-attr]  # a tensor's
        self.shapes = [shape]
        for op, args, kwargs in t.chain:
            if op is SELECT_AT:
                made = shape[: args[0]] + shape[args[0] + 1 :]
            elif op is NARROW_AT:
                made = (*shape[: args[0]], args[2], *shape[args[0] + 1 :])
            else:
                with plainly():
                    made = tuple(op(meta_of(shape, None, torch.float32), *args, **kwargs).shape)
            if op is not aten.alias.default and not (op is aten.slice.Tensor and made == shape):
                self.steps.append((op, args, kwargs))
                self.shapes.append(made)
            shape = made

    def interval(self, k: int, other: _Steps) -> tuple[int, bool, Any, Any] | None:
        """Return which elements a step takes: along which dimension, whether one or several, from where on, how many; None if not known."""
        if k == len(self.steps):  # all of those that there are along the dimension of the other
            op, args, _ = other.steps[k]
            if op not in _ROW and op not in _PART:
                return None
            dim = args[0] % len(self.shapes[k])
            return dim, False, 0, _count(self.t, dim)
        op, args, _ = self.steps[k]
        if op not in _ROW and op not in _PART:
            return None
        dim = args[0] % len(self.shapes[k])
        start = item(fresh(args[1])) if op in (SELECT_AT, NARROW_AT) else args[1]
        if op in _ROW:
            return dim, True, start, 1
        if len(args) > 3 and args[3] != 1:
            return None
        kept = all(later[0] in _PART and later[1][0] % len(self.shapes[k]) != dim for later in self.steps[k + 1 :])
        return dim, False, start, _count(self.t, dim) if kept else self.shapes[k + 1][dim]


def _count(t: torch.Tensor, dim: int) -> Any:
    return number(t.lengths[dim]) if isinstance(t, Grown) and dim in t.lengths else buffer_type(t).shape[dim]


def _is_empty(t: StagedTensor) -> Any:
    if not isinstance(t, Grown):
        return t.numel() == 0
    return functools.reduce(operator.or_, [number(n) == 0 for n in t.lengths.values()])


def _require(fine: Any) -> None:
    if scalars.is_symbolic(fine) or not fine:
        require(fine, RuntimeError("some elements of the input tensor and the written-to tensor refer to a single memory location"))


def _refuse() -> None:
    raise UnsupportedError(
        "a change in place reads memory through one view and writes to it through another that may overlap",
        current().origin(),
        "copy what it reads: x[1:] += x[:-1].clone()",
    )
