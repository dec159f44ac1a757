# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Three networks of SoD2's table with control flow, written from their papers, for images of any height and width.

Weights are random. As in the zoo, gates and exits are calibrated, so that inputs take different paths.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from dycl_tvm.zoo.calibrate.common import calibrate_batch_norm, forced_outputs, normalise, recorded_outputs
from dycl_tvm.zoo.normalisation import residual_norm
from dycl_tvm.zoo.resnet import BasicBlock, conv3x3

_WIDTHS = (16, 32, 64)


class _Gate(nn.Module):
    """Whether a block runs, by the mean of each channel of its input: two layers, two classes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner, self.classes = nn.Linear(channels, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.classes(functional.relu(self.inner(x.mean((2, 3)))))
        return scores[0, 1] > scores[0, 0]


class ConvNetAIG(nn.Module):
    """Adaptive inference graphs (Veit and Belongie, ECCV 2018) on a ResNet: each block has a gate of its own."""

    def __init__(self, blocks: int = 6) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv3x3(3, _WIDTHS[0]), nn.BatchNorm2d(_WIDTHS[0]), nn.ReLU())
        self.blocks, self.gates = nn.ModuleList(), nn.ModuleList()
        before = _WIDTHS[0]
        for width in _WIDTHS:
            for k in range(blocks):
                stride = 2 if k == 0 and width > before else 1
                shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))
                self.blocks.append(BasicBlock(before, width, stride, shortcut if before != width else None))
                self.gates.append(_Gate(before))
                before = width
        self.head = nn.Linear(before, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block, gate in zip(self.blocks, self.gates):
            if gate(x):
                x = block(x)
            elif block.downsample is not None:
                x = functional.relu(block.downsample(x))
        return self.head(x.mean((2, 3)))


class _Dual(nn.Module):
    """A block with two gates: at which places its second convolution is computed, and which channels its first one gives."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first, self.norm1 = conv3x3(before, width, stride), nn.BatchNorm2d(width)
        self.second, self.norm2 = conv3x3(width, width), residual_norm(width)
        self.places, self.channels = nn.Conv2d(before, 1, 3, stride, 1), nn.Linear(before, width)
        self.shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)) if before != width else None

    def forward(self, x: Tensor) -> Tensor:
        open_places = self.places(x) > 0
        short = x if self.shortcut is None else self.shortcut(x)
        if not open_places.any():
            return functional.relu(short)
        open_channels = self.channels(x.mean((2, 3))) > 0
        y = functional.relu(self.norm1(self.first(x))) * open_channels[:, :, None, None]
        return functional.relu(short + self.norm2(self.second(y)) * open_places)


class DGNet(nn.Module):
    """Dynamic dual gating (Li et al., ICCV 2021) on a ResNet; a block without an open place does not run."""

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv3x3(3, _WIDTHS[0]), nn.BatchNorm2d(_WIDTHS[0]), nn.ReLU())
        ends = [_WIDTHS[0], *(width for width in _WIDTHS for _ in range(blocks))]
        self.blocks = nn.ModuleList(_Dual(a, b, 2 if b > a else 1) for a, b in itertools.pairwise(ends))
        self.head = nn.Linear(ends[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class _Dense(nn.Module):
    """Layers of which each adds channels to what it sees."""

    def __init__(self, before: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(before + k * growth), nn.ReLU(), conv3x3(before + k * growth, growth)) for k in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


class RANet(nn.Module):
    """Resolution adaptive networks (Yang et al., CVPR 2020): larger pictures are looked at while the answer is not sure.

    Each of three sub-networks sees the picture at twice the resolution of the one before, and what that one found; each has two
    blocks of dense layers, and a classifier behind each block, which ends the network if it is sure enough.
    """

    def __init__(self, width: int = 16, layers: int = 3) -> None:
        super().__init__()
        self.scales = nn.ModuleList(
            nn.Sequential(conv3x3(3 if k == 0 else width, width, 1 + (k > 0)), nn.BatchNorm2d(width), nn.ReLU()) for k in range(3)
        )
        self.blocks, self.heads = nn.ModuleList(), nn.ModuleList()
        found = [0, 0]
        for _ in self.scales:
            before = width
            for k in range(2):
                self.blocks.append(_Dense(before + found[k], width, layers))
                found[k] = before = before + found[k] + layers * width
                self.heads.append(nn.Linear(before, 10))
        self.thresholds = [2.0] * len(self.heads)

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        pictures = []
        for scale in self.scales:
            x = scale(x)
            pictures.append(x)
        before: list[Tensor] = []
        for s, x in enumerate(reversed(pictures)):
            found = []
            for k in range(2):
                if before:
                    x = torch.cat([x, functional.interpolate(before[k], scale_factor=2.0, mode="bilinear")], 1)
                x = self.blocks[2 * s + k](x)
                found.append(x)
                scores = self.heads[2 * s + k](x.mean((2, 3)))
                if scores.softmax(1).max() > self.thresholds[2 * s + k]:
                    return scores, 2 * s + k
            before = found
        return scores, len(self.heads)


@torch.no_grad()
def calibrate_aig(model: ConvNetAIG, images: Tensor) -> None:
    """Set the norms with all blocks running, then the gates so that each opens for about half of the images."""
    with forced_outputs(model.gates, lambda _: torch.tensor(True)):
        calibrate_batch_norm(model, lambda: [model(x) for x in images.split(16)])
        layers = [gate.classes for gate in model.gates]
        with recorded_outputs(layers) as found:
            model(images)
    for layer, scores in zip(layers, found):
        normalise(layer, scores[0], 2.0)


@torch.no_grad()
def calibrate_dual(model: DGNet, images: Tensor) -> None:
    """Set the norms, and the gates so that some blocks have no open place, and each channel is open for half of the images."""
    calibrate_batch_norm(model, lambda: [model(x) for x in images.split(16)])
    for block in model.blocks:
        with recorded_outputs([block.places, block.channels]) as found:
            model(images)
        most = found[0][0].flatten(1).max(1).values
        block.places.bias -= most.quantile(0.3)
        if found[1]:
            normalise(block.channels, found[1][0])


@torch.no_grad()
def calibrate_ranet(model: RANet, images: Tensor) -> None:
    """Set the norms, and of each classifier the confidence with which one image in seven leaves, of those that came there."""
    calibrate_batch_norm(model, lambda: [model(x) for x in images.split(16)])
    with recorded_outputs(model.heads) as found:
        model(images)
    here = torch.ones(len(images), dtype=torch.bool)
    for k, (head, scores) in enumerate(zip(model.heads, found)):
        sure = normalise(head, scores[0], 2.0).softmax(1).max(1).values
        model.thresholds[k] = float(sure[here].quantile(1 - 1 / (len(found) + 1 - k)))
        here &= sure <= model.thresholds[k]
