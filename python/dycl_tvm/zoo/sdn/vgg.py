# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Shallow-Deep VGG-16 with batch norm for 32x32 images."""

from __future__ import annotations

from torch import nn

from dycl_tvm.zoo.sdn.network import ConvBlock, InternalClassifier, ShallowDeepNetwork

CHANNELS = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
#: The convolutions (counted from 0) that are followed by a 2x2 max pooling.
POOLS = frozenset({1, 3, 6, 9, 12})
#: The blocks (counted from 0) that have an internal classifier.
EXITS = frozenset({1, 3, 5, 6, 8, 9})


class VGG16BNSDN(ShallowDeepNetwork):
    """VGG-16 with six internal classifiers and the final one."""

    def __init__(self, num_classes: int = 10, input_size: int = 32, fc_width: int = 512, confidence_threshold: float = 0.5) -> None:
        super().__init__(confidence_threshold)
        channels, size = 3, input_size
        self.init_conv = nn.Sequential()
        self.layers = nn.ModuleList()
        for i, out_channels in enumerate(CHANNELS):
            layers: list[nn.Module] = [nn.Conv2d(channels, out_channels, 3, padding=1), nn.BatchNorm2d(out_channels), nn.ReLU()]
            if i in POOLS:
                layers.append(nn.MaxPool2d(2))
                size //= 2
            output = InternalClassifier(size, out_channels, num_classes) if i in EXITS else None
            self.layers.append(ConvBlock(layers, output))
            channels = out_channels
        hidden = [nn.Flatten(), nn.Linear(channels * size * size, fc_width), nn.ReLU(), nn.Dropout(0.5)]
        self.layers.append(ConvBlock(hidden, None))
        self.end_layers = nn.Sequential(nn.Linear(fc_width, fc_width), nn.Dropout(0.5), nn.Linear(fc_width, num_classes))
