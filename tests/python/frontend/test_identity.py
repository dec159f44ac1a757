# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which object a joined value is, and how it lies in memory: what depends on the path is answered as on that path."""

from __future__ import annotations

import pytest
import torch
from differential import check, given, stage

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.interpreter import interpret

BASE = torch.arange(6.0).reshape(2, 3)
X = [(BASE,), (BASE - 9,), (BASE * 0.1,)]


def clip(z):
    if z.sum() > 2:
        return z * 0.5
    return z


def either(x, other):
    y = x
    if x.sum() > 3:
        y = other
    return y


def early_return(x):
    y = clip(x)
    return y + 10 if y is not x else y


def two_returns(x):
    def f(a, copy):
        if a.sum() > 3:
            return a
        if copy:
            return a.clone()
        return a

    y = f(x, False)
    z = f(y, True)
    return y is x, z is x, z is y


def ids(x):
    y = either(x, x * 2)
    return id(y) == id(x), hash(y) == hash(x), id(y) == id(y)


def keys(x):
    y = either(x, x * 2)
    return {x: 1}.get(y, 7), y in {x}, y in {x: 1}, len({x, y})


def members(x):
    y = either(x[0, 0], x[0, 1] + 5)
    return y in [x[0, 1], x[0, 0]], 5 in [x[0, 0]], x[0, 0] in x, y in (1, 2, 0.0)


def largest(x):
    a, b = x.sum(), x.mean()
    m = max(a, b)
    return m + 5 if m is a else m


def chosen(x):
    several = [x, x + 1]
    y = several[int(x[0, 0].abs()) % 2]
    return y is x, y is several[1]


def operands(x):
    y = (x.sum() > 3) or x
    return y is x, (x if x.sum() > 3 else x + 1) is x


def attributes(x):
    class Holder:
        pass

    o = Holder()
    o.h = x
    if x.sum() > 3:
        o.h = x + 1
    return o.h is x


def lists(x):
    a = [x]
    b = a
    if x.sum() > 3:
        b = [x + 1]
    if b is a:
        b.append(x)
    return b is a, b[0] is x, len(a)


def tuples(x):
    a = (x, 1)
    b = a
    if x.sum() > 3:
        b = (x + 1, 1)
    return b is a


def functions(x):
    def f(a):
        return a

    g = clip if x.sum() > 3 else f
    return g(x), g is f, clip is f


def missing(x):
    y = None
    if x.sum() > 3:
        y = x
    return x + 1 if y is None else y


def loop(x):
    y = x
    while y.sum() < 10:
        y = y + 1
    return y + 100 if y is x else y


def carried(x):
    y, k = x, 0
    while k < int(abs(x[0, 0])) % 3:
        z = y
        y = y + 1
        if z is x:
            y = y * 2
        k += 1
    return y


def breaks(x):
    y, last = x, None
    for _ in range(4):
        if y.sum() > 20:
            break
        last = y
        y = y + 3
    return y, last is x, last is y


def strides(x):
    y = either(x, x.reshape(3, 2).t())
    return y.stride(), y.is_contiguous(), y.stride(0), (y + 1).t().is_contiguous(), (y @ y.t()).stride(), y.sum(0).stride()


def strides_of_a_loop(x):
    y = x
    while y.sum() < 10:
        y = (y.t() + 1).contiguous().t()
    return y.stride()


def views_and_copies(x):
    y = either(x * 1, (x * 2).reshape(3, 2).t())
    z = y.reshape(-1)
    z += 1
    return y, z


def a_view_that_eager_refuses(x):
    y = either(x, (x * 2).reshape(3, 2).t())
    try:
        return y.view(-1)
    except RuntimeError:
        return y


def contiguous(x):
    y = either(x, x.t().clone().t())
    z = y.contiguous()
    return z is y, z


def in_place(x):
    y = either(x.t(), (x + 1).t().clone())
    y += 1
    return y, x


def addresses(x):
    y = either(x, x.clone())
    return y.data_ptr() == x.data_ptr(), y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr(), y.is_set_to(x)


