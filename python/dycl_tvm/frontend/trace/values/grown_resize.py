# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Resizing (``F.interpolate``) from lengths, or to lengths, that are known only at run time, one dimension after the other.

Each element of a result is a sum of a few elements, its taps, of which both places and weights follow from the two lengths by PyTorch's own
arithmetic, in the order of its operations: a place may change with the last bit of a quotient.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.trace.values.aligned import extent_at
from dycl_tvm.frontend.trace.values.extents import Extent, as_number, bounds_of
from dycl_tvm.frontend.trace.values.grown import Grown, cut, rank_of
from dycl_tvm.frontend.trace.values.grown_formats import laid_out, suggested_order
from dycl_tvm.frontend.trace.values.grown_math import Handler, buffer_of, dtype_of, refuse_call
from dycl_tvm.frontend.trace.values.grown_pooling import means_of, windowed
from dycl_tvm.frontend.trace.values.grown_shapes import length_of_size
from dycl_tvm.frontend.trace.values.grown_windows import Window, layer_along, length_after
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.numbers import is_symbolic
from dycl_tvm.frontend.trace.values.recorder import to_tensor

#: Places, and what the elements there are multiplied with; None is once.
_Taps = list[tuple[torch.Tensor, torch.Tensor | None]]
_RANKS = {"linear": 3, "bilinear": 4, "trilinear": 5, "bicubic": 4}
#: The largest denominator of a factor that is no binary fraction (``scale_factor=0.1``).
_MOST_PARTS = 1 << 10


def interpolate(
    func: Any,
    x: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: Any = "nearest",
    align_corners: Any = None,
    recompute_scale_factor: Any = None,
    antialias: Any = False,
) -> Any:
    """Resize to sizes, or by factors, any of which may be known only at run time."""
    asked = _asked(x, size, scale_factor, recompute_scale_factor)
    if asked is None or not _is_known(x, mode, align_corners, antialias):
        return refuse_call(func, x) if isinstance(x, Grown) else NotImplemented
    dims = range(2, rank_of(x))
    own: list[Extent] = [extent_at(x, rank_of(x) - d) for d in dims]  # type: ignore[misc]  # all are there
    for n in [*own, *(m for m, _ in asked if mode != "area")]:
        if bounds_of(n)[0] < 1:
            require(as_number(n) > 0, RuntimeError("Input and output sizes should be greater than 0"))
    extents: dict[int, Extent] = dict(zip(dims, [m for m, _ in asked]))
    factors = [factor for _, factor in asked]
    if mode == "nearest" and isinstance(x, Grown) and all(f is not None and f >= 1 and f == int(f) for f in factors):
        windows = {d: Window(int(factors[d - 2] or 1), 0) for d in x.lengths if d > 0}
        return layer_along(func, x, lambda t: func(t, scale_factor=scale_factor), windows)
    lengths: dict[int, Extent] = {**(x.lengths if isinstance(x, Grown) else {}), **extents}
    if mode == "area":
        longest = {d: _longest(n, f) for d, n, f in zip(dims, own, factors) if f is not None}
        return windowed(x, extents, means_of, longest)
    made = buffer_of(x)
    for d, n, (m, factor) in reversed(list(zip(dims, own, asked))):  # PyTorch begins with the last one
        made = _read(made, d, _taps(mode, bool(align_corners), n, m, factor, made.dtype))
    return laid_out(cut(made, lengths), suggested_order(x), x)


def _is_known(x: torch.Tensor, mode: Any, align_corners: Any, antialias: Any) -> bool:
    rank, dtype, plain = rank_of(x), dtype_of(x), type(align_corners) in (bool, type(None))
    if antialias is not False or not plain or not 3 <= rank <= 5 or (isinstance(x, Grown) and 1 in x.lengths):
        return False
    if mode in ("nearest", "nearest-exact"):
        return align_corners is None and (dtype.is_floating_point or dtype == torch.uint8)
    fine = dtype in (torch.float32, torch.float64)
    return fine and (align_corners is None if mode == "area" else _RANKS.get(mode) == rank)


