# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sizes of which a network has a path of its own, beside the one that serves all: there they are plain numbers, and shapes are fixed."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import torch

from dycl_tvm.errors import UsageError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.tensors import emit_one
from dycl_tvm.hcfg.nodes import Value
from dycl_tvm.hcfg.sizes import InputSize, sizes_text
from dycl_tvm.hcfg.special_sizes import special_origin
from dycl_tvm.hcfg.types import TensorType


def special_sizes(written: Any, sizes: Sequence[InputSize]) -> list[dict[str, int]]:
    """Return the sizes of each path from what users write: dicts by the names of sizes, or numbers where there is one size.

    Raises
    ------
    UsageError
        For what names no size, is out of its bounds, or would never be chosen.
    """
    if not sizes:
        raise UsageError(f"specialize is {written!r}, and no input has a size that calls decide: give such sizes as dynamic_shapes")
    names = {size.name: size for size in sizes}
    how = f"write specialize=[{{{', '.join(f'{name!r}: {size.most}' for name, size in names.items())}}}], first what is to be tried first"
    if not isinstance(written, (list, tuple)):
        raise UsageError(f"specialize is {written!r}; {how}")
    found: list[dict[str, int]] = []
    for given in written:
        of = {sizes[0].name: given} if type(given) is int and len(sizes) == 1 else given
        if not isinstance(of, Mapping) or not of:
            raise UsageError(f"specialize has {given!r}; {how}")
        for name, n in of.items():
            if name not in names:
                raise UsageError(f"specialize names the size {name!r}; there {'are' if len(names) > 1 else 'is'} {', '.join(names)}")
            if type(n) is not int or not names[name].least <= n <= names[name].most:
                raise UsageError(f"specialize has {name} = {n!r}, which is from {names[name].least} to {names[name].most}")
        for before in found:
            if before.items() <= of.items():
                raise UsageError(f"specialize has {sizes_text(of)} behind {sizes_text(before)}, which serves it: put it before that")
        found.append(dict(of))
    return found


def known_sizes(special: Sequence[Mapping[str, int]], sizes: Sequence[InputSize], values: Sequence[Value]) -> Mapping[str, int]:
    """Return the sizes that are known on the path at hand: each of the special ones is a path of its own, and so is the rest."""
    given = {size.name: scalars.wrap(value) for size, value in zip(sizes, values, strict=True)}
    for of in special:
        # one decision, however many sizes there are: the rest is recorded once
        met = reduce(operator.and_, (given[name] == n for name, n in of.items()))
        if current().decisions.decide(scalars.truth_operand(met), special_origin(of)):
            return of
    return {}


def front_of(buffer: Value, number: int, sizes: Sequence[InputSize], known: Mapping[str, int]) -> Value:
    """Return what there is of an input at the sizes that are known; the buffer itself where that is all of it."""
    for size in sizes:
        for d in size.dims:
            assert isinstance(buffer.type, TensorType)
            shape = list(buffer.type.shape)
            if d.input == number and size.name in known and shape[d.dim] != d.at(known[size.name]):
                shape[d.dim] = d.at(known[size.name])
                buffer = emit_one(
                    torch.ops.aten.slice.Tensor, (buffer, d.dim, 0, shape[d.dim]), TensorType(tuple(shape), buffer.type.dtype)
                )
    return buffer
