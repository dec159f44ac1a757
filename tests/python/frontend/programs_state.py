# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs that change state in every way we could think of. Functions take a 2x3 float tensor; classes are models.

The letter in front is the class: A iterators and other positions in branches, B the same across calls, C cells, D library objects, G sharing in loops,
H containers with more state than their items, I one memory by two ways, J state that lives on, K aliases of real tensors, Q traces on the model.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import functools
import itertools
import queue
import types

import numpy as np
import torch
from torch import nn


# -- A ------------------------------------------------------------------------------------------------------------------
def a_list_iterator_break(x):
    it = iter([x, x + 1, x + 2, x + 3])
    for v in it:
        if v.sum() > 3:
            break
    return len(list(it))


def a_zip_break(x):
    it = zip([x, x + 1, x + 2], [1, 2, 3])
    n = 0
    for v, k in it:
        if v.sum() > 3:
            break
        n += k
    return n, [k for _, k in it]


def a_enumerate_if(x):
    it = enumerate([x, x + 1, x + 2, x * 3])
    if x.sum() > 0:
        next(it)
    i, v = next(it)
    return i, v


def a_reversed_return(x):
    it = reversed([x, x + 1, x + 2])

    def take(z):
        if z.sum() > 0:
            return next(it)
        return next(it) * 2

    a = take(x)
    b = take(-a)
    return a, b, list(it)


def a_count_if(x):
    ids = itertools.count(5)
    if x.sum() > 0:
        x = x + next(ids)
    return x * next(ids)


def a_cycle_loop(x):
    it = itertools.cycle([1.0, 2.0, 3.0])
    for _ in range(4):
        if x.sum() > 0:
            x = x - next(it)
        else:
            x = x + 1
    return x, next(it)


def a_chain_break(x):
    it = itertools.chain([x], [x + 1, x + 2], (x + 3,))
    for v in it:
        if v.sum() > 3:
            break
    return [v for v in it]


def a_islice_continue(x):
    it = itertools.islice([1, 2, 3, 4, 5, 6], 1, 6, 2)
    got = []
    for k in range(2):
        if x.sum() > k:
            x = x + next(it)
            continue
        x = x * 2
    got.append(next(it, -1))
    return x, got


def a_range_iterator_else(x):
    it = iter(range(10))
    if x.sum() > 0:
        x = x + 1
    else:
        next(it)
        next(it)
    return x * next(it)


def a_dict_iterator(x):
    d = {"a": 1, "b": 2, "c": 3}
    it = iter(d.items())
    if x.sum() > 0:
        next(it)
    return next(it)


def a_map_break(x):
    it = map(lambda v: v + 1, [x, x * 2, x * 3])
    for v in it:
        if v.sum() > 2:
            break
    return list(it)


def a_generator_break(x):
    def gen():
        for k in range(4):
            yield x + k

    g = gen()
    for v in g:
        if v.sum() > 3:
            break
    return [v for v in g]


def a_generator_nonlocal(x):
    n = 0

    def gen():
        nonlocal n
        for _ in range(5):
            n += 1
            yield n

    g = gen()
    if x.sum() > 0:
        next(g)
    return x + n, next(g), n


def a_generator_send(x):
    def gen():
        total = 0.0
        while True:
            got = yield total
            total = total + (1.0 if got is None else got)

    g = gen()
    next(g)
    if x.sum() > 0:
        g.send(5.0)
    return g.send(1.0) + x


def a_star_unpack(x):
    it = iter([1, 2, 3, 4])
    a = b = 0
    if x.sum() > 0:
        a, *b = it
    return a, b, list(it)


def a_star_call(x):
    it = iter([1, 2, 3, 4])

    def f(*args):
        return len(args)

    n = 0
    if x.sum() > 0:
        n = f(*it)
    return n, list(it)


def a_in_iterator(x):
    it = iter([1.0, 2.0, 3.0])
    found = False
    if x.sum() > 0:
        found = 2.0 in it
    return found, list(it)


def a_comprehension(x):
    it = iter([1, 2, 3])
    got = []
    if x.sum() > 0:
        got = [v * 2 for v in it]
    return got, list(it)


def a_try_finally(x):
    it = iter([1, 2, 3, 4])
    try:
        if x.sum() > 0:
            next(it)
    finally:
        k = next(it)
    return x * k, list(it)


def a_early_return(x):
    it = iter([1, 2, 3, 4])

    def f(z):
        for k in it:
            if z.sum() > k:
                return k
        return -1

    a = f(x)
    return a, f(x + 1), len(list(it))


def a_numpy(x):
    a = np.zeros(3)
    if x.sum() > 0:
        a[0] = 5.0
    return float(a[0]), x


