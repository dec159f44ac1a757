# Licensed under the Apache License, Version 2.0; see LICENSE.
"""PyTorch's modes, by which staging sees what the program does, and what happens where code of the program goes around them.

Tensors of staging have no data. PyTorch's kernels would not know when they are run past the modes, so these tensors have a dispatch key
for which there are no kernels: whatever reads their data fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current, staging

_WITHOUT_KERNELS = "CustomRNGKeyId"
#: The dispatch keys of a tensor without data.
KEYS: Any = torch._C.DispatchKeySet(torch._C._parse_dispatch_key(_WITHOUT_KERNELS))  # type: ignore[arg-type]
_PYTHON: Any = torch._C.DispatchKey.Python  # type: ignore[attr-defined]


_depth, _mode_at = torch._C._len_torch_dispatch_stack, torch._C._get_dispatch_stack_at
_are_functions_on: Any = torch._C._is_torch_function_mode_enabled  # type: ignore[attr-defined]
_is_excluded: Any = torch._C._dispatch_tls_is_dispatch_key_excluded  # type: ignore[attr-defined]


def are_on(recorder: type) -> bool:
    """Whether PyTorch asks the modes of staging before it runs an operation; ``recorder`` is the class of that of ATen."""
    depth = _depth()
    if not depth or _is_excluded(_PYTHON) or not _are_functions_on():
        return False
    return type(_mode_at(0)) is recorder or any(isinstance(_mode_at(i), recorder) for i in range(depth))


def put_back(recorder: Any, functions: Any) -> None:
    """Put the modes of staging, which end next, back where a program has taken them away."""
    torch._C._dispatch_tls_set_dispatch_key_excluded(_PYTHON, False)  # type: ignore[attr-defined]
    if not torch._C._len_torch_dispatch_stack():
        if recorder.old_dispatch_mode_flags:
            torch._C._push_on_torch_dispatch_stack(recorder)
        else:  # it was taken away as if it had ended
            recorder.__enter__()
    if not torch._C._len_torch_function_stack():
        torch._C._push_on_torch_function_stack(functions)  # type: ignore[attr-defined]


def refusal() -> UnsupportedError:
    """Return the error for code that switches the modes off; it is raised again where other code swallows it."""
    return _refused(
        "PyTorch's modes are switched off, so that what is computed next cannot be seen",
        "leave out `_DisableTorchDispatch`, `_disable_current_modes`, `DisableTorchFunction` and their kind: in eager they do nothing",
    )


def _refused(reason: str, instead: str) -> UnsupportedError:
    session = current()
    session.refused = session.refused or UnsupportedError(reason, session.origin(), instead)
    return session.refused


@contextmanager
def no_new_threads() -> Iterator[None]:
    """Refuse threads that code under staging starts, whoever does: they have no modes."""
    module: Any = threading
    names = [n for n in ("_start_new_thread", "_start_joinable_thread") if hasattr(module, n)]
    real = [getattr(module, n) for n in names]

    def guarded(start: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if staging():
                raise _refused("a thread is started, and what it does cannot be seen", "do it in the thread of the forward")
            return start(*args, **kwargs)

        return run

    for name, start in zip(names, real):
        setattr(module, name, guarded(start))
    try:
        yield
    finally:
        for name, start in zip(names, real):
            setattr(module, name, start)


def is_without_kernel(error: Exception) -> bool:
    """Whether an error is the one of an operation that was run on a tensor without data."""
    return isinstance(error, NotImplementedError) and _WITHOUT_KERNELS in str(error)


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(f"a tensor without data is read ({_WITHOUT_KERNELS})")


_library = torch.library.Library("aten", "IMPL", _WITHOUT_KERNELS)  # type: ignore[arg-type]
for _name in ("copy_", "_batch_norm_no_update"):  # those of PyTorch's operators that have a kernel for every key, and read data
    _library.impl(_name, _refuse)
