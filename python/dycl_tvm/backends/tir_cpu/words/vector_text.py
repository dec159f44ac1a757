# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Straight-line LLVM IR of float32 vectors, written with Python's operators."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

_TYPES = {"f": "float", "i": "i32", "b": "i1"}
_NAMES = {("add", "f"): "fadd", ("sub", "f"): "fsub", ("mul", "f"): "fmul", ("div", "f"): "fdiv"}


class Value:
    """An SSA value of a function: floats, int32 or bools, one a lane."""

    def __init__(self, function: Function, kind: str, name: str) -> None:
        self.function, self.kind, self.name = function, kind, name

    def _other(self, other: Value | float) -> Value:
        return other if isinstance(other, Value) else self.function.constant(self.kind, other)

    def _binary(self, operation: str, other: Value | float, kind: str = "") -> Value:
        other = self._other(other)
        name = _NAMES.get((operation, self.kind), operation)
        return self.function.line(kind or self.kind, f"{name} {self.function.type(self.kind)} {self.name}, {other.name}")

    def __add__(self, other: Value | float) -> Value:
        return self._binary("add", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._binary("sub", other)

    def __mul__(self, other: Value | float) -> Value:
        return self._binary("mul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self._binary("div", other)

    def __rshift__(self, bits: int) -> Value:
        return self._binary("ashr", bits)

    def __lshift__(self, bits: int) -> Value:
        return self._binary("shl", bits)

    def __lt__(self, other: Value | float) -> Value:
        return self._binary("fcmp olt", other, "b")

    def __gt__(self, other: Value | float) -> Value:
        return self._binary("fcmp ogt", other, "b")

    def equals(self, other: Value | float) -> Value:
        """Return self == other; false for NaN."""
        return self._binary("fcmp oeq", other, "b")

    def bits(self, kind: str) -> Value:
        """Return the same bits as another kind."""
        f = self.function
        return f.line(kind, f"bitcast {f.type(self.kind)} {self.name} to {f.type(kind)}")

    def choose(self, then: Value, otherwise: Value) -> Value:
        """Return ``then`` where self holds, else ``otherwise``."""
        f = self.function
        t = f.type(then.kind)
        return f.line(then.kind, f"select {f.type('b')} {self.name}, {t} {then.name}, {t} {otherwise.name}")


class Function:
    """A function of vectors of ``lanes`` floats; lanes 1 are scalars."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self._lines: list[str] = []

    def type(self, kind: str) -> str:
        """Return the LLVM type of a kind."""
        return _TYPES[kind] if self.lanes == 1 else f"<{self.lanes} x {_TYPES[kind]}>"

    def line(self, kind: str, text: str) -> Value:
        """Append an instruction and return its result."""
        value = Value(self, kind, f"%{len(self._lines)}")
        self._lines.append(f"  {value.name} = {text}")
        return value

    def constant(self, kind: str, number: float) -> Value:
        """Return a number in each lane."""
        text = str(int(number)) if kind == "i" else "0x" + struct.pack(">d", float(np.float32(number))).hex().upper()
        spread = text if self.lanes == 1 else "<" + ", ".join([f"{_TYPES[kind]} {text}"] * self.lanes) + ">"
        return Value(self, kind, spread)

    def define(self, name: str, formula: Callable[[Any], Any]) -> str:
        """Return the definition of the function ``formula``, to be inlined."""
        t = self.type("f")
        result = formula(Value(self, "f", "%x"))
        body = "\n".join(["entry:", *self._lines])
        return f"define {t} @{name}({t} %x) alwaysinline nounwind {{\n{body}\n  ret {t} {result.name}\n}}\n"
