# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``if``, ``return``, conditional expressions and Boolean operators: staged graphs against eager."""

from __future__ import annotations

import ast

import torch
from differential import check
from torch import nn

from dycl_tvm.frontend.python.source.locate import function_node
from dycl_tvm.hcfg.nodes import Raise

X = [(torch.tensor([[a, b]]),) for a in (-2.0, -0.3, 0.4, 3.0) for b in (-1.0, 0.2, 2.0)]


def test_if_merges_tensors_into_a_block_parameter():
    def f(x):
        if x.sum() > 0:
            y = x * 2
        else:
            y = x - 1
        return y + 1

    graph = check(f, X, paths=2, blocks=4)
    assert len(graph.return_sites()) == 1


def test_elif_chain_and_nesting():
    def f(x):
        s = x.sum()
        if s > 2:
            k = 1
        elif s > 0:
            if x[0, 0] > 0:
                k = 2
            else:
                k = 3
        elif s == 0:
            k = 4
        else:
            k = 5
            x = -x
        return x, k

    check(f, X, paths=4)


def test_a_chain_of_more_tests_than_python_nests_blocks():
    def f(x):
        n, k = int(x[0, 0]), 0
        if n == 0:
            y = x
        elif n == 1:
            y = -x
        elif n == 2:
            return x * 7, n
        elif n == 3:
            y = x + 3
        elif n == 4:
            y = x + 4
        elif n == 5:
            y, k = x + 5, 5
        elif n == 6:
            y = x + 6
        elif n == 7:
            y, n = x + 7, 8
        elif n == 8:
            y = x + 8
        elif n == 9:
            y = x + 9
        elif n == 10:
            raise ValueError("ten")
        elif n == 11:
            y = x + 11
        return y, k + n

    check(f, [(torch.full((2, 2), float(n)),) for n in range(13)], paths=8)


def test_early_returns_are_sites_of_their_own_in_one_run():
    def f(x):
        for i in range(6):
            x = torch.tanh(x * 1.5)
            if x.max() > 0.3 + 0.1 * i:
                return x, i, True
        return {"x": x, "steps": [i, None]}

    graph = check(f, X, paths=3)
    assert len(graph.return_sites()) == 7
    assert len(graph.blocks) <= 13


def test_return_in_a_helper_merges():
    def helper(x):
        if x.sum() > 0:
            return x * 2
        return x - 1

    def f(x):
        for _ in range(12):
            x = helper(x)
            x = x * 0.7
        return x

    graph = check(f, X, paths=2)
    assert len(graph.blocks) <= 12 * 3 + 1


def test_helper_that_returns_different_structures_forks():
    def helper(x):
        if x.sum() > 0:
            return x * 2, None
        return x, x - 1

    def f(x):
        a, b = helper(x)
        if b is None:
            return a
        return a + b

    check(f, X, paths=2)


def test_unused_difference_does_not_fork():
    def f(x):
        for _ in range(14):
            if x.sum() > 0:
                extra = None
                x = x - 0.5
            else:
                extra = x  # noqa: F841  (that nothing reads it is the point)
                x = x + 0.3
        return x

    graph = check(f, X, paths=4)
    assert len(graph.blocks) <= 14 * 3 + 1


def test_variable_of_one_path_only():
    def f(x):
        if x.sum() > 0:
            y = x * 2
        if x[0, 0] > 0:
            return x
        return y

    check(f, X, paths=3)


def test_ternary_and_boolean_operators():
    def f(x):
        a, b = x[0, 0], x[0, 1]
        y = x * 2 if a > 0 else x
        both = 1 if a > 0 and b > 0 else 0
        either = 1 if a > 0 or b > 0 else 0
        neither = not (a > 0 or b > 0)
        chained = -1 < a < 1 < b
        if not a > 0 and not (b < 0 or b > 1):
            y = y + 10
        return y, both, either, neither, chained

    check(f, X, paths=5)


def test_boolean_operator_values():
    def f(x):
        a, b = x[0, 0].item(), x[0, 1].item()
        return (a > 0 and 3), (a > 0 or 7), ((a or b) > 0.1), (x[0, 0] > 0) and (x[0, 1] > 0)

    check(f, X, paths=2)


