# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The weights of a program: numbered, each content once; and what can be computed from weights at build time."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
from tvm.support import cc

from dycl_tvm.backends.lowering_passes import compile_kernels
from dycl_tvm.compile.objects import Compiled, Recipe, make_objects
from dycl_tvm.compile.program import Slot, Weight
from dycl_tvm.hcfg.types import TensorType


class WeightTable:
    """Weights by content."""

    def __init__(self) -> None:
        self.weights: list[Weight] = []
        self._index: dict[Any, int] = {}
        self._names: set[str] = set()
        self._digests: dict[int, tuple[Any, bytes]] = {}  # by identity; the tensor is kept, so that the identity stays its own

    def digest(self, data: torch.Tensor) -> bytes:
        """Return a hash of the contents."""
        known = self._digests.get(id(data))
        if known is None:
            raw = data.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            known = self._digests[id(data)] = (data, hashlib.sha256(raw.data).digest())
        return known[1]

    def slot(self, type_: TensorType, data: torch.Tensor, name: str) -> Slot:
        """Return the place of a weight; equal contents have one."""
        key = (type_.nbytes, type_.dtype, self.digest(data))
        index = self._index.get(key)
        if index is None:
            index = self._index[key] = len(self.weights)
            self.weights.append(Weight(self._unique(name or "constant"), type_, data.detach().cpu().contiguous()))
        return Slot(type_, "weight", index)

    def _unique(self, name: str) -> str:
        candidate, k = name, 1
        while candidate in self._names:
            candidate, k = f"{name}.{k}", k + 1
        self._names.add(candidate)
        return candidate


def numbers_of(data: torch.Tensor) -> torch.Tensor:
    """Return a tensor as the real numbers that lie in its memory."""
    return torch.view_as_real(data.resolve_conj()) if data.is_complex() else data


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Return a copy of an array as a tensor; PyTorch does not know NumPy's bfloat16."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    made = torch.from_numpy(array.copy())
    return made if array.size else torch.empty(made.shape, dtype=made.dtype)  # NumPy's strides of arrays without elements are 0


#: Makes a shared library, the first path, of object files.
Link = Callable[[str, Sequence[str]], None]
#: By a compiler that TVM finds.
link_with_tvm: Link = cc.create_shared


class BuildTimeKernels:
    """Runs kernels on this machine while building, whatever the target is."""

    def __init__(self, functions: dict[str, Any], symbols: Sequence[str], link: Link = link_with_tvm) -> None:
        self._module: Any = None
        if not symbols:
            return
        objects = make_objects({s: functions[s] for s in symbols}, tvm.target.Target("llvm"), Recipe("unscheduled", _unscheduled))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for symbol, made in objects.items():
                (folder / f"{symbol}.o").write_bytes(made.code)
            path = str(folder / "fold.so")
            link(path, [str(folder / f"{symbol}.o") for symbol in objects])
            self._module = tvm.runtime.load_module(path)

    def run(self, symbol: str, inputs: Sequence[torch.Tensor], outputs: Sequence[TensorType]) -> list[torch.Tensor]:
        """Return the results of a kernel."""
        arrays = [_device_array(t.shape, str(t.dtype).removeprefix("torch.")) for t in inputs]
        results = [_device_array(o.shape, o.dtype) for o in outputs]
        for array, t in zip(arrays, inputs):
            torch.from_dlpack(array).copy_(t)
        self._module[symbol](*arrays, *results)
        return [torch.from_dlpack(r).clone() for r in results]


def _unscheduled(symbol: str, fn: Any, target: tvm.target.Target) -> Compiled:
    return Compiled(compile_kernels({symbol: fn.with_attr("global_symbol", symbol)}, target))


def _device_array(shape: Sequence[int], dtype: str) -> Any:
    """Return memory that is aligned as kernels need it; PyTorch writes to it, for NumPy has no bfloat16."""
    return tvm.runtime.empty(tuple(shape), dtype)
