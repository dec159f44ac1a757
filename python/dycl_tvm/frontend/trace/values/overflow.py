# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Where functions of one float begin to overflow: Python raises there, and goes on with infinity where it is given one."""

from __future__ import annotations

import functools
import math
import struct
import sys
from collections.abc import Callable


def overflows(function: Callable[..., float], *args: float) -> bool:
    """Whether Python raises an OverflowError."""
    try:
        function(*args)
    except OverflowError:
        return True
    return False


@functools.lru_cache(maxsize=256)
def power_overflows_from(exponent: float) -> float | None:
    """Return the least ``x > 0`` for which ``x ** exponent`` overflows; for an exponent below 0, for which it does not."""
    return _first(lambda x: overflows(pow, x, exponent) == (exponent > 0))


@functools.lru_cache(maxsize=256)
def exponent_overflows_from(base: float) -> float | None:
    """Return the least ``x > 0`` for which ``base ** x`` overflows, for a base above 1; below 1 that for which ``base ** -x`` does."""
    return _first(lambda x: overflows(pow, base, x if base > 1 else -x))


@functools.cache
def exp_overflows_from() -> float | None:
    """Return the least float of which the exponential overflows."""
    return _first(lambda x: overflows(math.exp, x))


def _first(holds: Callable[[float], bool]) -> float | None:
    """Return the least positive float for which something holds that holds for all above it too; None if it holds for none."""
    if not holds(sys.float_info.max):
        return None
    low, high = 0, _position(sys.float_info.max)  # floats are in the order of their bits
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(_float(middle)) else (middle, high)
    return _float(high)


def _position(x: float) -> int:
    number: int = struct.unpack("<q", struct.pack("<d", x))[0]
    return number


def _float(position: int) -> float:
    x: float = struct.unpack("<d", struct.pack("<q", position))[0]
    return x
