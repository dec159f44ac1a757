# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``print`` in the forward: refused, or kept as a host operation with a template of its text."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.hcfg.nodes import Operand
from dycl_tvm.hcfg.types import INT

#: Their text is known when the forward is staged.
_PLAIN = (str, bytes, bool, int, float, complex, type(None), range, slice, torch.Size, torch.dtype, torch.device)
_BRACKETS: dict[Any, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), dict: ("{{", "}}")}


def substitute_print(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record a ``print``.

    Raises
    ------
    UnsupportedError
        If staging does not keep prints, or the text cannot be made of host scalars.
    """
    session = current()
    if not program().keep_print:
        raise UnsupportedError(
            "print() in the forward: a compiled network does no output",
            session.origin(),
            "build(..., keep_print=True) keeps it, as a call of the host; or remove it, or return the value",
        )
    if kwargs.get("file") is not None:
        raise UnsupportedError("print() to a file", session.origin(), "leave out file=: kept prints go to the standard output")
    unknown = kwargs.keys() - {"sep", "end", "file", "flush"}
    if unknown:
        raise TypeError(f"print() got an unexpected keyword argument {min(unknown)!r}")
    operands: list[Operand] = []
    parts = [_template(x, operands, nested=False) for x in args]
    text = _separator(kwargs, "sep", " ").join(parts) + _separator(kwargs, "end", "\n")
    session.builder.host_op("print", tuple(operands), INT, text)


def _separator(kwargs: dict[str, Any], name: str, default: str) -> str:
    given = kwargs.get(name)
    if isinstance(given, Poison):
        use(given)
    if given is not None and not isinstance(given, str):
        raise TypeError(f"{name} must be None or a string, not {type(given).__name__}")
    return _escaped(default if given is None else given)


def _template(x: Any, operands: list[Operand], nested: bool) -> str:
    """Return the template of one value; inside of a container strings stand in quotes."""
    if isinstance(x, Poison):
        use(x)
    if scalars.is_symbolic(x):
        operands.append(scalars.operand_of(x))
        return "{}"
    if isinstance(x, torch.Tensor):
        raise UnsupportedError("print() of a tensor", current().origin(), "print its number: print(t.item())")
    if type(x) in _BRACKETS:
        left, right = _BRACKETS[type(x)]
        if isinstance(x, dict):
            parts = [f"{_template(k, operands, True)}: {_template(v, operands, True)}" for k, v in x.items()]
        else:
            parts = [_template(v, operands, True) for v in x]
        comma = "," if isinstance(x, tuple) and len(x) == 1 else ""
        return f"{left}{', '.join(parts)}{comma}{right}"
    if type(x) not in _PLAIN:
        raise UnsupportedError(f"print() of a {type(x).__name__}", current().origin(), "print its numbers and strings one by one")
    return _escaped(repr(x) if nested else str(x))


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
