# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a user may say about the choice of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Accuracy = Literal["strict", "default", "bf16", "bf16x3", "fp16"]

#: Names that ``disabled_families`` may have.
FAMILIES = frozenset(
    (
        "amx",
        "attention",
        "bf16",
        "channelwise",
        "dense",
        "dense_blocked",
        "depthwise",
        "direct",
        "grouped",
        "int8",
        "matmul",
        "normalisation",
        "reduction",
        "softmax",
        "weights_only",
        "winograd",
    )
)

#: Budget of a tuning that is asked for without one, in seconds.
DEFAULT_TUNING_SECONDS = 120.0


@dataclass(frozen=True)
class KernelOptions:
    """Options of the kernels; all but ``accuracy`` are for CPUs.

    Attributes
    ----------
    accuracy : str
        ``strict``, ``default``, ``bf16``, ``bf16x3`` or, on GPUs, ``fp16``.
    disabled_families : frozenset of str
        Families that may not be chosen (the ablation).
    layout_planning : bool
        False: every packed kernel converts its own inputs and outputs (the ablation).
    tune : float
        Seconds for measuring candidates on this machine; 0 trusts the cost model and the database.
    database : str
        File of measured choices; empty for the one that comes with the package.
    """

    accuracy: Accuracy = "default"
    disabled_families: frozenset[str] = frozenset()
    layout_planning: bool = True
    tune: float = 0.0
    database: str = ""
