# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A Program's memory and its compiled kernels, run one instruction at a time by Python: the machine without the dispatcher."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dycl_tvm.codegen.kernel_library import link_kernels
from dycl_tvm.compile.program import KernelCall, KernelLibrary, Program, Slot
from dycl_tvm.errors import VerificationError
from dycl_tvm.hcfg.types import TensorType

#: DLPack's codes and bits by dtype name.
_DL_TYPES = {
    "float64": (2, 64), "float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16),
    "int64": (0, 64), "int32": (0, 32), "int16": (0, 16), "int8": (0, 8), "uint8": (1, 8), "bool": (6, 8),
}  # fmt: skip
_DL_TENSOR_PTR = 7
#: Memory that nobody has written holds NaNs, and no small numbers.
POISON = 0xFF
_GUARD = 4096
#: Kernels may rely on it.
_ALIGN = 64


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Any(ctypes.Structure):
    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_void_p))


class CompiledKernels:
    """The kernels of a build, loaded into this process: the very objects that its libraries get."""

    def __init__(self, library: KernelLibrary) -> None:
        with tempfile.TemporaryDirectory(prefix="dycl-verify-") as folder:
            path = Path(folder) / "kernels.so"
            link_kernels(library, path)
            self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
        self._functions: dict[str, Any] = {}
        #: What a kernel of an external backend keeps for one place of call.
        self._states: dict[int, Any] = {}

    def call(self, symbol: str, site: int, tensors: Sequence[torch.Tensor]) -> None:
        """Run a kernel on tensors in CPU memory that are contiguous."""
        function = self._functions.get(symbol)
        if function is None:
            function = self._functions[symbol] = getattr(self._library, f"__tvm_ffi_{symbol}")
            function.restype = ctypes.c_int
            function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
        described = [_describe(t) for t in tensors]
        args = (_Any * len(described))(*(_Any(_DL_TENSOR_PTR, 0, ctypes.addressof(d)) for d in described))
        state = self._states.setdefault(site, (ctypes.c_void_p * 2)())
        result = _Any()
        if function(ctypes.addressof(state), ctypes.addressof(args), len(described), ctypes.addressof(result)) != 0:
            raise VerificationError(f"the kernel {symbol} refuses its own arguments")


def _describe(tensor: torch.Tensor) -> _DLTensor:
    code, bits = _DL_TYPES[str(tensor.dtype).removeprefix("torch.")]
    shape = (ctypes.c_int64 * max(1, tensor.dim()))(*tensor.shape)
    return _DLTensor(tensor.data_ptr(), 1, 0, tensor.dim(), code, bits, 1, shape, None, 0)


def without_poison(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with zeros where no kernel has written, behind a size of the call: 0 times a NaN is a NaN, and nobody looks there."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    flat = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).contiguous().reshape(-1)
    unwritten = (flat.view(torch.uint8).view(-1, flat.element_size()) == POISON).all(1)
    if not bool(unwritten.any()):
        return tensor
    found = torch.where(unwritten, 0.0, flat)
    return torch.view_as_complex(found.view(*tensor.shape, 2)) if tensor.is_complex() else found.view(tensor.shape)


class Memory:
    """The tensors of one session: arena, inputs, weights and state, with guards at both ends of the arena."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._arena = torch.full((program.arena_bytes + 2 * _GUARD,), POISON, dtype=torch.uint8)
        start = -self._arena.data_ptr() % _ALIGN
        self._start = start + _GUARD // 2
        self.inputs: dict[int, torch.Tensor] = {}
        self.state: dict[int, torch.Tensor] = {}
        self._weights: dict[int, torch.Tensor] = {}
        self._views: dict[int, tuple[Slot, torch.Tensor]] = {}  # by the slots' ids, which live as long

    def _weight(self, index: int) -> torch.Tensor:
        """Return a weight at an address as a loaded artefact has it."""
        found = self._weights.get(index)
        if found is None:
            data = self.program.weights[index].data.detach().contiguous()
            found = self._weights[index] = data if data.data_ptr() % _ALIGN == 0 else data.clone()
        return found

    @property
    def arena(self) -> torch.Tensor:
        """The bytes of the arena."""
        return self._arena[self._start : self._start + self.program.arena_bytes]

    def poison(self) -> None:
        """Forget everything in the arena."""
        self._arena.fill_(POISON)

    def check_guards(self, after: str) -> None:
        """Refuse what has written before or behind the arena."""
        end = self._start + self.program.arena_bytes
        if not (bool((self._arena[: self._start] == POISON).all()) and bool((self._arena[end:] == POISON).all())):
            raise VerificationError(f"{after} writes beyond its memory")

    def tensor(self, slot: Slot) -> torch.Tensor:
        """Return the tensor at a place: a view of the memory, as it lies there."""
        if slot.space in ("arena", "weight"):
            known = self._views.get(id(slot))
            if known is None:
                begin, memory = (slot.offset, self.arena) if slot.space == "arena" else (0, _bytes(self._weight(slot.index)))
                known = self._views[id(slot)] = slot, view(memory[begin : begin + slot.type.nbytes], slot.type)
            return known[1]
        home = self.inputs if slot.space == "input" else self.state
        return view(_bytes(home[slot.index]), slot.type)

    def call(self, kernels: CompiledKernels, instr: KernelCall) -> None:
        """Run a kernel on the memory."""
        kernels.call(self.program.kernels[instr.kernel].symbol, instr.number, [self.tensor(s) for s in instr.args])


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def view(raw: torch.Tensor, type_: TensorType) -> torch.Tensor:
    """Return bytes as a tensor of a type; nothing is copied."""
    return raw.view(getattr(torch, type_.dtype)).reshape(type_.shape)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor for copying all that is there: of bools the bytes, since PyTorch makes 1 of any other byte on the way."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def unpack(array: torch.Tensor, type_: TensorType) -> torch.Tensor:
    """Return the tensor that an array in memory is, whose channels may be in blocks: (N, C / block, ..., block)."""
    if tuple(array.shape) == type_.shape:
        return array
    inner = array.movedim(-1, 2)  # N, C / block, block, ...
    whole = inner.reshape(array.shape[0], -1, *array.shape[2:-1])
    return whole[:, : type_.shape[1]].reshape(type_.shape)


def pack(tensor: torch.Tensor, physical: TensorType) -> torch.Tensor:
    """Return the array of a tensor; channels that fill the last block up are zero."""
    if tuple(tensor.shape) == physical.shape:
        return tensor.contiguous()
    n, blocks, *space, lanes = physical.shape
    whole = torch.zeros((n, blocks * lanes, *space), dtype=tensor.dtype)
    whole[:, : tensor.shape[1]] = tensor
    return whole.reshape(n, blocks, lanes, *space).movedim(2, -1).contiguous()
