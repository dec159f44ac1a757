# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Texts with a number in them that is known only at run time, which name an item: ``self.experts[f"expert_{i}"]``.

No text can be made of the number, but of the names that a table has those can be told that are such texts, and for which numbers. So the
item is chosen by the number, as one of a list is. For any other use the program is run again, and the number asked for its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from typing import Any

import torch

from dycl_tvm.frontend.python.flow.choices import switch
from dycl_tvm.frontend.trace.join.poison import Poison, Why, use
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.raising import surely_leaves
from dycl_tvm.frontend.trace.values.recorder import item
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, as_constant

_INT = "(0|-?[1-9][0-9]*)"


class Numbered(Poison):
    """A text with an int in it that is known only at run time."""

    __slots__ = ("_parts",)

    def __init__(self, before: str, number: Any, after: str, decision: Any) -> None:
        super().__init__(decision, Why("a number in a text is known only at run time", "a text"))
        object.__setattr__(self, "_parts", (before, number, after))

    def __add__(self, other: Any) -> Any:
        return joined(self, other) if type(other) is str else super().__add__(other)  # type: ignore[misc]  # a trap

    def __radd__(self, other: Any) -> Any:
        return joined(other, self) if type(other) is str else super().__radd__(other)  # type: ignore[misc]


def text_of(value: Any) -> Any:
    """Return the text of a value as an f-string has it."""
    number = _int_of(value)
    if number is None or current().decisions.chosen_by_tests():
        return format(value)
    return Numbered("", number, "", current().decisions.choice())


def _int_of(value: Any) -> Any:
    """Return an int known only at run time that a value is, or holds; None if it is anything else."""
    if type(value) is StagedTensor and not value.dim() and value.dtype != torch.bool and as_constant(value) is None:
        if value.dtype.is_floating_point or value.dtype.is_complex:
            return None
        value = item(value)
    if not scalars.is_symbolic(value) or value.node.kind != "int":
        return None
    return None if scalars.counted_by(value) is not None or scalars.length_of(value) is not None else value


def is_run_time_int(value: Any) -> bool:
    """Whether a value is an int known only at run time, of which a text may name an item."""
    return scalars.is_symbolic(value) and _int_of(value) is not None


def joined(*texts: Any) -> Any:
    """Return texts as one."""
    numbered = [i for i, text in enumerate(texts) if type(text) is Numbered]
    if not numbered:
        return "".join(texts)
    for i in numbered[1:]:
        use(texts[i])
    at = numbered[0]
    before, number, after = object.__getattribute__(texts[at], "_parts")
    decision = object.__getattribute__(texts[at], "_decision")
    return Numbered("".join(texts[:at]) + before, number, after + "".join(texts[at + 1 :]), decision)


def matching(names: Iterable[Any], text: Numbered) -> dict[int, str]:
    """Return which of some names a text may be, by the number that it then has."""
    before, number, after = object.__getattribute__(text, "_parts")
    low, high = scalars.bounds_of(number) or (-(2**63), 2**63)
    spelt = re.compile(re.escape(before) + _INT + re.escape(after))
    matches = [m for name in names if type(name) is str and (m := spelt.fullmatch(name))]
    return {int(m[1]): m[0] for m in matches if low <= int(m[1]) <= high}


def named(names: Iterable[Any], text: Numbered, get: Callable[[str], Any], error: type[Exception]) -> Any:
    """Return what ``get`` gives for the one of some names that a text is; on paths on which it is none of them, there is an error."""
    found, number = matching(names, text), object.__getattribute__(text, "_parts")[1]
    missing = error("a name with a number known only at run time is not there")
    if not surely_leaves(missing):
        missing = error(text)
    if not found:
        raise of_program(missing)
    numbers = sorted(found)
    first, last = numbers[0], numbers[-1]
    if last - first == len(numbers) - 1:
        bounds = scalars.bounds_of(number)
        known = bounds is not None and bounds[0] >= first and bounds[1] <= last
        position, fine = number - first, True if known else (number >= first) & (number <= last)
    else:
        position, fine = 0, reduce(or_, [number == n for n in numbers])
        for at, n in enumerate(numbers):
            position = scalars.select(number == n, at, position)
    if fine is not True:
        require(fine, missing)
    return switch([get(found[n]) for n in numbers], position, inside=True)
