# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Optimiser steps of ONNX's training domain."""

from __future__ import annotations

import torch

from dycl_tvm.frontend.onnx.node import Node, op

Tensor = torch.Tensor
_DOMAIN = "ai.onnx.preview.training"


@op(f"{_DOMAIN}:Adagrad")
def _adagrad(node: Node, rate: Tensor, step: Tensor, *xs: Tensor) -> tuple[Tensor, ...]:
    n = len(xs) // 3
    rate = rate / (1 + step.to(rate.dtype) * node.attr("decay_factor", 0.0))
    new, sums = [], []
    for x, g, h in zip(xs[:n], xs[n : 2 * n], xs[2 * n :]):
        g = node.attr("norm_coefficient", 0.0) * x + g
        h = h + g * g
        new.append(x - rate * g / (torch.sqrt(h) + node.attr("epsilon", 1e-6)))
        sums.append(h)
    return (*new, *sums)


@op(f"{_DOMAIN}:Momentum")
def _momentum(node: Node, rate: Tensor, step: Tensor, *xs: Tensor) -> tuple[Tensor, ...]:
    n = len(xs) // 3
    alpha, beta = node.attr("alpha"), node.attr("beta")
    share = torch.where(step > 0, torch.full((), beta, dtype=rate.dtype), torch.ones((), dtype=rate.dtype))
    new, speeds = [], []
    for x, g, v in zip(xs[:n], xs[n : 2 * n], xs[2 * n :]):
        g = node.attr("norm_coefficient", 0.0) * x + g
        v = alpha * v + share * g
        new.append(x - rate * (g + alpha * v if node.attr("mode") == "nesterov" else v))
        speeds.append(v)
    return (*new, *speeds)


@op(f"{_DOMAIN}:Adam")
def _adam(node: Node, rate: Tensor, step: Tensor, *xs: Tensor) -> tuple[Tensor, ...]:
    n = len(xs) // 4
    alpha, beta = node.attr("alpha", 0.9), node.attr("beta", 0.999)
    count = step.to(rate.dtype)
    powers = torch.sqrt(1 - torch.pow(torch.tensor(beta, dtype=rate.dtype), count)) / (
        1 - torch.pow(torch.tensor(alpha, dtype=rate.dtype), count)
    )
    corrected = torch.where(step > 0, rate * powers, rate)
    new, firsts, seconds = [], [], []
    for x, g, v, h in zip(xs[:n], xs[n : 2 * n], xs[2 * n : 3 * n], xs[3 * n :]):
        g = node.attr("norm_coefficient", 0.0) * x + g
        v = alpha * v + (1 - alpha) * g
        h = beta * h + (1 - beta) * g * g
        moved = x - corrected * v / (torch.sqrt(h) + node.attr("epsilon", 1e-6))
        new.append((1 - node.attr("norm_coefficient_post", 0.0)) * moved)
        firsts.append(v)
        seconds.append(h)
    return (*new, *firsts, *seconds)
