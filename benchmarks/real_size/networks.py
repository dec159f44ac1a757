# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Networks of the size that users have, with random weights: from torchvision's and others' papers, and models of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    made = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    norm = nn.BatchNorm2d(outputs)
    nn.init.kaiming_normal_(made.weight, mode="fan_out", nonlinearity="relu")
    return [made, norm]


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *_conv(inputs, width, 1), nn.ReLU(), *_conv(width, width, 3, stride), nn.ReLU(), *_conv(width, outputs, 1)
        )  # fmt: skip
        nn.init.constant_(self.body[-1].weight, 0.3)  # so that 16 sums do not grow
        self.skip = nn.Sequential(*_conv(inputs, outputs, 1, stride)) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def resnet50() -> nn.Module:
    """Return ResNet-50 for images of 224 x 224."""
    layers: list[nn.Module] = [*_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for k in range(blocks):
            layers.append(_Bottleneck(inputs, 64 << stage, 2 if stage and not k else 1))
            inputs = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class _Inverted(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        width = inputs * expand
        wide = [] if expand == 1 else [*_conv(inputs, width, 1), nn.ReLU6()]
        self.body = nn.Sequential(*wide, *_conv(width, width, 3, stride, width), nn.ReLU6(), *_conv(width, outputs, 1))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def mobilenet_v2() -> nn.Module:
    """Return MobileNetV2 for images of 224 x 224."""
    layers: list[nn.Module] = [*_conv(3, 32, 3, 2), nn.ReLU6()]
    inputs = 32
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for expand, outputs, repeats, stride in stages:
        for k in range(repeats):
            layers.append(_Inverted(inputs, outputs, stride if k == 0 else 1, expand))
            inputs = outputs
    return nn.Sequential(*layers, *_conv(320, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


def perceptron() -> nn.Module:
    """Return a perceptron of 1024, 4096, 4096 and 1024."""
    return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1024))


class _UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512)) -> None:
        super().__init__()
        ends = (3, *widths)
        self.down = nn.ModuleList(_pair(a, b) for a, b in zip(ends, widths))
        self.up = nn.ModuleList(_pair(a + b, b) for a, b in zip(widths[:0:-1], widths[-2::-1]))
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for k, block in enumerate(self.down):
            x = block(nn.functional.max_pool2d(x, 2) if k else x)
            kept.append(x)
        for block, skip in zip(self.up, kept[-2::-1]):
            x = block(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), skip], 1))
        return self.head(x)


def _pair(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(*_conv(inputs, outputs, 3), nn.ReLU(), *_conv(outputs, outputs, 3), nn.ReLU())


class _First(nn.Module):
    """A model of transformers whose result is the tensor that matters."""

    def __init__(self, model: nn.Module, **fixed: Any) -> None:
        super().__init__()
        self.model, self.fixed = model, fixed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x, **self.fixed)[0]


def _of_transformers(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        return _First(getattr(transformers, model)(getattr(transformers, config)(**settings)), return_dict=False)

    return make


def _tokens(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(0, 30000, shape)


#: Name to the network, the shape of its input without the batch, and what makes an input.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Callable[[tuple[int, ...]], torch.Tensor]]] = {
    "ResNet-50, 224": (resnet50, (3, 224, 224), torch.randn),
    "MobileNetV2, 224": (mobilenet_v2, (3, 224, 224), torch.randn),
    "EfficientNet-B0, 224": (_of_transformers("EfficientNetModel", "EfficientNetConfig", image_size=224, width_coefficient=1.0,
        depth_coefficient=1.0, hidden_dim=1280), (3, 224, 224), torch.randn),
    "ConvNeXt-Tiny, 224": (_of_transformers("ConvNextModel", "ConvNextConfig"), (3, 224, 224), torch.randn),
    "U-Net, 128": (_UNet, (3, 128, 128), torch.randn),
    "MLP 1024-4096-4096-1024": (perceptron, (1024,), torch.randn),
    "ViT-B/16, 224": (_of_transformers("ViTModel", "ViTConfig"), (3, 224, 224), torch.randn),
    "Swin-T, 224": (_of_transformers("SwinModel", "SwinConfig"), (3, 224, 224), torch.randn),
    "BERT-base, 128 tokens": (_of_transformers("BertModel", "BertConfig"), (128,), _tokens),
    "GPT-2 124M, 64 tokens": (_of_transformers("GPT2Model", "GPT2Config", use_cache=False), (64,), _tokens),
}  # fmt: skip


def make(name: str, batch: int = 1) -> tuple[nn.Module, list[torch.Tensor]]:
    """Return a network with random weights, and inputs."""
    torch.manual_seed(0)
    maker, shape, draw = NETWORKS[name]
    return maker().eval(), [draw((batch, *shape)) for _ in range(4)]
