# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors on their way in and out of a library: torch tensors where the caller uses torch, NumPy arrays otherwise.

Torch is never imported here: a caller who has no torch tensors need not have torch.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dycl_tvm.errors import InputError
from dycl_tvm.runtime import capi
from dycl_tvm.runtime.structure import Cuts, first, shape_of_first


def is_torch(value: Any) -> bool:
    """Tell whether a value is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def type_text(want: dict[str, Any]) -> str:
    """Return the type of an input or output, an entry of the metadata, as people write it: ``int64[1, T<=512]``."""
    if want["type"] != "tensor":
        return str(want["type"])
    sized = want.get("sized", {})
    return f"{want['dtype']}[{', '.join(f'{sized[str(d)]}<={n}' if str(d) in sized else str(n) for d, n in enumerate(want['shape']))}]"


def is_shape_of(want: dict[str, Any], shape: Sequence[int]) -> bool:
    """Whether an input may have a shape; sizes that the caller decides are for the library to check."""
    sized = want.get("sized", {})
    return len(shape) == len(want["shape"]) and all(n == m or str(d) in sized for d, (n, m) in enumerate(zip(shape, want["shape"])))


@functools.lru_cache(maxsize=1024)
def extents(numbers: tuple[int, ...]) -> Any:
    """Return numbers as an array of C's, which all structures with such numbers share: nobody writes to it."""
    return (ctypes.c_int64 * max(len(numbers), 1))(*numbers)


@functools.lru_cache(maxsize=1024)
def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a tensor whose elements lie one after the other."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


@functools.lru_cache(maxsize=256)
def _name_of(dtype: np.dtype[Any]) -> str:
    return dtype.name


def _address(array: Any) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(array))  # a third of the time that .ctypes.data takes


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Return where the elements of an array lie."""
    if array.size and array.flags.writeable and array.flags.c_contiguous:
        try:
            return _address(array)
        except (TypeError, ValueError):  # a dtype that buffers do not know
            pass
    return int(array.ctypes.data)


class InputTensor:
    """A caller's tensor as a ``DLTensor``; it keeps the memory alive that the structure points at.

    Parameters
    ----------
    name : str
        The input's name, for errors.
    value : torch.Tensor, array, or number-like
    dtype : str
        The expected dtype: a uint16 array stands for bfloat16 where that is expected.
    """

    def __init__(self, name: str, value: Any, dtype: str) -> None:
        if is_torch(value):
            try:
                self._from_torch(name, value)
            except RuntimeError as error:  # nested tensors; what transformations of functions (vmap, grad) hand to them
                raise InputError(f"input '{name}': expected a tensor with memory of its own; PyTorch says: {error}") from None
        else:
            self._from_array(name, value, dtype)

    def _from_torch(self, name: str, value: Any) -> None:
        torch = sys.modules["torch"]
        if value.layout != torch.strided:
            raise InputError(f"input '{name}': expected a dense tensor, got layout {value.layout}")
        tensor = value.detach()
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        device = {"cpu": capi.DL_CPU, "cuda": capi.DL_CUDA}.get(tensor.device.type)
        if device is None:
            raise InputError(f"input '{name}': expected a tensor in CPU memory, got one on {tensor.device}")
        self._keep = tensor
        self._fill(name, str(tensor.dtype).removeprefix("torch."), tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), device)
        self.struct.device_id = tensor.device.index or 0

    def _from_array(self, name: str, value: Any, dtype: str) -> None:
        if hasattr(value, "__cuda_array_interface__"):
            self._from_cuda(name, value, value.__cuda_array_interface__)
            return
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"input '{name}': expected a tensor, got a {type(value).__name__} ({error})") from None
        if not isinstance(value, np.ndarray) and not hasattr(value, "__array__") and not hasattr(value, "__array_interface__"):
            raise InputError(f"input '{name}': expected a tensor ({dtype}), got a {type(value).__name__}")
        given = _name_of(array.dtype)
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("="))
        if dtype == "bfloat16" and given == "uint16":
            given = "bfloat16"
        if any(stride % max(array.itemsize, 1) for stride in array.strides):
            array = np.ascontiguousarray(array)
        strides = tuple(stride // max(array.itemsize, 1) for stride in array.strides)
        self._keep = array
        self._fill(name, given, address_of(array), array.shape, strides, capi.DL_CPU)

    def _from_cuda(self, name: str, value: Any, interface: dict[str, Any]) -> None:
        # CuPy's and Numba's arrays; the protocol has no number of the GPU, the library checks what it can
        dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
        strides, compact = interface.get("strides"), 1
        if strides is None:
            elements: list[int] = []
            for extent in reversed(shape):
                elements.insert(0, compact)
                compact *= extent
        else:
            elements = [s // dtype.itemsize for s in strides]
        self._keep = value
        self._fill(name, dtype.name, int(interface["data"][0]), shape, tuple(elements), capi.DL_CUDA)

    def _fill(self, name: str, dtype: str, data: int, shape: tuple[int, ...], strides: tuple[int, ...], device: int) -> None:
        if dtype not in capi.DL_DTYPES:
            raise InputError(f"input '{name}': tensors of dtype {dtype} are not supported")
        code, bits = capi.DL_DTYPES[dtype]
        self.struct = capi.DLTensor(data, device, 0, len(shape), code, bits, 1, extents(shape), extents(strides), 0)


def copy_out(tensor: capi.DLTensor, torch_like: bool, copy: Callable[[capi.DLTensor], None], front: Cuts = ()) -> Any:
    """Return a copy of an output (the library's view lives until the next run only).

    ``copy`` fills a tensor with the output, where that is on a GPU. There torch tensors stay, arrays come to the host. ``front`` are
    dimensions and their lengths: of an output that is so long the first elements are all that there is.
    A bfloat16 tensor without torch is an array of uint16 with its bits.
    """
    if tensor.device_type == capi.DL_CUDA:
        whole = _copy_from_device(tensor, torch_like, copy)
        return first(whole, front) if front else whole
    name = capi.DL_NAMES[tensor.code, tensor.bits]
    shape = tensor.shape[: tensor.ndim]
    array = np.empty(shape_of_first(shape, front), "uint16" if name == "bfloat16" else name)
    if array.size:
        ctypes.memmove(_address(array), tensor.data + tensor.byte_offset, array.nbytes)
    if not torch_like:
        return array
    torch = sys.modules["torch"]
    if name == "bfloat16":
        # Torch has a uint16, but not everywhere: the bits go through int16.
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _copy_from_device(tensor: capi.DLTensor, torch_like: bool, copy: Callable[[capi.DLTensor], None]) -> Any:
    name = capi.DL_NAMES[tensor.code, tensor.bits]
    shape = tuple(tensor.shape[d] for d in range(tensor.ndim))
    target = capi.DLTensor.from_buffer_copy(tensor)
    target.byte_offset = 0
    if torch_like:
        torch = sys.modules["torch"]
        result = torch.empty(shape, dtype=getattr(torch, name), device=f"cuda:{tensor.device_id}")
        target.data = result.data_ptr()
    else:
        result = np.empty(shape, "uint16" if name == "bfloat16" else name)
        target.data, target.device_type, target.device_id = result.ctypes.data, capi.DL_CPU, 0
    copy(target)
    return result
