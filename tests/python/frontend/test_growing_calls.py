# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is asked of tensors that grow in a rolled loop, in every way of calling: it is as in eager, or the loop is unrolled."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from differential import check, stage

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.values.grown_calls import HANDLERS

X = torch.tensor([[0.5, 1.5, -2.0], [3.0, 0.25, 1.0]])
INPUTS = [(X, torch.tensor(limit)) for limit in (0.0, 6.0, 9.0, 14.0, 30.0, 500.0)]
#: Without an operator or a function of PyTorch's beside what is asked: the loop is rolled.
ASKED: dict[str, Callable[[torch.Tensor], Any]] = {
    "a sum along the other dimension, by NumPy's name": lambda c: c.sum(axis=0).sum(),
    "the tensor under its name": lambda c: torch.sum(input=c, dim=1),
    "dimensions by name": lambda c: (c.transpose(dim0=0, dim1=1).shape, c.permute(dims=(1, 0)).shape),
    "itself, if nothing is converted": lambda c: (
        c.float() is c,
        c.to(c.dtype) is c,
        c.contiguous() is c,
        c.type_as(c) is c,
        c.clone() is c,
    ),
    "a copy, if it lies otherwise": lambda c: c.transpose(0, 1).contiguous() is c,
    "whole numbers that nothing is divided by": lambda c: torch.div(7, c.long().abs() + 1, rounding_mode="floor").sum(),
    "powers that whole numbers have": lambda c: (2 ** c.long().abs()).sum(),
    "positions": lambda c: c[torch.zeros(1, dtype=torch.long)[:, None], torch.arange(c.shape[1])].sum(),
    "layers": lambda c: F.layer_norm(F.relu(F.linear(c.t(), torch.ones(3, 2))), (3,)).sum(),
    "rows of a table": lambda c: F.embedding(c.long().abs() % 3, X.t()).mean((1, 2)),
    "extremes": lambda c: (
        c.amax(1),
        c.amin(),
        c.argmax(1),
        c.argmin(dim=-1, keepdim=True),
        c.mean(1),
        c.mean(0).sum(),
        c.cumsum(1)[:, -1],
    ),
    "one of two, a number": lambda c: torch.where(c > 1, c, -1.5).sum(),
    "parts from both ends": lambda c: (c[:, c.shape[1] - 1], c[:, c.shape[1] - 2 :], c.narrow(1, 0, 2), c.select(1, -1), c[..., -1]),
    "as many numbers": lambda c: (torch.zeros_like(c).sum(), (torch.ones(2, c.shape[1]) * c).sum(), torch.arange(c.shape[1]).sum()),
}
#: These unroll it.
PARTED: dict[str, Callable[[torch.Tensor], Any]] = {
    "how a part lies in memory": lambda c: (c[:, -1:].is_contiguous(), c[:, -1].stride(), c[:, :2].is_contiguous(), c[-1].is_contiguous()),
    "numbers of a part": lambda c: c[:, -2:].view(2, 2),
    "an index beside the positions": lambda c: c[
        torch.zeros(1, dtype=torch.long)[:, None], torch.add(torch.arange(c.shape[1]), 1, alpha=-2)
    ],
    "random numbers": lambda c: (torch.manual_seed(3), torch.rand(2, c.shape[1]).sum(), torch.rand_like(c).sum())[1:],
    "sizes that are lengths": lambda c: (torch.arange(1, c.shape[1]).sum(), torch.ones(c.shape[1], c.shape[1]).tril().sum()),
    "dimensions of one element": lambda c: c[:1].squeeze(),
    "no dimension": lambda c: c.sum(()),
    "all dimensions, which stay": lambda c: c.sum(dim=None, keepdim=True),
}


def growing(asked: Callable[[torch.Tensor], Any], x: torch.Tensor, limit: torch.Tensor, inside: bool) -> Any:
    c, seen = x, None
    while c.shape[1] < 8 and c.sum() < limit:
        c = torch.cat([c, c[:, -1:] + 1], 1)
        if inside:
            seen = _added(seen, asked(c))
    return c, seen if inside else asked(c)


def _added(seen: Any, found: Any) -> Any:
    """Return the sum of what was seen in the trips: numbers and tensors one by one."""
    found = found if isinstance(found, tuple) else (found,)
    return found if seen is None else tuple([a + b for a, b in zip(seen, found)])


@pytest.mark.parametrize("inside", [False, True], ids=["after the loop", "in the loop"])
@pytest.mark.parametrize("asked", [*ASKED, *PARTED])
def test_asked(asked, inside):
    function = {**ASKED, **PARTED}[asked]

    def program(x, limit):
        return growing(function, x, limit, inside)

    graph = check(program, INPUTS, paths=2)
    if asked in ASKED and not inside:
        assert any(b.name.startswith("loop") for b in graph.blocks)


def counted_by_more_than_one(x, limit):
    n, place = 0, 5
    while x.shape[1] < 9 and x.sum() < limit:
        x = torch.cat([x, x[:, -1:] + 1], 1)
        n, place = n + 2, place - 1
    return x, n, place


def expanded_and_changed(x, limit):
    total = torch.zeros(2)
    while x.shape[1] < 8 and x.sum() < limit:
        x = torch.cat([x, x[:, -1:] + 1], 1)
        first = x[:, :1] * 1
        wide = first.expand(2, x.shape[1])
        first.add_(1)
        total = total + wide.sum(1)
    return x, total


def of_another_shape(x, limit):
    failed = 0
    while x.shape[1] < 8 and x.sum() < limit:
        try:
            x = torch.cat([x, torch.ones(1, 1)], 1)
        except RuntimeError:
            failed += 1
        x = torch.cat([x, x[:, -1:] + 1], 1)
    return x, failed


