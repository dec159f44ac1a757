# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Shallow-Deep WideResNet-32-4 for 32x32 images."""

from __future__ import annotations

from torch import nn

from dycl_tvm.zoo.sdn.network import InternalClassifier, ResidualBlock, ShallowDeepNetwork

#: For each group of blocks, which of them have an internal classifier (at 15, 30, ... 90 percent of the operations).
EXITS = (
    (0, 0, 1, 0, 1),
    (0, 1, 0, 1, 0),
    (1, 0, 1, 0, 0),
)


def wide_block(in_channels: int, channels: int, stride: int, dropout: float, output: InternalClassifier | None) -> ResidualBlock:
    """Return the pre-activation block; the second convolution has the stride."""
    layers = [
        nn.BatchNorm2d(in_channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(in_channels, channels, 3, padding=1),
        nn.Dropout(dropout),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels, channels, 3, stride=stride, padding=1),
    ]
    shortcut: list[nn.Module] = []
    if stride != 1 or in_channels != channels:
        shortcut = [nn.Conv2d(in_channels, channels, 1, stride=stride)]
    return ResidualBlock(layers, shortcut, None, output)


class WideResNetSDN(ShallowDeepNetwork):
    """WideResNet of depth 32 and width 4 (15 blocks) with six internal classifiers and the final one."""

    def __init__(
        self, num_classes: int = 10, input_size: int = 32, widen_factor: int = 4, dropout: float = 0.3, confidence_threshold: float = 0.5
    ) -> None:
        super().__init__(confidence_threshold)
        in_channels, size = 16, input_size
        self.init_conv = nn.Conv2d(3, in_channels, 3, padding=1)
        self.layers = nn.ModuleList()
        for group, exits in enumerate(EXITS):
            channels = (16 << group) * widen_factor
            for i, add_output in enumerate(exits):
                stride = 2 if group > 0 and i == 0 else 1
                size //= stride
                output = InternalClassifier(size, channels, num_classes) if add_output else None
                self.layers.append(wide_block(in_channels, channels, stride, dropout, output))
                in_channels = channels
        self.end_layers = nn.Sequential(
            nn.BatchNorm2d(in_channels), nn.ReLU(inplace=True), nn.AvgPool2d(size), nn.Flatten(), nn.Linear(in_channels, num_classes)
        )
