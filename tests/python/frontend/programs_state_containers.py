# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs that change state: library objects (D), sharing in loops (G), containers (H), one memory by two ways (I).

Functions take a 2x3 float tensor; classes are models.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import queue
import types

import torch
from torch import nn


# -- D ------------------------------------------------------------------------------------------------------------------
def d_queue(x):
    q = queue.Queue()
    q.put(x)
    if x.sum() > 0:
        q.put(x + 1)
    return q.qsize(), q.get()


def d_simple_queue(x):
    q = queue.SimpleQueue()
    q.put(1)
    if x.sum() > 0:
        q.put(2)
    return x, q.qsize()


def d_userdict(x):
    d = collections.UserDict(a=1)
    if x.sum() > 0:
        d["b"] = 2
    return x, len(d), sorted(d)


def d_userlist(x):
    d = collections.UserList([1])
    if x.sum() > 0:
        d.append(5)
    else:
        d[0] = 7
    return x, list(d)


def d_chainmap(x):
    d = collections.ChainMap({}, {"a": 1})
    if x.sum() > 0:
        d["a"] = 2
    return x * d["a"]


def d_contextvar(x):
    v = contextvars.ContextVar("v", default=1)
    if x.sum() > 0:
        v.set(3)
    return x * v.get()


def d_exitstack(x):
    log = []
    with contextlib.ExitStack() as s:
        s.callback(log.append, 1)
        if x.sum() > 0:
            s.callback(log.append, 2)
    return x, log


def d_lru_cache(x):
    calls = []

    @functools.lru_cache
    def f(k):
        calls.append(k)
        return k * 2

    n = 0
    if x.sum() > 0:
        n = f(3)
    n += f(3)
    return x * n, len(calls)


def d_default_dtype(x):
    old = torch.get_default_dtype()
    if x.sum() > 0:
        torch.set_default_dtype(torch.float64)
    y = torch.zeros(1)
    torch.set_default_dtype(old)
    return y, x


def d_counter(x):
    c = collections.Counter("aab")
    if x.sum() > 0:
        c.update("bbb")
    return x, c["b"], c.most_common(1)


def d_defaultdict(x):
    c = collections.defaultdict(list)
    c["a"].append(1)
    if x.sum() > 0:
        c["b"].append(2)
    return x, len(c), len(c["b"])