def a_numpy_return(x):
    a = np.arange(4.0)

    def f(z):
        if z.sum() > 0:
            a[1] += 10.0
            return z
        a[2] -= 1.0
        return -z

    f(x)
    f(-x)
    return x * float(a.sum()), a.tolist()


def a_numpy_break(x):
    a = np.zeros(3)
    for k in range(3):
        a[k] = 1.0
        if x.sum() > k:
            break
    return x, float(a.sum())


def a_bytearray(x):
    b = bytearray(b"abc")
    if x.sum() > 0:
        b.append(100)
    return x, len(b), b[0]


def a_bytearray_continue(x):
    b = bytearray(3)
    for k in range(3):
        if x.sum() > k:
            continue
        b[k] = 1
    return x, sum(b)


def a_unsqueeze_after_break(x):
    y = x + 1
    for k in range(3):
        if x.sum() > k:
            break
        y.unsqueeze_(0)
    return y


def a_iter_layers(x):
    layers = [torch.sin, torch.cos, torch.tanh]
    it = iter(layers)
    for f in it:
        x = f(x)
        if x.sum() > 1:
            break
    for f in it:
        x = f(x) + 1
    return x


def a_while_next(x):
    it = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    n = 0
    while x.sum() < 3 and n < 5:
        x = x + next(it)
        n += 1
    return x, n


def a_next_default_loop(x):
    it = iter([1.0, 2.0])
    for _ in range(4):
        if x.sum() < 3:
            x = x + next(it, 10.0)
    return x, list(it)


# -- B ------------------------------------------------------------------------------------------------------------------
class BCount(nn.Module):
    def __init__(self):
        super().__init__()
        self.ids = itertools.count(1)

    def forward(self, x):
        return x * next(self.ids)


class BCountIf(nn.Module):
    def __init__(self):
        super().__init__()
        self.ids = itertools.count(1)

    def forward(self, x):
        if x.sum() > 0:
            return x * next(self.ids)
        return x


class BCycle(nn.Module):
    def __init__(self):
        super().__init__()
        self.it = itertools.cycle([1.0, 2.0, 3.0])

    def forward(self, x):
        return x * next(self.it)


class BList(nn.Module):
    def __init__(self):
        super().__init__()
        self.it = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])

    def forward(self, x):
        return x * next(self.it, 0.0)


class BEnumerate(nn.Module):
    def __init__(self):
        super().__init__()
        self.it = enumerate(itertools.cycle([1.0, 2.0]))

    def forward(self, x):
        i, v = next(self.it)
        return x * v + i


