# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors of the caller that results are written to."""

from __future__ import annotations

import ctypes
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dycl_tvm.errors import InputError, UsageError
from dycl_tvm.runtime import capi
from dycl_tvm.runtime.structure import flatten, whole_leaves
from dycl_tvm.runtime.tensors import InputTensor, is_torch, strides_of, type_text


class Targets:
    """The leaves of ``out``, checked against what a network returns on any path.

    Attributes
    ----------
    out : object
        As the caller gave it.
    leaves : list of torch.Tensor or numpy.ndarray
        In the order of the outputs.
    tensors : list of DLTensor
        Where each leaf of the result goes.
    addresses : tuple of int
        Of these tensors.
    direct : array of addresses, or None
        The same for C, if the run is to write there; None if the results are to be copied after it.

    Raises
    ------
    UsageError
        If they do not fit.
    """

    def __init__(self, metadata: dict[str, Any], out: Any, direct: bool = False) -> None:
        name, sites = metadata["name"], metadata["sites"]
        structure, types = sites[0]["structure"], sites[0]["types"]
        if any(site["structure"] != structure or site["types"] != types for site in sites):
            raise UsageError(f"'{name}' returns other structures or types on other paths; call it without bind()")
        if whole_leaves(structure) < 0 or any(want["type"] != "tensor" for want in types):
            raise UsageError(f"'{name}' returns numbers, or tensors whose sizes each call decides; call it without bind()")
        try:
            named = flatten(structure, out, "out")
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from None
        self.out = out
        self.leaves = [leaf for _, leaf in named]
        self._kept = [_target(where, leaf, want) for (where, leaf), want in zip(named, types)]
        self.tensors = [kept.struct for kept in self._kept]
        self.addresses = tuple(ctypes.addressof(tensor) for tensor in self.tensors)
        self.direct = (ctypes.c_void_p * len(self.addresses))(*self.addresses) if direct else None
        self._ends = [_end(tensor) for tensor in self.tensors]
        self._may_move = [(where, leaf, kept.struct.data) for (where, leaf), kept in zip(named, self._kept) if is_torch(leaf)]
        places = sorted((t.data or 0, end, where) for t, end, (where, _) in zip(self.tensors, self._ends, named) if end > (t.data or 0))
        for (_, end, first), (start, _, second) in itertools.pairwise(places):
            if start < end:
                raise UsageError(f"{first} and {second} share memory: one result would lie in the other")

    def check(self) -> None:
        """Refuse tensors of PyTorch's that have got other memory since (``resize_``, ``share_memory_``, ``.data = ...``)."""
        for where, leaf, address in self._may_move:
            if leaf.data_ptr() != (address or 0):
                raise UsageError(f"{where}: the tensor has got other memory since bind(); call bind() again")

    def written_before_read(self, sources: Sequence[int]) -> bool:
        """Whether one of the outputs, which begin at these addresses, lies where it or one before it is to go.

        That is an input which the network returns; other outputs lie in memory of the session.
        """
        for k, start in enumerate(sources):
            end = start + self._ends[k] - (self.tensors[k].data or 0)
            if any(start < self._ends[j] and (self.tensors[j].data or 0) < end for j in range(k + 1)):
                return True
        return False

    def fill(self, results: Sequence[Any]) -> None:
        """Write results that lie elsewhere."""
        for leaf, result in zip(self.leaves, results):
            if is_torch(leaf):
                with sys.modules["torch"].inference_mode():
                    leaf.copy_(result)
            else:
                leaf[...] = result


def _target(name: str, leaf: Any, want: dict[str, Any]) -> InputTensor:
    """Return a leaf as C takes it; it keeps the memory alive."""
    if not (is_torch(leaf) or isinstance(leaf, np.ndarray)):
        raise UsageError(f"{name}: expected a tensor {type_text(want)}, got a {type(leaf).__name__}")
    shape = tuple(leaf.shape)
    try:
        kept = InputTensor(name, leaf, want["dtype"])
    except InputError as error:
        raise UsageError(str(error).removeprefix("input ")) from None
    dtype = capi.DL_NAMES[kept.struct.code, kept.struct.bits]
    if dtype != want["dtype"] or shape != tuple(want["shape"]):
        raise UsageError(f"{name}: expected {type_text(want)}, got {dtype}[{', '.join(map(str, shape))}]")
    given = leaf.data_ptr() if is_torch(leaf) else leaf.ctypes.data
    has_memory = given != 0 or 0 in shape  # zeros that PyTorch does not store, and tensors without data, have none
    if not has_memory or (kept.struct.data or 0) != given or not _is_compact(kept.struct, shape) or not _may_be_written(leaf):
        raise UsageError(f"{name}: expected memory that may be written, with one element after the other")
    return kept


def _is_compact(struct: capi.DLTensor, shape: tuple[int, ...]) -> bool:
    strides = zip(shape, struct.strides[: len(shape)], strides_of(shape))
    return 0 in shape or all(extent == 1 or stride == want for extent, stride, want in strides)


def _end(struct: capi.DLTensor) -> int:
    return (struct.data or 0) + math.prod(struct.shape[: struct.ndim]) * ((struct.bits + 7) // 8)


def _may_be_written(leaf: Any) -> bool:
    return not leaf.requires_grad if is_torch(leaf) else bool(leaf.flags.writeable)


class Bound:
    """A module whose results go into tensors of the caller. Made by :meth:`dycl_tvm.Module.bind`.

    Attributes
    ----------
    out : object
        What each call writes to and returns.
    """

    def __init__(self, run: Callable[[tuple[Any, ...], dict[str, Any], float, Targets], Any], targets: Targets) -> None:
        self._run, self._targets = run, targets
        self.out = targets.out

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network on inputs as a module takes them; ``out`` is written once the run has ended well, or by it."""
        self._targets.check()
        return self._run(args, kwargs, 0.0, self._targets)
