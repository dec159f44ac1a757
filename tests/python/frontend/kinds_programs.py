# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Random programs whose variables are of several kinds, from trip to trip and path to path: None or a state, texts that name modes."""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from typing import Any

import torch

#: What a variable may be; how it is used if it is surely that; how the kinds are told apart.
_VALUES = [
    "None",
    "x * {f}",
    "(x * {f}, x[{i}])",
    "(x, {i})",
    "x[:2] + {f}",
    '"search"',
    '"track"',
    "{i}",
    "{f}",
    "float(x[{i}])",
    "int(x[{i}])",
]
_LISTS = ["[x, x * {f}]", '{{"h": x + {f}}}', "[x]"]


class Programs:
    """Makes programs ``f(x, n)``, of the numbers of a generator.

    Parameters
    ----------
    seed : int
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = ["a", "b", "c"][: self._random.choice([1, 1, 2, 3])]
        self._on_object = self._random.random() < 0.2
        self._helper = self._random.random() < 0.4
        self._loops = 0
        self.name = f"<kinds {seed}>"
        self.source = self._source()

    def function(self) -> Callable[..., Any]:
        """Return the program."""
        linecache.cache[self.name] = (len(self.source), None, self.source.splitlines(keepends=True), self.name)
        space: dict[str, Any] = {"torch": torch}
        exec(compile(self.source, self.name, "exec"), space)
        found: Callable[..., Any] = space["f"]
        return found

    def inputs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return what the program is called with."""
        vectors = [[0.25, 0.5, -1.0], [2.0, 1.5, 0.75], [-3.0, 4.0, 0.5], [1.0, -2.0, 5.5], [0.0, 0.0, 0.0], [9.0, -1.0, -1.0]]
        return [(torch.tensor(v), torch.tensor(n)) for v in vectors for n in (0, 1, 3, 6)]

    def _source(self) -> str:
        lines = [f"{self._target(name)} = {self._value()}" for name in self._names]
        lines += self._loop(2)
        lines.append(f"return x, {', '.join(map(self._target, self._names))}")
        body = "".join(f"    {line}\n" for line in (["s = S()"] if self._on_object else []) + lines)
        return f"class S:\n    pass\n\n\ndef g(v, x):\n{_HELPER}\n\ndef f(x, n):\n{body}"

    def _target(self, name: str) -> str:
        return f"s.{name}" if self._on_object and name != "c" else name

    def _pick(self, options: list[str]) -> str:
        return self._random.choice(options)

    def _filled(self, text: str) -> str:
        return text.format(f=self._pick(["0.5", "2.0", "-1.0"]), i=self._random.randrange(3))

    def _value(self) -> str:
        lists = _LISTS if self._random.random() < 0.25 else []
        return self._filled(self._pick([*_VALUES, "None", "None", *lists]))

    def _test(self) -> str:
        return self._filled(self._pick(["x[{i}] > {f}", "x.sum() > {i}", "x.max() < 4", "x[{i}] < x[0]", "int(n) > {i}"]))

    def _block(self, depth: int) -> list[str]:
        lines: list[str] = []
        for _ in range(self._random.randint(1, 2)):
            lines += self._statement(depth)
        return lines

    def _statement(self, depth: int) -> list[str]:
        kind = self._random.random()
        if depth and kind < 0.3 and self._loops < 3:
            return self._loop(depth)
        if depth and kind < 0.55:
            lines = [f"if {self._test()}:", *_indented(self._block(depth - 1))]
            return lines + (["else:", *_indented(self._block(depth - 1))] if self._random.random() < 0.5 else [])
        if kind < 0.75:
            return [f"{self._target(self._pick(self._names))} = {self._value()}"]
        if kind < 0.82:
            return [f"{self._target(self._pick(self._names))} = {self._target(self._pick(self._names))}"]
        return self._use(self._target(self._pick(self._names)))

    def _loop(self, depth: int) -> list[str]:
        self._loops += 1
        k = f"k{self._loops}"
        body, more = self._block(depth - 1), self._statement(depth - 1)
        step = self._pick(["x = x + 1", "x = x * 0.5 + 1", "x = x - 0.75"])
        leave = [f"if {self._test()}:", f"    {self._pick(['break', 'continue', 'break'])}"] if self._random.random() < 0.4 else []
        if self._random.random() < 0.5:
            return [f"for {k} in range(int(n)):", *_indented([step, *body, *leave, *more])]
        start = self._pick(["0", "0", "1"])
        return [f"{k} = {start}", f"while {k} < n and x.sum() < 40:", *_indented([f"{k} += 1", step, *body, *leave, *more])]

    def _use(self, v: str) -> list[str]:
        """Return statements that ask what a variable is, and use it."""
        if self._helper and self._random.random() < 0.5:
            return [f"x = g({v}, x)"]
        return self._pick_lines(
            [
                [f"if {v} is None:", "    x = x + 1", f"elif isinstance({v}, torch.Tensor):", f"    x = x + {v}.sum() * 0.125"],
                [f"if {v} is not None:", "    x = x * 0.5"],
                [f'if {v} == "search":', "    x = x - 0.25", f'elif {v} == "track":', f"    {v} = {self._value()}"],
                [f"if isinstance({v}, tuple):", f"    x = x + {v}[0] * 0.25", f"    {v} = (x, {v}[1])"],
                [f"if isinstance({v}, (int, float)):", f"    x = x + {v} * 0.125"],
                [f"x = x + (1 if {v} is None else 0.5)"],
                [
                    f"if isinstance({v}, list):",
                    f"    x = x + sum({v}) * 0.125",
                    f"elif isinstance({v}, dict):",
                    f"    x = x - {v}['h'] * 0.5",
                ],
                [f"if isinstance({v}, (str, tuple)) and len({v}) > 2:", "    x = x + len(" + v + ")"],
                [f"if not isinstance({v}, torch.Tensor) and not {v}:", "    x = x + 0.5"],
            ]
        )

    def _pick_lines(self, options: list[list[str]]) -> list[str]:
        return self._random.choice(options)


_HELPER = """    if v is None:
        return x + 1
    if isinstance(v, tuple):
        return x + v[0] * 0.5
    if isinstance(v, str):
        return x * 0.75 if v == "track" else x
    return x + v if isinstance(v, (int, float)) else x * 0.5
"""


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
