# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Runs within a budget: they leave at the first early exit after which going on takes too long, and say so; nothing else changes."""

from __future__ import annotations

from pathlib import Path

import handmade
import numpy as np
import pytest

from dycl_tvm.errors import DeadlineError, UsageError
from dycl_tvm.runtime import Module, load
from dycl_tvm.runtime.profile import Profile, Recording
from dycl_tvm.runtime.profile.budget import needed_times
from dycl_tvm.runtime.profile.ring import RecordedRun

X = np.arange(4, dtype="float32")
EARLY, LATE = -5.0, 1e6  # limits: over at the first exit, never over


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return handmade.build(handmade.exits_program(), tmp_path_factory.mktemp("budget"))


@pytest.fixture
def exits(files: tuple[Path, Path]) -> Module:
    return load(*files)


def _profile(module: Module) -> Recording:
    with module.profile(every=1) as p:
        for limit in (EARLY, 1.5, 2.5, LATE):
            module(X, limit)
    return p


def test_a_budget_that_is_over_leaves_at_the_first_exit(exits: Module) -> None:
    p = _profile(exits)
    for budget in (-1, 0, -float("inf"), 1e-6):
        y, number = exits.run((X, LATE), budget_ms=budget, profile=p)
        assert number == 0
        np.testing.assert_array_equal(y, X + 1)
        path = exits.last_path
        assert path.cut is not None
        assert [(b.decision, b.choice, b.forced) for b in path.branches] == [(0, True, True)]
        assert str(path) == "true  model.py:1: if x[0] > limit: (forced by the budget)\nreturn model.py:100: return x"
        assert exits.kernels_run == {"k_inc": 1}
    # A run after it is as ever, and so is one that has time.
    for run in (lambda: exits(X, LATE), lambda: exits.run((X, LATE)), lambda: exits.run((X, LATE), budget_ms=1e9, profile=p)):
        y, number = run()
        assert number == 200
        np.testing.assert_array_equal(y, (X + 3) * 2)
        assert exits.last_path.cut is None
        assert len(exits.last_path.branches) == 4


def test_it_leaves_where_going_on_takes_longer_than_what_remains(exits: Module) -> None:
    p = _profile(exits)

    def slow(decision: int, seconds: float) -> Profile:
        """Return a profile in which going on at a decision has taken long."""
        data = p.to_dict()
        data["going_on"] = [[d, [int(seconds * 1e9)], [1]] if d == decision else [d, *rest] for d, *rest in data["going_on"]]
        return Profile.from_dict(data)

    for decision in (0, 1, 2):
        y, number = exits.run((X, LATE), budget_ms=30_000, profile=slow(decision, 3600))
        assert number == decision
        np.testing.assert_array_equal(y, X + decision + 1)
        assert [b.forced for b in exits.last_path.branches] == [False] * decision + [True]
        assert [b.choice for b in exits.last_path.branches] == [False] * decision + [True]
    assert exits.run((X, EARLY), budget_ms=30_000, profile=slow(0, 3600))[1] == 0
    assert exits.last_path.cut is None  # its condition held


def test_what_is_needed_is_measured(exits: Module) -> None:
    p = Profile(exits.metadata)
    for k in range(1, 101):
        # Behind the decisions it took 100 k, 200 k and 300 k; leaving takes 7 and is measured at the first exit.
        at = [1000, 1000 + 100 * k, 1000 + 300 * k]
        end = at[2] + 300 * k + 50
        p.add([RecordedRun(0, 10, end, 0, [], [*((d, 0, t) for d, t in enumerate(at)), (3, 0, end - 50)])])
        p.add([RecordedRun(0, 10, 107, 0, [], [(0, 1, 100)])])
    assert list(needed_times(p, exits.metadata, 0.5)) == [5000 + 7, 10_000 + 7, 15_000 + 50 + 7, 0]
    assert list(needed_times(p, exits.metadata))[0] == 9900 + 7


def test_a_budget_and_a_deadline_and_a_profile_at_once(exits: Module) -> None:
    p = _profile(exits)
    with exits.profile() as again:
        assert exits.run((X, LATE), budget_ms=-1, deadline_ms=60_000, profile=p)[1] == 0
        with pytest.raises(DeadlineError):
            exits.run((X, LATE), budget_ms=1e9, deadline_ms=-1, profile=p)
    assert [path.key for path in again.paths()] == [((0, 1),)]
    assert again.failed == 1


def test_what_a_budget_needs(exits: Module, tmp_path: Path) -> None:
    p = _profile(exits)
    with pytest.raises(UsageError, match="needs a profile"):
        exits.run((X, LATE), budget_ms=1)
    with pytest.raises(UsageError, match="not a number"):
        exits.run((X, LATE), budget_ms=float("nan"), profile=p)
    with exits.profile() as little:
        exits(X, EARLY)
    with pytest.raises(UsageError, match=r"no run of the profile went on at a decision.*model.py:1"):
        exits.run((X, LATE), budget_ms=1, profile=little)
    zoo = handmade.build_and_load(handmade.zoo_program(), tmp_path)
    with pytest.raises(UsageError, match="another build"):
        zoo.run((X, 0), budget_ms=1, profile=p)
    with zoo.profile() as other:
        zoo(X, 0)
    with pytest.raises(UsageError, match="no decision at which a run may leave"):
        zoo.run((X, 0), budget_ms=1, profile=other)
