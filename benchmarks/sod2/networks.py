# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The networks of SoD2's table, with random weights, and the ranges of their inputs' sizes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dycl_tvm import zoo
from dycl_tvm.zoo.images import batch_of_images, random_images
from sod2 import gated


class _First(nn.Module):
    """A model of transformers whose first result is the tensor that matters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, return_dict=False)[0]


def _conformer() -> nn.Module:
    """Return the encoder of Conformer S (Gulati et al., Interspeech 2020), with the subsampling of Parakeet."""
    from transformers import ParakeetEncoder, ParakeetEncoderConfig

    return _First(
        ParakeetEncoder(
            ParakeetEncoderConfig(
                hidden_size=144, num_hidden_layers=16, num_attention_heads=4, intermediate_size=576, conv_kernel_size=31,
                subsampling_conv_channels=144, subsampling_factor=4,
            )
        )
    )  # fmt: skip


def _codebert() -> nn.Module:
    """Return CodeBERT (Feng et al., EMNLP 2020), which is RoBERTa's base."""
    from transformers import RobertaConfig, RobertaModel

    return _First(RobertaModel(RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1), add_pooling_layer=False))


def _conv(before: int, after: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, kernel, stride, kernel // 2), nn.ReLU())


def _stage(before: int, after: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(_conv(before, after), *(_conv(after, after) for _ in range(blocks - 1)))


class YOLOv6(nn.Module):
    """YOLOv6-N (Li et al., 2022) as it is deployed: each RepVGG block is one convolution. Scores and boxes of each place, before NMS."""

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        widths = (16, 32, 64, 128, 256)
        self.stem = _conv(3, 16, stride=2)
        self.down = nn.ModuleList(_conv(a, b, stride=2) for a, b in pairwise(widths))
        self.stages = nn.ModuleList(_stage(width, width, blocks) for width, blocks in zip(widths[1:], (2, 4, 6, 2)))
        self.squeeze, self.pooled = _conv(256, 128, 1), _conv(512, 256, 1)
        self.reduce = nn.ModuleList([_conv(256, 64, 1), _conv(64, 32, 1)])
        self.rise = nn.ModuleList([nn.ConvTranspose2d(64, 64, 2, 2), nn.ConvTranspose2d(32, 32, 2, 2)])
        self.up = nn.ModuleList([_stage(64 + 128, 64, 4), _stage(32 + 64, 32, 4)])
        self.fall = nn.ModuleList([_conv(32, 32, stride=2), _conv(64, 64, stride=2)])
        self.back = nn.ModuleList([_stage(32 + 32, 64, 4), _stage(64 + 64, 128, 4)])
        self.heads = nn.ModuleList(
            nn.ModuleList(
                [
                    _conv(w, w, 1),
                    nn.Sequential(_conv(w, w), nn.Conv2d(w, classes, 1), nn.Sigmoid()),
                    nn.Sequential(_conv(w, w), nn.Conv2d(w, 4, 1)),
                ]
            )
            for w in (32, 64, 128)
        )
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x, kept = self.stem(x), []
        for down, stage in zip(self.down, self.stages):
            x = stage(down(x))
            kept.append(x)
        pools = [self.squeeze(x)]
        for _ in range(3):
            pools.append(functional.max_pool2d(pools[-1], 5, 1, 2))
        x = self.pooled(torch.cat(pools, 1))
        lateral = []
        for reduce, rise, up, skip in zip(self.reduce, self.rise, self.up, (kept[2], kept[1])):
            x = reduce(x)
            lateral.append(x)
            x = up(torch.cat([rise(x), skip], 1))
        maps = [x]
        for fall, back, skip in zip(self.fall, self.back, lateral[::-1]):
            x = back(torch.cat([fall(x), skip], 1))
            maps.append(x)
        found = []
        for (stem, scores, boxes), of, stride in zip(self.heads, maps, (8, 16, 32)):
            y = stem(of)
            found.append(torch.cat([scores(y), boxes(y) * stride], 1).flatten(2))
        return torch.cat(found, 2).transpose(1, 2)


def _of_zoo(name: str) -> nn.Module:
    """Return a network of the zoo whose last means are over maps of any size."""
    model = zoo.load(name).model
    for module in list(model.modules()):
        for child, pool in list(module.named_children()):
            if isinstance(pool, nn.AvgPool2d) and pool.kernel_size > 2:  # one of 2 halves a map
                setattr(module, child, nn.AdaptiveAvgPool2d(1))
    return model


def _calibrated(make: Callable[[], Any], calibrate: Callable[[Any, Tensor], None]) -> nn.Module:
    model = make().eval().requires_grad_(False)
    calibrate(model, batch_of_images(64, 32, torch.Generator().manual_seed(0)))
    return model


@dataclass(frozen=True)
class Network:
    """A network: what draws its input at given sizes, which dimensions are open, and between which sizes: so many steps, and ``more``."""

    make: Callable[[], nn.Module]
    draw: Callable[[torch.Generator, Any], Tensor]
    dims: dict[int, str]
    least: int
    most: int
    step: int
    gated: bool = False
    more: int = 0

    def model(self) -> nn.Module:
        """Return the network; equal calls give equal weights."""
        torch.manual_seed(0)
        return self.make().eval().requires_grad_(False)

    def example(self) -> Tensor:
        """Return an input of the largest sizes."""
        return self.draw(torch.Generator().manual_seed(1), [self.most] * len(self.dims))

    def inputs(self, n: int) -> list[Tensor]:
        """Return inputs of random sizes, the same in each call."""
        sizes, generator = random.Random(2), torch.Generator().manual_seed(2)
        return [self.draw(generator, [sizes.randrange(self.least, self.most + 1, self.step) for _ in self.dims]) for _ in range(n)]

    def range(self) -> str:
        """Say between which sizes inputs are."""
        return f"{' and '.join(self.dims.values())} from {self.least} to {self.most}"

    def shapes(self, dim: Callable[..., Any]) -> tuple[dict[int, Any]]:
        """Return the dynamic shapes, in the words of ``dim``, a ``Dim``."""
        low, high = (self.least - self.more) // self.step, (self.most - self.more) // self.step
        named = {name: dim(name, min=low, max=high) for name in self.dims.values()}
        if self.step > 1:
            named = {name: self.step * size + self.more if self.more else self.step * size for name, size in named.items()}
        return ({d: named[name] for d, name in self.dims.items()},)


def _image(generator: torch.Generator, sizes: list[int]) -> Tensor:
    """Return an image of a kind that follows from the generator."""
    skipped = int(torch.randint(64, (), generator=generator))
    image = next(islice(random_images(max(sizes), generator), skipped, None))
    return image[:, :, : sizes[0], : sizes[1]].contiguous()


def _images(make: Callable[[], nn.Module], least: int, most: int, step: int, gated: bool = True) -> Network:
    return Network(make, _image, {2: "H", 3: "W"}, least, most, step, gated)


NETWORKS = {
    "Conformer": Network(_conformer, lambda g, s: torch.randn(1, s[0], 80, generator=g), {1: "T"}, 65, 765, 4, more=1),
    "CodeBERT": Network(_codebert, lambda g, s: torch.randint(2, 50000, (1, s[0]), generator=g), {1: "T"}, 16, 256, 1),
    "YOLOv6-N": _images(YOLOv6, 192, 448, 32, gated=False),
    "SkipNet": _images(lambda: _of_zoo("skipnet38_rnn"), 32, 128, 4),
    "ConvNet-AIG": _images(lambda: _calibrated(gated.ConvNetAIG, gated.calibrate_aig), 32, 128, 4),
    "RANet": _images(lambda: _calibrated(gated.RANet, gated.calibrate_ranet), 32, 128, 4),
    "BlockDrop": _images(lambda: _of_zoo("blockdrop_resnet110"), 32, 128, 4),
    "DGNet": _images(lambda: _calibrated(gated.DGNet, gated.calibrate_dual), 32, 128, 4),
}
