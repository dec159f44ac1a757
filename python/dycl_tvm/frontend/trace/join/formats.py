# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The older ways to make a text of values: ``"%d items" % n``, ``"{} items".format(n)``, ``", ".join(names)``.

Where a value is known only at run time, the parts of the text that are known are made one by one, as those of an f-string are. What this
does not take apart is left to Python, which asks the value for its text.
"""

from __future__ import annotations

import operator
import re
import string
from collections.abc import Iterable
from typing import Any

from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.join.texts import Text, is_known, joined, number_like, text_of
from dycl_tvm.frontend.trace.values.blame import attempt

#: The conversions of ``%``: key, flags, width, precision and letter.
_CONVERSION = re.compile(r"%(?:\((\w+)\))?([#0\- +]*\d*(?:\.\d*)?)(.)", re.DOTALL)
#: What a letter of ``%`` is in an f-string, for numbers of these types, which it takes all.
_AS_SPEC = dict.fromkeys("diu", ("d", (int, bool))) | {letter: (letter, (int, bool, float)) for letter in "eEfFgG"}


def percent(text: str, values: Any) -> Any:
    """Return ``text % values``."""
    given = values.values() if type(values) is dict else values if isinstance(values, tuple) else (values,)
    made = None if all(map(is_known, given)) else _converted(text, values)
    return attempt(operator.mod, text, values) if made is None else made


def _converted(text: str, values: Any) -> Any:
    """Return the text, part by part; None where ``values`` are not what it asks for, as far as that is seen here."""
    by_name = type(values) is dict
    left = [] if by_name else [*values] if isinstance(values, tuple) else [values]
    parts, end = [], 0
    for m in _CONVERSION.finditer(text):
        key, layout, letter = m.groups()
        literal, end = text[end : m.start()], m.end()
        parts.append(literal)
        if "%" in literal:
            return None
        if letter == "%":
            parts.append("%")
            continue
        if (key is not None) != by_name or (key not in values if by_name else not left):
            return None
        value = values[key] if by_name else left.pop(0)
        if is_known(value):
            parts.append(attempt(operator.mod, m[0], {key: value} if by_name else (value,)))
        elif letter in "sra" and not layout:
            parts.append(text_of(value, ord(letter)))
        elif letter in _AS_SPEC and type(number_like(value)) in _AS_SPEC[letter][1]:
            parts.append(text_of(value, spec=_AS_SPEC[letter][0] if not layout else f">{letter}"))
        else:
            return None
    return None if left or "%" in text[end:] else joined(*parts, text[end:])


def formatted(text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``text.format(*args, **kwargs)``."""
    made = None if all(map(is_known, (*args, *kwargs.values()))) else _filled(text, args, kwargs)
    return attempt(text.format, *args, **kwargs) if made is None else made


def _filled(text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the text, part by part; None where a field is more than the number or the name of an argument."""
    parts: list[Any] = []
    numbered = 0
    fields = attempt(list, string.Formatter().parse(text))
    if len({not field for _, field, _, _ in fields if not (field or "").isidentifier() and field is not None}) > 1:
        return None  # Python refuses fields with numbers beside fields without
    for literal, field, spec, conversion in fields:
        parts.append(literal)
        if field is None:
            continue
        if not field:
            field, numbered = str(numbered), numbered + 1
        if field.isdecimal() and int(field) < len(args):
            value = args[int(field)]
        elif field in kwargs:
            value = kwargs[field]
        else:
            return None
        if "{" in spec:
            return None
        parts.append(text_of(value, ord(conversion) if conversion else -1, spec))
    return joined(*parts)


def glued(separator: str, texts: Iterable[Any]) -> Any:
    """Return ``separator.join(texts)``."""
    items = list(texts)
    for item in items:
        if isinstance(item, Poison) and type(item) is not Text:
            use(item)  # texts that depend on the path part it
    if not any(type(item) is Text for item in items) or not all(type(item) in (str, Text) for item in items):
        return attempt(separator.join, items)
    return joined(items[0], *(part for item in items[1:] for part in (separator, item)))
