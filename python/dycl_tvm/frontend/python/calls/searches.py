# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``index``, ``count`` and ``remove`` of a list, tuple or deque of numbers known only at run time; methods of dicts and sets by one."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import torch

from dycl_tvm.frontend.python.flow.branches import ifexp
from dycl_tvm.frontend.python.flow.truth import truth
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.identity import are_one
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.tensors import StagedTensor

#: Methods of dicts and sets that look for a key, which may be a number known only at run time, and store none.
_BY_KEY: dict[type, tuple[str, ...]] = {
    **dict.fromkeys([dict, OrderedDict, defaultdict, Counter], ("get", "pop")),
    set: ("discard", "remove"),
}


def searches(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call is one of these methods, and looks for or among numbers known only at run time."""
    owner: Any = getattr(callee, "__self__", None)
    if type(owner) in _BY_KEY:
        return callee.__name__ in _BY_KEY[type(owner)] and 1 <= len(args) <= 2 and not kwargs and scalars.is_symbolic(args[0])
    if type(owner) not in (list, tuple, deque) or callee.__name__ not in ("index", "count", "remove") or not args or kwargs:
        return False
    if callee.__name__ == "index" and scalars.is_symbolic(args[-1]) and len(args) > 1:
        return False
    values = [args[0], *owner]
    return all(map(_is_number, values)) and any(scalars.is_symbolic(v) or isinstance(v, StagedTensor) for v in values)


def search(callee: Any, args: tuple[Any, ...]) -> Any:
    """Call one of these methods."""
    owner: Any = callee.__self__
    if isinstance(owner, (dict, set)):
        return _by_key(owner, callee, *args)
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


def _by_key(owner: Any, callee: Any, key: Any, *default: Any) -> Any:
    """Call a method of a dict or set that looks for a number known only at run time."""
    if callee.__name__ == "get":
        result = default[0] if default else None
        for k in reversed([k for k in owner if isinstance(k, (bool, int, float))]):
            result = ifexp(key == k, lambda k=k: owner[k], lambda r=result: r)
        return result
    found = _known(owner, key)
    if not scalars.is_symbolic(found):
        current().heap.changing(owner)
        return callee(found)
    if default or callee.__name__ == "discard":
        return default[0] if default else None
    raise of_program(KeyError(key) if current().may_be_caught() else KeyError("a key known only at run time is not there"))


def _known(owner: Any, key: Any) -> Any:
    """Return which of the keys there are a number known only at run time is; itself if it is none."""
    return next((k for k in owner if isinstance(k, (bool, int, float)) and key == k), key)  # the test forks: this is not rewritten


def with_known_key(callee: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a method that stores a key, which has to be known: of a number with few values, each is a path."""
    owner: Any = getattr(callee, "__self__", None)
    stores = callee.__name__ == "setdefault" if isinstance(owner, dict) else callee.__name__ == "add" and isinstance(owner, set)
    return (known_key(_known(owner, args[0])), *args[1:]) if stores and args and scalars.is_symbolic(args[0]) else args


def known_key(key: Any) -> Any:
    """Return a key that Python can store: of a whole number known only at run time that has few values, each is a path."""
    if not scalars.is_symbolic(key) or scalars._kind(scalars.operand_of(key)) == "float":
        return key
    return scalars.known(key) if scalars._kind(scalars.operand_of(key)) == "bool" else int(key.node.int_())


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
