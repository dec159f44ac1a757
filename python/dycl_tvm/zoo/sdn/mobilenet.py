# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Shallow-Deep MobileNet for 32x32 images."""

from __future__ import annotations

from torch import nn

from dycl_tvm.zoo.normalisation import open_norm
from dycl_tvm.zoo.sdn.network import ConvBlock, InternalClassifier, ShallowDeepNetwork

#: Channels and stride of each depthwise separable block.
CONFIG = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
#: The blocks (counted from 0) that have an internal classifier.
EXITS = frozenset({2, 4, 6, 8, 11})


def separable_convolution(in_channels: int, out_channels: int, stride: int) -> list[nn.Module]:
    """Return a depthwise 3x3 and a pointwise convolution, each with batch norm and ReLU."""
    return [
        nn.Conv2d(in_channels, in_channels, 3, stride=stride, padding=1, groups=in_channels, bias=False),
        open_norm(in_channels),
        nn.ReLU(),
        nn.Conv2d(in_channels, out_channels, 1, bias=False),
        open_norm(out_channels),
        nn.ReLU(),
    ]


class MobileNetSDN(ShallowDeepNetwork):
    """MobileNet with five internal classifiers and the final one."""

    def __init__(self, num_classes: int = 10, input_size: int = 32, confidence_threshold: float = 0.5) -> None:
        super().__init__(confidence_threshold)
        channels, size = 32, input_size
        self.init_conv = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1, bias=False), open_norm(channels), nn.ReLU())
        self.layers = nn.ModuleList()
        for i, (out_channels, stride) in enumerate(CONFIG):
            size //= stride
            output = InternalClassifier(size, out_channels, num_classes) if i in EXITS else None
            self.layers.append(ConvBlock(separable_convolution(channels, out_channels, stride), output))
            channels = out_channels
        self.end_layers = nn.Sequential(nn.AvgPool2d(size), nn.Flatten(), nn.Linear(channels, num_classes))
