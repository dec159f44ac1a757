# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Bounds of the elements of integer tensors: what they decide is not asked, and nothing is decided that an input can have otherwise."""

from __future__ import annotations

import pytest
import torch
from differential import check, stage

_G = torch.Generator().manual_seed(5)
INPUTS = [(torch.randn(3, 6, generator=_G),) for _ in range(6)] + [(-torch.eye(3, 6),), (torch.arange(18.0).reshape(3, 6),)]


def positions(x):
    return x.argmax(1)  # 0 to 5


def _index_put(x):
    y = positions(x).clone()
    y[0] = -4
    y[1:2] = 9
    return y


def _accumulated(x):
    return positions(x).index_put((torch.tensor([0, 0]),), torch.tensor([7, 7]), accumulate=True)


def _in_place(x):
    y = positions(x).clone()
    y[1:] += 3
    y[2].mul_(-2)
    return y


def _through_views(x):
    y = torch.zeros(2, 3, dtype=torch.long)
    row = y[0]
    row.copy_(positions(x))
    row.add_(1)
    return y


def _loop(x):
    ids = torch.ones(1, dtype=torch.long)
    for _ in range(9):
        ids = torch.cat([ids, positions(x)[:1] - 1])
        x = x.roll(1, 1) - 1
        if x.sum() < -60:
            break
    return ids[-1:]


def _counted_in_a_loop(x):
    n = positions(x)
    while x.sum() < 60:
        n = n + 1
        x = x + 1
    return n


def _swapped_in_a_loop(x):
    a, b = positions(x), torch.full((3,), 8)
    while x.sum() < 60:
        a, b = b, a
        x = x + 1
    return a


def _joined(x):
    y = positions(x)
    if x.sum() > 0:
        y = y + 10
    elif x[0, 0] > 0:
        y = y - 10
    return y


def _recursive(x):
    def grow(n, x):
        if x.sum() > 20:
            return n
        return grow(n + 1, x + 1)

    return grow(positions(x), x)


