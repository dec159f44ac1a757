# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Clocks are read when the network runs, in order with what stands around them; the check of a build tells both sides the same time."""

from __future__ import annotations

import collections
import datetime
import math
import time
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from typing import Any

import pytest
import torch
from torch import nn

import dycl_tvm
from dycl_tvm.errors import UnsupportedError, VerificationError
from dycl_tvm.hcfg.nodes import HostOp, SubDNNCall
from dycl_tvm.verify.control import check_control

X = torch.tensor([[1.0, 0.5, 2.0], [-0.5, 1.0, 0.25]])


class Anytime(nn.Module):
    """Refines its answer until there is no more time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(5))

    def forward(self, x: torch.Tensor, budget: torch.Tensor) -> Any:
        began = time.perf_counter()
        done = 0
        for layer in self.layers:
            x = torch.tanh(layer(x))
            done += 1
            if time.perf_counter() - began > budget:
                break
        return x, done


class Steps(nn.Module):
    """Integrates over the time between calls."""

    def __init__(self) -> None:
        super().__init__()
        self.last = 0.0
        self.took: list[float] = []

    def forward(self, x: torch.Tensor) -> Any:
        now = time.monotonic()
        dt = now - self.last if self.last > 0 else 0.0
        self.last = now
        y = x * 2
        self.took.append(time.monotonic() - now)
        return y, dt


def difference(x: torch.Tensor) -> Any:
    began = time.time()
    y = (x @ x.t()).relu()
    return y, time.time() - began


def nanoseconds(x: torch.Tensor) -> Any:
    began = monotonic_ns()
    y = x + 1 if x.sum() > 0 else x - 1
    return y, monotonic_ns() - began, time.process_time_ns() >= 0


def until(x: torch.Tensor) -> Any:
    began = time.perf_counter()
    while time.perf_counter() - began < 1e-4:
        x = x * 0.5
    return x.abs().sum() >= 0


def by_default(x: torch.Tensor, clock: Callable[[], float] = time.thread_time) -> Any:
    return x, clock() >= 0


def unused(x: torch.Tensor) -> Any:
    time.time()
    return x + 1


PROGRAMS: dict[str, Any] = {f.__name__: f for f in (difference, nanoseconds, until, unused)} | {"Steps": Steps().eval()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_at_any_time(name: str) -> None:
    for passes in (False, True):
        graph = dycl_tvm.stage(PROGRAMS[name], (X,), passes=passes)
        check_control(PROGRAMS[name], graph, (X,), {})
        first = graph.interpret()(X)
        if name in ("difference", "nanoseconds"):
            assert first[1] >= 0
            assert type(first[1]) is type(PROGRAMS[name](X)[1])
    if name == "unused":
        assert not [s for b in graph.blocks for s in b.steps if isinstance(s, HostOp)]
    if name == "Steps":
        assert "took" in graph.left_out[0]


def test_a_clock_that_is_a_default() -> None:
    assert dycl_tvm.stage(by_default, (X,)).interpret()(X)[1] is True


def test_a_clock_stands_between_what_is_computed_before_and_after() -> None:
    def program(x: torch.Tensor) -> Any:
        a = time.perf_counter()
        y = x @ x.t()
        b = time.perf_counter()
        z = x.sin() @ x.t()
        c = time.perf_counter()
        return y + z, b - a, c - b

    artifact = dycl_tvm.build(program, (X,))
    kinds = [
        "call" if isinstance(s, SubDNNCall) else s.op for s in artifact.hcfg.entry.steps if isinstance(s, SubDNNCall) or s.op == "clock"
    ]
    assert kinds[:5] == ["clock", "call", "clock", "call", "clock"]
    assert "what clocks say was made up" in str(artifact.report())


def test_an_anytime_network(tmp_path: Path) -> None:
    net = Anytime().eval()
    artifact = dycl_tvm.build(net, (X, torch.tensor(0.5)))
    artifact.export_library(tmp_path / "net.so", embed_params=True)
    module = dycl_tvm.load(tmp_path / "net.so")
    for budget, layers in ((0.0, 1), (-1.0, 1), (math.inf, 5)):
        for run in (net, dycl_tvm.stage(net, (X, torch.tensor(0.5))).interpret(), module):
            y, done = run(X, torch.tensor(budget))
            assert done == layers
            torch.testing.assert_close(torch.as_tensor(y), net(X, torch.tensor(budget))[0])
    assert 1 <= module(X, torch.tensor(1e-7))[1] <= 5


def test_a_library_reads_the_clocks_of_its_machine(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> Any:
        return time.time(), time.time_ns(), time.perf_counter(), time.monotonic_ns(), time.process_time(), time.thread_time_ns(), x + 1

    dycl_tvm.build(program, (X,)).export_library(tmp_path / "net.so")
    module = dycl_tvm.load(tmp_path / "net.so")
    before, got, after = program(X), module(X), program(X)
    for a, b, c in zip(before[:6], got, after):
        assert type(a) is type(b)
        assert a <= b <= c


def test_the_check_of_builds_sees_the_wrong_clock_and_the_wrong_time() -> None:
    def program(x: torch.Tensor) -> Any:
        began = time.time()
        y = x * 2
        return y, time.time() - began, began

    for change in (_same_time_twice, _other_clock):
        graph = dycl_tvm.stage(program, (X,), passes=False)
        change([s for s in graph.entry.steps if isinstance(s, HostOp)])
        with pytest.raises(VerificationError):
            check_control(program, graph, (X,), {})


def _same_time_twice(steps: list[HostOp]) -> None:
    minus = next(s for s in steps if s.op == "sub")
    minus.args = (minus.args[1], minus.args[1])


def _other_clock(steps: list[HostOp]) -> None:
    next(s for s in steps if s.op == "clock").text = "process_time"


REFUSED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "a date": (lambda x: (x, datetime.datetime.now()), "another result at every call"),
    "a rest": (lambda x: (time.sleep(0), x)[1], "depends on the time"),
    "in a library's hands": (lambda x: (x, collections.defaultdict(time.time)[0]), "in a library's hands"),
    "in an iterator's": (lambda x: (x, next(iter(time.time, 0.0))), "as it is"),
    "as a text": (lambda x: (x, f"{time.time():.2f}"), "known"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    program, words = REFUSED[name]
    with pytest.raises(UnsupportedError, match=words):
        dycl_tvm.stage(program, (X,))
