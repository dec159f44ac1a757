# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The staging of an exported program: one run, no forks, and origins that come from the graph's nodes."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.explore import Stage
from dycl_tvm.frontend.trace.record import Builder
from dycl_tvm.frontend.trace.session import Dead, set_current
from dycl_tvm.frontend.trace.values.recorder import Recorder
from dycl_tvm.frontend.trace.values.torch_calls import FunctionRecorder
from dycl_tvm.hcfg.nodes import Operand, Origin, Raise, Value

_FRAME = re.compile(r'File "(?P<file>[^"<]+)", line (?P<line>\d+), in (?P<function>[^\n]*)')


class ExportedStage(Stage):
    """Records an exported program. Control flow is that of its operators, so no truth test may ever be decided while it runs."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__(names, None)  # type: ignore[arg-type]  # the state of a model in Python plays no part
        self.builder = Builder(self.origin)
        self.node: torch.fx.Node | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record what is run inside."""
        self.builder.begin_run([])
        mark, depth = self.journal.open(), self.journal.depth() - 1
        set_current(self)
        try:
            # without oneDNN a recurrent layer is recorded as the operations that it consists of
            with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False), Recorder(), FunctionRecorder():  # type: ignore[attr-defined]
                yield
        finally:
            set_current(None)
            self.journal.rollback(mark)
            self.journal.close_to(depth)

    def origin(self) -> Origin | None:
        """Return the place in the user's code that the node at hand comes from."""
        node = self.node
        trace = node.meta.get("stack_trace") if node is not None else None
        frames = list(_FRAME.finditer(trace)) if trace else []
        if not frames:
            return None
        last = frames[-1]
        file, line = last["file"], int(last["line"])
        return Origin(file, line, last["function"].split(",")[0], linecache.getline(file, line).strip())

    def decide(self, cond: Operand) -> bool:
        """Refuse to decide: an operator that looks at a value while it is recorded has no place in an exported program."""
        if not isinstance(cond, Value):
            return bool(cond)
        raise UnsupportedError(
            "an operator of the program tests a value that is known only at run time", self.origin(), "branch with torch.cond"
        )

    def check(self, cond: Operand, kind: str, message: str) -> None:
        """Record an assertion: where ``cond`` does not hold, the path ends in an error."""
        builder = self.builder
        if isinstance(cond, Value):
            fine, bad = builder.new_block("holds"), builder.new_block("fails")
            builder.branch(cond, fine, bad)
            builder.block = bad
            builder.terminate(Raise(kind, message, self.origin()))
            builder.block = fine
        elif not cond:
            self.builder.terminate(Raise(kind, message, self.origin()))
            raise Dead

    def refuse(self, reason: str, advice: str = "") -> Any:
        """Raise an error at the node at hand."""
        raise UnsupportedError(reason, self.origin(), advice)
