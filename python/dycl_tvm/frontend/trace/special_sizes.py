# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sizes of which a network has a path of its own, beside the one that serves all: there they are plain numbers, or have other bounds."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import torch

from dycl_tvm.errors import UsageError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.tensors import emit_one
from dycl_tvm.hcfg.nodes import Value
from dycl_tvm.hcfg.sizes import InputSize, Span, sizes_text
from dycl_tvm.hcfg.special_sizes import special_origin
from dycl_tvm.hcfg.types import TensorType

_WRITTEN = re.compile(r"(?P<name>[A-Za-z_]\w*) *(?P<most><)?= *(?P<n>\d+)")


def special_sizes(written: Any, sizes: Sequence[InputSize]) -> list[dict[str, Span]]:
    """Return the sizes of each path from what users write: ``{"B": 1, "T": 128}``, ``"B=1, T<=128"``, or a number where there is one size.

    Raises
    ------
    UsageError
        For what names no size, is out of its bounds, or would never be chosen.
    """
    if not sizes:
        raise UsageError(f"specialize is {written!r}, and no input has a size that calls decide: give such sizes as dynamic_shapes")
    names = {size.name: size for size in sizes}
    example = ", ".join(f"{name!r}: {size.most}" for name, size in names.items())
    how = f"write specialize=[{{{example}}}] or ['{sizes[0].name}<={max(1, sizes[0].most // 2)}'], first what is to be tried first"
    if not isinstance(written, (list, tuple)):
        raise UsageError(f"specialize is {written!r}; {how}")
    found: list[dict[str, Span]] = []
    for given in written:
        of: dict[str, Span] = {}
        for name, exactly, n in _parts(given, sizes, how):
            if name not in names:
                raise UsageError(f"specialize names the size {name!r}; there {'are' if len(names) > 1 else 'is'} {', '.join(names)}")
            if name in of:
                raise UsageError(f"specialize says two things of {name} in {given!r}; {how}")
            size = names[name]
            if not size.least <= n <= size.most or (not exactly and n == size.most):
                most = size.most if exactly else size.most - 1
                raise UsageError(f"specialize has {name} {'=' if exactly else '<='} {n}, which is from {size.least} to {most}")
            of[name] = (n if exactly else size.least, n)
        for before in found:
            if all(name in of and least <= of[name][0] and of[name][1] <= most for name, (least, most) in before.items()):
                raise UsageError(f"specialize has {sizes_text(of)} behind {sizes_text(before)}, which serves it: put it before that")
        found.append(of)
    return found


def _parts(given: Any, sizes: Sequence[InputSize], how: str) -> Iterator[tuple[str, bool, int]]:
    """Yield the names of the sizes of a path, whether they are exactly a number or at most, and that number."""
    if type(given) is int and len(sizes) == 1:
        given = {sizes[0].name: given}
    if isinstance(given, str):
        for part in given.split(","):
            text = _WRITTEN.fullmatch(part.strip())
            if text is None:
                raise UsageError(f"specialize has {given!r}; {how}")
            yield text["name"], text["most"] is None, int(text["n"])
    elif isinstance(given, Mapping) and given and all(type(n) is int for n in given.values()):
        yield from ((name, True, n) for name, n in given.items())
    else:
        raise UsageError(f"specialize has {given!r}; {how}")


def known_sizes(special: Sequence[Mapping[str, Span]], sizes: Sequence[InputSize], values: Sequence[Value]) -> Mapping[str, Span]:
    """Return what is known of the sizes on the path at hand: special ones have a path of their own, and so has the rest."""
    given = {size.name: scalars.wrap(value) for size, value in zip(sizes, values, strict=True)}
    for of in special:
        # one decision, however many sizes there are: the rest is recorded once
        tests = (given[name] == most if least == most else given[name] <= most for name, (least, most) in of.items())
        if current().decisions.decide(scalars.truth_operand(reduce(operator.and_, tests)), special_origin(of)):
            return of
    return {}


def front_of(buffer: Value, number: int, sizes: Sequence[InputSize], known: Mapping[str, Span]) -> Value:
    """Return what there may be of an input at the sizes that are known; the buffer itself where that is all of it."""
    for size in sizes:
        for d in size.dims:
            assert isinstance(buffer.type, TensorType)
            shape, most = list(buffer.type.shape), d.at(known.get(size.name, (0, size.most))[1])
            if d.input == number and shape[d.dim] != most:
                shape[d.dim] = most
                buffer = emit_one(
                    torch.ops.aten.slice.Tensor, (buffer, d.dim, 0, shape[d.dim]), TensorType(tuple(shape), buffer.type.dtype)
                )
    return buffer
