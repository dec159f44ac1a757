# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs whose methods are called by Python or by a library, and that change objects of library classes.

Of each: what stands in the module, before, the statements, and what is looked at in the end.
"""

from __future__ import annotations

CLASSES: dict[str, tuple[str, str, str, str]] = {
    "default_factory": (
        "",
        "",
        """
def f():
    log[0] += 1
    return x + log[0]
d = collections.defaultdict(f)
y = d['a'] + d['b'] + d['a']
""",
        "0",
    ),
    "__new__": (
        """
class C:
    def __new__(cls, v, log):
        log[0] += 1
        o = super().__new__(cls)
        o.v = v * 2 if v.sum() > 1 else v
        return o
""",
        "",
        """
y = C(x, log).v
""",
        "0",
    ),
    "__new__init": (
        """
class C:
    def __new__(cls, v, log):
        log[0] += 1
        return super().__new__(cls)
    def __init__(self, v, log):
        log[0] += 2
        self.v = v + log[0]
""",
        "",
        """
y = C(x, log).v
""",
        "0",
    ),
    "__copy__": (
        """
class C:
    def __init__(self, log):
        self.log = log
        self.v = 1
    def __copy__(self):
        self.log[0] += 1
        o = C(self.log)
        o.v = self.v + 1
        return o
""",
        "",
        """
y = x * copy.copy(C(log)).v
""",
        "0",
    ),
    "__deepcopy__": (
        """
class C:
    def __init__(self, log):
        self.log = log
        self.v = 1
    def __deepcopy__(self, memo):
        self.log[0] += 1
        o = C(self.log)
        o.v = self.v + 1
        return o
""",
        "",
        """
y = x * copy.deepcopy([C(log)])[0].v
""",
        "0",
    ),
    "__getattribute__": (
        """
class C:
    def __init__(self, log):
        self.log = log
        self.v = 1
    def __getattribute__(self, name):
        if name == 'v':
            self.log[0] += 1
        return super().__getattribute__(name)
""",
        """
c = C(log)
""",
        """
y = x * c.v
""",
        "0",
    ),
    "__getattr__": (
        """
class C:
    def __init__(self, log):
        self.log = log
    def __getattr__(self, name):
        if name == 'v':
            self.log[0] += 1
            return self.log[0]
        raise AttributeError(name)
""",
        """
c = C(log)
""",
        """
y = x * c.v + getattr(c, 'w', 3) + hasattr(c, 'u')
""",
        "0",
    ),
    "descriptor": (
        """
class D:
    def __get__(self, o, t=None):
        o.log[0] += 1
        return o.log[0]
    def __set__(self, o, v):
        o.log[0] += v
class C:
    d = D()
    def __init__(self, log):
        self.log = log
""",
        """
c = C(log)
""",
        """
c.d = 5
y = x * c.d
""",
        "0",
    ),
    "propset": (
        """
class C:
    def __init__(self, log):
        self.log = log
        self._v = 0
    @property
    def v(self):
        self.log[0] += 1
        return self._v
    @v.setter
    def v(self, n):
        self.log[0] += 2
        self._v = n
""",
        """
c = C(log)
""",
        """
c.v = 3
c.v += 1
y = x * c.v
""",
        "c._v",
    ),
    "ctxmgr_class": (
        """
class CM:
    def __init__(self, log):
        self.log = log
    def __enter__(self):
        self.log[0] += 1
        return self.log[0]
    def __exit__(self, k, e, t):
        self.log[0] += 10 if k is None else 100
        return False
""",
        "",
        """
with CM(log) as n:
    y = x * n
""",
        "0",
    ),
    "ctxmgr_return": (
        """
class CM:
    def __init__(self, log):
        self.log = log
    def __enter__(self):
        self.log[0] += 1
        return self.log[0]
    def __exit__(self, k, e, t):
        self.log[0] += 10 if k is None else 100
        return True
def inner(x, log):
    with CM(log) as n:
        if x.max() > 1:
            return x * n
        x = x + 1
    return x
""",
        "",
        """
y = inner(x, log)
""",
        "0",
    ),
    "cached_property": (
        """
class C:
    def __init__(self, log, v):
        self.log = log
        self.v = v
    @functools.cached_property
    def p(self):
        self.log[0] += 1
        return self.v * 2
""",
        """
c = C(log, x)
""",
        """
y = c.p + c.p
log[0] += 'p' in c.__dict__
""",
        "'p' in vars(c)",
    ),
    "total_ordering": (
        """
@functools.total_ordering
class C:
    def __init__(self, log, v):
        self.log = log
        self.v = v
    def __eq__(self, o):
        self.log[0] += 1
        return self.v == o.v
    def __lt__(self, o):
        self.log[0] += 2
        return self.v < o.v
""",
        "",
        """
y = x * 2 if C(log, x.sum().item()) >= C(log, 1.0) else x * 3
""",
        "0",
    ),
    "contains": (
        """
class C:
    def __init__(self, log):
        self.log = log
    def __contains__(self, v):
        self.log[0] += 1
        return v > 2
""",
        """
c = C(log)
""",
        """
y = x * 2 if x.sum() in c else x
if 3 not in c:
    y = y + 1
""",
        "0",
    ),
    "eqhash": (
        """
