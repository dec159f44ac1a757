# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Attention as a workload."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dycl_tvm.backends.tir_cpu.words.amx import has_tiles
from dycl_tvm.backends.tir_cpu.words.bf16 import LANES, has_instructions
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.workload import Tensor

#: Rows up to which keys are read as they lie.
DOT_ROWS = 3


@dataclass(frozen=True)
class Strided:
    """A tensor inside of an array of ``size`` elements: element i is at ``offset + sum(i * strides)``."""

    size: int
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Attention:
    """The workload, for tensors of equal leading dimensions ``lead``.

    Attributes
    ----------
    lead : tuple of int
        Batch, heads.
    rows, keys, depth, width : int
        The queries are (lead, rows, depth), the keys (lead, keys, depth), the values (lead, keys, width).
    q, k, v : Strided
        Where they are; rows of values are contiguous.
    order : tuple of int
        The output's dimensions, numbered in (lead, rows, width); the last one is the width.
    causal : bool
        Row i sees the keys up to i.
    empty_rows : bool
        A row that sees no key is 0; otherwise NaN.
    rounded : bool
        Factors of both products are rounded to bfloat16 (:meth:`may_round`).
    tiles : bool
        Both products are by the tiles of AMX; for what is rounded.
    """

    lead: tuple[int, ...]
    rows: int
    keys: int
    depth: int
    width: int
    q: Strided
    k: Strided
    v: Strided
    order: tuple[int, ...]
    causal: bool = False
    empty_rows: bool = False
    rounded: bool = False
    tiles: bool = False

    def may_round(self, machine: Machine) -> bool:
        """Whether there is a kernel in bfloat16: rows are whole vectors of words, and so many that keys and values are worth a copy."""
        whole = self.depth % (2 * LANES) == self.width % LANES == 0 and self.q.strides[-1] == self.k.strides[-1] == self.v.strides[-1] == 1
        return has_instructions(machine) and whole and self.rows > DOT_ROWS

    def may_use_tiles(self, machine: Machine) -> bool:
        """Whether there is a kernel by the tiles of AMX."""
        return has_tiles(machine) and self.may_round(machine)

    @property
    def heads(self) -> int:
        """Number of independent attentions."""
        return math.prod(self.lead)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of both products."""
        return self.heads * self.rows * self.keys * (self.depth + self.width)

    @property
    def plain(self) -> bool:
        """Whether separate kernels could read and write the arrays as they lie, and there is no mask of the kernel's own."""
        shape = (*self.lead, self.rows, self.width)
        order = [k for k in self.order if shape[k] > 1]
        parts = ((self.q, self.rows, self.depth), (self.k, self.keys, self.depth), (self.v, self.keys, self.width))
        return (
            not (self.causal or self.empty_rows)
            and order == sorted(order)
            and all(_is_plain(s, (*self.lead, rows, columns)) for s, rows, columns in parts)
        )

    @property
    def scores(self) -> Tensor:
        """The scores, which no array holds."""
        return Tensor((*self.lead, self.rows, self.keys))

    @property
    def y(self) -> Tensor:
        """The output."""
        shape = (*self.lead, self.rows, self.width)
        return Tensor(tuple(shape[k] for k in self.order))


def _is_plain(s: Strided, shape: Sequence[int]) -> bool:
    """Whether a tensor is all of its array, row by row."""
    strides = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    return s.size == math.prod(shape) and all(size == 1 or a == b for size, a, b in zip(shape, s.strides, strides))
