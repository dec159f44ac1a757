# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Texts of which a part is known only at run time: ``raise ValueError(f"{n} items")``, ``self.experts[f"expert_{i}"]``.

No such text can be made. It may be put into longer ones, into exceptions, whose messages show what is known of it, and into messages that
are left out; where it is known but for one int, it may name an item (``flow/names.py``). For any other use the value is asked for its text,
which refuses, or parts the paths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from typing import Any

import torch

from dycl_tvm.frontend.trace.join.poison import Poison, Refusing, Why, use
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.blame import attempt
from dycl_tvm.frontend.trace.values.grown import Grown
from dycl_tvm.frontend.trace.values.recorder import item
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, as_constant

_SHOWN = "<known at run time>"
_INT = "(0|-?[1-9][0-9]*)"
_CONVERSIONS: dict[int, Callable[[Any], str]] = {ord("s"): str, ord("r"): repr, ord("a"): ascii}


class Text(Poison):
    """A text of which a part is known only at run time.

    Parameters
    ----------
    parts : tuple
        Texts, and ints that are known only at run time.
    whole : bool
        Whether it is known but for one int.
    decision : object
        What parts the paths on which it differs, or refuses.
    """

    __slots__ = ("_parts", "_whole")

    def __init__(self, parts: tuple[Any, ...], whole: bool, decision: Any) -> None:
        super().__init__(decision, Why("a text has a part that is known only at run time", "a text"))
        object.__setattr__(self, "_parts", parts)
        object.__setattr__(self, "_whole", whole)

    def __add__(self, other: Any) -> Any:
        return joined(self, other) if type(other) in (str, Text) else use(self)

    def __radd__(self, other: Any) -> Any:
        return joined(other, self) if type(other) is str else use(self)

    def __eq__(self, other: Any) -> Any:
        return is_among(self, [other]) if is_whole(self) and type(other) is str else use(self)

    def __ne__(self, other: Any) -> Any:
        return scalars.logical_not(self == other)

    __hash__ = Poison.__hash__  # type: ignore[assignment]


class _Asked(Refusing):
    """A value that is asked for its text where one with it in it is used."""

    def __init__(self, value: Any, conversion: int, spec: str) -> None:
        super().__init__(current().origin(), "return the value, and format it outside")
        self._value, self._conversion, self._spec = value, conversion, spec

    def refuse(self, reason: str, others: object = "") -> None:
        """Ask for the text."""
        _format(self._value, self._conversion, self._spec)
        super().refuse(reason, others)


def text_of(value: Any, conversion: int = -1, spec: Any = "") -> Any:
    """Return the text of a value as an f-string has it, ``{value!conversion:spec}``: with the code of the conversion's letter, or -1."""
    if type(spec) is Text:
        use(spec)
    if not spec and conversion in (-1, ord("s")) and type(value) in (str, Text):
        return value
    spelt = spec in ("", "d") if conversion == -1 else not spec and not isinstance(value, torch.Tensor)  # str() of a tensor is no number
    number = int_of(value) if spelt else None
    if number is not None and not current().decisions.chosen_by_tests():
        return Text((number,), True, current().decisions.choice())
    shown_as = value if number is not None else _shown_as(value)
    if shown_as is value or not _takes(value, conversion, spec):
        return _format(value, conversion, spec)
    if not _is_truth(value):
        return _unknown(shown_as, _Asked(value, conversion, spec))
    chosen = current().decisions.chosen_by_tests()
    return _format(value, conversion, spec) if chosen else _unknown(shown_as, current().decisions.choice())


def _unknown(shown_as: Any, decision: Any) -> Text:
    return Text((repr(shown_as),), False, decision)


def _is_truth(value: Any) -> bool:
    return scalars.is_symbolic(value) and value.node.kind == "bool" and not scalars.mixed_of(value)


def _format(value: Any, conversion: int, spec: str) -> Any:
    """Make a text as an f-string does, with methods of the program's objects; that of a truth parts the paths, as a test of it does."""
    if _is_truth(value):
        value = bool(value)
    return attempt(format, value if conversion == -1 else attempt(_CONVERSIONS[conversion], value), spec)


def _takes(value: Any, conversion: int, spec: str) -> bool:
    """Whether a value can be formatted in a way whatever it is at run time."""
    like = "" if conversion != -1 or type(value) is Text else number_like(value)
    if not spec or like is None or spec.endswith("c"):  # there is a character for some numbers only
        return not spec
    try:
        format(like, spec)
    except ValueError:
        return False
    return True


