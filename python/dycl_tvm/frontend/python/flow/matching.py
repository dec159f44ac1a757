# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The subject of a ``match`` statement.

Python tests patterns natively: it asks for types and compares by ``is``. So whatever a pattern asks of the subject, and of what lies in
it, has to be known before: values that could not be joined fork, and numbers that are known only at run time have no class to ask for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.source.patterns import Pattern
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars

_MISSING = object()


def match_subject(x: Any, patterns: tuple[Pattern, ...]) -> Any:
    """Return the subject of a ``match`` statement so that its patterns can be tested."""
    x = _decided(x, patterns)
    for pattern in patterns:
        _settle(x, pattern)
    return x


def _decided(x: Any, patterns: Sequence[Pattern]) -> Any:
    """Decide truth values by a fork where a pattern asks for True or False; in a tuple too, of which nobody can tell a copy."""
    patterns = [p for pattern in patterns if pattern is not None for p in (pattern[1] if pattern[0] == "or" else [pattern])]
    if isinstance(x, torch.SymBool) and ("is",) in patterns:
        return bool(x)
    if type(x) is tuple:
        whole = [p[1] for p in patterns if p is not None and p[0] == "sequence" and len(p[1]) == len(x) and not p[2]]
        items = tuple(_decided(item, [p[i] for p in whole]) for i, item in enumerate(x))
        return x if all(new is old for new, old in zip(items, x)) else items
    return x


def _settle(x: Any, pattern: Pattern) -> None:
    if pattern is None:
        return
    if isinstance(x, Poison):
        use(x)
    kind = pattern[0]
    if (kind == "class" and scalars.is_symbolic(x)) or (kind == "is" and isinstance(x, torch.SymBool)):
        raise UnsupportedError(
            "a pattern asks for the class of a number that is known only at run time"
            if kind == "class"
            else "a pattern in a pattern asks for True, False or None where there is a truth value that is known only at run time",
            current().origin(),
            "use value patterns, or if/elif with isinstance",
        )
    for part, asked in _parts(x, pattern):
        _settle(part, asked)


def _parts(x: Any, pattern: Pattern) -> Iterator[tuple[Any, Pattern]]:
    """Yield what the patterns in a pattern are tested on."""
    kind = pattern[0]
    if kind == "or":
        yield from ((x, p) for p in pattern[1])
    elif kind == "sequence" and isinstance(x, Sequence) and not isinstance(x, (str, bytes, bytearray)):
        items = list(x)
        yield from zip(items, pattern[1])
        yield from zip(reversed(items), reversed(pattern[2]))
    elif kind == "mapping" and isinstance(x, Mapping):
        for key, asked in pattern[1]:
            found = [x[key]] if key is not None and key in x else list(x.values())
            yield from ((value, asked) for value in found)
    elif kind == "class":
        names = getattr(type(x), "__match_args__", ())
        by_position = zip(names, pattern[1]) if names else ((None, p) for p in pattern[1])
        for name, asked in (*by_position, *pattern[2]):
            value = x if name is None else getattr(x, name, _MISSING)
            if value is not _MISSING:
                yield value, asked
