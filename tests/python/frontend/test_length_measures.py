# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Losses, norms, covariances and integrals of tensors whose length is known only at run time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from differential import check, stage
from test_length_functions import INPUTS, columns, rows, some

from dycl_tvm.errors import UnsupportedError

REDUCTIONS = ("none", "mean", "sum")
INF = float("inf")


def kinds(x):
    return (some(x) > 1).long() + (some(x) > 2).long()


def element_by_element(x):
    y, m = some(x), rows(x)
    return [
        (
            *(F.mse_loss(y, y * 0.3, reduction=r), F.l1_loss(m, m * 2, reduction=r), F.smooth_l1_loss(y, y * 0.3, reduction=r, beta=0.5)),
            *(F.huber_loss(y, y * 3, reduction=r, delta=2.0), F.soft_margin_loss(y, y.sign(), reduction=r)),
            F.binary_cross_entropy(y.nan_to_num(1, 1).clamp(0.1, 0.9), (y > 1).float(), reduction=r),
            F.binary_cross_entropy_with_logits(m, (m > 0).float(), reduction=r, pos_weight=torch.tensor([1.0, 2.0, 3.0])),
            *(F.kl_div(y, y.exp(), reduction=r), F.poisson_nll_loss(y, y * 2, reduction=r)),
        )
        for r in REDUCTIONS
    ] + [F.kl_div(m, m.exp(), reduction="batchmean")]


def by_classes(x):
    m, target, weight = rows(x), kinds(x), torch.tensor([0.5, 1.0, 2.0])
    return [
        (
            *(F.cross_entropy(m, target, reduction=r), F.cross_entropy(m, target, weight, reduction=r, ignore_index=1)),
            *(F.cross_entropy(m, target, weight, label_smoothing=0.1, reduction=r), F.nll_loss(m, target, reduction=r)),
            F.cross_entropy(columns(x)[None], target[None], weight, reduction=r),
            F.cross_entropy(torch.stack([columns(x)] * 2, 2)[None], torch.stack([target] * 2, 1)[None], reduction=r),
        )
        for r in REDUCTIONS
    ]


def norms(x):
    y, m = some(x), rows(x)
    return y.norm(p=1), y.norm(p=3), torch.linalg.vector_norm(m, 2, 0), m.norm(p=INF, dim=1), m.norm(p=-INF, dim=1), y.norm(p=0)


def largest(x):
    return some(x).norm(p=INF), torch.linalg.vector_norm(rows(x), INF), torch.linalg.vector_norm(columns(x), INF, 1)


def least(x):
    return some(x).norm(p=-INF), torch.linalg.vector_norm(rows(x), -2), torch.linalg.vector_norm(columns(x), -INF, 1, True)


def covariances(x):
    y, m = some(x), columns(x)
    return (
        torch.cov(y),
        y.cov(correction=0),
        torch.cov(m),
        torch.cov(m, correction=2),
        torch.corrcoef(m),
        torch.corrcoef(y),
        torch.cov(rows(x)),
    )


def integrals(x):
    y, m, n = some(x), rows(x), columns(x)
    return (
        *(torch.trapezoid(y), torch.trapezoid(y, dx=0.1), torch.trapezoid(m, dim=0), torch.trapezoid(m), torch.trapezoid(n, dx=2)),
        *(torch.trapezoid(y, y.cumsum(0)), torch.trapz(m, y, dim=0), torch.trapezoid(n, y), torch.trapezoid(n, n * n)),
        *(torch.cumulative_trapezoid(y), torch.cumulative_trapezoid(m, y, dim=0), torch.cumulative_trapezoid(n, dx=0.5)),
    )


@pytest.mark.parametrize("program", [element_by_element, by_classes, norms, largest, least, covariances, integrals])
def test_right(program):
    check(program, INPUTS)


def test_a_class_that_there_is_not_is_an_error():
    def program(x):
        return F.cross_entropy(rows(x), kinds(x) * 2)

    check(program, INPUTS)


REFUSED = {
    "weights of observations": (lambda x: torch.cov(some(x), aweights=some(x)), "cov"),
    "classes of a number of the run": (lambda x: F.cross_entropy(columns(x), torch.tensor([0, 0, 0])), "cross_entropy"),
    "probabilities of classes": (lambda x: F.cross_entropy(rows(x), rows(x)), "cross_entropy"),
    "losses of whole numbers": (lambda x: F.mse_loss(kinds(x), kinds(x)), "mse_loss"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    program, message = REFUSED[name]
    with pytest.raises(UnsupportedError, match=message):
        stage(program, INPUTS[0])
