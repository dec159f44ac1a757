# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The user's functions, called by Python and by libraries in every way: what they change is seen on every path, over several calls.

Each kind is a few statements that set ``y`` from ``x`` and count in ``log``. It is tried on one side of an ``if``, in a loop, in a helper
that is called twice, before an early return, in ``try`` and in a generator, with a log of the call and one of the model.
"""

from __future__ import annotations

import copy
import linecache
import sys
import textwrap
import types

import pytest
import torch
from differential import same

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import graph_initial, interpret

IMPORTS = """
import collections, contextlib, copy, dataclasses, functools, heapq, itertools, operator, queue, re
import torch
from torch import nn
from torch.utils import _pytree as pytree
"""
#: (in the module, before, the statements, what is looked at in the end)
KINDS = {
    "map": (
        "",
        "",
        """
def f(v):
    log[0] += 1
    return v * 2 if v.max() > 1 else v - 1
y = list(map(f, [x, -x]))[0]
""",
        "0",
    ),
    "map_lambda": (
        "",
        "",
        """
y = list(map(lambda v: (log.__setitem__(0, log[0] + 1), v * 2)[1], [x]))[0]
""",
        "0",
    ),
    "reduce": (
        "",
        "",
        """
y = functools.reduce(lambda a, b: a + b if isinstance(b, float) else a - 1, [x, x.sum().item(), 2])
""",
        "0",
    ),
    "filter": (
        "",
        """
q = None
if x[0, 0] > 0.5:
    q = x
""",
        """
def f(v):
    log[0] += 1
    return v is not None
y = sum(filter(f, [q, x]))
""",
        "0",
    ),
    "sorted": (
        "",
        "",
        """
def key(v):
    log[0] += 1
    return -v if log[0] > 1 else v
y = x * sorted([3, 1, 2], key=key)[0]
""",
        "0",
    ),
    "sortmethod": (
        "",
        "",
        """
def key(v):
    log[0] += 1
    return -v
z = [3, 1, 2]
z.sort(key=key)
y = x * z[0]
""",
        "0",
    ),
    "minkey": (
        "",
        "",
        """
def key(v):
    log[0] += 1
    return -v
y = x * min([3, 1, 2], key=key) + max([1,2], key=key)
""",
        "0",
    ),
    "starmap": (
        "",
        "",
        """
def f(a, b):
    log[0] += a
    return b * a
y = sum(itertools.starmap(f, [(1, x), (2, x)]))
""",
        "0",
    ),
    "accumulate": (
        "",
        "",
        """
def f(a, b):
    log[0] += 1
    return a + b if a.sum() > 1 else a - b
y = list(itertools.accumulate([x, x, x], f))[-1]
""",
        "0",
    ),
    "takewhile": (
        "",
        "",
        """
def f(v):
    log[0] += 1
    return v < 3
y = x * sum(itertools.takewhile(f, [1, 2, 3, 4]))
""",
        "0",
    ),
    "dropwhile": (
        "",
        "",
        """
def f(v):
    log[0] += 1
    return v < 3
y = x * sum(itertools.dropwhile(f, [1, 2, 3, 4]))
""",
        "0",
    ),
    "groupby": (
        "",
        "",
        """
def f(v):
    log[0] += 1
    return v % 2
y = x * sum(k * len(list(g)) for k, g in itertools.groupby([1, 1, 2, 4], f))
""",
        "0",
    ),
    "singledispatch": (
        """
@functools.singledispatch
def disp(v, log):
    log[0] += 10
    return v
@disp.register(torch.Tensor)
def _(v, log):
    log[0] += 1
    return v * 3
@disp.register(float)
def _(v, log):
    log[0] += 2
    return v * 5
""",
        "",
        """
y = disp(x, log) + disp(2, log) + disp(x.sum().item(), log)
""",
        "0",
    ),
    "tree_map": (
        "",
        "",
        """
def f(v):
    log[0] += 1
    return v * 2 if v.max() > 1 else v
y = pytree.tree_map(f, {'a': [x, (x,)]})['a'][1][0]
""",
        "0",
    ),
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
    "__init_subclass__": (
        """
class B:
    made = 0
    def __init_subclass__(cls, **kw):
        super().__init_subclass__(**kw)
        LOG[0] += 1
        B.made += 1
LOG = [0]
""",
        "",
        """
class S(B):
    pass
