# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a kernel is asked to compute: tensors with their layouts, workloads, and the epilogue that follows while results are in registers.

Layouts. A tensor of logical shape (N, C, *spatial) is *plain* (``block`` 1: row-major) or *packed* (``block`` L: an array
(N, ceil(C / L), *spatial, L), channel c at block c // L, lane c % L). Lanes beyond C are zero: every kernel that writes a packed
tensor keeps that, every kernel that reads one may rely on it.

Types. A workload says of which type its input, weights, sums and output are (:class:`DTypes`). Where the input is of another type than
the weights, the kernel rounds its elements to the weights' type, as factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

#: Element types of which there are packed tensors: numbers, quantised ones and their sums.
PACKED_DTYPES = frozenset(("float32", "uint8", "int8", "int32"))
#: The type of float32 elements that lie in memory as bfloat16 (:mod:`storage`); no tensor of the user's has it.
HALF = "float32 in 16 bits"
_ITEM_BYTES = {HALF: 2, "float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1}


@dataclass(frozen=True)
class Tensor:
    """A tensor as a kernel sees it: logical shape, element type, block of its channels (1: plain)."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    block: int = 1

    @property
    def physical(self) -> tuple[int, ...]:
        """The shape of the array in memory."""
        if self.block == 1:
            return self.shape
        return (self.shape[0], -(-self.shape[1] // self.block), *self.shape[2:], self.block)

    def same_memory(self, other: Tensor) -> bool:
        """Whether the same tensor in another layout is the same array, but for its shape."""
        block = max(self.block, other.block)
        return self.block == other.block or (math.prod(self.shape[2:]) == 1 and self.shape[1] % block == 0)

    @property
    def numel(self) -> int:
        """Number of logical elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the array in memory, for types of whole bytes."""
        return math.prod(self.physical) * _ITEM_BYTES.get(self.dtype, 4)


@dataclass(frozen=True)
class DTypes:
    """Element types of a workload; ``bfloat16x3`` are sums of three bfloat16.

    Attributes
    ----------
    x : str
        Of the input in memory.
    weights : str
        Of both factors of each product.
    accumulator : str
        Of the sums.
    y : str
        Of the output in memory.
    """

    x: str = "float32"
    weights: str = "float32"
    accumulator: str = "float32"
    y: str = "float32"


FLOAT32 = DTypes()


@dataclass(frozen=True)
class Epilogue:
    """What is done to each result element before it is stored: bias, activation, residual, any chain of element-wise operators.

    Attributes
    ----------
    operands : tuple of Tensor
        Each has the rank of the output; each dimension is the output's, or 1 (broadcast). Operands that have a channel dimension
        greater than 1 have the output's block.
    element : callable
        ``element(value, loads)`` returns the stored expression from the computed one and the operands' elements.
    key : str
        Tells epilogues apart; equal keys compute the same.
    operations : int
        Floating point operations an element, for the cost model.
    """

    operands: tuple[Tensor, ...] = ()
    element: Callable[[Any, Sequence[Any]], Any] = lambda value, loads: value
    key: str = ""
    operations: int = 0


NOTHING = Epilogue()


@dataclass(frozen=True)
class Conv2D:
    """A convolution with two spatial dimensions (a 1-d one has height 1), weights (out_channels, in_channels / groups, kh, kw).

    ``padding`` is (top, left, bottom, right), and holds the number ``border``, a byte where the input is of bytes. ``x`` and ``y`` are the
    input (N, C, H, W) and the output with their layouts.
    """

    x: Tensor
    y: Tensor
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    weights: str = "float32"
    accumulator: str = "float32"
    border: int = 0

    @property
    def dtypes(self) -> DTypes:
        """The types; those of input and output are the tensors' own."""
        return DTypes(self.x.dtype, self.weights, self.accumulator, self.y.dtype)

    def with_weights(self, dtype: str) -> Conv2D:
        """Return the same with factors of another type."""
        return replace(self, weights=dtype)

    def stored(self, x: str, y: str) -> Conv2D:
        """Return the same with an input and an output of other types in memory."""
        return replace(self, x=replace(self.x, dtype=x), y=replace(self.y, dtype=y))

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.y.numel * (self.x.shape[1] // self.groups) * self.kernel[0] * self.kernel[1]

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """Shape of the plain weights."""
        return (self.y.shape[1], self.x.shape[1] // self.groups, *self.kernel)


@dataclass(frozen=True)
class Dense:
    """A product (batch, m, k) x (batch or 1, k, n) -> (batch, m, n), all plain.

    ``constant`` says whether the right side is a weight, which may be packed at build time. ``shared`` says whether all of the batch
    has one right side (then it is (k, n)). ``group`` says how many of the sum share a scale, where the right side is integers with scales.
    """

    batch: int
    m: int
    n: int
    k: int
    constant: bool = True
    shared: bool = True
    dtypes: DTypes = FLOAT32
    group: int = 0

    @property
    def x(self) -> Tensor:
        """The left side."""
        return Tensor((self.batch, self.m, self.k), self.dtypes.x)

    @property
    def y(self) -> Tensor:
        """The output as kernels see it."""
        return Tensor((self.batch, self.m, self.n), self.dtypes.y)

    def with_weights(self, dtype: str) -> Dense:
        """Return the same with factors of another type."""
        return replace(self, dtypes=replace(self.dtypes, weights=dtype))

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.batch * self.m * self.n * self.k
