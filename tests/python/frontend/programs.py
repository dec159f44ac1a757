# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A generator of random forwards: control flow of every kind, nested, with state, over a few tensors and numbers.

Every program ends in eager: its loops are bounded. Numbers stay small, so that tanh and comparisons are not all saturated.
"""

from __future__ import annotations

from collections.abc import Callable

#: choose(n) returns an int in range(n).
Choose = Callable[[int], int]

HEADER = """\
import torch
from torch import nn


def mix(a, b, flag):
    if flag > 0:
        return torch.tanh(a + b)
    if a.mean() > b.mean():
        c = a - b
    else:
        c = b * 0.5
        return c
    return c + 0.1


def pick(a, limit=0.2):
    k = 0
    while a.abs().mean() > limit and k < 4:
        a = a * 0.6
        k += 1
    return a, k


def produce(a, *rest, scale=0.5):
    for i, r in enumerate((a, *rest)):
        if r.sum() > 0:
            yield r * scale
        elif i == 0:
            yield a


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.last = None

    def forward(self, a, gate=None):
        self.last = a
        if gate is not None and gate > 0.1:
            a = self.lin(a)
            self.last = a
        return torch.tanh(a)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lins = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.cell = Cell()
        self.table = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Tanh()})
        self.register_buffer("seen", torch.zeros(1, 4))
        self.count = 0
        self.hidden = torch.zeros(1, 4)

    def reset(self):
        self.count = 0
        self.hidden = torch.zeros(1, 4)
        self.seen.zero_()

    @property
    def level(self):
        return 1 if self.hidden.sum() > 0.1 else self.count

    def forward(self, x, y):
        self.reset()
        t0, t1, t2 = x, y, x * 0.5
        s0, n0, n1 = 0.0, 0, 1
        l0 = [x]
        d0 = {"a": y}
        u = None
