# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What an oracle answers: a script for the first crossings, a policy for those after it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dycl_tvm.hcfg.analysis import natural_loops
from dycl_tvm.hcfg.hostops import COMPARISONS, Number
from dycl_tvm.hcfg.nodes import HCFG, HostOp, Value, operand_type
from dycl_tvm.hcfg.types import INT
from dycl_tvm.verify.crossings import Crossing

#: Numbers that programs compare with although they do not stand in the graph, and those at the limits.
_FLOATS = (0.0, 1.0, -1.0, 0.5, 2.0, 1e-3, -0.0, 100.0)
_EDGE_FLOATS = (math.inf, -math.inf, math.nan, float(2**53), 1e30)
_INTS = (0, 1, 2, 3, -1, 5)
_EDGE_INTS = (2**53, 2**53 + 1, -(2**53) - 1, 2**31)
#: Where a number may count the trips of a loop of Python's, answers stay below this.
_MOST_TRIPS = 1000
#: After so many crossings at one line the policy turns.
_PATIENCE = (1, 2, 3, 9)


class Oracle:
    """Answers crossings.

    Parameters
    ----------
    script : sequence
        Answers of the first free crossings; None leaves one to the policy.
    policy : str
        ``natural`` (the truth), ``random``, ``yes`` or ``no`` (the same at a line for a few times, then the other, so that loops end).
    seed : int
    constants : sequence of numbers
        What the graph compares with.
    large : bool
        Whether whole numbers may be beyond 2**53.
    patience : int
        How often ``yes`` and ``no`` stay the same at a line.
    """

    def __init__(
        self,
        script: Sequence[Number | None] = (),
        policy: str = "natural",
        seed: int = 0,
        constants: Sequence[Number] = (),
        large: bool = False,
        patience: int = 0,
    ) -> None:
        self.script, self.policy, self.seed = list(script), policy, seed
        self._random = random.Random(seed)
        self._patience = patience or _PATIENCE[seed % len(_PATIENCE)]
        self._constants, self._large = list(constants), large
        self._times: dict[Any, int] = {}
        self.given: list[tuple[Crossing, Number]] = []

    def __call__(self, crossing: Crossing) -> Number:
        k = len(self.given)
        scripted = self.script[k] if k < len(self.script) else None
        answer = fit(crossing, scripted) if scripted is not None else self._choose(crossing)
        self.given.append((crossing, answer))
        return answer

    def _choose(self, crossing: Crossing) -> Number:
        if self.policy == "natural":
            return crossing.real
        line = crossing.lines[0] if crossing.lines else None
        times = self._times[line] = self._times.get(line, 0) + 1
        if crossing.dtype == torch.bool:
            if self.policy == "random":
                return self._random.random() < 0.5
            return (self.policy == "yes") == ((times - 1) // self._patience % 2 == 0)
        pool = candidates(crossing, self._constants, self._large)
        if self.policy == "random" and crossing.dtype.is_floating_point and self._random.random() < 0.3:
            return fit(crossing, self._random.gauss(0, 3))
        if self._random.random() < 0.15:
            return crossing.real
        return self._random.choice(pool)


def mixes_kinds(graph: HCFG) -> bool:
    """Whether whole numbers meet floats in the graph and count no trips: then those beyond 2**53 are worth trying."""
    steps = [s for b in graph.blocks for s in b.steps if isinstance(s, HostOp)]
    if natural_loops(graph).loops or any(s.op in ("pow", "mul") for s in steps):
        return False
    kinds = [{operand_type(a) for a in s.args} for s in steps if s.op in COMPARISONS or s.op == "truediv"]
    return any(INT in k and len(k) > 1 for k in kinds) or any(s.op == "truediv" for s in steps)


def constants_of(graph: HCFG) -> list[Number]:
    """Return the numbers with which host operations of the graph compare or compute, in order, those of comparisons first."""
    found: dict[tuple[str, Number], None] = {}
    rest: dict[tuple[str, Number], None] = {}
    for block in graph.blocks:
        for step in block.steps:
            if isinstance(step, HostOp):
                for arg in step.args:
                    if not isinstance(arg, Value) and not isinstance(arg, bool):
                        (found if step.op in COMPARISONS else rest).setdefault((repr(arg), arg))
    return [number for _, number in [*found, *rest]][:64]


def candidates(crossing: Crossing, constants: Sequence[Number], large: bool = False) -> list[Number]:
    """Return answers worth trying: around the numbers that are compared with, small ones, and limits; the likeliest first."""
    if crossing.dtype == torch.bool:
        return [not crossing.real, bool(crossing.real)]
    wanted: list[Number] = []
    if crossing.dtype.is_floating_point:
        eps = torch.finfo(crossing.dtype).eps
        for c in constants:
            near = abs(float(c)) * 2 * eps or 1e-6
            wanted += [float(c) + 1.0, float(c) - 1.0, float(c), float(c) + near, float(c) - near]
        wanted += [*_FLOATS, *_EDGE_FLOATS]
    else:
        if crossing.bounds is not None and crossing.bounds[1] - crossing.bounds[0] < 64:
            wanted += range(crossing.bounds[0], crossing.bounds[1] + 1)
        for c in constants:
            if math.isfinite(c) and abs(c) < (2**62 if large else _MOST_TRIPS):
                wanted += [int(c), int(c) + 1, int(c) - 1]
        wanted += [*_INTS, *(_EDGE_INTS if large else ())]
    found: dict[str, Number] = {}
    for w in wanted:
        fitted = fit(crossing, w)
        found.setdefault(repr(fitted), fitted)
    return list(found.values())


def fit(crossing: Crossing, value: Number) -> Number:
    """Return the nearest answer to ``value`` that the tensor could hold."""
    dtype = crossing.dtype
    if dtype == torch.bool:
        return bool(value)
    if dtype.is_floating_point:
        return _rounded(float(value), dtype)
    number = int(value) if math.isfinite(value) else 0
    info = torch.iinfo(dtype)
    low, high = crossing.bounds or (info.min, info.max)
    return min(max(number, low), high)


def _rounded(value: float, dtype: torch.dtype) -> float:
    # By NumPy: the oracle is asked in the midst of PyTorch's dispatcher.
    if dtype == torch.float64 or not math.isfinite(value):
        return value
    with np.errstate(over="ignore"):
        if dtype == torch.float16:
            return float(np.float16(value))
        single = np.float32(value)
    if dtype == torch.bfloat16:
        single = (single.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return float(single)
