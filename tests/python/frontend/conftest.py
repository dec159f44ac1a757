# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Lets the tests of this folder share their helpers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import dycl_tvm.hcfg.sizes

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def nothing_behind_the_sizes(monkeypatch):
    """Put NaN, or a number that is no index, behind the sizes of a call in its buffers."""

    def padded(t, shape):
        if tuple(t.shape) == tuple(shape):
            return t
        made = torch.full(shape, float("nan")) if t.dtype.is_floating_point else torch.full(shape, 10**6).to(t.dtype)
        made[tuple(map(slice, t.shape))] = t.detach()
        return made

    monkeypatch.setattr(dycl_tvm.hcfg.sizes, "padded", padded)