class _Kept(torch.nn.Module):
    """A state that grows from call to call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(3, dtype=torch.long))

    def forward(self, x):
        self.n = self.n + positions(x)
        return self.n


MADE = {
    "moved": lambda x: positions(x).reshape(3, 1).expand(3, 2).permute(1, 0).flip(0).contiguous()[1].roll(1),
    "of other bytes": lambda x: positions(x).to(torch.int8).repeat(3)[:8].view(torch.int64),
    "of other types": lambda x: (positions(x) * 60).to(torch.int8).to(torch.int64) + positions(x).int(),
    "unsigned": lambda x: (positions(x) - 3).to(torch.uint8),
    "sums": lambda x: positions(x) + positions(-x) * 3 - (2 - positions(x)),
    "scaled sums": lambda x: torch.add(positions(x), positions(-x), alpha=-7),
    "reversed": lambda x: torch.rsub(positions(x), 2, alpha=3),
    "products": lambda x: -positions(x) * (positions(-x) - 2),
    "overflow": lambda x: positions(x).to(torch.int8) * 50,
    "operands that wrap round": lambda x: (positions(x).to(torch.int8) // 200).int() + positions(x).to(torch.int8) % 200,
    "tensors that wrap round": lambda x: positions(x).to(torch.int8) // (positions(-x)[0] + 200),
    "clamped to what wraps round": lambda x: positions(x).to(torch.uint8).clamp(min=-1),
    "quotients": lambda x: (positions(x) - 3) // 2 + torch.div(positions(x) - 9, 4, rounding_mode="trunc"),
    "remainders": lambda x: (positions(x) - 9) % 4 + (positions(x) % -3) + torch.fmod(positions(x) - 9, 4),
    "masks": lambda x: (positions(x) & (positions(-x) > 2)) + ((positions(x) - 3) & 6) + (positions(x) | 8),
    "bits": lambda x: (positions(x) - 3) & (positions(-x) - 4),
    "bools": lambda x: (x > 0).sum(1) - (x > 1).any(1).long(),
    "bools that are added": lambda x: ((x > 0)[:, 0] + (x > 1)[:, 1]).long() + torch.logical_not(positions(x)).long(),
    "clamped": lambda x: (
        positions(x).clamp(2, 4) + positions(x).clamp(max=1) + positions(x).clamp(min=3) + (x[:, 0] * 9).long().clamp(-7, 7)
    ),
    "clamped by tensors": lambda x: positions(x).clamp(torch.tensor(2), positions(-x)),
    "clamped otherwise": lambda x: positions(x).clamp(4, 2),
    "extremes": lambda x: torch.max(positions(x), torch.tensor(4)) + torch.minimum(positions(x), torch.tensor([-3, 2, 9])),
    "largest": lambda x: torch.stack([positions(x).max(), positions(x).min(), positions(x).amax(), x.max(0)[1].max()]),
    "sorted": lambda x: positions(x).sort(descending=True)[0] + positions(x).topk(3)[0] + x.topk(3)[1][:, 1],
    "cumulated": lambda x: positions(x).cumsum(0) + positions(x).cummax(0)[0],
    "summed": lambda x: torch.stack([positions(x).sum(), positions(x).prod(), positions(x).sum() - 3]),
    "chosen": lambda x: torch.where(x[:, 0] > 0, positions(x) + 7, torch.tensor([-1, -2, -3])),
    "filled": lambda x: positions(x).masked_fill(x[:, 0] > 0, -5).index_fill(0, torch.tensor([1]), 11),
    "padded": lambda x: torch.nn.functional.pad(positions(x), (1, 1), value=-2),
    "joined": lambda x: torch.cat([positions(x), torch.stack([positions(-x)[0], torch.tensor(12)]), torch.zeros(0, dtype=torch.long)]),
    "scattered": lambda x: (
        positions(x).scatter(0, torch.tensor([0]), 44) + torch.zeros(3, dtype=torch.long).scatter(0, positions(x) % 3, -6)
    ),
    "scattered sums": lambda x: torch.zeros(3, dtype=torch.long).scatter_add(0, positions(x) % 3, positions(x)),
    "scattered by a rule": lambda x: torch.ones(3, dtype=torch.long).scatter(0, positions(x) % 3, 5, reduce="multiply"),
    "looked up": lambda x: torch.tensor([3, -8, 21, 4, 5, 6])[positions(x)] + torch.arange(6).index_select(0, positions(x)),
    "converted": lambda x: (x[:, 0] * 5).long() + x[:, 1].round().int(),
    "compared with a number": lambda x: positions(x) * int(x[0].argmax()) + 1,
    "repeated": lambda x: positions(x).repeat_interleave(2)[:3] + positions(x).repeat(2)[1:4],
    "written": _index_put,
    "accumulated": _accumulated,
    "in place": _in_place,
    "through views": _through_views,
    "a loop": _loop,
    "counted in a loop": _counted_in_a_loop,
    "swapped in a loop": _swapped_in_a_loop,
    "a branch": _joined,
    "a recursion": _recursive,
}


def asked(make):
    """Return a program that compares the elements that ``make`` gives with all numbers about theirs."""

    def program(x):
        found = [int(v) for v in make(x).reshape(-1)[:3].tolist()]
        return (
            [sum([v > t for t in range(-24, 24)]) + sum([v == t for t in range(-24, 24)]) for v in found],
            [v < -100 for v in found],
            found,
        )

    return program


@pytest.mark.parametrize("name", MADE)
def test_as_in_eager(name):
    check(asked(MADE[name]), INPUTS)


def test_state():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.kept = _Kept()

        def forward(self, x):
            return asked(self.kept)(x)

    graph, model = stage(Model(), INPUTS[0]), Model()
    net = graph.interpret()
    for (x,) in INPUTS:
        assert net(x) == model(x)


def drawn(x):
    many, one = torch.randperm(6), torch.multinomial(x.abs()[0], 1)
    numbers = [*many.tolist(), *one.tolist(), *torch.randint(-2, 9, (2,)).tolist()]
    return [n >= 6 for n in numbers[:7]], [n < 0 for n in numbers[:7]], numbers[7] > 9, numbers[8] < -2


def test_draws():
    check(drawn, INPUTS)


def decoder(x):
    ids, going = torch.ones(1, 1, dtype=torch.long), torch.ones(1, dtype=torch.long)
    while ids.shape[1] < 9:
        new = x[:1].argmax(1) * going
        ids = torch.cat([ids, new[:, None]], 1)
        going = going & ~(new == 2)
        x = x.roll(1, 1)
        if going.max() == 0:
            break

    def special(ids):
        return [i for i, token in enumerate(ids.tolist()) if token >= 6]

    if special(ids[0]):
        return "a token that there is not"
    return ids


def test_what_bounds_decide_is_no_path():
    graph = check(decoder, INPUTS, paths=2)
    assert "a token that there is not" not in str(graph)
