# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Clocks: an operation of the graph reads them when the network runs."""

from __future__ import annotations

from typing import Any

from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.hcfg.clocks import CLOCKS, type_of_clock


def read(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``time.perf_counter()`` and its kind."""
    name = callee.__name__
    return scalars.wrap(current().builder.host_op("clock", (), type_of_clock(name), name))


TABLE: dict[Any, Any] = dict.fromkeys(CLOCKS.values(), read)
