# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A generator of forwards with effects on Python state of every kind, in every structure of control flow.

An :class:`Effect` is a statement that changes something, with what has to be there before it and what is seen of it afterwards; a
structure is a way of running a statement on some paths only. A program is a few of both, and returns all that can be seen.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from effect_networks import HEADER, network

#: choose(n) returns an int in range(n).
Choose = Callable[[int], int]


@dataclass(frozen=True)
class Effect:
    """A change of Python state.

    Attributes
    ----------
    change : str
        The statement; ``z`` is a tensor [2, 3] that no other name has.
    seen : str
        Expressions that show it.
    before : str
        Statements at the beginning of the forward.
    rebinds : bool
        Whether the statement sets variables, so that it cannot stand in a nested function.
    """

    change: str
    seen: str
    before: str = ""
    rebinds: bool = False


def _e(change: str, seen: str, before: str = "", rebinds: bool = False) -> Effect:
    return Effect(change, seen, before, rebinds)


EFFECTS = [
    # attributes of all kinds
    _e("self.n += 1", "self.n"),
    _e("self.t = z + 1", "self.t"),
    _e("self.t += 1", "self.t"),
    _e("self.fresh = z", "hasattr(self, 'fresh')"),
    _e("setattr(self, 'n', self.n + 2)", "self.n"),
    _e("self.__dict__['n'] = self.n + 3", "self.n"),
    _e("vars(self).update(n=self.n + 1)", "self.n"),
    _e("self.slots.n += 1", "self.slots.n"),
    _e("self.slots.t = z * 2", "self.slots.t"),
    _e("s.n += 1; s.t = z", "s.n, s.t", "s = Slots()"),
    _e("Counter.made += 1", "Counter.made, Base.made"),
    _e("Base.shared[0] += 1", "Counter.shared[0]"),
    _e("Counter.shared[0] += 2", "Base.shared[0]"),
    _e("type(self.counter).made = self.counter.made + 1", "Counter.made"),
    _e("self.counter.level = self.counter.level + 1", "self.counter.level"),
    _e("self.counter += 5", "self.counter.n"),
    _e("self.counter()", "self.counter.n"),
    _e("self.counter[3]", "self.counter.n"),
    _e("self.counter == 1", "self.counter.n"),
    _e("self.space.n += 1", "self.space.n"),
    _e("self.data.n += 1", "self.data.n"),
    _e("self.data.items[0] += 1", "self.data.items[0]"),
    _e("o.a = z", "o.a.sum() if hasattr(o, 'a') else 0.5", "o = types.SimpleNamespace()"),
    _e("delattr(o, 'a') if hasattr(o, 'a') else None", "hasattr(o, 'a')", "o = types.SimpleNamespace(a=1)"),
    _e("p = dataclasses.replace(p, n=p.n + 1)", "p.n", "p = Data()", True),
    # globals, cells, defaults
    _e("bump()", "N"),
    _e("globals()['N'] += 1", "N"),
    _e("MODULE.N += 1", "MODULE.N"),
    _e("TABLE['n'] += 1", "TABLE['n']"),
    _e("TABLE['t'] = z", "TABLE['t']"),
    _e("inc()", "k, inc.__name__", "k = 0\ndef inc():\n    nonlocal k\n    k += 1\n    return k"),
    _e(
        "step(z)",
        "k",
        "k = 2.0\ndef step(v):\n    nonlocal k\n    if v.sum() > 0:\n        k = k + 1\n        return v * k\n    return v - k",
    ),
    _e("remember(1)", "remember(0)"),
    _e("self.partial(2)", "self.partial(0)"),
    _e("inc.count += 1", "inc.count", "def inc(): pass\ninc.count = 0"),
    _e("cached(3)", "cached(3), CALLS[0]"),
    _e("VAR.set(VAR.get() + 1)", "VAR.get() - VAR.get()"),
    # lists
    _e("a.append(z)", "len(a), a[-1]", "a = [x]"),
    _e("a[0] = z", "a[0], b[0]", "a = [x, x]; b = a"),
    _e("a += [z]", "len(a), len(b)", "a = [x]; b = a", True),
    _e("a = a + [z]", "len(a), a is b", "a = [x]; b = a", True),
    _e("a.pop()", "len(a)", "a = [1, 2, 3, 4, 5, 6, 7]"),
    _e("a.insert(0, z)", "a[0]", "a = [x]"),
    _e("a.extend([1, 2])", "a", "a = [0]"),
    _e("a.reverse()", "a", "a = [1, 2, 3]"),
    _e("a.sort()", "a", "a = [3, 1, 2]"),
    _e("a.sort(key=lambda v: -v)", "a", "a = [1, 3, 2]"),
    _e("a[1:] = [5]", "a", "a = [1, 2, 3]"),
    _e("del a[0]", "a", "a = list(range(8))"),
    _e("a.clear()", "len(a)", "a = [1]"),
    _e("a[0], a[1] = a[1], a[0]", "a[0], a[0] is x", "a = [x, x + 1]"),
    _e("a[0].append(1)", "len(b), a", "b = []; a = [b, b]"),
    _e("self.items[0] += 1", "self.items[0]"),
    _e("self.items[1] = z", "self.items[1]"),
    _e("operator.setitem(a, 0, 5)", "a", "a = [1]"),
    # dicts, sets, other containers
    _e("d['a'] = z", "d['a'], list(d)", "d = {'a': x}"),
    _e("d['b'] = 1", "list(d.items())", "d = {'a': 1}"),
    _e("d.setdefault('b', []).append(1)", "d", "d = {}"),
    _e("d.update(b=2)", "d", "d = {'a': 1}"),
    _e("d.pop('a', None)", "d", "d = {'a': 1, 'c': 2}"),
    _e("d[1] = 2; d[True] = 3", "d", "d = {}"),
    _e("self.table['n'] += 1", "self.table['n']"),
    _e("s.add(3)", "len(s), 3 in s", "s = {1, 2}"),
    _e("s ^= {1}", "len(s)", "s = {1, 2}", True),
    _e("q.append(z)", "len(q), q[0]", "q = collections.deque([x, x], maxlen=2)"),
    _e("q.rotate(1)", "list(q)", "q = collections.deque([1, 2, 3])"),
    _e("q.popleft()", "list(q)", "q = collections.deque(range(9))"),
    _e("self.queue.rotate(1)", "self.queue[0]"),
    _e("self.queue.append(7)", "list(self.queue)"),
    _e("d.move_to_end('a')", "list(d)", "d = collections.OrderedDict(a=1, b=2)"),
    _e("d.popitem(last=False)", "list(d)", "d = collections.OrderedDict((str(i), i) for i in range(9))"),
    _e("d['b']", "dict(d)", "d = collections.defaultdict(int)"),
    _e("d['b'].append(z)", "len(d['b'])", "d = collections.defaultdict(list)"),
    _e("d['b'] += 1", "dict(d)", "d = collections.Counter('ab')"),
    _e("d['b'] = 1", "dict(d)", "d = collections.ChainMap({}, {'a': 1})"),
    _e("d['b'] = z", "len(d), 'b' in d", "d = collections.UserDict(a=1)"),
    _e("d.append(z)", "len(d)", "d = collections.UserList([1])"),
    _e("q.put(1)", "q.qsize()", "q = queue.Queue()"),
    _e("h.append(1)", "bytes(h)[-1]", "h = bytearray(b'0')"),
    _e("h.append(4)", "h[-1]", "h = array.array('i', [1])"),
    # iterators
    _e("next(it, None)", "list(it)", "it = iter([1, 2, 3, 4, 5])"),
    _e("next(it, None)", "len(list(it))", "it = iter([x, x + 1, x + 2])"),
    _e("next(it, None)", "list(it)", "it = zip([1, 2, 3], 'abc')"),
    _e("next(it, None)", "list(it)", "it = enumerate('abc')"),
    _e("next(it, None)", "list(it)", "it = reversed([1, 2, 3])"),
    _e("next(it, None)", "list(it)", "it = (i * 2 for i in range(4))"),
    _e("next(it)", "next(it)", "it = itertools.count(3)"),
    _e("next(it)", "next(it)", "it = itertools.cycle('abc')"),
    _e("2 in it", "list(it)", "it = iter([1, 2, 3, 4])"),
    _e("a, *_ = it", "list(it)", "it = iter([1, 2, 3, 4]); a = 0", True),
    _e("g.send(1)", "next(g)", "def gen():\n    total = 0\n    while True:\n        total += (yield total) or 0\ng = gen(); next(g)"),
    _e("next(self.ids)", "next(self.ids)"),
    _e("next(self.cycle)", "next(self.cycle)"),
    _e("next(m)", "next(m)", "m = map(lambda v: v + 1, itertools.count())"),
    # NumPy, tensors, aliases
    _e("v[0] += 1", "float(v[0])", "v = np.zeros(2)"),
    _e("self.array[0] += 1", "float(self.array[0])"),
    _e("self.array = self.array + 1", "float(self.array[1])"),
    _e("y[0] += 1", "y, w", "y = x.clone(); w = y.view(-1)"),
    _e("w[1] = 7", "y", "y = x.clone(); w = y.view(-1)"),
    _e("w.mul_(2)", "y", "y = x.clone(); w = y.t()"),
    _e("y = y + 1", "y is x", "y = x", True),
    _e("y += 1", "y, y is w, w", "y = x.clone(); w = y", True),
    _e("y = y.t()", "y.is_contiguous(), y.shape", "y = x[:, :2].clone()", True),
    _e("y = y.t().contiguous().t()", "y.stride(), y.is_contiguous(), y.reshape(-1).data_ptr() == y.data_ptr()", "y = x.clone()", True),
    _e("self.buf.add_(1)", "self.buf"),
    _e("self.buf = z", "self.buf, self.buf is z0", "z0 = x"),
    _e("self.rows[0].add_(1)", "self.buf"),
    _e("self.t = self.buf", "self.t is self.buf"),
    _e("self.register_buffer('buf', z)", "self.buf"),
    _e("self._buffers['buf'] = z", "self.buf"),
    # identity and aliases
    _e("y = y if z.sum() > 1 else y.clone()", "y is x, id(y) == id(x), y in [x]", "y = x", True),
    _e("y = y.contiguous()", "y is x, y.data_ptr() == x.data_ptr()", "y = x", True),
    _e("y = y.to(torch.float32) if z.sum() > 0 else y.to(torch.float64).float()", "y is x", "y = x", True),
    _e("y = y.view(2, 3)", "y is x, y.data_ptr() == x.data_ptr(), y._base is x", "y = x", True),
    _e("y = y.reshape(3, 2).t()", "y.reshape(-1)[0], y.is_contiguous(), y.shape", "y = x", True),
    _e("y, w = w, y", "y is x, w is x, y is w", "y = x; w = x + 1", True),
    _e("w = y; y = y + 1", "w is x, w is y", "y = x; w = None", True),
    _e("w = y[0]; w += 1", "y, w", "y = x.clone(); w = None", True),
    _e("w += 1", "y, w, w is y", "y = x.clone(); w = y", True),
    _e("y = max(y, z[0, 0])", "y is x, y", "y = x[0, 1]", True),
    _e("y = min(y, z.sum(), key=abs)", "y", "y = x[0, 1]", True),
    _e("seen.add(id(z)); kept.add(z)", "len(seen), id(x) in seen", "seen = {id(x)}; kept = {x}"),
    _e("seen.add(z)", "len(seen), x in seen, z in seen", "seen = {x}"),
    _e("d[z] = d.get(z, 0) + 1", "len(d), d.get(x), z in d", "d = {x: 1}"),
    _e("a = b", "a is b, a == [1]", "a = [1]; b = [1]", True),
    _e("a = list(a)", "a is b, len(a)", "a = [x]; b = a", True),
    _e("a = (x, 1)", "a is b, a[0] is x", "b = (x, 1); a = b", True),
    _e("d = {**d}", "d is w", "d = {'a': x}; w = d", True),
    _e("f = g", "f is g, f(x)", "def f(v):\n    return v + 1\ndef g(v):\n    return v * 2", True),
    _e("m = self.lins[1]", "m is self.lins[0], m(x - 1)", "m = self.lins[0]", True),
    _e("m = self.lin.weight", "m is self.lin.weight, m", "m = self.lin.weight.clone()", True),
    _e("o = None", "o is None, o is x", "o = x", True),
    _e("t = 'ab' + 'c'", "t == 'abc', t", "t = 'abd'", True),
    _e("y.t_()", "y.shape, y", "y = x[:, :2].clone()"),
    _e("y = y.detach(); y += 1", "y, w, y is w", "y = x.clone(); w = y", True),
    _e("torch.add(y, 1, out=y)", "y, w", "y = x.clone(); w = y.view(-1)"),
    _e("y -= 0.5 if z.sum() > 0 else 1", "y", "y = x.clone().long() + 0.5"),
    _e("try: i -= 0.5\nexcept RuntimeError: i += 1", "i", "i = x.long()", True),
    # modules
    _e("self.lin.train()", "self.lin.training"),
    _e("self.train(False)", "self.training"),
    _e("self.lins[0] = self.lins[1]", "self.lins[0](x - 1)"),
    _e("self.lins.append(nn.Tanh())", "len(self.lins)"),
    _e(
        "handles.append(self.lin.register_forward_hook(lambda m, a, r: r + 1))",
        "self.lin(x), [h.remove() for h in handles] and None",
        "handles = []",
    ),
    _e("self.sub.calls += 1", "self.sub.calls"),
    _e("self.apply(lambda m: log.append(1))", "len(log)", "log = []"),
    # library code that calls back
    _e("list(map(f, [z, z]))", "len(log)", "log = []\ndef f(v):\n    log.append(1)\n    return v"),
    _e("sorted([3, 1, 2], key=f)", "log", "log = []\ndef f(v):\n    log.append(v)\n    return -v"),
    _e("functools.reduce(f, [1, 2, 3])", "log", "log = []\ndef f(a, b):\n    log.append(a)\n    return a + b"),
    _e("list(filter(f, [1, 2, 3]))", "log", "log = []\ndef f(v):\n    log.append(v)\n    return v > 1"),
    _e("list(itertools.accumulate([1, 2, 3], f))", "log", "log = []\ndef f(a, b):\n    log.append(a)\n    return a + b"),
    _e("list(itertools.starmap(f, [(1, 2)]))", "log", "log = []\ndef f(a, b):\n    log.append(a + b)"),
    _e("re.sub('a', f, 'aba')", "log", "log = []\ndef f(m):\n    log.append(m.start())\n    return 'c'"),
    _e("max([1, 2], key=f)", "log", "log = []\ndef f(v):\n    log.append(v)\n    return v"),
    _e("torch.utils._pytree.tree_map(f, (1, [2]))", "log", "log = []\ndef f(v):\n    log.append(v)\n    return v"),
    _e("dispatched(1, log)", "log", "log = []"),
    _e("any(f(v) for v in [0, 1, 2])", "log", "log = []\ndef f(v):\n    log.append(v)\n    return v > 0"),
    _e("copy.copy(a).append(1)", "len(a)", "a = [1]"),
    _e("copy.deepcopy(a)[0].append(1)", "a", "a = [[1]]"),
    # context managers and exceptions
    _e("with entered(log): log.append(5)", "log", "log = []"),
    _e("with self.counter: self.n += 1", "self.counter.n, self.n"),
    _e("with contextlib.suppress(KeyError): log.append({}[1])", "log", "log = []"),
    _e("with contextlib.ExitStack() as stack: stack.callback(log.append, 3)", "log", "log = []"),
    _e("try: log.append(1 // k)\nexcept ZeroDivisionError: log.append('zero')\nfinally: log.append('end')", "log", "log = []; k = 0"),
    # numbers at their limits
    _e("big = big + 1", "big == float(big), big > 2.0 ** 53, big / 3", "big = 2 ** 53", True),
    _e("n = n + 2 ** 53", "n == float(n), n / 3, n > 2.0 ** 53", "n = int(x[0, 0])", True),
    _e("n = n * 3", "n, n // 7, n % 7, n / 7, abs(n)", "n = int(x.sum()) - 3", True),
    _e("v = v * 1e200", "v, v == v, v > 1e300", "v = float(x[0, 1])", True),
    _e("v = v - v", "v, v != v, max(v, 1.0)", "v = x.sum().item()", True),
    _e("i = i * i", "i, i == float(i), i - 1 == i", "i = int(x[0, 2]) + 3", True),
    _e("v = int(v) if abs(v) < 1e300 else v", "v", "v = float(x[0, 2])", True),
    _e("n = -n", "n // 4, n % 4, divmod(n, 4), round(n / 4), n ** 2", "n = int(x.sum()) + 2 ** 54", True),
    _e("n = n + 1 if n < 2 ** 62 else n", "float(n) == n, n > 4.5e15", "n = int(x[0, 2]) + 2 ** 53", True),
    _e("v = v / 3", "round(v), math.floor(v), int(v), v // 0.1, v % 0.3", "v = x.sum().item()", True),
    _e("b = not b", "b, b + 1, b is True", "b = bool(x.sum() > 1)", True),
    # containers that are replaced, and items at run-time places
    _e("self.items = [self.items[0] + 1, z]", "self.items"),
    _e("self.items = list(self.items)", "self.items[0]"),
    _e("h = self.items; h[0] += 2; self.items = h", "self.items[0]", "", True),
    _e("self.kept = self.items", "self.items[0], self.kept[0] if hasattr(self, 'kept') else 0.5"),
    _e("self.table = {'n': self.table['n'] + 2}", "self.table['n']"),
    _e("self.table['n'] += 1; self.table = dict(self.table)", "self.table"),
    _e("self.queue = collections.deque([7, 8, 9], maxlen=3)", "list(self.queue)"),
    _e("self.slots.n, self.n = self.n, self.slots.n + 1", "self.n, self.slots.n"),
    _e("o.q[0] += 1", "o.q, p", "o = types.SimpleNamespace(q=[1.0]); p = o.q"),
    _e("o.q = [o.q[0] + 5.0]", "o.q, p", "o = types.SimpleNamespace(q=[1.0]); p = o.q"),
    _e("o.q = o.q + [1] if z.sum() > 1 else p", "o.q, o.q is p", "o = types.SimpleNamespace(q=[1.0]); p = o.q"),
    _e("a[int(z[0, 0].clamp(0, 1))] += 1", "a", "a = [0, 0]"),
    _e("d[int(z[0, 0].clamp(0, 1))] += 1", "d", "d = {0: 0, 1: 0}"),
    _e("d[bool(z[0, 0] > 0)] = z", "len(d), d", "d = {True: x}"),
    # containers and values that calls leave of another kind
    _e("self.window.append(z); del self.window[:-2]", "len(self.window), self.window"),
    _e("self.window.append(self.n); del self.window[:-3]", "self.window, self.n"),
    _e("self.window = [*self.window, z][-2:]", "self.window"),
    _e("self.window.insert(0, z[0]); self.window.pop() if len(self.window) > 2 else None", "self.window"),
    _e("self.window.append(self.items); del self.window[:-2]", "self.items[0], [w is self.items for w in self.window]"),
    _e("self.window.append([0, z]); self.window[0][0] += 1; del self.window[:-2]", "self.window"),
    _e("if self.window: self.window[-1].mul_(0.5)\nself.window.append(z * 2); del self.window[:-2]", "self.window"),
    _e("self.past = z if self.past is None else None", "self.past"),
    _e("self.past = (z, self.n); self.n += 1", "self.past, self.n"),
    _e("self.past = [self.n] if self.past is None else self.past[:1] + [z]", "self.past"),
    _e("self.past = self.window if self.past is None else None; self.window.append(1); del self.window[:-2]", "self.past, self.window"),
    _e("self.past, self.t = self.t, self.past if self.past is not None else z", "self.past, self.t"),
    _e("self.cache[len(self.cache) % 3] = z", "self.cache"),
    _e("self.cache.setdefault('a', []).append(1); del self.cache['a'][:-2]", "self.cache"),
    _e("self.cache['b'] = self.items if self.cache.pop('b', None) is None else z", "self.cache, self.items[0]"),
    _e("self.marks.add(len(self.marks) % 3)", "sorted(self.marks)"),
    _e("self.frames.append(z)", "list(self.frames), len(self.frames)"),
    _e("self.frames.append(z + 0); self.frames[0].add_(1)", "list(self.frames)"),
]

