# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Seeds of random numbers."""

from __future__ import annotations

import operator

from dycl_tvm.errors import UsageError


def seed_bits(seed: int) -> int:
    """Return the 64 bits of a seed, negative ones as PyTorch takes them.

    Raises
    ------
    UsageError
        If it is no whole number of 64 bits.
    """
    try:
        number = operator.index(seed)
    except TypeError:
        raise UsageError(f"a seed is a whole number, not {seed!r}") from None
    if not -(1 << 63) <= number < 1 << 64:
        raise UsageError(f"a seed has 64 bits: {number} is too large")
    return number % (1 << 64)
