# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``print`` kept as a host call: the text of the staged and simplified graph, and of the artefact, against eager."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dycl_tvm
from dycl_tvm import passes
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.verify import verify

X = [torch.tensor([a, b]) for a in (-2.0, -0.3, 0.4, 3.0) for b in (-1.0, 0.2, 2.0)]


def check(f: Callable[..., Any], capsys: pytest.CaptureFixture[str], inputs: list[torch.Tensor] = X) -> set[str]:
    """Compare what eager, the graph and the simplified graph print; return the texts."""
    graph = stage(f, (inputs[0],), keep_print=True)
    verify(graph)
    simple = stage(f, (inputs[0],), keep_print=True)
    passes.run_passes(simple)
    verify(simple)
    assert capsys.readouterr().out == "", "staging and the passes print nothing"
    texts = set()
    for x in inputs:
        f(x.clone())
        want = capsys.readouterr().out
        for g in (graph, simple):
            interpret(g, [x])
            assert capsys.readouterr().out == want
        texts.add(want)
    return texts


def test_texts(capsys):
    def f(x):
        s = x.sum().item()
        print("sum", s, int(s), s > 0, None, 3, 0.1, "{braces}", sep=", ", end=";\n")
        print()
        print([s, "quoted", (int(s),)], {"k": s > 1, 2: ()}, x.shape, x.dtype, flush=True)
        print('äöü\t"\\??/', end="")
        return x

    assert len(check(f, capsys)) == len({float(x.sum()) for x in X})


def test_prints_in_branches_stay_there_in_order(capsys):
    def f(x):
        print("begin")
        positive = bool(x.sum() > 0)
        if positive:
            print("known here:", positive)
            print("positive", x.sum().item())
            if x[0] > x[1]:
                print("down")
            y = x * 2
        else:
            print("negative")
            y = x * 3
        print("same")
        print("same")
        return y

    assert len(check(f, capsys)) >= 4


def test_sides_that_differ_in_their_text_only(capsys):
    def f(x):
        y = torch.relu(x)
        if x[0] > 0:
            print("one", end="|")
        else:
            print("other", end="|")
        if x[1] > 0:
            print("left")
            return y + 1
        print("right")
        return y + 1

    assert check(f, capsys) == {"one|left\n", "one|right\n", "other|left\n", "other|right\n"}


def test_loops_and_calls(capsys):
    def tell(i, x):
        if i % 2 == 0:
            print("even", i, end=" ")
        else:
            print("odd", i)
        return x * 0.6

    def f(x):
        n = 0
        while x.abs().sum() > 0.5:
            x = tell(n, x)
            n += 1
            for k in range(2):
                print("inner", k)
        for i in range(3):
            print(i, bool(x.max() > 0.1))
            if x.min().item() > 0.1:
                print("break")
                break
        else:
            print("all")
        return x, n

    assert len(check(f, capsys)) >= 4


def test_order_with_errors(capsys):
    def f(x):
        print("before")
        y = 1 / int(x.sum())
        print("after")
        return x * y

    graph = stage(f, (X[0],), keep_print=True)
    passes.run_passes(graph)
    with pytest.raises(ZeroDivisionError):
        interpret(graph, [torch.zeros(2)])
    assert capsys.readouterr().out == "before\n"


def _tensor(x):
    print("x:", x)  # HERE
    return x


def _object(x):
    print(torch.nn)  # HERE
    return x


def _formatted(x):
    print(f"sum {x.sum().item()}")  # HERE
    return x


def _to_a_file(x):
    print("x", file=sys.stderr)  # HERE
    return x


@pytest.mark.parametrize(
    ("f", "suggestion"), [(_tensor, "t.item()"), (_object, "one by one"), (_formatted, "print(a, b)"), (_to_a_file, "standard output")]
)
def test_refused(f, suggestion):
    with pytest.raises(UnsupportedError) as caught:
        stage(f, (X[0],), keep_print=True)
    assert suggestion in str(caught.value)
    assert "HERE" in str(caught.value)


def test_refused_without_the_option():
    with pytest.raises(UnsupportedError, match="keep_print=True"):
        stage(lambda x: print("hello"), (X[0],))


def test_onnx_has_no_print(tmp_path):
    def f(x):
        print("hello")
        return x + 1

    with pytest.raises(UnsupportedError, match="keep_print"):
        dycl_tvm.build(f, (X[0],), keep_print=True).export_onnx(tmp_path / "f.onnx")


def _numbers() -> list[float]:
    chosen = [0.0, -0.0, 0.1, 1e-4, 9.9e-5, 1e16, 9999999999999998.0, 1e15, 123.0, 1e100, 5e-324, math.inf, -math.inf, math.nan]
    chosen += [sys.float_info.max, sys.float_info.min]
    powers = [2.0**k for k in range(-1074, 1024)]
    rng = random.Random(0)
    return [*chosen, *powers, *(rng.uniform(-1, 1) * 10.0 ** rng.randint(-300, 300) for _ in range(2000))]


@pytest.mark.parametrize("rolled", [True, False], ids=["rolled", "unrolled"])
def test_the_artefact_prints_as_python_does(rolled, tmp_path, capfd):
    def f(x, n):
        i = 0
        print('ä "q" {}', i, None)
        while i < (n.item() if rolled else x.shape[0]):
            number = x[i].item()
            print(number, i - 5, number > 0.5, sep="|")
            if number > 1e3:
                print("large", end="")
                print()
            i += 1
            if x[0] > 1:
                break
        return x + i

    # every number where a trip is code of its own would be a network of thousands of operations
    x = torch.tensor(_numbers() if rolled else _numbers()[::100], dtype=torch.float64)
    artifact = dycl_tvm.build(f, (x, torch.tensor(2)), keep_print=True)
    library, params = artifact.export_library(tmp_path / "f.so"), artifact.save_params(tmp_path / "f.params")
    module = dycl_tvm.load(library, params)
    capfd.readouterr()
    f(x, torch.tensor(len(x)))
    sys.stdout.flush()
    want = capfd.readouterr().out.splitlines()
    module(x, torch.tensor(len(x)))
    assert capfd.readouterr().out.splitlines() == want
    assert len(want) > len(x)
