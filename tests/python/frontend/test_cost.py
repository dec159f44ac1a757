# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What staging costs: linear in the number of branches, and bounded where paths cannot be joined.

1,000 branches take about a second and a half of a processor's time; the bound leaves room for slow and busy machines.
``make test`` goes to 1,000 branches; DYCL_COST_BRANCHES=4000 (``make cost``) to more. ``benchmarks/staging.py`` compares two versions.
"""

from __future__ import annotations

import os
import time

import pytest
import torch
from torch import nn

from dycl_tvm.errors import PathExplosionError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.verify import verify

LARGE = int(os.environ.get("DYCL_COST_BRANCHES", "1000"))
SMALL = LARGE // 4
#: Seconds for 1,000 branches.
BOUND = 10.0
X = (torch.ones(1, 2),)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self.gate = nn.Linear(2, 1)

    def forward(self, x):
        if torch.sigmoid(self.gate(x)).item() > 0.5:
            return x + self.lin(x), 1
        return x, 0


class SkipGates(nn.Module):
    """Every block has its own weights, a gate, and a helper module that returns from both sides."""

    def __init__(self, n):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(n)])

    def forward(self, x):
        taken = []
        for block in self.blocks:
            x, used = block(x)
            taken.append(used)
        return x, taken


class Exits(nn.Module):
    """One exit after every layer."""

    def __init__(self, n):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(2, 2) for _ in range(n)])

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            x = torch.tanh(block(x))
            if x.max() > 0.99:
                return x, i
        return x, -1


class Nested(nn.Module):
    """Branches in branches, attributes and locals changed on one side."""

    def __init__(self, n):
        super().__init__()
        self.n = n // 2
        self.hits = 0

    def forward(self, x):
        self.hits = 0
        unused = None
        for i in range(self.n):
            if x.sum() > 0.01 * i:
                self.hits += 1
                if x.max() > 0.5:
                    x = x * 0.9
                else:
                    unused = x
            else:
                x = x + 0.1
        return x, self.hits, unused is unused


def measure(model):
    """Return the seconds and the blocks of one staging."""
    start = time.process_time()
    graph = stage(model.eval(), X)
    seconds = time.process_time() - start
    verify(graph)
    return seconds, len(graph.blocks)


@pytest.mark.parametrize("cls", [SkipGates, Exits, Nested], ids=lambda c: c.__name__)
def test_staging_grows_linearly(cls):
    measure(cls(8))  # the first staging of a process pays for imports
    small, small_blocks = min(measure(cls(SMALL)) for _ in range(2))
    large, large_blocks = measure(cls(LARGE))
    assert large <= BOUND * max(1.0, LARGE / 1000)
    assert large_blocks <= 4.2 * small_blocks
    # four times the branches; the slack is for a machine that does something else at the same time
    assert large <= 4 * small * 2.5 + 0.5, f"{SMALL} branches: {small:.2f} s, {LARGE}: {large:.2f} s"
    print(f"{cls.__name__}: {SMALL} branches {small:.2f} s, {LARGE} branches {large:.2f} s, {large_blocks} blocks")


class Explosion(nn.Module):
    def forward(self, x):
        out = {}
        for _ in range(40):
            if x.sum() > 0:
                out[len(out)] = x
            x = x * 0.9
        return torch.cat(list(out.values()))


def test_an_explosion_ends_within_a_bound_and_names_the_if():
    start = time.process_time()
    with pytest.raises(PathExplosionError) as caught:
        stage(Explosion().eval(), X, max_paths=300)
    assert time.process_time() - start < 30
    text = str(caught.value)
    assert "if x.sum() > 0:" in text and "more than 300 paths" in text and __file__ in text
