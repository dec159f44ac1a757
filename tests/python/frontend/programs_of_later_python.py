# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs that later versions of Python than 3.10 read: see test_versions_of_python.py."""

from __future__ import annotations

#: The first version of Python that reads a program, and its text.
PROGRAMS: dict[str, tuple[tuple[int, int], str]] = {
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
}
