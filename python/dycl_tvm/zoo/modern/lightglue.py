# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A LightGlue-style matcher: attention within and between two images, layer by layer until enough points are sure."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def rotate_half(x: Tensor) -> Tensor:
    """Turn each pair of channels by a quarter."""
    x = x.unflatten(-1, (-1, 2))
    x1, x2 = x.unbind(dim=-1)
    return torch.stack((-x2, x1), dim=-1).flatten(start_dim=-2)


def apply_rotary(freqs: Tensor, t: Tensor) -> Tensor:
    """Turn queries or keys by the angles of their positions."""
    return (t * freqs[0]) + (rotate_half(t) * freqs[1])


class LearnableFourierPositionalEncoding(nn.Module):
    """Angles of rotation for points in the plane."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.Wr = nn.Linear(2, head_dim // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return cosines and sines: (2, batch, 1, points, head size)."""
        projected = self.Wr(x)
        emb = torch.stack([torch.cos(projected), torch.sin(projected)], 0).unsqueeze(-3)
        return emb.repeat_interleave(2, dim=-1)


class TokenConfidence(nn.Module):
    """How sure a point is of its match."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.token = nn.Sequential(nn.Linear(dim, 1), nn.Sigmoid())

    def forward(self, desc0: Tensor, desc1: Tensor) -> tuple[Tensor, Tensor]:
        """Return the confidences of the points of both images."""
        return self.token(desc0.detach()).squeeze(-1), self.token(desc1.detach()).squeeze(-1)


def feed_forward(dim: int) -> nn.Sequential:
    """Return the network that takes a descriptor and its message to an update."""
    return nn.Sequential(nn.Linear(2 * dim, 2 * dim), nn.LayerNorm(2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))


class SelfBlock(nn.Module):
    """Attention among the points of one image."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.Wqkv = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        self.ffn = feed_forward(dim)

    def forward(self, x: Tensor, encoding: Tensor) -> Tensor:
        """Return the updated descriptors."""
        qkv = self.Wqkv(x)
        qkv = qkv.unflatten(-1, (self.num_heads, -1, 3)).transpose(1, 2)
        q, k, v = qkv[..., 0], qkv[..., 1], qkv[..., 2]
        q = apply_rotary(encoding, q)
        k = apply_rotary(encoding, k)
        context = F.scaled_dot_product_attention(q, k, v)
        message = self.out_proj(context.transpose(1, 2).flatten(start_dim=-2))
        return x + self.ffn(torch.cat([x, message], -1))


class CrossBlock(nn.Module):
    """Attention from the points of each image to those of the other one, with one matrix of similarities."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.to_qk = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)
        self.to_out = nn.Linear(dim, dim)
        self.ffn = feed_forward(dim)

    def split(self, x: Tensor) -> Tensor:
        """Split the heads."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x0: Tensor, x1: Tensor) -> tuple[Tensor, Tensor]:
        """Return the updated descriptors of both images."""
        qk0, qk1 = self.split(self.to_qk(x0)), self.split(self.to_qk(x1))
        v0, v1 = self.split(self.to_v(x0)), self.split(self.to_v(x1))
        qk0, qk1 = qk0 * self.scale**0.5, qk1 * self.scale**0.5
        sim = torch.einsum("bhid, bhjd -> bhij", qk0, qk1)
        attn01 = F.softmax(sim, dim=-1)
        attn10 = F.softmax(sim.transpose(-2, -1).contiguous(), dim=-1)
        m0 = torch.einsum("bhij, bhjd -> bhid", attn01, v1)
        m1 = torch.einsum("bhji, bhjd -> bhid", attn10.transpose(-2, -1), v0)
        m0, m1 = (self.to_out(m.transpose(1, 2).flatten(start_dim=-2)) for m in (m0, m1))
        x0 = x0 + self.ffn(torch.cat([x0, m0], -1))
        x1 = x1 + self.ffn(torch.cat([x1, m1], -1))
        return x0, x1


class TransformerLayer(nn.Module):
    """Self-attention in both images, then cross-attention."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.self_attn = SelfBlock(dim, num_heads)
        self.cross_attn = CrossBlock(dim, num_heads)

    def forward(self, desc0: Tensor, desc1: Tensor, encoding0: Tensor, encoding1: Tensor) -> tuple[Tensor, Tensor]:
        """Return the updated descriptors."""
        desc0 = self.self_attn(desc0, encoding0)
        desc1 = self.self_attn(desc1, encoding1)
        return self.cross_attn(desc0, desc1)


def sigmoid_log_double_softmax(sim: Tensor, z0: Tensor, z1: Tensor) -> Tensor:
    """Return the log of the assignment: (batch, points + 1, points + 1), the last ones for points without a match."""
    b, m, n = sim.shape
    certainties = F.logsigmoid(z0) + F.logsigmoid(z1).transpose(1, 2)
    scores0 = F.log_softmax(sim, 2)
    scores1 = F.log_softmax(sim.transpose(-1, -2).contiguous(), 2).transpose(-1, -2)
    scores = sim.new_full((b, m + 1, n + 1), 0)
    scores[:, :m, :n] = scores0 + scores1 + certainties
    scores[:, :-1, -1] = F.logsigmoid(-z0.squeeze(-1))
    scores[:, -1, :-1] = F.logsigmoid(-z1.squeeze(-1))
    return scores


class MatchAssignment(nn.Module):
    """Which points belong together, by similarity and by how matchable each one is."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.matchability = nn.Linear(dim, 1)
        self.final_proj = nn.Linear(dim, dim)

    def forward(self, desc0: Tensor, desc1: Tensor) -> Tensor:
        """Return the log assignment."""
        mdesc0, mdesc1 = self.final_proj(desc0), self.final_proj(desc1)
        mdesc0, mdesc1 = mdesc0 / self.dim**0.25, mdesc1 / self.dim**0.25
        sim = torch.einsum("bmd,bnd->bmn", mdesc0, mdesc1)
        return sigmoid_log_double_softmax(sim, self.matchability(desc0), self.matchability(desc1))


