# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Interpolation: nearest and linear, of 1, 2 and 3 dimensions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from tvm import relax

from dycl_tvm.compile.ops.context import NotConvertible, OpContext, converter, is_float


def _scales(size: list[int], out: list[int], given: Any) -> list[float]:
    """Return input elements per output element; a scale that the user gave counts, not the ratio of sizes."""
    factors = [f for f in given if f is not None] if given else []
    if len(factors) == len(size):
        return [1.0 / f for f in factors]
    return [s / o for s, o in zip(size, out)]


def _factors(args: tuple[Any, ...], n: int) -> list[float]:
    found: list[float] = []
    for a in args:
        if isinstance(a, (list, tuple)):
            found += [float(v) for v in a]
        elif isinstance(a, float):
            found.append(a)
    return found if len(found) == n else []


def _nearest(ctx: OpContext, x: Any, n: int, args: tuple[Any, ...], exact: bool) -> Any:
    size, out = list(ctx.shape(x)[-n:]), list(ctx.type.shape[-n:])
    scales = _scales(size, out, args)
    # the index arithmetic of PyTorch is in float32: computed here, once, exactly as it does
    tables = []
    for s, o, f in zip(size, out, scales):
        at = np.arange(o, dtype=np.float32)
        at = (at + np.float32(0.5)) * np.float32(f) if exact else at * np.float32(f)
        tables.append(np.minimum(np.floor(at).astype(np.int64), s - 1))
    return _lookup(ctx, x, n, [_Axis([(t, None)]) for t in tables])


class _Axis:
    """For each output position of a dimension: pairs of source positions and their weights (None: 1)."""

    def __init__(self, taps: list[tuple[Any, Any]]) -> None:
        self.taps = taps


def _lookup(ctx: OpContext, x: Any, n: int, axes: list[_Axis]) -> Any:
    tables: list[Any] = []
    where: dict[tuple[int, int, str], int] = {}
    for d, axis in enumerate(axes):
        for k, (source, weight) in enumerate(axis.taps):
            where[d, k, "i"] = len(tables)
            tables.append(relax.const(source, "int64"))
            if weight is not None:
                where[d, k, "w"] = len(tables)
                tables.append(relax.const(weight.astype(ctx.type.dtype), ctx.type.dtype))

    def element(t: Any, *rest: Any) -> Any:
        lut, i = rest[: len(tables)], rest[len(tables) :]
        lead, pos = i[:-n], i[-n:]
        total = None
        for choice in itertools.product(*(range(len(a.taps)) for a in axes)):
            value = t(*lead, *(lut[where[d, k, "i"]](pos[d]) for d, k in enumerate(choice)))
            for d, k in enumerate(choice):
                if (d, k, "w") in where:
                    value = value * lut[where[d, k, "w"]](pos[d])
            total = value if total is None else total + value
        return total

    return ctx.compute(element, x, *tables, name="resize")


def _linear(ctx: OpContext, x: Any, n: int, align: bool, args: tuple[Any, ...]) -> Any:
    if not is_float(ctx.type.dtype):  # PyTorch has a fixed-point arithmetic of its own for these
        raise NotConvertible(f"linear interpolation of {ctx.type.dtype} (interpolate in float32, and round)")
    size, out = list(ctx.shape(x)[-n:]), list(ctx.type.shape[-n:])
    axes = []
    real = np.float64 if ctx.type.dtype == "float64" else np.float32  # of the arithmetic of weights
    for s, o, f in zip(size, out, _scales(size, out, args)):
        i = np.arange(o, dtype=real)
        if align:
            at = i * real((s - 1) / (o - 1) if o > 1 else 0.0)
        else:
            at = np.maximum((i + real(0.5)) * real(f) - real(0.5), real(0))
        low = np.minimum(np.floor(at).astype(np.int64), s - 1)
        high = np.minimum(low + 1, s - 1)
        weight = np.clip(at - low.astype(real), 0, 1).astype(real)
        axes.append(_Axis([(low, real(1) - weight), (high, weight)]))
    return _lookup(ctx, x, n, axes)


for _n, _kind in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):

    @converter(f"upsample_{_kind}{_n}d.default", f"upsample_{_kind}{_n}d.vec")
    def _upsample(ctx: OpContext, x: Any, size: Any, align: bool, *scales: Any, _n: int = _n) -> Any:
        return _linear(ctx, x, _n, align, tuple(_factors(scales, _n)))

    @converter(f"upsample_nearest{_n}d.default", f"upsample_nearest{_n}d.vec")
    def _upsample_nearest(ctx: OpContext, x: Any, size: Any, *scales: Any, _n: int = _n) -> Any:
        return _nearest(ctx, x, _n, tuple(_factors(scales, _n)), exact=False)

    @converter(f"_upsample_nearest_exact{_n}d.default", f"_upsample_nearest_exact{_n}d.vec")
    def _upsample_exact(ctx: OpContext, x: Any, size: Any, *scales: Any, _n: int = _n) -> Any:
        return _nearest(ctx, x, _n, tuple(_factors(scales, _n)), exact=True)
