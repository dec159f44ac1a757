# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Real tensors in the staged program: weights, buffers, and what the program makes of plain numbers."""

from __future__ import annotations

import hashlib

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.identity import Identity
from dycl_tvm.frontend.trace.values.real_memory import ReachedMemory, View, covers, memory_key, views_to, whole
from dycl_tvm.frontend.trace.values.storage import Storage, tensor_type
from dycl_tvm.hcfg.nodes import Constant


class Constants:
    """The constants of real tensors, and the memory of those that are written to.

    Attributes
    ----------
    names : dict
        Names of the model's tensors by identity.
    named : list
        These tensors.
    """

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.named: list[torch.Tensor] = []
        self.reached = ReachedMemory()
        self._literals: dict[object, Constant] = {}
        self._constants: dict[int, tuple[torch.Tensor, Constant]] = {}
        #: Whether the memory of real tensors may be that of an array too: by the key of the memory, and how many arrays were known then.
        self._shared: dict[tuple[int, int], bool] = {}
        self._storages: dict[int, Storage] = {}
        self._bases: dict[int, torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []

    def of(self, t: torch.Tensor, memory: int | None = None) -> Constant:
        """Return the constant of a real tensor; ``memory`` is the key of its memory, where that was asked for."""
        known = self._constants.get(id(t))
        shared = self.is_shared(t, memory)
        if known is None or shared:
            with plainly():
                data = t.detach().resolve_conj().resolve_neg().contiguous()
                # an expanded tensor of one element counts as contiguous, and cannot be seen as bytes
                data = data.clone(memory_format=torch.contiguous_format) if 0 in data.stride() else data
                data = data if data.device.type == "cpu" else data.cpu()
                name = "" if shared else self.names.get(id(t), "")
                constant = Constant(tensor_type(t), data, name) if name else self._literal(data)
            known = self._constants[id(t)] = (t, constant)
        return known[1]

    def check_unchanged(self) -> None:
        """Refuse a program that has changed a tensor of its own making where PyTorch's modes did not see it."""
        for t, constant in self._constants.values():
            own = not constant.name and not self.is_shared(t) and t.device.type == "cpu"
            if own and not torch.equal(
                t.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8),
                constant.data.reshape(-1).view(torch.uint8),
            ):
                raise UnsupportedError(
                    "a tensor that the forward makes is changed in place where PyTorch's modes are switched off",
                    None,
                    "leave out `_DisableTorchDispatch`, `_disable_current_modes` and their kind: in eager they do nothing",
                )

    def is_shared(self, t: torch.Tensor, memory: int | None = None) -> bool:
        """Whether what a real tensor holds may be changed as that of an array, so that it has to be read again."""
        key = (memory_key(t) if memory is None else memory, len(self.reached.buffers))
        if key not in self._shared:
            self._shared[key] = self.reached.is_shared(t)
        return self._shared[key]

    def check_shared(self, storage: Storage) -> None:
        """Refuse to read a view of memory that was changed as that of an array, and not by an operation of PyTorch's."""
        if storage.real is not None and self.of(storage.real) is not storage.value:
            raise UnsupportedError(
                "a tensor is read whose memory was changed as that of a NumPy array",
                current().origin(),
                "make the tensor after the change, or give it memory of its own: torch.tensor(array)",
            )

    def _literal(self, data: torch.Tensor) -> Constant:
        """Return the constant of a tensor that the program makes itself: one for equal contents, so that replays agree."""
        data = data.clone()  # PyTorch notes of memory that it was handed to NumPy
        contents = data.reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b""
        key = (data.dtype, tuple(data.shape), hashlib.sha256(contents).digest())
        if key not in self._literals:
            self._literals[key] = Constant(tensor_type(data), data)
        return self._literals[key]

    def written_storage(self, t: torch.Tensor, memory: int | None = None) -> Storage | None:
        """Return the memory of a real tensor that has been written to."""
        if not self._storages:
            return None
        storage = self._storages.get(memory_key(t) if memory is None else memory)
        return storage if storage is not None and storage.value is not self.of(storage.real) else None  # type: ignore[arg-type]

    def storage(self, t: torch.Tensor) -> Storage:
        """Return what stands for the memory that a real tensor lies in."""
        key = memory_key(t)
        if key not in self._storages:
            if not self._bases:
                self._bases = {memory_key(b): b for b in reversed(self.named) if covers(b)}
            base = self._bases.get(key)
            if base is None:
                base = t if covers(t) else whole(t)
            storage = self._storages[key] = Storage(self.of(base))
            storage.born, storage.real, storage.memory, storage.shared = 0, base, key, self.is_shared(t)
            self._kept.append(t)
        return self._storages[key]

    def real_at(self, memory: Identity) -> torch.Tensor | None:
        """Return the real tensor that lies in all of a memory; None if it is not the model's."""
        return next((s.real for s in self._storages.values() if s.identity is memory and not s.shared), None)

    def home(self, t: torch.Tensor) -> tuple[Storage, tuple[View, ...]]:
        """Return the memory that a real tensor lies in, and the views that lead from there to it."""
        storage = self.storage(t)
        assert storage.real is not None
        return storage, () if storage.real is t else views_to(storage.real, t)


def constants() -> Constants:
    """Return the constants of the session under way."""
    return current().get(Constants)
