# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Calibration of Shallow-Deep networks: every classifier is the exit of some inputs, and every one wins at the end for some."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dycl_tvm.zoo.calibrate.common import calibrate_batch_norm, last_linear, normalise, recorded_outputs
from dycl_tvm.zoo.sdn.network import InternalClassifier, ShallowDeepNetwork

#: Rounds in which the offsets of the classifiers are adjusted.
ROUNDS = 40


@torch.no_grad()
def calibrate_exits(model: ShallowDeepNetwork, images: Tensor, norm_images: int = 64) -> None:
    """Set batch norms, and rescale the classifiers so that all paths are taken by some inputs.

    Parameters
    ----------
    model : ShallowDeepNetwork
        Changed in place. Its threshold stays.
    images : Tensor
        A batch of typical inputs.
    norm_images : int
        How many of them the batch norms see.
    """
    threshold = model.confidence_threshold
    heads = [last_linear(m) for m in model.layers.modules() if isinstance(m, InternalClassifier)]
    heads.append(last_linear(model.end_layers))

    # No confidence reaches 2: every batch goes all the way.
    model.confidence_threshold = 2.0
    calibrate_batch_norm(model, lambda: _run(model, images[:norm_images]))
    with recorded_outputs(heads) as found:
        _run(model, images)
    model.confidence_threshold = threshold

    logits = [normalise(head, torch.cat(outputs)) for head, outputs in zip(heads, found)]
    for i, (head, (scale, offset)) in enumerate(zip(heads, _balance(logits, threshold))):
        head.bias[i] += offset
        head.weight.mul_(scale)
        head.bias.mul_(scale)


def _run(model: ShallowDeepNetwork, images: Tensor) -> None:
    for batch in images.split(32):
        model(batch)


def _balance(logits: list[Tensor], threshold: float) -> list[tuple[float, float]]:
    """Return a scale and an offset for each classifier, such that the rarest path is as frequent as can be.

    The paths: leave at an internal classifier, or come to the end and take the most confident of all. The scale settles
    how many leave at a classifier. The offset, in favour of one class, makes its confidences more alike: then more of the
    inputs that stay are just below the threshold, and it wins more often at the end.
    """
    n, heads = len(logits[0]), len(logits)
    leave = round(n / (2 * heads - 1))
    offsets = [0.0] * heads
    best: list[tuple[float, float]] = []
    best_rarest = -1
    for step in range(ROUNDS):
        moved = [values.clone() for values in logits]
        for i, offset in enumerate(offsets):
            moved[i][:, i] += offset
        scales, wins = _scales_for(moved, threshold, leave)
        if min(wins) > best_rarest:
            best_rarest, best = min(wins), list(zip(scales, offsets))
        fair = sum(wins) / heads
        rate = 0.5 * 0.93**step
        offsets = [max(0.0, o + rate * (1 - w / fair)) for o, w in zip(offsets, wins)]
    return best


def _scales_for(logits: list[Tensor], threshold: float, leave: int) -> tuple[list[float], list[int]]:
    """Return the scales at which ``leave`` inputs leave at each internal classifier, and how often each wins at the end."""
    rest = torch.arange(len(logits[0]))
    confidences = []
    scales = []
    for values in logits[:-1]:
        scale = _scale_at(values[rest], torch.tensor(threshold), leave)
        confidence = _confidence(scale * values)
        rest = rest[confidence[rest] < threshold]
        confidences.append(confidence)
        scales.append(scale)
    # Of the inputs that come to the end, the last classifier wins as often as each of the others.
    seen = torch.stack(confidences).max(0).values[rest]
    scales.append(_scale_at(logits[-1][rest], seen, round(len(rest) / len(logits))))
    confidences.append(_confidence(scales[-1] * logits[-1]))
    winners = torch.stack(confidences)[:, rest].argmax(0)
    return scales, torch.bincount(winners, minlength=len(logits)).tolist()


def _confidence(logits: Tensor) -> Tensor:
    return logits.softmax(1).max(1).values


def _scale_at(logits: Tensor, bar: Tensor, count: int) -> float:
    """Return the smallest scale at which so many confidences reach the bar."""
    low, high = 1e-3, 1e3
    for _ in range(30):
        middle = math.sqrt(low * high)
        reached = int((_confidence(middle * logits) >= bar).sum())
        low, high = (middle, high) if reached < count else (low, middle)
    return high
