# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How important the runs of a module are beside those of others."""

from __future__ import annotations

from typing import Literal, get_args

from dycl_tvm.errors import UsageError

Priority = Literal["low", "normal", "high"]


def priority_number(priority: Priority) -> int:
    """Return the ``DyclPriority`` of a name.

    Raises
    ------
    UsageError
        If there is no such priority.
    """
    names = get_args(Priority)
    if priority not in names:
        raise UsageError(f"a priority is {', '.join(map(repr, names[:-1]))} or {names[-1]!r}, not {priority!r}")
    return names.index(priority) - 1
