# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A library that draws, seeds, and takes states: staging does not rewrite what it does (see test_random.py)."""

from __future__ import annotations

from typing import Any

import torch


def forked() -> Any:
    """Draw from a seed of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drawn = torch.rand(3)
    return drawn, torch.rand(2)


def seeded() -> Any:
    """Seed everybody's generator."""
    torch.manual_seed(0)
    return torch.rand(3)


def saved() -> Any:
    """Draw the same twice."""
    state = torch.get_rng_state()
    drawn = torch.rand(2)
    torch.set_rng_state(state)
    return drawn, torch.rand(2)


def rewound(generator: torch.Generator) -> Any:
    """Draw the same twice from a generator."""
    state = generator.get_state()
    drawn = torch.rand(2, generator=generator)
    generator.set_state(state)
    return drawn, torch.rand(2, generator=generator)


def reseeded(generator: torch.Generator) -> Any:
    """Seed a generator."""
    return torch.rand(2, generator=generator.manual_seed(3))
