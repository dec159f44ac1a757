# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A generic CPU schedule."""

from __future__ import annotations

from typing import Any

import tvm


def schedule(fn: Any, target: tvm.target.Target) -> Any | None:
    """Return a scheduled PrimFunc, or None if the function takes no schedule."""
    return None
