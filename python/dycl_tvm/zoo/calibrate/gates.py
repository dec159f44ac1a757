# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Calibration of SkipNet and BlockDrop: every gate says yes to some inputs and no to others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dycl_tvm.zoo.blockdrop import BlockDrop
from dycl_tvm.zoo.calibrate.common import calibrate_batch_norm, forced_outputs, normalise, recorded_outputs
from dycl_tvm.zoo.skipnet import FeedforwardGate, RecurrentSkipNet, SkipNet

#: Deviation of what goes into the sigmoid of a gate: far enough from 0 that rounding seldom decides.
SPREAD = 2.0


@torch.no_grad()
def calibrate_skip_net(model: SkipNet, images: Tensor, generator: torch.Generator) -> None:
    """Set batch norms and gates, on batches of ``images`` whose blocks are run or skipped at random."""
    recurrent = isinstance(model, RecurrentSkipNet)
    gates = [module for name, module in model.named_children() if "_gate" in name]
    deciders = [model.control] if isinstance(model, RecurrentSkipNet) else gates
    batches = images.split(16)

    def run(all_blocks_first: bool = False) -> None:
        for i, batch in enumerate(batches):
            # A decision for the batch as a whole: the model decides for one image only.
            def decide(output: tuple[Tensor, Tensor], always: bool = all_blocks_first and i == 0) -> tuple[Tensor, Tensor]:
                runs = always or bool(torch.rand((), generator=generator) < 0.5)
                return torch.tensor(float(runs)), output[1]

            with forced_outputs(deciders, decide):
                model(batch)

    # The first batch runs every block, so that no batch norm is left without statistics.
    calibrate_batch_norm(model, lambda: run(all_blocks_first=True))
    layers = [gate.linear_layer if isinstance(gate, FeedforwardGate) else gate[-1] for gate in gates]  # type: ignore[index]
    with recorded_outputs(layers) as found:
        run()
    for layer, outputs in zip(layers, found):
        assert isinstance(layer, nn.Conv2d)
        values = torch.cat(outputs).flatten(1)
        if recurrent:
            normalise(layer, values)
        else:
            _centre_difference(layer, values)
    if isinstance(model, RecurrentSkipNet):
        for parameter in model.control.rnn.parameters():
            parameter.mul_(3.0)
        with recorded_outputs([model.control.proj]) as found:
            run()
        normalise(model.control.proj, torch.cat(found[0]), SPREAD)
        model.control.hidden = None


def _centre_difference(layer: nn.Conv2d, logits: Tensor) -> None:
    """Change a layer of two classes so that the difference of their logits has median 0 and deviation SPREAD."""
    difference = logits[:, 1] - logits[:, 0]
    factor = SPREAD / difference.std().clamp_min(1e-6)
    assert layer.bias is not None
    layer.weight.mul_(factor)
    layer.bias[0] += difference.median()
    layer.bias.mul_(factor)


@torch.no_grad()
def calibrate_block_drop(model: BlockDrop, images: Tensor, generator: torch.Generator) -> None:
    """Set the batch norms of both networks, and the policy so that it drops each block for half of the images."""

    def run() -> None:
        for i, batch in enumerate(images.split(16)):

            def decide(output: tuple[Tensor, Any], always: bool = i == 0) -> tuple[Tensor, Any]:
                return torch.rand(output[0].shape, generator=generator) + float(always), output[1]

            with forced_outputs([model.agent], decide):
                model(batch)

    calibrate_batch_norm(model, run)
    with recorded_outputs([model.agent.logit]) as found:
        model.agent(images)
    normalise(model.agent.logit, found[0][0], SPREAD)