class C:
    def __init__(self, log, v):
        self.log = log
        self.v = v
    def __eq__(self, o):
        self.log[0] += 1
        return self.v == o.v
    def __hash__(self):
        self.log[0] += 10
        return 1
""",
        """
c = C(log, 1)
""",
        """
d = {c: 1, C(log, 2): 2}
y = x * d[C(log, 2)] + [c, c].index(C(log, 1))
""",
        "0",
    ),
    "format": (
        """
class C:
    def __init__(self, log):
        self.log = log
    def __format__(self, s):
        self.log[0] += 1
        return s * 2
    def __repr__(self):
        self.log[0] += 3
        return 'C'
    def __str__(self):
        self.log[0] += 5
        return 'CC'
""",
        """
c = C(log)
""",
        """
y = x * len(f'{c:ab}' + str(c) + repr(c) + '{}'.format(c) + '%s' % c)
""",
        "0",
    ),
    "userdict": (
        "",
        """
d = collections.UserDict(a=1)
""",
        """
d['a'] = 2
d['a'] += 5
y = x * d['a']
""",
        "dict(d)",
    ),
    "userlist": (
        "",
        """
d = collections.UserList([1, 2])
""",
        """
d[0] = 5
d[1] += 3
y = x * d[0]
""",
        "list(d)",
    ),
    "userlist_app": (
        "",
        """
d = collections.UserList([1, 2])
""",
        """
d.append(5)
y = x * len(d)
""",
        "list(d)",
    ),
    "chainmap": (
        "",
        """
d = collections.ChainMap({'a': 1}, {'b': 2})
""",
        """
d['a'] = 7
y = x * (d['a'] + d['b'])
""",
        "dict(d)",
    ),
    "counter": (
        "",
        """
d = collections.Counter(a=1)
""",
        """
d['a'] += 2
d.update(['a', 'b'])
y = x * d['a']
""",
        "dict(d)",
    ),
    "ml_set": (
        "",
        """
ml = nn.ModuleList([nn.ReLU(), nn.Tanh()])
""",
        """
ml[0] = nn.Sigmoid()
y = ml[0](x)
""",
        "ml[0](x)",
    ),
    "ml_app": (
        "",
        """
ml = nn.ModuleList([nn.ReLU(), nn.Tanh()])
""",
        """
ml.append(nn.Sigmoid())
y = ml[-1](x) * len(ml)
""",
        "len(ml)",
    ),
    "regbuf": (
        "",
        """
m = nn.Module()
""",
        """
m.register_buffer('b', x * 2)
y = m.b + len(list(m.buffers()))
""",
        "len(list(m.buffers()))",
    ),
    "paramdict": (
        "",
        """
m = nn.ParameterDict({'a': torch.ones(3)})
""",
        """
m['a'] = nn.Parameter(torch.full((3,), 2.0))
y = x * m['a']
""",
        "m['a']+0",
    ),
    "post_init": (
        """
@dataclasses.dataclass
class C:
    v: object
    log: list
    def __post_init__(self):
        self.log[0] += 1
        if self.v.sum() > 1:
            self.v = self.v * 2
""",
        "",
        """
y = C(x, log).v
""",
        "0",
    ),
    "replace": (
        """
@dataclasses.dataclass
class C:
    v: object
    log: list
    def __post_init__(self):
        self.log[0] += 1
""",
        "",
        """
y = dataclasses.replace(C(x, log), v=x + 1).v
""",
        "0",
    ),
    "metaclass": (
        """
class M(type):
    def __call__(cls, *a):
        a[-1][0] += 1
        return super().__call__(*a)
class C(metaclass=M):
    def __init__(self, v, log):
        self.v = v * log[0]
""",
        "",
        """
y = C(x, log).v
""",
        "1",
    ),
    "heapq": (
        """
class C:
    def __init__(self, log, v):
        self.log = log
        self.v = v
    def __lt__(self, o):
        self.log[0] += 1
        return self.v < o.v
""",
        """
h = [C(log, 5), C(log, 7)]
""",
        """
heapq.heappush(h, C(log, 3))
y = x * heapq.heappop(h).v
""",
        "[c.v for c in h]",
    ),
    "callable_obj": (
        """
class C:
    def __init__(self, log):
        self.log = log
    def __call__(self, v):
        self.log[0] += 1
        return v * 2 if v.sum() > 1 else v
""",
        """
c = C(log)
""",
        """
y = list(map(c, [x]))[0]
""",
        "0",
    ),
    "bound_cb": (
        """
class C:
    def __init__(self, log):
        self.log = log
    def m(self, v):
        self.log[0] += 1
        return v * 2 if v.sum() > 1 else v
""",
        """
c = C(log)
""",
        """
y = list(map(c.m, [x]))[0]
""",
        "0",
    ),
    "methodcaller": (
        """
class C:
    def __init__(self, log):
        self.log = log
    def m(self, v):
        self.log[0] += 1
        return v * 2
""",
        """
c = C(log)
""",
        """
y = operator.methodcaller('m', x)(c)
""",
        "0",
    ),
    "attrgetter": (
        """
class C:
    def __init__(self, log):
        self.log = log
    @property
    def m(self):
        self.log[0] += 1
        return 2
""",
        """
c = C(log)
""",
        """
y = x * operator.attrgetter('m')(c)
""",
        "0",
    ),
}
