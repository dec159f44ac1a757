# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A join, a loop or a call that cannot make one value of several names all of them, and where the paths part."""

from __future__ import annotations

import inspect
import sys
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import nn

from dycl_tvm.errors import PathExplosionError, UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.frontend.python.flow import parted_trips

X = torch.ones(2, 3)
Pair = namedtuple("Pair", "first second")


@pytest.fixture(autouse=True)
def _no_paths_part_in_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said where too many paths part in the trips of a loop: with a bound of none, of the first that does."""
    monkeypatch.setattr(parted_trips, "MOST_PATHS", 0)


def message(model: Any, **options: Any) -> str:
    with pytest.raises(UnsupportedError) as caught:
        stage(model, (X,), **options)
    return str(caught.value)


def place(function: Any, text: str) -> str:
    """Return how a message names the line of a function with a text in it: that of the decision, with its column in the file."""
    lines, first = inspect.getsourcelines(function)
    row = next(i for i, line in enumerate(lines) if text in line)
    known = text.removeprefix("if ") if sys.version_info >= (3, 11) else lines[row].strip()  # Python 3.10 knows the line only
    start = lines[row].index(known)
    return f'  File "{__file__}", line {first + row}, column {start + 1} in {function.__name__}: {lines[row].strip()}'


def listed(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.startswith(("    `", "    [", "    and "))]


def two_sides(x):
    y, k, many, table, pair = None, 1, [x], {"a": x}, Pair(x, x)
    while x.sum() < 10:
        if x.sum() > 0:
            y, k, many, table, pair = x * 2, 2.5, [x, x], {"b": x}, Pair(x, 1)
            fresh = x
        else:
            y, k, table, pair = None, 3, {"b": x}, Pair(x, 2.0)
        x = x + 1 if y is None else x + y
    return x, k, many, table, pair, fresh


def test_an_if_names_all_its_mismatches() -> None:
    text = message(two_sides)
    assert "(`y` is a tensor [2, 3] of float32 if the test holds and None if not)" in text
    assert place(two_sides, "if x.sum() > 0") in text
    assert listed(text) == [
        "`y`: a tensor [2, 3] of float32 if the test holds and None if not",
        "`k`: a number (float) if the test holds and a number (int) if not",
        "`many`: a list of 2 items if the test holds and a list of 1 item if not",
        "`pair.second`: a number (int) if the test holds and a number (float) if not",
        "`fresh`: a tensor [2, 3] of float32 if the test holds and not set if not",
    ]


def containers_of_two_sides(x):
    rows, table, config = [x], {}, {"mode": None, "size": 1}
    while x.sum() < 10:
        if x.sum() > 2:
            rows.append(x)
            table["k"] = x
            config["mode"] = "fast"
        else:
            config["mode"] = "slow"
        x = x + 1
    return x


def test_containers_changed_on_one_side_are_named() -> None:
    text = message(containers_of_two_sides)
    assert "(`rows` holds 2 items if the test holds and 1 item if not)" in text
    assert place(containers_of_two_sides, "if x.sum() > 2") in text
    assert listed(text) == [
        "`rows`: 2 items if the test holds and 1 item if not",
        "`table`: the key 'k' if the test holds and no keys if not",
        "`config['mode']`: 'fast' if the test holds and 'slow' if not",
    ]


def leaves_early(z):
    if z.sum() > 3:
        return [z, 1, "a"]
    if z.max() > 1:
        return [None, 2.0, "a"]
    return [z[0], 3, "a"]


def calls_what_leaves_early(x):
    while x.sum() < 10:
        first, number, mode = leaves_early(x)
        x = x + first
    return x


def test_early_returns_name_all_their_mismatches_and_all_their_decisions() -> None:
    text = message(calls_what_leaves_early)
    assert place(leaves_early, "if z.sum() > 3") in text
    assert place(leaves_early, "if z.max() > 1") in text
    assert listed(text) == [
        "[0] of the value returned: a tensor [2, 3] of float32 or None or a tensor [3] of float32",
        "[1] of the value returned: a number (int) or a number (float)",
    ]


def while_changes(x):
    h, n, state = x, 0, {"s": None}
    while x.sum() < 10:
        h = h[:1] if h.shape[0] > 1 else torch.cat([h, h])
        n = 0.5 if n == 0 else 1
        state = {"s": "a" if state["s"] is None else None}
        x = x + h.sum() + n
    return x


def test_a_while_names_all_its_mismatches() -> None:
    text = message(while_changes)
    assert "`h` is a tensor [1, 3] of float32 before the loop's body and a tensor [2, 3] of float32 after it; the loop's trip" in text
    assert place(while_changes, "while x.sum()") in text
    assert listed(text) == [
        "`h`: a tensor [1, 3] of float32 before the loop's body and a tensor [2, 3] of float32 after it",
        "`n`: a number (float) before the loop's body and a number (int) after it",
        "`state['s']`: 'a' before the loop's body and None after it",
    ]


def for_changes(x):
    h, n, kept = x, 0, 1
    for _ in range(int(x.sum())):
        h = h[:1] if h.shape[0] > 1 else torch.cat([h, h])
        n = 0.5 if n == 0 else 1
        kept = kept + 1
        x = x + h.sum() + n
    return x, kept


def test_a_for_names_all_its_mismatches() -> None:
    text = message(for_changes)
    assert place(for_changes, "for _ in range") in text
    assert [line.split(":")[0] for line in listed(text)] == ["`h`", "`n`"]


class Grows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Any] = []

    def forward(self, x):
        rows, seen = self.rows, {}
        while x.sum() < 10:
            rows.append(x)
            seen[len(seen)] = x
            x = x + 1
        return x


def test_a_loop_names_all_containers_that_grow() -> None:
    text = message(Grows())
    assert "`rows` holds 0 items before the loop's body and 1 item after it, and the loop's trip count" in text
    assert listed(text) == [
        "`rows`: 0 items before the loop's body and 1 item after it",
        "`seen`: no keys before the loop's body and the key 0 after it",
    ]


class Made:
    """What no call can keep: it holds a function."""

    def __init__(self) -> None:
        self.f = lambda: 0


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h, self.count, self.last, self.kept, self.table = None, 1, torch.zeros(2), torch.zeros(2, 3), {"a": None}

    def forward(self, x):
        if self.h is not None:
            x = x + len(self.h)
        self.h = [Made()]
        self.count = self.count + 0.5
        self.last, self.kept = x[0], x
        self.table["a"] = x if x.sum() > 0 else 1
        return x


def test_state_between_calls_names_all_its_mismatches() -> None:
    text = message(Remembers())
    assert "`h` is None before the first call and a list of 1 item after it: what one call leaves" in text
    assert listed(text) == [
        "`h`: None before the first call and a list of 1 item after it",
        "`count`: a number (int) before the first call and a number (float) after it",
        "`last`: a tensor [2] of float32 before the first call and a tensor [3] of float32 after it",
        "`table['a']`: None before the first call and a tensor [2, 3] of float32 or a number (int) after it",
    ]


class Collects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Any] = []
        self.table: dict[str, Any] = {"a": 1}

    def forward(self, x):
        self.rows.append(Made())
        self.table["k"] = Made()
        return x if len(self.rows) else -x


def test_all_containers_that_grow_from_call_to_call_are_named() -> None:
    text = message(Collects())
    assert listed(text) == [
        "`rows`: 0 items before the first call and 1 item after it",
        "`table`: the key 'a' before the first call and the keys 'a', 'k' after it",
    ]


def forks_for_ever(x):
    for i in range(12):
        if x.sum() > i:
            y, z = None, 1
        else:
            y, z = x, 1.0
        x = x + 1 if y is None else x + y * z
    return x


def test_too_many_paths_name_what_parts_them() -> None:
    with pytest.raises(PathExplosionError) as caught:
        stage(forks_for_ever, (X,), max_paths=50)
    text = str(caught.value)
    assert place(forks_for_ever, "if x.sum() > i") in text
    assert listed(text) == [
        "`y`: None if the test holds and a tensor [2, 3] of float32 if not",
        "`z`: a number (int) if the test holds and a number (float) if not",
    ]


def very_many(x):
    a = b = c = d = e = f = g = h = i = j = k = m = None
    while x.sum() < 10:
        if x.sum() > 0:
            a = b = c = d = e = f = g = h = i = j = k = m = x
        else:
            a = b = c = d = e = f = g = h = i = j = k = m = 1
        x = x + a
    return x, b, c, d, e, f, g, h, i, j, k, m


def test_a_long_list_is_counted() -> None:
    lines = listed(message(very_many))
    assert len(lines) == 10
    assert lines[-1] == "and 3 more"


class Key:
    """What it shows of itself is the user's code, which a message must not run."""

    shown = 0

    def __repr__(self) -> str:
        Key.shown += 1
        return "key"


