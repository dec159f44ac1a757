# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors whose length is known only at run time: parts from any place, items, sums of lengths, masks, positions, joins and loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from differential import check, stage
from mask_rows import ROWS

import dycl_tvm
from dycl_tvm.errors import UnsupportedError

INPUTS = [(torch.tensor(row),) for row in ROWS]


def count(x):
    return int((x > 0).sum())


def from_any_place(x):
    n, m = count(x), torch.outer(x, x)
    return x[n:], x[-n:], x[:-n], x[n : n + 2], x[n - 3 : n], x[n:0], x[2:n], x[100:n], x[-100:n], m[1, n:], m[:, n:], len(x[n:])


def from_a_position_that_is_within(x):
    i = int(x[:4].argmax())
    return x[i : i + 2] * torch.ones(2), x[i:], x[:i]


def parts_of_parts(x):
    n, k = count(x), int((x > 1).sum())
    y = x[:n]
    return y[1:], y[:-1], y[-2:], y[:2], y[:k], y[k:], y[k : k + 1], y[-k:], y.numel(), y.shape, y[1:].sum()


def views(x):
    y, n = x.clone(), count(x)
    head, tail, two = y[:n], y[n:], y[n : n + 2]
    y.mul_(2)
    y[0] = 5.0
    return head, tail, two, y


def written(x):
    n, y, m = count(x), x.clone(), torch.zeros(5, 5)
    y[n:] = x[n:] * 2
    y[:n] *= 3
    y[:n].clamp_(0, 5)
    v = y[1:4]
    v[:n] = 9
    m[:, :n] = x[:n]
    m[n:, 0] = -1
    m[1, :n] = torch.tensor(4)
    m[-n:] += 1
    return y, v, m


def assigned_of_another_length(x):
    y = x.clone()
    y[count(x) :] = torch.tensor([7.0, 8.0])
    return y


def items(x):
    y = x[: count(x)]
    return y[-1], y[0]


def an_item_at_a_number(x):
    y, i = x[: count(x)], int(x.abs().sum() * 3) % 6
    return y[i - 3]


def narrowed(x):
    n = count(x)
    return x.narrow(0, 0, n), x.narrow(0, n, 1), x[:n].narrow(0, 1, 1)


def one_by_one(x):
    y, total = x[: count(x)], x.sum() * 0
    for v in y:
        total = total * 2 + v
    for i in range(len(y)):
        total = total + y[i] * i
    return total


def as_lists(x):
    y, m = x[: count(x)], torch.outer(x, x)
    a, b = m[:2, : count(x)]
    return len(y.tolist()), [v * 2 for v in y.tolist()][:2], [v + 1 for v in y][:1], a, b


def sums_of_lengths(x):
    n, k = count(x), int((x > 1).sum())
    m = torch.outer(x, x)
    return torch.cat([x[:n], x[:k]]), torch.cat([x, x[:n], x[:1], x[n:]]), torch.cat([m[:n], m[:k]]), torch.cat([m[:n], m[:n]], 1)


def lengths_that_agree(x):
    n, m = count(x), torch.outer(x, x)
    return torch.cat([x[:n], x[n:]]) + x, torch.stack([x[:n], x[:n] * 2], 1), m[:n, None] * m[:n, :1, None], x[:n] * x[n - 1 : n]


def lengths_that_may_agree(x):
    return x[: count(x)] + torch.ones(3)


def two_lengths_that_may_agree(x):
    return x[: count(x)] * x[: int((x > 1).sum())]


def products(x):
    n, m = count(x), torch.outer(x, x)
    return m[:n] @ m, m[:, :n] @ m[:n], m @ m[:, :n], F.linear(m[:n], m)


def whole_numbers(x):
    y = (x[: count(x)] * 4).long()
    return y // torch.tensor(2), y % 3, torch.tensor([7]) // (y + 100)


def reduced(x):
    y = x[: count(x)]
    return y.sum(), y.mean(), (y > 0).all(), (y > 2).any(), y.softmax(0), y.cumsum(0)


