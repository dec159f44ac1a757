# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How long the results are of layers that mix neighbours, of a length that is known only at run time, and which lengths PyTorch refuses."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.frontend.trace.session import apart
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.extents import Extent, extent_of
from dycl_tvm.frontend.trace.values.grown import Grown, cut, number
from dycl_tvm.frontend.trace.values.grown_formats import Order, laid_out, suggested_order
from dycl_tvm.frontend.trace.values.grown_math import dtype_of, filled, is_contiguous, refuse_call
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.lengths import Length


@dataclass(frozen=True)
class Window:
    """How long a result is: ``(times * n + more) // step`` for a length ``n``."""

    times: int
    more: int
    step: int = 1

    def of(self, n: int) -> int:
        """Return it for a number."""
        return (self.times * n + self.more) // self.step


def length_after(window: Window, length: Length) -> Extent:
    """Return how long a result is; it is not negative."""
    least, most = (max(window.of(n), 0) for n in length.bounds)
    return extent_of((number(length) * window.times + window.more) // window.step, least, most)


def layer_along(
    func: Any,
    t: Grown,
    layer: Callable[..., torch.Tensor],
    windows: dict[int, Window],
    *others: torch.Tensor,
    fill: float = 0,
    in_order: bool = False,
    beyond: Collection[int] | None = None,
) -> Any:
    """Compute a layer of what there is of a tensor; ``layer`` takes the tensor and the other ones after it.

    ``windows`` are those of the dimensions that it mixes; the other dimensions are computed each by itself. A layer of images, or of what
    PyTorch makes an image of, lies in memory as its input suggests, but for those of which it is known that they are ``in_order``.
    Along the dimensions of ``beyond`` what lies behind a length is read for what lies before it, and is ``fill``: if not given, along all.
    """
    whole = filled(t, fill, windows if beyond is None else beyond)
    for d, window in windows.items():
        if d in t.lengths:
            check_lengths(func, t, d, layer, window, others)
    extents = {d: length_after(windows[d], n) if d in windows else n for d, n in t.lengths.items()}
    return laid_out(cut(layer(whole, *others), extents), order_after(t, others, in_order), t)


def order_after(t: Grown, others: Iterable[torch.Tensor], in_order: bool) -> Order | None:
    """Return in which order the result of a layer lies; None if that depends on the lengths, or is not known."""
    order = tuple(range(t.dim_()))
    known = in_order or t.order == order or (t.dim_() == 4 and suggested_order(t) == order)
    return order if known and all(map(is_contiguous, others)) else None


def check_lengths(func: Any, t: Grown, along: int, layer: Any, window: Window, others: tuple[torch.Tensor, ...]) -> None:
    """Raise at run time what PyTorch raises of tensors that are too short: it is asked for each length, from the least on."""
    length, error = t.lengths[along], None
    least, most = length.bounds
    taken: list[int] = []
    given = [(tuple(o.shape), o.dtype) for o in others]
    # where there is nothing along another dimension, PyTorch may take what it does not take elsewhere
    excused = [d for d, n in t.lengths.items() if d != along and n.bounds[0] < 1]

    def at(sizes: dict[int, int]) -> torch.Tensor:
        shape = [sizes.get(d, size) for d, size in enumerate(t.buffer.shape)]
        with apart(), plainly():
            return layer(torch.zeros(shape, dtype=dtype_of(t)), *[torch.zeros(size, dtype=dtype) for size, dtype in given])

    for n in range(max(least, 0), most + 1):
        try:
            made = at({along: n})
        except (RuntimeError, ValueError, IndexError) as raised:
            error = raised
            excused = [d for d in excused if _takes(at, {along: n, d: 0}, window)]
            continue
        if made.shape[along] != window.of(n):
            refuse_call(func, t)
        if error is not None:
            fine = functools.reduce(
                operator.or_, [*(number(t.lengths[d]) == 0 for d in excused), *(number(length) == k for k in taken)], number(length) >= n
            )
            require(fine, type(error)(f"{func.__name__}() of fewer than {n} elements along a dimension"))
        if n > 1:
            return
        taken.append(n)
    if error is not None:  # PyTorch refuses all other lengths, up to the longest
        require(functools.reduce(operator.or_, [number(length) == k for k in taken]) if taken else False, error)


def _takes(at: Callable[[dict[int, int]], torch.Tensor], sizes: dict[int, int], window: Window) -> bool:
    """Whether PyTorch takes a tensor of such sizes, the first of which decides how long the result is."""
    try:
        made = at(sizes)
    except (RuntimeError, ValueError, IndexError):
        return False
    along, n = next(iter(sizes.items()))
    return made.shape[along] == max(window.of(n), 0)


def number_at(numbers: Any, at: int) -> int:
    """Return one of the numbers of a layer, which may be one for all dimensions."""
    numbers = list(numbers) if isinstance(numbers, (tuple, list)) else [numbers]
    return int(numbers[at if len(numbers) > 1 else 0])
