# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What depends on a GPU's architecture: the PTX version that its drivers take, and the compiler whose cubins they load."""

from __future__ import annotations

import re

from dycl_tvm.errors import TargetError

#: The PTX version that first knew each architecture (PTX ISA, "Release Notes"). Every driver of such a GPU takes it.
_FIRST_PTX = {
    50: (4, 0), 52: (4, 1), 53: (4, 2), 60: (5, 0), 61: (5, 0), 62: (5, 0), 70: (6, 0), 72: (6, 1), 75: (6, 3), 80: (7, 0), 86: (7, 1),
    87: (7, 4), 89: (7, 8), 90: (7, 8), 100: (8, 6), 101: (8, 6), 103: (8, 8), 120: (8, 7), 121: (8, 8),
}  # fmt: skip
#: Drivers of JetPack 4 have CUDA 10.2, which takes PTX 6.5: nothing that still gets drivers takes less.
_LEAST_PTX = (6, 5)
#: GPUs of boards whose oldest supported driver is of CUDA 10.2 or 11.4 (JetPack 4 and 5): their cubins come from CUDA 11.
_CUDA_11 = frozenset((53, 62, 72, 87))


def number_of(arch: str) -> int:
    """Return 72 for ``sm_72``.

    Raises
    ------
    TargetError
        If it is not the name of an architecture. Those with a suffix (``sm_90a``) have code that runs on no other GPU.
    """
    match = re.fullmatch(r"sm_(\d{2,3})([af]?)", arch)
    if match is None:
        raise TargetError(f"{arch!r} is not a GPU architecture; they are named like 'sm_72'")
    if match[2]:
        raise TargetError(f"architecture {arch!r}: leave the suffix out, 'sm_{match[1]}'; code for it is not specific to one chip")
    return int(match[1])


def ptx_version(number: int) -> tuple[int, int]:
    """Return the PTX version to declare for an architecture: the lowest that knows it, so that every driver of such a GPU takes it.

    Raises
    ------
    TargetError
        For an architecture that is not in the table.
    """
    if number not in _FIRST_PTX:
        known = ", ".join(f"sm_{n}" for n in _FIRST_PTX)
        raise TargetError(f"sm_{number} is not a GPU architecture that is known here; there are {known}")
    return max(_FIRST_PTX[number], _LEAST_PTX)


def preferred_major(number: int) -> int:
    """Return the CUDA version whose compiler is asked first."""
    return 11 if number in _CUDA_11 else 12