def shorter_than_nothing(x, limit):
    failed = 0
    while x.shape[1] < 8 and x.sum() < limit:
        x = torch.cat([x, x[:, -1:] + 1], 1)
        try:
            failed += torch.ones(2, x.shape[1] - 5).sum()
        except RuntimeError:
            failed -= 1
    return x, failed


def of_no_rows(x, limit):
    failed = 0
    while x.shape[1] < 8 and x.sum() < limit:
        x = torch.cat([x, x[:, -1:] + 1], 1)
        try:
            F.embedding(x.long(), torch.ones(3, 1))
        except IndexError:
            failed += 1
    return x, failed


def no_view(x, limit):
    failed = 0
    while x.shape[1] < 8 and x.sum() < limit:
        x = torch.cat([x, x[:, -1:] + 1], 1)
        try:
            x.transpose(0, 1).view(-1)
        except RuntimeError:
            failed += 1
    return x, failed


def lies_otherwise_at_first(x, limit):
    c, seen = x.t().contiguous().t(), 0
    while c.shape[1] < 8 and c.sum() < limit:
        seen = seen + (c.contiguous() is c) + 1
        c = torch.cat([c, c[:, -1:] + 1], 1)
    return c, seen


def divided_by_the_length(x, limit):
    found = torch.zeros((), dtype=torch.long)
    while x.shape[1] < 8 and x.sum() < limit:
        x = torch.cat([x, x[:, -1:] + 1], 1)
        if x[0, 0] > 5:
            found = found + torch.tensor(12) // (torch.tensor(x.shape[1]) - 6)
    return x, found


@pytest.mark.parametrize(
    "program",
    [
        counted_by_more_than_one,
        expanded_and_changed,
        of_another_shape,
        shorter_than_nothing,
        no_view,
        lies_otherwise_at_first,
        divided_by_the_length,
    ],
    ids=lambda f: f.__name__,
)
def test_right(program):
    check(program, INPUTS, paths=3)


class ABufferThatIsExpandedAndChanged(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.ones(2, 1))

    def forward(self, x, limit):
        total = torch.zeros(2)
        while x.shape[1] < 8 and x.sum() < limit:
            x = torch.cat([x, x[:, -1:] + 1], 1)
            total = total + self.b.expand(2, x.shape[1]).sum(1)
        self.b.add_(1)
        return x, total, self.b


def test_state_that_is_expanded_and_changed():
    check(ABufferThatIsExpandedAndChanged(), INPUTS, paths=3)


def test_an_error_of_the_elements_that_the_program_catches_is_refused():
    with pytest.raises(UnsupportedError, match="IndexError for some elements"):
        stage(of_no_rows, INPUTS[0])


def a_copy_within_a_try(x, limit):
    seen = torch.zeros(2)
    while x.shape[1] < 8 and x.sum() < limit:
        try:
            last = x[:, -1:].clone(memory_format=torch.contiguous_format)
            seen = seen + last.view(-1) + x.clone(memory_format=torch.contiguous_format).view(2, x.shape[1]).sum(1)
        except ValueError:
            seen = seen * 2
        x = torch.cat([x, x[:, -1:] + 1], 1)
    return x, seen


def test_a_copy_within_a_try_is_rolled():
    graph = check(a_copy_within_a_try, INPUTS, paths=3)
    assert any(b.name.startswith("loop") for b in graph.blocks)


def test_draws_of_a_seed_in_a_loop_that_is_unrolled():
    def f(x, limit):
        generator = torch.Generator().manual_seed(3)
        kept = []
        for _ in range(int(limit) % 4):
            kept.append(x + torch.rand(2, 3, generator=generator))
        return kept

    check(f, INPUTS, paths=3)


def test_arguments_of_names_that_are_not_known():
    """What a handler does not take unrolls the loop, where PyTorch says what it thinks of it. One handler of three is asked."""
    by_handler = {h: f for f, h in HANDLERS.items() if not isinstance(f, types.MethodWrapperType)}

    def f(x, limit, func):
        while x.shape[1] < 5 and x.sum() < limit:
            x = torch.cat([x, x[:, -1:] + 1], 1)
            try:
                func(x, no_such_argument=1)
            except TypeError:
                x = x * 1.5
        return x

    for func in list(by_handler.values())[::3]:
        check(functools.partial(f, func=func), INPUTS[1:4])


def test_code_of_a_loop_without_a_cache():
    """Every step computes all of the tokens anew: the loop is rolled all the same."""
    table = torch.randn(11, 4, generator=torch.Generator().manual_seed(0))

    def f(ids, most):
        going = torch.ones(1, dtype=torch.bool)
        while going.any():
            h = F.embedding(ids, table) + (torch.arange(ids.shape[1]) * 0.1)[:, None]
            h = F.layer_norm(h, (4,))
            h = h + torch.softmax(h[:, -1:] @ h.transpose(1, 2) / 2 + 0.5, -1) @ h
            token = F.linear(F.gelu(F.linear(h, table[:4])).mean(1), table).argmax(-1, keepdim=True)
            ids = torch.cat([ids, token], dim=1)
            going = (token[:, 0] != 0) & ~torch.full((1,), ids.shape[1] >= most)
        return ids

    def steps(most: int) -> int:
        graph = stage(f, (torch.tensor([[1, 2, 3]]), most))
        return sum(len(b.steps) for b in graph.blocks if not b.name.startswith("length"))

    assert steps(9) == steps(60)
    check(functools.partial(f, most=9), [(torch.tensor([[a, 2, b]]),) for a in range(6) for b in range(8)])
