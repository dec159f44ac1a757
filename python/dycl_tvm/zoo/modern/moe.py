# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A transformer with a mixture of experts: a router chooses, token by token, which experts run."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Expert(nn.Module):
    """A gated feed-forward network."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Top1Experts(nn.Module):
    """Every token goes to the expert that the router likes best (Switch Transformer)."""

    def __init__(self, dim: int, hidden_dim: int, num_experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(dim, num_experts)
        self.experts = nn.ModuleList(Expert(dim, hidden_dim) for _ in range(num_experts))

    def route(self, token: Tensor) -> Tensor:
        """Send one token, of shape (1, dim), through its expert."""
        probs = F.softmax(self.router(token), dim=-1)
        weight, idx = torch.max(probs, dim=-1)
        expert = self.experts[int(idx)]
        return weight * expert(token)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape: (1, tokens, dim)."""
        tokens = x.view(-1, x.size(-1))
        return torch.cat([self.route(token) for token in tokens.split(1)]).view_as(x)


class Top2Experts(Top1Experts):
    """Every token goes to two experts; their outputs are weighted by the router (Mixtral)."""

    def route(self, token: Tensor) -> Tensor:
        """Send one token, of shape (1, dim), through its experts."""
        weights, selected = torch.topk(self.router(token), 2, dim=-1)
        weights = F.softmax(weights, dim=-1)
        out = torch.zeros_like(token)
        for k in range(2):
            expert = self.experts[int(selected[0, k])]
            out += weights[:, k] * expert(token)
        return out


class MoEBlock(nn.Module):
    """Attention over the tokens, then experts."""

    def __init__(self, dim: int, num_heads: int, experts: nn.Module) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.experts = experts

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.experts(self.norm2(x))


class MoETransformer(nn.Module):
    """A stack of blocks and a classifier.

    Parameters
    ----------
    top_k : int
        Experts for each token: 1 or 2.
    dim, hidden_dim, num_heads, num_layers, num_experts, num_classes : int
        Widths and counts.
    """

    def __init__(
        self,
        top_k: int = 1,
        dim: int = 64,
        hidden_dim: int = 128,
        num_heads: int = 4,
        num_layers: int = 3,
        num_experts: int = 4,
        num_classes: int = 10,
    ) -> None:
        super().__init__()
        experts = {1: Top1Experts, 2: Top2Experts}[top_k]
        self.layers = nn.ModuleList(MoEBlock(dim, num_heads, experts(dim, hidden_dim, num_experts)) for _ in range(num_layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits for tokens of shape (1, tokens, dim)."""
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(dim=1))
