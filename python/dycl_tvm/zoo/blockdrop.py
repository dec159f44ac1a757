# Licensed under the Apache License, Version 2.0; see LICENSE.
"""BlockDrop: a policy network looks at the image once and says which blocks of a ResNet run."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dycl_tvm.zoo.normalisation import residual_norm
from dycl_tvm.zoo.resnet import conv3x3


class ResidualBranch(nn.Module):
    """The residual branch of a block; the shortcut and the last ReLU are the network's."""

    def __init__(self, inplanes: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = conv3x3(inplanes, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = residual_norm(planes)

    def forward(self, x: Tensor) -> Tensor:
        """Run the branch."""
        out = self.relu(self.bn1(self.conv1(x)))
        return self.bn2(self.conv2(out))


class DownsampleB(nn.Module):
    """A shortcut without weights: average pooling, and channels of zeros."""

    def __init__(self, inplanes: int, planes: int, stride: int) -> None:
        super().__init__()
        self.avg = nn.AvgPool2d(stride)
        self.expand_ratio = planes // inplanes

    def forward(self, x: Tensor) -> Tensor:
        """Return the smaller map with more channels."""
        x = self.avg(x)
        return torch.cat([x] + [x.mul(0)] * (self.expand_ratio - 1), 1)


class FlatResNet(nn.Module):
    """A ResNet for 32x32 images whose blocks are in lists, so that each can run or be dropped."""

    def __init__(self, layers: tuple[int, int, int], head: nn.Module) -> None:
        super().__init__()
        self.layer_config = layers
        self.inplanes = 16
        self.conv1 = conv3x3(3, 16)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.avgpool = nn.AvgPool2d(8)
        self.blocks = nn.ModuleList()
        self.ds = nn.ModuleList()
        for planes, num_blocks, stride in zip((16, 32, 64), layers, (1, 2, 2)):
            blocks, downsample = self._make_layer(planes, num_blocks, stride)
            self.blocks.append(nn.ModuleList(blocks))
            self.ds.append(downsample)
        self.fc = head

    def _make_layer(self, planes: int, num_blocks: int, stride: int) -> tuple[list[nn.Module], nn.Module]:
        downsample: nn.Module = nn.Sequential()
        if stride != 1 or self.inplanes != planes:
            downsample = DownsampleB(self.inplanes, planes, stride)
        blocks: list[nn.Module] = [ResidualBranch(self.inplanes, planes, stride)]
        blocks += [ResidualBranch(planes, planes) for _ in range(1, num_blocks)]
        self.inplanes = planes
        return blocks, downsample

    def seed(self, x: Tensor) -> Tensor:
        """Run the stem."""
        return self.relu(self.bn1(self.conv1(x)))

    def head(self, x: Tensor) -> Tensor:
        """Run what follows the blocks."""
        x = self.avgpool(x)
        x = x.view(x.size(0), -1)
        return self.fc(x)

    def forward(self, x: Tensor, policy: Tensor) -> Tensor:
        """Run the blocks for which ``policy`` (one number a block) is 1."""
        x = self.seed(x)
        t = 0
        for segment, num_blocks in enumerate(self.layer_config):
            for b in range(num_blocks):
                residual = self.ds[segment](x) if b == 0 else x
                if policy[t] == 1:
                    x = residual + self.blocks[segment][b](x)  # type: ignore[index]  # a ModuleList of ModuleLists
                    x = F.relu(x)
                else:
                    x = residual
                t += 1
        return self.head(x)

    def forward_full(self, x: Tensor) -> Tensor:
        """Run all blocks."""
        x = self.seed(x)
        for segment, num_blocks in enumerate(self.layer_config):
            for b in range(num_blocks):
                residual = self.ds[segment](x) if b == 0 else x
                x = F.relu(residual + self.blocks[segment][b](x))  # type: ignore[index]  # a ModuleList of ModuleLists
        return self.head(x)


class Policy(nn.Module):
    """A ResNet-8 that gives each block of the big network a probability (and, for training, values the state)."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self.features = FlatResNet((1, 1, 1), head=nn.Sequential())
        self.logit = nn.Linear(64, num_blocks)
        self.vnet = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probabilities and the value."""
        x = self.features.forward_full(x)
        value = self.vnet(x)
        probs = torch.sigmoid(self.logit(x))
        return probs, value


class BlockDrop(nn.Module):
    """The policy network and the ResNet together, for one image."""

    def __init__(self, layers: tuple[int, int, int] = (18, 18, 18), num_classes: int = 10) -> None:
        super().__init__()
        self.agent = Policy(sum(layers))
        self.net = FlatResNet(layers, head=nn.Linear(64, num_classes))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the policy."""
        probs, _ = self.agent(x)
        policy = (probs > 0.5).long()
        return self.net(x, policy[0]), policy
