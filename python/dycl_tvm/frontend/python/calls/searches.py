# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``index``, ``count`` and ``remove`` of a list, tuple or deque of numbers known only at run time."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from dycl_tvm.frontend.python.flow.branches import ifexp
from dycl_tvm.frontend.python.flow.truth import truth
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.identity import are_one
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.tensors import StagedTensor


def searches(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call is one of these methods, and looks for or among numbers known only at run time."""
    owner: Any = getattr(callee, "__self__", None)
    if type(owner) not in (list, tuple, deque) or callee.__name__ not in ("index", "count", "remove") or not args or kwargs:
        return False
    if callee.__name__ == "index" and scalars.is_symbolic(args[-1]) and len(args) > 1:
        return False
    values = [args[0], *owner]
    return all(map(_is_number, values)) and any(scalars.is_symbolic(v) or isinstance(v, StagedTensor) for v in values)


def search(callee: Any, args: tuple[Any, ...]) -> Any:
    """Call one of these methods."""
    owner: Any = callee.__self__
    x, items = args[0], list(owner)
    if callee.__name__ == "count":
        counts = [scalars.select(scalars.wrap(t), 1, 0) for t in (truth(equal_item(x, item)) for item in items)]
        return sum(counts)
    start, stop, _ = slice(*(args[1:] + (None, None))[:2]).indices(len(items))
    position, found = _first(x, items, start, stop)
    kind = type(owner).__name__
    text = (
        f"the value is not in {kind}" if callee.__name__ == "index" and kind != "tuple" else f"{kind}.{callee.__name__}(x): x not in {kind}"
    )
    require(found, ValueError(text))
    if callee.__name__ == "index":
        return position
    rest = [ifexp(position > i, lambda i=i: items[i], lambda i=i: items[i + 1]) for i in range(len(items) - 1)]
    current().heap.changing(owner)
    owner.clear()
    owner.extend(rest)
    return None


def equal_item(x: Any, member: Any) -> Any:
    """Compare as a container does with its items: by identity, then by ``==``."""
    numbers = scalars.is_symbolic(x) or scalars.is_symbolic(member)
    return True if x is member or (not numbers and are_one(member, x)) else member == x


def _first(x: Any, items: list[Any], start: int, stop: int) -> tuple[Any, Any]:
    """Return where a number is among others first, and whether it is there at all."""
    position: Any = 0
    found: Any = False
    for i in reversed(range(start, stop)):
        here = scalars.wrap(truth(equal_item(x, items[i])))
        position, found = scalars.select(here, i, position), scalars.select(here, True, found)
    return position, found


def _is_number(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return x.numel() == 1
    return scalars.is_symbolic(x) or type(x) in (bool, int, float)
