# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Quantiles and distribution-free bounds on them, from order statistics.

The m-th largest of n independent measurements is above the p-quantile with the probability that at most n - m of them are below it, a
sum of a binomial distribution, whatever the distribution of the measurements is (S. S. Wilks, Determination of sample sizes for setting
tolerance limits, 1941). The load generator of MLPerf decides by the same sum when it has seen enough queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile


def quantile(ordered: Sequence[int], p: float) -> int:
    """Return the p-quantile of measurements in ascending order: the least that a part p of them does not exceed."""
    return ordered[min(len(ordered), max(1, math.ceil(p * len(ordered) - 1e-9))) - 1]


def _at_most(trials: int, chance: float) -> Iterator[float]:
    """Yield the probabilities of at most 0, 1, 2, ... successes in independent trials."""
    total, log_odds = 0.0, math.log(chance) - math.log1p(-chance)
    log_term = trials * math.log1p(-chance)
    for k in range(trials):
        total = min(1.0, total + math.exp(log_term))
        yield total
        log_term += math.log((trials - k) / (k + 1)) + log_odds
    yield 1.0


def runs_needed(p: float, confidence: float) -> int:
    """Return how many measurements there must be, so that the largest is a bound: the least n with p**n <= 1 - confidence."""
    return math.ceil(math.log(1.0 - confidence) / math.log(p) - 1e-9)


def allowed(trials: int, p: float, confidence: float) -> int:
    """Return how many of so many new measurements a bound on the p-quantile that holds lets exceed it, with this confidence, at most."""
    return next(count for count, chance in enumerate(_at_most(trials, 1.0 - p)) if chance >= confidence)


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
    # As long as so many and one more are unlikely to be all that are above the quantile, so many can be left out.
    left_out = sum(1 for _ in takewhile(lambda chance: chance <= 1.0 - confidence, _at_most(count, 1.0 - p))) - 1
    return UpperBound(ordered[count - 1 - left_out], p, confidence, count, left_out)
