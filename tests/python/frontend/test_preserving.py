# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Control flow that does not change what a network computes, inserted into static networks: the result must stay the same.

The oracle is the untouched static network, not the rewritten one: so this also finds what eager and the compiler would get wrong alike.
Each rewriting wraps the layers of a network in control flow on run-time values.
"""

from __future__ import annotations

import pytest
import torch
from differential import leaves, same
from torch import nn

from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.passes import run_passes


# -- rewritings -------------------------------------------------------------------------------------------------------------
def both_sides_alike(layer, x):
    if x.sum() > 0.1:
        y = layer(x)
    else:
        y = layer(x)
    return y


def always_true(layer, x):
    if (x * x).sum() >= 0:
        return layer(x)
    raise RuntimeError("a sum of squares is negative")


def never_taken(layer, x):
    y = layer(x)
    if (y.abs() + 1).min() < 1:
        y = y * 0
        y = y + 100
    return y


def loop_that_runs_once(layer, x):
    todo = (x.abs().max() >= 0).long()
    while todo > 0:
        x = layer(x)
        todo = todo - 1
    return x


def range_of_one(layer, x):
    n = int((x.mean() == x.mean()).long())
    for _ in range(n):
        x = layer(x)
    return x


def identity_exit(layer, x):
    y = layer(x)
    if y.sum() == y.sum() + 1:
        return y
    for k in range(3):
        if y.max() > k:
            return y
    return y


def while_true_with_break(layer, x):
    count = 0
    while True:
        count += 1
        if count > 1 and x.sum() == x.sum():
            break
        x = layer(x)
        if x.dim() > 100:
            return None
    return x


def ternary_and_short_circuit(layer, x):
    flag = x.sum() > 0 or x.sum() <= 0
    return layer(x) if flag else torch.zeros_like(x)


def state_that_cancels(layer, x):
    box = {"y": x, "n": 0}
    if x.max() > x.min():
        box["n"] += 1
        box["y"] = box["y"] * 1
    else:
        box["n"] -= 1
    y = layer(box["y"])
    if box["n"] > 5:
        y = y - 1
    return y


def in_place_and_back(layer, x):
    y = layer(x).clone()
    if y.sum() > 0:
        y.neg_()
        y.neg_()
    else:
        view = y.view(-1)
        view *= 2
        y /= 2
    return y


def chosen_from_a_list(layer, x):
    k = int(x.argmax() % 3)
    return [layer, layer, layer][k](x)


def try_finally(layer, x):
    done = []
    try:
        if x.sum() > 0:
            return layer(x)
        y = layer(x)
    finally:
        done.append(1)
    return y if len(done) == 1 else None


REWRITINGS = [
    *(both_sides_alike, always_true, never_taken, loop_that_runs_once, range_of_one, identity_exit, while_true_with_break),
    *(ternary_and_short_circuit, state_that_cancels, in_place_and_back, chosen_from_a_list, try_finally),
]


# -- static networks --------------------------------------------------------------------------------------------------------
class Shaped(nn.Module):
    """Layers that keep the shape of what they get, so that every rewriting (a loop among them) can hold one."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return torch.relu(x + self.inner(x))


class Attention(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(n, n), nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, x):
        weights = torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2) / 2.0, -1)
        return weights @ self.v(x)


def mlp():
    return Shaped([nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.GELU()]), (2, 4)


def convolutional():
    conv = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))
    return Shaped([conv, nn.ReLU(), Residual(nn.Conv2d(3, 3, 1)), nn.MaxPool2d(3, 1, 1)]), (1, 3, 6, 6)


def transformer():
    return Shaped([Attention(4), nn.LayerNorm(4), Residual(nn.Linear(4, 4)), nn.Softmax(-1)]), (1, 3, 4)


NETWORKS = [mlp, convolutional, transformer]


class Rewritten(nn.Module):
    """The network with the rewritings around its layers, by turns."""

    def __init__(self, static, rewritings):
        super().__init__()
        self.static, self.rewritings = static, rewritings

    def forward(self, x):
        for i, layer in enumerate(self.static.layers):
            x = self.rewritings[i % len(self.rewritings)](layer, x)
        return x


def agree(static, rewritings, shape):
    """Check the staged rewriting, before and after the passes, against the static network."""
    static = static.eval()
    inputs = [torch.randn(shape) * scale for scale in (0.1, 1.0, 5.0) for _ in range(4)]
    inputs += [torch.zeros(shape), -torch.ones(shape)]
    graph = stage(Rewritten(static, rewritings).eval(), (inputs[0],))
    verify(graph)
    taken = set()
    for simplified in (False, True):
        if simplified:
            run_passes(graph)
            verify(graph)
        for x in inputs:
            with torch.no_grad():
                want = static(x.clone())
            got, path = interpret(graph, leaves([x.clone()]))
            taken.add(tuple(path))
            assert same(want, got)
    return taken


@pytest.mark.parametrize("network", NETWORKS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("rewriting", REWRITINGS, ids=lambda f: f.__name__)
def test_one_rewriting_around_every_layer(network, rewriting):
    static, shape = network()
    agree(static, [rewriting], shape)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("turn", range(0, len(REWRITINGS), 2))
def test_rewritings_by_turns(network, turn):
    static, shape = network()
    rotated = REWRITINGS[turn:] + REWRITINGS[:turn]
    assert len(agree(static, rotated[:4], shape)) >= 1


def nest(outer, inner):
    """Compose two rewritings: the inner one runs on a path of the outer one."""
    return lambda layer, x: outer(lambda v: inner(layer, v), x)


@pytest.mark.parametrize("outer", REWRITINGS[:8], ids=lambda f: f.__name__)
@pytest.mark.parametrize("inner", [both_sides_alike, loop_that_runs_once, identity_exit, in_place_and_back], ids=lambda f: f.__name__)
def test_rewritings_in_one_another(outer, inner):
    static, shape = mlp()
    agree(static, [nest(outer, inner)], shape)