def filter_matches(scores: Tensor, th: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the mutual best matches of both images (-1: none), and their scores."""
    max0, max1 = scores[:, :-1, :-1].max(2), scores[:, :-1, :-1].max(1)
    m0, m1 = max0.indices, max1.indices
    indices0 = torch.arange(m0.shape[1], device=m0.device)[None]
    indices1 = torch.arange(m1.shape[1], device=m1.device)[None]
    mutual0 = indices0 == m1.gather(1, m0)
    mutual1 = indices1 == m0.gather(1, m1)
    max0_exp = max0.values.exp()
    zero = max0_exp.new_tensor(0)
    mscores0 = torch.where(mutual0, max0_exp, zero)
    mscores1 = torch.where(mutual1, mscores0.gather(1, m1), zero)
    valid0 = mutual0 & (mscores0 > th)
    valid1 = mutual1 & valid0.gather(1, m1)
    m0 = torch.where(valid0, m0, -1)
    m1 = torch.where(valid1, m1, -1)
    return m0, m1, mscores0, mscores1


class LightGlue(nn.Module):
    """The matcher, with adaptive depth.

    Parameters
    ----------
    descriptor_dim, num_heads, n_layers : int
        Sizes (LightGlue: 256, 4, 9).
    depth_confidence : float
        The share of the points that have to be sure for the matcher to stop.
    filter_threshold : float
        The score that a match needs.
    """

    def __init__(
        self, descriptor_dim: int = 64, num_heads: int = 4, n_layers: int = 5, depth_confidence: float = 0.9, filter_threshold: float = 0.1
    ) -> None:
        super().__init__()
        self.n_layers = n_layers
        self.depth_confidence = depth_confidence
        self.filter_threshold = filter_threshold
        self.input_proj = nn.Linear(descriptor_dim, descriptor_dim)
        self.posenc = LearnableFourierPositionalEncoding(descriptor_dim // num_heads)
        self.transformers = nn.ModuleList(TransformerLayer(descriptor_dim, num_heads) for _ in range(n_layers))
        self.log_assignment = nn.ModuleList(MatchAssignment(descriptor_dim) for _ in range(n_layers))
        self.token_confidence = nn.ModuleList(TokenConfidence(descriptor_dim) for _ in range(n_layers - 1))

    def confidence_threshold(self, layer_index: int) -> float:
        """Return the confidence that a point needs; it falls with depth."""
        threshold = 0.8 + 0.1 * math.exp(-4.0 * layer_index / self.n_layers)
        return min(max(threshold, 0.0), 1.0)

    def check_if_stop(self, confidences0: Tensor, confidences1: Tensor, layer_index: int, num_points: int) -> Tensor:
        """Return whether enough points are sure."""
        confidences = torch.cat([confidences0, confidences1], -1)
        threshold = self.confidence_threshold(layer_index)
        ratio_confident = 1.0 - (confidences < threshold).float().sum() / num_points
        return ratio_confident > self.depth_confidence

    def forward(self, kpts0: Tensor, kpts1: Tensor, desc0: Tensor, desc1: Tensor) -> dict[str, Tensor | int]:
        """Match points (1, points, 2), normalised to [-1, 1], with descriptors (1, points, dim)."""
        _, m, _ = kpts0.shape
        _, n, _ = kpts1.shape
        desc0 = self.input_proj(desc0)
        desc1 = self.input_proj(desc1)
        encoding0 = self.posenc(kpts0)
        encoding1 = self.posenc(kpts1)
        for i in range(self.n_layers):
            desc0, desc1 = self.transformers[i](desc0, desc1, encoding0, encoding1)
            if i == self.n_layers - 1:
                continue
            token0, token1 = self.token_confidence[i](desc0, desc1)
            if self.check_if_stop(token0, token1, i, m + n):
                break
        scores = self.log_assignment[i](desc0, desc1)
        m0, m1, mscores0, mscores1 = filter_matches(scores, self.filter_threshold)
        return {
            "matches0": m0,
            "matches1": m1,
            "matching_scores0": mscores0,
            "matching_scores1": mscores1,
            "stop": i + 1,
            "log_assignment": scores,
        }
