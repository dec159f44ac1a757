# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators that users have added: the graph keeps them as one operation each, whatever they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: By name (``mylib.wave.default``): the function in PyTorch that an operator stands for, or None.
ADDED: dict[str, Callable[..., Any] | None] = {}
