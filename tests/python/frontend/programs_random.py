# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs that draw random numbers, as people write them; each takes one tensor of 4x5."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Decoder(nn.Module):
    """Samples tokens until the end."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(11, 8), nn.GRUCell(8, 8), nn.Linear(8, 11)

    def forward(self, x: Any) -> Any:
        h, token, tokens = torch.tanh(x[:1, :1].expand(1, 8)), torch.zeros(1, dtype=torch.long), []
        for _ in range(8):
            h = self.cell(self.embed(token), h)
            token = torch.multinomial(F.softmax(self.out(h) / 0.7, -1), 1)[:, 0]
            tokens.append(token)
            if token.item() == 3:
                break
        return torch.stack(tokens)


class Ponder(nn.Module):
    """Halts by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.halt = nn.GRUCell(5, 5), nn.Linear(5, 1)

    def forward(self, x: Any) -> Any:
        h, halted, n = torch.zeros(4, 5), torch.zeros(4), 0
        while n < 10:
            n += 1
            h = self.cell(x, h)
            halted = torch.maximum(halted, torch.bernoulli(torch.sigmoid(self.halt(h))[:, 0]))
            if halted.sum() == 4:
                break
        return h, n


class Prenet(nn.Module):
    """Drops in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 5) for _ in range(2)])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), 0.5, training=True)
        return x


class OwnGenerator(nn.Module):
    """Keeps a generator, and draws from it on one side more than on the other."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x: Any) -> Any:
        y = x + torch.randn(4, 5, generator=self.generator)
        if y.sum() > 0:
            y = y * torch.rand(5, generator=self.generator)
        return y, torch.rand(2)


class StochasticDepth(nn.Module):
    """Skips layers by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 5) for _ in range(4)])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            if torch.rand(1) < 0.6:
                x = x + torch.relu(layer(x))
        return x


def branch(x: Any) -> Any:
    """The sides draw differently."""
    if torch.rand(()) < 0.5:
        return x + torch.randn(3).sum(), torch.rand(2)
    return x - 1, torch.rand(2)


def lazily(x: Any) -> Any:
    """A draw that eager does on one side only, though it could be done before."""
    noise = torch.zeros(4, 5)
    if x.sum() > torch.rand(()):
        noise = torch.randn(4, 5)
    return x + noise, torch.randn(1)


def loop(x: Any) -> Any:
    """Draws as often as the numbers want it."""
    n = 0
    while x.sum() < 30 and n < 40:
        x = x + torch.rand(4, 5)
        n += 1
    return x, n


def unused(x: Any) -> Any:
    """Draws what nobody reads: the next draw is another for it."""
    torch.rand(3)
    return x + torch.rand(4, 5)


def equal_draws(x: Any) -> Any:
    """Two draws that look the same are not."""
    return torch.rand(4, 5) - torch.rand(4, 5), x


def seeded(x: Any) -> Any:
    """A seed in the forward: every call draws the same, and leaves the generator there."""
    a = torch.rand(2)
    torch.manual_seed(3)
    return a, torch.rand(3) + x[0, :3], torch.randn(2)


def seeded_by_data(x: Any) -> Any:
    """A seed known only at run time."""
    torch.manual_seed(int(x.abs().sum()))
    return torch.rand(3), torch.randperm(5)


def forked(x: Any) -> Any:
    """Draws inside of fork_rng leave no trace."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        a = torch.rand(3)
    return a, torch.rand(3), x


def states(x: Any) -> Any:
    """A state that is taken and put back."""
    state = torch.get_rng_state()
    a = torch.rand(3)
    torch.set_rng_state(state)
    return a, torch.rand(3), x


def local_generators(x: Any) -> Any:
    """Generators that the forward makes."""
    g = torch.Generator().manual_seed(42)
    a = torch.rand(3, generator=g)
    if x.sum() > 0:
        a = a + torch.rand(3, generator=g)
    return a, torch.rand(2, generator=g), torch.rand(2)


