# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Lists that the forward makes, and that loops of run-time length make longer: the loops are rolled, and the results are eager's."""

from __future__ import annotations

import functools
import heapq
import operator
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from differential import check, same, stage
from torch import nn

import dycl_tvm
from dycl_tvm.errors import UnsupportedError

INPUTS = [(torch.randn(1, 4, generator=torch.Generator().manual_seed(k)) * (1 + k % 3),) for k in range(24)]


def stacked(x):
    outs = []
    while x.sum() < 6:
        x = x + 1
        outs.append(x)
    return torch.stack(outs) if outs else x.unsqueeze(0)


def by_path(x):
    """Longer in some trips only."""
    outs, n = [], 0
    while x.sum() < 6 and n < 20:
        x = x + 0.4
        if x[0, 0] > 0.5:
            outs.append(x.sin())
        n += 1
    return torch.cat(outs) if outs else None, len(outs)


def numbers(x):
    """A list of numbers as the result, as a transducer's decoder gives it."""
    label = []
    for t in range(int(x.abs().sum())):
        n = 0
        while n < 3:
            k = int((x * (t + n + 1)).sin().argmax())
            if k == 0:
                break
            label.append(k)
            n += 1
    return label


def left_early(x):
    outs = [x]
    for i in range(int(x.abs().sum())):
        outs.append(outs[-1] * 0.5 + i)
        if outs[-1].sum() > 12:
            return torch.cat(outs)
    return sum(outs)


def tuples(x):
    a, b = [], []
    while len(a) < 9 and x.sum() < 20:
        x = x + x.abs().mean() + 0.1
        a.append(x.sum())
        b.append((len(a), x.max().item()))
    return torch.stack(a + [x.sum()]), b


def fill(x, out):
    out.append(x.mean(1))


def by_another_function(x):
    out = []
    while x.sum() < 6:
        x = x + 1
        fill(x, out)
    return torch.cat(out, 0) if len(out) else x[0]


class InOtherContainers(nn.Module):
    def forward(self, x):
        self.history, d = [], {"v": []}
        while x.sum() < 6:
            x = x + 1
            self.history.append(x)
            d["v"].append(x * 2)
        return torch.stack(self.history + [x]), d


def parts(x):
    outs = []
    while x.sum() < 6:
        x = x + 1
        outs.append(x)
    return torch.stack([x] + outs[-2:] + outs), outs[1:], list(outs)


def gone_over(x):
    outs = []
    while x.sum() < 6:
        x = x + 1
        outs.append(x)
    t = torch.zeros(1, 4)
    for o in outs:
        t = t * 0.5 + o
        if t.sum() > 9:
            break
    return t


def within_another(x):
    rows = []
    while x.sum() < 6:
        x = x + 1
        columns, y = [], x
        while y.sum() < 8 and len(columns) < 5:
            y = y + 0.7
            columns.append(y.mean())
        rows.append(torch.stack(columns).sum() if columns else x.mean())
    return torch.stack(rows) if rows else x[0]


def stored(x):
    outs, last = [x], -1
    while x.sum() < 6:
        x = x + 1
        outs.append(x)
        outs[0] = outs[0] * 2
        outs[int(x.argmax()) % 2] = x - 1
        outs[last] = outs[last] + 1
    return torch.stack(outs)


def beside_a_list_of_another_loop(x):
    """Whether something else holds a list is no question to a list of as many items as the run says."""
    out = []
    while x.sum() < 9:
        out.append(x.sum())
        x = x + 1
    state = [x]
    while state[0].sum() < 14:
        state[0] = state[0] + 2
        state = [state[0] + 1]
    return state, torch.stack(out) if out else x


def taken_away(x):
    stack, n = [x], 0
    while stack and n < 12:
        t = stack.pop()
        n += 1
        if t.abs().sum() > 1:
            stack.append(t * 0.4)
            stack.append(t * 0.3)
    return n, len(stack)


