# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sequences and optionals: their structure is known when the network is built, so these operators cost nothing at run time."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.frontend.onnx.node import Node, op
from dycl_tvm.frontend.onnx.values import Datum


@op("SequenceEmpty")
def _empty(node: Node) -> Datum:
    return _one([])


def _one(sequence: list[Datum]) -> Datum:
    """Return a sequence as the one output of a node."""
    return (sequence,)


@op("SequenceConstruct")
def _construct(node: Node, *items: Datum) -> Datum:
    return _one(list(items))


@op("SequenceLength")
def _length(node: Node, sequence: list[Datum]) -> Datum:
    return torch.tensor(len(sequence))


def _position(node: Node, sequence: list[Datum], position: torch.Tensor | None, default: int, extent: int) -> int:
    if position is None:
        return default
    at = node.int(position, "the position in a sequence")
    if not -extent <= at < extent:
        node.fail(f"the position {at} is outside of a sequence of {len(sequence)}")
    return at % extent if extent else 0


@op("SequenceAt")
def _at(node: Node, sequence: list[Datum], position: torch.Tensor) -> Datum:
    found = sequence[_position(node, sequence, position, 0, len(sequence))]
    return (found,)


@op("SequenceInsert")
def _insert(node: Node, sequence: list[Datum], item: Datum, position: torch.Tensor | None = None) -> Datum:
    n = len(sequence)
    at = n if position is None else node.int(position, "the position in a sequence")
    if not -n <= at <= n:
        node.fail(f"the position {at} is outside of a sequence of {n}")
    at = at + n if at < 0 else at
    return _one([*sequence[:at], item, *sequence[at:]])


@op("SequenceErase")
def _erase(node: Node, sequence: list[Datum], position: torch.Tensor | None = None) -> Datum:
    at = _position(node, sequence, position, len(sequence) - 1, len(sequence))
    return _one([*sequence[:at], *sequence[at + 1 :]])


@op("SplitToSequence")
def _split(node: Node, x: torch.Tensor, split: torch.Tensor | None = None) -> Datum:
    axis = node.attr("axis", 0)
    extent = x.shape[axis]
    if split is None:
        parts = [x.narrow(axis, k, 1) for k in range(extent)]
        return _one(parts if node.attr("keepdims", 1) else [p.squeeze(axis) for p in parts])
    sizes: Any = node.ints(split, "the sizes of the parts")
    if split.dim() == 0:
        return _one(list(torch.split(x, sizes[0], axis)))
    return _one(list(torch.split(x, sizes, axis)))


@op("ConcatFromSequence")
def _concat(node: Node, sequence: list[torch.Tensor]) -> Datum:
    axis = node.attr("axis")
    return torch.stack(sequence, axis) if node.attr("new_axis", 0) else torch.cat(sequence, axis)


@op("Optional")
def _optional(node: Node, item: Datum = None) -> Datum:
    return (item,)


@op("OptionalGetElement")
def _get(node: Node, item: Datum) -> Datum:
    if item is None:
        node.fail("its input is an optional without an element", "ask OptionalHasElement first")
    return (item,)


@op("OptionalHasElement")
def _has(node: Node, item: Datum = None) -> Datum:
    return torch.tensor(item is not None)