class DTrain(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.Dropout(0.0)

    def forward(self, x):
        self.m.eval()
        if x.sum() > 0:
            self.m.train()
        return x, self.m.training


class DModuleList(nn.Module):
    def __init__(self):
        super().__init__()
        self.ms = nn.ModuleList([nn.ReLU(), nn.Tanh()])

    def forward(self, x):
        self.ms[0] = nn.ReLU()
        if x.sum() > 0:
            self.ms[0] = nn.Sigmoid()
        return self.ms[0](x)


class DAppend(nn.Module):
    def forward(self, x):
        ms = nn.ModuleList([nn.ReLU()])
        if x.sum() > 0:
            ms.append(nn.Tanh())
        for m in ms:
            x = m(x)
        return x, len(ms)


class DHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.ReLU()

    def forward(self, x):
        handle = None
        if x.sum() > 0:
            handle = self.m.register_forward_hook(lambda m, a, r: r + 1)
        y = self.m(x)
        if handle is not None:
            handle.remove()
        return y


class DBuffer(nn.Module):
    def forward(self, x):
        m = nn.ReLU()
        m.register_buffer("b", torch.zeros(1))
        if x.sum() > 0:
            m.register_buffer("b", torch.ones(1))
        return x + m.b


class DParameterDict(nn.Module):
    def forward(self, x):
        p = nn.ParameterDict({"a": torch.zeros(1)})
        if x.sum() > 0:
            p["b"] = torch.ones(1)
        return x, len(p), sorted(p.keys())


# -- G ------------------------------------------------------------------------------------------------------------------
def g_shared_list(x):
    a = [x]
    b = a
    while a[0].sum() < 10:
        a[0] = a[0] + 1
        a = a
    return b[0], a[0]


def g_shared_dict(x):
    a = {"h": x}
    box = [a]
    while a["h"].sum() < 10:
        a["h"] = a["h"] + 1
        a = a
    return box[0]["h"]


def g_rebound(x):
    a = [x]
    b = a
    while a[0].sum() < 10:
        a = [a[0] + 1]
    a[0] = a[0] * 2
    return b[0], a[0]


def g_two_names(x):
    a = [x, 0]
    b = a
    while a[0].sum() < 10:
        a, b = b, a
        a[0] = a[0] + 1
        b[1] = b[1] + 1
    return a[0], b[0], a[1]


def g_nested(x):
    inner = [x]
    a = [inner, 1]
    while inner[0].sum() < 10:
        a[0][0] = a[0][0] + 1
        a = a
    return inner[0], a[0] is inner


def g_attribute_list(x):
    o = types.SimpleNamespace(h=[x])
    h = o.h
    while h[0].sum() < 10:
        h[0] = h[0] + 2
        h = o.h
    return o.h[0]


def g_for_range(x):
    n = int(x.abs().sum()) % 4
    a = [x]
    b = a
    for _ in range(n):
        a[0] = a[0] + 1
        a = b
    return a[0], b[0], a is b


def g_break(x):
    a = [x]
    b = a
    while True:
        a[0] = a[0] + 1
        a = a
        if a[0].sum() > 10:
            break
    return b[0]


def g_tuple_of_list(x):
    t = ([x], 1)
    h = t[0]
    while h[0].sum() < 10:
        h[0] = h[0] + 1
        t = (h, t[1] + 1)
    return t[0][0], t[1], h[0]


def g_rebound_shared_later(x):
    a = [x]
    b = [x]
    while a[0].sum() < 10:
        a = [a[0] + 1]
        b = a
    b[0] = b[0] * 2
    return a[0], b[0]


# -- H ------------------------------------------------------------------------------------------------------------------
def h_maxlen_loop(x):
    d = collections.deque([x, x], maxlen=2)
    while d[0].sum() < 10:
        d.append(d[-1] + 1)
    d.append(x)
    return len(d), d[0]


def h_maxlen_if(x):
    d = collections.deque([1, 2], maxlen=2)
    if x.sum() > 0:
        d.append(3)
    d.append(4)
    return list(d), x


def h_maxlen_joined(x):
    if x.sum() > 0:
        d = collections.deque([1, 2], maxlen=2)
    else:
        d = collections.deque([3, 4], maxlen=2)
    d.append(5)
    return list(d), x


def h_maxlen_differs(x):
    if x.sum() > 0:
        d = collections.deque([1, 2], maxlen=2)
    else:
        d = collections.deque([3, 4])
    d.append(5)
    return list(d), x


def h_ordered_dict(x):
    d = collections.OrderedDict(a=1, b=2, c=3)
    if x.sum() > 0:
        d.move_to_end("a")
    return list(d), x


def h_ordered_dict_values(x):
    d = collections.OrderedDict(a=1, b=2)
    if x.sum() > 0:
        d["a"] = 5
    return list(d.values()), d["a"], x


def h_ordered_popitem(x):
    d = collections.OrderedDict(a=1, b=2, c=3)
    if x.sum() > 0:
        d.popitem(last=False)
    d["z"] = 0
    return list(d.items()), x


def h_keys_one_true(x):
    d = {}
    if x.sum() > 0:
        d[1] = x
    else:
        d[True] = x
    return d, [type(k).__name__ for k in d]


def h_set(x):
    s = {1, 2}
    if x.sum() > 0:
        s.add(3)
        s.discard(1)
    return sorted(s), x


def h_dict_order(x):
    d = {}
    if x.sum() > 0:
        d["a"] = 1
        d["b"] = 2
    else:
        d["b"] = 2
        d["a"] = 1
    return list(d), x


def h_list_subclass(x):
    class L(list):
        pass

    d = L([1, 2])
    d.tag = 5
    if x.sum() > 0:
        d.append(3)
        d.tag = 6
    return len(d), d.tag, x


def h_default_factory(x):
    d = collections.defaultdict(int)
    if x.sum() > 0:
        d.default_factory = list
    return type(d["k"]).__name__, x


# -- I ------------------------------------------------------------------------------------------------------------------
class Box:
    pass


def i_dict(x):
    o = Box()
    if x.sum() > 0:
        o.h = x + 1
    else:
        o.__dict__["h"] = x * 5
    return o.h


def i_vars(x):
    o = Box()
    o.h = x
    if x.sum() > 0:
        vars(o)["h"] = x + 1
    else:
        o.h = x * 5
    return o.h


def i_update(x):
    o = Box()
    o.h = x
    if x.sum() > 0:
        o.__dict__.update(h=x + 1)
    else:
        o.h = x * 5
    return o.h


def i_setattr(x):
    o = Box()
    o.h = x
    if x.sum() > 0:
        object.__setattr__(o, "h", x + 1)
    else:
        o.__dict__ |= {"h": x - 1}
    return o.h


def i_return(x):
    o = Box()
    o.h = x

    def f(z):
        if z.sum() > 0:
            o.__dict__["h"] = z + 1
            return 1
        o.h = z - 1
        return 2

    n = f(x)
    return o.h, n


def i_loop(x):
    o = Box()
    o.h = x
    d = o.__dict__
    while o.h.sum() < 10:
        d["h"] = o.h + 1
    return o.h


def i_del(x):
    o = Box()
    o.h = x
    if x.sum() > 0:
        del o.__dict__["h"]
    return hasattr(o, "h"), x


def i_pop(x):
    o = Box()
    o.h = x
    o.g = 2
    if x.sum() > 0:
        o.__dict__.pop("g")
    else:
        o.g = 3
    return getattr(o, "g", -1), x


class IModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x):
        if x.sum() > 0:
            self.n += 1
        else:
            self.__dict__["n"] = self.n + 10
        return x * self.n


class IBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.zeros(1))

    def forward(self, x):
        if x.sum() > 0:
            self.b = self.b + 1
        else:
            self._buffers["b"] = self.b + 10
        return x * self.b
