# Licensed under the Apache License, Version 2.0; see LICENSE.
"""State that one call leaves behind for the next: sequences of calls against eager."""

from __future__ import annotations

import copy

import pytest
import torch
from differential import check, same
from test_hunted import check_right
from torch import nn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import graph_initial, interpret
from dycl_tvm.hcfg.verify import verify


def check_calls(model, inputs, variables):
    """Compare a sequence of calls; the graph must have these state variables."""
    graph = stage(model, (inputs[0],))
    verify(graph)
    assert [v.name for v in graph.state] == variables
    eager = copy.deepcopy(model)
    state = [graph_initial(v.initial) for v in graph.state]
    for x in inputs:
        with torch.no_grad():
            want = eager(x.clone())
        result = interpret(graph, [x.clone()], state)
        assert same(want, result[0]), (want, result[0])


X = [torch.tensor([[a, a * 2]]) for a in (1.0, -2.0, 0.5, 3.0, -1.0, -0.1, 2.0)]


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.seen = {"large": 0, "mean": torch.zeros(1, 2)}
        self.register_buffer("total", torch.zeros(1, 2))
        self.hidden = torch.ones(1, 2)

    def forward(self, x):
        self.calls += 1
        if x.sum() > 1:
            self.seen["large"] += 1
            self.total += x
        self.seen["mean"] = self.total / self.calls
        self.hidden = self.hidden * 0.5 + x
        return self.hidden, self.calls, dict(self.seen)


def test_counters_hidden_state_and_buffers():
    check_calls(Counter().eval(), X, ["calls", "seen['large']", "seen['mean']", "total", "hidden"])


