# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Indices known only at run time."""

from __future__ import annotations

from typing import Any

from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.hcfg.nodes import Raise, Value


def check_index(index: Any, size: int) -> Any:
    """Bring an index into ``range(size)``; one outside is an IndexError on that path."""
    bounds = scalars.bounds_of(index)
    if bounds is not None and bounds[0] >= 0 and bounds[1] < size:
        return index
    session = current()
    cond = scalars.operand_of((index >= -size) & (index < size))
    message = f"index out of range: only -{size} to {size - 1} can index the dimension"
    if isinstance(cond, Value):
        if session.may_be_caught():
            if not session.decisions.decide(cond):
                raise of_program(IndexError(message))
        else:
            builder = session.builder
            fine, bad = builder.new_block("inside"), builder.new_block("outside")
            builder.branch(cond, fine, bad)
            builder.block = bad
            builder.terminate(Raise("IndexError", message, session.origin()))
            builder.block = fine
    elif not cond:
        raise of_program(IndexError(message))
    return scalars.select(index < 0, index + size, index)
