# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Profiles: every kernel, decision and edge of every run is counted once, times add up, and what is missing is said."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import handmade
import numpy as np
import pytest
from zoo_calls import SUM, X

from dycl_tvm.errors import DeadlineError, RunError, UsageError
from dycl_tvm.runtime import Module, load
from dycl_tvm.runtime.profile import Profile, load_profile
from dycl_tvm.runtime.profile.quantiles import allowed, clustering, quantile, runs_needed, upper_bound
from dycl_tvm.runtime.profile.ring import CALL, DECISION, RUN, START, RecordedRun, runs_of


@pytest.fixture
def zoo(files: tuple[Path, Path]) -> Module:
    return load(*files)


def test_what_ran_is_counted_once(zoo: Module) -> None:
    keys, kernels = [], {}
    with zoo.profile() as p:
        for n in (0, 9, 0, 1):
            zoo(X, n)
            keys.append(tuple((b.decision, int(b.choice)) for b in zoo.last_path.branches))
            for name, runs in zoo.kernels_run.items():
                kernels[name] = kernels.get(name, 0) + runs
    zoo(X, 0)  # behind the end
    assert (p.runs, p.failed, p.cut, p.lost) == (4, 0, 0, 0)
    assert {row.name: row.runs for row in p.by_kernel()} == kernels
    assert {row.name: row.runs for row in p.by_sub_dnn()} == {f"sub_{name}": runs for name, runs in kernels.items()}
    paths = p.paths()
    assert [path.key for path in paths] == [keys[0], keys[1], keys[3]]
    assert [path.share for path in paths] == [0.5, 0.25, 0.25]
    assert [path.kernels for path in paths] == [4, 13, 2]
    assert paths[0].bytes == 16 * (3 + 2 + 2 + 3)
    assert "model.py:9" in str(paths[0].origin) and "model.py:10" in str(paths[2].origin)
    # entry, head, body, exit, sum, item
    assert p.edges == {(0, 1): 4, (1, 2): 10, (2, 1): 10, (1, 3): 4, (3, 4): 3, (3, 5): 1}
    assert {block: n for block, (n, _) in p.block_runs().items()} == {0: 4, 1: 14, 2: 10, 3: 4, 4: 3, 5: 1}


def test_times_add_up(zoo: Module) -> None:
    with zoo.profile(every=1) as p:
        for n in (0, 5):
            zoo(X, n)
    blocks = sum(took for _, took in p.block_runs().values())
    assert p.total == sum(p.input_times()) + blocks == sum(p.times())
    assert 0 < sum(row.total for row in p.by_kernel()) <= blocks
    assert sum(row.total for row in p.by_line()) == sum(row.total for row in p.by_sub_dnn()) == sum(row.total for row in p.by_kernel())
    for run in p.last_runs:
        moments = [run.begin, run.started, *(m for _, *both in run.calls for m in both), run.end]
        assert moments == sorted(moments)


def test_a_run_is_the_same_while_it_is_profiled(zoo: Module) -> None:
    with zoo.profile(capacity=1 << 22) as p:  # what ends at its deadline has many events, and on a busy machine ends late
        np.testing.assert_array_equal(zoo(X, 0)["y"], SUM)
        with pytest.raises(RunError, match="two is not allowed"):
            zoo(X, 2)
        with pytest.raises(RunError, match="k_fail"):
            zoo(X, 3)
        with pytest.raises(DeadlineError):
            zoo.run((X, 2**62), deadline_ms=1)
        zoo(X, 1)
    assert (p.runs, p.failed) == (2, 3)


def test_lost_events_are_counted(zoo: Module) -> None:
    with zoo.profile(capacity=20, every=1) as p:
        zoo(X, 0)  # 8 events
        p.collect()
        for n in (0, 1, 0):  # 8, 7, 8
            zoo(X, n)
        p.collect()
        assert (p.runs, p.cut, p.lost) == (3, 1, 3)
        zoo(X, 50)  # leaves room for nothing else, and not for itself
        zoo(X, 1)
    assert (p.runs, p.cut, p.lost) == (4, 2, 3 + 108 + 7 - 20)
    assert "lost" in str(p)


def test_a_profile_may_be_taken_up_again(zoo: Module) -> None:
    p = zoo.profile(capacity=20, every=1)
    for _ in range(2):
        with p:
            for n in (0, 1, 0):  # 8, 7, 8 events
                zoo(X, n)
        zoo(X, 0)
    assert (p.runs, p.cut, p.lost) == (4, 2, 6)


