# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs of the kinds that were once compiled to something else without a word: they must be right, refused, or found by the check.

Each is a function that returns a fresh model; all take one float tensor of 2x3. The comments say what is
special about each group.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import functools
import itertools
import queue
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

PROGRAMS: dict[str, Callable[[], Any]] = {}


def program(make: Callable[[], Any]) -> Callable[[], Any]:
    """Add a program."""
    PROGRAMS[make.__name__] = make
    return make


def forward(function: Callable[..., Any]) -> Callable[[], Any]:
    """Add a program that is one function without state of its own."""
    PROGRAMS[function.__name__] = lambda: function
    return function


# -- state that cannot be undone, changed while another path waits ---------------------------------------------------------
@forward
def iterator_left_by_break(x):
    it = iter([x, x + 1, x + 2, x + 3])
    for v in it:
        if v.sum() > 3:
            break
    return len(list(it))


@forward
def zip_left_by_break(x):
    it = zip([x, x + 1, x + 2], [1, 2, 3])
    for v, n in it:
        if v.sum() > 3:
            break
    return len(list(it)), n


@forward
def enumerate_left_by_break(x):
    it = enumerate([x, x + 1, x + 2])
    for n, v in it:
        if v.sum() > 1:
            break
    return len(list(it)), n


@forward
def reversed_left_by_break(x):
    it = reversed([x, x + 1, x + 2])
    for v in it:
        if v.sum() > 4:
            break
    return len(list(it))


@forward
def chain_left_by_break(x):
    it = itertools.chain([x], [x + 1, x + 2])
    for v in it:
        if v.sum() > 2:
            break
    return [v.sum() for v in it]


@forward
def generator_left_by_break(x):
    def values():
        yield x
        yield x + 1
        yield x + 2

    it = values()
    for v in it:
        if v.sum() > 2:
            break
    return len(list(it))


@forward
def next_on_one_side(x):
    it = iter([1, 2, 3])
    if x.sum() > 0:
        next(it)
    return x * next(it)


@forward
def unpacked_iterator(x):
    it = iter([1, 2, 3, 4])
    for _ in range(3):
        next(it)
        if x.sum() > 0:
            break
    a, *b = it
    return a, len(b)


@forward
def splatted_iterator(x):
    it = iter([1, 2, 3])
    for _ in range(2):
        if x.sum() > 0:
            break
        next(it)
    return max(*it, 0, 0)


@forward
def membership_advances(x):
    it = iter([1.0, 2.0, 3.0])
    for _ in range(2):
        if x.sum() > 0:
            break
        2.0 in it  # noqa: B015
    return len(list(it))


@forward
def array_changed_before_return(x):
    a = np.zeros(2)

    def fill(z):
        if z.sum() > 0:
            a[0] = 1
            return z
        return z + 1

    y = fill(x)
    return y, float(a[0])


@forward
def bytearray_changed_on_one_side(x):
    b = bytearray(2)

    def fill(z):
        if z.sum() > 0:
            b[0] = 7
            return z
        return z - 1

    return fill(x), b[0]


@forward
def unsqueezed_after_break(x):
    y = x.clone()
    for _ in range(2):
        if x.sum() > 0:
            break
        y.unsqueeze_(0)
    return y.dim()


@forward
def generator_with_nonlocal(x):
    k = 0

    def count():
        nonlocal k
        while True:
            k += 1
            yield k

    it = count()
    next(it)
    if x.sum() > 0:
        next(it)
    return x * k


# -- the same across calls -------------------------------------------------------------------------------------------------
class _Counter(nn.Module):
    def __init__(self, ids):
        super().__init__()
        self.ids = ids

    def forward(self, x):
        return x * next(self.ids)


@program
def count_across_calls():
    return _Counter(itertools.count(1))


@program
def cycle_across_calls():
    return _Counter(itertools.cycle([1, 2, 3]))


@program
def iterator_across_calls():
    return _Counter(iter([1, 2, 3, 4, 5, 6]))