CONDITIONS = (
    "z.sum() > 2",
    "z[0, 0] < 1",
    "z.mean() > 0.5",
    "z.max() > 4",
    "not z.sum() > 6",
    "z.sum() > 1 and z[1, 1] < 3",
    "0 < z.sum() < 9",
    "int(z[0, 2]) % 2",
)


def structures(effect: Effect) -> int:
    """Return in how many structures an effect can stand."""
    return 17 if effect.rebinds else 26


class Program:
    """Writes one program; all its decisions come from ``choose``."""

    def __init__(self, choose: Choose, effects: int = 2, structures: int = 3) -> None:
        self._choose = choose
        self._names = 0
        count = 1 + choose(effects)
        self._effects = [EFFECTS[choose(len(EFFECTS))] for _ in range(count)]
        self._structures = 1 + choose(structures)

    def source(self) -> str:
        """Return the text of a module with a class ``Net``."""
        lines: list[str] = []
        seen: list[str] = []
        effects = []
        for number, effect in enumerate(self._effects):
            renamed = _renamed(effect, number)
            effects.append(renamed)
            lines += renamed.before.split("\n") if renamed.before else []
            seen.append(renamed.seen)
        lines.append("z = x + 0")
        result = f"return ({', '.join(f'({s})' for s in seen)}, z)"
        for _ in range(self._structures):
            lines += self._structure(effects[self._choose(len(effects))], result)
        lines.append(result)
        return HEADER + network(lines)

    def _one(self, *options: str) -> str:
        return options[self._choose(len(options))]

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}_{self._names}"

    def _structure(self, effect: Effect, result: str) -> list[str]:
        """Run an effect in some structure."""
        change, c = effect.change.split("\n"), self._one(*CONDITIONS)
        inside = textwrap.indent
        body = inside(effect.change, "    ").split("\n")
        deep = inside(effect.change, " " * 8).split("\n")
        k = self._choose(structures(effect))
        v = self._name("v")
        if k == 0:
            return change
        if k == 1:
            return [f"if {c}:", *body]
        if k == 2:
            return [f"if {c}:", "    z = z * 0.5", *body, "else:", "    z = z + 1"]
        if k == 3:
            return [f"if {c}:", "    z = z - 1", "else:", *body]
        if k == 4:
            return [f"if {c}:", *body, "else:", *body, *body]
        if k == 5:
            return [f"for {v} in range(3):", f"    if z.sum() > {v}:", *deep]
        if k == 6:
            return [f"{v} = 0", f"while {v} < 3 and {c}:", *body, f"    {v} += 1"]
        if k == 7:
            return [f"for {v} in range(int(z.abs().sum()) % 3):", *body]
        if k == 8:
            return [f"while z.sum() < {self._one('3', '8')}:", *body, "    z = z + 1"]
        if k == 9:
            return [f"if {c}:", *body, "    " + result]
        if k == 10:
            return [f"for {v} in range(4):", *body, f"    if z.sum() > {v}:", "        break"]
        if k == 11:
            return [f"for {v} in range(3):", f"    if z.sum() > {v} + 1:", "        continue", *body]
        if k == 12:
            return ["try:", f"    if {c}:", "        raise ValueError('no')", *body, "except ValueError:", "    z = z - 1"]
        if k == 13:
            return [
                "try:",
                f"    if {c}:",
                "        raise ValueError('no')",
                "    z = z + 1",
                "except ValueError:",
                *body,
                "finally:",
                *body,
            ]
        if k == 14:
            return [f"if {c}:", f"    if z[0, 1] > {self._one('0', '2')}:", *deep, "    else:", "        z = z * 2"]
        if k == 15:
            return [f"for {v} in [z, z + 1, z - 2]:", f"    if {v}.sum() > 3:", *deep, "        break", "else:", *body]
        if k == 16:
            return ["while True:", *body, "    z = z + 1", f"    if z.sum() > {self._one('4', '9')}:", "        break"]
        helper, local = self._name("helper"), textwrap.indent(rename(effect.change, {"z": "held"}), "    ").split("\n")
        deeper = textwrap.indent(rename(effect.change, {"z": "held"}), " " * 8).split("\n")
        test = rename(c, {"z": "held"})
        if k == 17:
            return [
                f"def {helper}(held):",
                f"    if {test}:",
                *deeper,
                "        return held * 0.5",
                "    return held",
                f"z = {helper}(z)",
                f"z = {helper}(z - 1)",
            ]
        if k == 18:
            return [f"def {helper}(held):", f"    if {test}:", "        return held", *local, "    return held + 1", f"z = {helper}(z)"]
        if k == 19:
            return [f"def {helper}(held=z):", *local, f"z = self.sub(z, {helper})"]
        if k == 20:
            return [f"def {helper}(held):", *local, "    return True", f"{v} = {helper}(z) if {c} else False", f"{v} = {c} and {helper}(z)"]
        if k == 21:
            gen = [f"def {helper}(held):", "    for _ in range(3):", *deeper, "        yield held", "        held = held + 1"]
            return [*gen, f"for {v} in {helper}(z):", f"    if {v}.sum() > 3:", "        break"]
        if k == 22:
            return [f"def {helper}(held):", *local, "    return held", f"if {c}:", f"    list(map({helper}, [z]))"]
        if k == 23:
            return [f"def {helper}(held=z):", *local, "    return 1", f"if {c}:", f"    sorted([2, 1], key=lambda _: {helper}())"]
        if k == 24:
            return ["with self.counter:", f"    if {c}:", *deep]
        return [
            f"def {helper}(held, depth):",
            f"    if depth == 0 or {test}:",
            "        return held",
            *local,
            f"    return {helper}(held + 1, depth - 1)",
            f"z = {helper}(z, 2)",
        ]


class _Renaming(ast.NodeTransformer):
    """Gives variables, functions and parameters other names."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(self._names.get(node.id, node.id), node.ctx), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        self.generic_visit(node)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._names.get(node.arg, node.arg)
        return node

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        node.names = [self._names.get(n, n) for n in node.names]
        return node


def rename(text: str, names: dict[str, str]) -> str:
    """Return statements or an expression with other names for variables."""
    return ast.unparse(_Renaming(names).visit(ast.parse(text)))


def _renamed(effect: Effect, number: int) -> Effect:
    """Give the variables of an effect names of their own."""
    bound = {
        n.id if isinstance(n, ast.Name) else n.name
        for n in ast.walk(ast.parse(effect.before))
        if isinstance(n, ast.FunctionDef) or (isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    }
    names = {n: f"{n}{number}" for n in bound}
    return Effect(rename(effect.change, names), rename(effect.seen, names), rename(effect.before, names), effect.rebinds)
