# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The latency of paths: an estimate for those that no run took, and probabilistic bounds for paths and the whole network.

A bound is an order statistic of measured times (``runtime/profile/quantiles.py``). It says of runs like those measured, on the machine as
it was then, that at most a part ``1 - p`` takes longer, and is wrong itself with a probability of at most ``1 - confidence``. It is no
worst-case execution time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from dycl_tvm.coverage.flow import ListedPath, Listing
from dycl_tvm.coverage.longest import NoLongest, Trips, longest
from dycl_tvm.hcfg.analysis import natural_loops
from dycl_tvm.hcfg.skeleton import skeleton
from dycl_tvm.runtime.path import Decision
from dycl_tvm.runtime.profile import PathTimes, Profile
from dycl_tvm.runtime.profile.quantiles import UpperBound, quantile, runs_needed, upper_bound


@dataclass(frozen=True)
class Estimate:
    """A path that no run took. Times are nanoseconds; None where a kernel never ran.

    They are sums of the quantiles of its parts: of binding inputs, of the stretches between decisions that other paths share, and of the
    kernels of the other stretches. The sum of quantiles is no quantile of the sum: an estimate.
    """

    path: ListedPath
    decisions: list[Decision]
    p50: int | None
    p99: int | None
    p999: int | None
    kernels: int
    bytes: int


def estimates(profile: Profile, listing: Listing) -> list[Estimate]:
    """Return an estimate for each listed path that no run took."""
    taken = {path.key for path in profile.paths()}
    calls = profile.metadata["calls"]
    inputs = profile.input_times()
    parts = {head: _parts(profile, head) for head in profile.stretches}
    found = []
    for path in listing.paths:
        if path.key in taken:
            continue
        numbers = [number for head in profile.heads(path.key) for number in profile.calls_of(head)]
        times = [inputs, *(part for head in profile.heads(path.key) for part in parts[head])]
        p50, p99, p999 = (sum(quantile(part, p) for part in times) if all(times) else None for p in (0.5, 0.99, 0.999))
        bytes_ = sum(calls[n]["bytes"] for n in numbers)
        found.append(Estimate(path, profile.describe(path.key), p50, p99, p999, len(numbers), bytes_))
    return found


def _parts(profile: Profile, head: int) -> list[list[int]]:
    """Return the times of a stretch, or, where it never ran, of each of its kernels: as measured at other places, and none if nowhere."""
    measured = profile.stretch_times(head)
    return [measured] if measured else [profile.call_times(number) for number in profile.calls_of(head)]


def path_bounds(profile: Profile, p: float, confidence: float) -> list[tuple[PathTimes, UpperBound | None]]:
    """Return the paths that runs took, each with the bound of its runs; None where these are too few."""
    return [(path, upper_bound(path.times, p, confidence)) for path in profile.paths()]


@dataclass(frozen=True)
class NetworkBound:
    """A probabilistic bound on runs of any mixture of paths, in nanoseconds, and how it was found."""

    value: int
    how: str


@dataclass(frozen=True)
class NoBound:
    """Why there is no bound."""

    reason: str


def network_bound(profile: Profile, listing: Listing, p: float, confidence: float, max_trips: int | None) -> Union[NetworkBound, NoBound]:
    """Return a bound on all paths that return.

    Parameters
    ----------
    profile : Profile
    listing : Listing
        The paths of the network.
    p, confidence : float
        At most a part ``1 - p`` of the runs takes longer, with that confidence.
    max_trips : int, optional
        No loop makes more trips each time it is reached. Of loops that count their trips the artefact knows how many they make at most.
    """
    by_paths = _of_all_paths(profile, listing, p, confidence)
    return by_paths if isinstance(by_paths, NetworkBound) else _of_stretches(profile, p, confidence, max_trips)


