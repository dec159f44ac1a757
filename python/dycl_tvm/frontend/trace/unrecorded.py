# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operations that staging runs for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

_NOTHING: AbstractContextManager[Any] = nullcontext()


def unrecorded() -> AbstractContextManager[Any]:
    """Let operations run as they do outside of staging. Within the recorder PyTorch does so by itself, and nothing is to be done."""
    if not torch._C._len_torch_dispatch_stack():
        return _NOTHING
    disabled: AbstractContextManager[Any] = torch.utils._python_dispatch._disable_current_modes()  # type: ignore[attr-defined]
    return disabled


@contextmanager
def plainly() -> Iterator[None]:
    """Let operations run as on plain tensors: they are not recorded, and no subclass of a tensor sees them."""
    with torch._C.DisableTorchFunction(), unrecorded():
        yield