class BNumpy(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = np.zeros(2)

    def forward(self, x):
        self.n[0] += 1
        return x * float(self.n[0])


class BNumpySet(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = np.zeros(2)

    def forward(self, x):
        self.n[:] = 0
        self.n[0] += 2
        return x * float(self.n[0])


class BBytearray(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = bytearray(4)

    def forward(self, x):
        self.b[1] += 1
        return x * self.b[1]


class BGenerator(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = (k for k in range(100))

    def forward(self, x):
        return x * next(self.g)


# -- C ------------------------------------------------------------------------------------------------------------------
def c_return_from_branch(x):
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


def c_two_cells(x):
    k, m = 2.0, 1

    def step(z):
        nonlocal k, m
        if z.sum() > 0:
            m += 1
            if z.max() > 1:
                k = k * 2
                return z
            return z + k
        return z - m

    return step(x), step(x + 1), step(-x), k, m


def c_closure_returned(x):
    def make(z):
        k = 1

        def get():
            return k

        if z.sum() > 0:
            k = 2
            return get
        return get

    return make(x)() + x


def c_tensor_cell(x):
    h = x

    def step(z):
        nonlocal h
        if z.sum() > 1:
            h = h + z
            return 1
        return 0

    n = step(x) + step(h)
    return h, n


def c_cell_in_loop(x):
    k = 0

    def step(z):
        nonlocal k
        for _ in range(3):
            if z.sum() > 2:
                k += 10
                return z
            k += 1
            z = z + 1
        return z

    return step(x), k, step(x * 2), k


def c_method(x):
    total = 0.0

    class Acc:
        def add(self, z):
            nonlocal total
            if z.sum() > 0:
                total = total + 1
                return self
            total = total - 1
            return self

    a = Acc()
    a.add(x).add(-x).add(x + 1)
    return x * total


def c_del(x):
    k = 1.0

    def f(z):
        nonlocal k
        if z.sum() > 0:
            k = 5.0
            return z
        return z * 2

    y = f(x)
    if k > 3:
        y = y + 100
    return y


def c_try(x):
    k = 0

    def f(z):
        nonlocal k
        try:
            if z.sum() > 0:
                k += 1
                return z
            return -z
        finally:
            k += 10

    return f(x), f(-x), k


def c_generator(x):
    k = 0

    def g(z):
        nonlocal k
        for i in range(3):
            if z.sum() > i:
                k += 1
            yield z + k

    return sum(g(x)), k


def c_lambda(x):
    k = [1.0]
    add = lambda v: k.append(v)

    def f(z):
        if z.sum() > 0:
            add(2.0)
            return z
        add(3.0)
        return z + 1

    y = f(x)
    return y * k[-1], len(k)


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


# -- J ------------------------------------------------------------------------------------------------------------------
class JBase:
    log = [0.0]


class JOnBase(nn.Module, JBase):
    def forward(self, x):
        self.log[0] += 1
        return x * self.log[0]


class JSlots(nn.Module):
    class S:
        __slots__ = ("n", "l")

    def __init__(self):
        super().__init__()
        self.s = self.S()
        self.s.n = 0
        self.s.l = [0]

    def forward(self, x):
        self.s.n += 1
        self.s.l[0] += 2
        return x * self.s.n + self.s.l[0]


class JNamespace(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = types.SimpleNamespace(n=0, h=torch.zeros(2, 3))

    def forward(self, x):
        self.s.n += 1
        if x.sum() > 0:
            self.s.h = self.s.h + x
        return self.s.h * self.s.n


@dataclasses.dataclass
class Plain:
    n: int = 0
    items: list = dataclasses.field(default_factory=lambda: [0.0, 1.0])


class JDataclass(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = Plain()

    def forward(self, x):
        self.s.n += 1
        self.s.items[0] += 1
        return x * self.s.n + self.s.items[0]


def _bump(box, x):
    box[0] += 1
    return x * box[0]


class JPartial(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = functools.partial(_bump, [0])

    def forward(self, x):
        return self.f(x)


class JDefault(nn.Module):
    def forward(self, x, seen=[0]):  # noqa: B006
        seen[0] += 1
        return x * seen[0]


class JClosure(nn.Module):
    def __init__(self):
        super().__init__()
        n = 0

        def f(x):
            nonlocal n
            n += 1
            return x * n

        self.f = f

    def forward(self, x):
        return self.f(x)


class JTupleOfLists(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = ([0], {"a": [1]})

    def forward(self, x):
        self.t[0][0] += 1
        self.t[1]["a"][0] *= 2
        return x * self.t[0][0] + self.t[1]["a"][0]


class JDeque(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = collections.deque([torch.zeros(2, 3), torch.zeros(2, 3)], maxlen=2)

    def forward(self, x):
        self.d.append(x)
        return sum(self.d)


class JUserDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = collections.UserDict(n=0)

    def forward(self, x):
        self.d["n"] += 1
        return x * self.d["n"]


N = 0
LOG = [0]


class JGlobal(nn.Module):
    def forward(self, x):
        global N
        N += 1
        return x * N


class JGlobalIf(nn.Module):
    def forward(self, x):
        global N
        if x.sum() > 0:
            N += 1
            return x * N
        return x


class JGlobals(nn.Module):
    def forward(self, x):
        globals()["N"] += 1
        return x * N


class JGlobalList(nn.Module):
    def forward(self, x):
        LOG[0] += 1
        return x * LOG[0]


# -- K ------------------------------------------------------------------------------------------------------------------
class KRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.ones(2, 3), requires_grad=False)
        self.rows = list(self.k.unbind(0))

    def forward(self, x):
        self.rows[0].add_(x[0])
        return self.k.clone()


class KRowsBack(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.ones(2, 3))
        self.rows = list(self.k.unbind(0))

    def forward(self, x):
        self.k.add_(x)
        if x.sum() > 0:
            self.rows[1].mul_(2)
        return self.rows[0].clone(), self.rows[1] + 1


class KTranspose(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.ones(3, 2))
        self.t = self.k.t()

    def forward(self, x):
        self.t.add_(x)
        return self.k * 1


class KDetached(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, 3))
        self.view = self.w.detach()

    def forward(self, x):
        self.view.mul_(2)
        return self.w + x


class KAlias(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("buf", torch.zeros(2, 3))
        self.h = torch.zeros(2, 3)

    def forward(self, x):
        y = self.h + 1
        self.h = self.buf
        self.buf.add_(x)
        return y, self.h + 0


class KSlice(nn.Module):
    def __init__(self):
        super().__init__()
        base = torch.zeros(4, 3)
        self.a, self.b = base[:2], base[1:3]

    def forward(self, x):
        self.a.add_(x)
        return self.b * 1


class KTied(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.zeros(2, 3))
        self.register_buffer("b", self.a)

    def forward(self, x):
        self.a += x
        return self.b + 0


class KColumn(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.zeros(2, 3))
        self.c = self.a[:, 1]

    def forward(self, x):
        if x.sum() > 0:
            self.c += 1
        return self.a + x
