# Licensed under the Apache License, Version 2.0; see LICENSE.
"""State that changes where the journal does not look: generators that are given up, memory shared with arrays, objects that die."""

from __future__ import annotations

import re

import pytest
import torch
from test_hunted import X, check_right, model_of

import dycl_tvm
from dycl_tvm.errors import InputError, UnsupportedError
from dycl_tvm.frontend.python import stage

RIGHT = {
    "close explicit": """
def net(x):
    log = []
    def g():
        try:
            yield x
            yield x
        finally:
            log.append(1)
    it = g()
    y = next(it)
    if x.sum() > 0: it.close()
    n = len(log)
    it.close()
    return y, n, len(log)
""",
    "contextmanager": """
import contextlib
def net(x):
    log = []
    @contextlib.contextmanager
    def cm():
        log.append(0)
        try:
            yield
        finally:
            log.append(1)
    if x.sum() > 0:
        with cm():
            x = x * 2
    return x, len(log)
""",
    "slot set on one side hasattr": """
class B:
    __slots__ = ("h",)
def net(x):
    b = B()
    if x.sum() > 0:
        b.h = x
    if hasattr(b, "h"):
        return b.h + 1
    return x - 1
""",
    "del twice": """
class B: pass
def net(x):
    b = B()
    b.h = x
    if x.sum() > 0: del b.h
    try:
        del b.h
        return x
    except AttributeError:
        return x + 1
""",
    "ns eq": """
import types
def net(x):
    n = types.SimpleNamespace(a=1)
    if x.sum() > 0: n.b = 2
    return x + (n == types.SimpleNamespace(a=1))
""",
    "object.__delattr__": """
class B: pass
def net(x):
    b = B()
    b.h = x
    if x.sum() > 0: del b.h
    try:
        object.__delattr__(b, "h")
        return x
    except AttributeError:
        return x + 1
""",
    "del local twice": """
def net(x):
    h = x
    if x.sum() > 0: del h
    try:
        del h
        return x
    except UnboundLocalError:
        return x + 1
""",
    "del global twice": """
G = 1
def net(x):
    global G
    G = 2
    if x.sum() > 0: del G
    try:
        del G
        r = x
    except NameError:
        r = x + 1
    G = 4
    return r
""",
    "dataclass replace": """
@dataclasses.dataclass
class B:
    a: Any
    b: Any = 1
def net(x):
    o = B(1)
    if x.sum() > 0: o.b = 333
    q = dataclasses.replace(o, a=2)
    return x + q.b + q.a, dataclasses.astuple(q)
""",
    "object eq dict": """
class B: pass
def net(x):
    a, b = B(), B()
    a.v = b.v = 1
    if x.sum() > 0: b.w = 2
    return x + (a.__dict__ == b.__dict__)
""",
    "from_numpy written after": """
import numpy as np
def net(x):
    a = np.zeros(3, dtype=np.float32)
    t = torch.from_numpy(a)
    a[0] = 5
    return x + t
""",
    "from_numpy branch": """
import numpy as np
def net(x):
    a = np.zeros(3, dtype=np.float32)
    t = torch.from_numpy(a)
    if x.sum() > 0:
        a[1] = 3
    return x + t
""",
    "asarray": """
import numpy as np
def net(x):
    a = np.zeros(3, dtype=np.float32)
    t = torch.asarray(a)
    a[:] = 2
    return x + t
""",
    "memoryview": """
import numpy as np
def net(x):
    a = np.zeros(3, dtype=np.float32)
    t = torch.from_numpy(a)
    m = memoryview(a)
    m[0] = 9.0
    return x + t
""",
    "as_tensor of tensor is itself": """
def net(x):
    y = torch.as_tensor(x)
    y.add_(1)
    return x, y is x
""",
    "array slot shared via view": """
import numpy as np
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = np.zeros((2, 3), dtype=np.float32)
        self.t = torch.from_numpy(self.a[1])
    def forward(self, x):
        old = self.a[1, 0]
        self.a[1, 0] = 5
        y = x + self.t
        self.a[1, 0] = old
        return y + self.t
""",
    "buffer from numpy state": """
import numpy as np
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.from_numpy(np.zeros(3, dtype=np.float32)))
        self.g = torch.from_numpy(np.ones(3, dtype=np.float32))
    def forward(self, x):
        self.h.add_(x[0]); self.g.mul_(2)
        return x + self.h + self.g
""",
    "dict tensor replaced one side, written other": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = {"h": torch.zeros(3)}
    def forward(self, x):
        if x.sum() > 0:
            self.d["h"] = x[0] * 1
        else:
            self.d["h"].add_(1)
        return x + self.d["h"]
""",
    "list": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = [torch.zeros(3), torch.ones(3)]
    def forward(self, x):
        if x.sum() > 0:
            self.d[0] = x[0] * 1
        else:
            self.d[0].add_(1)
        return x + self.d[0]
""",
    "cell": """
def make():
    h = torch.zeros(3)
    def net(x):
        nonlocal h
        if x.sum() > 0:
            h = x[0] * 1
        else:
            h.add_(1)
        return x + h
    return net
net = make()
""",
    "buffer": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(3))
    def forward(self, x):
        if x.sum() > 0:
            self.h = x[0] * 1
        else:
            self.h.add_(1)
        return x + self.h