def test_host_scalars():
    def f(x):
        a = x[0, 0].item()
        n = int(x[0, 1])
        s = float(x.sum())
        t = bool(x[0, 0] > 0)
        k = abs(n) + (n // 2) * 3 - n % 3
        m = max(a, s, 0.5) - min(n, 1)
        if a * 2 + s > n:
            k += 1
        return a, n, s, t, k, m, round(s), -n, a / 2, s**2, int(a), n + True

    check(f, X, paths=2)


def test_in_place_operations_and_views():
    def f(x):
        y = torch.zeros(3, 2)
        y[1] = x[0]
        y[:, 0] += 1
        row = y[2]
        if x.sum() > 0:
            row.add_(5)
            y[0, 1] = 7.0
        else:
            y.mul_(2)
        z = y.t()
        z.relu_()
        view = y.view(-1)
        view[4] = -1
        return y, row, z

    check(f, X, paths=2)


def test_in_place_on_a_merged_tensor_reaches_its_alias():
    def f(x):
        a, b = x * 1, x * 2
        if x.sum() > 0:
            c = a
        else:
            c = b
        c += 1
        return a, b, c

    check(f, X, paths=2)


def test_containers_changed_in_branches():
    def f(x):
        items, table = [x], {"n": 0}
        if x.sum() > 0:
            items.append(x * 2)
            table["n"] += 1
            table["y"] = x
        else:
            items[0] = -x
        total = sum(items)
        return items, table, len(items), total

    check(f, X, paths=2)


def test_lists_that_grow_alike_merge():
    def f(x):
        out = []
        for i in range(8):
            if x.sum() > i - 4:
                out.append(x + i)
            else:
                out.append(x - i)
        return out

    graph = check(f, X, paths=4)
    assert len(graph.blocks) <= 8 * 3 + 1


def test_list_changed_through_an_alias_of_one_path():
    def f(x):
        a, b = [x], [x * 2]
        if x.sum() > 0:
            c = a
        else:
            c = b
        c.append(x * 3)
        return a, b, c

    check(f, X, paths=2)


class Attributes(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None
        self.calls = 0
        self.lin = nn.Linear(2, 2)

    def step(self, x):
        self.calls = 0
        if x.sum() > 0:
            self.last = self.lin(x)
            self.calls += 1
        else:
            self.last = x
        return self.last * 2

    def forward(self, x):
        y = self.step(x)
        z = self.step(y)
        return z, self.calls


def test_attributes_changed_in_branches():
    torch.manual_seed(0)
    check(Attributes().eval(), X, paths=2)


class Sub(nn.Module):
    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold
        self.lin = nn.Linear(2, 2)

    def forward(self, x):
        if x.abs().sum() > self.threshold:
            return self.lin(x), True
        return x, False


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.subs = nn.ModuleList([Sub(0.5 * i) for i in range(4)])
        self.seq = nn.Sequential(nn.Linear(2, 2), Gate(), nn.ReLU(inplace=True))

    def forward(self, x):
        flags = []
        for s in self.subs:
            x, flag = s(x)
            flags.append(flag)
            if flag and x.sum() > 0:
                x = self.seq(x)
        return x, flags


class Gate(nn.Module):
    def forward(self, x):
        return x if x.max() > 0.2 else x * 3


def test_submodules_with_control_flow_inside_a_sequential():
    torch.manual_seed(1)
    check(Nested().eval(), X, paths=3)


def test_comprehension_any_all_in_tests():
    def f(x):
        values = [v.item() for v in x[0]]
        big = [i for i, v in enumerate(values) if v > 0.3]
        if any(v > 2 for v in values):
            return x, len(big)
        if all([v < 0 for v in values]):
            return -x, big
        return x * 2, big

    check(f, X, paths=4)


def test_match_walrus_assert_try():
    def f(x):
        k = int(x[0, 1])
        match k:
            case 0:
                y = x
            case 2:
                y = x * 2
            case _:
                y = x * 3
        if (s := y.sum()) > 0:
            y = y + s
        assert x[0, 0] > -1, "too small"
        try:
            if x.sum() > 0:
                return y
            z = 1
        finally:
            y = y - 1
        return y, z

    check(f, X, paths=4)


def test_raise_on_one_path():
    def f(x):
        if x.sum() > 4:
            raise ValueError("too large")
        for v in (0.1, 0.2):
            if x.sum() > v:
                break
        else:
            raise KeyError("none")
        return x * v

    check(f, X, paths=3)


def test_break_and_continue():
    def f(x):
        total = x * 0
        hits = 0
        for i in range(6):
            x = x * 0.9
            if x.sum() > 2:
                continue
            total = total + x
            if total.sum() > 1.5:
                hits = i
                break
        else:
            total = total - 100
        return total, hits

    check(f, X, paths=3)


def test_switch_over_tensors_and_modules():
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)]).eval()

    def f(x):
        outs = [layer(x) for layer in layers]
        k = int(torch.argmax(x.repeat(1, 2)[0, :3]))
        y = outs[k]
        z = layers[k](y)
        return y, z, k

    check(f, X, paths=2)


