# Licensed under the Apache License, Version 2.0; see LICENSE.
"""More programs of :mod:`silently_wrong`: identity, sharing, results, and state that outlives a call."""

from __future__ import annotations

import collections
import functools
import types

import torch
from silently_wrong import forward, program
from torch import nn


# -- identity and layout of a joined value ---------------------------------------------------------------------------------
@forward
def joined_is_not_the_argument(x):
    def clip(z):
        if z.sum() > 2:
            return z * 0.5
        return z

    y = clip(x)
    return y + 10 if y is not x else y


@forward
def joined_lists_identity(x):
    a, b = [1], [1]
    c = a if x.sum() > 0 else b
    return x * 2 if c is a else x


@forward
def id_of_joined(x):
    y = x + 1
    z = y if x.sum() > 0 else x * 2
    return x * 3 if id(z) == id(y) else x


@forward
def cache_keyed_by_tensors(x):
    y = x + 1
    cache = {y: 1}
    z = y if x.sum() > 0 else x + 2
    return x * (2 if z in cache else 3)


@forward
def max_is_first(x):
    a, b = x.sum(), x.max()
    return x * 2 if max(a, b) is a else x


@forward
def contiguity_of_joined(x):
    y = x.t() if x.sum() > 0 else x.t().contiguous()
    return x * 2 if y.is_contiguous() else x


@forward
def stride_of_joined(x):
    y = x.t().contiguous().t() if x.sum() > 0 else x.clone()
    return x * y.stride()[0]


@forward
def reshape_view_or_copy(x):
    y = x.clone()
    z = y.t() if x.sum() > 0 else y.reshape(3, 2)
    w = z.reshape(-1)
    w.add_(1)
    return y


@forward
def version_of_joined(x):
    y = x.clone()
    if x.sum() > 0:
        y.add_(1)
    return x * y._version


# -- a loop's header and who shares its containers -------------------------------------------------------------------------
@forward
def shared_list_in_loop(x):
    a = [x]
    b = a
    while a[0].sum() < 10:
        a[0] = a[0] + 1
        a = a
    return b[0]


@forward
def shared_dict_in_loop(x):
    a = {"v": x}
    keep = [a]
    while a["v"].sum() < 10:
        a["v"] = a["v"] + 1
        a = keep[0]
    return keep[0]["v"]


# -- containers saved without all their state ------------------------------------------------------------------------------
@forward
def bounded_deque(x):
    d = collections.deque([1, 2], maxlen=2)
    if x.sum() > 0:
        d.append(3)
    else:
        d.append(4)
    d.append(5)
    return x, len(d)


@forward
def order_of_ordered_dict(x):
    d = collections.OrderedDict(a=1, b=2)
    if x.sum() > 0:
        d.move_to_end("a")
    return x * list(d.values())[0]


@forward
def keys_one_and_true(x):
    d = {1: 5}
    if x.sum() > 0:
        d[True] = 6
    return x * d[1], [type(k).__name__ for k in d]


# -- one memory, two places ------------------------------------------------------------------------------------------------
@forward
def attribute_and_dict(x):
    o = types.SimpleNamespace(h=x)
    if x.sum() > 0:
        o.h = x + 1
    else:
        o.__dict__["h"] = x * 5
    return o.h


# -- state that outlives a call --------------------------------------------------------------------------------------------
@program
def list_on_base_class():
    class Base(nn.Module):
        seen = []

    class Net(Base):
        def forward(self, x):
            self.seen.append(1)
            return x * len(self.seen)

    return Net()


@program
def list_in_slots():
    class Box:
        __slots__ = ("items",)

    box = Box()
    box.items = []

    def run(x):
        box.items.append(1)
        return x * len(box.items)

    return run


@program
def namespace_counter():
    state = types.SimpleNamespace(n=0)

    def run(x):
        state.n += 1
        return x * state.n

    return run


@program
def partial_with_list():
    def run(log, x):
        log.append(1)
        return x * len(log)

    return functools.partial(run, [])


_N = 0


@forward
def global_counter(x):
    global _N
    _N += 1
    return x * _N


@forward
def counter_by_globals(x):
    globals()["_N"] += 1
    return x * globals()["_N"]


_MODULE = types.ModuleType("settings")
_MODULE.N = 0


@forward
def counter_in_another_module(x):
    _MODULE.N += 1
    return x * _MODULE.N


# -- aliases between tensors and between calls -----------------------------------------------------------------------------
class _Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(2, 3))
        self.rows = list(self.k.unbind(0))
        self.h = None

    def forward(self, x):
        self.rows[0].add_(x[0])
        return self.k * 1


@program
def rows_of_a_buffer():
    return _Rows()


@program
def alias_kept_for_the_next_call():
    class Net(_Rows):
        def forward(self, x):
            if self.h is None:
                self.h = self.k
            self.h.add_(x)
            return self.k * 1

    return Net()


# -- results in place that eager refuses -----------------------------------------------------------------------------------
@forward
def whole_numbers_minus_a_half(x):
    n = (x * 4).to(torch.int64)
    n -= 0.5
    return n


@forward
def caught_refusal_in_place(x):
    n = (x * 4).to(torch.int64)
    try:
        n -= 0.5
    except RuntimeError:
        return x * 2
    return n


# -- whole numbers beyond 2**53 --------------------------------------------------------------------------------------------
@forward
def large_whole_number_against_float(x):
    n = x.argmax().item() + 2**53
    return x * 2 if n + 1 > float(2**53 + 2) else x


@forward
def large_whole_numbers_divided(x):
    n = x.argmax().item() + 2**60 + 1
    return n / (2**60 - 1) == 1.0, x


# -- one tensor as two inputs, questions that staging's own class answers --------------------------------------------------
@forward
def class_of_an_input(x):
    return x * 2 if x.__class__ is torch.Tensor else x


@forward
def isinstance_float_tensor(x):
    return x * 2 if isinstance(x, torch.FloatTensor) else x


@forward
def number_in_list_of_tensors(x):
    return x * 2 if 5 in [x.sum()] else x


class _Odd:
    def __init__(self, x):
        self.x = x

    def __bool__(self):
        return bool(self.x.sum() > 0)

    def __len__(self):
        return -1


@forward
def length_below_zero(x):
    if x.sum() > 0:
        return x * len(_Odd(x))
    return x


# -- results of another class ----------------------------------------------------------------------------------------------
class _Names(list):
    pass


@forward
def subclass_of_list_returned(x):
    return _Names([x, x + 1])


@forward
def shared_result(x):
    y = x + 1
    return y, y
