# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Structured inputs and outputs, containers, aliases: staged graphs against eager."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import NamedTuple

import torch
from differential import check, same

from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import interpret

X = [(torch.tensor([[a, b]]),) for a in (-2.0, -0.3, 0.4, 3.0) for b in (-1.0, 0.2, 2.0)]


# -- inputs and outputs -------------------------------------------------------------------------------------------------------
class Point(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor
    tag: str = "p"


Pair = namedtuple("Pair", "left right")


def test_named_tuples_in_and_out():
    def f(p, q):
        if p.a.sum() > p.b.sum():
            return Pair(p.a, q[0]), p._replace(tag="q")
        return Pair(left=p, right=None), p

    check(f, [(Point(x, torch.zeros(1, 2)), [x * 2, 3]) for (x,) in X], paths=2)


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    mask: torch.Tensor
    scale: float = 2.0


@dataclasses.dataclass
class Output:
    y: torch.Tensor
    score: object = None


def test_dataclass_inside():
    def f(x):
        o = Output(x)
        if x.sum() > 0:
            o.y = o.y * 2
            o.score = x.sum()
        else:
            o.score = x.max()
        p = dataclasses.replace(o, score=1)
        return o.y, o.score, p.score, o is p

    check(f, X, paths=2)


def test_classes_that_the_forward_makes_of_annotations():
    def f(x):
        @dataclasses.dataclass
        class Box:
            y: object
            score: float = 0.5

        class Point(NamedTuple):
            x: object
            n: int = 2

        class Plain:
            least: int = 1
            most: int

        box = Box(x, 2.0) if x.sum() > 0 else Box(x * 3)
        point = Point(box.y)
        return box.y * box.score, point.x * point.n, Plain.least, list(Plain.__annotations__), hasattr(Plain, "most")

    check(f, X, paths=2)


def test_dataclass_input():
    def f(s):
        if s.x.sum() > 0:
            return s.x * s.scale
        return s.x * s.mask

    samples = [Sample(x, torch.full((1, 2), 0.5)) for (x,) in X]
    graph = stage(f, (samples[0],))
    assert graph.input_names == ["s.x", "s.mask"]
    for s in samples:
        assert same(f(s), interpret(graph, [s.x, s.mask])[0])


def test_dataclass_output():
    def f(x):
        if x.sum() > 0:
            return Output(x * 2, 1)
        return Output(x)

    check(f, X, paths=2)


def test_nested_inputs_and_keyword_only():
    def f(batch, *, flag=None):
        (a, b), extra = batch["pair"], batch["extra"]
        if a.sum() > b.sum():
            extra = [e + 1 for e in extra]
        return {"out": (a, extra), "flag": flag, 3: None, True: b}

    check(f, [({"pair": (x, x * x), "extra": [x, x * 2]},) for (x,) in X], paths=2)


def test_output_structures_by_path():
    def f(x):
        s = x.sum()
        if s > 3:
            return x
        if s > 1:
            return x, {"k": [x, None]}
        if s > 0:
            return "text"
        if s > -1:
            return None
        if s > -2.5:
            return ((), [], {}, OrderedDict(a=x), 1.5, True)
        return s.item()

    check(f, X, paths=6)


# -- containers -----------------------------------------------------------------------------------------------------------
def test_deque_defaultdict_counter_set():
    def f(x):
        window = deque([x], maxlen=2)
        groups = defaultdict(list)
        seen = set()
        votes = Counter()
        for i in range(3):
            window.append(x * i)
            groups["pos" if (x * (i - 1)).sum() > 0 else "neg"].append(i)
            if x[0, 0] > i:
                seen.add(i)
                votes["a"] += 1
            else:
                votes["b"] += 1
        window.appendleft(x)
        return list(window), dict(groups), len(seen), dict(votes), window.pop(), 2 in seen

    check(f, X, paths=4)


def test_list_methods_in_branches():
    def f(x):
        items = [x, x * 2]
        if x.sum() > 0:
            items.insert(0, -x)
            items.reverse()
        else:
            items.extend([x * 3])
            del items[0]
            items += [x * 4]
        last = items.pop()
        items[0:1] = [last, last]
        alias = items
        alias.append(x)
        copied = items.copy()
        copied.clear()
        return items, len(copied), alias is items, items.index(alias[0]) if False else 0

    check(f, X, paths=2)


def test_dict_methods_in_branches():
    def f(x):
        d = {"a": x, "b": 1}
        if x.sum() > 0:
            d.update(c=x * 2, b=2)
            d.setdefault("e", []).append(x)
        else:
            d.setdefault("b", 7)
            removed = d.pop("a")
            d["z"] = removed
        got = d.get("a", None)
        keys = list(d)
        merged = d | {"m": 1}
        return d, got, keys, len(merged), "a" in d

    check(f, X, paths=2)


def test_nested_containers_and_aliases():
    def f(x):
        inner = [x]
        outer = {"one": inner, "two": (inner, {"deep": inner})}
        if x.sum() > 0:
            outer["two"][1]["deep"].append(x * 2)
        else:
            outer["one"] = [x, -x]
        return inner, outer["one"], outer["two"], outer["one"] is inner

    check(f, X, paths=2)


def test_tensor_aliases_through_views_and_containers():
    def f(x):
        y = x.clone()
        box = {"row": y[0], "flat": y.view(-1), "t": y.t()}
        if x.sum() > 0:
            box["row"] += 1
            box["flat"][0] = 9
        else:
            box["t"].mul_(2)
            y[:, 1:].zero_()
        z = y.unsqueeze(0).expand(2, 1, 2)
        y.add_(0.5)
        a, b = y.chunk(2, 1)
        a.sub_(100)
        y[y > 5] = 0
        return y, box, z, a, b

    check(f, X, paths=2)


def test_in_place_of_an_input_and_of_a_merged_alias():
    def f(x):
        x.add_(1)
        y = x
        if x.sum() > 1:
            y = x[0]
            y.mul_(2)
        z = x * 1
        x.copy_(z * 3)
        return x, z

    check(f, X, paths=2)


def test_copy_and_deepcopy():
    def f(x):
        state = {"h": [x, x * 2]}
        shallow, deep = copy.copy(state), copy.deepcopy(state)
        if x.sum() > 0:
            state["h"].append(x)
            deep["h"][0] += 1
        return state, shallow, deep

    check(f, X, paths=2)


def test_swap_delete_and_multiple_assignment():
    def f(x):
        a = b = [x]
        c, (d, e) = x, (x * 2, x * 3)
        if x.sum() > 0:
            c, d = d, c
            a.append(c)
            del e
        else:
            b = [c]
        e = d
        (first,), second = b[:1], a[-1]
        a[0], b[0] = b[0], a[0]
        return a, b, c, d, e, first, second

    check(f, X, paths=2)


def test_a_bool_of_the_run_is_an_index():
    def f(x):
        positive = (x.sum() > 0).item()
        return [1, 2][positive], (3.5, 4.5)[not positive], [x, x * 2][x.sum() > 1], "no", positive

    check(f, [(torch.full((2, 2), v),) for v in (-1.0, 0.1, 1.0)], paths=3)
