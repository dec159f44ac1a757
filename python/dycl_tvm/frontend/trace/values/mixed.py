# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Numbers whose type values decide in eager mode."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mixed:
    """Between which types values decide in eager mode.

    Attributes
    ----------
    types : str
        Such as ``an int or a float``.
    tensor : bool
        Whether it may be a tensor (float32, or of ints), of rank 0.
    computed : bool
        Whether the number was computed from such a one: it has the precision of a Python number, where eager may have rounded a tensor.
    """

    types: str
    tensor: bool = False
    computed: bool = False
