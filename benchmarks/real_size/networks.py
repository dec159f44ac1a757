# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Networks of the size that users have, with random weights: from torchvision's and others' papers, and models of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sod2.networks import YOLOv6
from torch import nn

from dycl_tvm.zoo.calibrate.common import calibrate_batch_norm
from dycl_tvm.zoo.modern.gpt import GreedyGPT

Inputs = tuple[torch.Tensor, ...]


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    made = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    norm = nn.BatchNorm2d(outputs)
    nn.init.kaiming_normal_(made.weight, mode="fan_out", nonlinearity="relu")
    return [made, norm]


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *conv(inputs, width, 1), nn.ReLU(), *conv(width, width, 3, stride), nn.ReLU(), *conv(width, outputs, 1)
        )  # fmt: skip
        nn.init.constant_(self.body[-1].weight, 0.3)  # so that 16 sums do not grow
        self.skip = nn.Sequential(*conv(inputs, outputs, 1, stride)) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def resnet50() -> nn.Module:
    """Return ResNet-50 for images of 224 x 224."""
    layers: list[nn.Module] = [*conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for k in range(blocks):
            layers.append(Bottleneck(inputs, 64 << stage, 2 if stage and not k else 1))
            inputs = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class _Inverted(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        width = inputs * expand
        wide = [] if expand == 1 else [*conv(inputs, width, 1), nn.ReLU6()]
        self.body = nn.Sequential(*wide, *conv(width, width, 3, stride, width), nn.ReLU6(), *conv(width, outputs, 1))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def mobilenet_v2() -> nn.Module:
    """Return MobileNetV2 for images of 224 x 224."""
    layers: list[nn.Module] = [*conv(3, 32, 3, 2), nn.ReLU6()]
    inputs = 32
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for expand, outputs, repeats, stride in stages:
        for k in range(repeats):
            layers.append(_Inverted(inputs, outputs, stride if k == 0 else 1, expand))
            inputs = outputs
    return nn.Sequential(*layers, *conv(320, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


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
    return nn.Sequential(*conv(inputs, outputs, 3), nn.ReLU(), *conv(outputs, outputs, 3), nn.ReLU())


class _First(nn.Module):
    """A model of transformers whose result is the tensor that matters."""

    def __init__(self, model: nn.Module, **fixed: Any) -> None:
        super().__init__()
        self.model, self.fixed = model, fixed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x, **self.fixed)[0]


def _of_transformers(model: str, config: str, part: str = "", **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        made = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return _First(made.get_submodule(part), return_dict=False)

    return make


def gpt2(most_tokens: int = 1024, most_new: int = 1) -> GreedyGPT:
    """Return GPT-2 with 124M parameters, whose last layer has the table of the embedding."""
    model = GreedyGPT(50257, 768, 12, 12, most_tokens, most_new)
    nn.init.normal_(model.wte.weight, std=0.02)
    model.lm_head.weight = model.wte.weight
    nn.init.zeros_(model.lm_head.bias)
    return model


class _Step(nn.Module):
    """A token of GPT-2 behind others whose keys and values, (layer, batch, head, time, size), are known; gives those of the new one."""

    def __init__(self) -> None:
        super().__init__()
        self.model = gpt2()

    def forward(self, token: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scores, past = self.model.step(token, list(zip(keys.unbind(), values.unbind())))
        return scores, torch.stack([k[:, :, -1] for k, _ in past]), torch.stack([v[:, :, -1] for _, v in past])


def _behind(length: int) -> Callable[[int], Inputs]:
    def draw(batch: int) -> Inputs:
        cache = (12, batch, 12, length, 64)
        return torch.randint(0, 50257, (batch, 1)), torch.randn(cache), torch.randn(cache)

    return draw


def _normal(*shape: int) -> Callable[[int], Inputs]:
    return lambda batch: (torch.randn(batch, *shape),)


def _words(length: int) -> Callable[[int], Inputs]:
    return lambda batch: (torch.randint(0, 30000, (batch, length)),)


#: Name to the network, and what makes inputs of a batch.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Inputs]]] = {
    "ResNet-50, 224": (resnet50, _normal(3, 224, 224)),
    "MobileNetV2, 224": (mobilenet_v2, _normal(3, 224, 224)),
    "EfficientNet-B0, 224": (_of_transformers("EfficientNetModel", "EfficientNetConfig", image_size=224, width_coefficient=1.0,
        depth_coefficient=1.0, hidden_dim=1280, initializer_range=0.3), _normal(3, 224, 224)),
    "ConvNeXt-Tiny, 224": (_of_transformers("ConvNextModel", "ConvNextConfig"), _normal(3, 224, 224)),
    "U-Net, 128": (_UNet, _normal(3, 128, 128)),
    "YOLOv6-N, 640": (YOLOv6, _normal(3, 640, 640)),
    "MLP 1024-4096-4096-1024": (perceptron, _normal(1024)),
    "ViT-B/16, 224": (_of_transformers("ViTModel", "ViTConfig"), _normal(3, 224, 224)),
    "Swin-T, 224": (_of_transformers("SwinModel", "SwinConfig"), _normal(3, 224, 224)),
    "BERT-base, 128 tokens": (_of_transformers("BertModel", "BertConfig"), _words(128)),
    "Whisper-tiny, encoder": (_of_transformers("WhisperModel", "WhisperConfig", "encoder", d_model=384, encoder_layers=4,
        encoder_attention_heads=6, encoder_ffn_dim=1536, decoder_layers=1), _normal(80, 3000)),
    "GPT-2 124M, 64 tokens": (_of_transformers("GPT2Model", "GPT2Config", use_cache=False), _words(64)),
    "GPT-2 124M, a token behind 256": (_Step, _behind(256)),
}  # fmt: skip


def make(name: str, batch: int = 1) -> tuple[nn.Module, list[Inputs]]:
    """Return a network with random weights, and inputs.

    Batch norms have the statistics of the first input, as trained ones have those of their data. Otherwise numbers shrink or grow from
    layer to layer, to denormal ones in the end, which some CPUs add and multiply a hundred times slower.
    """
    torch.manual_seed(0)
    maker, draw = NETWORKS[name]
    model, inputs = maker().eval().requires_grad_(False), [draw(batch) for _ in range(4)]
    calibrate_batch_norm(model, lambda: model(*inputs[0]))
    return model, inputs
