# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The list of the zoo's networks, and how each is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn

from dycl_tvm.zoo.blockdrop import BlockDrop
from dycl_tvm.zoo.calibrate import calibrate_block_drop, calibrate_captioning, calibrate_exits, calibrate_skip_net
from dycl_tvm.zoo.captioning import ShowAttendTell
from dycl_tvm.zoo.encoders import GoogLeNetTrunk, ResNeXtTrunk
from dycl_tvm.zoo.images import batch_of_images, random_images
from dycl_tvm.zoo.modern.recipes import RECIPES as MODERN
from dycl_tvm.zoo.recipe import Recipe, Samples
from dycl_tvm.zoo.sdn import VGG16BNSDN, MobileNetSDN, ResNetSDN, ShallowDeepNetwork, WideResNetSDN
from dycl_tvm.zoo.skipnet import FeedforwardSkipNet, RecurrentSkipNet, SkipNet

_SMALL, _LARGE = 32, 256


@dataclass(frozen=True)
class Entry:
    """A network of the zoo, ready to run.

    Attributes
    ----------
    name : str
        As in :func:`names`.
    model : nn.Module
        In evaluation mode; its parameters do not require gradients.
    example_inputs : tuple of Tensor
        The arguments of one call.
    description : str
        One line.
    samples : callable
        Draws an endless supply of inputs from a generator.
    """

    name: str
    model: nn.Module
    example_inputs: tuple[Tensor, ...]
    description: str
    samples: Callable[[torch.Generator], Samples]

    def inputs(self, n: int, seed: int = 1) -> Iterator[tuple[Tensor, ...]]:
        """Yield ``n`` random inputs that together take many paths."""
        generator = torch.Generator().manual_seed(seed)
        yield from islice(self.samples(generator), n)


def _images(size: int, generator: torch.Generator) -> Samples:
    return ((image,) for image in random_images(size, generator))


def _imaged(description: str, size: int, make: Callable[[torch.Generator], nn.Module]) -> Recipe:
    return Recipe(description, make, partial(_images, size))


def _sdn(cls: Callable[[], ShallowDeepNetwork], images: int = 192) -> Callable[[torch.Generator], nn.Module]:
    def make(generator: torch.Generator) -> nn.Module:
        model = cls().eval().requires_grad_(False)
        calibrate_exits(model, batch_of_images(images, _SMALL, generator))
        return model

    return make


def _skip_net(cls: Callable[[], SkipNet]) -> Callable[[torch.Generator], nn.Module]:
    def make(generator: torch.Generator) -> nn.Module:
        model = cls().eval().requires_grad_(False)
        calibrate_skip_net(model, batch_of_images(128, _SMALL, generator), generator)
        return model

    return make


def _block_drop(generator: torch.Generator) -> nn.Module:
    model = BlockDrop().eval().requires_grad_(False)
    calibrate_block_drop(model, batch_of_images(128, _SMALL, generator), generator)
    return model


def _captioning(trunk: Callable[[], nn.Module], channels: int) -> Callable[[torch.Generator], nn.Module]:
    def make(generator: torch.Generator) -> nn.Module:
        model = ShowAttendTell(trunk(), channels).eval().requires_grad_(False)
        calibrate_captioning(model, batch_of_images(16, _LARGE, generator))
        return model

    return make


_RECIPES: dict[str, Recipe] = {
    "sdn_mobilenet": _imaged("Shallow-Deep MobileNet: early exit, 6 classifiers", _SMALL, _sdn(MobileNetSDN)),
    "sdn_vgg16bn": _imaged("Shallow-Deep VGG-16 with batch norm: early exit, 7 classifiers", _SMALL, _sdn(VGG16BNSDN)),
    "sdn_resnet56": _imaged("Shallow-Deep ResNet-56: early exit, 7 classifiers", _SMALL, _sdn(ResNetSDN)),
    "sdn_wideresnet32_4": _imaged("Shallow-Deep WideResNet-32-4: early exit, 7 classifiers", _SMALL, _sdn(WideResNetSDN, images=144)),
    "skipnet38_rnn": _imaged("SkipNet ResNet-38: 17 blocks skipped or run by a recurrent gate", _SMALL, _skip_net(RecurrentSkipNet)),
    "skipnet38_ff": _imaged("SkipNet ResNet-38: 17 blocks skipped or run by convolutional gates", _SMALL, _skip_net(FeedforwardSkipNet)),
    "caption_resnext50": _imaged(
        "Show, attend and tell on ResNeXt-50: up to 20 words, until the end word",
        _LARGE,
        _captioning(ResNeXtTrunk, ResNeXtTrunk.out_channels),
    ),
    "caption_googlenet": _imaged(
        "Show, attend and tell on GoogLeNet: up to 20 words, until the end word",
        _LARGE,
        _captioning(GoogLeNetTrunk, GoogLeNetTrunk.out_channels),
    ),
    "blockdrop_resnet110": _imaged("BlockDrop ResNet-110: 54 blocks dropped or run by a policy network", _SMALL, _block_drop),
    **MODERN,
}


def names() -> list[str]:
    """Return the names of the networks."""
    return list(_RECIPES)


def describe(name: str) -> str:
    """Return one line about a network."""
    return _recipe(name).description


def load(name: str, seed: int = 0) -> Entry:
    """Make a network with random weights, calibrated so that different inputs take different paths.

    Parameters
    ----------
    name : str
        One of :func:`names`.
    seed : int
        Equal seeds give equal weights.

    Raises
    ------
    ValueError
        If there is no such network.
    """
    recipe = _recipe(name)
    generator = torch.Generator().manual_seed(seed)
    # PyTorch's layers draw their weights from the global generator; it is put back afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = recipe.make(generator)
    example = next(recipe.samples(generator))
    return Entry(name, model, example, recipe.description, recipe.samples)


def _recipe(name: str) -> Recipe:
    if name not in _RECIPES:
        raise ValueError(f"there is no network {name!r} in the zoo; the networks are {', '.join(_RECIPES)}")
    return _RECIPES[name]