""",
    "tuple in attr": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = (torch.zeros(3), torch.zeros(3))
    def forward(self, x):
        h, c = self.d
        if x.sum() > 0:
            self.d = (x[0] * 1, c)
        else:
            h.add_(1)
        return x + self.d[0] + self.d[1]
""",
    "replace in a loop": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = {"h": torch.zeros(3)}
    def forward(self, x):
        for i in range(3):
            if x.sum() > i:
                self.d["h"] = x[0] * i
            else:
                self.d["h"].mul_(2).add_(1)
        return x + self.d["h"]
""",
    "while": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = {"h": torch.zeros(3)}
    def forward(self, x):
        n = 0
        while self.d["h"].sum() < 5 and n < 5:
            n += 1
            if x.sum() > 0:
                self.d["h"] = self.d["h"] + 1
            else:
                self.d["h"].add_(2)
        return x + self.d["h"], n
""",
    "replaced in inner module": """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = torch.zeros(3)
    def forward(self, x):
        if x.sum() > 0: self.h = x[0].clone()
        else: self.h.sub_(1)
        return self.h
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = M()
    def forward(self, x):
        a = self.m(x); b = self.m(-x)
        return a + b, self.m.h
""",
    "deque": """
from collections import deque
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = deque([torch.zeros(3), torch.ones(3)], maxlen=2)
    def forward(self, x):
        self.q.append(x[0] * 1)
        if x.sum() > 0: self.q[0].add_(1)
        else: self.q[0] = x[1] * 1
        return x + self.q[0] + self.q[1]
""",
    "pow overflow caught": """
def net(x):
    v = x.sum().item()
    try:
        r = v ** 400
    except OverflowError as e:
        r = float(e.args[0])
    return x, r
""",
    "const base small": """
def net(x):
    v = x.sum().item() * 300
    try:
        r = 0.5 ** v
    except OverflowError:
        r = -1.0
    return x, r
""",
    "pow neg exponent": """
def net(x):
    v = (x.sum() * 1e-3).item()
    try:
        r = v ** -200
    except OverflowError:
        r = -1.0
    except ZeroDivisionError:
        r = -2.0
    return x, r
""",
    "exp at inf": """
import math
def net(x):
    v = (x.sum() / 0.0).item()
    try:
        r = math.exp(v)
    except OverflowError:
        r = -1.0
    return x, r
""",
    "pow at inf": """
def net(x):
    v = (x.sum() / 0.0).item()
    try:
        r = v ** 3
    except OverflowError:
        r = -1.0
    return x, r
""",
    "joined identity multi-element eq": """
def net(x):
    y = x
    if x.sum() > 0: y = x * 2
    try:
        r = [y] == [x]
    except RuntimeError:
        r = 5
    return x, r
""",
    "nan run time": """
def net(x):
    v = (x.sum() * 0 / 0).item()
    l = [v]
    return x + (v in l), l == [v], l.count(v), v == v
""",
    "dataclass eq same object": """
@dataclasses.dataclass
class B:
    v: Any
def net(x):
    y = x
    if x.sum() > 0: y = x * 1
    try: r = B(x) == B(y)
    except RuntimeError: r = 3
    return x, r
""",
    "list remove": """
def net(x):
    vals = [x[0, 0], x[0, 1], x[0, 2]]
    vals.remove(min(vals))
    return x + sum(vals)
""",
    "list index number": """
def net(x):
    vals = x[0].tolist()
    return x + vals.index(min(vals))
""",
    "tuple index": """
def net(x):
    vals = (x[0, 0], x[0, 1], x[0, 2])
    return x + vals.index(max(vals)), vals.count(vals[1])
""",
    "index not found error": """
def net(x):
    vals = [x[0, 0], x[0, 1]]
    try:
        r = vals.index(5.0)
    except ValueError:
        r = -1
    return x + r
""",
    "remove in loop": """
def net(x):
    vals = x[0].tolist()
    while len(vals) > 1:
        vals.remove(min(vals))
    return x + vals[0]
""",
    "a function that a library has in its hands": """
import torch.utils._pytree as pytree
class Box2:
    def __init__(self, v): self.v = v
pytree.register_pytree_node(Box2, lambda b: ([b.v], isinstance(b.v, float)), lambda c, ctx: (list(c)[0], ctx))
def net(x):
    r = pytree.tree_map(lambda t: t * 2, Box2(x.sum().item()))
    return x, r
""",
    "ref of model part": """
import weakref
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)
    def forward(self, x):
        r = weakref.ref(self.l)
        return x + (r() is not None)
""",
}
REFUSED = {
    "gen dropped by break finally": (
        """
def net(x):
    log = []
    def g():
        try:
            for i in range(4):
                yield i
        finally:
            log.append(1)
    for i in g():
        if x.sum() > i:
            break
        x = x + 1
    return x, len(log)
""",
        "within a `try` or `with`",
    ),
    "gen var reassigned": (
        """
def net(x):
    log = []
    def g():
        try:
            yield x
            yield x * 2
        finally:
            log.append(x)
    it = g()
    y = next(it)
    if x.sum() > 0:
        it = None
    return y, len(log)
""",
        "within a `try` or `with`",
    ),
    "next of temp": (
        """
def net(x):
    log = [0]
    def g():
        try:
            yield x
            yield x * 2
        finally:
            log[0] += 1
    y = next(g())
    return y + log[0]
""",
        "within a `try` or `with`",
    ),
    "with pending": (
        """
class C:
    def __init__(self, log): self.log = log
    def __enter__(self): return self
    def __exit__(self, *a): self.log.append(2)
def net(x):
    log = []
    def g():
        with C(log):
            yield x
            yield x + 1
    for y in g():
        if y.sum() > 2: break
    return y, len(log)
""",
        "within a `try` or `with`",
    ),
    "except GeneratorExit": (
        """
def net(x):
    log = []
    def g():
        try:
            yield x
            yield x
        except GeneratorExit:
            log.append("exit")
            raise
    for y in g():
        if y.sum() > 0: break
    return x, len(log)
""",
        "within a `try` or `with`",
    ),
    "itertools.islice of gen": (
        """
import itertools
def net(x):
    log = []
    def g():
        try:
            for i in range(5): yield i
        finally:
            log.append(1)
    s = 0
    for i in itertools.islice(g(), 2): s += i
    return x + len(log) + s
""",
        "within a `try` or `with`",
    ),
    "from_numpy tensor written": (
        """
import numpy as np
def net(x):
    a = np.zeros(3, dtype=np.float32)
    t = torch.from_numpy(a)
    t[0] = 7.0
    return x + float(a[0])
""",
        "that may lie in the memory of a NumPy array",
    ),
    "attr array shared from init": (
        """
import numpy as np
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = np.ones(3, dtype=np.float32)
        self.register_buffer("h", torch.from_numpy(self.a))
    def forward(self, x):
        self.h.add_(1)
        return x + float(self.a[0])
""",
        "that may lie in the memory of a NumPy array",
    ),
    "tensor numpy written": (
        """
def net(x):
    t = torch.zeros(3)
    a = t.numpy()
    a[0] = 3
    return x + t
""",
        "numpy() of a tensor",
    ),
    "view then array write": (
        """
import numpy as np
def net(x):
    a = np.zeros(3, dtype=np.float32)
    t = torch.from_numpy(a)[None]
    y = x + t
    a[0] = 2
    return y + t
""",
        "whose memory was changed as that of a NumPy array",
    ),
    "kept then written next": (
        """
import numpy as np
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = np.zeros(3, dtype=np.float32)
        self.t = torch.zeros(3)
    def forward(self, x):
        self.t += 1
        y = x + float(self.a[0])
        self.t = torch.from_numpy(self.a)
        return y
""",
        "lies in the memory of a NumPy array after a call",
    ),
    "replaced with input": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = {"h": torch.zeros(2, 3)}
    def forward(self, x):
        if x.sum() > 0:
            self.d["h"] = x
        else:
            self.d["h"].add_(1)
        return x + self.d["h"]
""",
        "may be an input of an earlier call",
    ),
    "both": (
        """
def net(x):
    v = x.sum().item()
    try:
        r = abs(v) ** v
    except OverflowError:
        r = -1.0
    return x, r
""",
        "whether a power of two numbers",
    ),
    "weakref alive": (
        """
import weakref
class O: pass
def net(x):
    o = O()
    r = weakref.ref(o)
    if x.sum() > 0: o = None
    return x + (r() is None)
""",
        "depends on when Python gives an object up",
    ),
    "weakref.finalize": (
        """
import weakref
class O: pass
LOG = []
def net(x):
    o = O()
    weakref.finalize(o, LOG.append, 1)
    del o
    return x + len(LOG)
""",
        "depends on when Python gives an object up",
    ),
    "weakvaluedict": (
        """
import weakref
class O: pass
def net(x):
    d = weakref.WeakValueDictionary()
    o = O()
    d["k"] = o
    n = len(d)
    del o
    return x + n, len(d)
""",
        "depends on when Python gives an object up",
    ),
    "refcount": (
        """
import sys
def net(x):
    l = []
    return x + sys.getrefcount(l)
""",
        "depends on when Python gives an object up",
    ),
    "atexit": (
        """
import atexit
LOG = []
def net(x):
    atexit.register(LOG.append, 1)
    return x + len(LOG)
""",
        "takes effect when Python ends",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_program_is_right(name: str) -> None:
    check_right(RIGHT[name])


@pytest.mark.parametrize("name", REFUSED)
def test_the_program_is_refused(name: str) -> None:
    source, why = REFUSED[name]
    with pytest.raises(UnsupportedError, match=re.escape(why)):
        stage(model_of(source), (X.clone(),))


def writes(x, y):
    x.add_(1)
    return y * 2


def asks(x, y):
    return x + (1 if x is y else 2)


def reads(x, y):
    return x + y


@pytest.mark.parametrize("model", [writes, asks])
def test_inputs_that_must_not_be_one(model) -> None:
    call = stage(model, (X.clone(), X * 2)).interpret()
    assert torch.equal(call(X.clone(), X * 3), model(X.clone(), X * 3))
    t = X.clone()
    with pytest.raises(InputError, match="'x' and 'y' lie in one memory"):
        call(t, t)
    wide = torch.zeros(3, 3)
    if model is writes:
        with pytest.raises(InputError, match="changes one of them in place"):
            call(wide[:2], wide[1:])
    else:
        assert torch.equal(call(wide[:2], wide[1:]), wide[:2] + 2)


def test_inputs_that_are_only_read_may_be_one() -> None:
    t = X.clone()
    assert torch.equal(stage(reads, (X.clone(), X * 2)).interpret()(t, t), t + t)


def test_inputs_that_must_be_one_view() -> None:
    t = X.clone()
    call = stage(reads, (t, t.view(2, 3))).interpret()
    assert torch.equal(call(t, t.view(2, 3)), t + t)
    with pytest.raises(InputError, match="expected one tensor, as in the example inputs"):
        call(t, X * 2)


def test_a_library_checks_its_inputs(tmp_path) -> None:
    artifact = dycl_tvm.build(writes, (X.clone(), X * 2), verify="off")
    net = dycl_tvm.load(artifact.export_library(tmp_path / "net.so"), artifact.save_params(tmp_path / "net.params"))
    t, wide = X.clone(), torch.zeros(3, 3)
    assert torch.equal(net(X.clone(), X * 3), X * 6)
    for pair in ((t, t), (wide[:2], wide[1:])):
        with pytest.raises(InputError, match="'x' and 'y' lie in one memory"):
            net(*pair)
