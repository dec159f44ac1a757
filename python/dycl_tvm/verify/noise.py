# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Random numbers for large tensors: drawn once, then repeated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

#: So many numbers are drawn at most. A prime: the rows of no tensor begin with the same ones.
_DRAWN = 65_521


def noise(shape: Sequence[int], draw: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """Return a tensor of random numbers, of which ``draw(count)`` makes so many."""
    count = math.prod(shape)
    drawn = draw(min(count, _DRAWN))
    return (drawn if count <= _DRAWN else drawn.repeat(-(-count // _DRAWN))[:count]).reshape(shape)
