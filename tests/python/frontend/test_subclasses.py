# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Classes that are found by asking another for those that derive from it: nothing else of the program leads to them."""

from __future__ import annotations

import pytest
import torch
from differential import same, stage

from dycl_tvm.errors import StateError


class Backend:
    calls = 0


def _backends():
    """Define two classes where no name of this module leads to them."""

    class Slow(Backend):
        calls = 0
        kind = None

    class Fast(Backend):
        calls, kind = 0, torch.Tensor
        seen = []

        def scale(self, x):
            return x * 2 if x.sum() > 0 else -x

    return [Slow, Fast]


KEPT = _backends()
FOUND: dict[object, object] = {}


def counts(x):
    fast = Backend.__subclasses__()[1]
    fast.calls += 1
    return x * fast.calls


def counts_by_another_way(x):
    for cls in type.__subclasses__(Backend):
        if cls.kind is not None:
            cls.calls = cls.calls + 2
            x = x * cls.calls
    return x


def looks_for_the_right_one(x):
    """A library finds out in its first call which of its classes is for tensors, and keeps that."""
    if type(x) not in FOUND:
        for cls in Backend.__subclasses__():
            if cls.kind is not None and isinstance(x, cls.kind):
                FOUND[type(x)] = cls()
    return FOUND[type(x)].scale(x)


def appends(x):
    Backend.__subclasses__()[1].seen.append(1)
    return x * len(Backend.__subclasses__()[1].seen)


@pytest.mark.parametrize("program", [counts, counts_by_another_way, looks_for_the_right_one], ids=lambda f: f.__name__)
def test_what_calls_leave_in_them_is_state(program):
    inputs = [torch.ones(2), -torch.ones(2), torch.full((2,), 3.0)]

    def reset():
        FOUND.clear()
        KEPT[1].calls = 0

    reset()
    call = stage(program, (inputs[0],)).interpret()
    got = [call(x) for x in inputs]
    reset()
    assert all(same(program(x), y) for x, y in zip(inputs, got))
    reset()


def test_a_list_in_them_that_grows_is_refused():
    with pytest.raises(StateError, match=r"Fast\.seen"):
        stage(appends, (torch.ones(2),))
