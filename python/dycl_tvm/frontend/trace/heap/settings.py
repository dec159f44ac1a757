# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What belongs to no object: PyTorch's settings, and context variables."""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.heap.places import Indivisible, Place

#: Those that PyTorch keeps in C, and that are asked for without an argument.
_PAIRS = tuple(
    name
    for name in (
        "cudnn_allow_tf32",
        "cudnn_benchmark",
        "cudnn_deterministic",
        "cudnn_enabled",
        "cublas_allow_tf32",
        "deterministic_fill_uninitialized_memory",
        "mkldnn_deterministic",
        "warnAlways",
    )
    if hasattr(torch._C, f"_get_{name}") and hasattr(torch._C, f"_set_{name}")
)


class Settings(Indivisible):
    """PyTorch's own settings, by the functions that read and write them."""

    __slots__ = ()
    _FUNCTIONS: tuple[tuple[Any, Any], ...] = (
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.is_grad_enabled, torch._C._set_grad_enabled),
        *[(partial(torch.is_autocast_enabled, d), partial(torch.set_autocast_enabled, d)) for d in ("cpu", "cuda")],
        *[(partial(torch.get_autocast_dtype, d), partial(torch.set_autocast_dtype, d)) for d in ("cpu", "cuda")],
        *[(getattr(torch._C, f"_get_{name}"), getattr(torch._C, f"_set_{name}")) for name in _PAIRS],
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    )

    @property
    def owner(self) -> Any:
        return torch

    @property
    def key(self) -> Any:
        return ("settings",)

    @property
    def text(self) -> str:
        return "PyTorch's settings (the default dtype, the mode of gradients and others)"

    def read(self) -> Any:
        return tuple([read() for read, _ in self._FUNCTIONS])

    def write(self, contents: Any) -> None:
        for (read, write), value in zip(self._FUNCTIONS, contents):
            if read() != value:
                write(value)


class Context(Place):
    """What context variables hold. One that had no value before cannot be made to have none: it gets a default that says so."""

    __slots__ = ()

    @property
    def owner(self) -> Any:
        return contextvars

    @property
    def key(self) -> Any:
        return ("context",)

    @property
    def text(self) -> str:
        return "the context variables"

    def read(self) -> Any:
        return tuple(contextvars.copy_context().items())

    def write(self, contents: Any) -> None:
        before = dict(contents)
        for variable, value in contextvars.copy_context().items():
            if variable not in before:
                variable.set(self.default_of(variable))
            elif before[variable] is not value:
                variable.set(before[variable])

    def restore(self, variable: contextvars.ContextVar[Any], value: Any) -> None:
        """Give a variable back what it held; ``Token.MISSING`` where it held nothing."""
        variable.set(self.default_of(variable) if value is contextvars.Token.MISSING else value)

    def default_of(self, variable: contextvars.ContextVar[Any]) -> Any:
        """Return what a variable holds that was not set."""
        try:
            return contextvars.Context().run(variable.get)
        except LookupError:
            raise UnsupportedError(
                f"the context variable {variable.name} gets its first value in the forward",
                None,
                "give it a default: ContextVar(name, default=...)",
            ) from None

    def flatten(self, contents: Any) -> tuple[Any, Sequence[Any]]:
        return tuple([v for v, _ in contents]), [x for _, x in contents]

    def unflatten(self, contents: Any, items: Sequence[Any]) -> Any:
        return tuple([(v, item) for (v, _), item in zip(contents, items)])


SETTINGS, CONTEXT = Settings(), Context()
