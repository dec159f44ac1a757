# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Comprehensions, generator expressions and functions of Python's over lists that loops of run-time length made: rolled loops too."""

from __future__ import annotations

import contextlib
import copy
import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from differential import check, same, stage
from torch import nn

from dycl_tvm import Dim
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.persistent_state import ModelState
from dycl_tvm.hcfg.interpreter import LimitError

INPUTS = [(torch.randn(1, 4, generator=torch.Generator().manual_seed(k)) * (1 + k % 3),) for k in range(10)]


def tensors(x):
    made = []
    while x.sum() < 6:
        x = x + 1
        made.append(x)
    return made


def ints(x):
    made = []
    while x.sum() < 6:
        x = x + 1
        made.append(int((x * 7).sin().argmax()))
    return made


def scored(x):
    made = []
    while x.sum() < 6:
        x = x + 1
        y = (x * 7).sin()
        made.append((int(y.argmax()), y.sum().item(), y))
    return made


def comprehensions(x):
    i, found = 7, tensors(x)
    doubled, kept = [o * 2 for o in found], [o for o in found if o.mean() > 0.5 if o.sum() < 4]
    return doubled, kept, [(i, o.sum()) for i, o in enumerate(found)], [a + b for a, b in zip(found, ints(x))], i


def nested(x):
    found = ints(x)
    sums = [sum([a * b for b in found]) for a in found]
    return [a * b for a in found if a for b in (1, 2)], [a + b for a in found for b in ints(x * 0.5)], sums


def of_ranges_and_fields(x):
    n = int(x.abs().sum())
    return [x * k for k in range(n)], [s for _, s, _ in scored(x)], len([k for k in range(n) if k % 2])


def generators(x):
    found = ints(x)
    total, many = sum(i for i in found if i > 0), len(tuple(o.mean() for o in tensors(x)))
    return total, many, max((i - 1 for i in found), default=0), list(map(lambda i: i + 1, found)), list(filter(lambda i: i > 1, found))


def quantifiers(x):
    """What is behind the first item that decides is not made."""
    seen = []

    def asked(i):
        seen.append(i)
        return i > 1

    found = ints(x)
    return any(asked(i) for i in found), all(asked(i) for i in found if i != 3), seen


def read_late(x):
    """A generator reads variables, and the list, when its items are asked for."""
    factor, found = 2, ints(x)
    made = (i * factor for i in found)
    factor = 3
    found.append(1)
    total = 0
    for v in (i * 2 for i in found):
        total = total + v
        if total > 6:
            break
    return sum(made), total, list(made), any(made)


class Counting(nn.Module):
    """The state changes with each item."""

    def __init__(self) -> None:
        super().__init__()
        self.n, self.layers = 0, nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])

    def bump(self, o):
        self.n = self.n + 1
        return o * self.n

    def forward(self, x):
        return [self.bump(o) for o in tensors(x)], self.n, [layer(x) for layer in self.layers]


def extremes_by_key(x):
    best = max(scored(x), key=lambda p: p[1]) if x.sum() < 6 else None
    return best, min(ints(x), key=lambda i: -i, default=-1), max(tensors(x), key=lambda o: o[0, 0], default=x)


def by_keys_of_the_run(x):
    """Numbers of items, in the order of these, and items that are made as their keys are asked for."""
    s, calls = [s for _, s, _ in scored(x)], [0]

    def counted(i):
        calls[0] += 1
        return i * calls[0] % 7

    order = sorted(range(len(s)), key=s.__getitem__, reverse=True)
    best, made = min(enumerate(s), key=lambda p: p[1], default=None), max((counted(i) for i in ints(x)), key=counted, default=9)
    last = max(range(len(s), 0, -1), key=lambda i: i % 3, default=-1)
    return order, best, made, calls[0], last, sorted((o * 2 for o in tensors(x)), key=lambda o: (o * 7).sin().sum())


def unlike_sources(x):
    """What is behind the end of the first that ends is not made."""
    calls, found = [0], ints(x)

    def counted(i):
        calls[0] += 1
        return i * calls[0]

    together = [a + b for a, b in zip((counted(i) for i in found), found)]
    return together, list(zip(found[1:], map(counted, found))), list(map(lambda a, b: counted(a) - b, found, found[2:])), calls[0]


