# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A cascade: a small network answers, and a large one only if the small one is not sure."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def conv_bn(inp: int, out: int, stride: int = 1) -> nn.Sequential:
    """Return a 3x3 convolution with batch norm and ReLU."""
    return nn.Sequential(nn.Conv2d(inp, out, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True))


class SmallNet(nn.Module):
    """Three strided convolutions."""

    def __init__(self, width: int = 8, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_bn(3, width, 2), conv_bn(width, 2 * width, 2), conv_bn(2 * width, 4 * width, 2))
        self.classifier = nn.Linear(4 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.classifier(self.features(x).mean(dim=(2, 3)))


class LargeNet(nn.Module):
    """Eight convolutions in four stages."""

    def __init__(self, width: int = 16, num_classes: int = 10) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 4 * width]
        layers: list[nn.Module] = []
        inp = 3
        for i, out in enumerate(widths):
            layers += [conv_bn(inp, out, 1 if i == 0 else 2), conv_bn(out, out)]
            inp = out
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(inp, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.classifier(torch.flatten(self.pool(self.features(x)), 1))


class Cascade(nn.Module):
    """Two networks, the second for what the first is unsure about.

    Parameters
    ----------
    small, large : nn.Module
        Classifiers of the same classes.
    threshold : float
        The confidence that the small network needs.
    """

    def __init__(self, small: nn.Module, large: nn.Module, threshold: float = 0.5) -> None:
        super().__init__()
        self.small = small
        self.large = large
        self.threshold = threshold

    def forward(self, image: Tensor) -> dict[str, Tensor | str]:
        """Return the class, its probability, and who says so."""
        source = "small"
        confidence, label = F.softmax(self.small(image), dim=1).max(dim=1)
        if confidence < self.threshold:
            source = "large"
            confidence, label = F.softmax(self.large(image), dim=1).max(dim=1)
        return {"label": label, "confidence": confidence, "source": source}
