# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Walks over what ATen operators take and give: tuples, lists and dicts, and nothing else that holds tensors.

Exported programs have classes of their own for these three, and shapes are tuples. The walks are those of ``torch.utils._pytree``,
without its registry of node types: staging walks several times an operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import torch

#: Classes of leaves that are met often: they are told by one look.
_PLAIN = frozenset((int, bool, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))


@functools.cache
def opname(func: Any) -> str:
    """Return the name by which there are rules for an operator of PyTorch's; its namesakes of other libraries have none."""
    name: str = func._opname
    return name if func.namespace in ("aten", "prims") else f"{func.namespace}::{name}"


@functools.lru_cache(maxsize=256)
def _is_tensor(kind: type) -> bool:
    """Whether objects of a class are tensors. To ask ``isinstance`` of each takes five times as long, as the class has a metaclass."""
    return issubclass(kind, torch.Tensor)


def leaves(node: Any) -> list[Any]:
    """Return all that is no tuple, list or dict, in order; None is a leaf too."""
    kind: Any = type(node)
    if _is_tensor(kind):
        return [node]
    found: list[Any] = []
    _collect((node,), found)
    return found


def _collect(nodes: Any, found: list[Any]) -> None:
    for node in nodes:
        kind: Any = type(node)
        if kind in _PLAIN or _is_tensor(kind):
            found.append(node)
        elif isinstance(node, (tuple, list)):
            _collect(node, found)
        elif isinstance(node, dict):
            _collect(node.values(), found)
        else:
            found.append(node)


def tensors_of(*nodes: Any) -> list[torch.Tensor]:
    """Return the tensors, in order, with repetitions."""
    return sorted_leaves(*nodes)[0]


def sorted_leaves(*nodes: Any) -> tuple[list[torch.Tensor], list[Any]]:
    """Return the tensors, and the leaves that are no plain values of Python either, such as numbers known only at run time."""
    tensors: list[torch.Tensor] = []
    others: list[Any] = []
    _sort(nodes, tensors, others)
    return tensors, others


def _sort(nodes: Any, tensors: list[torch.Tensor], others: list[Any]) -> None:
    """Put tensors into one list, and what is no plain value of Python into the other."""
    for node in nodes:
        kind: Any = type(node)
        if kind in _PLAIN:
            continue
        if _is_tensor(kind):
            tensors.append(node)
        elif isinstance(node, (tuple, list)):
            _sort(node, tensors, others)
        elif isinstance(node, dict):
            _sort(node.values(), tensors, others)
        else:
            others.append(node)


def map_leaves(fn: Callable[[Any], Any], node: Any) -> Any:
    """Return the same structure, of plain tuples, lists and dicts, with ``fn`` of each leaf, called in order."""
    kind: Any = type(node)
    if kind in _PLAIN or _is_tensor(kind):
        return fn(node)
    if isinstance(node, tuple):
        return tuple([map_leaves(fn, n) for n in node])
    if isinstance(node, list):
        return [map_leaves(fn, n) for n in node]
    if isinstance(node, dict):
        return {k: map_leaves(fn, n) for k, n in node.items()}
    return fn(node)


def map_tensors(fn: Callable[[torch.Tensor], Any], node: Any) -> Any:
    """Return the same structure with ``fn`` of each tensor, called in order, and all else as it is."""
    kind: Any = type(node)
    if kind in _PLAIN:
        return node
    if _is_tensor(kind):
        return fn(node)
    if isinstance(node, tuple):
        return tuple([map_tensors(fn, n) for n in node])
    if isinstance(node, list):
        return [map_tensors(fn, n) for n in node]
    if isinstance(node, dict):
        return {k: map_tensors(fn, n) for k, n in node.items()}
    return node


_INTS = {int}


def key_of(node: Any) -> Hashable:
    """Return what is equal for two structures exactly if an operator cannot tell them apart but by its tensors' contents.

    Tensors count by shape, strides and dtype. Numbers carry their type (``1``, ``1.0`` and ``True`` are equal in Python), floats
    their digits (so do ``0.0`` and ``-0.0``).
    """
    kind: Any = type(node)
    if kind is int or kind is bool:
        return kind, node
    if node is None:
        return None
    if _is_tensor(kind):
        layouts = getattr(node, "layouts", None)  # the strides of some depend on the path, see layouts.py
        marks = (node.is_conj(), node.is_neg())
        return node.shape, node.stride() if layouts is None else layouts.strides, node.dtype, marks
    if kind is list and {*map(type, node)} == _INTS:
        return list, *node
    if isinstance(node, (tuple, list)):
        return (isinstance(node, list), *[key_of(n) for n in node])
    if isinstance(node, dict):
        return (dict, *[(k, key_of(n)) for k, n in node.items()])
    return kind, repr(node)
