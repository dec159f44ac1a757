# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs whose functions are called by Python or by a library.

Of each: what stands in the module, before, the statements, and what is looked at in the end.
"""

from __future__ import annotations

FUNCTIONS: dict[str, tuple[str, str, str, str]] = {
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
}
