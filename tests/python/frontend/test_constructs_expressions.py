# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Expressions, built-in functions and host scalars: staged graphs against eager."""

from __future__ import annotations

import functools
import math
import operator

import numpy as np
import pytest
import torch
from differential import check
from torch import nn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage

X = [(torch.tensor([[a, b]]),) for a in (-2.0, -0.3, 0.4, 3.0) for b in (-1.0, 0.2, 2.0)]


# -- conditional and Boolean expressions -----------------------------------------------------------------------------------
def test_nested_ternaries():
    def f(x):
        a = x[0, 0]
        y = x if a > 1 else (x * 2 if a > 0 else (x * 3 if x[0, 1] > 0 else None))
        return y if y is not None else a

    check(f, X, paths=4)


def test_and_or_give_their_operands():
    def f(x):
        a, b = x[0, 0], x[0, 1]
        first = (a > 0) and x * 2
        second = (a > 0 and b > 0) or "neither"
        third = a.item() or 5.0
        fourth = None or (b > 0 and [x])
        return first, second, third, fourth

    check(f, X, paths=4)


def test_short_circuit_does_not_evaluate():
    def f(x):
        seen = []

        def note(v, name):
            seen.append(name)
            return v

        if note(x[0, 0] > 0, "a") and note(x[0, 1] > 0, "b") or note(x.sum() > -2.5, "c"):
            x = x * 2
        return x, seen

    check(f, X, paths=4)


def test_not_and_chained_comparisons():
    def f(x):
        a, b = x[0, 0], x[0, 1]
        inside = -1 < a <= b < 2.5
        same = a == b != 0
        if not -0.5 <= a <= 0.5:
            x = x - 1
        if not (a > 0 and not b > 0):
            x = x * 3
        return x, inside, same, not a > b

    check(f, X, paths=4)


def test_any_all_of_lists_and_generators():
    def f(x):
        values = [v.item() for v in x[0]]
        k = 0
        if any([v > 1 for v in values]):
            k += 1
        if all([v > 0 for v in values]):
            k += 2
        if any(v < -1 for v in values):
            k += 4
        if all(v < 0.5 for v in values):
            k += 8
        if any([]) or not all([]):
            k += 100
        if any((x > 2).flatten()) or all(x[0] < 0):
            k += 16
        return x * k, k

    check(f, X, paths=5)


def test_min_max_sum_len_abs_round_divmod_pow():
    def f(x):
        values = [v.item() for v in x[0]]
        a, b = values
        hi, lo = max(values), min(values)
        t = max(x[0, 0], x[0, 1])
        n = int(x.abs().sum() * 3)
        q, r = divmod(n, 4)
        return (
            hi,
            lo,
            t,
            sum(values),
            sum(values, 1.0),
            len(values),
            abs(a),
            round(b),
            round(a, 2),
            round(n, 3),
            round(b * 1000, 0),
            q,
            r,
            pow(a, 2),
            a**2,
            max(a, 0.5),
            min(1, n),
            hi - lo,
        )

    check(f, X, paths=1)


def test_min_max_of_a_tensor_and_a_number():
    """What they give is a tensor or a number; where that decides nothing, both sides are computed, and no path more."""

    def f(x):
        m, s = x.mean(), x.sum().item()
        return (
            x * max(0, m),
            x * min(1.0, max(m, -1)) + max(s, 0),
            x.sum() - min(m, 2),
            x.long() * max(2, x.sum().long()),
            float(max(m, 0.5)),
            int(min(m, 1)) + round(max(s, 0.0)),
            max(0, s) > 0.3,
            max(s, 1) / 2,
            max(0, s) + 1.5,
            x if max(m, 0.2) > 0.25 else -x,
            max(0, x.sum().long()) - x[0, 0].long(),
            x.bool().any() + min(x.sum().long(), 3),
        )

    graph = check(f, X, paths=1)
    assert len(graph.return_sites()) == 1
    check(lambda x: (x.double().mean() * max(0.1, x.sum().double()), x * max(0.1, x[0, :1])), X, paths=2)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: max(x.mean(), 0.5),
        lambda x: [-max(0, x.mean().item())],
        lambda x: abs(min(1.0, max(0, x.mean()))) * 2 + 1,
        lambda x: max(x.mean(), 0.5) > 0.75,
        lambda x: x if max(x.mean(), 0.2) > 0.3 else -x,
        lambda x: x if 1 - max(x.mean(), 0.2) > 0.5 else -x,
        lambda x: float(max(x.mean(), 0.2) * 3),
        lambda x: x if max(x.mean(), 0) / 3 else -x,
        lambda x: max(x.mean(), 0.0) if x.sum() > 1 else 0.5,
        lambda x: x * round(max(x.mean(), 0)),
        lambda x: x.long() * min(1, x.mean()),
        lambda x: x.half().mean() * max(1.0, x.sum()),
        lambda x: max(0, x.sum().int()) + x.bool(),
        lambda x: max(0, x.sum().long()) / 2 + x.long(),
        lambda x: x.sum().int() - max(0, x.sum().long()),
        lambda x: torch.full((2,), max(0, x.sum().item())),
        lambda x: x if isinstance(max(x.mean(), 0.0), float) else -x,
        lambda x: x if type(max(x.mean().item(), 0)) is float else -x,
    ],
)
def test_min_max_whose_type_matters_have_a_path_each(function):
    sides = [torch.full((1, 2), v) for v in (-4.0, -0.5, 0.1, 0.3, 0.4, 0.6, 2.0, 5.0)]
    check(function, [*X, *((x,) for x in sides)], paths=2)