def of_tensors(x):
    """Tensors of one element are in the order of their numbers."""
    found = [(o * 7).sin().sum() for o in tensors(x)]
    quantified = any([o > 2 for o in found]), all([o > -2 for o in found]), any(found)
    return (
        max(found, default=None),
        min((-o for o in found), default=x),
        sorted(found),
        sorted([o[None] for o in found], reverse=True),
        quantified,
    )


def trips_of_their_own(x):
    """What gives the items has loops, branches and exceptions."""

    def counted(i):
        state, n = "first", 0
        while state != "end":
            n += 1
            state = "end" if n > i else "next"
        return n

    def checked(i):
        if i > 2:
            raise ValueError("more than 2")
        return i + 1

    total = 0
    for n in map(counted, ints(x)):
        total = total * 2 + n
        if total > 20:
            break
    for n in (checked(i) for i in ints(x)):
        total = total + n
    return total, list(map(counted, ints(x)))


def in_order(x):
    found, pairs = ints(x), scored(x)
    found.sort(reverse=True)
    pairs.sort(key=lambda p: p[1])
    pairs.reverse()
    return found, pairs, sorted(scored(x), key=lambda p: -p[1])[:2], sorted([s for _, s, _ in pairs])


def places(x):
    found, floats = ints(x), [s for _, s, _ in scored(x)]
    try:
        first = found.index(2)
    except ValueError as error:
        first = str(error)
    return first, found.index(max(found)) if found else -1, floats.index(max(floats)) if floats else -1, found[::2], found[1::3]


def joined(x):
    found, start = ints(x), torch.zeros(1, 4)
    found.extend(ints(x * 0.5))
    found += [3]
    more = [9]
    more.extend(i * 2 for i in found)
    return found, more, sum(tensors(x), start), sum(found, 10), sum(found)


RIGHT: list[Callable[..., Any]] = [
    *(comprehensions, nested, of_ranges_and_fields, generators, quantifiers, read_late, extremes_by_key, in_order),
    *(by_keys_of_the_run, unlike_sources, of_tensors, trips_of_their_own, places, joined),
    Counting().eval(),
]


@pytest.mark.parametrize("model", RIGHT, ids=lambda m: getattr(m, "__name__", type(m).__name__))
def test_right(model: Callable[..., Any]) -> None:
    check(model, INPUTS, max_length=20)


@pytest.mark.parametrize("model", [comprehensions, quantifiers, in_order], ids=lambda m: m.__name__)
def test_code_does_not_grow_with_the_bound(model: Callable[..., Any]) -> None:
    small, large = (len(stage(model, INPUTS[0], max_length=n).blocks) for n in (20, 200))
    assert small == large


def test_a_nan_ends_the_call() -> None:
    """Python's order of NaNs is that of its comparisons, one by one, and a list may hold a NaN that is looked for."""

    def model(x):
        roots = [(o.sum() - 3).sqrt().item() for o in tensors(x)]
        return sorted(roots), roots.index(roots[0]) if roots else -1

    call, ended = stage(model, INPUTS[0], max_length=20).interpret(), 0
    for (x,) in INPUTS:
        expected = model(x)
        if any(r != r for r in expected[0]):
            with pytest.raises(LimitError, match="NaN"):
                call(x)
            ended += 1
        else:
            assert same(expected, call(x))
    assert 0 < ended < len(INPUTS)


def one_by_one(x):
    return next(o * 2 for o in tensors(x) if o.sum() > 1)


def what_a_search_left(x):
    made = (i > 1 for i in ints(x))
    return any(made), list(made)


def one_more_than_another(x):
    """Python asks the first for an item more before it sees that the second is at its end."""
    calls = [0]

    def counted(i):
        calls[0] += 1
        return i

    found = ints(x)
    return list(zip(map(counted, found), found[1:])), calls[0]


@pytest.mark.parametrize("model", [one_by_one, what_a_search_left, one_more_than_another], ids=lambda m: m.__name__)
def test_where_a_generator_stands_is_not_known(model: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedError):
        stage(model, INPUTS[0], max_length=20)


