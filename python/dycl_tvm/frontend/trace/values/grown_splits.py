# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors that are split along a dimension into parts: by sizes, some of which are known only at run time, or of a length that is.

How many parts there are Python has to know: where the length decides that, each number of parts is a path. How long they are follows from
the length on each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import extent_at
from dycl_tvm.frontend.trace.values.extents import Extent, as_number, bounds_of, extent_of, is_number_of_run, narrow_at
from dycl_tvm.frontend.trace.values.grown import Grown, OfTheRun, cut, rank_of
from dycl_tvm.frontend.trace.values.grown_math import buffer_of
from dycl_tvm.frontend.trace.values.grown_parts import split_up
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.lengths import Length, Split
from dycl_tvm.frontend.trace.values.numbers import is_symbolic
from dycl_tvm.frontend.trace.values.picked import selects
from dycl_tvm.frontend.trace.values.recorder import item
from dycl_tvm.frontend.trace.values.tensors import storage_of, view_of

#: Into how many parts a tensor is split at most, and at how many lengths there may be fewer than were asked for.
_MOST_PARTS = 64


def split(x: torch.Tensor, sizes: Any, dim: int = 0) -> Any:
    """``x.split(sizes, dim)``, where sizes may be numbers of the run, and the dimension may be as long as one."""
    listed = isinstance(sizes, (list, tuple))
    if not any(map(selects, sizes if listed else [sizes])) and not (isinstance(x, Grown) and dim % x.dim_() in x.lengths):
        return _all_of(x, buffer_of(x).split(sizes, dim), dim)
    return _by_sizes(x, sizes, dim % rank_of(x)) if listed else _of_one_size(x, sizes, dim % rank_of(x))


def parts(func: Any, x: torch.Tensor, sizes: Any, dim: int = 0) -> Any:
    """Split along a dimension, as the function that is called does."""
    return split(x, sizes, dim)


def chunk(func: Any, x: torch.Tensor, chunks: int, dim: int = 0) -> Any:
    """Split into so many parts of one size, or fewer; the last one may be smaller."""
    dim = dim % rank_of(x)
    length = extent_at(x, rank_of(x) - dim)
    if not isinstance(x, Grown) or not isinstance(length, Length):
        return _all_of(x, buffer_of(x).chunk(chunks, dim), dim)
    if type(chunks) is not int or chunks < 1 or not isinstance(length.counter.loop, OfTheRun):
        return split_up(x, dim, lambda part: chunk(func, part, chunks, dim))
    there, counter = as_number(length), length.counter
    fewer = [n for n in map(length.at, range(counter.first, counter.last + 1)) if n and -(-n // -(-n // chunks)) != chunks]
    if len(fewer) > _MOST_PARTS:
        return x.refuse(f"chunk() into {chunks} parts, or fewer, of")
    for n in fewer:
        if _is_so(there == n):
            return chunk(func, cut(x.padded(), {**x.lengths, dim: n}), chunks, dim)
    each = (there + (chunks - 1)) // chunks
    return _by_sizes(x, [each] * (chunks - 1) + [there - each * (chunks - 1)], dim)


def _is_so(condition: Any) -> bool:
    """Return the answer to a test of numbers of the run on the path at hand."""
    return current().decisions.decide(scalars.truth_operand(condition))


def _of_one_size(x: torch.Tensor, size: Any, dim: int) -> Any:
    """Split into parts of one size, of which the last one may be smaller."""
    size = item(size) if isinstance(size, torch.Tensor) else size
    length: Extent = extent_at(x, rank_of(x) - dim)  # type: ignore[assignment]  # it is there
    if isinstance(x, Grown) and isinstance(length, Length) and not isinstance(length.counter.loop, OfTheRun):
        return split_up(x, dim, lambda part: split(part, size, dim))
    if type(size) is not int and not is_number_of_run(size):
        raise UnsupportedError("split() by a size that is no integer", current().origin(), "convert it before: int(n)")
    whole, (least, largest) = as_number(length), scalars.bounds_of(size) or (0, bounds_of(length)[1])
    if least <= 0:
        require((size > 0) | ((size == 0) & (whole == 0)), RuntimeError("split expects split_size to be positive where there are elements"))
    most = max(-(-bounds_of(length)[1] // max(least, 1)), 1)
    if most > _MOST_PARTS:
        raise UnsupportedError(f"split() into up to {most} parts", current().origin(), "split into fewer parts, or reshape the tensor")
    count = next((k for k in range(1, most) if _is_so(size * k >= whole)), most)
    last = whole - size * (count - 1)
    if is_symbolic(last) and last.node.length is None and last.node.bounds is not None:
        last.node.bounds = max(last.node.bounds[0], int(count > 1)), min(last.node.bounds[1], largest)
    return _by_sizes(x, [size] * (count - 1) + [last], dim)


def _by_sizes(t: torch.Tensor, sizes: Sequence[Any], dim: int) -> Any:
    """Split into parts of these sizes: each part is as long as the whole at most."""
    sizes = [item(n) if isinstance(n, torch.Tensor) else n for n in sizes]
    if not all(type(n) is int or is_number_of_run(n) for n in sizes):
        raise UnsupportedError("split() by sizes that are no integers", current().origin(), "convert them before: int(n)")
    starts, end = [], 0
    whole: Extent = extent_at(t, rank_of(t) - dim)  # type: ignore[assignment]  # it is there
    for n in sizes:
        require(n >= 0, RuntimeError("split_with_sizes expects split_sizes have only non-negative entries"))
        starts.append(end)
        end = end + n
    require(end == as_number(whole), RuntimeError("split_with_sizes expects split_sizes to sum exactly to the size of the tensor"))
    storage_of(t).cut = True if not isinstance(t, Grown) else storage_of(t).cut
    made, found, most = Split(whole, len(sizes)), [], bounds_of(whole)[1]
    for k, (n, start) in enumerate(zip(sizes, starts)):
        low, high = scalars.bounds_of(n) or (0, most)
        room = most - max((scalars.bounds_of(start) or (0, 0))[0], 0)
        extent = extent_of(n, max(low, 0), max(min(high, room), 0))
        if isinstance(extent, Length) and extent.counter.base is not None:  # others are known by their counters
            extent = replace(extent, counter=replace(extent.counter, part=(made, k)))
        found.append(_part(t, narrow_at(buffer_of(t), dim, start, bounds_of(extent)[1]), dim, extent))
    return tuple(found)


def _all_of(t: torch.Tensor, buffers: Sequence[torch.Tensor], dim: int) -> Any:
    """Return the parts of a tensor, of which some dimensions may have lengths, for those of its buffer."""
    if not isinstance(t, Grown):
        return buffers
    return tuple([_part(t, b, dim % t.dim_(), int(b.shape[dim])) for b in buffers])


def _part(t: torch.Tensor, buffer: torch.Tensor, dim: int, extent: Extent) -> torch.Tensor:
    """Return a part along a dimension, as a view: it lies in memory as the whole does, but for a gap."""
    part = cut(buffer, {**(t.lengths if isinstance(t, Grown) else {}), dim: extent})
    if isinstance(part, Grown) and isinstance(t, Grown) and t.order is not None:
        place = t.order.index(dim)
        part.order, part.gaps = t.order, t.gaps | ({place} if place else set())
    return view_of(t, part)  # type: ignore[arg-type]  # one of staging's
