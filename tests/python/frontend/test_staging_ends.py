# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Staging ends: what has no end, or takes too long or too much memory, is refused with the line that costs most, by a typed error."""

from __future__ import annotations

import itertools
import pickle
import time

import pytest
import torch
from differential import check

from dycl_tvm.errors import DyclError, InternalError, StagingLimitError, UnsupportedError
from dycl_tvm.frontend.python import stage, stage_model
from dycl_tvm.frontend.python.calls import effects
from dycl_tvm.progress import Phases

X = (torch.ones(2, 3),)


def depth_by_tensors(x):
    def again(xs):
        if xs[-1].sum() > 100:  # HERE
            return xs[-1]
        return again([*xs, xs[-1] * 2])  # HERE

    return again([x])


def two_recursions(x):
    def again(xs):
        if xs[-1].sum() > 100:  # HERE
            return xs[-1]
        y = again([*xs, xs[-1] * 2])  # HERE
        return y + again([*xs, xs[0] + 3])

    return again([x])


def endless_recursion(x):
    def again(n):
        return again(n + 1)  # HERE

    try:
        return again(0)
    except Exception:
        return x


def endless_operations(x):
    while True:
        x = x + 1  # HERE


def endless_counting(x):
    n = 0
    while True:  # HERE
        n += 1


def endless_iterator(x):
    for _ in itertools.count():
        x = x * 2  # HERE


def test_wherever_the_limit_of_recursion_is_met_the_program_is_refused():
    """Within a tensor's method, in a question for its truth, in staging's own code: none of these errors is the program's."""

    def deeper(frames):
        return deeper(frames - 1) if frames else stage(depth_by_tensors, X)

    for frames in range(12):  # as many as a call takes
        with pytest.raises(StagingLimitError):
            deeper(frames)


@pytest.mark.parametrize(
    "program", [depth_by_tensors, two_recursions, endless_recursion, endless_operations, endless_counting, endless_iterator]
)
def test_what_has_no_end_is_refused_with_its_line(program):
    start = time.monotonic()
    with pytest.raises(StagingLimitError) as caught:
        stage(program, X, max_seconds=1)
    assert time.monotonic() - start < 20
    source = open(__file__).read().splitlines()
    line = caught.value.origin.line
    assert "# HERE" in source[line - 1], source[line - 1]


def test_memory_is_bounded():
    def hoard(x):
        kept = []
        while True:
            kept.append([0] * 100_000)

    with pytest.raises(StagingLimitError, match=r"more than 64 MiB of memory.*max_memory|64 MiB(.|\n)*max_memory"):
        stage(hoard, X, max_memory=64 * 2**20)


def test_state_that_is_new_in_every_run():
    def counted(x):
        k = 0

        class Counter:
            def up(self, x):
                nonlocal k
                k += 1
                return x + k

        return Counter().up(x)

    try:
        graph = stage(counted, X)
    except StagingLimitError as error:
        assert "rounds" in str(error)  # noqa: PT017  (refused or right)
    else:
        assert graph.blocks


def test_a_recursion_error_of_the_program_itself_is_its_own():
    def raising(x):
        if x.sum() > 0:
            raise RecursionError("mine")
        return x

    graph = stage(raising, X)
    assert any(getattr(b.terminator, "kind", "") == "RecursionError" for b in graph.blocks)


def test_what_fails_within_is_an_internal_error_with_the_users_line(monkeypatch):
    def broken(*_):
        raise KeyError("a defect")

    monkeypatch.setattr(stage_model, "reverse_postorder", broken)
    with pytest.raises(InternalError, match="report") as caught:
        stage(lambda x: x + 1, X)
    assert isinstance(caught.value, DyclError) and isinstance(caught.value.__cause__, KeyError)


def test_a_phase_of_a_build_fails_with_a_typed_error():
    phases = Phases()
    with pytest.raises(InternalError, match="KeyError while the phase 'passes'") as caught, phases.phase("passes", "simplify"):
        raise KeyError("a defect")
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_of_the_listener_is_its_own():
    def listener(line):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), Phases(listener).phase("passes", "simplify"):
        pass


def test_more_objects_than_can_be_watched_are_refused(monkeypatch):
    table = [[k] for k in range(100)]

    def looks_up(x):
        return x + len(pickle.dumps(table)) if x.sum() > 0 else x

    assert stage(looks_up, X).blocks
    monkeypatch.setattr(effects, "LIMIT", 50)
    with pytest.raises(UnsupportedError, match=r"objects that may change can be reached from dumps\(\), and still more"):
        stage(looks_up, X)


@pytest.mark.parametrize("error", [StopIteration, ValueError])
def test_an_endless_loop_that_is_left_by_an_exception(error):
    """Each trip is a run of its own, as long as all before it: without a bound it is refused soon."""

    def doubles(x):
        n = 0
        try:
            while True:
                x = x * 2
                n += 1
                if x.sum() > 100:
                    raise error
        except error:
            pass
        return x, n

    with pytest.raises(UnsupportedError, match=r"paths part for good in each of the first \d+ trips of a loop that has no condition"):
        stage(doubles, X, max_seconds=100)
    check(doubles, [X, (torch.full((2, 3), 40.0),)], paths=2, max_loop_trips=12)
