# Licensed under the Apache License, Version 2.0; see LICENSE.
"""One run of a program that is recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, cast

import torch

from dycl_tvm.errors import DyclError
from dycl_tvm.frontend.trace.modes import are_on, put_back, refusal
from dycl_tvm.frontend.trace.record import Event
from dycl_tvm.frontend.trace.session import Session, current, set_current
from dycl_tvm.frontend.trace.values.recorder import Recorder
from dycl_tvm.frontend.trace.values.torch_calls import FunctionRecorder


def check_modes(leave: Callable[..., Any] | None = None) -> None:
    """Refuse a program that has switched the modes off, or did it where other code swallowed the refusal.

    ``leave`` is the ``__exit__`` of what may have done it, and would do the rest of its work when it is forgotten.
    """
    if not are_on(Recorder):
        error = refusal()
        if leave is not None:
            with suppress(DyclError):
                leave(None, None, None)
        raise error
    refused = current().refused
    if refused is not None:
        raise refused


@contextmanager
def recording(session: Session, prefix: list[Event]) -> Iterator[None]:
    """Record what is run inside, as a run that begins with ``prefix``; what it changes is taken back at the end."""
    session.begin_run(prefix)
    journal = session.journal
    with torch.no_grad():
        mark, depth = journal.open(), journal.depth() - 1
        session.heap.run_mark = mark
        set_current(session)
        try:
            # without oneDNN a recurrent layer is recorded as the operations that it consists of
            with _without_onednn(), _without_dynamo(), _modes():
                yield
        finally:
            set_current(None)
            journal.rollback(mark)
            journal.close_to(depth)


@contextmanager
def _modes() -> Iterator[None]:
    recorder, functions = Recorder(), FunctionRecorder()
    c: Any = torch._C
    keys = c._ForceDispatchKeyGuard(c._dispatch_tls_local_include_set(), c._dispatch_tls_local_exclude_set())  # are as before at the end
    current().functions = functions
    with keys, recorder, functions:
        state = torch._C._get_torch_function_state()  # type: ignore[attr-defined]
        try:
            yield
        finally:
            torch._C._set_torch_function_state(state)  # type: ignore[attr-defined]
            put_back(recorder, functions)


@contextmanager
def _without_onednn() -> Iterator[None]:
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def _without_dynamo() -> AbstractContextManager[Any]:
    """Run what torch.compile has wrapped as it was written. PyTorch's compiler is not imported for that: it takes a second."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return cast(AbstractContextManager[Any], torch.compiler.set_stance("force_eager"))  # type: ignore[no-untyped-call]
