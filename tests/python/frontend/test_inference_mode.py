# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``torch.inference_mode``: inside the forward, around it, and around the build."""

from __future__ import annotations

import pytest
import torch
from differential import check
from torch import nn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage

X = [(torch.tensor([a, -0.5, 2.0]),) for a in (0.5, -3.0)]


class Net(nn.Module):
    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.p, self.linear, self.how = nn.Parameter(torch.randn(2, 3)), nn.Linear(3, 3), how
        self.register_buffer("sum", torch.zeros(3))

    def forward(self, x):
        return self.how(self, x)


@torch.inference_mode()
def views_of_weights(net, x):
    first, second = net.p
    y = net.p[None].expand(2, 2, 3).sum() + net.linear(x) * first + second
    return y if y.sum() > 0 else -y


@torch.inference_mode
def state(net, x):
    net.sum += x
    for row in net.p.t().reshape(2, 3):
        x = x - row if x.sum() > 0 else x + net.sum.view(3, 1).squeeze()
    return x


def part_of_it(net, x):
    with torch.inference_mode():
        y = x.clone()
        y[0] = net.p[0].chunk(3)[1]
        if y.sum() > 0:
            y = y * 2
        with torch.inference_mode(False):
            z = net.p[1].view(3)
    return y + 1 + z


@torch.inference_mode()
def views_returned(net, x):
    return x[x > 0].sum() + net.p, torch.split(x, 1), x.view(3).unsqueeze(0), torch.is_inference_mode_enabled()


@pytest.mark.parametrize("around", [False, True], ids=["plain", "built_in_it"])
@pytest.mark.parametrize("how", [views_of_weights, state, part_of_it, views_returned])
def test_inference_mode(how, around):
    with torch.inference_mode(around):
        check(Net(how), X, paths=1)


def test_whether_a_tensor_was_made_in_it_is_refused():
    @torch.inference_mode()
    def asks(x):
        return (x * 2).is_inference(), x

    with pytest.raises(UnsupportedError, match="whether inference mode made it"):
        stage(asks, X[0])
