# Licensed under the Apache License, Version 2.0; see LICENSE.
"""GPT that writes greedily until its end token: with a cache that grows, and with one of fixed size."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KeyValue = tuple[Tensor, Tensor]


class CausalSelfAttention(nn.Module):
    """Attention to what came before; keys and values are kept from step to step."""

    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.n_embd = n_embd
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (batch, head, time, head size)."""
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q = q.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        k = k.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        v = v.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Return the attention's output; ``mask`` is True where a query may look."""
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(~mask, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = (att @ v).transpose(1, 2).contiguous().flatten(2)
        return self.c_proj(y)

    def forward(self, x: Tensor, past: KeyValue | None) -> tuple[Tensor, KeyValue]:
        """Attend to the past and to ``x``; return the output and the past with ``x`` in it."""
        q, k, v = self.project(x)
        if past is not None:
            k = torch.cat((past[0], k), dim=2)
            v = torch.cat((past[1], v), dim=2)
        total, new = k.size(2), q.size(2)
        mask = torch.ones(new, total, dtype=torch.bool, device=x.device).tril(diagonal=total - new)
        return self.attend(q, k, v, mask), (k, v)


class StaticCacheAttention(CausalSelfAttention):
    """The same with keys and values in tensors of fixed size, that are written in place."""

    def __init__(self, n_embd: int, n_head: int, block_size: int) -> None:
        super().__init__(n_embd, n_head)
        self.block_size = block_size
        self.k_cache: Tensor | None = None
        self.v_cache: Tensor | None = None

    def prefill(self, x: Tensor) -> Tensor:
        """Begin a new text."""
        b, t, c = x.size()
        self.k_cache = torch.zeros(b, self.n_head, self.block_size, c // self.n_head, device=x.device)
        self.v_cache = torch.zeros(b, self.n_head, self.block_size, c // self.n_head, device=x.device)
        q, k, v = self.project(x)
        self.k_cache[:, :, :t] = k
        self.v_cache[:, :, :t] = v
        mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        return self.attend(q, k, v, mask)

    def step(self, x: Tensor, t: int, mask: Tensor) -> Tensor:
        """Go one token further, at place ``t``."""
        assert self.k_cache is not None and self.v_cache is not None
        q, k, v = self.project(x)
        self.k_cache[:, :, t] = k[:, :, 0]
        self.v_cache[:, :, t] = v[:, :, 0]
        return self.attend(q, self.k_cache, self.v_cache, mask)


class MLP(nn.Module):
    """The feed-forward network of a block."""

    def __init__(self, n_embd: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(n_embd, 4 * n_embd)
        self.gelu = nn.GELU(approximate="tanh")
        self.c_proj = nn.Linear(4 * n_embd, n_embd)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return self.c_proj(self.gelu(self.c_fc(x)))


class Block(nn.Module):
    """Attention and feed-forward network, each behind a norm."""

    def __init__(self, attention: nn.Module, n_embd: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = attention
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = MLP(n_embd)

    def forward(self, x: Tensor, past: KeyValue | None) -> tuple[Tensor, KeyValue]:
        """Return the output and what the attention wants back next time."""
        y, present = self.attn(self.ln_1(x), past)
        x = x + y
        x = x + self.mlp(self.ln_2(x))
        return x, present


class GPT(nn.Module):
    """What both decoders share.

    Parameters
    ----------
    vocab_size : int
        Number of tokens; the last one ends a text.
    n_embd, n_layer, n_head : int
        The decoder (GPT-2 small: 768, 12, 12).
    block_size : int
        The longest text, prompt included.
    max_new_tokens : int
        The longest continuation.
    """

    def __init__(
        self,
        vocab_size: int = 256,
        n_embd: int = 64,
        n_layer: int = 2,
        n_head: int = 4,
        block_size: int = 32,
        max_new_tokens: int = 20,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.block_size = block_size
        self.max_new_tokens = max_new_tokens
        self.eos_token = vocab_size - 1
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h: Any = nn.ModuleList(Block(self.make_attention(n_embd, n_head), n_embd) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def make_attention(self, n_embd: int, n_head: int) -> nn.Module:
        """Return the attention of one block."""
        return CausalSelfAttention(n_embd, n_head)


class GreedyGPT(GPT):
    """Greedy decoding; the cache is a list of keys and values that grow by a token a step."""

    def step(self, idx: Tensor, past: list[KeyValue | None]) -> tuple[Tensor, list[KeyValue | None]]:
        """Return the logits of the next token, and the cache."""
        seen = 0 if past[0] is None else past[0][0].size(2)
        pos = torch.arange(seen, seen + idx.size(1), dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        presents: list[KeyValue | None] = []
        for block, layer_past in zip(self.h, past):
            x, present = block(x, layer_past)
            presents.append(present)
        return self.lm_head(self.ln_f(x[:, -1])), presents

    def forward(self, idx: Tensor) -> Tensor:
        """Return the prompt and its continuation, without the end token: (1, length)."""
        past: list[KeyValue | None] = [None] * len(self.h)
        idx_next = idx
        for _ in range(self.max_new_tokens):
            logits, past = self.step(idx_next, past)
            idx_next = torch.argmax(logits, dim=-1, keepdim=True)
            if idx_next.item() == self.eos_token:
                break
            idx = torch.cat((idx, idx_next), dim=1)
        return idx


class StaticCacheGPT(GPT):
    """Greedy decoding; the cache has a fixed size, and tokens that are not there yet are masked."""

    def __init__(
        self,
        vocab_size: int = 256,
        n_embd: int = 64,
        n_layer: int = 2,
        n_head: int = 4,
        block_size: int = 32,
        max_new_tokens: int = 20,
    ) -> None:
        self._block_size = block_size
        super().__init__(vocab_size, n_embd, n_layer, n_head, block_size, max_new_tokens)

    def make_attention(self, n_embd: int, n_head: int) -> nn.Module:
        """Return the attention of one block."""
        return StaticCacheAttention(n_embd, n_head, self._block_size)

    def prefill(self, idx: Tensor) -> Tensor:
        """Read the prompt; return the logits of the first new token."""
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = x + block.attn.prefill(block.ln_1(x))
            x = x + block.mlp(block.ln_2(x))
        return self.lm_head(self.ln_f(x[:, -1]))

    def decode_one(self, token: Tensor, t: int) -> Tensor:
        """Read one token, at place ``t``; return the logits of the next one."""
        x = self.wte(token) + self.wpe.weight[t]
        mask = torch.arange(self.block_size, device=token.device) <= t
        for block in self.h:
            x = x + block.attn.step(block.ln_1(x), t, mask)
            x = x + block.mlp(block.ln_2(x))
        return self.lm_head(self.ln_f(x[:, -1]))

    def forward(self, idx: Tensor) -> tuple[Tensor, int]:
        """Return the text, filled up with end tokens, and how many of its tokens count."""
        t = idx.size(1)
        end = t + self.max_new_tokens
        text = torch.full((1, end), self.eos_token, dtype=torch.long, device=idx.device)
        text[:, :t] = idx
        token = self.prefill(idx).argmax(dim=-1, keepdim=True)
        while token != self.eos_token and t < end:
            text[:, t] = token[:, 0]
            token = self.decode_one(token, t).argmax(dim=-1, keepdim=True)
            t += 1
        return text, t
