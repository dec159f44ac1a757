# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Functions, classes and containers of the user: staged graphs against eager."""

from __future__ import annotations

import contextlib
import enum
import functools
import types

import torch
import torch.nn.functional as F
from differential import check
from torch import nn

X = [(torch.tensor([[a, b]]),) for a in (-2.0, -0.3, 0.4, 3.0) for b in (-1.0, 0.2, 2.0)]


# -- functions --------------------------------------------------------------------------------------------------------------
def scaled(x, scale=2.0, /, shift=0.0, *parts, sign=1, **named):
    if x.sum() > 0:
        return x * scale * sign + shift + sum(parts)
    return x + shift + sum(named.values())


def test_every_kind_of_parameter():
    def f(x, y=3.0, *rest, k=1, **named):
        z = scaled(x, 3.0, 1.0, 2, 3, sign=-1, a=4)
        return scaled(z) + y + k + len(rest) + len(named)

    check(f, X, paths=3)


def test_lambda_closures_partials_and_functions_as_values():
    def make(k):
        def inner(v, s=1):
            return v * k if v.sum() > k * s else v + k

        return inner

    def compose(*fs):
        return lambda v: functools.reduce(lambda a, g: g(a), fs, v)

    def f(x):
        g = functools.partial(make(2), s=0.5)
        h = compose(g, lambda v: v - 1 if v.max() > 1 else v, make(-1))
        table = {"a": g, "b": torch.relu, "c": F.elu}
        for name in ("a", "b", "c"):
            x = table[name](x)
        return h(x)

    check(f, X, paths=3)


def test_nonlocal_state_of_closures():
    def f(x):
        count, total = 0, x * 0

        def add(v):
            nonlocal count, total
            if v.sum() > 0:
                count += 1
                total = total + v
            return count

        for i in range(3):
            add(x - i)
        last = add(x)
        return count, total, last

    check(f, X, paths=3)


def test_closure_cell_read_after_a_branch():
    def f(x):
        k = 1

        def get():
            return k

        if x.sum() > 0:
            k = 2
        a = get()
        while k < 5 and x.abs().max() > 0.1:
            k += 1
            x = x * 0.5
        return a, get(), x

    check(f, X, paths=3)


def test_mutable_default_argument_within_one_call():
    def f(x):
        def collect(v, into=[]):  # noqa: B006
            if v.sum() > 0:
                into.append(v)
            return into

        collect(x)
        collect(-x)
        out = collect(x * 2)
        return len(out), out

    check(f, X, paths=2)


def repeat(times):
    def decorate(g):
        def wrapper(x):
            for _ in range(times):
                x = g(x)
                if x.abs().sum() > 5:
                    break
            return x

        return wrapper

    return decorate


@repeat(times=3)
def doubled(x):
    return x * 2 if x.sum() > 0 else x * 1.5


@torch.no_grad()
def without_gradients(x):
    if x.sum() > 1:
        return x - 1
    return x


@torch.inference_mode()
def in_inference(x):
    if x.sum() < -1:
        return x + 1
    return x


def test_decorators():
    def f(x):
        return in_inference(without_gradients(doubled(x)))

    check(f, X, paths=4)


def test_no_grad_and_other_contexts():
    class Scale(contextlib.AbstractContextManager):
        def __init__(self, box):
            self.box = box

        def __enter__(self):
            self.box["depth"] = self.box["depth"] + 1
            return self.box["depth"]

        def __exit__(self, *error):
            self.box["depth"] -= 1
            return False

    @contextlib.contextmanager
    def tagged(box, name):
        box[name] = True
        try:
            yield name
        finally:
            box[name] = False

    def f(x):
        box = {"depth": 0}
        with torch.no_grad(), torch.set_grad_enabled(False):
            if x.sum() > 0:
                x = x * 2
        with Scale(box) as d:
            if x[0, 0] > 0:
                x = x + d
            else:
                x = x - box["depth"]
        with tagged(box, "t") as name, contextlib.suppress(KeyError):
            if x.sum() > 2:
                return x, box, name
        return -x, box

    check(f, X, paths=4)


# -- classes ------------------------------------------------------------------------------------------------------------------
class Base(nn.Module):
    kind = "base"
    registry = {"n": 3}

    def __init__(self, k):
        super().__init__()
        self.k = k
        self._cache = None
        self.lin = nn.Linear(2, 2)

    @property
    def gain(self):
        return self.k * 2 if self.training else self.k

    @property
    def cached(self):
        return self._cache

    @cached.setter
    def cached(self, value):
        if value.sum() > 0:
            self._cache = value
        else:
            self._cache = -value

    @staticmethod
    def half(x):
        return x / 2 if x.max() > 1 else x

    @classmethod
    def name(cls, x):
        return cls.kind if x.sum() > 0 else f"not {cls.kind}"

    def step(self, x):
        return self.lin(x) * self.gain

    def __len__(self):
        return 4

    def __contains__(self, v):
        return v.sum() > 1

    def __getitem__(self, i):
        return self.lin.weight[i]