KEYS = [Key(), Key()]


def unusual_keys(x):
    table = {}
    while x.sum() < 10:
        if x.sum() > 0:
            table = {KEYS[0]: x}
        else:
            table = {KEYS[1]: None}
        x = x + len(table)
    return x


def test_a_message_runs_no_code_of_the_users() -> None:
    assert "`table`: a dict with the key a Key" in message(unusual_keys)
    assert Key.shown == 0


def used_by_none_of_the_paths(x):
    while x.sum() < 10:
        if x.sum() > 0:
            y, n = x, 1
        else:
            y, n = None, 2.0
        del y, n
        x = x + 1
    return x


def test_what_is_not_used_is_no_error() -> None:
    graph = stage(used_by_none_of_the_paths, (X,))
    assert torch.equal(graph.interpret()(X), used_by_none_of_the_paths(X))


def test_a_choice_of_several_objects_has_no_values_to_show():
    def spelled(x):
        codes = []
        for digit in x.argmax(1).tolist():
            for letter in ["one", "three", "seven"][digit]:
                codes.append(ord(letter))
        return torch.tensor(codes)

    with pytest.raises(PathExplosionError, match="chosen by an index") as refused:
        stage(spelled, (torch.eye(3),), max_paths=2)
    assert "None" not in str(refused.value)
