# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What schedules must know of a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import tvm

#: Streaming multiprocessors: of the boards exactly, else of the largest chip of the architecture.
_MULTIPROCESSORS = {
    "sm_53": 1, "sm_62": 2, "sm_72": 8, "sm_87": 16, "sm_60": 56, "sm_61": 28, "sm_70": 80, "sm_75": 40, "sm_80": 108, "sm_86": 84,
    "sm_89": 128, "sm_90": 132, "sm_100": 148, "sm_120": 170,
}  # fmt: skip
_UNKNOWN = 64
#: Architectures whose tensor cores do twice what those of Volta, Turing and the small chips of later generations do.
_FULL_TENSOR_CORES = frozenset((80, 87, 90, 100, 101, 103))


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    ``lanes`` is how many float32 operations a multiprocessor begins in a cycle, ``tensor_macs`` how many products of float16 its tensor
    cores add up in one (0 where it has none), ``byte_macs`` how many of integers of 8 bits whose signs may differ. ``dot4`` says whether it
    has an instruction for four such products and their sum.
    """

    multiprocessors: int
    lanes: int
    threads: int = 1024
    shared_bytes: int = 48 * 1024
    warp: int = 32
    tensor_macs: int = 0
    byte_macs: int = 0
    dot4: bool = False


def gpu_of(target: tvm.target.Target) -> Gpu:
    """Return the description of a target of kind ``cuda``."""
    arch = str(target.attrs["arch"])
    number = int("".join(c for c in arch if c.isdigit()))
    tensor_macs = 0 if number < 70 else 1024 if number in _FULL_TENSOR_CORES else 512
    lanes = 64 if number in (60, 70, 72, 75, 80) else 128
    byte_macs = 2 * tensor_macs if number >= 80 else 0
    return Gpu(_MULTIPROCESSORS.get(arch, _UNKNOWN), lanes, tensor_macs=tensor_macs, byte_macs=byte_macs, dot4=number >= 61)