class Reset(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = None
        self.outputs = []

    def forward(self, x):
        self.hidden = torch.zeros(1, 2)
        self.outputs = []
        for _ in range(3):
            self.hidden = self.hidden + x
            self.outputs.append(self.hidden)
            if self.hidden.sum() > 5:
                break
        return self.hidden, self.outputs


def test_what_is_set_anew_at_each_call_is_no_state():
    check_calls(Reset().eval(), X, [])


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = None

    def forward(self, x):
        if self.hidden is None:
            self.hidden = torch.zeros(1, 2)
        self.hidden = self.hidden + x
        return self.hidden


def test_state_that_is_none_before_the_first_call():
    check_calls(Lazy().eval(), X, ["the kind of hidden", "hidden"])
    check(Lazy().eval(), [(x,) for x in X])


class Varying(nn.Module):
    """Its state is an attribute that comes to be and goes, a number, or a tensor; and one of two modules."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Tanh(), nn.ReLU()])
        self.kept = torch.ones(1, 2)

    def forward(self, x):
        kept = getattr(self, "kept", None)
        y = self.layers[0](x) if kept is None else x + kept
        if x.sum() > 5:
            self.layers[0], self.layers[1] = self.layers[1], self.layers[0]
            self.kept = x * 2
        elif x.sum() > 1:
            self.kept = 2.5
        elif hasattr(self, "kept"):
            del self.kept
        return y, self.layers[1](x)


def test_state_of_several_kinds():
    kinds = "the kind of layers._modules['1'], layers._modules['0'], kept"
    check_calls(Varying().eval(), [*X, *reversed(X)], [kinds, "kept"])  # the number is always the same
    check(Varying().eval(), [(x,) for x in X])


class Splitting(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = None

    def forward(self, x):
        y = x if self.parts is None else x + self.parts[0]
        self.parts = [x, y]
        return y


def test_state_that_is_none_and_then_a_list():
    check_calls(Splitting().eval(), X, ["the kind of parts", "parts[0]", "parts[1]"])


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.outputs = []

    def forward(self, x):
        self.outputs.append(x)
        return sum(self.outputs)


def test_a_list_that_grows_from_call_to_call_is_refused():
    with pytest.raises(UnsupportedError, match=r"`outputs`(.|\n)*build\(\.\.\., max_length=1000\)"):
        stage(Growing().eval(), (X[0],))


class KeepsWhatIsPicked(nn.Module):
    """Of another length after each call: as it is, or in the front of a tensor of fixed shape."""

    def __init__(self, last, count=None):
        super().__init__()
        self.last, self.count = last, count

    def forward(self, x):
        picked = x[x > 0]
        if self.count is None:
            y = x if self.last is None else x + self.last.sum()
            self.last = picked
        else:
            y = x + self.last[: self.count].sum()
            self.last[: len(picked)] = picked
            self.count = len(picked)
        return y


@pytest.mark.parametrize(("last", "count"), [(None, None), (torch.zeros(3), None), (torch.zeros(2), 0)])
def test_a_state_of_run_time_length(last, count):
    calls = [torch.tensor([[a, b]]) for a, b in ((1.0, 2.0), (-1.0, 3.0), (-1.0, -1.0), (2.0, 1.0))]
    model = KeepsWhatIsPicked(last, count).eval()
    eager, call = copy.deepcopy(model), stage(model, (calls[0],)).interpret()
    for x in calls:
        assert same(eager(x), call(x))


def test_staging_leaves_the_model_as_it_was():
    model = Counter().eval()
    stage(model, (X[0],))
    assert model.calls == 0 and model.seen["large"] == 0 and "forward" not in model.__dict__
    assert torch.equal(model.total, torch.zeros(1, 2)) and torch.equal(model.hidden, torch.ones(1, 2))


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.grid = torch.empty(0)

    def forward(self, x):
        if self.grid.shape != x.shape:
            self.grid = torch.arange(2.0).reshape(1, 2)
        return x * self.grid if x.sum() > 0 else self.grid


def test_a_cache_that_the_first_call_makes():
    check_calls(Cache(), X, ["the kind of grid", "grid", "grid"])
    model = Cache()
    model(X[0])
    check_calls(model, X, [])


NUMBERS_THAT_STAY = {
    "a cached property as a size": "@functools.cached_property\n    def pad(self): return 3 - 1\n"
    "    def forward(self, x):\n        return F.pad(x, (self.pad, 0)) if x.sum() > 0 else F.pad(x, (0, self.pad))",
    "a size that is kept": "n = None\n    def forward(self, x):\n        if self.n is None: self.n = x.shape[0]\n"
    "        return x.reshape(self.n, -1).flip(0) if x.sum() > 0 else x",
    "one number on each path": "n = None\n    def forward(self, x):\n        if self.n is None: self.n = 2 if x.sum() > 0 else 5\n"
    "        return x * self.n",
    "a number, and then others": "n = None\n    def forward(self, x):\n"
    "        self.n = 1 if self.n is None else self.n + 1\n        return x * self.n",
    "numbers that are equal": "n = None\n    def forward(self, x):\n"
    "        y = x if self.n is None else x * 2 if self.n is True else x * 3 if type(self.n) is float else x * 4\n"
    "        self.n = True if x.sum() > 1 else 1.0 if x.sum() > 0 else 0\n        return y",
}


@pytest.mark.parametrize("name", NUMBERS_THAT_STAY)
def test_a_number_that_every_call_leaves_is_known(name: str) -> None:
    check_right(f"import functools\nfrom torch.nn import functional as F\nclass Net(nn.Module):\n    {NUMBERS_THAT_STAY[name]}\n")


SET_UP_BY_A_FLAG = {
    "an attribute that is not there before": "ready = False\n    def forward(self, x):\n"
    "        if not self.ready: self.mean, self.ready = x.mean(0), True\n        return x - self.mean",
    "an item of what is None before": "size, table = 0, None\n    def forward(self, x):\n"
    "        if x.shape[0] > self.size: self.size, self.table = x.shape[0], x.cos()\n        return x * self.table[: x.shape[0]]",
    "a counter": "n = 0\n    def forward(self, x):\n        if self.n == 0: self.mean = x.mean(0)\n        self.n += 1\n"
    "        if self.n % 3 == 0: self.mean = self.mean * 2\n        return x - self.mean",
}


@pytest.mark.parametrize("name", SET_UP_BY_A_FLAG)
def test_what_a_first_call_makes_and_a_flag_tells(name: str) -> None:
    check_right(f"class Net(nn.Module):\n    {SET_UP_BY_A_FLAG[name]}\n")


def test_an_attribute_that_a_property_fails_to_give_is_no_error_of_the_programs():
    class Net(nn.Module):
        @property
        def kind(self):
            return self.count.no_such_name

        def forward(self, x):
            self.count = int(x.sum())
            return x * 2 if x.sum() > 0 else x * self.kind

    with pytest.raises(UnsupportedError):
        stage(Net(), (torch.ones(1, 2),))
