# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The residual block of the CIFAR ResNets that SkipNet and BlockDrop build on."""

from __future__ import annotations

from torch import Tensor, nn

from dycl_tvm.zoo.normalisation import residual_norm


def conv3x3(in_planes: int, out_planes: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3x3 convolution that keeps the size (at stride 1), without bias."""
    return nn.Conv2d(in_planes, out_planes, kernel_size=3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inplanes: int, planes: int, stride: int = 1, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1 = conv3x3(inplanes, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = residual_norm(planes)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        residual = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            residual = self.downsample(x)
        out += residual
        return self.relu(out)