def test_min_max_whose_type_matters_in_and_after_a_loop():
    def line_search(x):
        for _ in range(3):
            step = min(1.0, 1.0 / x.abs().sum()) * 0.7
            x = x - float(step) * x
        return x, step

    check(line_search, [(x[0] * k,) for x in X for k in (0.05, 1.0, 9.0)], paths=3)

    def trips(x):
        while x.abs().sum() < 9:
            x = x + float(max(x.mean(), 0.5) * 1.1)
        return x

    with pytest.raises(UnsupportedError, match=r"max\(\) or min\(\) gave.* depending on values"):
        stage(trips, X[0])
    check(trips, [(x[0].abs() + 1,) for x in X], max_loop_trips=6)

    def f(x):
        best = 0.5
        while best < 2.0 and x.sum() < 9:
            best = max(x.mean(), best)
            x = x + 0.25
        return best

    with pytest.raises(UnsupportedError, match="a tensor or a number"):
        stage(f, X[0])


def test_sum_of_tensors_and_comparisons():
    def f(x):
        parts = [x * i for i in range(3)]
        total = sum(parts)
        count = sum([1 for p in parts if p.sum() > 0])
        votes = sum(p.sum().item() > 0.5 for p in parts)
        return total, count, votes

    check(f, X, paths=2)


def test_isinstance_type_callable_hasattr():
    def f(x):
        k = int(x.sum())
        s = x.sum().item()
        flags = (
            isinstance(x, torch.Tensor),
            isinstance(k, int),
            isinstance(s, float),
            isinstance(k, (str, bool)),
            isinstance(x, (list, tuple)),
        )
        if isinstance(k, int) and not isinstance(k, bool) and s > 0:
            x = x * 2
        return x, flags, callable(f), hasattr(x, "shape"), hasattr(x, "nothing"), type(x) is torch.Tensor, type(k) is int

    check(f, X, paths=2)


def test_walrus():
    def f(x):
        if (s := x.sum()) > 1:
            return x * s
        while (n := x.abs().max()) > 0.5:
            x = x * 0.7
        ys = [y for v in (1, 2, 3) if (y := v * 2) > 2]
        if s > -1 and (m := n.item()) < 0.4:
            return m, ys
        return n, ys, y

    check(f, X, paths=4)


def test_walrus_in_a_branch_that_is_not_evaluated():
    def f(x):
        m = 5.0
        if x[0, 0] > 0 and (m := x[0, 1].item()) > 0:
            return m
        return m * 2

    check(f, X, paths=3)


def test_assert_on_tensors():
    def f(x):
        assert x[0, 0] > -1
        assert (x < 2.5).all(), f"too large in {x.dim()} dimensions"
        assert x.shape == (1, 2)
        return x

    check(f, X, paths=2)


def test_match_on_values_sequences_mappings_and_classes():
    def g(kind, x):
        match kind:
            case ("scale", k) if x.sum() > 0:
                return x * k
            case ("scale", _):
                return x
            case {"shift": s, **rest}:
                return x + s + len(rest)
            case [first, *others]:
                return x * first - sum(others)
            case str() as name:
                return x * len(name)
            case 1 | 2:
                return x * 12
            case None:
                return None

    def f(x):
        k = int(x[0, 1])
        match k:
            case 0 | 1:
                y = "low"
            case 2 if x[0, 0] > 0:
                y = "two and positive"
            case 2:
                y = "two"
            case _:
                y = "other"
        return y, g(("scale", 3), x), g({"shift": 1, "a": 2}, x), g([1, 2, 3], x), g("abc", x), g(2, x), g(None, x)

    check(f, X, paths=4)


