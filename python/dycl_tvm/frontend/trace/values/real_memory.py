# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The memory of real tensors: which of a model's tensors lie in one memory, and as which views of it."""

from __future__ import annotations

import array
import functools
from typing import Any

import numpy as np
import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.unrecorded import plainly

aten = torch.ops.aten
View = tuple[Any, tuple[Any, ...], dict[str, Any]]


def memory_key(t: torch.Tensor) -> int:
    """Return what is equal for tensors that lie in one memory."""
    with torch._C.DisableTorchFunction():
        return int(t.untyped_storage()._cdata)


class ReachedMemory:
    """The memory of what the program reaches before it runs: of tensors, and of arrays, which may share it with tensors."""

    def __init__(self) -> None:
        self.buffers: list[Any] = []
        self._memories = set[int]()

    def note(self, x: Any) -> None:
        """Take an object down."""
        kind: Any = type(x)
        base = _base_of(kind)
        if base is torch.Tensor:
            if x.layout == torch.strided:
                self._memories.add(memory_key(x))
        elif base is not None:
            self.buffers.append(x)

    def holds(self, memory: int | None) -> bool:
        """Whether a memory, by its key, is that of a tensor that is reached."""
        return memory in self._memories

    def is_shared(self, t: torch.Tensor) -> bool:
        """Whether an array may lie in the memory of a real tensor: one that is reached, or the one that the program made it of."""
        with torch._C.DisableTorchFunction():
            if t.layout != torch.strided or t.device.type != "cpu":
                return False
            storage = t.untyped_storage()
            if not storage.resizable() and memory_key(t) not in self._memories:
                return True  # PyTorch has not allocated it
            start = storage.data_ptr()
            return any(begin < start + storage.nbytes() and start < end for begin, end in map(_span, self.buffers))


@functools.lru_cache(maxsize=4096)
def _base_of(kind: Any) -> type | None:
    """Return what objects of a class are: tensors, arrays, or neither."""
    return torch.Tensor if issubclass(kind, torch.Tensor) else np.ndarray if issubclass(kind, _BUFFERS) else None


_BUFFERS = (np.ndarray, bytearray, array.array, memoryview)


def _span(buffer: Any) -> tuple[int, int]:
    """Return where the memory of an array begins and ends."""
    if isinstance(buffer, np.ndarray):
        strides = list(zip(buffer.shape, buffer.strides))
        start = int(buffer.__array_interface__["data"][0])
        reach = [(n - 1) * s for n, s in strides]
        return start + sum(r for r in reach if r < 0), start + sum(r for r in reach if r > 0) + (buffer.itemsize if buffer.size else 0)
    if not len(buffer):
        return 0, 0
    return _span(np.frombuffer(buffer, np.uint8))


def covers(t: torch.Tensor) -> bool:
    """Whether a tensor is all of its memory, in order."""
    with torch._C.DisableTorchFunction():
        return t.is_contiguous() and t.storage_offset() == 0 and t.numel() * t.element_size() == t.untyped_storage().nbytes()


def whole(t: torch.Tensor) -> torch.Tensor:
    """Return a tensor of one dimension that is all of the memory that ``t`` lies in."""
    with plainly():
        storage = t.untyped_storage()
        return torch.empty(0, dtype=t.dtype).set_(storage, 0, (storage.nbytes() // t.element_size(),), (1,))  # type: ignore[call-overload,no-any-return]


def views_to(base: torch.Tensor, t: torch.Tensor) -> tuple[View, ...]:
    """Return the view operators that lead from ``base``, which covers its memory, to ``t``, which lies in it.

    Raises
    ------
    UnsupportedError
        If no chain of slices, reshapes and permutations does.
    """
    with plainly():
        chain = _views_to(base, t) if _kind(base) == _kind(t) else None
        if chain is not None:
            made = base.detach()
            for op, args, kwargs in chain:
                made = op(made, *args, **kwargs)
            if (made.shape, made.stride(), made.storage_offset()) == (t.shape, t.stride(), t.storage_offset()):
                return chain
    raise UnsupportedError(
        "two tensors of the model lie in one memory, one as an unusual view of the other, and one of them is changed in place",
        current().origin(),
        "give them memory of their own: t = t.clone()",
    )


def _kind(t: torch.Tensor) -> tuple[torch.dtype, bool, bool]:
    return t.dtype, t.is_conj(), t.is_neg()


def _views_to(base: torch.Tensor, t: torch.Tensor) -> tuple[View, ...] | None:
    if (base.shape, base.stride(), base.storage_offset()) == (t.shape, t.stride(), t.storage_offset()):
        return ()
    order = sorted(range(t.dim()), key=lambda d: (-t.stride()[d], -t.shape[d]))
    back = [order.index(d) for d in range(t.dim())]
    shape, strides = [t.shape[d] for d in order], [t.stride(d) for d in order]
    permute: tuple[View, ...] = () if order == list(range(t.dim())) else ((aten.permute.default, (back,), {}),)
    if t.numel() == 0 or 0 in strides:
        return None
    if t.permute(order).is_contiguous():
        flat: tuple[View, ...] = ((aten.view.default, ([-1],), {}),) if base.dim() != 1 else ()
        start = t.storage_offset()
        part: tuple[View, ...] = () if t.numel() == base.numel() else ((aten.slice.Tensor, (0, start, start + t.numel()), {}),)
        return (*flat, *part, (aten.view.default, (shape,), {}), *permute)
    chain: list[View] = []
    rest, left = int(t.storage_offset()), list(zip(shape, strides))
    for d in range(base.dim()):
        size, step = base.shape[d], base.stride(d)
        start, rest = divmod(rest, step)
        count, by = 1, 1
        if left and left[0][1] >= step:
            count, stride = left.pop(0)
            by = stride // step
        stop = start + (count - 1) * by + 1
        if stop > size:
            return None
        if (start, stop, by) != (0, size, 1):
            chain.append((aten.slice.Tensor, (d, start, stop, by), {}))
    kept = [n for n in shape if n != 1]
    squeezed = [d for d in range(base.dim() - 1, -1, -1) if _length(chain, base, d) == 1]
    chain += [(aten.squeeze.dim, (d,), {}) for d in squeezed]
    chain += [(aten.unsqueeze.default, (i,), {}) for i, n in enumerate(shape) if n == 1]
    return (*chain, *permute) if not left and len(kept) == base.dim() - len(squeezed) else None


def _length(chain: list[View], base: torch.Tensor, d: int) -> int:
    for _, args, _ in chain:
        if args[0] == d:
            return len(range(*args[1:]))
    return int(base.shape[d])
