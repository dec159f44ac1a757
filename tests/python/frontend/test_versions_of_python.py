# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Where versions of Python differ, a compiled network does what eager does in the version that builds it."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import sys
import types
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from differential import check, given
from hypothesis import example, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from programs_of_later_python import PROGRAMS as LATER
from programs_versions_of_python import PROGRAMS as ALL
from test_hunted import check_refused, check_right

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.frontend.python.calls.sums import COMPENSATES, summed
from dycl_tvm.frontend.python.source.locate import compiled_to
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.passes import run_passes

PROGRAMS = ALL | LATER


@pytest.mark.parametrize("name", [name for name, (since, _) in PROGRAMS.items() if sys.version_info >= since])
def test_right(name: str) -> None:
    check_right(PROGRAMS[name][1])


NUMBERS = st.lists(
    st.floats() | st.integers() | st.booleans() | st.sampled_from([0.1, 1e16, -1e16, 1e308, -1e308, -0.0, 5e-324]), max_size=12
)


@settings(max_examples=300, deadline=None)
@drawn(NUMBERS, st.sampled_from([0, 0.0, -0.0, 0.1, 2**70]))
@example([0.1] * 10, 0)
@example([-0.0, -0.0], -0.0)
@example([1e308, 1e308, -1e308], 0)
@example([0.0, 1e308, -1e308], 2**70)
@example([0.5, Fraction(1, 3), 0.1, 0.2], 0)
def test_a_sum_is_that_of_python(items: list[Any], start: Any) -> None:
    try:
        want = sum(items, start)
    except OverflowError:  # an int that is no float
        return
    got = summed(items, start)
    assert type(got) is type(want) and repr(got) == repr(want)


def _exact(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([sum(x.tolist()), sum(map(sum, [x.tolist(), [1, x[0].item(), True, x[1].item()]]))], dtype=torch.float64)


def _of_a_list_that_grows(x: torch.Tensor) -> torch.Tensor:
    kept: list[float] = []
    for v in x:
        if v > 5:
            break
        kept.append(v.item())
    return torch.tensor(sum(kept), dtype=torch.float64)


SUMMED = [
    *([0.1] * 10, [1e16, 1.0, -1e16, *[0.0] * 7], [math.inf, *[1.0] * 9], [1e308, 1e308, -1e308, *[0.0] * 7]),
    *([-0.0] * 10, [0.1, 0.2, 9.0, *[0.3] * 7]),
]


_without_source = eval("lambda x: x.new_zeros(1) + sum(x.tolist())")


def _by_a_library(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(library_sum(x.tolist()), dtype=torch.float64)


#: A function whose code is no user's.
library_sum = types.FunctionType(
    (lambda rows: sum(rows)).__code__.replace(co_filename=str(Path(torch.__file__).parent / "some.py")), globals(), "library_sum"
)


@pytest.mark.parametrize("function", [_exact, _of_a_list_that_grows, _without_source, _by_a_library])
def test_a_sum_of_run_time_numbers_is_exactly_that_of_python(function: Any) -> None:
    inputs = [torch.tensor(row, dtype=torch.float64) for row in SUMMED]
    graph = stage(function, (inputs[0],))
    run_passes(graph)
    for x in inputs:
        want, got = function(x), interpret(graph, given(graph, (x,)))[0]
        assert torch.equal(want.view(torch.int64), got.view(torch.int64)), (want, got)


@pytest.mark.skipif(not COMPENSATES, reason="a sum of floats is made of additions before Python 3.12")
def test_a_sum_of_what_may_be_an_int_is_refused() -> None:
    check_refused("def net(x):\n    return sum([0.5, max(x[0, 0].item(), 0)])\n", "added up by sum()")
    check_refused("import math\ndef net(x):\n    return math.sumprod(x[0].tolist(), x[1].tolist())\n", "more exact than additions are")


@pytest.mark.parametrize("asked", ["sys._getframe()", "inspect.currentframe()", "inspect.stack()", "traceback.format_stack()"])
def test_frames_are_refused(asked: str) -> None:
    check_refused(f"import sys, inspect, traceback\ndef net(x):\n    frames = {asked}\n    return x\n", "asks for the frames of calls")


def test_a_special_method_without_source_is_not_taken_for_one_of_a_dataclass() -> None:
    space: dict[str, Any] = {"KEPT": []}
    exec("class Counter:\n def __call__(self, x):\n  KEPT.append(1)\n  return x * len(KEPT)\n", space)
    counter = space["Counter"]()
    with pytest.raises(UnsupportedError, match="the source of __call__.. cannot be found"):
        stage(lambda x: counter(x), (torch.ones(2),))


def _steps(x: Any) -> Any:
    yield x
    yield x * 2


def test_functions_that_make_generators_are_known_as_such_and_replaced_without_a_warning() -> None:
    asked = functools.partial(_steps, torch.ones(2))

    def net(x: torch.Tensor) -> Any:
        kinds = [inspect.isgeneratorfunction(f) for f in (_steps, net, asked, len)]
        return sum(_steps(x)) if x.sum() > 0 else x, kinds

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(net, [(torch.ones(2),), (-torch.ones(2),)])


# fmt: off
SEVERAL = [lambda v: v + 1, lambda v: v + 1.0, lambda v, k=3: (lambda v: v * k)(v), lambda v: v - 1 if v.sum() > 0 else v * 3]; WITHIN = lambda v: [f(v) for f in (lambda v: v + 2, lambda v: v - 2)]  # noqa: E501, E702
# fmt: on


def test_lambdas_of_one_line_are_told_apart() -> None:
    inputs = [(torch.ones(2),), (-torch.ones(2),)]
    check(lambda x: [f(x) for f in SEVERAL] + WITHIN(x), inputs)


@pytest.mark.parametrize("function", [*SEVERAL, WITHIN])
def test_what_stands_on_one_line_is_found_by_its_code(function: Any) -> None:
    """Where Python knows no columns."""
    code, text = function.__code__, Path(__file__).read_text()
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Lambda) and n.lineno == code.co_firstlineno]
    nodes = [n for n in nodes if len(n.args.args) == code.co_argcount]
    found = compiled_to(code, nodes, text)
    assert len(found) == 1
    assert (
        ast.unparse(found[0].body)
        == {
            **dict(zip(SEVERAL, ["v + 1", "v + 1.0", "(lambda v: v * k)(v)", "v - 1 if v.sum() > 0 else v * 3"])),
            WITHIN: "[f(v) for f in (lambda v: v + 2, lambda v: v - 2)]",
        }[function]
    )