# -- strings, numbers, comprehensions ---------------------------------------------------------------------------------------
def test_f_strings_and_formatting_of_static_values():
    def f(x):
        names = [f"layer{i:02d}_{'x'!r}" for i in range(2)]
        if x.sum() > 0:
            label = "%s-%d" % ("pos", x.dim())  # noqa: UP031
        else:
            label = "{}:{n}".format("neg", n=tuple(x.shape))
        return label.upper(), names, ",".join(str(s) for s in x.shape), f"{x.shape[1] / 3:.3f}"

    check(f, X, paths=2)


def test_comprehensions_with_symbolic_conditions():
    def f(x):
        values = [x, -x, x * 2]
        kept = [v for v in values[:2] if v.sum() > 0]
        table = {i: v for i, v in enumerate(values[1:]) if v[0, 0] > 0}
        chosen = {i for i, v in enumerate(values[:2]) if v[0, 1] > 0}
        pairs = [(i, j) for i in range(2) for j in range(3) if i != j]
        mapped = [v * 2 if v.sum() > 1 else v for v in values]
        return kept, table, len(chosen), pairs, mapped

    check(f, X, paths=4)


def test_map_filter_reduce_sorted_with_key():
    def f(x):
        values = [x, x * 3, x - 1]
        doubled = list(map(lambda v: v * 2, values))
        total = functools.reduce(operator.add, doubled)
        added = functools.reduce(lambda a, b: a + b if a.sum() > 0 else b, values)
        even = list(filter(lambda i: i % 2 == 0, range(5)))
        order = sorted([(2, "b"), (1, "z"), (3, "a")], key=lambda p: p[1])
        positive = list(filter(lambda v: v.sum() > 0, values))
        return doubled, total, added, even, order, len(positive)

    check(f, X, paths=3)


def test_sorting_by_run_time_numbers():
    def f(x):
        values = [x[0, 0].item(), x[0, 1].item(), 0.3]
        order = sorted(values)
        back = sorted(range(3), key=lambda i: values[i], reverse=True)
        return order, back, values

    check(f, X, paths=4)


def test_max_with_key_of_run_time_numbers():
    def f(x):
        values = [x[0, 0].item(), x[0, 1].item(), 0.3]
        k = 0
        for i in range(1, 3):
            if values[i] > values[k]:
                k = i
        return k, values[k]

    check(f, X, paths=3)


# -- tensors as numbers -----------------------------------------------------------------------------------------------------
def test_item_tolist_int_float_bool():
    def f(x):
        rows = x.tolist()
        a, b = rows[0]
        n, s, t = int(x[0, 1]), float(x.sum()), bool(x[0, 0])
        if rows[0][0] > 0:
            n += 1
        flags = (x > 0).tolist()
        if flags[0][1]:
            s = s * 2
        ints = x.long().tolist()
        return a, b, n, s, t, flags, ints[0][0] + 1, x.shape.numel(), x.size(1)

    check(f, X, paths=4)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1)])
def test_conditions_of_one_element_shapes(shape):
    def f(x):
        s = x.sum().reshape(shape)
        k = 0
        if s > 0:
            k += 1
        if s.long() >= 2:
            k += 2
        if (s > 1) & (s < 3):
            k += 4
        if s.to(torch.bool):
            k += 8
        if s:
            k += 16
        if not s.int():
            k += 32
        if s.long() == 1 or s.double() < -2.5:
            k += 64
        return x * k, k, s.item()

    check(f, [*X, (torch.zeros(1, 2),)], paths=4)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int16, torch.float64, torch.float16, torch.bool])
def test_comparisons_by_dtype(dtype):
    def f(x):
        v = x[0]
        k = 0
        if v > 0:
            k = 1
        elif v == 0:
            k = 2
        if v != 1:
            k += 10
        if int(v) * 2 > 3:
            k += 100
        return v, k, v.item()

    check(f, [(torch.tensor([a], dtype=dtype),) for a in (0, 1, 2, 7)], paths=2)


def test_integer_overflow_wraps_in_the_tensor_not_on_the_host():
    def f(x):
        v = (x * 100).to(torch.int8)
        n = v[0].item() * 3
        return v, n, n > 0

    check(f, [(torch.tensor([a]),) for a in (0, 1, 2)], paths=1)


def test_argmax_as_index_into_lists_of_tensors_and_modules():
    layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)]).eval()
    names = ["a", "b", "c"]
    sizes = [torch.ones(1), torch.ones(2), torch.ones(3)]

    def f(x):
        scores = torch.cat([x[0], x.sum().reshape(1) * 0.3])
        k = torch.argmax(scores)
        outs = [layer(x) for layer in layers]
        y = outs[k]
        z = layers[int(k)](y)
        w = outs[scores.argmax().item()] + [1, 2, 3][k.item()]
        return y, z, w, names[k], sizes[k], (10, 20, 30)[k]

    check(f, X, paths=3)


