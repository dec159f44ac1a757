# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Random inputs of the modern networks, each kind without end."""

from __future__ import annotations

import torch
from torch import Tensor

from dycl_tvm.zoo.recipe import Samples


def sentences(vocab_size: int, words: int, generator: torch.Generator) -> Samples:
    """Yield (ids, attention mask) of shape (1, words), padded behind sentences of random length."""
    while True:
        length = int(torch.randint(3, words + 1, (), generator=generator))
        ids = torch.randint(1, vocab_size, (1, words), generator=generator)
        mask = (torch.arange(words)[None] < length).long()
        yield ids * mask, mask


def prompts(vocab_size: int, tokens: int, generator: torch.Generator) -> Samples:
    """Yield ids of shape (1, tokens), without the last token of the vocabulary."""
    while True:
        yield (torch.randint(vocab_size - 1, (1, tokens), generator=generator),)


def features(items: int, width: int, generator: torch.Generator) -> Samples:
    """Yield tensors of shape (1, items, width), weak and strong ones."""
    while True:
        strength = 2 ** (2 * torch.rand((), generator=generator) - 1)
        yield (strength * torch.randn(1, items, width, generator=generator),)


def image_pairs(points: int, dim: int, generator: torch.Generator) -> Samples:
    """Yield the points and descriptors of two images; those of the second are the first's, shuffled, moved and more or less noisy."""
    while True:
        noise = torch.rand((), generator=generator)
        order = torch.randperm(points, generator=generator)
        kpts0 = 2 * torch.rand(1, points, 2, generator=generator) - 1
        desc0 = _unit(torch.randn(1, points, dim, generator=generator))
        shift = 0.2 * torch.randn(1, 1, 2, generator=generator)
        kpts1 = kpts0[:, order] + shift + 0.1 * noise * torch.randn(1, points, 2, generator=generator)
        desc1 = _unit(desc0[:, order] + noise * _unit(torch.randn(1, points, dim, generator=generator)))
        yield kpts0, kpts1, desc0, desc1


def _unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)