def extremes(x):
    y, m = x[: count(x)], torch.outer(x, x)[: count(x)]
    return y.max(), y.argmax(), y.min(), m.max(0), m.amax(1), m.argmin(0)


def sizes(x):
    n, y = count(x), x[: count(x)]
    return torch.zeros(n), torch.ones(2, n), torch.arange(n) + y, torch.arange(1, n + 1), torch.arange(n, 5), torch.full((n,), 2.0)


def padded(x):
    n, k = count(x), int((x > 1).sum())
    m = max(n, k)
    return (
        F.pad(x[:n], (0, 5 - n)),
        F.pad(x[:n], (n, 1), value=2.0),
        F.pad(x, (n, 0)),
        F.pad(x[:n], (0, m - n)) * 2,
        F.pad(x[:n], (0, k - n)),
    )


def shaped(x):
    y = x[x > 0]
    k = y.shape[0]
    return y.view(1, k), y.reshape(k, 1), y[:, None].flatten(), torch.zeros(k, 3) + y[:, None], y.unsqueeze(0).expand(2, k)


def masks(x):
    m = torch.outer(x, x)
    return x[x > 0], m[m > 1], m[x > 0], m[:, x > 0], m[x > 0].sum(0), x.masked_select(x > 1), x[None][:, x > 0], x[x > 0, None]


def masks_of_what_masks_pick(x):
    y = x[x > 0]
    return y[y > 1], y[y < 2], (y > 1).nonzero()


def positions(x):
    m, (i,) = torch.outer(x, x), torch.where(x > 0)
    r, c = torch.where(m > 1)
    return torch.nonzero(x > 0), (m > 1).nonzero().shape, x[i], m[i], m[:, i], x.index_select(0, i), m[r, c], r + c


def put_back(x):
    y, (i,), out = x.clone(), torch.where(x > 0), torch.zeros(5)
    y[x > 0] = y[x > 0] * 10
    z = torch.zeros(5, 2)
    z[i] = torch.ones(2)
    z[i] = torch.stack([x[i], x[i]], 1)
    out.index_add_(0, i, x[i] * 3)
    return y, z, out


def experts(x):
    """Each expert takes the tokens that chose it."""
    h = torch.outer(x, x)
    chosen = torch.stack([x > 0, x > 1, x < 0])
    out = torch.zeros(5, 5)
    for k in chosen.sum(1).gt(0).nonzero():
        tokens = torch.where(chosen.long()[k[0]] > 0)[0]
        out.index_add_(0, tokens, F.relu(h[tokens]) * (k + 1))
    return out


def split_by_numbers(x):
    h, sizes = torch.outer(x, x), torch.stack([x > 0, x <= 0]).long().sum(1).tolist()
    weights = torch.arange(50.0).reshape(2, 5, 5)
    results = torch.cat([F.linear(part, weights[i]) for i, part in enumerate(h.split(sizes))])
    return torch.cat([F.relu(part) for part in results.split(sizes)]) + h


def split_by_numbers_that_may_be_wrong(x):
    return x.split([count(x), 1, 3])


def joined(x):
    y, z, w = x[: count(x)], x[x > 0], x.clone()
    v = w[: count(x)]
    if x.sum() > 0:
        y, z, v = y[:-1], x, v[1:]
    w.mul_(10)
    return y, y.shape[0], z * 2, z.sum(), v


def joined_and_nothing(x):
    y, found = x[:3], None
    if x.sum() > 0:
        y, found = x[: count(x)], y.sum()
    return y, found


def in_loops(x):
    y, total = x[x > 0], x.sum() * 0
    while len(y) > 0:
        total, y = total * 2 + y[0], y[1:]
    z, i = x[:1], 0
    while i < 4 and x[i] < 3:
        if x[i] > 0:
            z = torch.cat([z, x[i : i + 1]])
        i += 1
    return total, y, z


def pruned(x):
    kept, s = torch.arange(5), x
    for _ in range(3):
        more = s > s.mean()
        s, kept = s[more], kept[more]
    return s, kept


