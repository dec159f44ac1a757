# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Exceptions of the user's methods that Python itself catches: a property has no value, a sequence ends, or has no length."""

from __future__ import annotations

import pytest
from test_hunted import check_refused, check_right

_OBJECT = """
class Object:
    def __init__(self, x): self.__dict__["x"] = x
    @property
    def value(self):
        if self.x.sum() > 0: raise AttributeError("value")
        return self.x * 2
class Fallback(Object):
    def __getattr__(self, name):
        if name == "value": return self.x - 1
        if name == "more" and self.x[0, 0] > 0: return self.x + 1
        raise AttributeError(name)
"""
_SEQUENCE = """
class Sequence:
    def __init__(self, x): self.x = x
    def __getitem__(self, i):
        if i > 2 or self.x[0, i] < -1: raise IndexError(i)
        return self.x[0, i]
"""
RIGHT = {
    "hasattr of a property": _OBJECT + "def net(x):\n    return hasattr(Object(x), 'value'), hasattr(Fallback(x), 'more')\n",
    "getattr with a default": _OBJECT + "def net(x):\n    return getattr(Object(x), 'value', x)\n",
    "__getattr__ after a property": _OBJECT + "def net(x):\n    return Fallback(x).value\n",
    "an error of a property that nobody catches": _OBJECT + "def net(x):\n    return Object(x).value\n",
    "__getattribute__": """
class Object:
    def __init__(self, x): self.x, self.k = x, 1
    def __getattribute__(self, name):
        if name == "k" and object.__getattribute__(self, "x").sum() > 0: raise AttributeError
        return object.__getattribute__(self, name)
    def __getattr__(self, name): return 7
def net(x):
    return Object(x).k, x
""",
    "a property of a module": """
class Net(nn.Module):
    @property
    def gain(self):
        return self.settings.gain
    @property
    def settings(self):
        if self.x.sum() > 0: raise AttributeError("settings")
        return torch.finfo(torch.float32)
    def forward(self, x):
        self.x = x
        return getattr(self, "settings", None) is None, x
""",
    "a loop over a sequence": _SEQUENCE
    + "def net(x):\n    n = 0\n    for v in Sequence(x):\n        if v > 1: x = x + v\n        n += 1\n    return x, n\n",
    "list and unpacking": _SEQUENCE + "def net(x):\n    return list(Sequence(x)), [*Sequence(-x)]\n",
    "zip and enumerate": _SEQUENCE
    + "def net(x):\n    return len(list(zip(Sequence(x), range(9)))), sum(i for i, _ in enumerate(Sequence(x)))\n",
    "membership": _SEQUENCE + "def net(x):\n    return 5 in Sequence(x), x\n",
    "an item of a list at a run-time index": """
class Sequence:
    def __init__(self, n): self.n, self.items = n, [1, 2, 3]
    def __getitem__(self, i): return self.items[self.n + i if i < 3 else 9]
def net(x):
    return len(list(Sequence(int(x[0, 0].abs())))), x
""",
    "a sequence backwards": """
class Sequence:
    def __init__(self, x): self.x = x
    def __len__(self): return 3
    def __getitem__(self, i):
        if self.x[0, i] < -1: raise IndexError
        return self.x[0, i]
def net(x):
    return len(list(reversed(Sequence(x)))), x
""",
    "a length that is not known": """
class Items:
    def __init__(self, x): self.x = x
    def __iter__(self): return iter([1, 2])
    def __len__(self):
        if self.x.sum() > 0: raise TypeError
        return 2
def net(x):
    return list(Items(x)), x
""",
    "a local variable that is not set, in an operand": """
def net(x):
    found = []
    for k in range(2):
        if k: z = 3
        for f in (lambda: None,):
            try: found.append(z if x.sum() > 0 else 1)
            except UnboundLocalError: found.append("local")
            try: found.append(bool(x.sum() > 0 and (z or 1)))
            except UnboundLocalError: found.append("local")
            try: found.append(0 < k + 1 <= z)
            except UnboundLocalError: found.append("local")
    return x, found
""",
    "a variable of an outer function that is not set, in an operand": """
def outer(x, c):
    if c: z = 1
    def f():
        try: return z if x.sum() > 0 else (z and 1)
        except UnboundLocalError: return "local"
        except NameError: return "free"
    g = lambda: (z if x.sum() > 0 else 1) or 0
    try: return f(), g()
    except NameError as error: return f(), type(error) is NameError
def net(x):
    return x, outer(x, False), outer(x, True)
""",
    "what is no Exception": """
class Stop(BaseException): pass
def early(x):
    if x.sum() > 1: return x * 2
    raise Stop
def net(x):
    n = 0
    try:
        if x.sum() > 0: raise Stop(1)
        n += 1
        while n < 4:
            n += 1
            if x[0, 0] < -n: raise SystemExit(n)
        early(x - 1)
    except (Stop, SystemExit) as stop:
        return x, n, stop.args
    return x, n, None
""",
    "the end of a generator that is closed, raised again": """
def numbers(x, log):
    try:
        while True: yield x
    except GeneratorExit:
        log.append("closed")
        if x.sum() > 0: raise
    finally:
        log.append("end")
def net(x):
    log = []
    g = numbers(x, log)
    for v in g:
        if v.sum() > 1 or len(log) > 0: break
        log.append("trip")
    g.close()
    return x, log
""",
    "an index error of the body": _SEQUENCE
    + """
def net(x):
    n = 0
    try:
        for v in Sequence(x):
            if v > 0.7: raise IndexError("body")
            n += 1
    except IndexError as error:
        return n, error.args, x
    return n, (), x
""",
}


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    check_right(RIGHT[name])


def test_what_is_no_exception_and_leaves_the_network_is_refused() -> None:
    program = "def net(x):\n    if x.sum() > 0: raise SystemExit(3)\n    return x\n"
    check_refused(program, "the forward raises SystemExit, which is no Exception")