def test_one_at_a_time_and_never_longer_than_the_session(files: tuple[Path, Path]) -> None:
    zoo = load(*files)
    with zoo.profile() as p, pytest.raises(UsageError, match="already"), zoo.profile():
        pass
    with zoo.profile():
        zoo.close()
    assert p.runs == 0
    with pytest.raises(UsageError, match="room"):
        load(*files).profile(capacity=0)
    other = load(*files)
    other.profile().__enter__()  # nobody ends it, and nobody else keeps what is written to
    gc.collect()
    for _ in range(200):
        np.testing.assert_array_equal(other(X, 0)["y"], SUM)


def test_a_file_is_a_trace_and_the_profile(zoo: Module, tmp_path: Path) -> None:
    with zoo.profile(every=1) as p:
        for n in (0, 3, 2, 7):
            try:
                zoo(X, n)
            except RunError:
                pass
    file = str(tmp_path / "trace.json")
    p.save(file)
    again = load_profile(file)
    assert json.dumps(again.to_dict()) == json.dumps(p.to_dict())
    assert (again.paths(), again.by_kernel(), again.by_block()) == (p.paths(), p.by_kernel(), p.by_block())
    events = json.loads(Path(file).read_text())["traceEvents"]
    complete = [e for e in events if e["ph"] == "X"]
    assert sum(e["cat"] == "kernel" for e in complete) == 4 + 11
    assert sum(e["ph"] == "i" for e in events) == 2 + 9
    for e in complete:
        assert e["ts"] >= 0 and e["dur"] >= 0 and e["pid"] == e["tid"] == 1
        (run,) = [r for r in complete if r["cat"] == "run" and r["ts"] <= e["ts"] and e["ts"] + e["dur"] <= r["ts"] + r["dur"] + 2e-3]
        assert run
    for text in ("{}", "[]", '{"dycl_profile": []}', '{"dycl_profile": {"format": 2}}', '{"dycl_profile": {"format": 2, "metadata": {}}}'):
        Path(file).write_text(text)
        with pytest.raises(UsageError, match="no profile"):
            load_profile(file)


def test_the_beginning_of_a_run_may_be_missing() -> None:
    events = [(0, 0, CALL, 3, 0, 0), (0, 9, RUN, 0, 0, 0), (10, 11, START, 0, 0, 0), (12, 12, DECISION, 0, 1, 0), (10, 20, RUN, 1, 0, 0)]
    cut, run = runs_of(events)
    assert cut is None
    assert run is not None
    assert (run.begin, run.started, run.end, run.site, run.decisions) == (10, 11, 20, 1, [(0, 1, 12)])


#: Lets the library named by SLOW wait before it gets the time, as often as `slow` says.
SLOW_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
int slow;
int clock_gettime(clockid_t id, struct timespec* to) {
  static int (*real)(clockid_t, struct timespec*);
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "clock_gettime");
  struct timespec pause = {0, 100000000};
  Dl_info caller;
  if (slow && dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, getenv("SLOW"))) {
    --slow;
    nanosleep(&pause, 0);
  }
  return real(id, to);
}
"""
SLOW_PROGRAM = """
import ctypes, sys, time
import numpy as np
from dycl_tvm.runtime import load
slow = ctypes.c_int.in_dll(ctypes.CDLL(sys.argv[1]), "slow")
zoo, x = load(*sys.argv[2:]), np.zeros(4, "float32")
slow.value = 1
with zoo.profile() as p:
    assert slow.value == 0
    time.sleep(0.1)
    before = time.monotonic_ns()
    zoo(x, 0)
    after = time.monotonic_ns()
    time.sleep(0.1)