y = x + B.made + LOG[0]
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
    "ctxmgr": (
        """
@contextlib.contextmanager
def cm(log, v):
    log[0] += 1
    try:
        yield v * 2 if v.sum() > 1 else v
    finally:
        log[0] += 2
""",
        "",
        """
with cm(log, x) as z:
    y = z + log[0]
""",
        "0",
    ),
    "ctxmgr_local": (
        "",
        """
@contextlib.contextmanager
def cm(v):
    old = self.flag
    self.flag = True
    yield
    self.flag = old
""",
        """
with cm(x):
    y = x + 1 if self.flag else x
""",
        "self.flag",
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
    "prehook_child": (
        "",
        "",
        """
def hook(m, a):
    log[0] += 1
    return a[0] + 1
h = self.seq[0].register_forward_pre_hook(hook)
y = self.seq(x)
h.remove()
""",
        "0",
    ),
    "partial": (
        "",
        "",
        """
def f(a, v):
    log[0] += a
    return v * a
y = list(map(functools.partial(f, 3), [x]))[0]
""",
        "0",
    ),
    "compr": (
        "",
        "",
        """
def f(v):
    log[0] += 1
    return v + log[0]
y = sum([f(v) for v in (x, x) if f(v) is not None])
""",
        "0",
    ),
    "genexp": (
        "",
        "",
        """
def f(v):
    log[0] += 1
    return v + log[0]
y = sum(f(v) for v in (x, x) if v is not None)
""",
        "0",
    ),
    "wraps": (
        """
def deco(f):
    @functools.wraps(f)
    def g(v, log):
        log[0] += 1
        return f(v, log)
    return g
@deco
def h(v, log):
    log[0] += 2
    return v * log[0]
""",
        "",
        """
y = h(x, log)
""",
        "0",
    ),
    "local_deco": (
        "",
        """
def deco(f):
    log[0] += 5
    def g(v):
        log[0] += 1
        return f(v)
    return g
""",
        """
@deco
def h(v):
    return v * log[0]
y = h(x)
""",
        "0",
    ),
    "lru_cache": (
        "",
        """
@functools.lru_cache(None)
def f(n):
    log[0] += 1
    return n * 2
""",
        """
y = x * f(3) + f(3) + f(4)
""",
        "f(4)",
    ),
    "lru_tensor": (
        "",
        """
@functools.lru_cache(None)
def f(v):
    log[0] += 1
    return v * 2
""",
        """
y = f(x) + f(x)
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
    "exitstack": (
        "",
        "",
        """
def f(a):
    log[0] += a
with contextlib.ExitStack() as st:
    st.callback(f, 3)
    st.callback(f, 4)
    y = x + log[0]
y = y * log[0]
""",
        "0",
    ),
    "exitstack_cm": (
        """
@contextlib.contextmanager
def cm(log):
    log[0] += 1
    yield 4
    log[0] += 2
""",
        "",
        """
with contextlib.ExitStack() as st:
    n = st.enter_context(cm(log))
    y = x + n
y = y * log[0]
""",
        "0",
    ),
    "exitstack_outer": (
        "",
        """
def f(a):
    log[0] += a
st = contextlib.ExitStack()
""",
        """
st.callback(f, 3)
y = x
""",
        "(st.close(), log[0])",
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
    "queue": (
        "",
        """
d = queue.Queue()
d.put(1)
""",
        """
d.put(3)
y = x * d.qsize() + d.get()
""",
        "d.qsize()",
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
    "nonlocal_cb": (
        "",
        """
k = 0
""",
        """
def f(v):
    nonlocal k
    k += 1
    return v * k
y = sum(map(f, [x, x]))
log[0] += k
""",
        "k",
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
    "classbody": (
        "",
        "",
        """
class S:
    log[0] += 1
    n = log[0]
    def m(self, v):
        log[0] += 2
        return v * self.n
y = S().m(x)
""",
        "0",
    ),
    "suppress": (
        "",
        "",
        """
y = x
with contextlib.suppress(ValueError):
    if x.max() > 1:
        raise ValueError
    y = x * 2
    log[0] += 1
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
PLACES = {
    "if": """
if x.sum() > 0:
    USE
else:
    y = x - 1
""",
    "loop": """
y = x
for _ in range(2):
    if x.sum() > 0:
        USE
    x = x - 0.7
""",
    "helper": """
def helper(x):
    if x.sum() > 0:
        USE
        return y
    return x - 1
a = helper(x)
y = a, helper(a - 1)
""",
    "return": """
if x.sum() > 0:
    USE
    return y * 2, log, self.log, LAST
y = x
""",
    "try": """
y = x
try:
    if x.sum() > 0:
        USE
finally:
    log[0] += 100
""",
    "generator": """
def steps(x):
    yield x
    if x.sum() > 0:
        USE
        yield y
    yield x + 1
y = list(steps(x))
""",
}
MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        for p in self.parameters():
            p.data.fill_(0.5)
        self.flag = False
        self.log = [0]

    def forward(self, x):
        log = LOG
        BEFORE
        PLACE
        return y, log, self.log, LAST
"""
VALUES = ((0.5, 1.0), (-1.0, 0.2), (0.1, 0.05), (2.0, 1.0), (-0.2, 0.1))
CALLS = [torch.tensor([[a, 2 * a, 0.3], [a, -0.1, b]]) for a, b in VALUES]


def fill(text, **parts):
    """Put statements in the place of their names, as far in as these stand."""
    for name, part in parts.items():
        lines = [line for line in text.splitlines() if line.strip() == name]
        if lines:
            indent = lines[0][: len(lines[0]) - len(name)]
            text = text.replace(lines[0], textwrap.indent(part.strip(), indent))
        text = text.replace(name, part)
    return text


def module_of(text, name):
    """Run a program as if it stood in a file."""
    file = f"<written by a test>/{name}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(text, file, "exec"), module.__dict__)
    return module


def check(text, name):
    """Compare a sequence of calls of one session with eager."""
    graph = stage(module_of(text, name).Model().eval(), (CALLS[0],))
    eager = module_of(text, name).Model().eval()
    state = [graph_initial(v.initial) for v in graph.state]
    for x in CALLS:
        with torch.no_grad():
            want = copy.deepcopy(eager(x.clone()))
        got = interpret(graph, [x.clone()], state)[0]
        assert same(want, got), f"{text}\neager {want}\nstaged {got}"


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_users_functions_do_is_seen(kind):
    head, before, use, last = KINDS[kind]
    refused = 0
    for number, place in enumerate(PLACES):
        body = fill(PLACES[place], USE=use)
        log = "self.log" if number % 2 else "[0]"
        text = IMPORTS + head + fill(MODEL, LOG=log, BEFORE=before or "pass", PLACE=body, LAST=last)
        try:
            check(text, f"{kind}_{place}")
        except UnsupportedError:
            refused += 1
    assert refused <= REFUSED.get(kind, 0)


#: How often a kind may be refused.
REFUSED: dict[str, int] = {}
