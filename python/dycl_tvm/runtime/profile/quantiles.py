# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Quantiles and distribution-free bounds on them, from order statistics.

The m-th largest of n independent measurements is above the p-quantile with the probability that at most n - m of them are below it, a
sum of a binomial distribution, whatever the distribution of the measurements is (S. S. Wilks, Determination of sample sizes for setting
tolerance limits, 1941). The load generator of MLPerf decides by the same sum when it has seen enough queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def quantile(ordered: Sequence[int], p: float) -> int:
    """Return the p-quantile of measurements in ascending order: the least that a part p of them does not exceed."""
    return ordered[min(len(ordered), max(1, math.ceil(p * len(ordered) - 1e-9))) - 1]


def at_most(successes: int, trials: int, chance: float) -> float:
    """Return the probability of at most so many successes in independent trials."""
    if successes >= trials:
        return 1.0
    if chance <= 0.0 or chance >= 1.0:
        return float(chance <= 0.0)
    total, log_odds = 0.0, math.log(chance) - math.log1p(-chance)
    log_term = trials * math.log1p(-chance)
    for k in range(successes + 1):
        total += math.exp(log_term)
        log_term += math.log((trials - k) / (k + 1)) + log_odds
    return min(1.0, total)


def runs_needed(p: float, confidence: float) -> int:
    """Return how many measurements there must be, so that the largest is a bound: the least n with p**n <= 1 - confidence."""
    return math.ceil(math.log(1.0 - confidence) / math.log(p) - 1e-9)


def allowed(trials: int, p: float, confidence: float) -> int:
    """Return how many of so many new measurements a bound on the p-quantile that holds lets exceed it, with this confidence, at most."""
    count = 0
    while at_most(count, trials, 1.0 - p) < confidence:
        count += 1
    return count


@dataclass(frozen=True)
class UpperBound:
    """At most a part ``1 - p`` of all runs takes longer than ``value`` nanoseconds, with ``confidence``: a probabilistic bound.

    ``left_out`` is how many of the ``count`` measurements were longer.
    """

    value: int
    p: float
    confidence: float
    count: int
    left_out: int


def upper_bound(ordered: Sequence[int], p: float, confidence: float) -> UpperBound | None:
    """Return the least order statistic that bounds the p-quantile with this confidence; None where the measurements are too few.

    Parameters
    ----------
    ordered : sequence of int
        Independent measurements in ascending order.
    p, confidence : float
        Between 0 and 1.
    """
    count = len(ordered)
    if count < runs_needed(p, confidence):
        return None
    left_out = 0
    while left_out + 1 < count and at_most(left_out + 1, count, 1.0 - p) <= 1.0 - confidence:
        left_out += 1
    return UpperBound(ordered[count - 1 - left_out], p, confidence, count, left_out)