def number_like(value: Any) -> int | float | None:
    """Return a number of the type that a value has, or that a tensor holds; None if it is nothing of one type."""
    if isinstance(value, StagedTensor) and not value.dim() and not value.dtype.is_complex:
        return 1.0 if value.dtype.is_floating_point else True if value.dtype == torch.bool else 1
    if not scalars.is_symbolic(value) or scalars.mixed_of(value):
        return None
    return {"int": 1, "float": 1.0, "bool": True}[value.node.kind]


def is_known(value: Any) -> bool:
    """Whether all is known that a text of a value would show."""
    return int_of(value) is None and _shown_as(value) is value


def int_of(value: Any) -> Any:
    """Return an int known only at run time that a value is, or holds; None if it is anything else."""
    if type(value) is StagedTensor and not value.dim() and value.dtype != torch.bool and as_constant(value) is None:
        if value.dtype.is_floating_point or value.dtype.is_complex:
            return None
        value = item(value)
    if not scalars.is_symbolic(value) or value.node.kind != "int":
        return None
    return None if scalars.counted_by(value) is not None or scalars.length_of(value) is not None else value


class _Unknown:
    """Stands for a value in the text of a container."""

    def __init__(self, text: str = _SHOWN) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _shown_as(x: Any) -> Any:
    """Return what has the text that a message shows of a value: the value itself, if all of it is known."""
    if type(x) in (tuple, list):
        items = [_shown_as(item) for item in x]
        return x if all(a is b for a, b in zip(items, x)) else type(x)(items)
    if type(x) is torch.Size:
        items = [_shown_as(item) for item in x]
        return x if all(a is b for a, b in zip(items, x)) else _Unknown(f"torch.Size({items})")
    if isinstance(x, StagedTensor):
        return _Unknown() if isinstance(x, Grown) or as_constant(x) is None else x
    return _Unknown() if type(x) is Text or (scalars.is_symbolic(x) and not isinstance(scalars.length_of(x), int)) else x


def joined(*texts: Any) -> Any:
    """Return texts as one."""
    partial = [text for text in texts if type(text) is Text]
    if not partial:
        return "".join(texts)
    parts = tuple([part for text in texts for part in (parts_of(text) if type(text) is Text else (text,))])
    return Text(parts, len(partial) == 1 and is_whole(partial[0]), object.__getattribute__(partial[0], "_decision"))


def parts_of(text: Text) -> tuple[Any, ...]:
    """Return the parts of a text."""
    parts: tuple[Any, ...] = object.__getattribute__(text, "_parts")
    return parts


def is_whole(text: Text) -> bool:
    """Whether a text is known but for one int."""
    whole: bool = object.__getattribute__(text, "_whole")
    return whole


def number_in(text: Text) -> Any:
    """Return the int that is all that is not known of a text."""
    return next(part for part in parts_of(text) if type(part) is not str)


def matching(names: Iterable[Any], text: Text) -> dict[int, str]:
    """Return which of some names a text may be, by the number that it then has; it is known but for one."""
    low, high = scalars.bounds_of(number_in(text)) or (-(2**63), 2**63)
    spelt = re.compile("".join([re.escape(part) if type(part) is str else _INT for part in parts_of(text)]))
    matches = [m for name in names if type(name) is str and (m := spelt.fullmatch(name))]
    return {int(m[1]): m[0] for m in matches if low <= int(m[1]) <= high}


def is_among(text: Text, names: Iterable[Any]) -> Any:
    """Return whether a text is one of some names; it is known but for one int."""
    number = number_in(text)
    return reduce(or_, [number == n for n in matching(names, text)], False)


def shown(x: Any) -> Any:
    """Return a text, or a number, as the message of an error shows it; anything else as it is."""
    if scalars.is_symbolic(x) and x.node.decision is None and not isinstance(scalars.length_of(x), int):
        return _Unknown()
    return "".join([part if type(part) is str else _SHOWN for part in parts_of(x)]) if type(x) is Text else x


def message_of(error: BaseException) -> str:
    """Return the message of an exception that nobody reads before the network ends."""
    error.args = tuple(map(shown, error.args))
    return str(shown(type(error).__str__(error)))
