# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs in which every jump leaves every structure from every position in it, one structure in another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

#: What may stand around a jump; ``@`` is where it stands, or the next structure.
STRUCTURES = {
    "plain": "@",
    "if": "if x[1] > 0:\n    @\nr = r + 3",
    "else": "if x[1] > 0:\n    r = r + 3\nelse:\n    @\nr = r * 3",
    "for": "for j in range(2):\n    r = r + 3 + j\n    @\n    r = r * 3",
    "for else": "for j in range(2):\n    r = r + 3\n    if x[1] > j:\n        break\nelse:\n    r = r * 5\n    @\n    r = r * 3",
    "while": "while r.sum() < 20:\n    r = r + 7\n    @\n    r = r + 1",
    "while else": "while r.sum() < 20:\n    r = r + 7\n    if x[1] > 0:\n        break\nelse:\n    r = r * 5\n    @\n    r = r * 3",
    "try, finally": "try:\n    r = r + 3\n    @\nfinally:\n    r = r * 3\n    note.append(1)",
    "finally": "try:\n    r = r + 3\n    if x[1] > 0:\n        raise ValueError('v')\nfinally:\n    r = r * 3\n    @",
    "try, except": "try:\n    r = r + 3\n    if x[1] > 0:\n        raise ValueError('v')\n    @\nexcept ValueError:\n    r = r * 3",
    "except": "try:\n    r = r + 3\n    if x[1] > 0:\n        raise ValueError('v')\nexcept ValueError:\n    r = r * 3\n    @",
    "try else": "try:\n    if x[1] > 0:\n        raise ValueError('v')\nexcept ValueError:\n    r = r * 3\nelse:\n    @\n    r = r + 3",
    "with": "with noted(note):\n    r = r + 3\n    @\n    r = r * 3",
    "match": "match len(note):\n    case 0:\n        @\n    case _:\n        r = r * 3",
}  # fmt: skip
JUMPS = ("return r", "return r, 7", "break", "continue", "raise KeyError('k')")
CONDITIONS = ("if x[0] > 0:\n    @", "@")
LOOPS = {
    "for": "for i in range(2):\n    r = r + 1\n    @\n    r = r * 2\nelse:\n    r = r + 100",
    "while": "while r.sum() < 50:\n    r = r + 11\n    @\n    r = r + 2\nelse:\n    r = r + 100",
    "range": "for i in range(int(x[2])):\n    r = r + 1\n    @\n    r = r * 2\nelse:\n    r = r + 100",
    "in a function": "def inner(r):\n    for i in range(2):\n        r = r + 1\n        @\n        r = r * 2\n    return r\nr = inner(r)",
}
HEADER = """import torch


class noted:
    def __init__(self, note):
        self.note = note

    def __enter__(self):
        self.note.append(2)

    def __exit__(self, *error):
        self.note.append(3)

"""


def put(inner: str, outer: str) -> str:
    """Put lines where ``@`` stands, as far to the right."""
    lines = []
    for line in outer.splitlines():
        if line.strip() == "@":
            indent = line[: len(line) - 1]
            lines += [indent + part for part in inner.splitlines()]
        else:
            lines.append(line)
    return "\n".join(lines)


def programs() -> Iterator[tuple[str, str]]:
    """Yield the name and the body of every program."""
    for (loop, around), (first, s1), (second, s2) in itertools.product(LOOPS.items(), STRUCTURES.items(), STRUCTURES.items()):
        for jump, condition in itertools.product(JUMPS, CONDITIONS):
            if first == "plain" and second != "plain":
                continue  # the same as the other way round
            body = put(put(put(put(jump, condition), s2), s1), around)
            body = f"note = []\nr = x[:1] * 0\n{body}\nreturn r + 0.5, len(note)"
            yield f"{loop}: {first}: {second}: {condition.splitlines()[0].strip('@') or 'always'} {jump}", body


def source(chosen: list[tuple[str, str]]) -> str:
    """Return a module with a function for each program, ``program_0`` the first."""
    functions = []
    for number, (name, body) in enumerate(chosen):
        lines = "\n".join("    " + line for line in body.splitlines())
        functions.append(f"# {name}\ndef program_{number}(x):\n{lines}\n")
    return HEADER + "\n\n".join(functions)
