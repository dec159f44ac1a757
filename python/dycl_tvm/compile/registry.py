# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tables of functions by the operators that they are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def registers(table: dict[str, Function]) -> Callable[..., Callable[[Function], Function]]:
    """Return a decorator that puts a function into a table, under the names of ATen overloads (``add.Tensor``), or whole names."""

    def named(*names: str) -> Callable[[Function], Function]:
        def register(fn: Function) -> Function:
            table.update({name if name.count(".") == 2 else f"aten.{name}": fn for name in names})
            return fn

        return register

    return named