def layouts(x: Any) -> Any:
    """Elements are drawn as they lie in memory; the algorithm for normal numbers depends on that."""
    a = torch.randn_like(x.t()) + torch.rand_like(x.t())
    b = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last).normal_()
    c = torch.zeros(6, 6)
    c[:, ::2].uniform_(-1, 1)
    c.t()[1:3].bernoulli_(0.3)
    c[2].exponential_(2.0)
    return a, b, c


def shapes(x: Any) -> Any:
    """Sizes about the limits of the algorithms."""
    return [torch.randn(n) for n in (1, 2, 15, 16, 17, 33)], torch.randn(()), torch.rand(0), torch.randn(3, 0), x


def dtypes(x: Any) -> Any:
    """All types, and what is cast after."""
    kinds = (torch.float64, torch.float16, torch.bfloat16)
    return [(torch.rand(20, dtype=t), torch.randn(20, dtype=t), torch.randn(3, dtype=t)) for t in kinds], x


def whole_numbers(x: Any) -> Any:
    """Integers of small and large ranges."""
    a = torch.randint(0, 10, (7,)), torch.randint(-5, 1 << 40, (7,)), torch.randint(0, 1 << 30, (3,), dtype=torch.int32)
    return *a, torch.randint_like(x, 100), torch.zeros(4, dtype=torch.uint8).random_(0, 256), x[torch.randperm(4)]


def distributions(x: Any) -> Any:
    """Distributions by their in-place forms, and by tensors of parameters."""
    e = torch.empty(5, 4)
    a = [e.exponential_(0.3).clone(), e.geometric_(0.2).clone(), e.cauchy_(1, 2).clone(), e.log_normal_(0.1, 0.2).clone()]
    b = torch.normal(x, x.abs()), torch.normal(0.5, x.abs()), torch.normal(x, 0.4), torch.normal(1.0, 2.0, (3, 3))
    return a, b, torch.bernoulli(x.sigmoid()), torch.bernoulli(x.double().sigmoid()), torch.zeros(4, 5).bernoulli_(x[0].sigmoid())


def parameters(x: Any) -> Any:
    """Distributions by tensors of parameters, in other layouts and types than what is drawn."""
    y = x.t().abs()
    a = torch.normal(x.t(), y), torch.normal(0.5, y), torch.normal(x.t(), 0.4), torch.normal(x, y.t().double()), torch.normal(x[0], y[:, 0])
    if x.sum() > 0:
        return a, torch.poisson(y * 3), torch.poisson(y.bfloat16() * 30), torch.normal(x.half(), x.half().abs())
    return a, torch.distributions.Gamma(y + 0.2, 2.0).sample(), torch._standard_gamma(y.double()), torch.randn(1)


def multinomials(x: Any) -> Any:
    """With and without replacement, of rows and of columns."""
    p = x.softmax(-1)
    a = torch.multinomial(p, 1), torch.multinomial(p, 3), torch.multinomial(p, 7, replacement=True), torch.multinomial(p[0], 2)
    return *a, torch.multinomial(x.t().softmax(0), 4), torch.multinomial(p.double(), 6, True)


def library(x: Any) -> Any:
    """PyTorch's own code that draws."""
    d, free = torch.distributions, {"validate_args": False}
    a = d.Normal(x, 1.0, **free).sample(), d.Categorical(logits=x, **free).sample(), d.Bernoulli(x.sigmoid(), **free).sample()
    return (
        a,
        d.Uniform(x, x + 1, **free).sample(),
        F.gumbel_softmax(x),
        F.dropout2d(x[None, :, :, None], 0.5, True),
        F.alpha_dropout(x, 0.2, True),
    )


PROGRAMS: dict[str, Any] = {
    **{f.__name__: f for f in (
        branch, lazily, loop, unused, equal_draws, seeded, seeded_by_data, forked, states, local_generators, layouts, shapes, dtypes,
        whole_numbers, distributions, parameters, multinomials, library,
    )},
    **{c.__name__: c for c in (Decoder, Ponder, Prenet, OwnGenerator, StochasticDepth)},
}  # fmt: skip


def made(name: str) -> Any:
    """Return a program, a model with the same weights each time."""
    program = PROGRAMS[name]
    if not isinstance(program, type):
        return program
    torch.manual_seed(0)
    return program().eval()
