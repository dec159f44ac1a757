# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Results that eager does not write in place: the same error, and code that catches it goes the same way."""

from __future__ import annotations

import pytest
import torch
from differential import check, stage

from dycl_tvm.errors import UnsupportedError

X = [(torch.arange(6.0).reshape(2, 3) + shift,) for shift in (0.0, -9.0)]


def _int_minus_float(x):
    n = x.long()
    n -= 0.5


def _bool_plus_int(x):
    b = x > 2
    b += 1


REFUSED = {
    "an int less a float": _int_minus_float,
    "a bool plus an int": _bool_plus_int,
    "a quotient of ints": lambda x: x.long().div_(2),
    "a root of ints": lambda x: x.long().sqrt_(),
    "out of another dtype": lambda x: torch.add(x, x, out=torch.empty(2, 3, dtype=torch.int64)),
    "memory seen several times": lambda x: x[:, :1].expand(2, 3).add_(1),
    "another shape": lambda x: x[1:].add_(torch.ones(4)),
    "a larger shape": lambda x: x[0].copy_(torch.ones(2, 3)),
    "memory that overlaps": lambda x: x[0, 1:].add_(x[0, :-1]),
    "a number that does not fit": lambda x: x.to(torch.uint8).fill_(300),
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_eager_raises(change):
    def caught(x):
        try:
            change(x)
        except RuntimeError:
            return x + 1
        return x - 1

    def uncaught(x):
        if x.sum() > 3:
            change(x)
        return x

    check(caught, X)
    check(uncaught, X, paths=2)


def test_what_eager_writes():
    def f(x):
        i = int(x.argmax()) % 2
        y, z, n = x.clone(), torch.empty(2, 3), x.long()
        torch.add(x, x, out=z)
        n[0] = 0.5
        n[1].fill_(2.7)
        y[y > 2] = 0
        y[[0, 1], [1, 1]] += 2.0
        y.masked_fill_(x > 4, 0.5)
        y.scatter_(1, torch.zeros(2, 1, dtype=torch.int64), 7.0)
        y.index_add_(0, torch.tensor([0]), x[:1])
        y.t().mul_(2)
        y[0].add_(y[1])
        y[i] += y[1 - i]
        y.view(-1)[:3] += x.reshape(6)[3:]
        x[0].copy_(torch.ones(1))
        return x, y, z, n

    check(f, X)


def test_what_is_only_read_may_lie_in_memory_in_any_way():
    """The strides of `y` depend on the path; nothing that is written depends on them, unless it is written itself."""

    def f(x):
        y = x * 2 if x.sum() > 0 else (x.t() + 1).t().contiguous().t().clone().t() if x[0, 0] < -20 else x.t().contiguous().t()
        kept = torch.zeros(2, 3, 2)
        kept[..., 0] = y
        kept[:, :, 1].add_(y).mul_(y + 1)
        torch.sub(x, y, out=kept[..., 1])
        y[0] += y[1]
        return kept, y

    check(f, X, paths=2)

    def reads_only(x):
        y = x * 2 if x.sum() > 0 else x.t().contiguous().t()
        kept = torch.zeros(2, 3, 2)
        kept[..., 0] = y
        return kept.mul_(2)

    assert len(check(reads_only, X, paths=2).return_sites()) == 1


def test_memory_that_is_read_and_written_at_once_is_refused():
    def f(x):
        x[:, 1:].add_(x[:, :-1])
        return x

    with pytest.raises(UnsupportedError, match=r"reads memory through one view and writes to it through another(.|\n)*clone"):
        stage(f, X[0])


def test_an_out_of_another_shape_is_refused():
    def f(x):
        return torch.add(x, x, out=torch.empty(3, 2))

    with pytest.raises(UnsupportedError, match="another shape"):
        stage(f, X[0])
