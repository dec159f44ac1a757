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
from itertools import pairwise, takewhile

from dycl_tvm.errors import UsageError


def quantile(ordered: Sequence[int], p: float) -> int:
    """Return the p-quantile of measurements in ascending order: the least that a part p of them does not exceed."""
    return ordered[min(len(ordered), max(1, math.ceil(p * len(ordered) - 1e-9))) - 1]


def _at_most(trials: int, p: float) -> Iterator[float]:
    """Yield the probabilities that at most 0, 1, 2, ... of independent measurements are above the p-quantile."""
    total, log_odds = 0.0, math.log1p(-p) - math.log(p)
    log_term = trials * math.log(p)
    for k in range(trials):
        total = min(1.0, total + math.exp(log_term))
        yield total
        log_term += math.log((trials - k) / (k + 1)) + log_odds
    yield 1.0


def clustering(times: Sequence[int], p: float) -> float | None:
    """Return the part of the slow runs, those above the p-quantile, that follow a slow run at once; None where they are too few.

    Of independent runs that is about ``1 - p``. Bounds suppose independence: where slow runs come together, each says less.

    Parameters
    ----------
    times : sequence of int
        In the order in which they were measured.
    """
    limit = quantile(sorted(times), p) if times else 0
    slow = [time > limit for time in times]
    count = sum(slow)
    return sum(one and before for before, one in pairwise(slow)) / count if count >= 10 else None


def runs_needed(p: float, confidence: float) -> int:
    """Return how many measurements there must be, so that the largest is a bound: the least n with p**n <= 1 - confidence."""
    for name, value in (("p", p), ("confidence", confidence)):
        if not 0.0 < value < 1.0:
            raise UsageError(f"{name} is to lie between 0 and 1, got {value}")
    return max(1, math.ceil(math.log1p(-confidence) / math.log(p) - 1e-9))


def allowed(trials: int, p: float, confidence: float) -> int:
    """Return how many of so many new measurements a bound on the p-quantile that holds lets exceed it, with this confidence, at most."""
    return next(count for count, chance in enumerate(_at_most(trials, p)) if chance >= confidence)


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
    unlikely = sum(1 for _ in takewhile(lambda chance: chance <= 1.0 - confidence, _at_most(count, p)))
    left_out = max(unlikely, 1) - 1  # rounding must not say otherwise than runs_needed
    return UpperBound(ordered[count - 1 - left_out], p, confidence, count, left_out)
