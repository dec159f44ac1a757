# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operands whose lengths along a dimension have to agree, where it is known only at run time whether they do.

What eager refuses there is an error at run time. A length of one is spread over the other's, as PyTorch does it, where it may be one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.values.extents import Extent, as_number, bounds_of, extent_of
from dycl_tvm.frontend.trace.values.grown import Grown, cut, rank_of
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.lengths import Length, combine
from dycl_tvm.frontend.trace.values.numbers import is_symbolic, select
from dycl_tvm.frontend.trace.values.recorder import to_tensor
from dycl_tvm.hcfg.nodes import Value


def is_same(a: Any, b: Any) -> bool:
    """Whether two lengths are one."""
    return a is not None and b is not None and (a == b if isinstance(a, int) and isinstance(b, int) else combine("sub", a, b) == 0)


def extent_at(t: torch.Tensor, from_end: int) -> Extent | None:
    """Return how long a tensor is along a dimension counted from the end; None if it has no such dimension."""
    if isinstance(t, Grown):
        return t.lengths.get(t.dim_() - from_end, t.buffer.shape[-from_end]) if t.dim_() >= from_end else None
    return int(t.shape[-from_end]) if t.dim() >= from_end else None


def all_of_a_split(lengths: Sequence[Extent]) -> Extent | None:
    """Return how long the tensor was that was split into parts of these lengths; None if they are not all parts of one, in order."""
    parts = [n.counter.part if isinstance(n, Length) and (n.factor, n.constant) == (1, 0) else None for n in lengths]
    first = parts[0]
    if first is None or first[0].count != len(parts) or any(p is None or p[0] is not first[0] or p[1] != i for i, p in enumerate(parts)):
        return None
    return first[0].whole


def fitted(t: torch.Tensor, along: int, size: int, value: Any = 0) -> torch.Tensor:
    """Return a buffer with so many elements along a dimension; those that it did not have are ``value``."""
    missing = size - t.shape[along]
    return t.narrow(along, 0, size) if missing <= 0 else F.pad(t, [0, 0] * (t.dim() - 1 - along) + [0, missing], "constant", value)


def broadcast(
    tensors: Sequence[torch.Tensor], beyond: int = 0, error: type[Exception] = RuntimeError
) -> tuple[dict[int, torch.Tensor], dict[int, Extent]] | None:
    """Return tensors of fixed shape for operands that PyTorch broadcasts, by their ids, and lengths by the dimensions from the end.

    The last dimensions, up to ``beyond`` from the end, stay as they are. None if fixed sizes do not match; others that do not are an
    ``error`` at run time.
    """
    found = [t for t in tensors if isinstance(t, Grown)]
    wholes: dict[int, torch.Tensor] = {id(t): t.padded() for t in found}
    extents: dict[int, Extent] = {}
    for from_end in sorted({t.dim_() - d for t in found for d in t.lengths if t.dim_() - d > beyond}):
        having = [t for t in found if t.dim_() - from_end in t.lengths]
        sizes = [extent_at(t, from_end) for t in tensors if not (isinstance(t, Grown) and t.dim_() - from_end in t.lengths)]
        plain = [n for n in sizes if n not in (None, 1)]
        if any(n != plain[0] for n in plain):
            return None
        lengths = [t.lengths[t.dim_() - from_end] for t in having]
        common: Extent = lengths[0]
        room = min(t.buffer.shape[-from_end] for t in having)
        if plain or any(not is_same(n, common) for n in lengths):
            common = _agreed([*plain[:1], *lengths], error)  # type: ignore[list-item]  # plain ones are numbers
            room = bounds_of(common)[1]
        for t, length in zip(having, lengths):
            whole, along = wholes[id(t)], t.dim_() - from_end
            if not is_same(length, common) and length.bounds[0] <= 1:
                places = torch.arange(room) * (to_tensor(as_number(length), torch.int64) != 1)
                whole = whole.index_select(along, places.clamp(max=t.buffer.shape[along] - 1))
            wholes[id(t)] = fitted(whole, along, room)
        extents[from_end] = common
    for t in {id(t): t for t in found}.values():  # one may be several operands
        left = {d: n for d, n in t.lengths.items() if t.dim_() - d <= beyond}
        wholes[id(t)] = cut(wholes[id(t)], left) if left else wholes[id(t)]
    return wholes, extents


