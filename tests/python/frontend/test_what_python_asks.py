# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What Python itself asks, changes or tells: whether a name is set, modes of PyTorch's, attributes of compiled objects, weak references."""

from __future__ import annotations

import weakref

import pytest
import torch
from differential import check
from test_hunted import check_refused, check_right
from test_kept_containers import kept

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage

_NODE = "import weakref\nclass Node: pass\n"
_CACHED = """import functools
class Config:
    k = 0
    @functools.cached_property
    def eye(self):
        self.k += 1
        return torch.eye(3) / 2
"""
RIGHT = {
    "a partial of a partial": """
import functools
def f(v, k): return v * k
def net(x):
    inner = functools.partial(f, k=2)
    outer = functools.partial(inner, x)
    if x.sum() > 0: inner.keywords["k"] = 5
    return outer(), outer.func is f, inner(x), sorted(outer.keywords)
""",
    "the code of a function": """
class Box:
    def put(self, v, k=1):
        w = v
        return w
def f(v):
    a = 1
    return v
def net(x):
    n = len(f.__code__.co_varnames) + len(getattr(Box().put, "__code__").co_varnames)
    return f(x) + n if x.sum() > 0 else (x, f.__code__.co_nlocals)
""",
    "a variable is read and not used": "def net(x):\n    if x.sum() > 0:\n        y = x\n    y\n    return x\n",
    "a variable is handed on": """
def net(x):
    if x.sum() > 0: y = x
    try:
        z = (y, [y])
    except UnboundLocalError:
        return x - 1
    return x
""",
    "a variable of an outer function": """
def net(x):
    y = 1
    def drop():
        nonlocal y
        if x.sum() > 0: del y
    def read(): y
    drop()
    try:
        read()
    except NameError:
        return x - 1
    return x
""",
    "a variable that an inner function deletes": """
def net(x):
    y = 1
    def drop():
        nonlocal y
        if x.sum() > 0: del y
    drop()
    try:
        z = (y, 2)
    except NameError:
        return x - 1
    return x + z[1]
""",
    "a variable of a loop": """
def net(x):
    n = 0
    while n < x.sum():
        last = n
        n += 1
    try:
        held = last
    except UnboundLocalError:
        return x - 1, n
    return x, n
""",
    "an attribute": """
class Box: pass
def net(x):
    box = Box()
    if x.sum() > 0: box.h = x
    try:
        z = [box.h]
    except AttributeError:
        return x - 1
    return x
""",
    "names of the variables": "def net(x):\n    if x.sum() > 0: y = 1\n    return x, sorted(locals())\n",
    "gradients are switched": """
def net(x):
    with torch.enable_grad():
        if x.sum() > 0: torch.set_grad_enabled(False)
        on = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
    return x, on, torch.is_grad_enabled()
""",
    "jumps out of modes": """
def helper(x):
    with torch.enable_grad():
        if x.sum() > 0: return x * 2
    return x
def net(x):
    x = helper(x)
    on = torch.is_grad_enabled()
    for i in range(3):
        with torch.enable_grad():
            if x[0, i] > 1: break
            with torch.no_grad():
                if x[0, i] < -1: continue
        x = x + 1
    else:
        with torch.enable_grad():
            if x[0, 0] > 0: return x, torch.is_grad_enabled()
    return x, on, torch.is_grad_enabled()
""",
    "functions with modes": """
@torch.enable_grad()
def on(x): return x + 1 if x.sum() > 0 else x, torch.is_grad_enabled()
@torch.enable_grad()
def values(x):
    yield torch.is_grad_enabled()
    if x.sum() > 0: yield x
class Net(nn.Module):
    @torch.autocast("cpu", torch.bfloat16)
    def forward(self, x):
        y = x @ torch.eye(3)
        if x[0, 0] > 1: return y, on(x), list(values(x)), torch.is_grad_enabled()
        return y * 2, torch.is_grad_enabled()
""",
    "a decorator that does more than a mode": """
from torch.utils._contextlib import _DecoratorContextManager
class Count(_DecoratorContextManager):
    n = 0
    def __enter__(self): Count.n += 1
    def __exit__(self, kind, *error):
        Count.n += 10
        return kind is ValueError
@Count()
def helper(x):
    if x.sum() > 0: raise ValueError
    return x + 1
class Net(nn.Module):
    def forward(self, x):
        y = helper(x)
        return x if y is None else y, Count.n
""",
    "an attribute that takes tensors only": """
def net(x):
    t, n = x.clone(), 0
    while n < x.sum():
        t.grad = x * n
        n += 1
    return x if t.grad is None else t.grad, n
""",
    "an attribute that takes bools only": kept(
        "if x.sum() > 0:\n    self.w.requires_grad_(False)\non = self.w.requires_grad\nself.w.requires_grad_(True)\nreturn x * self.w, on",
        "self.w = nn.Parameter(torch.ones(3))",
    ),
    "the bases of a class": """
class A:
    k = 1
class B(A):
    k = 2
class C(A): pass
def net(x):
    if x.sum() > 0: C.__bases__ = (B,)
    y = x * C.k
    C.__bases__ = (A,)
    return y
""",
    "the state of a partial": """
import functools
def net(x):
    p = functools.partial(torch.mul, x)
    if x.sum() > 0: p.__setstate__((torch.add, (x,), {}, None))
    return p(x + 1)
""",
    "a property computed once and not used": _CACHED
    + kept("if x.sum() > 0:\n    self.c.eye\nn, self.c.k = self.c.k, 0\nreturn x, n", "self.c = Config()"),
    "a property computed in the first call": _CACHED + kept("return x @ self.c.eye, self.c.k", "self.c = Config()"),
    "None before the first call and a tensor after it": kept(
        "y = x\nif self.n > 0:\n    y = x @ self.w\nself.n += 1\nself.w = torch.eye(3) * self.n\nreturn y, self.n",
        "self.n, self.w = 0, None",
    ),
    "special methods with results that depend on the path": """
class Text:
    def __init__(self, v): self.v = v
    def __index__(self): return 1 if self.v.sum() > 0 else 2
    def __float__(self): return 1.5 if self.v.sum() > 0 else 2.5
    def __str__(self): return "p" if self.v.sum() > 0 else "n"
    __hash__ = __int__ = __index__
def net(x):
    t = Text(x)
    return x[:, t], [1, 2, 3][t], float(t), int(t), str(t), f"{t}", "%s" % t, hash(t)
""",
    "items of a dict at numbers known at run time": """
def net(x):
    load, rows = {0: 0, 1: 10, 2.0: 20}, defaultdict(list)
    i = int(x[0].argmax())
    load[i] += 1
    for k in range(2): rows[bool(x[k].sum() > 0)].append(k)
    try:
        del load[int(x[1].argmax())]
        return x, load, list(rows.items()), load[i]
    except KeyError:
        return x, load
""",
    "a context variable": """
import contextvars
LEVEL = contextvars.ContextVar("LEVEL", default=1)
def net(x):
    token = LEVEL.set(2)
    if x.sum() > 0:
        LEVEL.reset(token)
        return x * LEVEL.get()
    y = x + LEVEL.get()
    LEVEL.reset(token)
    return y
""",
    "a dict class of the library's": """
from collections import UserDict
class Table(UserDict):
    missed = 0
    def __missing__(self, key):
        self.missed += 1
        return len(key)
def net(x):
    table = Table(a=1)
    return x * table["abc" if x.sum() > 0 else "a"], table.missed
""",
    "texts that are joined": """
def net(x):
    try:
        text = "".join("1" if v > 0 else "0" for v in x[0])
    except TypeError:
        text = "101"
    return x, text
""",
    "a child that knows its parent": """
import weakref
class Child(nn.Module):
    def __init__(self, parent):
        super().__init__()
        self.parent = weakref.ref(parent)
    def forward(self, x):
        self.parent().n += 1
        return x * self.parent().n
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0
        self.child = Child(self)
    def forward(self, x):
        y = self.child(x)
        if y.sum() > 0: y = self.child(y)
        return y, self.n
""",
    "items of weak containers that live": _NODE
    + kept(
        "n = self.a if x.sum() > 0 else self.b\nself.w[n] += 1\nfor k in self.s:\n    k.v += 1\n"
        "return x, self.w[self.a], self.b.v, len(self.s)",
        "self.a, self.b = Node(), Node()\nself.a.v = self.b.v = 1\nself.w = weakref.WeakKeyDictionary({self.a: 1, self.b: 2})\n"
        "self.s = weakref.WeakSet([self.b])",
    ),
}
_ENDS = "depends on when Python gives an object up"
_DROP = "if x.sum() > 0:\n    self.node = None\n"
REFUSED = {
    "a callback of a weak reference": (
        _NODE
        + kept(
            f"{_DROP}return x, len(self.log)",
            "self.log, self.node = [], Node()\nself.r = weakref.ref(self.node, lambda r: self.log.append(1))",
        ),
        _ENDS,
    ),
    "a finalizer": (
        _NODE
        + kept(f"{_DROP}return x, len(self.log)", "self.log, self.node = [], Node()\nweakref.finalize(self.node, self.log.append, 1)"),
        _ENDS,
    ),
    "a weak reference to what may be dropped": (
        _NODE + kept(f"{_DROP}return x, self.r() is None", "self.node = Node()\nself.r = weakref.ref(self.node)"),
        _ENDS,
    ),
    "a proxy": (_NODE + kept(f"{_DROP}return x", "self.node = Node()\nself.p = weakref.proxy(self.node)"), _ENDS),
    "a weak container": (
        _NODE + kept(f"n = len(self.s)\n{_DROP}return x, n", "self.node = Node()\nself.s = weakref.WeakSet([self.node])"),
        _ENDS,
    ),
    "a mode that is left on": (
        "def net(x):\n    if x.sum() > 0: torch.set_grad_enabled(True)\n    return x, torch.is_grad_enabled()\n",
        "the mode of gradients and others)` of the model is left with other contents",
    ),
    "a partial that calls change": (
        "import functools\n"
        + kept(
            "self.p.__setstate__((torch.add if self.p.func is torch.mul else torch.mul, (), {}, {}))\nreturn self.p(x, x)",
            "self.p = functools.partial(torch.mul)",
        ),
        "the partial `p` of the model is left with other contents",
    ),
    "a class that is registered": (
        "import abc\nclass Shape(abc.ABC): pass\nclass A: pass\n"
        "def net(x):\n    if x.sum() > 0: Shape.register(A)\n    return x, isinstance(A(), Shape)\n",
        "changes what isinstance() says",
    ),
    "texts that a library's function joins": (
        "def net(x):\n    try:\n        return x, str.join('', ('a' if v > 0 else None for v in x[0]))\n"
        "    except TypeError:\n        return x, 'b'\n",
        "a value that depends on the path is given to code that looks at its class",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    check_right(RIGHT[name])


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    check_refused(*REFUSED[name])


def test_looking_at_the_model_runs_none_of_its_code() -> None:
    asked: list[str] = []

    class Slotted:
        __slots__ = ("value", "__weakref__")

    class Hiding(Slotted):
        __slots__ = ()

        @property
        def value(self) -> float:  # type: ignore[override]
            asked.append("a property that hides a slot")
            return 3.0

    class Answering:
        __slots__ = ()

        def __getattr__(self, name: str) -> float:
            asked.append(name)
            raise AttributeError(name)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hiding, self.answering, self.told = Hiding(), Answering(), Slotted()
            self.reference = weakref.ref(self.told, lambda _: asked.append("the end of an object"))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.sum() > 0 else x * 3

    net = Net()
    stage(net, (torch.ones(2),))
    assert not asked


def _of_a_branch(x):
    a, b = x + 1, x + 2
    a.tag, b.tag = 1, 2
    return (a if x.sum() > 0 else b).tag


def _of_one_side(x):
    a, b = x + 1, x + 2
    a.tag = 1
    return hasattr(a if x.sum() > 0 else b, "tag")


def _under_another_name(x):
    a, b = x + 1, x + 2
    y = a if x.sum() > 0 else b
    y.tag = 1
    return hasattr(a, "tag"), hasattr(b, "tag")


def _in_a_loop(x):
    x = x + 0
    while x.sum() < 4:
        x = x + 1
        x.tag = 4
    return getattr(x, "tag", 0)


TAGGED = [_of_a_branch, _of_one_side, _under_another_name]
SIGNS = [(torch.ones(2),), (-torch.ones(2),)]


@pytest.mark.parametrize("model", TAGGED, ids=lambda m: m.__name__)
def test_an_attribute_of_a_tensor_is_that_of_the_tensor_of_each_path(model):
    check(model, SIGNS, paths=2)


def test_an_attribute_of_a_tensor_that_a_rolled_loop_leaves_is_refused():
    with pytest.raises(UnsupportedError, match="the attribute `tag`"):
        stage(_in_a_loop, SIGNS[0])
    check(_in_a_loop, SIGNS, max_loop_trips=10)


def test_a_range_of_run_time_length_is_no_result():
    with pytest.raises(UnsupportedError, match="is returned"):
        stage(lambda x: range(int(x.argmax())), SIGNS[0])
