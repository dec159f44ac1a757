# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Views of tensors with run-time lengths that do not lie in memory as tensors do that were made anew: parts, turned and expanded ones."""

from __future__ import annotations

import random

import pytest
import torch
from differential import check, stage
from torch import nn

import dycl_tvm
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.interpreter import LimitError, interpret

N, M = dycl_tvm.Dim("N", min=1, max=6), dycl_tvm.Dim("M", min=1, max=5)
SIZES = [(6, 5), (3, 4), (2, 2), (6, 2), (1, 1), (2, 5)]


def _operation(choose):
    d = choose.randrange(4)
    order = choose.sample(range(4), 4)
    before = (slice(None),) * d
    return choose.choice(
        [
            (f"turned {order}", lambda x: x.permute(order)),
            (f"behind the first of {d}", lambda x: x[(*before, slice(1, None))]),
            (f"all of {d}", lambda x: x.narrow(d, 0, x.shape[d])),
            (f"every other of {d}", lambda x: x[(*before, slice(None, None, 2))]),
            (f"one of {d}", lambda x: x.select(d, 0).unsqueeze(d)),
            ("expanded", lambda x: x[:1].expand(3, -1, -1, -1)),
            ("+ 1", lambda x: x + 1),
            ("* itself", lambda x: x * x.flip(0)),
        ]
    )


def _program(seed):
    choose = random.Random(seed)
    operations = [_operation(choose) for _ in range(choose.randrange(1, 5))]
    first, last = sorted(choose.sample(range(4), 2))

    def program(x):
        for _, operation in operations:
            x = operation(x)
        sizes, merged = list(x.shape), 1
        for n in sizes[first : last + 1]:
            merged = merged * n
        return x.view(sizes[:first] + [merged] + sizes[last + 1 :])

    return ", ".join(name for name, _ in operations), program


def _outcome(f, *args):
    try:
        return f(*args)
    except Exception as error:
        return type(error).__name__


def test_a_view_is_one_where_eager_makes_one():
    """Whatever was done to a tensor, a view that eager refuses is refused too, or is eager's error."""
    taken = 0
    for seed in range(120):
        what, program = _program(seed)
        try:
            call = stage(program, (torch.zeros(2, 6, 5, 3),), dynamic_shapes=({1: N, 2: M},)).interpret()
        except (UnsupportedError, RuntimeError):
            continue
        taken += 1
        for n, m in SIZES:
            x = torch.arange(6.0 * n * m).reshape(2, n, m, 3)
            want, got = _outcome(program, x), _outcome(call, x)
            same = torch.equal(want, got) if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor) else want == got
            assert same, f"{what}, sizes {n} and {m}: {want} in eager, {got} as staged"
    assert taken > 20


def shifted(scores):
    """What attention by relative positions does with its scores."""
    batch, heads, n, positions = scores.shape
    padded = torch.cat([torch.zeros(batch, heads, n, 1), scores], -1).view(batch, heads, positions + 1, n)
    return padded[:, :, 1:].view(batch, heads, n, positions)[..., : positions // 2 + 1]


def relative(q):
    at = torch.arange(q.shape[1] - 1, -q.shape[1], -1)
    places = torch.stack([at.sin(), at.cos(), at / 7.0, at * 0.1], -1)
    return shifted(q[:, None] @ places.mT)


def rotary(x, batch=2):
    n = x.shape[1]
    turned = x.view(batch, n, 2, 4).transpose(0, 1)
    angle = torch.arange(n)[:, None, None, None] * torch.tensor([1.0, 0.1, 1.0, 0.1])
    halves = torch.cat([-turned[..., 2:], turned[..., :2]], -1)
    return (turned * angle.cos() + halves * angle.sin()).transpose(0, 1).view(batch, n, 8)


def counted_down(x):
    n = x.shape[1]
    return torch.arange(2 * n, -n, -2), torch.arange(0, n, 3), torch.arange(n, 0, -1) * x.sum().long()


@pytest.mark.parametrize("program, size", [(relative, 4), (rotary, 8), (counted_down, 1)], ids=lambda x: getattr(x, "__name__", None))
def test_right(program, size):
    calls = [(torch.randn(2, n, size, generator=torch.Generator().manual_seed(n)),) for n in (6, 1, 2, 5)]
    check(program, calls, dynamic_shapes=({1: N},))


class Padded(nn.Module):
    """Its mask is as long as the numbers in a tensor say, which has to be as long as the sequence."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, x, lengths):
        n = int(lengths.max().item())
        mask = torch.arange(n).expand(2, n) >= lengths.unsqueeze(1)
        return self.attention(x, x, x, key_padding_mask=mask, need_weights=False)[0]


def test_a_mask_as_long_as_numbers_say():
    calls = [(torch.randn(n, 2, 8), torch.tensor([n, m])) for n, m in ((6, 2), (1, 1), (5, 5), (4, 0))]
    wrong = (torch.randn(4, 2, 8), torch.tensor([3, 2]))
    check(Padded().eval(), [*calls, wrong], dynamic_shapes=({0: N}, None), max_length=6)
    check(Padded().eval(), [calls[0], (calls[0][0], torch.tensor([6, 6])), (calls[0][0], torch.tensor([5, 2]))], max_length=6)


def test_a_number_that_is_no_size_but_means_one_ends_the_call():
    def model(x, m):
        n = m.sum().item() - 1
        return x[m][1:].view(n, 1) if x[0] > 0 else x[m][1:].reshape(1, n)

    x = torch.arange(1.0, 6)
    graph = stage(model, (x, x > 2))
    for sign in (1, -1):
        for count in (1, 2, 5):
            given = sign * x, torch.arange(5) < count
            assert torch.equal(interpret(graph, [*given])[0], model(*given))
        with pytest.raises(LimitError, match="a size is -1, known only at run time, by which view"):
            interpret(graph, [sign * x, x < 0])  # eager finds the size
