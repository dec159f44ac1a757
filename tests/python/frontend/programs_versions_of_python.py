# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs in which versions of Python differ, or that later versions only can read: see test_versions_of_python.py."""

from __future__ import annotations

#: The first version of Python that reads a program, and its text.
PROGRAMS: dict[str, tuple[tuple[int, int], str]] = {
    "match of class with walrus": (
        (3, 10),
        """
@dataclasses.dataclass
class P:
    a: Any
    b: Any = None
def net(x):
    p = P(x, None) if x.sum() > 0 else P(x, x * 2)
    match p:
        case P(a=v, b=None): return v + 1
        case P(a=v, b=w): return v + w
""",
    ),
    "dataclass of kw_only and slots": (
        (3, 10),
        """
@dataclasses.dataclass(kw_only=True, slots=True)
class P:
    a: Any
    n: int = 3
    def grow(self):
        self.n += 1
        return self.a * self.n
def net(x):
    p = P(a=x)
    if x.sum() > 0:
        return p.grow()
    return p.grow() + p.grow()
""",
    ),
    "walrus in comprehensions": (
        (3, 10),
        """
def net(x):
    ys = [y for v in x if (y := v * 2).sum() > 0]
    return x, len(ys), y
""",
    ),
    "inlined comprehensions and closures": (
        (3, 10),
        """
def net(x):
    fs = [lambda k=i: k + i for i in range(3)]
    gs = {i: (lambda: i * 10) for i in range(2)}
    i = 7
    s = sum(f() for f in fs) + gs[0]() + i
    return x + s if x.sum() > 0 else x - s
""",
    ),
    "a comprehension shadows a variable": (
        (3, 10),
        """
def net(x):
    k = 5
    a = [k for k in range(3)]
    if x.sum() > 0:
        b = [k + j for j in a for k in (1, 2)]
    else:
        b = [k]
    return x + k, sum(b)
""",
    ),
    "a comprehension that raises": (
        (3, 10),
        """
def net(x):
    k = 5
    try:
        a = [1 // (2 - k) if x.sum() > 0 else k for k in range(4)]
    except ZeroDivisionError:
        return x + k
    return x - k, a
""",
    ),
    "nested comprehensions in a class body": (
        (3, 10),
        """
def net(x):
    class C:
        n = 3
        items = [i * 2 for i in range(n)]
        pairs = {i: [j for j in range(i)] for i in range(n)}
    return x + sum(C.items) + len(C.pairs[2]) if x.sum() > 0 else x
""",
    ),
    "locals in a comprehension": (
        (3, 10),
        """
def net(x):
    a, b = 1, 2
    n = [len(locals()) for i in range(2)]
    m = {k: len(locals()) for k in "ab"}
    return x + n[0] + m["a"] if x.sum() > 0 else x
""",
    ),
    "locals is asked twice": (
        (3, 10),
        """
def net(x):
    a = 1
    d = locals()
    a = 2
    b = 3
    locals()
    return x + d["a"] + len(d) if x.sum() > 0 else x - d["a"]
""",
    ),
    "locals is written": (
        (3, 10),
        """
def net(x):
    a = 1
    locals()["a"] = 5
    d = locals()
    d["q"] = 4
    return x + a + ("q" in locals()) if x.sum() > 0 else x - a
""",
    ),
    "exec in a function": (
        (3, 10),
        """
def net(x):
    a = 1
    exec("a = 7")
    try:
        exec("fresh = 8")
        b = locals().get("fresh", 0)
    except NameError:
        b = -1
    return x + a + b if x.sum() > 0 else x - a - b
""",
    ),
    "generator close and frames": (
        (3, 10),
        """
def net(x):
    log = []
    def g():
        try:
            yield x
            yield x * 2
        except GeneratorExit:
            log.append(1)
            raise
    it = g()
    y = next(it)
    it.close()
    return y + len(log) if x.sum() > 0 else y
""",
    ),
    "inspect of functions": (
        (3, 10),
        """
import inspect
def gen(v):
    yield v
def plain(v):
    return v
def net(x):
    fs = [gen, plain]
    n = [f(x) if not inspect.isgeneratorfunction(f) else next(f(x * 2)) for f in fs]
    return n[0] + n[1] if x.sum() > 0 else n[0]
""",
    ),
    "except star": (
        (3, 11),
        """
def net(x):
    log = []
    try:
        if x.sum() > 0:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
        x = x * 2
    except* ValueError as e:
        log.append(len(e.exceptions))
        x = x + 1
    except* TypeError:
        x = x + 10
    return x, log
""",
    ),
    "except star of a naked error": (
        (3, 11),
        """
def net(x):
    try:
        if x.sum() > 0:
            raise ValueError(3)
        y = x
    except* ValueError as group:
        y = x * len(group.exceptions)
    else:
        y = x + 1
    finally:
        z = x + 3
    return y, z
""",
    ),
    "except star passes others on": (
        (3, 11),
        """
def inner(x):
    try:
        if x.sum() > 0:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError:
        x = x + 1
    return x
def net(x):
    try:
        return inner(x)
    except ExceptionGroup as e:
        return x * len(e.exceptions)
""",
    ),
    "except star with branches inside": (
        (3, 11),
        """
def net(x):
    n = 0
    for k in range(3):
        try:
            if x.sum() > k:
                raise ExceptionGroup("g", [ValueError(k), ExceptionGroup("h", [TypeError(k)])])
            n = n + 100
        except* ValueError:
            if x.max() > 1:
                n = n + 1
        except* TypeError:
            n = n + 10
    return x, n
""",
    ),
    "notes on errors": (
        (3, 11),
        """
def net(x):
    try:
        if x.sum() > 0:
            e = ValueError(1)
            e.add_note("here")
            raise e
    except ValueError as e:
        return x + len(e.__notes__)
    return x
""",
    ),
    "a table in urllib": (
        (3, 11),
        """
import urllib.parse
def net(x):
    n = []
    if x.sum() > 0:
        n.append(len(urllib.parse.quote('a b')))
    return x, n
""",
    ),
    "generic functions": (
        (3, 12),
        """
def pick[T](a: T, b: T, first: bool) -> T:
    return a if first else b
def net(x):
    def twice[U: torch.Tensor](v: U) -> U:
        return v * 2 if v.sum() > 1 else v
    return pick(x, twice(x), x.sum() > 0)
""",
    ),
    "generic class": (
        (3, 12),
        """
class Box[T]:
    def __init__(self, v: T) -> None:
        self.v = v
    def map[U](self, f) -> "Box[U]":
        return Box(f(self.v))
class Net[T](nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Softmax(1)
        self.n = 0
    def forward(self, x: T) -> T:
        self.n += 1
        b = Box[torch.Tensor](x).map(self.l)
        if b.v.sum() > 0:
            return b.map(torch.relu).v + self.n
        return b.v
""",
    ),
    "generic class that is made in the forward": (
        (3, 12),
        """
def net(x):
    class Pair[A, B]:
        def __init__(self, a: A, b: B):
            self.a, self.b = a, b
        def total(self) -> A:
            if self.a.sum() > 0:
                return self.a + self.b
            return self.b
    return Pair[int, int](x, x * 2).total()
""",
    ),
    "a type parameter is used in the body": (
        (3, 12),
        """
from typing import cast
def kept[T](v: T) -> T:
    w = cast(T, v)
    return w + len(T.__name__) if w.sum() > 0 else w
def net(x):
    return kept(x)
""",
    ),
    "type statements": (
        (3, 12),
        """
type Tensors = list[torch.Tensor] | dict[str, torch.Tensor]
def net(x):
    type Local[T] = list[T] | tuple[T, ...]
    v: Local[int] = [1, 2]
    return x + len(v) if x.sum() > 0 else x + len(Local.__name__) + len(Local.__type_params__)
""",
    ),
    "a type statement is evaluated": (
        (3, 12),
        """
def net(x):
    k = int
    type Local = list[k]
    ok = Local.__value__ == list[int]
    return x + ok if x.sum() > 0 else x - ok
""",
    ),
    "nested quotes in f-strings": (
        (3, 12),
        """
def net(x):
    d = {"a": 1, "b": 2}
    name = f"{"a" if x.shape[0] == 2 else "b"}"
    t = f"{f"{d["a"]:>{d["b"]}}"!r:<10}|{name=}"
    return x + len(t) + d[f"{name}"] if x.sum() > 0 else x
""",
    ),
    "f-strings of run-time numbers": (
        (3, 12),
        """
def net(x):
    n = int(x.sum())
    text = f"{n:{'>' + str(4)}} {'\\n'.join(['a', 'b'])} {n!r}"
    if x.sum() > 0:
        raise ValueError(text)
    return x
""",
    ),
    "f-string picks a layer": (
        (3, 12),
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l0, self.l1 = nn.Softmax(1), nn.ReLU()
    def forward(self, x):
        for i in range(2):
            x = getattr(self, f"{"l"}{i}")(x)
            if x.sum() > 1: return x
        return x - 1
""",
    ),
    "sumprod": (
        (3, 12),
        """
import math
def net(x):
    return x + math.sumprod([1, 2], [int(x[0, 0] > 0), 3])
""",
    ),
    "comprehension in a generic method with super": (
        (3, 12),
        """
class A:
    k = 2
    def g(self): return self.k
class B(A):
    def g[T](self, v: T) -> T:
        return [super(B, self).g() * v for _ in range(2)][1] + __class__.k
def net(x):
    return B().g(x) if x.sum() > 0 else x
""",
    ),
    "zero-argument super in a comprehension": (
        (3, 12),
        """
class A:
    def g(self): return 2
class B(A):
    def g(self):
        return [super().g() for _ in range(2)]
def net(x):
    return x + sum(B().g()) if x.sum() > 0 else x
""",
    ),
    "exceptions in an inlined comprehension keep names": (
        (3, 12),
        """
def net(x):
    y = x
    try:
        r = [y for y in [x, x * 2] if y.sum() > 100 or 1 // 0]
    except ZeroDivisionError:
        return y + 1 if x.sum() > 0 else y
    return y
""",
    ),
    "defaults of type parameters": (
        (3, 13),
        """
class Box[T = int]:
    def __init__(self, v): self.v = v
def net(x):
    def f[U = float](v: U) -> U:
        return v + 1 if v.sum() > 0 else v
    return f(Box(x).v)
""",
    ),
    "copy.replace": (
        (3, 13),
        """
import copy
@dataclasses.dataclass
class P:
    a: Any
    n: int = 1
def net(x):
    p = P(x)
    q = copy.replace(p, n=4) if x.sum() > 0 else p
    return q.a * q.n
""",
    ),
    "eval with names": (
        (3, 13),
        """
def net(x):
    a = 3
    y = eval("x * a", globals=None, locals={"x": x, "a": a})
    return y if x.sum() > 0 else y + 1
""",
    ),
    "exec in a function and its locals": (
        (3, 13),
        """
def net(x):
    d = {"a": 1}
    exec("b = a + 1", globals={}, locals=d)
    return x + d["b"] if x.sum() > 0 else x
""",
    ),
    "close gives what the generator returns": (
        (3, 13),
        """
def net(x):
    def g():
        try:
            yield x
        except GeneratorExit:
            return 5
    it = g()
    y = next(it)
    k = it.close()
    return y + k if x.sum() > 0 else y
""",
    ),
    "attributes of classes that Python adds": (
        (3, 13),
        """
class A:
    def __init__(self, v):
        self.v = v
        self.w = v
def net(x):
    return A(x).v + len(A.__static_attributes__) if x.sum() > 0 else x
""",
    ),
    "own docstring": (
        (3, 10),
        """
def net(x):
    '''First.

        Second.
    '''
    return x + len(net.__doc__) if x.sum() > 0 else x
""",
    ),
    "locals on a path of an expression": (
        (3, 10),
        """
def net(x):
    a = 1
    d = locals() if x.sum() > 0 else {}
    return x + len(d), d.get("a", 0)
""",
    ),
    "eval on a path of an expression": (
        (3, 10),
        """
def net(x):
    a = 4
    return x + (eval("a") if x.sum() > 0 else 0)
""",
    ),
    "vars and dir of the function": (
        (3, 10),
        """
def net(x):
    a = 1
    if x.sum() > 0:
        return x + len(vars()), dir()
    return x + vars()["a"], len(dir())
""",
    ),
    "locals behind elif and finally": (
        (3, 10),
        """
def net(x):
    k = 0
    try:
        if x.shape[0] == 1: k = 1
        elif x.shape[0] == 5: k = 2
        elif x.shape[0] == 5: k = 2
        elif x.shape[0] == 5: k = 2
        elif x.shape[0] == 5: k = 2
        elif x.shape[0] == 5: k = 2
        elif x.shape[0] == 5: k = 2
        elif x.shape[0] == 5: k = 2
        elif x.shape[0] == 5: k = 2
        elif x.sum() > 0: k = 2
        else: k = 3
    finally:
        x = x + 1
    return x + k, sorted(locals())
""",
    ),
    "locals in both sides": (
        (3, 10),
        """
def net(x):
    a = 1
    if x.sum() > 0:
        d = locals()
        d["q"] = 3
    else:
        d = locals()
    n = len(locals())
    return x + n, sorted(d), d is locals()
""",
    ),
    "exec writes what locals shows": (
        (3, 10),
        """
def net(x):
    d = locals()
    exec("fresh = 8")
    return x + d.get("fresh", 1), sorted(locals())
""",
    ),
    "locals of a class body": (
        (3, 10),
        """
def net(x):
    class C:
        locals()["k"] = 4
        n = len([v for v in locals() if not v.startswith("__")])
    return x + C.k if x.sum() > 0 else x + C.n
""",
    ),
    "locals in a loop": (
        (3, 10),
        """
def net(x):
    n = 0
    while n < 3 and x.sum() < 4:
        d = locals()
        x = x + d["n"] + 1
        n += 1
    return x, n
""",
    ),
    "locals of a generator and a lambda": (
        (3, 10),
        """
def net(x):
    def g(a):
        yield len(locals())
        b = 3
        yield len(locals())
    f = lambda p, q=2: sorted(locals())
    return x + sum(g(1)), f(1) if x.sum() > 0 else f(2)
""",
    ),
    "return in try star": (
        (3, 11),
        """
def net(x):
    for k in range(3):
        try:
            if x.sum() > k + 1: return x + k
            if x.max() > 1: break
            if x.min() < -1: continue
            x = x + 1
        except* ValueError:
            x = x + 100
        else:
            if x.sum() > 2: return x - 5
        finally:
            x = x * 2
    return x
""",
    ),
    "try star around errors of Python": (
        (3, 11),
        """
def net(x):
    d = {}
    try:
        y = x * 2
        if x.sum() > 0: d["a"]
        [].pop()
    except* (KeyError, TypeError) as e:
        y = y + 1
    except* IndexError:
        y = y + 10 if x.max() > 1 else y + 20
    return y
""",
    ),
    "raise in except star": (
        (3, 11),
        """
def net(x):
    try:
        try:
            if x.sum() > 0:
                raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
        except* ValueError:
            raise KeyError(3)
    except ExceptionGroup as e:
        return x * len(e.exceptions), [type(v).__name__ for v in e.exceptions]
    return x
""",
    ),
    "an object of a generic class": (
        (3, 10),
        """
from typing import Generic, TypeVar
T = TypeVar("T")
class Box(Generic[T]):
    def __init__(self, v: T):
        self.v, self.n = v, 0
    def __call__(self, x):
        self.n += 1
        return x * self.n
BOX = Box(1)
def net(x):
    y = sum(map(BOX, [x, x])) if x.sum() > 0 else x
    return y + Box[int](2).v, BOX.n
""",
    ),
}
