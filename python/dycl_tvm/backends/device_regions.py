# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What the backends of GPU libraries have in common: regions of one match each, as calls with numbered arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from dycl_tvm.backends.registry import Region

#: Tensors' types for which libraries are called.
DTYPES = ("float32", "float16")
#: Sizes and strides are ints of C.
MOST = 2**31 - 1


@dataclass(frozen=True)
class Match:
    """The operators of a region, in order, and the number of each argument of the region.

    A tensor that is used twice is one argument. The output comes after the inputs.
    """

    calls: tuple[Any, ...]
    numbers: dict[Any, int]

    @property
    def output(self) -> int:
        """The number of the output."""
        return len(set(self.numbers.values()))


def match_of(region: Region) -> Match:
    """Return the operators of a region of a backend without ``merge``."""
    function = region.function
    composite, call = (b.value for block in function.body.blocks for b in block.bindings)
    numbers = {p: next(k for k, q in enumerate(function.params) if q.same_as(a)) for p, a in zip(composite.params, call.args)}
    calls = (b.value for block in composite.body.blocks for b in block.bindings if isinstance(b.value, relax.Call))
    return Match(tuple(calls), numbers)


def call_of(region: Region, function: str, arguments: str) -> str:
    """Return the C++ function of a region: it calls one of the runtime with a braced list of arguments."""
    return f"int32_t dycl_device_{region.symbol}(const dycl::LibraryCall& call) {{\n  return dycl::{function}(call, {{{arguments}}});\n}}\n"


def is_half(tensor: Any) -> str:
    """Return, as C++, whether a tensor of one of :data:`DTYPES` is of float16."""
    return "true" if common_dtype([tensor]) == "float16" else "false"


def common_dtype(tensors: Sequence[Any]) -> str | None:
    """Return the type of all these tensors, or None if libraries are not called for it, or if they differ."""
    found = {str(t.ty.dtype.dtype) for t in tensors}
    return next((d for d in DTYPES if found == {d}), None)


def shape_of(tensor: Any) -> list[int]:
    """Return the static shape of an expression."""
    return [int(d) for d in tensor.ty.shape]
