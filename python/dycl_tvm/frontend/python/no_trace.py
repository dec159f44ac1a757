# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Staging leaves no trace: what the model reaches, and what all programs share, is the same before and after, by comparison."""

from __future__ import annotations

import copyreg
import enum
import functools
import importlib
import linecache
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.heap.reach import Reached
from dycl_tvm.frontend.trace.heap.settings import SETTINGS
from dycl_tvm.frontend.trace.heap.visible import Hidden
from dycl_tvm.frontend.trace.heap.watch import Snapshot


@functools.lru_cache(maxsize=4096)
def _is_flag(kind: Any) -> bool:
    return issubclass(kind, enum.Flag)


@contextmanager
def no_trace(reached: Reached) -> Iterator[None]:
    """Compare what lives on before and after; what differs is put back as far as it can be.

    Parameters
    ----------
    reached : Reached
        What the model reaches.

    Raises
    ------
    UnsupportedError
        If anything differs: the forward changes it in a way that was not seen when it happened.
    """
    for _, x in reached.steps:
        kind: Any = type(x)
        if _is_flag(kind):
            _ = ~x  # Python keeps the inverse of a flag with it, once it was asked for
    if any(x is os.environ or x is copyreg.dispatch_table for x in (x for _, x in reached.steps)):
        # PyTorch imports it when it is first asked for some results, and importing it changes both
        importlib.import_module("torch._dynamo")
    snapshot = Snapshot(reached, with_data=True)
    snapshot.add_place(SETTINGS)
    numbers = _random_states()
    try:
        yield
    except BaseException:
        put_back(snapshot)
        raise
    changed = [*put_back(snapshot), *snapshot.written()]
    if _random_states() != numbers:
        changed.append("the state of the random numbers")
    if changed:
        raise UnsupportedError(
            f"the forward changes {', '.join(f'`{name}`' for name in changed[:4])}, which lives on, by code that cannot be followed",
            None,
            "keep such objects out of the forward, or make them in it",
        )


def put_back(snapshot: Snapshot) -> list[str]:
    """Put back what differs; return its names."""
    names = []
    for label, place, before, now in list(snapshot.changes()):
        if place.owner is linecache.cache:
            continue  # staging itself fills it, where it looks for the program's lines
        if isinstance(place, Hidden) and place.read() != now:
            continue  # it differs from itself, so nothing can be said of it
        names.append(label or place.text)
        if not isinstance(place, Hidden) or place.can_restore(before, now):
            place.write(before)
    return names


def _random_states() -> tuple[Any, ...]:
    numpys: Any = np.random.get_state()
    numpys = (numpys[0], numpys[1].tobytes(), *numpys[2:]) if isinstance(numpys, tuple) else str(numpys)
    return (random.getstate(), numpys, torch.random.get_rng_state().numpy().tobytes())
