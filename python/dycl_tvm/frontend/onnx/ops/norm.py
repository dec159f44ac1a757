# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Normalisations and losses without a loop."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.frontend.onnx.node import Node, op

Tensor = torch.Tensor


@op("BatchNormalization")
def _batch_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Any:
    epsilon, shape = node.attr("epsilon", 1e-5), [1, -1] + [1] * (x.dim() - 2)
    if not node.attr("training_mode", 0):
        if x.dtype == scale.dtype == mean.dtype:
            return torch.nn.functional.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)
        normal = (x - mean.reshape(shape)) * torch.rsqrt(var.reshape(shape) + epsilon)
        return (normal * scale.reshape(shape) + bias.reshape(shape)).to(x.dtype)
    axes, momentum = [k for k in range(x.dim()) if k != 1], node.attr("momentum", 0.9)
    now = torch.mean(x, axes)
    spread = torch.mean((x - now.reshape(shape)) ** 2, axes)
    y = (x - now.reshape(shape)) * torch.rsqrt(spread.reshape(shape) + epsilon) * scale.reshape(shape) + bias.reshape(shape)
    outputs = (y, mean * momentum + now * (1 - momentum), var * momentum + spread * (1 - momentum))
    return outputs[: max(node.outputs, 1)]


@op("InstanceNormalization")
def _instance_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    axes, shape = list(range(2, x.dim())), [1, -1] + [1] * (x.dim() - 2)
    middle = x - torch.mean(x, axes, keepdim=True)
    spread = torch.mean(middle * middle, axes, keepdim=True)
    return middle * torch.rsqrt(spread + node.attr("epsilon", 1e-5)) * scale.reshape(shape) + bias.reshape(shape)


@op("LayerNormalization")
def _layer_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Any:
    axis, epsilon = node.attr("axis", -1) % x.dim(), node.attr("epsilon", 1e-5)
    sizes = list(x.shape[axis:])
    if not node.wants(1) and not node.wants(2) and list(scale.shape) == sizes and (bias is None or bias.shape == scale.shape):
        return (torch.nn.functional.layer_norm(x, sizes, scale, bias, epsilon),)
    axes = list(range(axis, x.dim()))
    wide = x.to(torch.float32) if node.attr("stash_type", 1) == 1 else x
    mean = torch.mean(wide, axes, keepdim=True)
    middle = wide - mean
    inverse = torch.rsqrt(torch.mean(middle * middle, axes, keepdim=True) + epsilon)
    y = (middle * inverse).to(x.dtype) * scale
    return ((y if bias is None else y + bias), mean, inverse)[: max(node.outputs, 1)]


@op("RMSNormalization")
def _rms_norm(node: Node, x: Tensor, scale: Tensor) -> Tensor:
    axes = list(range(node.attr("axis", -1) % x.dim(), x.dim()))
    wide = x.to(torch.float32) if node.attr("stash_type", 1) == 1 else x
    inverse = torch.rsqrt(torch.mean(wide * wide, axes, keepdim=True) + node.attr("epsilon", 1e-5))
    return ((wide * inverse).to(x.dtype) * scale).to(scale.dtype)


@op("GroupNormalization")
def _group_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups, channels = node.attr("num_groups"), x.shape[1]
    if node.opset < 21:  # one scale a group, before
        scale = scale.reshape(-1, 1).expand(-1, channels // groups).reshape(-1)
        bias = bias.reshape(-1, 1).expand(-1, channels // groups).reshape(-1)
    return torch.nn.functional.group_norm(x, groups, scale, bias, node.attr("epsilon", 1e-5))


@op("LRN")
def _lrn(node: Node, x: Tensor) -> Tensor:
    size, channels = node.attr("size"), x.shape[1]
    before = (size - 1) // 2
    rows = torch.arange(channels).reshape(-1, 1)
    near = torch.arange(channels)
    window = ((near >= rows - before) & (near <= rows + size - 1 - before)).to(x.dtype)
    squares = torch.matmul(window, (x * x).reshape(x.shape[0], channels, -1)).reshape(tuple(x.shape))
    return x / torch.pow(node.attr("bias", 1.0) + node.attr("alpha", 1e-4) / size * squares, node.attr("beta", 0.75))


@op("LpNormalization")
def _lp_norm(node: Node, x: Tensor) -> Tensor:
    axis, p = node.attr("axis", -1), node.attr("p", 2)
    size = torch.sum(torch.abs(x), axis, keepdim=True) if p == 1 else torch.sqrt(torch.sum(x * x, axis, keepdim=True))
    return torch.where(size == 0, torch.zeros((), dtype=x.dtype), x / torch.where(size == 0, torch.ones((), dtype=x.dtype), size))


@op("MeanVarianceNormalization")
def _mean_variance(node: Node, x: Tensor) -> Tensor:
    axes = node.attr("axes") or [0, 2, 3]
    middle = x - torch.mean(x, axes, keepdim=True)
    return middle / (torch.sqrt(torch.mean(middle * middle, axes, keepdim=True)) + 1e-9)


@op("NegativeLogLikelihoodLoss")
def _nll(node: Node, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    return nll(node, x, target, weight)


def nll(node: Node, x: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    """Return the loss of logarithms of probabilities."""
    ignored, reduction = node.attr("ignore_index"), node.attr("reduction", "mean")
    target = target.to(torch.int64)
    extent = x.shape[1]
    safe = target if ignored is None else torch.where(target == ignored, torch.zeros((), dtype=torch.int64), target)
    safe = torch.where(safe < 0, safe + extent, safe)
    loss = -torch.gather(x, 1, safe.unsqueeze(1)).squeeze(1)
    share = torch.ones(tuple(target.shape), dtype=x.dtype) if weight is None else weight[safe.reshape(-1)].reshape(tuple(target.shape))
    if ignored is not None:
        share = torch.where(target == ignored, torch.zeros((), dtype=x.dtype), share)
    loss = loss * share
    if reduction == "none":
        return loss
    return torch.sum(loss) if reduction == "sum" else torch.sum(loss) / torch.sum(share)


@op("SoftmaxCrossEntropyLoss")
def _cross_entropy(node: Node, x: Tensor, target: Tensor, weight: Tensor | None = None) -> tuple[Tensor, ...]:
    logs = torch.log_softmax(x, 1)
    return (nll(node, logs, target, weight), logs)[: max(node.outputs, 1)]
