# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a tensor is beside its elements (a parameter, a buffer, one that requires gradients), where that depends on the path or the call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from differential import check, same, stage
from torch import nn

from dycl_tvm.errors import UnsupportedError

CALLS = [(torch.ones(3),), (-torch.ones(3),)]


class Model(nn.Module):
    """A model with two parameters and a buffer, that runs a function of itself."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((3,), 2.0))
        self.b = nn.Buffer(torch.ones(3))
        self.function = function
        self.kept = {"first": torch.zeros(3), "none": None}

    def forward(self, x):
        return self.function(self, x)


def _picked(ask):
    def function(model, x):
        y = model.w if x.sum() > 0 else x
        return ask(y), y * 2

    return function


def _stored(y):
    module = nn.Module()
    module.y = y
    return len(list(module.parameters()))


@pytest.mark.parametrize(
    "ask",
    [
        lambda y: y.requires_grad,
        lambda y: isinstance(y, nn.Parameter),
        lambda y: type(y) is nn.Parameter,
        lambda y: type(y).__name__,
        lambda y: y.__class__ is torch.Tensor,
        lambda y: (y * 2).requires_grad,
        _stored,
    ],
)
def test_a_parameter_on_one_path(ask):
    check(Model(_picked(ask)), CALLS, paths=2)


@pytest.mark.parametrize("ask", [lambda y: isinstance(y, torch.Tensor), lambda y: (y.is_leaf, y.grad is None)])
def test_what_both_are_parts_no_paths(ask):
    assert len(check(Model(_picked(ask)), CALLS, paths=2).blocks) == 4


def test_parameters_on_both_paths():
    def function(model, x):
        y = model.w if x.sum() > 0 else model.v
        return y.requires_grad, isinstance(y, nn.Parameter), type(y) is nn.Parameter, y * 2

    assert len(check(Model(function), CALLS, paths=2).blocks) == 4


def _view_of_a_view(model, x):
    y = (model.w if x.sum() > 0 else model.v)[:2]
    return y if x[0] > 0 else x[:2]


@pytest.mark.parametrize("view", [lambda y: y[:2], lambda y: y.unsqueeze(0), lambda y: y.clone()[:2]])
@pytest.mark.parametrize(
    "pick", [lambda model, x: model.w if x.sum() > 0 else x, lambda model, x: model.w if x.sum() > 0 else model.v, _view_of_a_view]
)
def test_gradients_of_views_are_those_of_the_tensor(pick, view):
    """Eager gives a view of a parameter gradients even where none are computed."""
    with torch.no_grad():
        check(Model(lambda model, x: (view(pick(model, x)).requires_grad, x * 2)), CALLS)


def test_gradients_that_one_path_asks_for():
    def function(model, x):
        y = x.clone()
        if x.sum() > 0:
            y.requires_grad_()
        return y * 2

    with torch.no_grad():
        check(Model(function), CALLS, paths=2)


def test_a_buffer_on_one_path():
    check(Model(lambda model, x: isinstance(model.b if x.sum() > 0 else x, nn.Buffer)), CALLS, paths=2)


def test_a_loop_that_begins_with_a_parameter():
    def function(model, x):
        y, n = model.w, 0
        while y.sum() < 20 - x.sum():
            n += isinstance(y, nn.Parameter)
            y = y * 2
        return y, n, y.requires_grad

    with torch.no_grad():
        check(Model(function), CALLS)


def test_a_loop_that_comes_to_a_parameter():
    def function(model, x):
        y, n = x, 0
        while n < 3 + x.sum():
            n += 1 + isinstance(y, nn.Parameter)
            y = model.w if y.sum() < 0 else model.v
        return y, n

    with pytest.raises(UnsupportedError, match="the class of one of several objects"):
        stage(Model(function), CALLS[0])


def _calls(model_of, ask):
    def function(model, x):
        found = ask(model.kept)
        model_of(model, x)
        return found

    eager, staged = Model(function), stage(Model(function), CALLS[0]).interpret()
    return [(eager(*CALLS[0]), staged(*CALLS[0])) for _ in range(3)]


def test_a_parameter_that_is_kept():
    def keep(model, x):
        model.kept["none"] = model.w

    for eager, staged in _calls(keep, lambda kept: (isinstance(kept["none"], nn.Parameter), kept["none"] is not None and kept["none"] * 2)):
        assert same(eager, staged)


@pytest.mark.parametrize("ask", [lambda y: y.requires_grad, lambda y: isinstance(y, nn.Parameter), type])
def test_a_parameter_that_is_kept_in_the_place_of_a_tensor(ask):
    def keep(model, x):
        model.kept["first"] = model.w

    with pytest.raises(UnsupportedError, match="changes from call to call"):
        _calls(keep, lambda kept: str(ask(kept["first"])))


def test_a_role_that_changes():
    def function(model, x):
        y = x.detach().requires_grad_() if x.sum() > 0 else x
        return y.requires_grad

    with pytest.raises(UnsupportedError, match="changes from call to call or in the forward"):
        stage(Model(function), CALLS[0])