def _of_all_paths(profile: Profile, listing: Listing, p: float, confidence: float) -> Union[NetworkBound, NoBound]:
    """Return the largest bound of the paths: a run takes one of them, and all hold at once by the sum of their doubts."""
    if not listing.complete or listing.loops:
        return NoBound("not all paths are listed")
    taken = {path.key: path for path in profile.paths()}
    returning = [path for path in listing.paths if profile.stretches[profile.heads(path.key)[-1]].end == "return"]
    each = 1.0 - (1.0 - confidence) / max(1, len(returning))
    bounds = [upper_bound(taken[path.key].times, p, each) if path.key in taken else None for path in returning]
    known = [bound.value for bound in bounds if bound is not None]
    if len(known) < len(bounds) or not known:
        return NoBound("not all paths were taken often enough")
    return NetworkBound(max(known), f"the largest bound of its {len(known)} paths, each measured")


def _of_stretches(profile: Profile, p: float, confidence: float, max_trips: int | None) -> Union[NetworkBound, NoBound]:
    """Return the longest sum of the bounds of stretches: a run is such a sum, and all hold at once by the sum of their doubts."""
    relevant = _that_return(profile)
    if not relevant:
        return NoBound("the network never returns")
    if not profile.even:
        return NoBound("not every run had the same chance to be timed inside; record it with every=1 (--every 1)")
    parts = len(relevant) + 1
    each_p, each_confidence = 1.0 - (1.0 - p) / parts, 1.0 - (1.0 - confidence) / parts
    times = {head: profile.stretch_times(head) for head in sorted(relevant)}
    rarest = min(times, key=lambda head: len(times[head]))
    if len(times[rarest]) < (needed := runs_needed(each_p, each_confidence)):
        where = profile.block_name(rarest)
        return NoBound(f"{len(times[rarest])} runs came through block {where}; {needed} must have")
    inputs, *bounds = (upper_bound(part, each_p, each_confidence) for part in (profile.input_times(), *times.values()))
    assert inputs is not None
    cost = {head: bound.value for head, bound in zip(times, bounds) if bound is not None}
    recursive = {head for head in relevant if profile.stretches[head].recursive}
    try:
        targets = {h: [t for t in profile.stretches[h].targets if t in relevant] for h in relevant}
        most = longest(targets, cost, _trips(profile, targets, max_trips), recursive)
    except NoLongest as error:
        return NoBound(str(error))
    if any(sum(cost[head] for head in profile.heads(path.key)) > most for path in profile.paths()):
        return NoBound("runs of the profile made more trips through a loop than it is said to make at most (max_loop_trips)")
    return NetworkBound(inputs.value + most, f"the longest way through its {len(relevant)} stretches between decisions, each measured")


def _trips(profile: Profile, targets: Mapping[int, Sequence[int]], max_trips: int | None) -> Trips:
    """Return how often loops of stretches come back: no more often than a loop of blocks around them, if that leads back to its header."""
    blocks = profile.metadata["blocks"]
    loops = []
    if any("trips" in block for block in blocks):
        graph = skeleton(profile.metadata)
        number = {block: k for k, block in enumerate(graph.blocks)}
        for loop in natural_loops(graph).loops:
            if (most := blocks[number[loop.header]].get("trips")) is not None:
                loops.append((number[loop.header], {number[b] for b in loop.body}, most))

    def trips(nodes: Collection[int], header: int) -> int | None:
        inside = {block for node in nodes for block in profile.stretches[node].blocks}
        known = [most for first, body, most in loops if inside <= body and not comes_back(nodes, header, first)]
        return min([*known, *([] if max_trips is None else [max_trips])], default=None)

    def comes_back(nodes: Collection[int], header: int, first: int) -> bool:
        """Tell whether some way from a node back to it does not come to the block ``first``."""
        clear = {node for node in nodes if first not in profile.stretches[node].blocks[1:]}
        seen: set[int] = set()
        todo = [header] if header in clear else []
        while todo:
            for target in targets[todo.pop()]:
                if target == header and target != first:
                    return True
                if target in clear and target != first and target not in seen:
                    seen.add(target)
                    todo.append(target)
        return False

    return trips


def _that_return(profile: Profile) -> set[int]:
    """Return the stretches from which a return can be reached."""
    found = {head for head, stretch in profile.stretches.items() if stretch.end == "return"}
    while True:
        more = {head for head, stretch in profile.stretches.items() if head not in found and found & set(stretch.targets)}
        if not more:
            return found
        found |= more