def parts_of_memory(x):
    y = x.view(-1)
    z = x[0] if x.sum() > 3 else x[1]
    return (
        (y.data_ptr() == x.data_ptr(), x[1:].data_ptr() == x.data_ptr(), x[1].data_ptr() == y[3:].data_ptr()),
        (z.storage_offset(), x[1:][:, 1:].storage_offset()),
    )


def bases(x):
    y = x[0]
    if x.sum() > 3:
        y = x[1] + 1
    return y._base is x, x._base is None, x[0][1:]._base is x, y._is_view(), x.detach()._base is None


PROGRAMS = [
    *(early_return, two_returns, ids, keys, members, largest, chosen, operands, attributes, lists, tuples, functions, missing),
    *(loop, carried, breaks, strides, strides_of_a_loop, views_and_copies, a_view_that_eager_refuses, contiguous, in_place),
    *(addresses, parts_of_memory, bases),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_in_eager(program):
    check(program, X)


def names_that_change_places(x, trips):
    a, b, k = x, x + 1, 0
    while k < trips:
        a, b = b, a
        k += 1
    return a is x, b


def test_names_that_change_places_in_a_loop_are_refused():
    with pytest.raises(UnsupportedError, match="one object depends on the path"):
        stage(lambda x: names_that_change_places(x, int(abs(x[0, 0]))), X[0])


def test_names_that_change_places_in_a_loop_whose_trips_have_a_bound():
    check(lambda x: names_that_change_places(x, int(abs(x[0, 0])) % 4), [(x * k,) for (x,) in X for k in (1, 2, 3)], paths=2)


@pytest.mark.parametrize(
    "use", [lambda t: id(t) % 7, lambda t: t.data_ptr() + 1, lambda t: t._version, lambda t: t.untyped_storage().nbytes()]
)
def test_addresses_are_no_numbers(use):
    def f(x):
        return use(x)

    with pytest.raises(UnsupportedError):
        stage(f, X[0])


def test_what_an_earlier_call_has_kept_may_be_an_input():
    class Cache(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.last = torch.zeros(2, 3)

        def forward(self, x):
            same = self.last is x
            self.last = x
            return same

    with pytest.raises(UnsupportedError, match="earlier call"):
        stage(Cache(), X[0])


# -- inputs ----------------------------------------------------------------------------------------------------------------
def test_one_tensor_given_as_two_inputs():
    def f(p, q):
        same = p is q
        p.add_(1)
        return same, q, q in {p}

    graph = check(f, [(x, x) for (x,) in X])
    assert len(graph.input_names) == 1
    with pytest.raises(ValueError, match="q must be the very tensor that p is"):
        given(graph, (BASE, BASE.clone()))


def test_two_names_of_one_memory():
    def f(p, q):
        p.add_(1)
        return p is q, q

    check(f, [(x, x.view(2, 3)) for (x,) in X])


def test_inputs_that_overlap():
    def reads(p, q):
        return p + q, p is q

    def writes(p, q):
        q.add_(1)
        return p

    rows = [(x, x[0]) for (x,) in X]
    check(reads, rows)
    with pytest.raises(UnsupportedError, match=r"overlaps(.|\n)*clone"):
        stage(writes, rows[0])


def test_inputs_lie_in_memory_as_the_examples():
    def f(p):
        try:
            y = p.view(-1)
        except RuntimeError:
            y = None
        return (
            p.stride(),
            p.is_contiguous(),
            p.is_contiguous(memory_format=torch.channels_last),
            y,
            (p + 1).stride(),
            p.requires_grad,
            p.is_leaf,
        )

    p = torch.arange(24.0).reshape(1, 2, 3, 4)
    for example in (
        p,
        p.transpose(2, 3),
        p.to(memory_format=torch.channels_last),
        p[..., ::2],
        p.expand(3, 2, 3, 4),
        p.clone().requires_grad_(),
    ):
        check(f, [(example,)])


def test_layouts_of_results_are_those_of_rows():
    p = torch.arange(24.0).reshape(1, 2, 3, 4)
    result = interpret(stage(lambda x: x.to(memory_format=torch.channels_last), (p,)), [p])[0]
    assert torch.equal(result, p)
