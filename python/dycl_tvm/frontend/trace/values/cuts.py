# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Slices of tensors of fixed shape up to a number that is known only at run time: so much of the front there is."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.grown import Grown, grown
from dycl_tvm.frontend.trace.values.lengths import Counter, Length, combine
from dycl_tvm.frontend.trace.values.recorder import item
from dycl_tvm.frontend.trace.values.tensors import as_constant, storage_of, view_of
from dycl_tvm.hcfg.nodes import Value

INSTEAD = "keep the full tensor and mask it (torch.where), or select single items"


class _Cut:
    """What is asked, in the place of the loop in which a tensor grows, where a tensor must have a fixed shape."""

    def __init__(self) -> None:
        rolling = current().decisions.rolling
        self._around = rolling[-1].loop if rolling else None

    def refuse(self, reason: str, others: object = "") -> None:
        """Say that its shape depends on values; in a loop, which may know them if it is unrolled, unroll that."""
        refuse_here(
            self._around,
            reason.replace("grows from trip to trip of a loop", "has as many elements as a number says that is known only at run time"),
        )


def refuse_here(loop: Any, reason: str) -> None:
    """Refuse a shape that depends on values, or unroll the loop that is being rolled."""
    decisions = current().decisions
    refusal = UnsupportedError(reason, current().origin(), INSTEAD)
    if loop is not None and decisions.holds(loop):
        decisions.unroll(loop, refusal)
    raise refusal


def cut(t: torch.Tensor, entries: list[Any]) -> Any:
    """Return a slice up to a number of the run, by an index without an ellipsis; NotImplemented if it is another index."""
    bounds = [e for e in entries if type(e) is slice and _is_number(e.stop)]
    if len(bounds) != 1 or bounds[0].start not in (None, 0) or bounds[0].step not in (None, 1):
        return NotImplemented
    at = next(i for i, e in enumerate(entries) if e is bounds[0])
    if any(not (e is None or type(e) is int or (type(e) is slice and _is_plain(e))) for i, e in enumerate(entries) if i != at):
        return NotImplemented
    dim, along = [sum(kept(e) for e in entries[:at]) for kept in (lambda e: e is not None, lambda e: type(e) is not int)]
    size, stop = int(t.shape[dim]), bounds[0].stop
    stop = item(stop) if isinstance(stop, torch.Tensor) else stop
    if not scalars.is_symbolic(stop) or not stop.node.is_int():
        return NotImplemented
    length = scalars.length_of(stop)
    if not isinstance(length, Length):
        current().decisions.count_trips()
        length = _up_to(stop, size)
    elif combine("ge", length, 0) is not True or not _is_at_most(length, size):
        length = _up_to(stop, size)
    whole = torch.Tensor.__getitem__(t, tuple([slice(None) if i == at else e for i, e in enumerate(entries)]))
    if length is None:
        return whole
    storage_of(t).cut = True
    return view_of(t, grown(whole, along, length))  # type: ignore[arg-type]  # one of staging's


def _is_at_most(length: Length, size: int) -> bool:
    """Whether a length is no more than a size in all trips of its loop, or may be claimed to be: that is proved with the loop's bound."""
    if combine("le", length, size) is True:
        return True
    rolling = [r.loop for r in current().decisions.rolling]
    block, trips = current().builder.block, length.most_trips(size)
    if block is None or length.counter.loop not in rolling or length.factor < 0 or trips < 0 or length.counter.broken:
        return False
    length.counter.claims.append((block, trips))
    return True


def _is_number(stop: Any) -> bool:
    if isinstance(stop, torch.Tensor):
        return not isinstance(stop, Grown) and stop.dim() == 0 and stop.dtype in _INTEGERS and as_constant(stop) is None
    return scalars.is_symbolic(stop)


#: Not bool, which Python takes as 0 and 1, and not uint8.
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def _is_plain(part: slice) -> bool:
    return all(p is None or type(p) is int for p in (part.start, part.stop, part.step))


def _up_to(stop: Any, size: int) -> Length | None:
    """Return how many elements of ``size`` a slice up to a number has, with Python's meaning of what is negative or too large."""
    bounds = scalars.bounds_of(stop)
    if bounds is None or bounds[0] < 0:
        stop = scalars.select(stop < 0, stop + size, stop)
        stop = scalars.select(stop < 0, 0, stop)
    if bounds is None or bounds[1] > size:
        stop = scalars.select(stop > size, size, stop)
    value = scalars.operand_of(stop)
    return Length(Counter(value, size, _Cut()), 1, 0) if isinstance(value, Value) else None
