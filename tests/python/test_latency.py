# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The latency of paths that no run took, and of the whole network: longest ways, bounds, and when there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dycl_tvm.coverage import NetworkBound, NoBound, estimates, flow_of_artifact, list_paths, network_bound, path_bounds
from dycl_tvm.coverage.longest import NoLongest, Trips, longest
from dycl_tvm.runtime.profile import Profile
from dycl_tvm.runtime.profile.ring import RecordedRun

#: Nanoseconds of each block of the networks below; kernels take all of them.
TOOK = [100, 10, 20, 30, 40, 50]


def _metadata(flow: Sequence[list[Any]], decisions: int, recursive: Sequence[int] = ()) -> dict[str, Any]:
    origin = {"file": "net.py", "line": 1, "function": "", "code": ""}
    sites = 1 + max((rest[0] for kind, *rest in flow if kind == "return"), default=0)
    return {
        **{"name": "net", "fingerprint": "f", "code": "c", "flow": list(flow), "lines": [origin]},
        "blocks": [{"name": f"block{b}", "origin": origin, "recursive": b in recursive} for b in range(len(flow))],
        "calls": [{"kernel": b, "sub_dnn": f"s{b}", "block": b, "bytes": b, "lines": [0]} for b in range(len(flow))],
        "kernels": [{"symbol": f"k{b}", "backend": "tvm"} for b in range(len(flow))],
        "decisions": [{"kind": "branch", "origin": origin}] * decisions,
        "sites": [{"structure": {"const": None}, "types": [], "origin": origin}] * sites,
    }


def _run(profile: Profile, sides: Sequence[int], slower: int = 0) -> RecordedRun:
    """Return a run along these sides, of which each kernel takes as long as its block says, and the first one longer."""
    run, head, now = RecordedRun(0, 5), 0, 5
    for side in [*sides, 0]:
        stretch = profile.stretches[head]
        for block in stretch.blocks:
            took = TOOK[block] + (slower if block == 0 else 0)
            run.calls.append((block, now, now + took))
            now += took
        if stretch.decision is not None:
            run.decisions.append((stretch.decision, side, now))
            head = stretch.targets[side]
    run.end, run.site = now, profile.metadata["flow"][stretch.blocks[-1]][1]
    return run


#: block 0 decides: 1 and then 4, or 2; 2 decides: 3 returns, 5 raises. 4 returns.
EXITS = [["decide", 0, [1, 2]], ["goto", 4], ["decide", 1, [5, 3]], ["return", 0], ["return", 1], ["raise", "ValueError: no", None]]
#: 0, then while (1) do 2; then 3.
LOOP = [["goto", 1], ["decide", 0, [3, 2]], ["goto", 1], ["return", 0]]
#: 0, then while (1) do 2 and while (3) do 4; then 5.
NEST = [["goto", 1], ["decide", 0, [5, 2]], ["goto", 3], ["decide", 1, [1, 4]], ["goto", 3], ["return", 0]]


def test_estimates_are_sums_of_parts_that_ran() -> None:
    metadata = _metadata(EXITS, 2)
    metadata["calls"][3]["kernel"] = 1  # the kernel of block 3 has run in block 1
    profile = Profile(metadata)
    profile.add(_run(profile, [0], slower) for slower in range(100))
    found = {e.path.key: e for e in estimates(profile, list_paths(flow_of_artifact(metadata)))}
    assert set(found) == {((0, 1), (1, 0)), ((0, 1), (1, 1))}
    never = found[(0, 1), (1, 1)]
    assert (never.p50, never.kernels, never.bytes) == (None, 3, 0 + 2 + 3)  # the kernel of block 2 never ran
    metadata["calls"][2]["kernel"] = 4
    profile = Profile(metadata)
    profile.add(_run(profile, [0], slower) for slower in range(100))
    never = {e.path.key: e for e in estimates(profile, list_paths(flow_of_artifact(metadata)))}[(0, 1), (1, 1)]
    # The inputs and the first stretch as they were measured, then kernels.
    assert (never.p50, never.p99, never.p999) == (5 + 149 + 40 + 10, 5 + 198 + 40 + 10, 5 + 199 + 40 + 10)


def test_a_network_whose_paths_are_all_measured() -> None:
    metadata = _metadata(EXITS, 2)
    profile, listing = Profile(metadata), list_paths(flow_of_artifact(metadata))
    profile.add(_run(profile, [0], slower) for slower in range(40))
    assert [bound for _, bound in path_bounds(profile, 0.9, 0.9)] != [None]
    none = network_bound(profile, listing, 0.9, 0.9, None)
    assert isinstance(none, NoBound)
    assert "0 runs came through block 2" in none.reason
    profile.add(_run(profile, [1, 1], slower) for slower in range(40))
    found = network_bound(profile, listing, 0.9, 0.9, None)
    # The doubt is shared: each of the two paths has a bound of 95 %, for which 40 runs leave none out.
    assert isinstance(found, NetworkBound)
    assert found.value == 5 + 100 + 39 + 20 + 30 == max(path.times[-1] for path in profile.paths())
    assert "2 paths" in found.how


