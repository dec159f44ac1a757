# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Real tensors in the staged program: weights, buffers, and what the program makes of plain numbers."""

from __future__ import annotations

import hashlib

import torch

from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.storage import Storage, tensor_type
from dycl_tvm.hcfg.nodes import Constant


class Constants:
    """The constants of real tensors, and the memory of those that are written to.

    Attributes
    ----------
    names : dict
        Names of the model's tensors by identity.
    """

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self._literals: dict[object, Constant] = {}
        self._constants: dict[int, tuple[torch.Tensor, Constant]] = {}
        self._storages: dict[int, tuple[torch.Tensor, Storage]] = {}

    def of(self, t: torch.Tensor) -> Constant:
        """Return the constant of a real tensor."""
        known = self._constants.get(id(t))
        if known is None:
            with torch.utils._python_dispatch._disable_current_modes():  # type: ignore[attr-defined]
                data = t.detach().contiguous()
                # an expanded tensor of one element counts as contiguous, and cannot be seen as bytes
                data = data.clone(memory_format=torch.contiguous_format) if 0 in data.stride() else data
                data = data if data.device.type == "cpu" else data.cpu()
                name = self.names.get(id(t), "")
                constant = Constant(tensor_type(t), data, name) if name else self._literal(data)
            known = self._constants[id(t)] = (t, constant)
        return known[1]

    def _literal(self, data: torch.Tensor) -> Constant:
        """Return the constant of a tensor that the program makes itself: one for equal contents, so that replays agree."""
        contents = data.reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b""
        key = (data.dtype, tuple(data.shape), hashlib.sha256(contents).digest())
        if key not in self._literals:
            self._literals[key] = Constant(tensor_type(data), data.clone())
        return self._literals[key]

    def written_storage(self, t: torch.Tensor) -> Storage | None:
        """Return the memory of a real tensor that has been written to."""
        known = self._storages.get(id(t))
        return known[1] if known is not None and known[1].value is not self.of(t) else None

    def storage(self, t: torch.Tensor) -> Storage:
        """Return what stands for a real tensor's memory."""
        known = self._storages.get(id(t))
        if known is None:
            storage = Storage(self.of(t))
            storage.born = 0
            known = self._storages[id(t)] = (t, storage)
        return known[1]

    def real_tensor_of(self, storage: Storage) -> torch.Tensor | None:
        """Return the real tensor whose memory a storage stands for."""
        return next((t for t, s in self._storages.values() if s is storage), None)


def constants() -> Constants:
    """Return the constants of the session under way."""
    return current().get(Constants)
