# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Resizing (``F.interpolate``) from lengths, or to lengths, that are known only at run time, one dimension after the other.

Each element of a result is a sum of a few elements, its taps, of which both places and weights follow from the two lengths by PyTorch's own
arithmetic, in the order of its operations: a place may change with the last bit of a quotient.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.trace.values import numbers as scalars
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
from dycl_tvm.frontend.trace.values.raising import limit
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
    if antialias:
        _check_width(*[m for m, _ in asked])
    extents: dict[int, Extent] = dict(zip(dims, [m for m, _ in asked]))
    factors = [factor for _, factor in asked]
    if mode == "nearest" and isinstance(x, Grown) and all(f is not None and f >= 1 and f == int(f) for f in factors):
        windows = {d: Window(int(factors[d - 2] or 1), 0) for d in x.lengths if d > 0}
        return layer_along(func, x, lambda t: func(t, scale_factor=scale_factor), windows, beyond=())
    lengths: dict[int, Extent] = {**(x.lengths if isinstance(x, Grown) else {}), **extents}
    if mode == "area":
        longest = {d: _longest(n, f) for d, n, f in zip(dims, own, factors) if f is not None}
        return windowed(x, extents, means_of, longest)
    made = buffer_of(x)
    for d, n, (m, factor) in reversed(list(zip(dims, own, asked))):  # PyTorch begins with the last one
        if antialias:
            made = _smoothed(made, d, mode, n, m, factor)
        else:
            made = _read(made, d, _taps(mode, bool(align_corners), n, m, factor, made.dtype))
    return laid_out(cut(made, lengths), suggested_order(x), x)


def _is_known(x: torch.Tensor, mode: Any, align_corners: Any, antialias: Any) -> bool:
    rank, dtype, plain = rank_of(x), dtype_of(x), type(align_corners) in (bool, type(None))
    if antialias is True and (mode not in _SUPPORTS or align_corners):
        return False
    if type(antialias) is not bool or not plain or not 3 <= rank <= 5 or (isinstance(x, Grown) and 1 in x.lengths):
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


def _check_width(height: Extent, width: Extent) -> None:
    """End calls of which PyTorch makes several rows of one pixel: it writes the same pixel into all of them."""
    if bounds_of(width)[0] > 1 or bounds_of(height)[1] == 1:
        return
    limit(scalars.operand_of((as_number(width) != 1) | (as_number(height) == 1)), "interpolate() with antialias to rows of one pixel")


def _smoothed(x: torch.Tensor, d: int, mode: str, own: Extent, out: Extent, factor: float | None) -> torch.Tensor:
    """Return weighted means of all elements that lie within what an element of the result covers, which is more than one of its own."""
    of, most = x.dtype, bounds_of(own)[1]
    n, m = [to_tensor(as_number(size), torch.int64).clamp(min=1) for size in (own, out)]
    scale = n.to(of) / m.to(of) if factor is None else torch.full((), 1.0 / factor, dtype=of)
    half, at = _SUPPORTS[mode] * 0.5, torch.arange(bounds_of(out)[1])
    support = half * scale.clamp(min=1)
    widest = max(most / max(bounds_of(out)[0], 1) if factor is None else 1.0 / factor, 1.0) * half
    room = max(min(most, 2 * math.ceil(widest) + 1), 1)
    center = (scale.double() * (at + 0.5)).to(of)  # in PyTorch's own types: a place may change with the last bit
    first = ((center - support).double() + 0.5).to(torch.int64).clamp(min=0)
    count = (torch.minimum(((center + support).double() + 0.5).to(torch.int64), n) - first).clamp(min=0).unsqueeze(1)
    taps = torch.arange(room)
    places = first.unsqueeze(1) + taps
    distance = (places.to(of) - center.unsqueeze(1)).double() + 0.5
    weight = _FILTERS[mode]((distance * (1 / scale.clamp(min=1).double()).to(of).double()).to(of).abs())
    weight = torch.where(taps < count, weight, torch.zeros((), dtype=of))
    total = weight.sum(1, keepdim=True)
    weight = weight / torch.where(total != 0, total, torch.ones((), dtype=of))
    behind = [1] * (x.dim() - d - 1)
    size = int(x.shape[d])
    parts = x.index_select(d, places.clamp(0, max(size - 1, 0)).reshape(-1)).reshape([*x.shape[:d], len(at), room, *x.shape[d + 1 :]])
    # a dimension that stays as long as it is PyTorch leaves as it is
    there = ((taps < count) & ((weight != 0) | (n != m))).reshape([len(at), room, *behind])
    parts = torch.where(there, parts, torch.zeros((), dtype=of)) * weight.reshape([len(at), room, *behind])
    return parts.sum(d + 1)


def _line(x: torch.Tensor) -> torch.Tensor:
    return (1 - x).clamp(min=0)


def _curve(x: torch.Tensor) -> torch.Tensor:
    a = -0.5
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros((), dtype=x.dtype)))


#: Of modes that can smooth: how many elements an element of the result is made of where nothing is made smaller, and by which weights.
_SUPPORTS = {"bilinear": 2, "bicubic": 4}
_FILTERS = {"bilinear": _line, "bicubic": _curve}


def _read(x: torch.Tensor, d: int, taps: _Taps) -> torch.Tensor:
    made, shape = None, [-1, *[1] * (x.dim() - d - 1)]
    for places, weight in taps:
        part = x.index_select(d, places.clamp(0, max(int(x.shape[d]) - 1, 0)))
        part = part if weight is None else part * weight.reshape(shape)
        made = part if made is None else made + part
    assert made is not None
    return made


SIZED: dict[Any, Handler] = {F.interpolate: interpolate}
