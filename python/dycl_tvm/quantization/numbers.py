# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How numbers become integers: activations as uint8 with a zero point, weights as int8 with a scale an output channel."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_decomposed = torch.ops.quantized_decomposed
#: Of activations, and of weights: -128 is left out, so that the negative of a weight is one too.
LEAST, MOST = 0, 255
WEIGHT_LEAST, WEIGHT_MOST = -127, 127


@dataclass(frozen=True)
class Range:
    """The least and the largest number of a tensor."""

    low: float
    high: float

    def joined(self, other: Range) -> Range:
        """Return the range of both."""
        return Range(min(self.low, other.low), max(self.high, other.high))

    @property
    def width(self) -> float:
        """How far a grid has to reach, which reaches over zero too."""
        return max(self.high, 0.0) - min(self.low, 0.0)


@dataclass(frozen=True)
class Grid:
    """The real numbers (q - zero) * scale, for q from 0 to 255; zero is one of them. ``scale`` is a float32."""

    scale: float
    zero: int

    @staticmethod
    def of(found: Range) -> Grid:
        """Return the finest grid that reaches over a range and zero."""
        low, high = min(found.low, 0.0), max(found.high, 0.0)
        scale = float(torch.tensor((high - low) / (MOST - LEAST), dtype=torch.float32))
        if not scale > torch.finfo(torch.float32).tiny:  # all numbers are zero, or nearly
            scale = 1.0
        return Grid(scale, min(max(round(-low / scale), LEAST), MOST))

    def rounded(self, data: torch.Tensor) -> torch.Tensor:
        """Return a tensor as the network sees it."""
        q = _decomposed.quantize_per_tensor(data, self.scale, self.zero, LEAST, MOST, torch.uint8)
        made: torch.Tensor = _decomposed.dequantize_per_tensor(q, self.scale, self.zero, LEAST, MOST, torch.uint8)
        return made


def quantised_weights(data: torch.Tensor, channel: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights as int8, and the scale (float32) of each output channel."""
    others = [d for d in range(data.dim()) if d != channel]
    scales = data.abs().amax(others).to(torch.float32) / WEIGHT_MOST
    scales = torch.where(scales > torch.finfo(torch.float32).tiny, scales, 1.0)
    zeros = torch.zeros(scales.shape, dtype=torch.int64)
    return _decomposed.quantize_per_channel(data, scales, zeros, channel, WEIGHT_LEAST, WEIGHT_MOST, torch.int8), scales
