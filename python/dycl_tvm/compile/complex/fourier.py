# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Fourier transforms of static length, as products with matrices.

A length of several factors is taken apart (Cooley and Tukey, 1965): a transform over each factor, and a twist by roots of unity between
two. A factor is a product with its matrix, whose cost is what the family of products makes of it; factors of up to 64 are joined, so
that 1024 is 32 x 32. Prime lengths are one product up to a bound, and beyond it a chirp (Bluestein, 1970) by way of a power of two.
Matrices and roots are computed in float64 and rounded once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.compile.complex.pair import Pair, complex_operator, pair_of

#: The largest factor that is made of smaller ones; the largest prime factor that is one product.
_JOINED, _LARGEST = 64, 512


def _known(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Compute numbers that follow from lengths alone: they are constants of what is traced."""

    @functools.wraps(fn)
    def compute(*args: Any) -> Any:
        with torch.utils._python_dispatch._disable_current_modes():  # type: ignore[attr-defined]
            return fn(*args)

    return compute


def _roots(numerators: torch.Tensor, n: int, sign: int, dtype: torch.dtype) -> Pair:
    """Return exp(sign 2 pi i k / n) for integers k, exact where it is 0, 1 or -1."""
    k = numerators % n
    turn = k.double() * (2 * math.pi / n)
    re, im = torch.cos(turn), torch.sin(turn) * sign
    if n % 4 == 0:
        re = torch.where((k == n // 4) | (k == 3 * n // 4), 0.0, re)
    if n % 2 == 0:
        im = torch.where(k == n // 2, 0.0, im)
    return Pair(re.to(dtype), im.to(dtype))


@_known
def _matrix(rows: int, columns: int, n: int, sign: int, dtype: torch.dtype) -> Pair:
    """Return the roots of unity for the products of row and column."""
    return _roots(torch.outer(torch.arange(rows), torch.arange(columns)), n, sign, dtype)


def _split(n: int) -> int:
    """Return a factor of a length whose transform is one product: near the root of the rest if there is such."""
    if n <= _JOINED:
        return n
    divisors = [d for d in range(2, _JOINED + 1) if n % d == 0]
    if divisors:
        return min(divisors, key=lambda d: abs(math.log(d) - 0.5 * math.log(n)))
    return next(d for d in range(_JOINED + 1, n + 1) if n % d == 0)  # a prime


def _times(x: Any, matrix: Pair) -> Pair:
    """Multiply rows, which may be real, by a matrix."""
    if not isinstance(x, Pair):
        return Pair(x @ matrix.re, x @ matrix.im)
    return Pair(x.re @ matrix.re - x.im @ matrix.im, x.re @ matrix.im + x.im @ matrix.re)


def transform(x: Any, n: int, sign: int) -> Pair:
    """Return the sums of x[j] exp(sign 2 pi i j k / n) over the last dimension, for all k; a real x is no pair."""
    dtype = x.re.dtype if isinstance(x, Pair) else x.dtype
    if n == 1:
        return pair_of(x)
    factor = _split(n)
    if factor > _LARGEST:
        return _chirp(x, n, sign)
    if factor == n:
        return _times(x, _matrix(n, n, n, sign, dtype))
    rest = n // factor
    # j = rest * j1 + j2 and k = k1 + factor * k2
    rows = _map(x, lambda t: t.reshape(*t.shape[:-1], factor, rest).transpose(-1, -2))
    inner = _times(rows, _matrix(factor, factor, factor, sign, dtype))  # [..., j2, k1]
    twisted = (inner * _matrix(rest, factor, n, sign, dtype)).map(lambda t: t.transpose(-1, -2))  # [..., k1, j2]
    outer = transform(twisted, rest, sign)  # [..., k1, k2]
    return outer.map(lambda t: t.transpose(-1, -2).reshape(*t.shape[:-2], n))


def _map(x: Any, fn: Any) -> Any:
    return x.map(fn) if isinstance(x, Pair) else fn(x)


def _chirp(x: Any, n: int, sign: int) -> Pair:
    """Transform a length with a large prime factor: j k = (j^2 + k^2 - (k - j)^2) / 2, and a convolution by powers of two."""
    dtype = x.re.dtype if isinstance(x, Pair) else x.dtype
    size = 1 << (2 * n - 2).bit_length()
    chirp, factors = _chirps(n, size, sign, dtype)
    padded = (pair_of(x) * chirp).map(lambda t: torch.nn.functional.pad(t, [0, size - n]))
    convolved = transform(transform(padded, size, -1) * factors, size, 1)
    return convolved.map(lambda t: t[..., :n]) * chirp


@_known
def _chirps(n: int, size: int, sign: int, dtype: torch.dtype) -> tuple[Pair, Pair]:
    """Return exp(sign pi i j^2 / n), and the transform of its inverse as the kernel of a convolution."""
    j = torch.arange(n)
    chirp = _roots(j * j, 2 * n, sign, torch.float64)
    kernel = torch.zeros(size, dtype=torch.complex128)
    kernel[:n] = torch.complex(chirp.re, -chirp.im)
    kernel[size - n + 1 :] = kernel[1:n].flip(0)
    spectrum = torch.fft.fft(kernel) / size
    return chirp.map(lambda t: t.to(dtype)), Pair(spectrum.real.to(dtype), spectrum.imag.to(dtype))


def _along(x: Any, dim: int, fn: Any) -> Any:
    """Apply a function of the last dimension to another one."""
    if (x.re if isinstance(x, Pair) else x).dim() == 1:  # a row by itself: products are of matrices
        return _map(fn(_map(x, lambda t: t[None])), lambda t: t[0])
    moved = _map(x, lambda t: t.movedim(dim, -1))
    return _map(fn(moved), lambda t: t.movedim(-1, dim))


def _scaled(x: Any, normalization: int, count: int) -> Any:
    """Divide by nothing, by the root of the length, or by it."""
    if normalization == 0:
        return x
    factor = 1 / math.sqrt(count) if normalization == 1 else 1 / count
    return _map(x, lambda t: t * factor)


def _length(x: Any, dims: list[int]) -> int:
    shape = (x.re if isinstance(x, Pair) else x).shape
    return math.prod(shape[d] for d in dims)


@complex_operator("_fft_c2c.default")
def _c2c(x: Pair, dim: list[int], normalization: int, forward: bool) -> Pair:
    made = x
    for d in dim:
        made = _along(made, d, lambda t: transform(t, t.re.shape[-1], -1 if forward else 1))
    return _scaled(made, normalization, _length(x, dim))  # type: ignore[no-any-return]


@complex_operator("_fft_r2c.default")
def _r2c(x: Any, dim: list[int], normalization: int, onesided: bool) -> Pair:
    *others, last = dim
    n = x.shape[last]
    kept = n // 2 + 1 if onesided else n
    made = _along(x, last, lambda t: _forward(t, n, kept))
    for d in reversed(others):
        made = _along(made, d, lambda t: transform(t, t.re.shape[-1], -1))
    return _scaled(made, normalization, _length(x, dim))  # type: ignore[no-any-return]


def _forward(x: Any, n: int, kept: int) -> Pair:
    """Transform real rows and keep the first terms."""
    if 1 < n == _split(n) <= _LARGEST:
        return _times(x, _matrix(n, kept, n, -1, x.dtype))
    return transform(x, n, -1).map(lambda t: t[..., :kept])


@complex_operator("_fft_c2r.default")
def _c2r(x: Pair, dim: list[int], normalization: int, last_dim_size: int) -> Any:
    *others, last = dim
    made = x
    for d in others:
        made = _along(made, d, lambda t: transform(t, t.re.shape[-1], 1))
    real = _along(made, last, lambda t: _backward(t, last_dim_size))
    return _scaled(real, normalization, _length(real, dim))


def _backward(x: Pair, n: int) -> Any:
    """Return the real rows of which half of the terms are given; the imaginary parts of the first and the middle one count for nothing."""
    terms = n // 2 + 1
    x = x.map(lambda t: t[..., :terms])
    if n == _split(n) and n <= _LARGEST:
        matrix = _backward_matrix(n, x.re.dtype)
        return x.re @ matrix.re - x.im @ matrix.im
    im, inner = x.im * _silent(n, x.re.dtype), slice(1, (n + 1) // 2)
    whole = Pair(torch.cat([x.re, x.re[..., inner].flip(-1)], -1), torch.cat([im, -im[..., inner].flip(-1)], -1))
    return transform(whole, n, 1).re


@_known
def _backward_matrix(n: int, dtype: torch.dtype) -> Pair:
    """Return the roots of unity by which the terms of a real row are multiplied: twice where another term is their conjugate."""
    terms = n // 2 + 1
    weight = torch.full((terms,), 2.0, dtype=torch.float64)
    weight[0] = 1.0
    if n % 2 == 0:
        weight[-1] = 1.0
    roots = _roots(torch.outer(torch.arange(terms), torch.arange(n)), n, 1, torch.float64)
    return roots.map(lambda t: (t * weight[:, None]).to(dtype))


@_known
def _silent(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Return one for each term, and zero for those whose imaginary part counts for nothing."""
    silent = torch.ones(n // 2 + 1, dtype=dtype)
    silent[0] = 0.0
    if n % 2 == 0:
        silent[-1] = 0.0
    return silent
