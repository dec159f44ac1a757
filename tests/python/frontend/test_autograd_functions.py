# Licensed under the Apache License, Version 2.0; see LICENSE.
"""`torch.autograd.Function`: its forward is the program's, and PyTorch makes the context that it is given anew at each call."""

from __future__ import annotations

import torch
from differential import check

X = [(torch.full((3,), v),) for v in (-2.0, 0.5, 3.0)]


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, most):
        ctx.save_for_backward(x)
        ctx.most, ctx.times = most, 0
        return x * 1.5 if x.sum() < most else x + 0.5

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Apart(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.clamp(min=0) if x[0] > 1 else x.abs() * 0.1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shape = output.shape


def test_in_a_rolled_loop():
    def f(x):
        n = 0
        while x.sum() < 40:
            x, n = Scaled.apply(x, 9.0).abs(), n + 1
        return x, n

    check(f, X, blocks=14)


def test_in_branches():
    check(lambda x: Apart.apply(x) if x.sum() > -1 else Scaled.apply(x, 1.0), X, paths=3)
