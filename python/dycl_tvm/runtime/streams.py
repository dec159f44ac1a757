# Licensed under the Apache License, Version 2.0; see LICENSE.
"""CUDA streams of the caller's, as frameworks have them."""

from __future__ import annotations

from typing import Any

from dycl_tvm.errors import UsageError


def stream_handle(stream: Any) -> int:
    """Return the ``cudaStream_t`` of a stream as a number.

    Raises
    ------
    UsageError
        If it is none that is known.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    of_torch = getattr(stream, "cuda_stream", None)
    if isinstance(of_torch, int):
        return of_torch
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        # a method in CUDA Python, an attribute in earlier drafts of the protocol: (version, handle)
        _, handle = protocol() if callable(protocol) else protocol
        return int(handle)
    known = "a torch.cuda.Stream, an object with __cuda_stream__, or a number"
    raise UsageError(f"expected a CUDA stream ({known}), got a {type(stream).__name__}")
