# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Control over a call from outside: cancelling, deadlines, Ctrl-C, signal handlers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import handmade
import numpy as np
import pytest
from zoo_calls import ENDLESS, SUM, X

from dycl_tvm.errors import CancelledError, DeadlineError, RunError, UsageError
from dycl_tvm.runtime import Module, load


@pytest.fixture
def zoo(files: tuple[Path, Path]) -> Module:
    return load(*files)


def _soon(action: object) -> None:
    """Act in the middle of the call that follows."""
    threading.Timer(0.05, action).start()  # type: ignore[arg-type]


def test_cancel_from_another_thread(zoo: Module) -> None:
    zoo(X, 1)  # counts in the state
    before = zoo.get_state()
    _soon(zoo.cancel)
    with pytest.raises(CancelledError, match="cancelled"):
        zoo(X, ENDLESS)
    path = zoo.last_path
    assert path.site is None
    assert path.omitted > 0
    assert zoo.get_state() == before
    np.testing.assert_array_equal(zoo(X, 0)["y"], SUM)


def test_cancel_without_a_run_has_no_effect(zoo: Module) -> None:
    zoo.cancel()
    np.testing.assert_array_equal(zoo(X, 0)["y"], SUM)


def test_deadline(zoo: Module) -> None:
    begin = time.perf_counter()
    with pytest.raises(DeadlineError, match="deadline"):
        zoo.run((X, ENDLESS), deadline_ms=30)
    assert 0.03 <= time.perf_counter() - begin < 5
    for late in (0, -1, -float("inf")):
        with pytest.raises(DeadlineError):
            zoo.run((X,), {"n": 0}, deadline_ms=late)
    with pytest.raises(UsageError, match="not a number"):
        zoo.run((X, 0), deadline_ms=float("nan"))
    for far in (1e4, 1e300, float("inf"), None):
        np.testing.assert_array_equal(zoo.run((X, 0), deadline_ms=far)["y"], SUM)
    with pytest.raises(RunError):  # the deadline was of those calls alone
        zoo(X, 2)


def test_a_loop_without_kernels_ends_too(tmp_path: Path) -> None:
    n, i, more = handmade.Reg(0, "int"), handmade.Reg(1, "int"), handmade.Reg(2, "bool")
    blocks = [
        handmade.CodeBlock("entry", [handmade.SetReg(i, 0)], handmade.Goto(1)),
        handmade.CodeBlock(
            "head", [handmade.HostInstr("lt", more, (i, n))], handmade.CondGoto(0, more, handmade.Goto(2), handmade.Goto(3))
        ),
        handmade.CodeBlock("body", [handmade.HostInstr("add", i, (i, 1))], handmade.Goto(1)),
        handmade.CodeBlock("end", [], handmade.Leave(0, (i,))),
    ]
    site = handmade.Site({"leaf": 0, "type": "int"}, [handmade.INT])
    program = handmade.Program("Count", handmade.call_structure("int"), ["n"], [n], blocks, [site], [], [], ["int", "int", "bool"], 64)
    module = handmade.build_and_load(program, tmp_path)
    assert module(7) == 7
    with pytest.raises(DeadlineError):
        module.run((ENDLESS,), deadline_ms=20)


def _child(code: str, files: tuple[Path, Path]) -> str:
    begin = (
        "import os, signal, sys, threading, time, numpy as np, dycl_tvm\nmodule = dycl_tvm.load(*sys.argv[1:])\nx = np.ones(4, 'float32')\n"
    )
    begin += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # it is ignored where tests run in the background
    begin += "def soon(act): threading.Timer(0.1, act).start()\n"
    command = [sys.executable, "-c", begin + code, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ctrl_c_ends_a_call(files: tuple[Path, Path]) -> None:
    code = """
for _ in range(3):
    soon(lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        module(x, 2**62)
    except KeyboardInterrupt:
        print("interrupted", module.last_path.site, module(x, 0)["y"].tolist())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
soon(lambda: os.kill(os.getpid(), signal.SIGINT))  # Python's handler is there again
try:
    time.sleep(30)
except KeyboardInterrupt:
    print("awake")
"""
    y = [(1 + w) * 2.0 for w in (10, 20, 30, 40)]
    assert _child(code, files) == f"interrupted None {y}\n" * 3 + "awake\n"


def test_a_handler_of_the_program_does_not_end_calls(files: tuple[Path, Path]) -> None:
    code = """
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append(len(module.last_path.branches)))
soon(lambda: os.kill(os.getpid(), signal.SIGINT))
soon(lambda: (time.sleep(0.3), module.cancel()))
try:
    module(x, 2**62)
except dycl_tvm.CancelledError:
    print("cancelled", heard)
"""
    # it runs when the call has come back: then the path is that of the call, or not known yet
    assert _child(code, files) in ("cancelled [0]\n", "cancelled [4096]\n")


def test_signal_handlers_in_the_middle_of_a_call(zoo: Module) -> None:
    """What a handler asks for is answered or refused, and never waits for its own thread."""
    heard: list[object] = []

    def handler(*_: object) -> None:
        heard.append(zoo.last_path)
        for ask in (lambda: zoo(X, 0), zoo.reset_state, lambda: zoo.manual_seed(0), zoo.get_state):
            try:
                ask()
                heard.append("done")
            except UsageError as error:
                heard.append("in the middle of a call" in str(error))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for k in range(30):
            heard.clear()
            signal.setitimer(signal.ITIMER_REAL, 0.005)
            zoo(X, 30_000 << min(k, 10))  # on a fast machine few trips end before the signal
            signal.setitimer(signal.ITIMER_REAL, 0)
            # between two instructions of the call, or after it
            assert set(map(str, heard[1:])) <= {"True", "done"}
            if True in heard:
                break
        assert True in heard
    finally:
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(zoo(X, 0)["y"], SUM)
