# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Rules of the language reference on expressions and simple statements that decide a result: in which order, how often, in which scope."""

from __future__ import annotations

import pytest
from test_hunted import check_refused, check_right

_ASKED = """
class Flag:
    def __init__(self, value, log, name):
        self.value, self.log, self.name = value, log, name
    def __bool__(self):
        self.log.append(self.name)
        return bool(self.value)
"""
_SIZED = "class Sized:\n    def __init__(self, n): self.n = n\n    def __len__(self): return self.n\n"
_GLOBAL = "N = 0\n"
RIGHT = {
    "the name of a handler is deleted on one side": """
def net(x):
    e = 1
    if x.sum() > 0:
        try: raise ValueError("q")
        except ValueError as e: pass
    try:
        return e
    except UnboundLocalError:
        return "gone"
""",
    "the name of a handler is deleted in a trip": """
def net(x):
    e, k = x, 0
    while k < 4 and x.abs().sum() > 0.5:
        x, k = x * 0.5, k + 1
        try:
            if x.mean() > 0.3: raise ValueError("q")
        except ValueError as e: pass
    try:
        return e, k
    except UnboundLocalError:
        return "gone", k
""",
    "a global name of a handler": _GLOBAL
    + """
def ended(x):
    global N
    N = 0
    try:
        if x.sum() > 0: raise ValueError("a")
    except ValueError as N:
        if x[0, 0] > 0.7: return str(N)
    try:
        return N
    except NameError:
        return "none"
def net(x):
    return ended(x)
""",
    "which exception is raised depends on the path": """
def net(x):
    error = ValueError("c")
    if x.sum() > 0: error = KeyError("d")
    try:
        raise error
    except (ValueError, KeyError) as e:
        return type(e).__name__
""",
    "which class is raised depends on the path": """
def net(x):
    try:
        raise ValueError if x.sum() > 0 else KeyError("k")
    except (ValueError, KeyError) as e:
        return type(e).__name__
""",
    "what a handler is for depends on the path": """
def net(x):
    kind, found = ValueError if x.sum() > 0 else KeyError, []
    for kinds in (kind, (IndexError, kind), [ValueError, KeyError][(x[0, 0] > 0).item()]):
        try:
            raise ValueError("a")
        except kinds as e:
            found.append(str(e))
        except Exception:
            found.append(None)
    return found
""",
    "the cause of an exception depends on the path": """
def net(x):
    cause = ValueError("c") if x.sum() > 0 else None
    try:
        raise TypeError("t") from cause
    except TypeError as e:
        return type(e.__cause__).__name__, e.args, e.__suppress_context__
""",
    "a class that is raised is called behind its cause": """
class Broken(Exception):
    def __init__(self, log=None):
        LOG.append("made")
LOG = []
def cause():
    LOG.append("cause")
    return KeyError("k")
def net(x):
    LOG.clear()
    try:
        if x.sum() > 0: raise Broken from cause()
        raise Broken() from cause()
    except Broken as e:
        return list(LOG), type(e.__cause__).__name__
""",
    "a global target of a loop": _GLOBAL
    + """
def found(x):
    global N
    for N in range(3):
        if x[0, N] > 0.7: break
    for k, N in enumerate([N + 5, N + 6, N + 7]):
        if x[1, k] > 0.7: return k
def net(x):
    return found(x), N
""",
    "a global name is assigned in a condition": _GLOBAL
    + """
def counted(x):
    global N
    N = 0
    while (N := N + 1) < 4:
        if x[0, N - 1] > 0.7: break
    return x * N
def net(x):
    return counted(x), N
""",
    "a private global name of a class": """
_Cell__count = 7
class Cell:
    def step(self, x):
        global __count
        if x.sum() > 0:
            __count = 5
        return __count * x
def net(x):
    return Cell().step(x), _Cell__count
""",
    "the body of a class sees its own names": """
def net(x):
    s = x.sum().item()
    class Limits:
        low = 1
        high = low if s > 0 else low + 1
        ordered = low < high < 3
        both, one, none = low and high, low or high, not (low and high > 1)
        name = f"{low}{high}"
    return Limits.high, Limits.ordered, Limits.both, Limits.one, Limits.none, Limits.name
""",
    "a target without a value is evaluated": """
class Box: pass
def net(x):
    box, log = Box(), []
    def noted(k, v):
        log.append(k)
        return v
    first: noted("never", int) = noted("value", x)
    if x.sum() > 0:
        noted("object", box).w: int
        noted("items", {})[noted("key", 5)]: int
    return first, log
""",
    "an annotation makes a name local": """
scale = 7
def net(x):
    scale: int
    if x[0, 0] > 5: scale = 3
    try:
        return scale * x
    except UnboundLocalError:
        return -x if x.sum() > 0 else x
def plain(x):
    scale: int
    try:
        return scale * x
    except UnboundLocalError:
        return -x if x.sum() > 0 else x
net = (lambda one, two: lambda x: (one(x), two(x)))(net, plain)
""",
    "an operand of a test is asked once for its truth where another one sets a name": _ASKED
    + """
def net(x):
    log, n = [], 0
    if Flag(x.sum() < 0, log, "a") and (k := x * 2).sum() > 0: x = x - k
    while n < 2 and not (Flag(n, log, "b") or (k := x.mean()) > 0.5): x, n = x + k, n + 1
    y = x * 2 if Flag(True, log, "c") and (k := x.mean()) > 0 else x
    for i in range(2):
        if x[0, i] > 0 and (j := i + int(x[0, 1] > 0)) < 2: y = y + j
    assert Flag(1, log, "d") and (k := 3), k
    return y, ",".join(log), n
""",
    "an operand is asked once for its truth": _ASKED
    + """
def net(x):
    log = []
    a, b, c = Flag(x.sum() > 0, log, "a"), Flag(x[0, 0] > 0.6, log, "b"), Flag(x[1, 1] > 0, log, "c")
    first, second, third = (a and b) or c, (a or b) and c, (a and b) and c
    return first.name, second.name, third.name, log
""",
    "a length that is negative": _SIZED
    + """
def net(x):
    sized, log = Sized(int(x.sum())), []
    for ask in (lambda: len(sized), lambda: bool(sized), lambda: not sized, lambda: 1 if sized else 2):
        try:
            log.append(ask())
        except ValueError as e:
            log.append(str(e))
    return log
""",
    "what is no length": _SIZED
    + """
def net(x):
    log = []
    for n in (x.sum().item(), (x > 0).sum(), x.sum(), (x.sum() > 0).item(), None):
        for ask in (len, bool):
            try:
                log.append(ask(Sized(n)))
            except TypeError as e:
                log.append(type(e).__name__)
    return log
""",
    "what is no truth, and no number": """
class Given:
    def __init__(self, value): self.value = value
    def __bool__(self): return self.value
    def __int__(self): return self.value
    def __float__(self): return self.value
def net(x):
    log = []
    for value in (int(x.sum()), x.sum().item(), (x.sum() > 0).item(), x.sum() > 0, None):
        for ask in (bool, int, float, lambda v: 1 if v else 0, lambda v: not v):
            try:
                log.append(ask(Given(value)))
            except TypeError as e:
                log.append(str(e))
    return log
""",
    "names of Python's that the program uses for its own": """
def locals(): return 3
def vars(): return 6
class AssertionError(Exception): pass
def net(x, eval=lambda v: v * 2, dir=lambda: 4):
    k = 0
    if x.sum() > 0: k = 1
    while k < 3 and x.mean() > 0: k += 1
    try:
        assert x.sum() > 0
    except AssertionError: k = 10
    except Exception: k = 20
    return k, locals(), eval(x), vars(), dir()
""",
    "a variable is called like a function of Python's": """
def net(x):
    locals = {"a": 1}
    for i in range(3):
        if x[0, i] > 0.7: break
    vars = locals if x.sum() > 0 else {}
    return i, locals, vars
""",
    "reflected operators of the user's beside a number of the run": """
class Own:
    def __rdivmod__(self, other): return "divmod", other
    def __rlshift__(self, other): return "shift", other
    def __rand__(self, other): return "and", other
    def __rmod__(self, other): return "mod", other
def net(x):
    n, f = int((x > 0).sum()), x.sum().item()
    return divmod(n, Own()), divmod(f, Own()), n << Own(), n & Own(), f % Own(), (x > 0).any().item() & Own()
""",
    "an operand is a variable that is not set": """
def net(x):
    log = []
    for k in range(2):
        for read in ("and", "ternary", "chain"):
            try:
                if read == "and": r = (x.sum() > 0).item() and y
                elif read == "ternary": r = (lambda: 3)() if x.sum() > 0 else y + y
                else: r = -9 < x.sum().item() < y
                log.append(read)
            except UnboundLocalError as e:
                log.append(str(e))
        try:
            if k: log.append([v for v in (1, 2) if unset > v])
        except NameError as e:
            log.append(e.name)
        if x[0, 0] > 0.7: y = 1
    if x.sum() > 100: unset = 1
    return log
""",
    "an error whose number depends on the path": """
def net(x):
    if x[0, 0] > 0.6:
        k = 2 if x.sum() > 3 else 1
        raise ValueError(k)
    assert x.sum() > -3, (2 if x.mean() > -0.7 else 1)
    return x
""",
    "an error of a number of the run": """
def net(x):
    k = int(x.sum())
    if k > 2: raise ValueError(k, "items")
    assert k > -5, k
    return x
""",
}


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    check_right(RIGHT[name])


@pytest.mark.parametrize("call", ["pow(n, 2, 7)", "pow(2, n, 7)", "pow(base=2, exp=3, mod=n)"])
def test_a_power_with_a_modulus_is_refused_where_a_handler_is_for_its_errors(call: str) -> None:
    source = f"def net(x):\n    n = int(x.sum())\n    try:\n        return {call}\n    except TypeError:\n        return 0\n"
    check_refused(source, "pow() of a number known only at run time with a modulus")
