# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Calibration of the modern networks: exits, routers, gates and end tokens are adjusted so that the paths of the inputs vary."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dycl_tvm.zoo.calibrate.common import calibrate_batch_norm, most_varied_bias, normalise, recorded_outputs, ridge
from dycl_tvm.zoo.modern.act import ACTRNN
from dycl_tvm.zoo.modern.bert import EarlyExitBert, EntropyExitBert, PatienceBert, entropy
from dycl_tvm.zoo.modern.cascade import Cascade
from dycl_tvm.zoo.modern.gpt import GPT
from dycl_tvm.zoo.modern.lightglue import LightGlue, MatchAssignment
from dycl_tvm.zoo.modern.moe import MoETransformer, Top1Experts
from dycl_tvm.zoo.modern.tree_lstm import GatedTreeLSTM

Inputs = tuple[Tensor, ...]


@torch.no_grad()
def calibrate_entropy(model: EntropyExitBert, samples: Sequence[Inputs]) -> None:
    """Scale the classifiers so that the same share of the sentences leaves after each layer."""
    threshold, model.early_exit_entropy = model.early_exit_entropy, -1.0
    logits = _normalised_highways(model, samples)
    model.early_exit_entropy = threshold
    rest = torch.arange(len(samples))
    leave = round(len(samples) / len(logits))
    for highway, values in zip(model.highway, logits[:-1]):
        # The entropy falls when the logits grow.
        low, high = 1e-3, 1e3
        for _ in range(40):
            scale = math.sqrt(low * high)
            enough = int((entropy(scale * values[rest]) < threshold).sum()) >= leave
            low, high = (low, scale) if enough else (scale, high)
        highway.classifier.weight.mul_(high)
        highway.classifier.bias.mul_(high)
        rest = rest[entropy(high * values[rest]) >= threshold]


@torch.no_grad()
def calibrate_patience(model: PatienceBert, samples: Sequence[Inputs]) -> None:
    """Centre the classifiers, so that none of them always gives the same answer."""
    patience, model.patience = model.patience, len(model.layer)
    _normalised_highways(model, samples)
    model.patience = patience


def _normalised_highways(model: EarlyExitBert, samples: Sequence[Inputs]) -> list[Tensor]:
    classifiers = [highway.classifier for highway in model.highway]
    found = _record(model, classifiers, samples)
    return [normalise(layer, values) for layer, values in zip(classifiers, found)]


@torch.no_grad()
def calibrate_gpt(model: GPT, samples: Sequence[Inputs]) -> None:
    """Let the end token come sooner or later: its score rises with time, and differs by text."""
    end, steps = model.eos_token, model.max_new_tokens
    model.lm_head.bias[end] = -1e9
    hidden, logits = _record(model, [model.ln_f, model.lm_head], samples)
    # The decoder with a static cache reads its last token too, and throws the result away.
    rows = len(logits) // len(samples)
    hidden = hidden.view(len(samples), rows, -1)[:, :steps]
    best = logits.max(1).values.view(len(samples), rows)[:, :steps]
    row = ridge(hidden.flatten(0, 1), torch.arange(float(steps)).repeat(len(samples))) + 4.0 * model.lm_head.weight[end]
    model.lm_head.weight[end] = row
    # With a bias b, a text ends at its first step whose gap is below b.
    model.lm_head.bias[end] = most_varied_bias(best - hidden @ row)


@torch.no_grad()
def calibrate_moe(model: MoETransformer, samples: Sequence[Inputs]) -> None:
    """Balance the routers, layer after layer."""
    for module in model.modules():
        if isinstance(module, Top1Experts):
            normalise(module.router, _record(model, [module.router], samples)[0], 1.5)


@torch.no_grad()
def calibrate_act(model: ACTRNN, samples: Sequence[Inputs]) -> None:
    """Let the cell halt with very different probabilities."""
    for parameter in model.rnn.cell.parameters():
        parameter.mul_(2.0)
    normalise(model.rnn.halting, _record(model, [model.rnn.halting], samples)[0], 1.5)
    model.rnn.halting.bias.sub_(0.5)


@torch.no_grad()
def calibrate_lightglue(model: LightGlue, samples: Sequence[Inputs]) -> None:
    """Shift the confidences so that the same share of the image pairs stops after each layer, and let points match."""
    depth, model.depth_confidence = model.depth_confidence, 2.0
    heads = [head.token[0] for head in model.token_confidence if isinstance(head.token, nn.Sequential)]
    found = _record(model, heads, samples)
    _calibrate_matching(model, samples)
    model.depth_confidence = depth
    rest = torch.arange(len(samples))
    leave = round(len(samples) / model.n_layers)
    for i, (head, values) in enumerate(zip(heads, found)):
        assert isinstance(head, nn.Linear)
        # The points of both images, in one row.
        values = normalise(head, values.reshape(-1, 1), 2.0).view(len(samples), -1)
        # A pair stops where all but so few points are above the bar.
        unsure = math.ceil(values.shape[1] * (1 - depth)) - 1
        decisive = values.sort(1).values[:, unsure]
        bar = math.log(model.confidence_threshold(i) / (1 - model.confidence_threshold(i)))
        ranked = decisive[rest].sort(descending=True).values
        limit = float(ranked[leave - 1] + ranked[leave]) / 2
        head.bias.add_(bar - limit)
        rest = rest[decisive[rest] < limit]


def _calibrate_matching(model: LightGlue, samples: Sequence[Inputs]) -> None:
    """Let like descriptors match, wherever the matcher stops (it may not stop early while this runs)."""
    layers = model.n_layers
    for i, assignment in enumerate(model.log_assignment):
        assert isinstance(assignment, MatchAssignment)
        # A matcher of so many layers ends with this assignment.
        model.n_layers = i + 1
        projected, matchable = _record(model, [assignment.final_proj, assignment.matchability], samples)
        normalise(assignment.final_proj, projected)
        normalise(assignment.matchability, matchable)
        assignment.matchability.bias.add_(2.0)
    model.n_layers = layers


@torch.no_grad()
def calibrate_cascade(model: Cascade, images: Tensor) -> None:
    """Set the batch norms, and the threshold at which half of the images are left to the large network."""
    for part in (model.small, model.large):
        _calibrate_classifier(part, images)
    confidence = model.small(images).softmax(1).max(1).values.sort().values
    model.threshold = float(confidence[len(images) // 2 - 1] + confidence[len(images) // 2]) / 2


def _calibrate_classifier(model: nn.Module, images: Tensor) -> None:
    def run() -> None:
        for batch in images.split(32):
            model(batch)

    calibrate_batch_norm(model, run)
    assert isinstance(model.classifier, nn.Linear)
    normalise(model.classifier, model(images))


@torch.no_grad()
def calibrate_tree_gate(model: GatedTreeLSTM, samples: Sequence[Inputs]) -> None:
    """Let the gate stop at three phrases in ten."""
    last = model.gate[-1]
    assert isinstance(last, nn.Linear) and last.bias is not None
    last.bias.sub_(1e3)
    normalise(last, _record(model, [last], samples)[0], 2.0)
    last.bias.sub_(1.0)


def _record(model: nn.Module, modules: Sequence[nn.Module], samples: Sequence[Inputs]) -> list[Tensor]:
    """Return all outputs of each module over all samples, as rows of channels."""
    with recorded_outputs(list(modules)) as found:
        for inputs in samples:
            model(*inputs)
    return [torch.cat([t if t.dim() < 3 else t.flatten(0, 1) for t in outputs]) for outputs in found]
