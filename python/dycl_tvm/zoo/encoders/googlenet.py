# Licensed under the Apache License, Version 2.0; see LICENSE.
"""GoogLeNet (Inception v1 with batch norm) without its pooling and classifiers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicConv2d(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=padding, bias=False)
        self.bn = nn.BatchNorm2d(out_channels, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """Run the three."""
        return F.relu(self.bn(self.conv(x)), inplace=True)


class Inception(nn.Module):
    """Four parallel branches, their channels concatenated.

    The third branch has a 3x3 kernel, as in the widespread weights of this network, not the paper's 5x5.
    """

    def __init__(self, in_channels: int, ch1: int, ch3_reduce: int, ch3: int, ch5_reduce: int, ch5: int, pool_proj: int) -> None:
        super().__init__()
        self.branch1 = BasicConv2d(in_channels, ch1, 1)
        self.branch2 = nn.Sequential(BasicConv2d(in_channels, ch3_reduce, 1), BasicConv2d(ch3_reduce, ch3, 3, padding=1))
        self.branch3 = nn.Sequential(BasicConv2d(in_channels, ch5_reduce, 1), BasicConv2d(ch5_reduce, ch5, 3, padding=1))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True), BasicConv2d(in_channels, pool_proj, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Run the branches."""
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class GoogLeNetTrunk(nn.Sequential):
    """Images to maps of 1024 channels at 1/32 of the size."""

    out_channels = 1024

    def __init__(self) -> None:
        super().__init__(
            BasicConv2d(3, 64, 7, stride=2, padding=3),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            BasicConv2d(64, 64, 1),
            BasicConv2d(64, 192, 3, padding=1),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            Inception(192, 64, 96, 128, 16, 32, 32),
            Inception(256, 128, 128, 192, 32, 96, 64),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            Inception(480, 192, 96, 208, 16, 48, 64),
            Inception(512, 160, 112, 224, 24, 64, 64),
            Inception(512, 128, 128, 256, 24, 64, 64),
            Inception(512, 112, 144, 288, 32, 64, 64),
            Inception(528, 256, 160, 320, 32, 128, 128),
            nn.MaxPool2d(2, stride=2, ceil_mode=True),
            Inception(832, 256, 160, 320, 32, 128, 128),
            Inception(832, 384, 192, 384, 48, 128, 128),
        )
