# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What all Shallow-Deep networks share: the internal classifier and the early exit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: What a block returns: the feature map, 1 if there is a classifier here (0 if not), the classifier's logits.
BlockResult = tuple[Tensor, int, Tensor | None]


class InternalClassifier(nn.Module):
    """Feature reduction by a learned mix of max and average pooling, and a linear layer.

    Maps of side 4 and more are pooled to a side of about 4; smaller ones are only flattened.

    Parameters
    ----------
    size : int
        Side of the feature map.
    channels : int
        Channels of the feature map.
    num_classes : int
        Number of logits.
    """

    def __init__(self, size: int, channels: int, num_classes: int) -> None:
        super().__init__()
        kernel = size // 4
        self.pooled = kernel >= 1
        if self.pooled:
            self.max_pool = nn.MaxPool2d(kernel)
            self.avg_pool = nn.AvgPool2d(kernel)
            self.alpha = nn.Parameter(torch.rand(1))
            size = size // kernel
        self.linear = nn.Linear(channels * size * size, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        if self.pooled:
            x = self.alpha * self.max_pool(x) + (1 - self.alpha) * self.avg_pool(x)
        return self.linear(x.view(x.size(0), -1))


class ConvBlock(nn.Module):
    """A plain block: layers, and perhaps an internal classifier behind them."""

    def __init__(self, layers: Iterable[nn.Module], output: InternalClassifier | None) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.output = output

    def forward(self, x: Tensor) -> BlockResult:
        """Run the block."""
        fwd = self.layers(x)
        if self.output is None:
            return fwd, 0, None
        return fwd, 1, self.output(fwd)


class ResidualBlock(nn.Module):
    """A residual block: ``activation(layers(x) + shortcut(x))``, and perhaps an internal classifier behind it."""

    def __init__(
        self, layers: Sequence[nn.Module], shortcut: Sequence[nn.Module], activation: nn.Module | None, output: InternalClassifier | None
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.shortcut = nn.Sequential(*shortcut)
        self.activation = activation
        self.output = output

    def forward(self, x: Tensor) -> BlockResult:
        """Run the block."""
        fwd = self.layers(x)
        fwd = fwd + self.shortcut(x)
        if self.activation is not None:
            fwd = self.activation(fwd)
        if self.output is None:
            return fwd, 0, None
        return fwd, 1, self.output(fwd)


class ShallowDeepNetwork(nn.Module):
    """A chain of blocks, some with a classifier, that is left at the first classifier that is confident enough.

    Attributes
    ----------
    init_conv, layers, end_layers
        Stem, blocks (each returns a :data:`BlockResult`), and the final classifier.
    confidence_threshold : float
        The largest softmax probability at which the network is left.
    """

    init_conv: nn.Module
    layers: nn.ModuleList
    end_layers: nn.Module

    def __init__(self, confidence_threshold: float = 0.5) -> None:
        super().__init__()
        self.confidence_threshold = confidence_threshold

    def early_exit(self, x: Tensor) -> tuple[Tensor, Any, bool]:
        """Classify one image.

        Returns
        -------
        logits : Tensor
            Of the first confident classifier; of the most confident one if none reaches the threshold.
        output_id : int
            The number of that classifier.
        is_early : bool
            Whether the network was left before its end.
        """
        confidences = []
        outputs = []

        fwd = self.init_conv(x)
        output_id = 0
        for layer in self.layers:
            fwd, is_output, output = layer(fwd)
            if is_output:
                outputs.append(output)
                softmax = F.softmax(output[0], dim=0)
                confidence = torch.max(softmax)
                confidences.append(confidence)
                if confidence >= self.confidence_threshold:
                    return output, output_id, True
                output_id += is_output

        output = self.end_layers(fwd)
        outputs.append(output)
        softmax = F.softmax(output[0], dim=0)
        confidence = torch.max(softmax)
        confidences.append(confidence)
        max_confidence_output = np.argmax(confidences)
        return outputs[max_confidence_output], max_confidence_output, False

    def forward(self, x: Tensor) -> tuple[Tensor, Any, bool]:
        """Classify one image; see :meth:`early_exit`."""
        return self.early_exit(x)
