# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs that all versions of Python read, and in which they may differ: see test_versions_of_python.py."""

from __future__ import annotations

#: The first version of Python that reads a program, and its text.
PROGRAMS: dict[str, tuple[tuple[int, int], str]] = {
    "continue in a try of an unrolled loop": (
        (3, 10),
        """
def net(x):
    for k in range(3):
        try:
            if x.sum() > k + 1: return x + k
            if x.min() < -1: continue
            x = x + 1
        finally:
            x = x * 2
    return x
""",
    ),
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
