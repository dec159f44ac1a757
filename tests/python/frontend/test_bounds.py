# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Bounds that programs give: by tests of numbers that end the path otherwise, and by ``dycl_tvm.bound``."""

from __future__ import annotations

import pytest
import torch
from differential import check, stage

import dycl_tvm
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.types import TensorType

COUNTS = [(torch.tensor([n - 2, 2]),) for n in (5, 16, 0, 1, 17, 40, -1)]
MASKED = [(torch.linspace(-1, 1, 9) * s + k,) for s in (1, -1) for k in (0, 0.3, -2, 2)]


def raised(d):
    n = d.sum().item()
    if n > 16:
        raise RuntimeError("too long")
    return torch.arange(n) + 1


def checked(d):
    n = d.sum().item()
    torch._check(n <= 16)
    torch._check(n >= 0)
    return torch.zeros(2, n) + d.sum()


def asserted(d):
    n = d.sum().item()
    assert 0 <= n <= 16
    return torch.ones(n).cumsum(0)


def either(d):
    n = d.sum().item()
    if n < 0 or n > 16 or d[0] > 100:
        return d
    k = torch.arange(n) if n < 8 and n > 2 else torch.zeros(2)
    return torch.arange(n), k, torch.ones(2, n) if not (n > 12 or n == 1) else None


def returned(d):
    n = d.sum().item()
    if not n < 17:
        return d
    return torch.arange(n).float().mean() if n else d


def on_both_sides(d):
    n, k = d.sum().item(), 0
    if n < 8:
        y = d * n
    else:
        y, k = d - 1, n - 7
    return y, k, n


def in_a_loop(d):
    total = torch.zeros(())
    for k in range(3):
        n = (d[0] + k).item()
        if n < 0 or n > 50:
            break
        torch._check(n <= 16)
        total = total + torch.ones(n).sum()
    return total


@pytest.mark.parametrize("program", [raised, checked, asserted, either, returned, on_both_sides, in_a_loop], ids=lambda f: f.__name__)
def test_tests_of_numbers_bound_them(program):
    check(program, COUNTS)


def after_the_test(d):
    n = d.sum().item()
    y = torch.arange(n) if n < 8 else torch.ones(3)
    return y, torch.arange(n)


def the_other_way(d):
    n = d.sum().item()
    if n < 3:
        raise RuntimeError("too short")
    return torch.arange(n)


def one_of_two(d):
    n = d.sum().item()
    if n < 8 or d[0] > 0:
        return torch.arange(n)
    return d


def not_both(d):
    n = d.sum().item()
    if n > 16 and d[0] > 0:
        return d
    return torch.arange(n)


@pytest.mark.parametrize("program", [after_the_test, the_other_way, one_of_two, not_both], ids=lambda f: f.__name__)
def test_what_a_test_does_not_tell(program):
    with pytest.raises(UnsupportedError, match=r"nothing bounds it\nInstead: bound the number, as with torch._check\(n <= 1000\)"):
        stage(program, COUNTS[0])


def _which(n, x):
    if n >= 1:
        if n >= 2:
            return x.sum()
        return x.sum() * 2
    if n == 0:
        return x.sum() * 3
    return x.sum() * 5


def of_a_length(x):
    return _which(x[x > 0].shape[0], x), x[x > 0]


def of_a_number(x):
    n = x.argmax().item() - 1
    return _which(n, x), n


def in_trips(x):
    n, t = x[x > 0].shape[0], x.sum()
    for _ in range(2):
        if n >= 1:
            if n >= 2:
                t = t + 1
                continue
            t = t + 3
            continue
        t = t * 3 if n == 0 else t * 5
    return t


@pytest.mark.parametrize("program", [of_a_length, of_a_number, in_trips], ids=lambda f: f.__name__)
def test_what_a_test_in_a_side_tells_is_forgotten_behind_it(program):
    """A side that leaves has learned more than the test that it is a side of told it; the other side knows neither."""
    check(program, [(torch.tensor(x),) for x in ([-1.0, -2, -3], [2.0, -1, -1], [-1.0, 2, 1], [-2.0, -1, 3])])


def picked(x):
    y = dycl_tvm.bound(x[x > 0], 0, 4)
    return y * 2, y.sum(), y.shape[0], torch.stack([y, y], 1).t()


def fixed(x):
    return dycl_tvm.bound(x, -1, 9) + 1, dycl_tvm.bound(x[x > 0], 0, 20)


def one_tensor(x):
    y = x[x > 0] * 1
    z = dycl_tvm.bound(y, 0, 4)
    z += 1
    return y, z


@pytest.mark.parametrize("program", [picked, fixed, one_tensor], ids=lambda f: f.__name__)
def test_bound(program):
    check(program, MASKED)


def test_a_bound_makes_buffers_shorter():
    graph = stage(picked, MASKED[0])
    (site,) = [b.terminator for b in graph.blocks if hasattr(b.terminator, "site")]
    shapes = [v.type.shape for v in site.values if isinstance(v.type, TensorType)]
    assert shapes == [(4,), (), (2, 4)]


def test_a_fixed_dimension_beyond_its_bound():
    program = lambda x: dycl_tvm.bound(x, 0, 3) * 2  # noqa: E731
    with pytest.raises(RuntimeError, match="dimension 0 is longer than its bound 3"):
        program(torch.ones(4))
    with pytest.raises(UnsupportedError, match="dimension 0 is longer than its bound 3"):
        stage(program, (torch.ones(4),))


def one_of_two_sizes(x):
    n, m = x.shape
    larger = n if n > m else m
    chosen = int((x > 0).sum()) if x.sum() > 0 else n
    grown = n + 1 if x[0, 0] > 0 else 2
    return torch.zeros(larger), torch.zeros(chosen, 2), torch.arange(grown), larger == n, x[:grown], grown > 5


def padded_to_both(x):
    n, m = x.shape
    y = torch.arange(12.0).view(1, 3, 4)
    return torch.nn.functional.pad(y, (0, n, 0, m)), torch.nn.functional.pad(y, (n, m, n - 1, -1), value=2.0)


@pytest.mark.parametrize("program", [one_of_two_sizes, padded_to_both])
def test_what_is_one_of_several_numbers_is_within_the_bounds_of_all(program) -> None:
    shapes = ({0: dycl_tvm.Dim("N", max=4), 1: dycl_tvm.Dim("M", max=4)},)
    sizes = [(2, 3), (1, 1), (4, 1), (1, 4), (4, 4)]
    inputs = [(sign * torch.randn(n, m, generator=torch.Generator().manual_seed(n)),) for n, m in sizes for sign in (1, -1)]
    check(program, inputs, dynamic_shapes=shapes)
