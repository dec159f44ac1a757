# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What programs ask of the memory of tensors whose lengths are known only at run time: strides, their order, ``as_strided``."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from typing import Any

import torch

from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.extents import Extent, as_number, bounds_of, largest_of
from dycl_tvm.frontend.trace.values.grown import Grown, cut
from dycl_tvm.frontend.trace.values.grown_math import Handler, at_front, count_in, flat, refuse_call
from dycl_tvm.frontend.trace.values.grown_shapes import length_of_size, stands_for_a_view
from dycl_tvm.frontend.trace.values.numbers import is_symbolic
from dycl_tvm.frontend.trace.values.raising import limit
from dycl_tvm.frontend.trace.values.recorder import to_tensor

_T = torch.Tensor


def is_contiguous(func: Any, t: Grown, memory_format: Any = torch.contiguous_format) -> Any:
    """Whether the elements lie in order: dimensions of one element, and tensors of none, lie anywhere."""
    if memory_format is not torch.contiguous_format or t.order is None or t.gaps or not t.exact:
        return refuse_call(func, t)
    sizes = t.sizes()
    turned = [(a, b) for a, b in itertools.combinations(t.order, 2) if a > b]
    pairs = [(sizes[a] == 1) | (sizes[b] == 1) for a, b in turned]
    return functools.reduce(operator.and_, pairs, True) | functools.reduce(operator.or_, [n == 0 for n in sizes], False)


def stride(func: Any, t: Grown, dim: int | None = None) -> Any:
    """Return the strides of a tensor that lies in order."""
    if not (t.contiguous_ and t.exact == 2):
        return refuse_call(func, t)
    sizes = [largest_of(n, 1) for n in t.sizes()]
    made = tuple([math.prod(sizes[d + 1 :]) for d in range(len(sizes))])
    return made if dim is None else made[dim]


def as_strided(func: Any, t: Grown, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    """Take the elements at such places of the memory of a tensor that lies in order: within it, or the call ends."""
    offset = 0 if storage_offset is None else storage_offset
    sizes, steps = flat((size,)), flat((stride,))
    asked: list[Extent | None] = [length_of_size(n) if is_symbolic(n) else n for n in sizes]
    if not (t.contiguous_ and t.exact) or type(offset) is not int or (storage_offset is not None and t.chain) or len(steps) != len(sizes):
        return refuse_call(func, t)
    if None in asked or any((scalars.bounds_of(n) or (-1, 0))[0] < 0 if is_symbolic(n) else n < 0 for n in (offset, *sizes, *steps)):
        return refuse_call(func, t)
    extents: dict[int, Extent] = dict(enumerate(asked))  # type: ignore[arg-type]  # none is None
    rooms = [bounds_of(n)[1] for n in extents.values()]
    if not math.prod(rooms) or not math.prod(t.buffer.shape):
        return refuse_call(func, t)
    last = offset + sum((as_number(n) - 1) * step for n, step in zip(extents.values(), steps))
    inside = last < count_in(t, range(t.dim_()))
    inside = functools.reduce(operator.or_, [as_number(n) == 0 for n in extents.values()], inside)
    if is_symbolic(inside) or not inside:
        limit(scalars.operand_of(inside), "as_strided() goes beyond the elements of its tensor")
    elements, at = at_front(t).reshape(-1), torch.full((), offset)
    for room, step in zip(rooms, steps):
        at = at.unsqueeze(-1) + torch.arange(room) * to_tensor(step, torch.int64)
    made = elements.index_select(0, at.reshape(-1).clamp(0, elements.shape[0] - 1)).reshape(rooms)
    made = cut(made, extents)
    stands_for_a_view(made, t)
    return made


HANDLERS: dict[Any, Handler] = {
    _T.is_contiguous: is_contiguous,
    _T.stride: stride,
    **dict.fromkeys([_T.as_strided, torch.as_strided], as_strided),
}