def _asked(x: torch.Tensor, size: Any, scale_factor: Any, recompute: Any) -> list[tuple[Extent, float | None]] | None:
    """Return the size that is asked for along each dimension, and the factor that PyTorch computes with; None if it is not known."""
    around, given = rank_of(x) - 2, size if scale_factor is None else scale_factor
    each = list(given) if isinstance(given, (tuple, list)) else [given] * around
    if (size is None) == (scale_factor is None) or len(each) != around or type(recompute) not in (bool, type(None)):
        return None
    found: list[tuple[Extent, float | None]] = []
    for k, n in enumerate(each):
        if scale_factor is not None:
            asked = _scaled(extent_at(x, around - k), n) if type(n) in (int, float) and n > 0 else None  # type: ignore[arg-type]
            factor = None if recompute else float(n) if asked is not None else None
        else:
            asked, factor = length_of_size(n) if is_symbolic(n) else n if type(n) is int else None, None
        if asked is None or (recompute and scale_factor is None):
            return None
        found.append((asked, factor))
    return found


def _scaled(own: Extent, factor: float) -> Extent | None:
    """Return a length that was multiplied with a factor and rounded down; None if that is no fraction."""
    if isinstance(own, int):
        return int(own * factor)
    part = Fraction(factor).limit_denominator(_MOST_PARTS)
    window = Window(part.numerator, 0, part.denominator)
    fine = all(window.of(n) == int(n * factor) for n in range(own.bounds[0], own.bounds[1] + 1))
    return length_after(window, own) if fine else None


def _longest(own: Extent, factor: float) -> int:
    """Return how long the windows are at most of which there are as many as a factor says."""
    least, most = bounds_of(own)
    return max(min(n, -(-n // max(int(n * factor), 1)) + 1) for n in range(max(least, 1), most + 1))


def _taps(mode: str, align_corners: bool, own: Extent, out: Extent, factor: float | None, dtype: torch.dtype) -> _Taps:
    """Return which elements along a dimension those of the result are made of."""
    of = dtype if dtype == torch.float64 else torch.float32
    n, m = [to_tensor(as_number(size), torch.int64).clamp(min=1) for size in (own, out)]
    last, at = n - 1, torch.arange(bounds_of(out)[1])
    place = at.to(of)
    if align_corners:
        scale = torch.where(m > 1, last.to(of) / (m - 1).clamp(min=1).to(of), torch.zeros((), dtype=of))
    else:
        scale = n.to(of) / m.to(of) if factor is None else torch.full((), 1.0 / factor, dtype=of)
    if mode == "nearest":
        return [(_place((scale * place).to(torch.float32), last), None)]
    source = scale * place if align_corners else scale * (place + 0.5) - 0.5
    if mode == "nearest-exact":
        return [(_place((source.clamp(min=0) + 0.5).to(torch.float32), last), None)]
    source = source if mode == "bicubic" else source.clamp(min=0)
    low = torch.minimum(source.to(torch.float32).floor().to(torch.int64), last)
    part = (source - low.to(of)).clamp(0, 1)
    if mode == "bicubic":
        places = [(low + k).clamp(min=0) for k in (-1, 0, 1, 2)]
        return [(torch.minimum(p, last), w) for p, w in zip(places, _cubic(part))]
    same = n == m  # then PyTorch takes the elements themselves
    low, part = torch.where(same, torch.minimum(at, last), low), torch.where(same, torch.zeros((), dtype=of), part)
    return [(low, 1 - part), (torch.where(same, low, torch.minimum(low + 1, last)), part)]


def _place(source: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    return torch.minimum(source.floor().to(torch.int64), last)


def _cubic(part: torch.Tensor) -> list[torch.Tensor]:
    """Return the weights of four elements, of which the second is so far before the place at which a cubic is asked."""
    a = -0.75

    def near(x: torch.Tensor) -> torch.Tensor:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: torch.Tensor) -> torch.Tensor:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(part + 1), near(part), near(1 - part), far(2 - part)]


def _read(x: torch.Tensor, d: int, taps: _Taps) -> torch.Tensor:
    made, shape = None, [-1, *[1] * (x.dim() - d - 1)]
    for places, weight in taps:
        part = x.index_select(d, places.clamp(0, max(int(x.shape[d]) - 1, 0)))
        part = part if weight is None else part * weight.reshape(shape)
        made = part if made is None else made + part
    assert made is not None
    return made


SIZED: dict[Any, Handler] = {F.interpolate: interpolate}