def lists_in_lists(x):
    """A list that grew is an item of others."""
    found, by_name = [], {}
    for k in range(3):
        outs, y = [], x * k
        while y.sum() < 6:
            y = y + 1
            outs.append(int(y.argmax()))
        found.append(outs)
        found.insert(0, outs)
        by_name.setdefault(str(k), outs)
        if len(outs) > 2:
            outs.append(k)
    return found, by_name


RIGHT: list[Callable[..., Any]] = [
    *(
        stacked,
        by_path,
        numbers,
        left_early,
        tuples,
        by_another_function,
        parts,
        lists_in_lists,
        gone_over,
        within_another,
        stored,
        beside_a_list_of_another_loop,
        taken_away,
    ),
    InOtherContainers().eval(),
]


@pytest.mark.parametrize("model", RIGHT, ids=lambda m: getattr(m, "__name__", type(m).__name__))
def test_right(model: Callable[..., Any]) -> None:
    check(model, INPUTS, max_length=64)


@pytest.mark.parametrize("model", [stacked, by_path, numbers, tuples, gone_over], ids=lambda m: m.__name__)
def test_code_does_not_grow_with_the_bound(model: Callable[..., Any]) -> None:
    small, large = (len(stage(model, INPUTS[0], max_length=n).blocks) for n in (30, 300))
    assert small == large


def test_the_bound_on_trips_bounds_the_list() -> None:
    """The users's bound on trips is one on what grows in them."""
    check(by_path, INPUTS, max_loop_trips=30)
    small, large = (len(stage(by_path, INPUTS[0], max_loop_trips=n).blocks) for n in (30, 300))
    assert small == large


def renamed(x):
    """The item is changed in place after it was appended."""
    outs, buffer = [], torch.zeros(1, 4)
    while x.sum() < 6:
        x = x + 1
        buffer += x
        outs.append(buffer)
    return torch.stack(outs + [x])


def changed_while_gone_over(x):
    outs = [x]
    while x.sum() < 6:
        x = x + 1
        outs.append(x)
    for o in outs:
        if o.sum() > 5 and len(outs) < 30:
            outs.append(o * 0.5)
    return len(outs)


def of_two_kinds(x):
    outs = []
    while x.sum() < 6:
        x = x + 1
        outs.append(x if x.sum() > 3 else x.mean())
    return outs[-1]


@pytest.mark.parametrize("model", [renamed, changed_while_gone_over, of_two_kinds], ids=lambda m: m.__name__)
def test_what_rows_cannot_stand_for_is_refused(model: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedError):
        stage(model, INPUTS[0], max_length=64)


def test_built_and_loaded(tmp_path: Path) -> None:
    """A list of numbers, and one of tuples of tensors and numbers, as results of a library; one that gets too long is an error there."""

    def model(x):
        label, pairs = [], []
        while x.sum() < 6:
            x = x + 0.5
            if x[0, 0] > 0:
                label.append(int(x.argmax()))
            pairs.append((x, x.sum().item()))
        return {"label": label, "pairs": pairs}

    art = dycl_tvm.build(model, INPUTS[0], max_length=20)
    art.export_library(tmp_path / "m.so")
    art.save_params(tmp_path / "m.params")
    module = dycl_tvm.load(tmp_path / "m.so", tmp_path / "m.params")
    lengths = set()
    for (x,) in INPUTS:
        expected = model(x)
        assert same(expected, module(x))
        lengths.add((len(expected["label"]), len(expected["pairs"])))
    assert len(lengths) > 4 and 0 in [n for n, _ in lengths]
    with pytest.raises(dycl_tvm.RunError, match="longer than 20"):
        module(torch.full((1, 4), -12.0))
    assert same(model(INPUTS[0][0]), module(INPUTS[0][0]))


def grown(x):
    outs = []
    while x.sum() < 6:
        x = x + 1
        outs.append(x)
    return outs


def indexed_by_other_numbers(x):
    """Python makes numbers of truths and of tensors with one element."""
    outs = grown(x)
    if len(outs) < 4:
        return outs
    outs[bool(x[0, 0] > 0)] = x
    outs[True] = outs[True] * 2
    return outs[x[0, 1] > 0], outs[x.argmax()], outs


