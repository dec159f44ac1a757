# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Types of the values in an HCFG: tensors of static shape, and host scalars."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

ScalarKind = Literal["int", "float", "bool"]

#: Bytes of one element, by dtype name (the names are those of NumPy and of TVM).
ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip

#: The type of the two numbers of which a complex one consists, which lie side by side.
PARTS = {"complex64": "float32", "complex128": "float64"}


@dataclass(frozen=True)
class TensorType:
    """A dense tensor, row-major, of static shape.

    Attributes
    ----------
    shape : tuple of int
        Extents; ``()`` is a tensor of rank 0.
    dtype : str
        One of :data:`ITEM_BYTES`.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.numel * ITEM_BYTES[self.dtype]

    @property
    def is_complex(self) -> bool:
        """Whether its elements are complex numbers."""
        return self.dtype in PARTS

    @property
    def parts(self) -> TensorType:
        """The same memory as real numbers: a complex number is a last dimension of two."""
        return TensorType((*self.shape, 2), PARTS[self.dtype]) if self.is_complex else self

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class ScalarType:
    """A host scalar: int is a checked int64, float is an IEEE double, bool is a bool."""

    kind: ScalarKind

    def __str__(self) -> str:
        return self.kind


Type = TensorType | ScalarType

INT = ScalarType("int")
FLOAT = ScalarType("float")
BOOL = ScalarType("bool")


def scalar_type_of(value: int | float | bool) -> ScalarType:
    """Return the type of a Python number."""
    if isinstance(value, bool):
        return BOOL
    return INT if isinstance(value, int) else FLOAT
