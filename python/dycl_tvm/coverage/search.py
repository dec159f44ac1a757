# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Looking for inputs that take other paths: random inputs of many scales, and changes of inputs that were worth keeping.

This finds what a fuzzer finds; it does not solve conditions. A path that it does not find may still be possible.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from dycl_tvm.coverage.record import Coverage
from dycl_tvm.coverage.runners import Runner

#: Inputs that are kept to be changed: those that took a new path or a new side of a decision.
_KEPT = 256


def search(runner: Runner, coverage: Coverage, runs: int, *, seed: int = 0, seconds: float | None = None, int_high: int = 2) -> int:
    """Run the network on inputs until every listed path was taken, or ``runs`` or ``seconds`` are over.

    Parameters
    ----------
    runner : Runner
    coverage : Coverage
        Gets what is found (``Seen.found``); what it has already is not searched again.
    seed : int
        The same seed searches the same inputs (unless the time runs out).
    int_high : int
        Integers of inputs are under this bound.

    Returns
    -------
    int
        The number of runs.
    """
    generator = np.random.default_rng(seed)
    kept: list[Sequence[Any]] = [s.found for s in coverage.seen.values() if s.found is not None]
    end = None if seconds is None else time.monotonic() + seconds
    for run in range(runs):
        if coverage.done or (end is not None and time.monotonic() >= end):
            return run
        if kept and run % 2:
            leaves = _changed(kept, runner.types, generator, int_high)
        else:
            leaves = [_drawn(t, generator, int_high) for t in runner.types]
        sides = len(coverage.sides)
        new = coverage.note(runner.run(leaves), leaves)
        if (new or len(coverage.sides) > sides) and len(kept) < _KEPT:
            kept.append(leaves)
    return runs


def _drawn(leaf: dict[str, Any], generator: np.random.Generator, int_high: int) -> Any:
    """Return a random value of a leaf."""
    kind, dtype, shape = leaf["type"], leaf.get("dtype", ""), tuple(leaf.get("shape", ()))
    if kind == "bool" or dtype == "bool":
        drawn = generator.random(shape) < generator.random()
        return drawn if kind == "tensor" else bool(drawn)
    if kind == "int" or dtype.startswith(("int", "uint")):
        high = int_high if kind == "int" else min(int_high, int(np.iinfo(dtype).max) + 1)
        return int(generator.integers(0, high)) if kind == "int" else generator.integers(0, high, shape).astype(dtype)
    scale = 10.0 ** generator.uniform(-3, 2)
    shape_of = int(generator.integers(0, 5))
    if shape_of == 0:
        values = generator.standard_normal(shape) * scale
    elif shape_of == 1:
        values = generator.uniform(-1, 1, shape) * scale
    elif shape_of == 2:
        values = generator.standard_normal(shape) * scale + generator.standard_normal() * scale
    elif shape_of == 3:
        values = np.full(shape, generator.standard_normal() * scale)
    else:
        values = generator.standard_normal(shape) * scale * (generator.random(shape) < generator.random())
    return _as(values, kind, dtype)


def _changed(kept: list[Sequence[Any]], types: Sequence[dict[str, Any]], generator: np.random.Generator, int_high: int) -> list[Any]:
    """Return a change of one kept input, or a mixture of two."""
    one, other = (kept[int(generator.integers(0, len(kept)))] for _ in range(2))
    leaves: list[Any] = []
    for a, b, leaf in zip(one, other, types):
        kind, dtype = leaf["type"], leaf.get("dtype", "")
        fresh = _drawn(leaf, generator, int_high)
        if kind in ("bool", "int") or dtype == "bool" or dtype.startswith(("int", "uint")):
            choice = int(generator.integers(0, 3))
            if kind == "tensor" and choice == 0:
                leaves.append(np.where(generator.random(np.shape(a)) < 0.2, fresh, a).astype(a.dtype))
            else:
                leaves.append((a, b, fresh)[choice])
            continue
        x, y = _numbers(a, dtype), _numbers(b, dtype)
        how = int(generator.integers(0, 5))
        if how == 0:
            x = x * generator.choice([-1.0, 0.5, 0.9, 1.1, 2.0])
        elif how == 1:
            x = x + generator.standard_normal(np.shape(x)) * np.std(x) * 10.0 ** generator.uniform(-2, 0)
        elif how == 2:
            weight = generator.random()
            x = x * weight + y * (1 - weight)
        elif how == 3:
            x = x + np.mean(np.abs(x)) * generator.standard_normal()
        else:
            x = np.where(generator.random(np.shape(x)) < 0.2, _numbers(fresh, dtype), x)
        leaves.append(_as(x, kind, dtype))
    return leaves


def _numbers(x: Any, dtype: str) -> Any:
    if dtype == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.asarray(x, dtype=np.float64)


def _as(values: Any, kind: str, dtype: str) -> Any:
    if kind != "tensor":
        return float(values)
    if dtype == "bfloat16":
        # the upper half of a float32 is the truncated bfloat16
        return (np.asarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.clip(values, -6e4, 6e4).astype(dtype) if dtype == "float16" else np.asarray(values).astype(dtype)
