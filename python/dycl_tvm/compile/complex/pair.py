# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A complex tensor as a pair of real ones, and the table of the operators that are written with pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.compile.registry import registers

#: Operators with complex operands or results, by name (``aten.mul.Tensor``): functions in PyTorch that take and give a :class:`Pair`
#: wherever the schema has a complex tensor; they are traced, without branches on values.
COMPLEX: dict[str, Callable[..., Any]] = {}


@dataclass
class Pair:
    """The real and the imaginary part: tensors, or numbers of Python."""

    re: Any
    im: Any

    def __add__(self, other: Pair) -> Pair:
        return Pair(self.re + other.re, self.im + other.im)

    def __sub__(self, other: Pair) -> Pair:
        return Pair(self.re - other.re, self.im - other.im)

    def __neg__(self) -> Pair:
        return Pair(-self.re, -self.im)

    def __mul__(self, other: Pair) -> Pair:
        return Pair(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)

    def is_zero(self) -> Any:
        """Whether both parts are zero, by elements."""
        return (self.re == 0) & (self.im == 0)

    def conj(self) -> Pair:
        return Pair(self.re, -self.im)

    def map(self, fn: Callable[[Any], Any]) -> Pair:
        """Apply a function to each part."""
        return Pair(fn(self.re), fn(self.im))


#: Registers what ATen overloads are on pairs; the function takes the arguments of the schema.
complex_operator = registers(COMPLEX)


def pair_of(x: Any) -> Pair:
    """Return an operand as a pair, whatever it is: a pair, a real tensor, a number."""
    if isinstance(x, Pair):
        return x
    if isinstance(x, torch.Tensor):
        return Pair(x, torch.zeros_like(x))
    number = complex(x)
    return Pair(number.real, number.imag)


def parts_of(dtype: torch.dtype) -> torch.dtype:
    """Return the type of the parts of a complex type; a real type is its own."""
    return dtype.to_real() if dtype.is_complex else dtype


def in_float64(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Compute a function of pairs in float64 and round its result once: so nothing overflows or cancels on the way."""

    def wide(*given: Any) -> Any:
        pairs = [x for x in given if isinstance(x, Pair)]
        dtype = pairs[0].re.dtype
        result = fn(*(x.map(lambda t: t.double()) if isinstance(x, Pair) else x for x in given))
        return result.map(lambda t: t.to(dtype)) if isinstance(result, Pair) else result.to(dtype)

    return wide