"""


class Generator:
    """Writes one program; all its decisions come from ``choose``."""

    def __init__(self, choose: Choose, budget: int = 22) -> None:
        self.choose, self.budget = choose, budget
        self.lines: list[str] = []
        self.loops: list[str] = []
        self.fresh = 0

    def program(self) -> str:
        """Return the source of a module with a class ``Net``."""
        self.block(2, self.choose(4) + 4)
        self.line(2, "return t0, t1 + t2, n0, n1, s0, l0, d0, self.count, self.hidden, u")
        return HEADER + "\n".join(self.lines) + "\n"

    def line(self, depth: int, text: str) -> None:
        """Append a line."""
        self.lines.append("    " * depth + text)

    def one(self, *options: str) -> str:
        """Choose one of some texts."""
        return options[self.choose(len(options))]

    # -- expressions ------------------------------------------------------------------------------------------------------
    def tensor(self, depth: int = 0) -> str:
        """Return a tensor expression of shape [1, 4]."""
        name = self.one("t0", "t1", "t2", "x", "y", "self.hidden", "l0[-1]", "d0['a']", "l0[0]")
        if depth > 1:
            return name
        inner = self.tensor(depth + 1)
        return self.one(
            name,
            f"torch.tanh({inner} + {name})",
            f"({inner} - {name} * 0.5)",
            f"({inner} * s0)",
            f"self.lins[{self.choose(3)}]({inner})",
            f"(torch.relu({inner}) + n0 * 0.1)",
            f"self.cell({inner}, {self.one('None', name + '.sum()', '0.5')})",
            f"mix({inner}, {name}, {self.number()})",
            f"pick({inner})[0]",
            f"({inner} if {self.condition(1)} else {name})",
            f"torch.cat([({inner})[:, 2:], {name}[:, :2]], 1)",
            f"{inner}.flip(1)",
            f"[{inner}, {name}, t0][int(torch.argmax({self.one('t0', 't1')}[0, :3]))]",
            f"self.lins[int(torch.argmin({self.one('t1', 't2')}[0, 1:]))]({inner})",
            f"self.table[{self.one(repr('a'), repr('b'))}]({inner})",
            f"sum(v for v in produce({inner}, {name}, scale={self.one('0.3', '0.7')}))" if depth == 0 and self.choose(6) == 0 else name,
            f"sum([v * {self.one('0.5', 's0')} for v in l0[:2] if v.mean() > -0.3], {name})" if self.choose(6) == 0 else name,
            f"{inner} + self.seen",
        )

    def number(self) -> str:
        """Return a number expression."""
        return self.one(
            "n0",
            "n1",
            "s0",
            f"{self.one('t0', 't1', 't2')}.mean().item()",
            f"float({self.one('t0', 't1')}[0, {self.choose(4)}])",
            "0.3",
            "-0.2",
            "(n0 - n1)",
            "len(l0)",
            f"int({self.one('t0', 't1')}[0, 0] * 3)",
            "self.count",
            "max(s0, 0.1)",
            "abs(n1)",
            "min(n0, n1, 2)",
            "self.level",
            "divmod(n0, 3)[1]",
            "sum(1 for v in l0[:1] if v.sum() > 0)" if self.choose(6) == 0 else "n1",
            f"(lambda v, k=n1: v + k if v > 0 else k)({self.one('n0', 's0', 't0[0, 1].item()')})",
        )

    def condition(self, depth: int = 0) -> str:
        """Return a condition."""
        threshold = self.one("0", "0.1", "-0.2", "0.5")
        simple = self.one(
            f"{self.one('t0', 't1', 't2', 'self.hidden')}.mean() > {threshold}",
            f"{self.one('t0', 't1', 't2')}[0, {self.choose(4)}] < {threshold}",
            f"{self.number()} > {threshold}",
            f"{self.number()} <= {self.number()}",
            "n0 % 2 == 0",
            "u is None",
            f"-0.5 < {self.number()} < 0.5",
            f"torch.any({self.one('t0', 't1')} > 0.8)",
            "n1 in (1, 3)",
            "len(l0) > 2",
            f"any(v.sum() > {threshold} for v in l0[:2])" if self.choose(6) == 0 else "n0 > 1",
            f"all([t0.mean() > -1, {self.one('t1', 't2')}.max() > {threshold}])",
            f"(q := {self.one('t0', 't1')}.sum()) > {threshold} and q < 2",
            f"bool({self.one('t0', 't2')}.argmax() == {self.choose(4)})",
        )
        if depth > 1:
            return simple
        other = self.condition(depth + 1) if self.choose(3) == 0 else simple
        return self.one(simple, f"not {simple}", f"({simple} and {other})", f"({simple} or {other})")

    # -- statements ---------------------------------------------------------------------------------------------------------
    def block(self, depth: int, count: int) -> None:
        """Write some statements."""
        for _ in range(count):
            if self.budget <= 0:
                break
            self.statement(depth)
        self.line(depth, self.one("t2 = t2 * 0.9", "n1 += 1", "pass"))

    def statement(self, depth: int) -> None:
        """Write one statement."""
        self.budget -= 1
        compound = depth < 5 and self.choose(10) < 6
        if not compound:
            self.simple(depth)
            return
        kind = self.choose(12)
        if kind <= 3:
            self.line(depth, f"if {self.condition()}:")
            self.block(depth + 1, 1 + self.choose(3))
            if self.choose(3) == 0:
                self.line(depth, f"elif {self.condition()}:")
                self.block(depth + 1, 1 + self.choose(2))
            if self.choose(2):
                self.line(depth, "else:")
                self.block(depth + 1, 1 + self.choose(2))
        elif kind == 4:
            self.loop(depth, f"for i{depth} in range({1 + self.choose(3)}):")
        elif kind == 5:
            self.loop(depth, f"for i{depth}, w{depth} in enumerate([t0, y, t1][:{1 + self.choose(3)}]):")
        elif kind == 6:
            self.fresh += 1
            k = f"k{self.fresh}"
            self.line(depth, f"{k} = 0")
            self.loop(depth, f"while {k} < {2 + self.choose(3)} and {self.condition()}:", f"{k} += 1")
        elif kind == 7:
            self.fresh += 1
            k = f"k{self.fresh}"
            self.line(depth, f"{k} = 0")
            self.line(depth, "while True:")
            self.line(depth + 1, f"{k} += 1")
            self.line(depth + 1, f"if {k} > {1 + self.choose(4)} or {self.condition()}:")
            self.line(depth + 2, "break")
            self.loops.append("while")
            self.block(depth + 1, 1 + self.choose(2))
            self.loops.pop()
        elif kind == 9:
            self.line(depth, f"match {self.one('n0 % 3', 'n1', 'int(t0[0, 0])', 'len(l0)')}:")
            for pattern in ("0", self.one("1 | 2", "1 if t1.sum() > 0", "-1"), "_"):
                self.line(depth + 1, f"case {pattern}:")
                self.block(depth + 2, 1)
        elif kind == 10:
            self.loop(depth, f"for r{depth} in range({self.one('int(t0.abs().sum())', 'n0 % 3', 'min(abs(n1), 3)')} % 4):")
        elif kind == 11:
            self.line(depth, "try:")
            self.block(depth + 1, 1)
            self.line(depth + 1, f"if {self.condition()}: raise ValueError('no')")
            self.line(depth, "except ValueError:")
            self.block(depth + 1, 1)
        else:
            self.line(depth, "try:")
            self.block(depth + 1, 1 + self.choose(2))
            self.line(depth, "finally:")
            self.line(depth + 1, self.one("self.count += 1", "t2 = t2 + 0.1", "n0 = n0 + 1"))

    def loop(self, depth: int, head: str, first: str = "") -> None:
        """Write a loop with a body, and perhaps an else."""
        self.line(depth, head)
        if first:
            self.line(depth + 1, first)
        self.loops.append(head)
        self.block(depth + 1, 1 + self.choose(3))
        self.loops.pop()
        if self.choose(5) == 0:
            self.line(depth, "else:")
            self.block(depth + 1, 1)

    def simple(self, depth: int) -> None:
        """Write a simple statement."""
        t = self.one("t0", "t1", "t2")
        options = [
            f"{t} = {self.tensor()}",
            f"{t} = {self.tensor()}",
            f"{t} = {self.tensor()}",
            f"s0 = {self.number()} * 0.5",
            f"n0 += {self.one('1', '2', 'n1', 'int(' + t + '.sum())')}",
            "n1 = (n1 * 3 + n0) % 5",
            f"l0[-1] = {self.tensor()}",
            f"d0['a'] = {self.tensor()}",
            f"self.hidden = {self.tensor()}",
            "self.count += 1",
            f"u = {self.one('None', 't0', 't1')}",
            "t0, t1 = t1, t0",
            f"{t} = {t} + 0; {t} += {self.tensor(1)}",
            f"{t} = {t}.clone(); {t}[:, {self.choose(4)}] = {self.number()}",
            f"{t} = {t}.clone(); {t}.view(-1)[1:3].mul_(0.5)",
            f"n0 = 3 if {self.condition()} else n0",
            f"v{self.choose(2)} = {self.tensor()}",
            f"self.seen.add_({self.tensor(1)} * 0.1)",
            f"self.seen[:, {self.choose(4)}] = {self.number()}",
            f"t0, (t1, *_) = {self.tensor(1)}, [t1, t2]",
            f"w = [{self.tensor(1)} for _ in range(2)]; w[{self.choose(2)}] = {t}; {t} = w[0] + w[-1]",
        ]
        if not any(h.startswith(("while", "for r")) for h in self.loops):
            options += [f"l0.append({self.tensor()})", f"l0 = [{self.tensor()}, {t}]"]
        if self.loops:
            options += [f"if {self.condition()}: break", f"if {self.condition()}: continue"]
        options += [f"if {self.condition()}: return {self.one('t0', '(t1, n0)', 'n1, None', 'l0', 's0')}"]
        for part in options[self.choose(len(options))].split("; "):
            self.line(depth, part)