def shorter_views_of_what_changes(x):
    y = x.clone()
    w = y
    while w.sum() < 20 and w.shape[0] > 1:
        w = w[1:]
        y.add_(1)
    return w, y


def squeezed(x):
    """Of one row a dimension fewer."""
    x = torch.stack([x, -x], 1)
    i = (x[:, 0] > 0).nonzero().squeeze()
    if i.numel() == 0:
        return x
    return (x.index_select(0, i) if i.dim() else x[i] * 3), x[x[:, 0] > 0].squeeze(0), x[x[:, 0] > 0][:, :1].squeeze(-1)


PROGRAMS = [
    squeezed,
    *(from_any_place, from_a_position_that_is_within, parts_of_parts, views, written, assigned_of_another_length, items),
    *(an_item_at_a_number, narrowed, one_by_one, as_lists, sums_of_lengths, lengths_that_agree, lengths_that_may_agree),
    *(two_lengths_that_may_agree, products, whole_numbers, reduced, extremes, sizes, padded, shaped, masks, masks_of_what_masks_pick),
    *(positions, put_back, experts, split_by_numbers, split_by_numbers_that_may_be_wrong, joined, joined_and_nothing, in_loops, pruned),
    shorter_views_of_what_changes,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_right(program):
    check(program, INPUTS)


@pytest.mark.parametrize(("program", "loops"), [(one_by_one, 2), (in_loops, 2)])
def test_rolled(program, loops):
    assert sum(b.name.startswith("loop") for b in stage(program, INPUTS[0]).blocks) == loops


REFUSED = {
    "no rule for the operator": (
        lambda x: torch.mode(x[x > 0]),
        r"is not supported of a tensor \[n\] of float32 whose length n",
    ),
    "two such dimensions": (lambda x: torch.outer(x, x)[: count(x), count(x) :].tolist(), r"one such dimension only.* \[n, m\]"),
    "arguments without a rule": (lambda x: x[x > 0].sum(()), r"sum\(\) is not supported with these arguments"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    program, message = REFUSED[name]
    with pytest.raises(UnsupportedError, match=message):
        stage(program, INPUTS[0])


def test_no_function_sees_what_is_behind_the_end():
    """Functions of one tensor give what they give in eager, or are refused, whatever they are."""
    functions = {**vars(torch), **{f"Tensor.{name}": getattr(torch.Tensor, name) for name in dir(torch.Tensor)}}
    functions = {
        name: f
        for name, f in functions.items()
        if type(f) in (type(torch.sum), type(torch.Tensor.sum)) and "rand" not in name and "empty" not in name
    }
    right = []
    for name, func in functions.items():
        program = _of_one(func, (lambda x: x[x > 0]) if hasattr(func, "__objclass__") else lambda x: torch.outer(x, x)[:, x > 0])
        try:
            wanted = [torch.as_tensor(program(x)) for (x,) in INPUTS]
            graph = stage(program, INPUTS[0])
        except Exception:
            continue  # it takes other arguments, gives no tensor, has no value of no elements, or is refused
        for (x,), want in zip(INPUTS, wanted):
            torch.testing.assert_close(torch.as_tensor(graph.interpret()(x)), want, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")
        right.append(name)
    assert len(right) > 100


def _of_one(func, cut):
    def program(x):
        return func(cut(x))

    return program


def test_built(tmp_path: Path) -> None:
    def program(x: Any) -> Any:
        return x[x > 0], (x > 1).nonzero(), x.long() // 3 % 4 // 2

    artifact = dycl_tvm.build(program, (torch.randn(2, 3),))
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    call = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")
    for x in (torch.randn(2, 3), -torch.ones(2, 3), torch.full((2, 3), 7.0), torch.arange(-3.0, 3.0).reshape(2, 3)):
        for want, got in zip(program(x), call(x), strict=True):
            assert want.dtype == got.dtype and torch.equal(want, torch.as_tensor(got))