def names_of_states(x):
    """The condition is known for each of the texts."""
    state, n = "start", 0
    while state != "end":
        n += 1
        if state == "start":
            x = x + 1
            state = "grow" if x.sum() > 0 else "start"
        elif state == "grow":
            x = x * 1.3
            if x.sum() > 20:
                state = "end"
    return x, n


def ends_by_name(x):
    state, made = "go", []
    while state == "go":
        x = x * 1.1 + 0.1
        made.append(x)
        if x.sum() > 5:
            state = "high"
        elif len(made) > 6:
            state = "late"
    return torch.stack(made), state


def one_machine_in_another(x):
    mode, trips = "a", 0
    while mode != "done":
        while mode == "a":
            x = x + 0.4
            if x.sum() > 2:
                mode = "b"
        if mode == "b":
            x = x * 1.5
            mode = "done" if x.sum() > 9 else "a"
        trips += 1
    return x, trips, mode


def flag(x):
    done, n = False, 0
    while not done:
        x = x * 0.9 + 0.1
        n += 1
        done = x.sum().item() > 0.3 or n > 50
    return x, n


def patience(x):
    bad, best, step = 0, 1e9, 0
    while bad < 3:
        x = x * 0.8 + 0.05
        loss = (x - 0.3).pow(2).sum().item()
        if loss < best - 1e-4:
            best, bad = loss, 0
        else:
            bad += 1
        step += 1
    return x, step, best


@pytest.mark.parametrize("model", [names_of_states, ends_by_name, one_machine_in_another, flag, patience], ids=lambda m: m.__name__)
def test_a_condition_that_python_knows_at_first_is_a_loop(model: Callable[..., Any]) -> None:
    assert len(check(model, INPUTS, max_length=60).blocks) < 25


def one_of_another(x):
    found = tensors(x)
    twice = [v * 2 for v in found]
    large = [v + 1 for v in twice if v.sum() > 9]
    at = [i for i, v in enumerate(large) if v.max() > 3]
    return len(twice), len(large), at, sorted(v.sum().item() for v in large), sum(at)


def in_the_loop_itself(x):
    total, marks = 0, []
    while x.sum() < 9:
        marks.append(x.sum().item())
        large = [m for m in marks if m > 2]
        at = [i + 1 for i in range(len(large) - 1) if large[i] > 3]
        total, x = total + len(at) + (at[-1] if at else 0), x + 1
    return total, marks


def of_other_lengths(x):
    parts = []
    while x.sum() < 9:
        parts.append(x[0, x[0] > 1])
        x = x + 1
    rest = [v[1:] for v in parts if len(v) > 1]
    sums = [v.sum() for v in rest]
    return torch.cat(rest) if rest else x, torch.stack(sums) if sums else x


def what_items_change(x):
    found, seen, start = tensors(x), {"n": 0}, iter([2.0, 3.0])

    def counted(v):
        seen["n"] += 1
        return v.sum() * seen["n"]

    factor = next(start)
    made = [counted(v) * factor for v in found]
    return made, seen["n"], [counted(v) for v in made], seen, next(start)


