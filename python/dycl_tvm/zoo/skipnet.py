# Licensed under the Apache License, Version 2.0; see LICENSE.
"""SkipNet: a residual network whose gates decide, block by block, which blocks run."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dycl_tvm.zoo.resnet import BasicBlock, conv3x3

State = tuple[Tensor, Tensor]


class RNNGate(nn.Module):
    """A recurrent gate, shared by all blocks; its hidden state lives on the module from gate to gate."""

    def __init__(self, input_dim: int = 10, hidden_dim: int = 10) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.rnn = nn.LSTM(input_dim, hidden_dim)
        self.hidden: State | None = None
        self.proj = nn.Linear(hidden_dim, 1)
        self.prob = nn.Sigmoid()

    def init_hidden(self, batch_size: int) -> State:
        """Return the state before the first gate."""
        return torch.zeros(1, batch_size, self.hidden_dim), torch.zeros(1, batch_size, self.hidden_dim)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step; return the decision (1: run the block) and its probability."""
        batch_size = x.size(0)
        out, self.hidden = self.rnn(x.view(1, batch_size, -1), self.hidden)
        prob = self.prob(self.proj(out.view(batch_size, -1)))
        mask = (prob > 0.5).float()
        return mask.view(batch_size, 1, 1, 1), prob


class FeedforwardGate(nn.Module):
    """A gate of its own for each block: max pooling, two convolutions, average pooling, two classes."""

    def __init__(self, size: int, channels: int) -> None:
        super().__init__()
        self.maxpool = nn.MaxPool2d(2)
        self.conv1 = conv3x3(channels, channels)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(channels, channels, stride=2)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu2 = nn.ReLU(inplace=True)
        self.avg_layer = nn.AvgPool2d(size // 4)
        self.linear_layer = nn.Conv2d(channels, 2, 1)
        self.prob_layer = nn.Softmax(dim=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the decision (1: run the block) and the probabilities of both."""
        x = self.maxpool(x)
        x = self.relu1(self.bn1(self.conv1(x)))
        x = self.relu2(self.bn2(self.conv2(x)))
        x = self.avg_layer(x)
        x = self.linear_layer(x).view(x.size(0), 2)
        softmax = self.prob_layer(x)
        mask = (softmax[:, 1] > 0.5).float()
        return mask.view(x.size(0), 1, 1, 1), softmax


class SkipNet(nn.Module):
    """What both SkipNets share: a ResNet of three groups, its modules found by name.

    ``group{g}_layer{i}`` is a block, ``group{g}_ds{i}`` the projection where the shape changes (else None) and
    ``group{g}_gate{i}`` the gate behind the block, that decides about the next one.
    """

    def __init__(self, layers: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.num_layers = layers
        self.inplanes = 16
        self.conv1 = conv3x3(3, 16)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        for group, (planes, size) in enumerate(((16, 32), (32, 16), (64, 8)), start=1):
            for i in range(layers[group - 1]):
                self._make_layer(group, i, planes, size)
        self.avgpool = nn.AvgPool2d(8)
        self.fc = nn.Linear(64, num_classes)

    def _make_layer(self, group: int, i: int, planes: int, size: int) -> None:
        stride = 2 if group > 1 and i == 0 else 1
        downsample = None
        if stride != 1 or self.inplanes != planes:
            downsample = nn.Sequential(nn.Conv2d(self.inplanes, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes))
        setattr(self, f"group{group}_ds{i}", downsample)
        setattr(self, f"group{group}_layer{i}", BasicBlock(self.inplanes, planes, stride, downsample))
        setattr(self, f"group{group}_gate{i}", self.make_gate(planes, size))
        self.inplanes = planes

    def make_gate(self, planes: int, size: int) -> nn.Module:
        """Return the gate behind a block with so many channels and so large a map."""
        raise NotImplementedError


class RecurrentSkipNet(SkipNet):
    """SkipNet with a recurrent gate: each block has its own embedding, all share one LSTM."""

    def __init__(self, layers: tuple[int, int, int] = (6, 6, 6), num_classes: int = 10, embed_dim: int = 10, hidden_dim: int = 10) -> None:
        self.embed_dim = embed_dim
        super().__init__(layers, num_classes)
        self.control = RNNGate(embed_dim, hidden_dim)

    def make_gate(self, planes: int, size: int) -> nn.Module:
        """Return the embedding of a feature map."""
        return nn.Sequential(nn.AvgPool2d(size), nn.Conv2d(planes, self.embed_dim, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return the logits, the decisions and the gates' probabilities."""
        x = self.relu(self.bn1(self.conv1(x)))

        self.control.hidden = self.control.init_hidden(x.size(0))

        masks = []
        gprobs = []
        # The first block always runs.
        x = getattr(self, "group1_layer0")(x)
        gate_feature = getattr(self, "group1_gate0")(x)
        mask, gprob = self.control(gate_feature)
        gprobs.append(gprob)
        masks.append(mask.squeeze())
        prev = x

        for g in range(3):
            for i in range(0 + int(g == 0), self.num_layers[g]):
                if mask == 1:
                    x = getattr(self, f"group{g + 1}_layer{i}")(x)
                elif getattr(self, f"group{g + 1}_ds{i}") is not None:
                    x = getattr(self, f"group{g + 1}_ds{i}")(prev)
                else:
                    x = prev
                prev = x
                gate_feature = getattr(self, f"group{g + 1}_gate{i}")(x)
                mask, gprob = self.control(gate_feature)
                gprobs.append(gprob)
                masks.append(mask.squeeze())

        # There is no block behind the last gate.
        masks.pop()

        x = self.avgpool(x)
        x = x.view(x.size(0), -1)
        return self.fc(x), masks, gprobs


class FeedforwardSkipNet(SkipNet):
    """SkipNet with a small convolutional gate behind each block."""

    def __init__(self, layers: tuple[int, int, int] = (6, 6, 6), num_classes: int = 10) -> None:
        super().__init__(layers, num_classes)

    def make_gate(self, planes: int, size: int) -> nn.Module:
        """Return the gate."""
        return FeedforwardGate(size, planes)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return the logits, the decisions and the gates' probabilities."""
        x = self.relu(self.bn1(self.conv1(x)))

        masks = []
        gprobs = []
        # The first block always runs.
        x = getattr(self, "group1_layer0")(x)
        mask, gprob = getattr(self, "group1_gate0")(x)
        gprobs.append(gprob)
        masks.append(mask.squeeze())
        prev = x

        for g in range(3):
            for i in range(0 + int(g == 0), self.num_layers[g]):
                if mask == 1:
                    x = getattr(self, f"group{g + 1}_layer{i}")(x)
                elif getattr(self, f"group{g + 1}_ds{i}") is not None:
                    x = getattr(self, f"group{g + 1}_ds{i}")(prev)
                else:
                    x = prev
                prev = x
                mask, gprob = getattr(self, f"group{g + 1}_gate{i}")(x)
                gprobs.append(gprob)
                masks.append(mask.squeeze())

        # There is no block behind the last gate.
        masks.pop()

        x = self.avgpool(x)
        x = x.view(x.size(0), -1)
        return self.fc(x), masks, gprobs
