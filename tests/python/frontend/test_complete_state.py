# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Complete state: whatever a path changes, the result is eager's on every path and in every call, or the program is refused."""

from __future__ import annotations

import copy
import importlib
import inspect

import programs_state_containers
import programs_state_iterators
import programs_state_models
import pytest
import torch
from differential import same
from torch import nn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import graph_initial, interpret
from dycl_tvm.hcfg.verify import verify

BASE = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 0.25]])
#: Calls in succession, by the factor of the input.
CALLS = [(1, -1, 0.3), (-1, 2, 2), (0.1, 0.2, -0.5), (5, 5, 5), (-3, -3, 0.7)]
#: State of arrays, and of generators, has no place in an artefact: it must not be left changed.
REFUSED = {
    **dict.fromkeys(("BNumpy", "BBytearray"), "of the model is left"),
    "BGenerator": "lives on between calls",
    # two lists become one in a rolled loop, and are changed after it
    "g_rebound_shared_later": "share on one path only",
}


def programs():
    for module in (programs_state_iterators, programs_state_containers, programs_state_models):
        for name, x in vars(module).items():
            if getattr(x, "__module__", None) != module.__name__ or name.startswith("_"):
                continue
            if inspect.isfunction(x) or (inspect.isclass(x) and issubclass(x, nn.Module)):
                yield pytest.param(module, name, id=name)


def make(module, name):
    """Return the program as it is at first: what it keeps in its module is made anew."""
    x = getattr(importlib.reload(module) if module is programs_state_models else module, name)
    return x().eval() if inspect.isclass(x) else x


def agrees(fresh):
    """Compare a staged program with eager, in several calls."""
    graph = stage(fresh(), (BASE,))
    verify(graph)
    for factors in CALLS:
        eager, state = fresh(), [graph_initial(v.initial) for v in graph.state]
        for factor in factors:
            with torch.no_grad():
                want = copy.deepcopy(eager(BASE * factor))
            got = interpret(graph, [BASE * factor], state)[0]
            assert same(want, got), (factors, factor, want, got)


@pytest.mark.parametrize(("module", "name"), list(programs()))
def test_right_on_every_path_and_in_every_call(module, name):
    if name in REFUSED:
        with pytest.raises(UnsupportedError, match=REFUSED[name]):
            stage(make(module, name), (BASE,))
    else:
        agrees(lambda: make(module, name))