def errors_as_in_eager(x):
    """The program looks at what kind of error it is, and at the text."""
    outs = grown(x)
    try:
        return torch.cat(outs), outs[2]
    except ValueError:
        first = "nothing"
    except IndexError as error:
        first = str(error)
    try:
        outs.pop(), outs.pop(), outs.pop()
    except IndexError as error:
        return first, str(error)
    return first


def large_ints(x):
    """No row of int64 holds such a number, which none of the items can be equal to."""
    label = []
    while x.sum() < 6:
        x = x + 1
        label.append(int(x.argmax()) + 2**53)
    return label, 2**53 + 1 in label


@pytest.mark.parametrize("model", [indexed_by_other_numbers, errors_as_in_eager, large_ints], ids=lambda m: m.__name__)
def test_what_python_makes_of_it(model: Callable[..., Any]) -> None:
    check(model, INPUTS, max_length=16)


def numbers_of(x, make):
    made = []
    while x.sum() < 6:
        x = x + 1
        made.append(make((x * 7).sin()))
    return made


def in_other_orders(x):
    """The loops over the list are rolled."""
    outs, t = grown(x), x * 0
    for i, o in enumerate(outs, 2):
        for before in reversed(outs[:3]):
            t = t * 0.5 + before * i
        if t.sum() > 40:
            break
    for i, (o, after) in enumerate(zip(outs, outs[1:])):
        t = t * 0.5 + o * after + i
    return t, outs[::-1]


def extremes_of_numbers(x):
    ints, floats, truths = [], [], []
    while x.sum() < 6:
        x = x + 1
        y = (x * 7).sin()
        ints.append(int(y.argmax()))
        floats.append(y.sum().item())
        truths.append(bool(y.sum() > 0))
    if not ints:
        return any(ints), all(truths)
    return max(ints), min(ints), max(floats), min(floats), max(truths), min(truths), any(ints), all(truths), any(floats)


def with_nans(x):
    """Python compares them one after the other: a NaN that comes first stays, another is passed over."""
    roots = numbers_of(x, lambda y: y.sum().sqrt().item())
    return (max(roots), min(roots)) if len(roots) > 1 else len(roots)


def in_order(x):
    ints = numbers_of(x, lambda y: int(y.argmax()))
    return sorted(ints), sorted(ints, reverse=True), ints


def none_is_the_largest(x):
    try:
        return max(numbers_of(x, lambda y: int(y.argmax())))
    except ValueError as error:
        return str(error)


def read_by_native_code(x):
    ints = [3, 1]
    found = operator.itemgetter(0)(ints), operator.is_(ints, ints)
    while x.sum() < 6:
        x = x + 1
        ints.append(int(x.argmax()))
    return found, ints


USES = [in_other_orders, extremes_of_numbers, with_nans, in_order, none_is_the_largest, read_by_native_code]


@pytest.mark.parametrize("model", USES, ids=lambda m: m.__name__)
def test_other_orders_and_extremes(model: Callable[..., Any]) -> None:
    check(model, INPUTS, max_length=16)


def pairs_of_one_iterator(x):
    """Each pair takes two items."""
    ints, t = numbers_of(x, lambda y: int(y.argmax())), 0
    two, numbered, left = iter(ints), enumerate(ints), iter(ints)
    for a, b in zip(two, two):
        t = t * 2 + a - b
    for (i, a), (_, b) in zip(numbered, numbered):
        t = t * 2 + a - b + i
    for a, (i, b) in zip(left, enumerate(left)):
        t = t * 2 + a - b + i
    return t


def kept_by_native_code(x):
    """The list itself is in each of the containers, also if it was put there before it grew."""
    ints = []
    found = functools.partial(len, ints), types.SimpleNamespace(ints=ints), dict.fromkeys("ab", ints), dict(ints=ints)
    heapq.heappush(ints, 7)
    while x.sum() < 6:
        x = x + 1
        ints.append(int(x.argmax()))
    return found[0](), found[1].ints, found[2], found[3], found[2]["a"] is ints


