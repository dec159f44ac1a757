# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operations that staging runs for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

#: PyTorch's own; while a model is staged another object is found under its name.
DEFAULT_GENERATOR = torch.default_generator
_NOTHING: AbstractContextManager[Any] = nullcontext()


def unrecorded() -> AbstractContextManager[Any]:
    """Let operations run as they do outside of staging. Within the recorder PyTorch does so by itself, and nothing is to be done."""
    if not torch._C._len_torch_dispatch_stack():
        return _NOTHING
    disabled: AbstractContextManager[Any] = torch.utils._python_dispatch._disable_current_modes()  # type: ignore[attr-defined]
    return disabled


class plainly:  # noqa: N801  (used like a function; as one with contextlib it takes twice as long, and every weight asks for it)
    """Let operations run as on plain tensors: they are not recorded, and no subclass of a tensor sees them."""

    __slots__ = ("_functions", "_modes")

    def __enter__(self) -> None:
        self._functions: Any = torch._C.DisableTorchFunction()
        self._functions.__enter__()
        try:
            self._modes = unrecorded()
            self._modes.__enter__()
        except BaseException:  # calls nest too deeply
            self._functions.__exit__(None, None, None)
            raise

    def __exit__(self, *error: Any) -> None:
        try:
            self._modes.__exit__(*error)
        finally:
            self._functions.__exit__(*error)


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Leave the default generator as it was. ``torch.random.fork_rng`` looks for other devices, and keeps what it finds in a cache."""
    with plainly():
        state = DEFAULT_GENERATOR.get_state()
    try:
        yield
    finally:
        with plainly():
            DEFAULT_GENERATOR.set_state(state)
