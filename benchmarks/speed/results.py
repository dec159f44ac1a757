# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What was measured, in a JSON file that grows network by network, and the figures that follow from it."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Networks whose time is that of small 3x3 convolutions, by blocks with residuals.
RESNET_LIKE = ("sdn_resnet56", "sdn_wideresnet32_4", "skipnet38_rnn", "skipnet38_ff", "blockdrop_resnet110")
#: How many times as fast as the fastest peer: each network, those like ResNet, and the geometric mean.
AIM, RESNET_AIM, MEAN_AIM = 1.0, 1.7, 1.5


def aim_of(network: str) -> float:
    """Return how many times as fast as the fastest peer a network is meant to be."""
    return RESNET_AIM if network in RESNET_LIKE else AIM


class Results:
    """The file of results; each change is written at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def section(self, name: str) -> dict[str, Any]:
        """Return a part of the results, such as the networks."""
        found: dict[str, Any] = self.data.setdefault(name, {})
        return found

    def save(self) -> None:
        """Write the file; a process that is ended meanwhile leaves the old one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".part")
        draft.write_text(json.dumps(self.data, indent=1))
        os.replace(draft, self.path)


@dataclass(frozen=True)
class Time:
    """Median and quartiles over the rounds, in nanoseconds."""

    median: float
    low: float
    high: float


def times(record: dict[str, Any], weights: Sequence[int], inputs: Iterable[int] | None = None) -> Time | None:
    """Return the mean over the inputs, weighted, of one contender on one network; the quartiles are those over the rounds.

    Parameters
    ----------
    record : dict
        Of the contender: ``Measured.to_json()``.
    weights : sequence of int
        Of each input.
    inputs : iterable of int, optional
        Only these; by default all that the contender ran. None is returned if there is none.
    """
    keys = [k for k in (map(int, record["ns"]) if inputs is None else inputs) if record["ns"].get(str(k))]
    if not keys:
        return None
    rounds = min(len(record["ns"][str(k)]) for k in keys)
    total = sum(weights[k] for k in keys)
    means = sorted(sum(weights[k] * record["ns"][str(k)][r] for k in keys) / total for r in range(rounds))
    if rounds < 4:
        return Time(statistics.median(means), means[0], means[-1])
    low, median, high = statistics.quantiles(means, n=4, method="inclusive")
    return Time(median, low, high)


def speedup(network: dict[str, Any], of: str, over: str) -> float | None:
    """Return how many times as fast one contender is as another, on the inputs that both ran; None if there are none."""
    records, weights = network["contenders"], network["weights"]
    if of not in records or over not in records:
        return None
    common = [k for k in range(len(weights)) if records[of]["ns"].get(str(k)) and records[over]["ns"].get(str(k))]
    mine, theirs = times(records[of], weights, common), times(records[over], weights, common)
    return None if mine is None or theirs is None else theirs.median / mine.median


def fastest_peer(network: dict[str, Any], of: str = "ours") -> tuple[str, float] | None:
    """Return the peer that is hardest to beat, and how many times as fast ``of`` is."""
    found = [(ratio, name) for name in network["contenders"] if name != of and (ratio := speedup(network, of, name)) is not None]
    return (min(found)[1], min(found)[0]) if found else None


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))