def written_while_it_is_gone_over(x):
    """Python's iterators see what is written; the list has grown by no loop yet."""
    ints, pairs, last = [1, 2], [3, 4], [5, 6]
    for k in ints:
        if len(ints) < 6:
            ints.append(k + 1)
    two = iter(pairs), reversed(last)
    pairs.append(5)
    last[0] = 9
    pairs.extend(k for k in pairs if len(pairs) < 8)
    seen = list(two[0]), list(two[1]), [pairs.pop() for _ in pairs], max(ints, key=lambda k: len(ints) < 9 and ints.append(k) or k)
    while x.sum() < 6:
        x = x + 1
        for found in (ints, pairs, last):
            found.append(int(x.argmax()))
    return ints, pairs, last, seen


@pytest.mark.parametrize("model", [pairs_of_one_iterator, kept_by_native_code, written_while_it_is_gone_over], ids=lambda m: m.__name__)
def test_the_list_itself(model: Callable[..., Any]) -> None:
    check(model, INPUTS, max_length=16, max_loop_trips=6)


def test_where_an_iterator_was_left_is_not_known() -> None:
    def model(x):
        items, t = enumerate(grown(x)), x
        for _, o in items:
            if o.sum() > 3:
                break
            t = t + o
        return t, next(items, None)

    with pytest.raises(UnsupportedError):
        stage(model, INPUTS[0], max_length=16)


def caught(x, use):
    try:
        return use(grown(x))
    except TypeError:
        return x


NO_ROWS = {
    "an index that is none of a list, but one of a tensor": lambda x: caught(x, lambda outs: outs[0, 0]),
    "so is None": lambda x: caught(x, lambda outs: outs[None]),
    "a method that such a list does not have": lambda x: hasattr(grown(x), "remove"),
    "the same by name": lambda x: getattr(grown(x), "remove", None) is None,
    "an argument that rows do not know": lambda x: torch.stack(grown(x), out=torch.zeros(2, 1, 4)),
    "an int beyond 64 bits": lambda x: [outs for outs in [numbers_of(x, lambda y: int(y.sum()))] if outs.append(2**63) is None],
    "an attribute of an item": lambda x: hasattr(grown(x)[0], "tag"),
}


@pytest.mark.parametrize("model", NO_ROWS.values(), ids=NO_ROWS)
def test_the_rows_are_not_taken_for_the_list(model: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedError):
        stage(model, INPUTS[0], max_length=16)


def test_a_refusal_says_what_rows_cannot_do_and_no_option_that_was_given() -> None:
    def model(x):
        outs = grown(x)
        outs.remove(x)
        return torch.stack(outs)

    with pytest.raises(UnsupportedError, match=r"(?s)as its rows, because of.*outs\.remove\(x\)") as refused:
        stage(model, INPUTS[0], max_length=16)
    assert "max_length" not in str(refused.value)


def _by_lists(x):
    """Positions and masks as lists: those of a tensor, and those that a loop finds."""
    table, rows, found, n = torch.arange(24.0).view(4, 6), (x[0] > 0.5).nonzero().flatten().tolist(), [], 0
    while n < 4:
        if x[0, n] > 0:
            found.append(n)
        n += 1
    y = x.clone()
    y[0, rows] += 2.0
    back = table[[-1 - i for i in found]].sum(0)
    kept = x[0][x[0] > -1]
    return table[rows], table[None, rows], table[rows, 0], back, table[found, [i % 2 for i in found]], kept[(kept > 0.2).tolist()], y


def test_lists_that_are_indices():
    check(_by_lists, [*INPUTS[:10], (torch.full((1, 4), -2.0),)])


def test_a_list_of_floats_is_no_index():
    with pytest.raises(UnsupportedError):
        stage(lambda x: torch.arange(4)[x[x > 0].tolist()], INPUTS[0])
