# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors of the caller that results are written to."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from dycl_tvm.errors import UsageError
from dycl_tvm.runtime import capi
from dycl_tvm.runtime.structure import flatten, whole_leaves
from dycl_tvm.runtime.tensors import InputTensor, is_torch, strides_of, type_text


class Targets:
    """The leaves of ``out``, checked against what a network returns on any path.

    Attributes
    ----------
    out : object
        As the caller gave it.
    tensors : list of DLTensor
        Where each leaf of the result goes.
    addresses : tuple of int
        Of these tensors.

    Raises
    ------
    UsageError
        If they do not fit.
    """

    def __init__(self, metadata: dict[str, Any], out: Any) -> None:
        name, sites = metadata["name"], metadata["sites"]
        structure, types = sites[0]["structure"], sites[0]["types"]
        if any(site["structure"] != structure or site["types"] != types for site in sites):
            raise UsageError(f"'{name}' returns other structures or types on other paths; call it without bind()")
        if whole_leaves(structure) < 0 or any(want["type"] != "tensor" for want in types):
            raise UsageError(f"'{name}' returns numbers, or tensors whose sizes each call decides; call it without bind()")
        try:
            leaves = flatten(structure, out, "out")
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from None
        self.out = out
        self._kept = [_target(where, leaf, want) for (where, leaf), want in zip(leaves, types)]
        self.tensors = [kept.struct for kept in self._kept]
        self.addresses = tuple(ctypes.addressof(tensor) for tensor in self.tensors)


def _target(name: str, leaf: Any, want: dict[str, Any]) -> InputTensor:
    """Return a leaf as C takes it; it keeps the memory alive."""
    if not (is_torch(leaf) or isinstance(leaf, np.ndarray)):
        raise UsageError(f"{name}: expected a tensor {type_text(want)}, got a {type(leaf).__name__}")
    shape = tuple(leaf.shape)
    kept = InputTensor(name, leaf, want["dtype"])
    dtype = capi.DL_NAMES[kept.struct.code, kept.struct.bits]
    if dtype != want["dtype"] or shape != tuple(want["shape"]):
        raise UsageError(f"{name}: expected {type_text(want)}, got {dtype}[{', '.join(map(str, shape))}]")
    given = leaf.data_ptr() if is_torch(leaf) else leaf.ctypes.data
    if kept.struct.data != given or not _is_compact(kept.struct, shape) or not _may_be_written(leaf):
        raise UsageError(f"{name}: expected memory that may be written, with one element after the other")
    return kept


def _is_compact(struct: capi.DLTensor, shape: tuple[int, ...]) -> bool:
    strides = zip(shape, struct.strides[: len(shape)], strides_of(shape))
    return 0 in shape or all(extent == 1 or stride == want for extent, stride, want in strides)


def _may_be_written(leaf: Any) -> bool:
    return not leaf.requires_grad if is_torch(leaf) else bool(leaf.flags.writeable)