def test_a_network_with_a_loop_needs_its_trips() -> None:
    metadata = _metadata(LOOP, 1)
    profile, listing = Profile(metadata), list_paths(flow_of_artifact(metadata))
    profile.add(_run(profile, [1] * trips + [0]) for trips in [1, 2] * 80)
    none = network_bound(profile, listing, 0.9, 0.9, None)
    assert isinstance(none, NoBound)
    assert "max_loop_trips" in none.reason
    found = network_bound(profile, listing, 0.9, 0.9, 5)
    assert isinstance(found, NetworkBound)
    # The inputs, the entry with the first test, six times the body with a test, the end.
    assert found.value == 5 + (100 + 10) + 6 * (20 + 10) + 30
    assert found.value >= _run(profile, [1] * 5 + [0]).end


def test_loops_that_count_their_trips_need_no_number() -> None:
    for given, of_outer, of_inner, bound in (
        (None, 3, 2, 5 + 110 + 4 * (50 + 3 * 70 + 10) + 50),
        (2, 3, 2, 5 + 110 + 3 * (50 + 3 * 70 + 10) + 50),
        (7, None, 2, 5 + 110 + 8 * (50 + 3 * 70 + 10) + 50),
        (7, 3, None, 5 + 110 + 4 * (50 + 8 * 70 + 10) + 50),
        (None, None, 2, None),  # the trips of the inner loop bound no way around the outer one
        # Nor do those of the outer one bound the inner one, which stays in the outer one's body.
        (None, 3, None, None),
    ):
        metadata = _metadata(NEST, 2)
        for block, trips in ((1, of_outer), (3, of_inner)):
            metadata["blocks"][block].update({} if trips is None else {"trips": trips})
        profile, listing = Profile(metadata), list_paths(flow_of_artifact(metadata))
        profile.add(_run(profile, [1, 1, 1, 0, 1, 1, 0, 0]) for _ in range(300))
        found = network_bound(profile, listing, 0.9, 0.9, given)
        assert (found.value if isinstance(found, NetworkBound) else None) == bound, (given, of_outer, of_inner)


def test_a_bound_by_stretches_needs_runs_that_were_chosen_with_one_chance() -> None:
    metadata = _metadata(LOOP, 1)
    profile, listing = Profile(metadata), list_paths(flow_of_artifact(metadata))
    profile.add(replace(_run(profile, [1] * trips + [0]), weight=2) for trips in [1, 2] * 80)
    assert isinstance(network_bound(profile, listing, 0.9, 0.9, 5), NetworkBound)
    # Of the others nothing was timed inside: the chance counts.
    profile.add(replace(_run(profile, [1, 0]), weight=3, timed=False) for _ in range(2))
    none = network_bound(profile, listing, 0.9, 0.9, 5)
    assert isinstance(none, NoBound)
    assert "every=1" in none.reason


def test_a_bound_that_a_run_contradicts_is_none() -> None:
    metadata = _metadata(LOOP, 1)
    profile, listing = Profile(metadata), list_paths(flow_of_artifact(metadata))
    profile.add(_run(profile, [1] * trips + [0]) for trips in [1, 7] * 80)
    none = network_bound(profile, listing, 0.9, 0.9, 5)
    assert isinstance(none, NoBound)
    assert "more trips" in none.reason
    assert isinstance(network_bound(profile, listing, 0.9, 0.9, 6), NetworkBound)


@pytest.mark.parametrize("max_trips", [None, 5])
def test_a_recursion_has_no_bound(max_trips: int | None) -> None:
    metadata = _metadata(LOOP, 1, recursive=[2])
    profile = Profile(metadata)
    profile.add(_run(profile, [1, 0]) for _ in range(160))
    none = network_bound(profile, list_paths(flow_of_artifact(metadata)), 0.9, 0.9, max_trips)
    assert isinstance(none, NoBound)
    assert "recursion" in none.reason


def test_a_network_that_never_returns_has_no_bound() -> None:
    metadata = _metadata([["raise", "ValueError: no", None]], 0)
    none = network_bound(Profile(metadata), list_paths(flow_of_artifact(metadata)), 0.9, 0.9, None)
    assert isinstance(none, NoBound)
    assert "never returns" in none.reason


def _at_most(trips: int | None) -> Trips:
    return lambda nodes, header: trips


def test_longest_ways() -> None:
    ones = dict.fromkeys(range(10), 1)
    assert longest({0: [1, 2], 1: [3], 2: [3], 3: []}, {0: 1, 1: 5, 2: 7, 3: 2}, _at_most(None)) == 10
    # A loop in a loop: 0; 4 x (1, 4 x (2, 3)); 4.
    nest = {0: [1], 1: [2, 4], 2: [3, 1], 3: [2], 4: []}
    assert longest(nest, ones, _at_most(3)) == 1 + 4 * (1 + 4 * 2) + 1
    assert longest({0: [0, 1], 1: []}, ones, _at_most(2)) == 3 + 1  # the entry is a loop itself
    for graph, trips, recursive, why in (
        ({0: [0]}, None, (), "max_loop_trips"),
        ({0: [1, 2], 1: [2], 2: [1]}, 3, (), "more than one place"),
        ({0: [1], 1: [1]}, 3, (1,), "recursion"),
    ):
        with pytest.raises(NoLongest, match=why):
            longest(graph, ones, _at_most(trips), recursive)  # type: ignore[arg-type]