class Derived(Base):
    kind = "derived"

    def step(self, x):
        y = super().step(x)
        if y.sum() > 0:
            return y + self.__secret(x)
        return super().step(y)

    def __secret(self, x):
        return x if x[0, 0] > 0 else x * 0.5

    def forward(self, x):
        self.cached = x
        y = self.step(self.half(self.cached))
        for name in ("lin", "missing"):
            layer = getattr(self, name, None)
            if layer is not None and hasattr(layer, "weight"):
                y = layer(y)
        setattr(self, "extra", y)  # noqa: B010
        return self.extra, self.name(y), len(self), y in self, self[1], self.registry["n"], vars(self)["k"]


def test_properties_super_static_and_class_methods_special_methods():
    check(Derived(1.5).eval(), X, paths=4)


class Meter:
    __slots__ = ("history", "total")

    def __init__(self, start):
        self.total = start
        self.history = []

    def __call__(self, v):
        if v.sum() > 0:
            self.total = self.total + v
            self.history.append("up")
        return self

    def __bool__(self):
        return len(self.history) > 1

    def __len__(self):
        return len(self.history)

    def __iter__(self):
        yield self.total
        yield from (self.total * i for i in range(2))

    def __add__(self, other):
        return self.total + other

    def __eq__(self, other):
        return isinstance(other, Meter) and len(self) == len(other)

    __hash__ = None


def test_user_class_with_special_methods():
    def f(x):
        m = Meter(x * 0)
        m(x)(x - 1)
        other = Meter(x)
        other(x)
        out = [v for v in m]
        if m:
            out.append(m + 5)
        return out, len(m), m == other, m.history

    check(f, X, paths=3)


class Threshold:
    def __init__(self, t):
        self.t = t

    def __gt__(self, v):
        return (self.t - v).sum() > 0

    def __bool__(self):
        return bool(self.t.sum() > 0)


def test_bool_and_comparison_of_a_user_class_on_tensors():
    def f(x):
        t = Threshold(x)
        k = 0
        if t:
            k += 1
        if t > 0.5:
            k += 2
        if not t and k == 0:
            k += 4
        return x * k, k

    check(f, X, paths=3)


class Stack:
    def __init__(self):
        self.items = []

    def push(self, v):
        self.items.append(v)

    def pop(self):
        return self.items.pop() if self.items else None

    def __getitem__(self, i):
        return self.items[i]

    def __setitem__(self, i, v):
        self.items[i] = v


class Walk:
    def __init__(self, x, n):
        self.x, self.n = x, n

    def __iter__(self):
        self.i = 0
        return self

    def __next__(self):
        if self.i >= self.n:
            raise StopIteration
        self.i += 1
        return self.x * self.i


def test_user_containers_and_iterators():
    def f(x):
        s = Stack()
        for v in Walk(x, 3):
            if v.sum() > 2:
                s.push(v)
        s.push(x)
        s[0] = s[0] + 1
        a, b = s.pop(), s.pop()
        return a, b, len(s.items)

    check(f, X, paths=3)


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


def test_enums_and_class_attributes():
    class Config:
        mode = Mode.FAST
        steps = [1, 2]

    def f(x):
        mode = Mode.FAST if x.sum() > 0 else Mode.SLOW
        if mode is Mode.FAST:
            x = x * 2
        return x, mode.value, Config.mode == Mode.FAST, len(Config.steps), Mode("slow").name

    check(f, X, paths=2)


class _Sealed(type):
    def __setattr__(cls, name: str, value: object) -> None:
        raise AttributeError(f"{cls.__name__} is sealed")


class SealedScale(metaclass=_Sealed):
    """A class whose attributes cannot be set."""

    def __init__(self, by: float) -> None:
        self.by = by

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by if x.sum() > 0 else x


def test_a_class_that_cannot_be_changed_runs_as_it_is() -> None:
    scale = SealedScale(2.0)

    def f(x: torch.Tensor) -> torch.Tensor:
        return scale.scaled(x) + 1

    check(f, [(torch.ones(3),), (-torch.ones(3),)])


class Decorated(nn.Module):
    """Functions that use private names of the class, though their own names are others: made by ``functools.wraps``, or within a method."""

    def __init__(self) -> None:
        super().__init__()
        self.__scale = 2.0

        def inner(x, *, __less=1.0):
            return x * self.__scale if x.sum() > 0 else x - __less

        self.inner = inner

    def __shifted(self, f):
        @functools.wraps(f)
        def shifted(*args, __by=4.0):
            return f(*args) + __by

        return shifted

    def _scaled(f):  # type: ignore[misc]  # noqa: N805  (a decorator)
        @functools.wraps(f)
        def scaled(self, x):
            return f(self, x) * self.__scale

        return scaled

    @_scaled
    def step(self, x):
        return x if x.sum() > 1 else -x

    def forward(self, x):
        return self.inner(x), self.__shifted(torch.exp)(x), self.step(x)


def test_private_names_in_functions_that_decorators_make() -> None:
    check(Decorated(), X, paths=3)


def test_methods_whose_code_has_the_name_of_their_class():
    """Some libraries give each class a copy of an inherited method, so that profiles tell them apart."""

    class Base:
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x - self.less

        def __init_subclass__(cls):
            function = Base.forward
            code = function.__code__.replace(co_name=f"{cls.__name__}.forward")
            cls.forward = types.FunctionType(code, function.__globals__, "forward", function.__defaults__, function.__closure__)

    class One(Base):
        less = 1

    class Two(Base):
        less = 2

    check(lambda x: One().forward(x) + Two().forward(-x), X, paths=2)
