# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Calibration of captioning: the length of the caption depends on the image."""

from __future__ import annotations

import torch
from torch import Tensor

from dycl_tvm.zoo.calibrate.common import calibrate_batch_norm, most_varied_bias, ridge
from dycl_tvm.zoo.captioning import ShowAttendTell


@torch.no_grad()
def calibrate_captioning(model: ShowAttendTell, images: Tensor, norm_images: int = 8) -> None:
    """Set the encoder's batch norms, a memory that lasts, and an end word that comes sooner or later.

    Parameters
    ----------
    model : ShowAttendTell
        Changed in place.
    images : Tensor
        A batch of typical inputs.
    norm_images : int
        How many of them the batch norms see.
    """

    def run() -> None:
        for batch in images[:norm_images].split(4):
            model.encoder(batch)

    calibrate_batch_norm(model, run)

    # A default LSTM forgets within a few steps and repeats itself. Stronger weights and open forget gates let its state
    # wander through the whole caption.
    for parameter in model.decode_step.parameters():
        parameter.mul_(2.0)
    width = model.decode_step.hidden_size
    model.decode_step.bias_ih[width : 2 * width] += 2.0

    # With the end word out of reach, look at every step of every caption.
    end = model.end_word
    model.fc.bias[end] = -1e9
    hidden, best = _all_steps(model, images)
    # The end word's score rises with time (a ridge regression of the step on the state), and differs by image (its random weights).
    row = ridge(hidden.flatten(0, 1), torch.arange(float(hidden.shape[1])).repeat(len(images))) + 4.0 * model.fc.weight[end]
    model.fc.weight[end] = row
    # With a bias b, a caption ends at its first step whose gap is below b.
    model.fc.bias[end] = most_varied_bias(best - hidden @ row)


def _all_steps(model: ShowAttendTell, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the LSTM's output (image, step, channel) and the best score (image, step)."""
    hidden: list[Tensor] = []
    best: list[Tensor] = []

    def keep(_module: object, args: tuple[Tensor], scores: Tensor) -> None:
        hidden.append(args[0])
        best.append(scores.max(1).values)

    handle = model.fc.register_forward_hook(keep)
    for image in images.split(1):
        model(image)
    handle.remove()
    n = len(images)
    return torch.cat(hidden).view(n, model.max_steps, -1), torch.cat(best).view(n, model.max_steps)
