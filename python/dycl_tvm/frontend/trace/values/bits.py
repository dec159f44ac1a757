# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Bits of ints that are known only at run time, as arithmetic: ``//`` and ``%`` round down in Python, so that is right for all ints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current


def combined(op: str, a: Any, b: Any) -> Any:
    """Return ``a & b``, ``a | b`` or ``a ^ b`` of two ints, one of which Python knows."""
    number, mask = (a, b) if type(b) is int else (b, a)
    if type(mask) is not int:
        raise UnsupportedError(
            f"the bit operation {op} on two numbers known only at run time",
            current().origin(),
            "let Python know one of them (n & 3), or use torch.bitwise_and and the like on tensors",
        )
    common = _masked(number, mask)
    if op == "and":
        return common
    return number - common + (mask if op == "or" else mask - common)


def _masked(number: Any, mask: int) -> Any:
    if mask < 0:
        return number - _masked(number, ~mask)
    return sum((number // 2**low % 2**count * 2**low for low, count in _ones(mask)), 0)


def _ones(mask: int) -> Iterator[tuple[int, int]]:
    """Yield where bits that are 1 begin in a mask, and how many there are in succession."""
    low = 0
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        mask >>= zeros
        count = (~mask & (mask + 1)).bit_length() - 1
        yield low + zeros, count
        low, mask = low + zeros + count, mask >> count


def shifted(number: Any, by: Any, left: bool, power: Callable[[Any], Any]) -> Any:
    """Return ``number << by`` or ``number >> by``, of no negative number; ``power`` gives a power of two by a number of the run."""
    if type(by) is int and not left and by > 62:
        return number // 2**62 // 2
    factor = 2**by if type(by) is int else power(by)
    return number * factor if left else number // factor
