# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Random numbers for large tensors: drawn once, then repeated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

#: So many numbers are drawn at most. A prime: the rows of no tensor begin with the same ones.
_DRAWN = 16_381


def numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as real numbers: complex ones have a last dimension of two."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def noise(shape: Sequence[int], draw: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """Return a tensor of random numbers, of which ``draw(count)`` makes so many."""
    count = math.prod(shape)
    drawn = draw(min(count, _DRAWN))
    return (drawn if count <= _DRAWN else drawn.repeat(-(-count // _DRAWN))[:count]).reshape(shape)


def scaled(tensor: torch.Tensor, draw: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """Return a tensor whose elements are multiplied by random numbers, of which ``draw(count)`` makes so many."""
    flat = tensor.reshape(-1)
    count = flat.numel()
    drawn = draw(min(count, _DRAWN))
    if count <= _DRAWN:
        return (flat * drawn).reshape(tensor.shape)
    made, whole = torch.empty_like(flat), count - count % _DRAWN
    torch.mul(flat[:whole].view(-1, _DRAWN), drawn, out=made[:whole].view(-1, _DRAWN))
    torch.mul(flat[whole:], drawn[: count - whole], out=made[whole:])
    return made.reshape(tensor.shape)