@pytest.mark.parametrize("model", [one_of_another, in_the_loop_itself, of_other_lengths, what_items_change], ids=lambda m: m.__name__)
def test_what_is_found_of_a_comprehension_is_found_in_place(model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Staging begins anew once, for the list that a loop makes longer, and not for each list that is made of it."""
    begun: list[ModelState] = []
    begin = ModelState.begin_round
    monkeypatch.setattr(ModelState, "begin_round", lambda state: (begun.append(state), begin(state))[1])
    check(model, INPUTS, max_length=60)
    assert len(begun) == 2


def some_of(ids):
    """As many trips as the input has elements bound how long the list gets."""
    found = [t for t in ids.tolist() if t > 3]
    return found, torch.tensor(found)


def more_in_later_trips(ids):
    """Each trip adds more than the one before: the list gets longer than the first trips tell."""
    found = [0]
    for t in ids.tolist():
        found += found if len(found) < 3 else [t, t, t]
    return torch.tensor(found)


@pytest.mark.parametrize("model", [some_of, more_in_later_trips], ids=lambda m: m.__name__)
def test_lists_that_the_trips_bound(model: Callable[..., Any]) -> None:
    inputs = [(torch.arange(n) * 5 % 7,) for n in (6, 1, 2, 3, 40)]
    assert len(check(model, inputs, dynamic_shapes=({0: Dim("n", min=1, max=40)},)).blocks) < 100


WEIGHTS = torch.randn(12, 12, generator=torch.Generator().manual_seed(0)) * 3


def stamps(ids):
    """What transformers' Whisper does with the tokens of each row, whose number grows from trip to trip."""
    while True:
        scores = WEIGHTS[ids[:, -1]].clone()
        lasts = []
        for k, row in enumerate(ids.tolist()):
            is_stamp = row[-1] >= 8
            if is_stamp and (len(row) < 2 or row[-2] >= 8):
                scores[k, 8:] = -10.0
            found = [t for t in row if t >= 8]
            lasts.append(found[-1] + 1 if found else 8)
        places = torch.arange(12)
        scores.masked_fill_((places >= 8) & (places < torch.tensor(lasts)[:, None]), -10.0)
        ids = torch.cat([ids, scores.argmax(-1)[:, None]], 1)
        if ids[0, -1].item() == 2 or ids.shape[1] >= 20:
            return ids


@pytest.mark.parametrize("rows", [1, 2])
def test_rows_of_a_growing_tensor_as_lists(rows: int) -> None:
    assert len(check(stamps, [(torch.arange(k, k + rows)[:, None],) for k in range(10)]).blocks) < 80


class Items(list[Any]):
    pass


def any_of_a_subclass(x):
    items = Items([1.0, 2.0, 3.0])
    while x.sum() < 6:
        x = x + (1 if any(i > 2 for i in items) else 2)
    return x


def a_match(x):
    while x.sum() < 6:
        version = re.match(r"(\d+)\.(\d+)", "2.13")
        x = x + int(version.group(1))
    return x


def copies_of_containers(x):
    given = {"a": 1.0, "b": 2.0}
    while x.sum() < 6:
        options = copy.copy(given)
        if x[0, 0] > 0:
            options.pop("a")
        x = x + sum(options.values())
    return x


@functools.lru_cache
def is_long(name: str, *, than: int = 2) -> bool:
    return len(name) > than


@functools.lru_cache
def without_zeros(release: tuple[int, ...]) -> int:
    length = len(release)
    while length and release[length - 1] == 0:
        length -= 1
    return length


def a_cached_loop(x):
    while x.sum() < 6:
        x = x + without_zeros((2, 13, 0))
    return x


def cached_calls(x):
    while x.sum() < 6:
        x = x + 1 + is_long("torch", than=3)
        if x[0, 0] > 1:
            x = x + is_long("numpy")
    return x, is_long("torch", than=3)


def with_a_stack(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        found = numbers_in(x)
    while x.sum() < 9:
        x = x + len([i for i in found if i > 0]) + 1
    return x


def numbers_in(x):
    found = []
    while x.sum() < 6:
        x = x + 1
        found.append(int(x.argmax()))
    return found


WHAT_TRIPS_MAKE = [any_of_a_subclass, a_match, copies_of_containers, cached_calls, a_cached_loop, with_a_stack]


@pytest.mark.parametrize("model", WHAT_TRIPS_MAKE, ids=lambda m: m.__name__)
def test_what_a_trip_makes_does_not_unroll_it(model: Callable[..., Any]) -> None:
    assert len(check(model, INPUTS, max_length=60).blocks) < 30


class Limits:
    most = 3


@functools.lru_cache
def room(name: str) -> int:
    return Limits.most - len(name)


def kept_though_it_would_be_another(x):
    before, Limits.most = Limits.most, 5
    first = room("a")
    Limits.most = 7
    second = room("a")
    Limits.most = before
    return x * first * second


def test_a_cached_result_that_would_be_another_now_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"room\(\) keeps its results in a cache"):
        stage(kept_though_it_would_be_another, INPUTS[0])
