# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Random images of many kinds: rough and smooth, dark and bright, faint and strong, grey and coloured."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

#: Sides of the noise that is enlarged to an image: small ones give smooth images.
_GRIDS = (2, 3, 4, 8, 16, 32)
#: Number of properties that tell kinds of images apart.
_PROPERTIES = 7


def random_images(size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield images of shape (1, 3, size, size) without end, normalised as networks expect it (about zero, of scale one).

    The properties of the images follow a sequence of low discrepancy, so that few images already show many kinds.
    """
    start = torch.rand(_PROPERTIES, generator=generator, dtype=torch.float64)
    # The additive recurrence of the generalised golden ratio, the root of x ** (d + 1) = x + 1.
    ratio = 2.0
    for _ in range(50):
        ratio = (1 + ratio) ** (1 / (_PROPERTIES + 1))
    step = ratio ** -torch.arange(1, _PROPERTIES + 1, dtype=torch.float64)
    for i in itertools.count():
        yield _image(size, ((start + i * step) % 1).tolist(), generator)


def batch_of_images(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Return ``n`` images of shape (n, 3, size, size)."""
    return torch.cat(list(itertools.islice(random_images(size, generator), n)))


def _image(size: int, properties: list[float], generator: torch.Generator) -> Tensor:
    """Return an image whose kind is given by numbers in [0, 1)."""
    fine, coarse, weight, strength, colour, brightness, tinted = properties
    noise = _noise(size, fine, generator) + weight * _noise(size, coarse, generator)
    noise = colour * noise + (1 - colour) * noise.mean(1, keepdim=True)
    tint = tinted * torch.randn(1, 3, 1, 1, generator=generator)
    return 2 ** (3 * strength - 2) * noise + tint + (2 * brightness - 1)


def _noise(size: int, grid: float, generator: torch.Generator) -> Tensor:
    side = _GRIDS[int(grid * len(_GRIDS))]
    noise = torch.randn(1, 3, side, side, generator=generator)
    return F.interpolate(noise, (size, size), mode="bilinear", align_corners=False)