class _Array(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.a = make()

    def forward(self, x):
        self.a[0] += 1
        return x * int(self.a[0])


@program
def array_across_calls():
    return _Array(lambda: np.zeros(1))


@program
def bytearray_across_calls():
    return _Array(lambda: bytearray(1))


# -- cells, in a function that returns from a branch -----------------------------------------------------------------------
@forward
def cell_of_returning_function(x):
    k = 2.0

    def step(z):
        nonlocal k
        if z.sum() > 0:
            k = k + 1
            return z * k
        return z - k

    a = step(x)
    b = step(-a)
    return a, b, k


@forward
def cell_set_before_return(x):
    done = False

    def step(z):
        nonlocal done
        if z.sum() > 1:
            done = True
            return z
        return z + 1

    y = step(x)
    return y * 2 if done else y


@forward
def cell_holds_tensor(x):
    best = x

    def step(z):
        nonlocal best
        if z.max() > best.max():
            best = z
            return 1
        return 0

    n = step(x * 2)
    n = n + step(x - 1)
    return best, n


# -- library code that changes state below the journal ---------------------------------------------------------------------
@forward
def queue_put(x):
    q = queue.Queue()
    if x.sum() > 0:
        q.put(1)
    return x * q.qsize()


@forward
def user_list(x):
    found = collections.UserList()
    if x.sum() > 0:
        found.append(1)
    return x, len(found)


@forward
def user_dict(x):
    found = collections.UserDict()
    if x.sum() > 0:
        found["a"] = 1
    return x, len(found)


@forward
def chain_map(x):
    found = collections.ChainMap({}, {"a": 1})
    if x.sum() > 0:
        found["a"] = 2
    return x * found["a"]


_VARIABLE = contextvars.ContextVar("variable", default=1)


@forward
def context_variable(x):
    if x.sum() > 0:
        _VARIABLE.set(3)
    else:
        _VARIABLE.set(2)
    return x * _VARIABLE.get()


@forward
def exit_stack(x):
    log = []
    with contextlib.ExitStack() as stack:
        if x.sum() > 0:
            stack.callback(log.append, 1)
    return x, len(log)


@program
def cached_function():
    calls = []

    @functools.lru_cache
    def f(n):
        calls.append(n)
        return n + 1

    def run(x):
        if x.sum() > 0:
            f(1)
        f(2)
        return x, len(calls)

    return run


@forward
def default_dtype(x):
    if x.sum() > 0:
        torch.set_default_dtype(torch.float64)
    y = torch.ones(2)
    torch.set_default_dtype(torch.float32)
    return y


class _Modes(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Identity()
        self.layers = nn.ModuleList([nn.Identity()])
        self.table = nn.ParameterDict()


@program
def train_on_one_side():
    class Net(_Modes):
        def forward(self, x):
            if x.sum() > 0:
                self.drop.train()
            else:
                self.drop.eval()
            return x * 2 if self.drop.training else x

    return Net().eval()


@program
def module_list_item():
    class Net(_Modes):
        def forward(self, x):
            if x.sum() > 0:
                self.layers[0] = nn.ReLU()
            return self.layers[0](x - 1)

    return Net().eval()


@program
def module_list_append():
    class Net(_Modes):
        def forward(self, x):
            if x.sum() > 0:
                self.layers.append(nn.Identity())
            return x * len(self.layers)

    return Net().eval()


@program
def hook_registered_on_one_side():
    class Net(_Modes):
        def forward(self, x):
            handle = None
            if x.sum() > 0:
                handle = self.drop.register_forward_hook(lambda m, a, out: out + 1)
            y = self.drop(x)
            if handle is not None:
                handle.remove()
            return y

    return Net().eval()


@program
def buffer_registered():
    class Net(_Modes):
        def forward(self, x):
            if x.sum() > 0:
                self.register_buffer("seen", x.clone())
            return self.seen if hasattr(self, "seen") else x * 0

    return Net().eval()


@program
def parameter_dict():
    class Net(_Modes):
        def forward(self, x):
            if x.sum() > 0:
                self.table["k"] = nn.Parameter(torch.ones(1), requires_grad=False)
            return x, len(self.table)

    return Net().eval()


# -- the user's functions run natively when a library calls them -----------------------------------------------------------
@forward
def map_with_effect(x):
    log = []

    def f(v):
        log.append(1)
        return v + 1

    if x.sum() > 0:
        y = list(map(f, [x]))[0]
    else:
        y = x
    return y, len(log)


@forward
def reduce_with_type_question(x):
    total = functools.reduce(lambda a, b: a + (1 if isinstance(b, float) else 2), [x.sum().item(), x.max().item()], 0)
    return x * total


@forward
def filter_is_not_none(x):
    y = x if x.sum() > 0 else None
    return len(list(filter(lambda v: v is not None, [y, x])))


@forward
def sorted_by_key(x):
    log = []

    def key(n):
        log.append(n)
        return -n

    if x.sum() > 0:
        order = sorted([1, 2], key=key)
    else:
        order = [1, 2]
    return x * order[0], len(log)


@forward
def accumulate_with_effect(x):
    log = []

    def add(a, b):
        if x.sum() > 0:
            log.append(b)
        return a + b

    total = list(itertools.accumulate([1, 2, 3], add))
    return x * total[-1], len(log)


@forward
def default_factory_with_effect(x):
    made = []

    def factory():
        made.append(1)
        return 2

    d = collections.defaultdict(factory)
    if x.sum() > 0:
        d["a"]
    return x * d["a"], len(made)


@forward
def context_manager_body(x):
    log = []

    @contextlib.contextmanager
    def scope():
        log.append(1)
        yield
        log.append(2)

    if x.sum() > 0:
        with scope():
            x = x + 1
    return x, len(log)


@forward
def context_manager_with_branch(x):
    state = {"k": 1}

    @contextlib.contextmanager
    def scope():
        if x.sum() > 0:
            state["k"] = 3
        yield
        state["k"] += 1

    with scope():
        y = x * state["k"]
    return y, state["k"]


@program
def hook_inside_sequential():
    log = []
    net = nn.Sequential(nn.Identity(), nn.Identity())

    def hook(module, args, out):
        if out.sum() > 0:
            log.append(1)
        return out * (1 + len(log))

    net[0].register_forward_hook(hook)
    return net


@forward
def module_apply(x):
    log = []
    net = nn.Sequential(nn.ReLU(), nn.ReLU())
    if x.sum() > 0:
        net.apply(lambda m: log.append(1))
    return x * (1 + len(log))


class _Copied:
    def __init__(self, log):
        self.log = log

    def __copy__(self):
        self.log.append(1)
        return self


@forward
def copy_with_effect(x):
    log = []
    thing = _Copied(log)
    if x.sum() > 0:
        copy.copy(thing)
    return x, len(log)
