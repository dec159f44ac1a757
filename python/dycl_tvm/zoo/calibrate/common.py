# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tools of all calibrations: batch norm statistics, recorded outputs, forced outputs, normalised layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def calibrate_batch_norm(model: nn.Module, run: Callable[[], None]) -> None:
    """Set the statistics of every batch norm to the cumulative average over the batches that ``run`` feeds."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    momentum = [m.momentum for m in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    run()
    for norm, value in zip(norms, momentum):
        norm.momentum = value
        norm.eval()


@contextmanager
def recorded_outputs(modules: Sequence[nn.Module]) -> Iterator[list[list[Tensor]]]:
    """Within the context, keep what each module returns, one list for each module."""
    found: list[list[Tensor]] = [[] for _ in modules]

    def hook(into: list[Tensor]) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda _module, _args, output: into.append(output.detach().clone())

    handles = [m.register_forward_hook(hook(into)) for m, into in zip(modules, found)]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def forced_outputs(modules: Iterable[nn.Module], replace: Callable[[Any], Any]) -> Iterator[None]:
    """Within the context, every module returns ``replace(output)`` in place of its output."""
    handles = [m.register_forward_hook(lambda _module, _args, output: replace(output)) for m in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def last_linear(module: nn.Module) -> nn.Linear:
    """Return the linear layer that gives a classifier's logits."""
    return [m for m in module.modules() if isinstance(m, nn.Linear)][-1]


@torch.no_grad()
def normalise(layer: nn.Linear | nn.Conv2d, outputs: Tensor, scale: float = 1.0) -> Tensor:
    """Change a layer so that its outputs get median 0 and deviation ``scale``.

    Parameters
    ----------
    layer : nn.Linear or nn.Conv2d
        Changed in place.
    outputs : Tensor
        What it returned so far; rows are samples, columns are output channels.
    scale : float
        The deviation of each column.

    Returns
    -------
    Tensor
        What it returns now for the same inputs.
    """
    centre = outputs.median(0).values
    factor = scale / outputs.std(0).clamp_min(1e-6)
    layer.weight.mul_(factor.view(-1, *[1] * (layer.weight.dim() - 1)))
    assert layer.bias is not None
    layer.bias.copy_((layer.bias - centre) * factor)
    return (outputs - centre) * factor


def ridge(x: Tensor, y: Tensor, penalty: float = 10.0) -> Tensor:
    """Return the weights that predict the standardised ``y`` from ``x``."""
    x = x - x.mean(0)
    y = (y - y.mean()) / y.std()
    return x.T @ torch.linalg.solve(x @ x.T + penalty * torch.eye(len(x)), y)


def most_varied_bias(gaps: Tensor) -> float:
    """Return the bias of the end word that gives the most evenly spread lengths; ``gaps`` (text, step) is how far it is behind."""
    levels = gaps.flatten().sort().values.tolist()
    best, best_score = levels[0], -1.0
    for low, high in itertools.pairwise(levels):
        bias = (low + high) / 2
        ended = gaps < bias
        lengths = torch.where(ended.any(1), ended.int().argmax(1), gaps.shape[1])
        score = float(torch.special.entr(torch.bincount(lengths) / len(lengths)).sum())
        if score > best_score:
            best, best_score = bias, score
    return best
