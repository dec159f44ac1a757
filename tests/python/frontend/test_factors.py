# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Numbers of the run that multiply an operand of an operator: ``alpha`` and ``value``."""

from __future__ import annotations

import pytest
import torch
from differential import check, stage

from dycl_tvm.errors import UnsupportedError

X = [(torch.tensor([[a, b]]),) for a in (-2.0, -0.3, 0.5) for b in (-1.0, 0.2, 2.0)]


def test_run_time_factors_of_operators():
    def steps(x):
        rate, n = 1 / (x.abs().sum().item() + 1), int(x.sum())
        y = x.clone().add_(x * 2, alpha=-rate)
        return (
            torch.add(y, x, alpha=rate),
            x.double().sub(x, alpha=rate),
            x.sum().add(x.max(), alpha=rate),
            torch.addcmul(x, y, y, value=rate),
            x.addcdiv_(y, y.abs() + 1, value=-rate),
            torch.addr(torch.eye(2), x[0], y[0], alpha=-rate),
            x.long().add(x.long(), alpha=n),
            torch.add(x, x.long(), alpha=n),
        )

    check(steps, X)

    def descent(x):
        trips = 0
        while x.abs().max() > 0.3 and trips < 9:
            x, trips = x.add(x, alpha=-0.1 - float(x.abs().max()) / 10), trips + 1
        return x, trips

    check(descent, X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.addmm(x, x.T, x, alpha=x.sum().item()),  # a factor of zero would leave out what is NaN
        lambda x: x.add(x.double().sum(), alpha=x.sum().item()),
    ],
)
def test_other_run_time_factors_are_refused(function):
    with pytest.raises(UnsupportedError, match="a number fixed at build time"):
        stage(function, X[0])
