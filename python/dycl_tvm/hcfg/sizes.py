# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sizes that the caller decides: dimensions of inputs, within bounds that the build knows.

In the graph such an input is a buffer of the largest shape, and each size is one more parameter of the entry, an int: ``T`` of
``ids: int64[1, T]``. What lies behind the size in a buffer means nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dycl_tvm.errors import InputError, UsageError
from dycl_tvm.hcfg.types import TensorType

if TYPE_CHECKING:
    import torch  # a machine that only runs artefacts need not have it


_WRITTEN = re.compile(r"(?:(?P<least>\d+) *<= *)?(?P<name>[A-Za-z_]\w*) *<= *(?P<most>\d+)")


class Dim:
    """A size that the callers of an artefact decide, as ``torch.export.Dim`` is one; ``2 * T`` and ``T + 1`` follow from it.

    Parameters
    ----------
    name : str
    min, max : int
        Its bounds.
    """

    def __init__(self, name: str, *, min: int = 1, max: int) -> None:
        if not isinstance(name, str) or type(min) is not int or type(max) is not int or not 0 <= min <= max:
            raise UsageError(f"Dim({name!r}, min={min!r}, max={max!r}) is no size: give a name and whole numbers, 0 <= min <= max")
        self.name, self.min, self.max = name, min, max
        self.factor, self.constant = 1, 0

    @staticmethod
    def of(size: Any) -> Dim | None:
        """Return a size of ours or of PyTorch's, or one that is written as ``"T<=512"``, as one of ours; None for what is none.

        Raises
        ------
        UsageError
            If it has no bound.
        """
        if isinstance(size, Dim):
            return size
        if isinstance(size, str):
            found = _WRITTEN.fullmatch(size)
            return None if found is None else Dim(found["name"], min=int(found["least"] or 1), max=int(found["most"]))
        import torch

        root = getattr(size, "root", size)
        if not isinstance(root, torch.export.Dim):
            return None
        if type(root.max) is not int:
            raise UsageError(f"the size {root.__name__} has no largest value, which memory is planned for: Dim({root.__name__!r}, max=512)")
        made = Dim(root.__name__, min=int(root.min), max=root.max)
        return made if root is size else made._made(size.fn(1) - size.fn(0), size.fn(0))

    def _made(self, factor: int, constant: int) -> Dim:
        if type(factor) is not int or type(constant) is not int or factor < 1:
            raise UsageError(f"a size that follows from {self.name} is a positive multiple of it, plus a whole number")
        made = Dim(self.name, min=self.min, max=self.max)
        made.factor, made.constant = factor, constant
        return made

    @property
    def largest(self) -> int:
        """The largest extent."""
        return self.factor * self.max + self.constant

    def __mul__(self, k: int) -> Dim:
        return self._made(self.factor * k, self.constant * k)

    def __add__(self, k: int) -> Dim:
        return self._made(self.factor, self.constant + k)

    def __sub__(self, k: int) -> Dim:
        return self + -k

    __rmul__, __radd__ = __mul__, __add__

    def __repr__(self) -> str:
        return f"{SizedDim(0, 0, self.factor, self.constant).text(self.name)} with {self.name} from {self.min} to {self.max}"


@dataclass(frozen=True)
class SizedDim:
    """A dimension of an input: ``factor * size + constant``.

    Attributes
    ----------
    input, dim : int
        The leaf, and which of its dimensions.
    factor, constant : int
    """

    input: int
    dim: int
    factor: int = 1
    constant: int = 0

    def at(self, size: int) -> int:
        """Return the extent of the dimension."""
        return self.factor * size + self.constant

    def text(self, name: str) -> str:
        """Return how the extent is written."""
        product = name if self.factor == 1 else f"{self.factor}*{name}"
        return f"{product}{self.constant:+d}" if self.constant else product


@dataclass(frozen=True)
class InputSize:
    """A size that the caller decides.

    Attributes
    ----------
    name : str
    least, most : int
        Its bounds.
    dims : tuple of SizedDim
        The dimensions that it decides; the first one tells it.
    """

    name: str
    least: int
    most: int
    dims: tuple[SizedDim, ...]


#: The least and the largest that a size may be.
Span = tuple[int, int]


def sizes_text(sizes: Mapping[str, Span]) -> str:
    """Return sizes that have a path of their own as messages write them."""
    return ", ".join(f"{name} = {most}" if least == most else f"{name} <= {most}" for name, (least, most) in sizes.items())


def shape_text(type_: TensorType, number: int, sizes: Sequence[InputSize]) -> str:
    """Return the type of an input as messages write it, those of artefacts too: ``int64[1, T<=512]``."""
    shown = list(map(str, type_.shape))
    for size in sizes:
        for d in size.dims:
            if d.input == number:
                shown[d.dim] = f"{d.text(size.name)}<={type_.shape[d.dim]}"
    return f"{type_.dtype}[{', '.join(shown)}]"


def measure(sizes: Sequence[InputSize], tensors: Sequence[torch.Tensor], names: Sequence[str]) -> list[int]:
    """Return the sizes of the inputs of a call.

    Raises
    ------
    InputError
        If a size is out of its bounds, or dimensions do not agree.
    """
    found = []
    for size in sizes:
        first = size.dims[0]
        extent = int(tensors[first.input].shape[first.dim])
        n, rest = divmod(extent - first.constant, first.factor)
        if rest or not size.least <= n <= size.most:
            raise InputError(
                f"input '{names[first.input]}': dimension {first.dim} is {extent}, expected {first.text(size.name)} = "
                f"{first.at(size.least)} to {first.at(size.most)}" + (f", by {first.factor}" if first.factor > 1 else "")
            )
        for d in size.dims[1:]:
            if tensors[d.input].shape[d.dim] != d.at(n):
                raise InputError(
                    f"input '{names[d.input]}': dimension {d.dim} is {tensors[d.input].shape[d.dim]}, expected {d.at(n)}, "
                    f"because dimension {first.dim} of '{names[first.input]}' is {extent}"
                )
        found.append(n)
    return found


def with_sizes(sizes: Sequence[InputSize], types: Sequence[Any], names: Sequence[str], leaves: Sequence[Any]) -> list[Any]:
    """Return the values of the parameters of the entry that a call decides: its leaves, some in larger buffers, and their sizes."""
    if not sizes:
        return list(leaves)
    found = measure(sizes, leaves, names)
    sized = {d.input for size in sizes for d in size.dims}
    return [*(padded(x, types[k].shape) if k in sized else x for k, x in enumerate(leaves)), *found]


def padded(t: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return a tensor at the front of a buffer of zeros; itself if it is as large."""
    if tuple(t.shape) == tuple(shape):
        return t
    import torch

    made = torch.zeros(tuple(shape), dtype=t.dtype)
    made[tuple(slice(n) for n in t.shape)] = t.detach()
    return made
