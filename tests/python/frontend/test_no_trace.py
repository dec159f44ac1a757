# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What staging compares before and after: what the forward changes, and nothing else."""

from __future__ import annotations

import cProfile
import gc
import json
import sys
import types
from collections.abc import Iterator

import pytest
import torch

from dycl_tvm import UnsupportedError, stage
from dycl_tvm.frontend.trace.heap.reach import names_of, reach
from dycl_tvm.frontend.trace.limits import Limits
from dycl_tvm.frontend.trace.session import Session

RUNS = {"of the collector": 0}
TRACES: list[int] = []


def _count(phase: str, info: dict[str, int]) -> None:
    RUNS["of the collector"] += 1


@pytest.fixture
def counted() -> Iterator[None]:
    gc.callbacks.append(_count)
    yield
    gc.callbacks.remove(_count)


def collects(x: torch.Tensor) -> torch.Tensor:
    gc.collect()
    return x if x.sum() > 0 else x + len(RUNS)


def test_what_the_garbage_collector_calls_is_no_part_of_the_forward(counted: None) -> None:
    stage(collects, (torch.ones(2),))
    before = RUNS["of the collector"]
    gc.collect()
    assert RUNS["of the collector"] > before, "the callbacks are there again"


def test_garbage_from_before_is_no_part_of_the_forward() -> None:
    def counts() -> Iterator[int]:
        try:
            yield 1
        finally:
            RUNS["of the collector"] += 1

    ring: list[object] = [counts()]
    ring.append(ring)
    next(ring[0])  # type: ignore[call-overload]
    before = RUNS["of the collector"]
    del ring, counts
    stage(collects, (torch.ones(2),))
    assert RUNS["of the collector"] == before
    gc.collect()
    assert RUNS["of the collector"] == before + 1


def test_a_change_by_something_else_is_seen() -> None:
    def traces(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else x + len(TRACES)

    def trace(frame: types.FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "traces":
            TRACES.append(1)

    sys.setprofile(trace)
    try:
        with pytest.raises(UnsupportedError, match="TRACES"):
            stage(traces, (torch.ones(2),))
    finally:
        sys.setprofile(None)
        TRACES.clear()


def test_what_pytest_makes_of_an_assert_is_not_the_programs() -> None:
    def asserts(x: torch.Tensor) -> torch.Tensor:
        assert x.shape[0] == len(TRACES) + 2
        return x

    names = asserts.__code__.co_names
    assert any(not n.isidentifier() for n in names), "pytest rewrites this test"
    assert {"TRACES", "len"} <= set(names_of(asserts.__code__)) == {n for n in names if n.isidentifier()}


def test_staging_can_be_profiled() -> None:
    def twice(k: int) -> int:
        return k * 2

    def calls(x: torch.Tensor) -> torch.Tensor:
        return x * sum(map(twice, json.loads("[2]"))) if x.sum() > 0 else x

    plain = str(stage(calls, (torch.ones(2),)))
    profile, seen = cProfile.Profile(), set[str]()
    assert profile.runcall(lambda: str(stage(calls, (torch.ones(2),)))) == plain
    sys.setprofile(lambda frame, event, _: seen.add(frame.f_code.co_name))
    try:
        assert str(stage(calls, (torch.ones(2),))) == plain
    finally:
        sys.setprofile(None)
    assert "raw_decode" in seen


def test_stagings_own_objects_are_not_the_programs() -> None:
    found = reach([("", {"session": Session(lambda: None, Limits())})], lambda x: False)
    assert [type(x) for _, x in found.steps] == [dict]