class _Agreed(OfOneRun):
    """The first number that the length of two was, by the two."""

    def __init__(self) -> None:
        self.first: dict[tuple[Extent, Extent], Value] = {}


def _agreed(extents: list[Extent], error: type[Exception]) -> Extent:
    """Return the length that operands are broadcast to; lengths that are neither one nor that are an error at run time."""
    common = extents[0]
    for extent in extents[1:]:
        if is_same(extent, common):
            continue
        (least_a, most_a), (least_b, most_b) = bounds_of(common), bounds_of(extent)
        a, b = as_number(common), as_number(extent)
        fine = a == b
        for x, least, most in ((a, least_a, most_a), (b, least_b, most_b)):
            fine = fine | (x == 1) if least <= 1 <= most else fine
        require(fine, error("the sizes of two tensors must match at a dimension whose length is known only at run time"))
        if not (isinstance(common, int) and common != 1) and not least_a > 1:
            known = isinstance(extent, int) and extent != 1
            if known:
                common = extent
                continue
            longer = select(a == 1, b, a)
            if is_symbolic(longer):  # that of the same two lengths is the same elsewhere
                longer.node.base = (current().get(_Agreed).first.setdefault((common, extent), longer.node.value), 0)
            common = extent_of(longer, min(least_a, least_b), max(most_a, most_b))
    return common


def equalized(
    tensors: Sequence[torch.Tensor], dims: Sequence[int], error: type[Exception] = RuntimeError
) -> tuple[list[torch.Tensor], Extent]:
    """Return tensors of fixed shape for operands that are as long as each other along a dimension each, and the length.

    One that is longer or shorter is an error at run time.
    """
    for t in tensors:
        if isinstance(t, Grown) and len(t.lengths) > 1:
            t.refuse("this is supported along one such dimension only, not of")
    return equalized_buffers(tensors, dims, error)


def equalized_buffers(
    tensors: Sequence[torch.Tensor], dims: Sequence[int], error: type[Exception] = RuntimeError
) -> tuple[list[torch.Tensor], Extent]:
    """Return buffers that are as long as each other along a dimension each, and the length: other dimensions are as they are there."""
    extents = [extent_at(t, rank_of(t) - d) for t, d in zip(tensors, dims)]
    common = next((e for e in extents if isinstance(e, int)), extents[0])
    assert common is not None
    for extent in extents:
        if not is_same(extent, common):
            require(
                as_number(extent) == as_number(common),  # type: ignore[arg-type]  # all have the dimension
                error("the sizes of two tensors must match at a dimension whose length is known only at run time"),
            )
    room = bounds_of(common)[1]
    return [fitted(t.padded() if isinstance(t, Grown) else t, d, room) for t, d in zip(tensors, dims)], common


def equalized_in(tensors: Sequence[torch.Tensor], dims: Iterable[int]) -> tuple[list[torch.Tensor], dict[int, Extent]]:
    """Return buffers for operands of one rank that are as long as each other along some dimensions, and the lengths by these."""
    extents: dict[int, Extent] = {}
    wholes: list[torch.Tensor] = [t.padded() if isinstance(t, Grown) else t for t in tensors]
    for d in dims:
        made, extents[d] = equalized_buffers(tensors, [d] * len(tensors))
        wholes = made if len(extents) == 1 else [fitted(whole, d, bounds_of(extents[d])[1]) for whole in wholes]
    return wholes, extents


def dims_of(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Return the dimensions along which one of several tensors has a length that is known only at run time."""
    return sorted({d for t in tensors if isinstance(t, Grown) for d in t.lengths})
