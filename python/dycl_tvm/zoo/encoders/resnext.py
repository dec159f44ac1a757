# Licensed under the Apache License, Version 2.0; see LICENSE.
"""ResNeXt-50 32x4d without its pooling and classifier."""

from __future__ import annotations

from torch import Tensor, nn

from dycl_tvm.zoo.normalisation import residual_norm


class Bottleneck(nn.Module):
    """1x1, grouped 3x3, 1x1, around a shortcut."""

    expansion = 4

    def __init__(self, inplanes: int, planes: int, stride: int, groups: int, base_width: int) -> None:
        super().__init__()
        width = planes * base_width // 64 * groups
        out_planes = planes * self.expansion
        self.conv1 = nn.Conv2d(inplanes, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_planes, 1, bias=False)
        self.bn3 = residual_norm(out_planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inplanes != out_planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, out_planes, 1, stride=stride, bias=False), nn.BatchNorm2d(out_planes))

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNeXtTrunk(nn.Sequential):
    """Images to maps of 2048 channels at 1/32 of the size.

    Parameters
    ----------
    layers : tuple of int
        Blocks in each of the four stages.
    groups, base_width : int
        Cardinality, and width of a group in the first stage.
    """

    out_channels = 2048

    def __init__(self, layers: tuple[int, int, int, int] = (3, 4, 6, 3), groups: int = 32, base_width: int = 4) -> None:
        stem = [nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        stages: list[nn.Module] = []
        inplanes = 64
        for planes, blocks, stride in zip((64, 128, 256, 512), layers, (1, 2, 2, 2)):
            stage = []
            for i in range(blocks):
                stage.append(Bottleneck(inplanes, planes, stride if i == 0 else 1, groups, base_width))
                inplanes = planes * Bottleneck.expansion
            stages.append(nn.Sequential(*stage))
        super().__init__(*stem, nn.MaxPool2d(3, stride=2, padding=1), *stages)
