# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Loops whose tensors grow from trip to trip: a decoder's tokens, its mask and its cache. They are rolled, or unrolled, and right."""

from __future__ import annotations

import contextvars
from typing import Any

import pytest
import torch
from differential import check, stage
from torch import nn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.values.lengths import Counter, Length, combine
from dycl_tvm.hcfg.nodes import Value
from dycl_tvm.hcfg.types import INT

VOCABULARY, WIDTH, HEADS = 11, 8, 2
PROMPTS = [(torch.randint(1, VOCABULARY, (2, 4), generator=torch.Generator().manual_seed(k)),) for k in range(8)]


class Cache:
    """Keys and values, as a decoder's cache keeps them: in attributes that are None before the first step."""

    def __init__(self) -> None:
        self.keys: Any = None
        self.values: Any = None

    def __len__(self) -> int:
        return 0 if self.keys is None else self.keys.shape[-2]

    def update(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.keys is not None:
            keys, values = torch.cat([self.keys, keys], -2), torch.cat([self.values, values], dim=-2)
        self.keys, self.values = keys, values
        return keys, values


def fused(q, k, v, mask):
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def written_out(q, k, v, mask):
    scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.matmul(nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


def repeated(q, k, v, mask):
    """Attention of a model that shares keys among heads."""
    b, h, n, d = k.shape
    k, v = [t[:, :1, None, :, :].expand(b, 1, h, n, d).reshape(b, h, n, d) for t in (k, v)]
    return fused(q, k, v, mask)


class Decoder(nn.Module):
    """A decoder of one layer, and the greedy loop of a library around it."""

    def __init__(self, most: int, attention: Any = fused, masked: bool = False) -> None:
        super().__init__()
        torch.manual_seed(most)
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(300, WIDTH)
        self.q, self.k, self.v = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        self.out = nn.Linear(WIDTH, VOCABULARY)
        self.most, self.attention, self.masked = most, attention, masked

    def step(self, ids: torch.Tensor, cache: Cache, mask: torch.Tensor | None) -> torch.Tensor:
        b, n = ids.shape
        x = self.tokens(ids) * 3 + self.places(torch.arange(n) + len(cache))
        q, k, v = [f(x).view(b, n, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v)]
        k, v = cache.update(k, v)
        if mask is not None:
            mask = mask[:, None, None, :].to(torch.bool)
        y = self.attention(q, k, v, mask)
        return self.out(y.transpose(1, 2).reshape(b, n, -1)[:, -1])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        cache, mask = Cache(), (ids > 2).long() if self.masked else None
        going = torch.ones(ids.shape[0], dtype=torch.long)
        stop, new, done = ids.shape[1] + self.most, ids, False
        while not done:
            logits = self.step(new, cache, mask)
            token = logits.argmax(-1) * going
            ids = torch.cat([ids, token[:, None]], dim=-1)
            if mask is not None:
                mask = torch.cat([mask, mask.new_ones((mask.shape[0], 1))], dim=-1)
            new = ids[:, -1:].clone()
            longest = torch.full((ids.shape[0],), ids.shape[1] >= stop)
            going = going & ~((ids[:, -1] < 2) | longest)
            done = going.max() == 0
        return ids


@pytest.mark.parametrize("attention", [fused, written_out, repeated])
@pytest.mark.parametrize("masked", [False, True])
def test_a_decoder(attention, masked):
    model = Decoder(9, attention, masked).eval()
    graph = check(model, PROMPTS, paths=2)
    lengths = {tuple(model(*p).shape) for p in PROMPTS}
    assert len(lengths) > 1, "the prompts have to end after different numbers of tokens"
    assert sum(len(b.steps) for b in graph.blocks) < 220


def test_code_does_not_grow_with_the_number_of_tokens():
    def steps(most: int) -> int:
        graph = stage(Decoder(most).eval(), PROMPTS[0])
        return sum(len(b.steps) for b in graph.blocks if not b.name.startswith("length"))

    assert steps(6) == steps(200)


def parts(x, n):
    ids = x
    total = torch.zeros(2)
    while ids[:, -1].sum() < n:
        ids = torch.cat((ids, ids[:, -1:] + 1, ids[:, -2:-1]), 1) if False else torch.cat((ids, ids[:, -1:] + 1), 1)
        if ids.shape[1] > 9:
            break
        total = total + ids[:, 2:].sum(1) + ids[:, :-1].sum(1) + ids[:, :3].sum(1) + ids[..., 1] + (ids > 3).all(1) + (ids == 5).any()
    return ids, total, ids.shape[1]


def two_at_a_time(x, n):
    rows = x[0]
    while rows.sum() < n:
        rows = torch.cat([rows, torch.stack([rows[-1] + 1, rows[0] * 2])])
        if rows.shape[0] >= 12:
            break
    return rows * 2, rows.numel()


def the_first_trip_differs(x, n):
    found = None
    while True:
        found = x if found is None else torch.cat([found, found[:, -1:] * 1.5], 1)
        if found.sum() > n or found.shape[1] > 8:
            return found


def a_condition_of_the_length(x, n):
    while x.shape[1] < 12 and x[:, -1].sum() < n:
        x = torch.cat([x, x[:, -1:] + (2 if x.shape[1] == 7 else 1)], 1)
    return x


def changed_in_place(x, n):
    while x.shape[1] < 9 and x.sum() < n:
        x = torch.cat([x, x[:, -1:] + 1], 1)
        x[:, 0] += 1
    return x


def changed_through_a_part(x, n):
    while x.shape[1] < 9 and x.sum() < n:
        x = torch.cat([x, x[:, -1:] + 1], 1)
        last = x[:, -1]
        last.mul_(2)
    return x


def kept_beside(x, n):
    before = first = x
    while x.shape[1] < 9 and x.sum() < n:
        before, x = x, torch.cat([x, x[:, -1:] + 1], 1)
    return before, x is first, before is first, x


def not_known(x, n):
    while x.shape[1] < 9 and x.sum() < n:
        x = torch.cat([x, x.cumsum(1)[:, -1:]], 1)
    return x


def unsteady(x, n):
    while x.shape[1] < 40 and x.sum() < n:
        x = torch.cat([x, x], 1)
    return x


def its_own_test_of_the_length(x, n):
    trips = 0
    while trips < 6 and x.sum() < n:
        x = torch.cat([x, x[:, -1:] + 1], 1)
        trips += 1
    return x, trips


def cat_after_the_loop(x, n):
    while x.shape[1] < 8 and x.sum() < n:
        x = torch.cat([x, x[:, -1:] + 1], 1)
    x = torch.cat([x, torch.ones(2, 5)], 1)
    return x, x[:, -6:-5] if False else x[:, -6], x.shape


def softmax_of_all(x, n):
    while x.shape[1] < 8 and x.sum() < n:
        x = torch.cat([x, torch.softmax(x.log(), 1)[:, -1:] + x.exp()[:, :1] + (x / (x - 3)).abs()[:, 1:2].clamp(max=2)], 1)
    return x


PROGRAMS = [
    parts,
    two_at_a_time,
    the_first_trip_differs,
    a_condition_of_the_length,
    changed_in_place,
    changed_through_a_part,
    kept_beside,
    not_known,
    unsteady,
    its_own_test_of_the_length,
    cat_after_the_loop,
    softmax_of_all,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_right(program):
    x = torch.arange(6.0).reshape(2, 3) + 0.5
    check(program, [(x, torch.tensor(n)) for n in (0.0, 8.0, 12.0, 20.0, 34.0, 60.0, 200.0, 5000.0)])


def test_a_bound_of_the_user():
    def f(x, n):
        while x[:, -1].sum() < n:
            x = torch.cat([x, x[:, -1:] + 1], 1)
        return x

    x = torch.arange(6.0).reshape(2, 3)
    graph = check(f, [(x, torch.tensor(n)) for n in (0.0, 8.0, 12.0, 17.0, 60.0)], paths=4, max_loop_trips=40)
    assert sum(b.name.startswith("loop") for b in graph.blocks) == 1
    with pytest.raises(UnsupportedError, match="max_loop_trips"):
        stage(f, (x, torch.tensor(0.0)))


@pytest.mark.parametrize("early, most", [(4, 6), (4, 7), (5, 7), (5, 12)])
def test_another_test_of_the_length_comes_before_that_which_ends_the_loop(early, most):
    """As in a decoder that lets no other word come before the first few."""
    weights = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 3

    def f(ids):
        done = torch.zeros(2, dtype=torch.bool)
        while not bool(done.all()):
            scores = weights[ids[:, -1]].clone()
            if ids.shape[1] < early or ids[0, -2] > 5:
                scores[:, 8:] = -10
            ids = torch.cat([ids, scores.argmax(-1)[:, None]], 1)
            done = done | (ids[:, -1] == 2) | torch.full((2,), ids.shape[1] >= most)
        return ids

    prompts = [(torch.randint(1, VOCABULARY, (2, 1), generator=torch.Generator().manual_seed(k)),) for k in range(8)]
    check(f, prompts, paths=2, blocks=12)


def test_lengths_of_one_loop_are_compared_by_their_difference():
    counter = Counter(Value(INT), 10, None)
    n = Length(counter, 2, 5)
    assert combine("sub", n.plus(3), n) == 3 and combine("mul", 3, n) == Length(counter, 6, 15)
    assert combine("eq", n, n.plus(0)) is True and combine("ne", n, 7) is None and combine("ne", n, 6) is True
    assert combine("lt", n, 26) is True and combine("lt", n, 25) is None and combine("eq", n, 25) is None
    assert combine("ge", n, 40) is False and combine("gt", 4, n) is False
    assert counter.thresholds == {11, 18}  # 5 + 2 * 11 is not less than 26; 5 + 2 * 18 is not less than 40
    assert combine("eq", n, Length(Counter(Value(INT), 10, None), 2, 5)) is None


LEVEL = contextvars.ContextVar("LEVEL", default=1)


def test_context_variables_in_a_loop():
    def f(x):
        seen = x * 0
        while x.sum() < 9:
            token = LEVEL.set(LEVEL.get() + 2)
            x, seen = x + LEVEL.get(), seen + LEVEL.get()
            LEVEL.reset(token)
            try:
                LEVEL.reset(token)
            except RuntimeError:
                seen = seen * 2
        return x, seen, LEVEL.get()

    check(f, [(torch.full((2,), v),) for v in (-5.0, 0.0, 3.0, 6.0)])
