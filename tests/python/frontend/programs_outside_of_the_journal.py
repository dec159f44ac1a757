# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs whose state changes where the journal does not look, and that are right: see test_outside_of_the_journal.py."""

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
    "caches of the standard library": """
import fnmatch
import re
def net(x):
    re.purge()
    n = []
    def seen(match):
        n.append(match.start() * x.sum())
        return 'b'
    if x.sum() > 0:
        n.append(len(re.sub('a[q]*', seen, 'aba')) + fnmatch.fnmatch('abc', 'a*[c]'))
    return x, n
""",
}
