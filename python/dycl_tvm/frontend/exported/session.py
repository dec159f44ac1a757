# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The staging of an exported program: no forks but for sizes that have a path of their own, and origins that come from its nodes."""

from __future__ import annotations

import linecache
import re
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.control_flow import Dead
from dycl_tvm.frontend.trace.decisions import Decisions
from dycl_tvm.frontend.trace.limits import Limits
from dycl_tvm.frontend.trace.session import Session
from dycl_tvm.frontend.trace.values.constants import Constants
from dycl_tvm.hcfg.nodes import Operand, Origin, Raise, Value

_FRAME = re.compile(r'File "(?P<file>[^"<]+)", line (?P<line>\d+), in (?P<function>[^\n]*)')


class _NoDecisions(Decisions):
    """Control flow is that of the program's operators, so no truth test may ever be decided while it runs."""

    #: Whether it is decided of the inputs' sizes which path of its own they have, before the program's graph is run.
    of_sizes = False

    def decide(self, cond: Operand, origin: Origin | None = None) -> bool:
        """Refuse to decide: an operator that looks at a value while it is recorded has no place in an exported program."""
        if self.of_sizes:
            return super().decide(cond, origin)
        if not isinstance(cond, Value):
            return bool(cond)
        raise UnsupportedError(
            "an operator of the program tests a value that is known only at run time", self._origin(), "branch with torch.cond"
        )


class ExportedSession(Session):
    """Records an exported program."""

    def __init__(self, names: dict[int, str], limits: Limits | None = None) -> None:
        super().__init__(self._origin_of_node, limits, decisions=_NoDecisions)
        self.decisions: _NoDecisions
        self.get(Constants).names = names
        self.node: torch.fx.Node | None = None
        #: What assertions tell of numbers where they hold, with what was known before, in their order.
        self._told: list[tuple[Any, Any]] = []

    def _origin_of_node(self) -> Origin | None:
        """Return the place in the user's code that the node at hand comes from."""
        node = self.node
        trace = node.meta.get("stack_trace") if node is not None else None
        frames = list(_FRAME.finditer(trace)) if trace else []
        if not frames:
            return None
        last = frames[-1]
        file, line = last["file"], int(last["line"])
        return Origin(file, line, last["function"].split(",")[0], linecache.getline(file, line).strip())

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

    def holds(self, test: Any) -> None:
        """Go on where a test of numbers holds: what it tells of them is known until :meth:`forget`."""
        self._told.append((test, test.begin(True)))

    @property
    def told(self) -> int:
        """How many assertions have told something that still holds."""
        return len(self._told)

    def forget(self, told: int) -> None:
        """Go on where only the first ``told`` assertions are known to hold."""
        while len(self._told) > told:
            test, before = self._told.pop()
            test.end(before)

    def refuse(self, reason: str, advice: str = "") -> Any:
        """Raise an error at the node at hand."""
        raise UnsupportedError(reason, self.origin(), advice)