(run,) = p.last_runs
assert before - 1_000_000 <= run.begin <= run.end <= after + 1_000_000, (before, run.begin, run.end, after)
"""


def test_a_thread_that_loses_its_core_between_two_clocks_tells_the_right_time(files: tuple[Path, Path], tmp_path: Path) -> None:
    source, library = tmp_path / "slow.c", str(tmp_path / "slow.so")
    source.write_text(SLOW_CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(source), "-ldl"], check=True)
    command = [sys.executable, "-c", SLOW_PROGRAM, library, *map(str, files)]
    told = {**os.environ, "LD_PRELOAD": library, "SLOW": files[0].name}
    done = subprocess.run(command, env=told, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_library_of_an_earlier_version_is_refused(zoo: Module) -> None:
    old = {key: value for key, value in zoo.metadata.items() if key != "blocks"}
    with pytest.raises(UsageError, match="build the model again"):
        Profile(old)


def test_order_statistics_by_hand() -> None:
    assert [quantile(range(1, 101), p) for p in (0.5, 0.99, 0.999, 1.0)] == [50, 99, 100, 100]
    assert quantile([7], 0.01) == 7
    # Wilks: 59 runs for 95 % with 95 %, 93 where the largest is left out, 299 for 99 % with 95 %.
    assert [runs_needed(0.95, 0.95), runs_needed(0.99, 0.95), runs_needed(0.95, 0.99)] == [59, 299, 90]
    assert upper_bound(range(58), 0.95, 0.95) is None
    for count, value, left_out in ((59, 58, 0), (92, 91, 0), (93, 91, 1)):
        bound = upper_bound(range(count), 0.95, 0.95)
        assert bound is not None and (bound.value, bound.left_out) == (value, left_out)
    assert [allowed(100, 0.99, 0.95), allowed(3, 0.5, 0.5), allowed(1, 0.5, 0.9)] == [3, 1, 1]
    many = upper_bound(range(100_000), 0.5, 0.95)
    assert many is not None and 50_000 < many.value < 50_400  # 1.64 standard deviations are 260


def test_bounds_at_the_limit_and_beyond() -> None:
    for p in (k / 50 for k in range(1, 50)):
        for confidence in (k / 50 for k in range(1, 50)):  # among them such as p**n == 1 - confidence, but for rounding
            needed = runs_needed(p, confidence)
            assert upper_bound(range(needed - 1), p, confidence) is None
            bound = upper_bound(range(needed), p, confidence)
            assert bound is not None and bound.value == needed - 1 - bound.left_out >= 0
    assert upper_bound(range(10), 1e-17, 0.95) is not None
    for p, confidence in ((0.0, 0.9), (1.0, 0.9), (99, 0.95), (0.9, 0.0), (0.9, 1.0), (float("nan"), 0.9)):
        with pytest.raises(UsageError, match="between 0 and 1"):
            upper_bound(range(10), p, confidence)


def test_slow_runs_that_come_together_are_seen() -> None:
    generator = np.random.default_rng(0)
    alone = generator.exponential(size=2000)
    independent = clustering(alone.tolist(), 0.99)
    assert independent is not None and independent < 0.15
    alone[500:525] += 100
    together = clustering(alone.tolist(), 0.99)
    assert together is not None and together > 0.7
    assert clustering(range(100), 0.99) is None


def test_a_bound_holds_as_often_as_it_says() -> None:
    """Of a distribution with a long tail: the bound is too low in at most 1 - confidence of the cases, and not in far fewer."""
    generator = np.random.default_rng(0)
    p, confidence, cases = 0.9, 0.8, 2000
    true = float(-np.log(1 - p))  # the quantile of the exponential distribution
    low = 0
    for _ in range(cases):
        bound = upper_bound(sorted(generator.exponential(size=60).tolist()), p, confidence)
        low += bound is not None and bound.value < true
    assert 0.1 < low / cases < 0.2 + 3 * (0.2 * 0.8 / cases) ** 0.5


def test_counts_are_exact_where_some_runs_are_timed(zoo: Module, tmp_path: Path) -> None:
    inputs = [0, 9, 1] * 40
    profiles = []
    for every in (1, 4):
        with zoo.profile(every=every) as p:
            for n in inputs:
                zoo(X, n)
        profiles.append(p)
    full, some = profiles
    assert (full.timed, some.runs, some.timed, some.cut) == (120, 120, 30, 0)
    assert some.edges == full.edges
    counts = [{row.name: row.runs for row in p.by_kernel()} for p in profiles]
    assert counts[0] == counts[1]
    for p in profiles:
        assert {b: n for b, (n, _) in p.block_runs().items()} == {b: n for b, (n, _) in full.block_runs().items()}
        assert [(path.key, path.kernels, len(path.times)) for path in p.paths()] == [(q.key, q.kernels, 40) for q in full.paths()]
    # inputs that come in turns are all met, also where as many runs as there are turns make a group
    with zoo.profile(every=3) as p:
        for n in inputs:
            zoo(X, n)
    assert p.timed == 40
    assert len({tuple(number for number, *_ in run.calls) for run in p.last_runs}) == 3
    # a run that was not timed inside lets no time of a kernel be known
    assert sum(row.timed for row in some.by_kernel()) == sum(len(some.call_times(k)) for k in range(len(zoo.metadata["calls"])))
    assert "30 of these were timed inside (25.0% on average)" in str(some)
    assert "timed inside" not in str(full)
    some.save(str(tmp_path / "trace.json"))
    again = load_profile(str(tmp_path / "trace.json"))
    assert some.even
    assert again.even
    assert (again.timed, again.by_kernel(), again.by_block()) == (30, some.by_kernel(), some.by_block())


def test_totals_are_those_of_the_timed_runs_as_far_as_runs_are_alike(zoo: Module) -> None:
    def run(n: int, took: int, timed: bool) -> RecordedRun:
        with zoo.profile() as p:
            zoo(X, n)
        (one,) = p.last_runs
        decisions = [(d, choice, took) for d, choice, _ in one.decisions]
        calls = [(number, 0, took) for number, *_ in one.calls[:1]] + [(number, took, took) for number, *_ in one.calls[1:]]
        return RecordedRun(0, 0, took, one.site, calls if timed else [], decisions, timed)

    p = Profile(zoo.metadata)
    p.add([run(1, 100, True), run(1, 300, False), run(1, 200, True), run(0, 50, False)])
    rows = {row.name: row for row in p.by_kernel()}
    first = zoo.metadata["kernels"][zoo.metadata["calls"][run(1, 1, True).calls[0][0]]["kernel"]]["symbol"]
    # two calls in each of three runs, two of which were timed, 100 and 200
    assert (rows[first].runs, rows[first].total, rows[first].p99, rows[first].timed) == (6, 300 * 3 // 2, 200, 4)
    assert (p.runs, p.timed, p.total) == (4, 2, 650)
    assert p.paths()[0].times == [100, 200, 300]
    never = [row for row in rows.values() if row.timed == 0]
    assert never
    assert all(row.runs and not row.total and not row.p50 for row in never)


def test_a_run_of_more_decisions_than_are_kept_is_told_of_where_it_is_timed(zoo: Module) -> None:
    with zoo.profile(every=3) as p:
        for n in (5000, 5000, 5000, 0):  # the first of them is timed
            zoo(X, n)
    assert (p.runs - p.timed, p.cut) in ((1, 2), (0, 2))
    assert f"{p.cut} runs whose end alone is left" in str(p)
    # By itself it times all from the first such run on, which may come when another is timed.
    with zoo.profile() as p:
        for n in [0] * 50 + [5000] * 3:
            zoo(X, n)
    assert p.cut <= 1
    assert p.runs + p.cut == 53
    with pytest.raises(UsageError, match="from 1 on"):
        zoo.profile(every=0)


def test_as_many_runs_are_timed_inside_as_cost_little(tmp_path: Path) -> None:
    """Of tiny kernels few, of a large one all; these stand for the runs of both."""
    tiny = handmade.build_and_load(handmade.straight_program("k_wait", *["k_inc"] * 64), tmp_path)
    wait, go = np.full(4, 300, "float32"), np.zeros(4, "float32")
    with tiny.profile() as p:
        for _ in range(40):
            tiny(wait)
    assert (p.runs, p.timed, p.even) == (40, 40, True)
    with tiny.profile() as p:
        for x in [wait] * 40 + [go] * 4000:
            tiny(x)
    assert (p.runs, p.cut) == (4040, 0)
    assert 40 + 4000 / 128 - 1 < p.timed < 40 + 4000 / 8
    assert not p.even
    assert [(path.kernels, len(path.times)) for path in p.paths()] == [(65, 4040)]
    assert {row.name: row.runs for row in p.by_kernel()} == {"k_wait": 4040, "k_inc": 64 * 4040}
    # Those that were timed stand for all but some of the last group; by themselves a quarter of them or more waited.
    assert abs(len(p.call_times(0)) - 4040) < 128
    assert quantile(p.call_times(0), 0.9) < 100_000 < p.call_times(0)[-1]
    again = Profile.from_dict(json.loads(json.dumps(p.to_dict())))
    assert (again.even, again.by_kernel(), again.call_times(0)) == (False, p.by_kernel(), p.call_times(0))


def test_a_timed_run_stands_for_those_it_was_chosen_among(zoo: Module) -> None:
    """Totals of quick and slow runs, of which other parts are timed: no further off than chance allows, and on average right."""
    with zoo.profile() as p:
        zoo(X, 1)
    (run,) = p.last_runs
    chance, errors = random.Random(0), []
    for _ in range(200):
        p, exact = Profile(zoo.metadata), 0
        for _ in range(60):
            slow = chance.random() < 0.3
            every = 2 if slow else 9
            chosen = chance.randrange(every)
            for place in range(every):
                took = int((1000 if slow else 100) * chance.uniform(0.5, 1.5))
                calls = [(run.calls[0][0], 0, took)] if place == chosen else []
                decisions = [(d, choice, took) for d, choice, _ in run.decisions]
                p.add([RecordedRun(0, 0, took, run.site, calls, decisions, place == chosen, every)])
                exact += took
        told = sum(took for _, took in p.block_runs().values())
        errors.append(told / exact - 1)
    mean, deviation = float(np.mean(errors)), float(np.std(errors))
    assert deviation < 0.1
    assert abs(mean) < 4 * deviation / len(errors) ** 0.5 + 0.002  # a ratio of two estimates is off by 1 / 60 of its variance
