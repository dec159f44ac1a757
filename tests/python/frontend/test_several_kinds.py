# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Variables of loops that are of one of several kinds, of which the run tells which: None or a state, texts that name the mode at hand."""

from __future__ import annotations

import enum

import pytest
import torch
from differential import check, same
from kinds_programs import Programs
from torch import nn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage

INPUTS = [
    (torch.tensor(x), torch.tensor(n))
    for x in ([0.25, 0.5, -1.0], [2.0, 1.5, 0.75], [-3.0, 4.0, 0.5], [1.0, -2.0, 5.5])
    for n in (0.0, 3.0, 9.0, 30.0)
]


def a_state_that_some_trips_set(x, n):
    h = last = None
    for i in range(int(n) // 3):
        y = x[i % 3] if last is None else x[last]
        if y > 0:
            h = (x * 0.5, y) if h is None else (h[0] + 1, h[1] * 2)
            last = int(y * 10) % 3
        x = x - 0.4
    return x, h, last


def modes_with_names(x, n):
    mode, found = "search", 0
    while x.sum() < n:
        if mode == "search":
            x = x + 1
            if x[1] > 2:
                mode, found = "track", found + 1
        elif mode == "track":
            x = x + 0.5
            if x[2] > 3:
                mode = "lost"
        else:
            x = x * 1.25 + 0.25
            if x[0] > 4:
                mode = "search"
    return x, found, mode


def asked_in_the_condition(x, n):
    best = None
    while best is None or best < n:
        if x[0] > 1:
            best = x.sum()
        x = x + 1
    return x, best


def within_each_other(x, n):
    h = None
    for _ in range(int(n) // 8):
        k = 0
        while k < 3 and x.sum() < 20:
            k += 1
            x = x + 0.5 if h is None else x + h[0] * 0.25
            if x.max() > 4:
                break
            if x[0] > x[1]:
                h = (x, k)
        x = x - 0.125
    return x, None if h is None else h[1]


def set_in_the_innermost_of_three(x, n):
    a = None
    for _ in range(int(n) // 8):
        for _ in range(int(n) // 9):
            k = 0
            while k < 2:
                k += 1
                x = x + 0.25
                if x[0] > 2:
                    a = x
                    break
            if a is not None and x.sum() > 6:
                a = None
        if a is not None:
            x, a = x - a * 0.5, None
    return x, a


PROGRAMS = [a_state_that_some_trips_set, modes_with_names, asked_in_the_condition, within_each_other, set_in_the_innermost_of_three]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_kind_is_a_number_of_the_run(program) -> None:
    check(program, INPUTS, paths=6, max_paths=8)


class State(enum.Enum):
    START, MIDDLE, END = 0.5, 0.75, 1.0


MISSING = object()


def halved(x):
    return x * 0.5 + 6


def raised(x):
    return x + 1


def names_of_what_to_do(x, n):
    """Members of an enumeration, sentinels, functions and classes."""
    state, last, step, kind = State.START, MISSING, raised, int
    while x.sum() < n:
        x = step(x.abs()) + state.value
        if last is not MISSING:
            x = x + last * 0.1
        if x[0] > 1:
            state, step, kind = State.MIDDLE if state is State.START else State.END, halved if x[1] > 2 else raised, float
        if x[1] > 2:
            last = x[1]
    return x, state.name, kind(2.5), last is MISSING


def made_by_each_trip(x, n):
    step = raised
    while x.sum() < n:
        x = step(x.abs())
        if x[0] > 1:
            step = lambda y, k=float(x[0]): y + k  # noqa: E731
    return x


def test_names_of_what_to_do() -> None:
    check(names_of_what_to_do, INPUTS, paths=6)
    with pytest.raises(UnsupportedError):
        stage(made_by_each_trip, INPUTS[0])


class Decoder(nn.Module):
    """A transducer's greedy decoder: its state and its last symbol are None until there is a symbol."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.predict, self.join = nn.Embedding(3, 4), nn.GRUCell(4, 4), nn.Linear(8, 4)

    def step(self, symbol, hidden):
        given = torch.zeros(1, 4) if symbol is None else self.embed(torch.tensor([symbol]))
        return self.predict(given, hidden)

    def forward(self, frames, length):
        hidden = symbol = None
        symbols = torch.full((12,), -1)
        count = 0
        for t in range(int(length)):
            not_blank, added = True, 0
            while not_blank and added < 2:
                after = self.step(symbol, hidden)
                k = self.join(torch.cat([frames[t], after[0]])).argmax().item()
                if k == 3:
                    not_blank = False
                else:
                    symbols[count] = k
                    symbol, hidden, count = k, after, count + 1
                added += 1
        return symbols, count


def test_a_transducers_greedy_decoder() -> None:
    torch.manual_seed(3)
    model = Decoder().eval().requires_grad_(False)
    inputs = [(torch.randn(6, 4) * 3, torch.tensor(n)) for n in (0, 1, 3, 6, 6, 6)]
    graph = check(model, inputs, paths=4, max_paths=8)
    assert len(graph.blocks) < 100


class DecoderOfLists(Decoder):
    """The same as it is usually written: the last symbol is the last of a list that the inner loop makes longer."""

    def forward(self, frames, length):
        hidden, symbols = None, []
        for t in range(int(length)):
            not_blank, added = True, 0
            while not_blank and added < 2:
                after = self.step(symbols[-1] if len(symbols) else None, hidden)
                k = self.join(torch.cat([frames[t], after[0]])).argmax().item()
                if k == 3:
                    not_blank = False
                else:
                    symbols.append(k)
                    hidden = after
                added += 1
        return [symbols, frames]


def test_a_decoder_with_a_list_of_symbols() -> None:
    """Where its state is still None the inner loop has ended, and is not made again: the flag is told by the kind of the state."""
    torch.manual_seed(3)
    model = DecoderOfLists().eval().requires_grad_(False)
    inputs = [(torch.randn(6, 4) * 3, torch.tensor(n)) for n in (0, 1, 3, 6, 6, 6)]
    graph = check(model, inputs, paths=4, max_paths=8, max_length=12)
    assert len(graph.blocks) < 170


def a_flag_that_goes_with_the_kind(x, n):
    """Each kind comes with one value of a flag and of a number, but for one that comes with both."""
    h, total, on, k = None, x * 0, False, 0
    while x.sum() < n:
        if x[0] > 1:
            h, on, k = x * 0.5, True, 1
        elif x[1] > 2:
            h, on, k = (x, x + 1), True, 2
        elif x[2] > 0.5:
            h, k = None, 3
        if h is None:
            total = total + (5 if on else 7) + k
        elif isinstance(h, tuple):
            total = total + h[0] * h[1] + (k if on else -k)
        else:
            total = total + h + (k if on else -k)
        on = on and bool(x[2] > 0)
        x = x + 0.75
    return total, on, k


def test_numbers_are_told_by_the_kind() -> None:
    check(a_flag_that_goes_with_the_kind, INPUTS, paths=6)


def a_list_that_may_be_empty(x, n):
    found = []
    while x.sum() < n and len(found) < 6:
        last = found[-1] if found else None
        x = x + 1 if last is None else x + last * 0.125
        if x[0] > 0:
            found.append(int(x[0]))
    return x, found


def test_whether_a_growing_list_is_empty_is_asked_at_run_time() -> None:
    check(a_list_that_may_be_empty, INPUTS, paths=4, max_paths=16, max_length=16)


def the_wrong_kind(x, n):
    h = None
    while x.sum() < n:
        if x[2] > 5:
            x = x + h
        if x[0] > 1:
            h = x * 0.5
        x = x + 1
    return x


def test_the_wrong_kind_raises_what_python_raises() -> None:
    check(the_wrong_kind, INPUTS, paths=3)


def an_object_a_trip(x, n):
    h = None
    while x.sum() < n:
        if h is not None:
            x = x + 1
        if x[0] > 1:
            h = object()
        x = x + 1
    return x


def test_objects_that_trips_make_are_no_kinds() -> None:
    with pytest.raises(UnsupportedError, match="`h`"):
        stage(an_object_a_trip, INPUTS[0])


@pytest.mark.parametrize("seed", [1, 4, 7, 1003, 1011])
def test_random_programs(seed: int) -> None:
    programs = Programs(seed)
    program, inputs = programs.function(), programs.inputs()
    graph = stage(program, inputs[5], max_paths=100)
    for args in inputs:
        try:
            want = program(*args)
        except Exception as error:
            with pytest.raises(type(error)):
                graph.interpret()(*args)
            continue
        assert same(want, graph.interpret()(*args))