def test_np_argmax_and_max_over_scalars():
    def f(x):
        scores = [x[0, 0].item(), x[0, 1].item(), 0.3, float(x.sum())]
        k = np.argmax(scores)
        return [x, x * 2, x * 3, x * 4][k], np.max(scores), np.argmin(scores), np.min(scores), int(k)

    check(f, X, paths=3)


def test_numel_equal_allclose_any_all():
    def f(x):
        k = 0
        if x[:, 2:].numel() == 0:
            k += 1
        if torch.equal(x[:, 0], x[:, 1] * 1.5 - 0.0):
            k += 2
        if torch.equal(x, x.relu()):
            k += 4
        if torch.allclose(x, x.abs(), atol=0.5):
            k += 8
        if torch.any(x > 1):
            k += 16
        if torch.all(x > 0) or (x < -0.5).all():
            k += 32
        if (x > 2.5).any().item():
            k += 64
        if x.isnan().any() or torch.isinf(x).any():
            k += 128
        if x.nelement() and x.dim() == 2 and len(x) == 1:
            k += 256
        return x, k

    check(f, [*X, (torch.tensor([[float("nan"), 1.0]]),), (torch.tensor([[float("inf"), 1.0]]),)], paths=5)


def test_math_functions_of_run_time_numbers():
    def f(x):
        s = x.abs().sum().item() + 0.1
        values = (math.sqrt(s), math.exp(-s), math.log(s), math.floor(s), math.ceil(s), math.tanh(s), math.sin(s), int(s * 10) % 3)
        if math.isnan(s) or math.sqrt(s) > 1.5:
            x = x * 2
        return x, values, math.pi, math.trunc(-s)

    check(f, X, paths=2)


def test_scalars_back_into_tensors():
    def f(x):
        s, n = x.sum().item(), int(x[0, 1])
        a = torch.tensor([s, 1.0, n])
        b = torch.full((2,), s)
        c = x.new_tensor([s])
        d = torch.tensor(n)
        e = torch.ones(2) * n + s
        g = torch.where(x > s, x, s)
        h = torch.clamp(x, min=n)
        i = x.masked_fill(x > 0, s)
        return a, b, c, d, e, g, h, i, x**n, torch.full_like(x, n)

    check(f, X, paths=1)


def test_in_and_not_in():
    def f(x):
        k = int(x[0, 1])
        y = 1 if k in (0, 1) else 2
        z = 3 if k not in [2, 5] else 4
        w = k in {-1, 0}
        v = k in range(1, 3)
        u = 2.0 in x
        t = "a" in {"a": x}
        return y, z, w, v, u, t, k in {0: "a", 2: "b"}

    check(f, X, paths=2)


def test_python_integer_semantics():
    def f(x):
        n = int(x.sum() * 3)
        return n // 4, n % 4, -n // 3, n * n, n - 7, n / 2, n == 3, int(n / 3), float(n), bool(n), ~5

    check(f, X, paths=1)


def test_bitwise_operators_of_run_time_bools():
    def f(x):
        a, b = bool(x[0, 0] > 0), bool(x[0, 1] > 0)
        return (
            a & b,
            a | b,
            a ^ b,
            a + b,
            a * 2.5,
            -a,
            a & True,
            a == b,
            a is True,
            int(a),
            ((x[0, 0] > 0) & (x[0, 1] > 0)).item(),
            ~(x > 0),
        )

    check(f, X, paths=1)


def test_slices_with_static_bounds():
    def f(x):
        y = torch.cat([x, x * 2, x * 3], 1)
        items = [x, -x, x * 2]
        n = len(items) - 1
        if y[:, 1:4:2].sum() > 0:
            y = y[..., :n]
        else:
            y = y[:, -2:]
        return y, items[::-1], items[1:n], items[-1], y[None, 0], y[0, -1]

    check(f, X, paths=2)


def test_star_expressions():
    def g(a, b, *rest, scale=1, **named):
        return (a + b) * scale + sum(rest) + sum(named.values())

    def f(x):
        args = [x, x * 2]
        extra = {"c": 1, "d": 2}
        y = g(*args, 3, *[4, 5], scale=2, **extra)
        first, *middle, last = [*args, y, *args]
        merged = {**extra, "e": x}
        return y, first, middle, last, merged, (*args, 1)

    check(f, X, paths=1)
