# Licensed under the Apache License, Version 2.0; see LICENSE.
"""One run of a program that is recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch

from dycl_tvm.frontend.trace.record import Event
from dycl_tvm.frontend.trace.session import Session, set_current
from dycl_tvm.frontend.trace.values.recorder import Recorder
from dycl_tvm.frontend.trace.values.torch_calls import FunctionRecorder


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
            with _without_onednn(), _without_dynamo(), Recorder(), FunctionRecorder():
                yield
        finally:
            set_current(None)
            journal.rollback(mark)
            journal.close_to(depth)


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