def test_super_closures_defaults_lambda_decorators():
    class Base(nn.Module):
        def forward(self, x, *, scale=2.0):
            if x.sum() > 0:
                return x * scale
            return x

    class Derived(Base):
        __private = 3.0

        @torch.no_grad()
        def forward(self, x, shift=1.0, **kwargs):
            f = lambda v: v + shift if v.max() > 0 else v - shift  # noqa: E731
            y = super().forward(x, scale=self.__private)
            return f(y)

    check(Derived().eval(), X, paths=3)


def test_generator_and_enumerate_zip_reversed():
    def produce(x):
        for i in range(3):
            if x.sum() > i:
                yield x * i
            else:
                yield x

    def f(x):
        out = x * 0
        for i, (a, b) in enumerate(zip(produce(x), reversed([1, 2, 3]))):
            out = out + a * b + i
        return out

    check(f, X, paths=3)


def test_positions_need_no_check_of_their_range():
    def f(x):
        outs = [x, x * 2, x * 3, x * 4]
        _, where = torch.cat([x, -x], 1).max(dim=1)
        return outs[int(x.argmax())], outs[torch.topk(x, 2).indices[0, 1].item()], outs[int(where[0])]

    graph = check(f, X, paths=2)
    assert not any(isinstance(b.terminator, Raise) for b in graph.blocks)


def test_rewriting_leaves_the_parsed_source_as_it_is():
    def f(x):
        try:
            y = x if x.sum() > 0 else -x
        finally:
            z = [1]
        return y, z

    before = ast.dump(function_node(f.__code__))
    check(f, X, paths=2)
    assert ast.dump(function_node(f.__code__)) == before


def test_variable_of_an_outer_function_changed_by_a_call_in_a_branch():
    def f(x):
        n, last = 0, x

        def note(v):
            nonlocal n, last
            n += 1
            last = v * 2

        if x.sum() > 0:
            note(x)
        elif x[0, 0] < -1:
            note(-x)
            note(x + 1)
        return n, last

    check(f, X, paths=3)


def test_variable_that_a_branch_assigns_before_it_makes_a_function_that_changes_it():
    def f(x):
        n, t = int(x[0, 0] * 2), x * 1
        if x[0, 1] < 0:
            n = n - 7
        else:
            t = x * 2
            if x[0, 0] > 0:
                n = n // 2

            def note():
                nonlocal n, t
                n += 1
                t = t + n
                return t

            x = x * note()
        return x, n, t

    check(f, X, paths=3)


def test_variable_that_trips_assign_before_they_make_a_function_that_changes_it():
    def f(x):
        n = int(x[0, 0] * 2)
        k = 0
        while k < 3:
            k += 1
            if x[0, 1] * k < 0:
                continue
            if x[0, 0] * k > 1:
                n = n - 1

            def note():
                nonlocal n
                n += 2
                return n

            x = x + note()
        return x, n

    check(f, X, paths=2)


def test_zeros_of_either_sign_are_two_numbers():
    def f(x):
        if x.sum() > 0:
            u, v = 0.0, -0.0
        else:
            u, v = -0.0, 0.0
        w = 0.0 if x[0, 0] > 0 else -0.0
        return u, v, w, x * u

    check(f, X, paths=4)


def test_functions_called_last_on_both_sides():
    def twice(x):
        y = x * 2
        return y

    def longer(x):
        if x.max() > 1:
            return twice(x)
        return [x]

    def f(x):
        if x.sum() > 0:
            return longer(x)
        return twice(x - 1)

    check(f, [(torch.tensor(v),) for v in ([2.0, 1.0], [0.5, 0.5], [-1.0, 0.0])], paths=3)
