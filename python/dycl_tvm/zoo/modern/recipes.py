# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How the modern networks of the zoo are made: sizes, calibration, inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

import torch
from torch import nn

from dycl_tvm.zoo.calibrate import modern as calibrate
from dycl_tvm.zoo.images import batch_of_images, random_images
from dycl_tvm.zoo.modern.act import ACTRNN
from dycl_tvm.zoo.modern.bert import EntropyExitBert, PatienceBert
from dycl_tvm.zoo.modern.cascade import Cascade, LargeNet, SmallNet
from dycl_tvm.zoo.modern.gpt import GPT, GreedyGPT, StaticCacheGPT
from dycl_tvm.zoo.modern.lightglue import LightGlue
from dycl_tvm.zoo.modern.moe import MoETransformer
from dycl_tvm.zoo.modern.samples import features, image_pairs, prompts, sentences
from dycl_tvm.zoo.modern.tree_lstm import GatedTreeLSTM, TreeLSTM
from dycl_tvm.zoo.recipe import Recipe, Samples

#: Inputs that a calibration sees.
_CALIBRATION = 96


def _made(
    cls: Callable[[], nn.Module], adjust: Callable[[nn.Module, list[calibrate.Inputs]], None], samples: Callable[[torch.Generator], Samples]
) -> Callable[[torch.Generator], nn.Module]:
    def make(generator: torch.Generator) -> nn.Module:
        model = cls().eval().requires_grad_(False)
        adjust(model, list(islice(samples(generator), _CALIBRATION)))
        return model

    return make


def _recipe(
    description: str,
    cls: Callable[[], nn.Module],
    adjust: Callable[..., None],
    samples: Callable[[torch.Generator], Samples],
) -> Recipe:
    return Recipe(description, _made(cls, adjust, samples), samples)


def _make_cascade(generator: torch.Generator) -> nn.Module:
    model = Cascade(SmallNet(), LargeNet()).eval().requires_grad_(False)
    calibrate.calibrate_cascade(model, batch_of_images(128, 32, generator))
    return model


def _images(generator: torch.Generator) -> Samples:
    return ((image,) for image in random_images(32, generator))


def _sentences(generator: torch.Generator) -> Samples:
    return sentences(1000, 16, generator)


def _prompts(generator: torch.Generator) -> Samples:
    return prompts(256, 8, generator)


def _words(generator: torch.Generator) -> Samples:
    return prompts(500, 8, generator)


def _untouched(_model: nn.Module, _samples: list[calibrate.Inputs]) -> None:
    """Leave a network as it is that has one path only."""


def _gpt(cls: type[GPT], description: str) -> Recipe:
    return _recipe(description, cls, calibrate.calibrate_gpt, _prompts)


def _moe(top_k: int, description: str) -> Recipe:
    return _recipe(description, partial(MoETransformer, top_k), calibrate.calibrate_moe, partial(features, 4, 64))


RECIPES: dict[str, Recipe] = {
    "early_bert_entropy": _recipe(
        "Early-exit BERT, 6 layers: leaves when the entropy of the answer is low", EntropyExitBert, calibrate.calibrate_entropy, _sentences
    ),
    "early_bert_patience": _recipe(
        "Early-exit BERT, 6 layers: leaves when the answer has stayed the same for 2 layers",
        partial(PatienceBert, num_labels=2),
        calibrate.calibrate_patience,
        _sentences,
    ),
    "gpt_greedy": _gpt(GreedyGPT, "GPT, greedy: up to 20 tokens, until the end token; a cache that grows"),
    "gpt_greedy_static_cache": _gpt(StaticCacheGPT, "GPT, greedy: up to 20 tokens, until the end token; a cache of fixed size"),
    "moe_top1": _moe(1, "Mixture of experts: 3 layers, each token through 1 of 4 experts"),
    "moe_top2": _moe(2, "Mixture of experts: 3 layers, each token through 2 of 4 experts"),
    "act_rnn": _recipe(
        "Adaptive computation time: a GRU that ponders up to 10 times on each of 5 inputs",
        ACTRNN,
        calibrate.calibrate_act,
        partial(features, 5, 16),
    ),
    "lightglue_adaptive": _recipe(
        "LightGlue-style matcher of two images: up to 5 layers, until most points are sure",
        LightGlue,
        calibrate.calibrate_lightglue,
        partial(image_pairs, 16, 64),
    ),
    "cascade": Recipe("Cascade: a small network, and a large one only if the small one is unsure", _make_cascade, _images),
    "tree_lstm": _recipe("Tree-LSTM over a given parse tree of 8 words", TreeLSTM, _untouched, _words),
    "tree_lstm_gated": _recipe(
        "Tree-LSTM over a given parse tree of 8 words, that skips subtrees where a gate says so",
        GatedTreeLSTM,
        calibrate.calibrate_tree_gate,
        _words,
    ),
}
