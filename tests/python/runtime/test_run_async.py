# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Calls that go on in a thread of their own: futures, cancelling, closing; threads of C under sanitizers are in test_cpp.py."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import pytest
from zoo_calls import ENDLESS, SUM, X

from dycl_tvm.errors import CancelledError, InputError, RunError, UsageError
from dycl_tvm.runtime import Module, load


@pytest.fixture
def zoo(files: tuple[Path, Path]) -> Module:
    return load(*files)


def test_results_and_errors(zoo: Module) -> None:
    for _ in range(3):
        np.testing.assert_array_equal(zoo.run_async(X, 0).result(30)["y"], SUM)
    np.testing.assert_array_equal(zoo.run_async(X, n=0).result(30)["y"], SUM)
    assert zoo.last_path.site == 0
    with pytest.raises(RunError, match="two is not allowed"):
        zoo.run_async(X, 2).result(30)
    with pytest.raises(InputError, match="'x'"):
        zoo.run_async(X[:3], 0).result(30)


def test_cancel_at_any_time(zoo: Module) -> None:
    before = zoo.get_state()
    for k in range(30):
        future = zoo.run_async(X, ENDLESS)
        time.sleep(0.001 * (k % 4))  # it has not begun yet, or runs
        assert future.running()
        assert future.cancel()
        with pytest.raises(CancelledError):
            future.result(30)
        assert not future.cancel()
    assert zoo.get_state() == before
    np.testing.assert_array_equal(zoo(X, 0)["y"], SUM)


def test_one_at_a_time(zoo: Module) -> None:
    future = zoo.run_async(X, ENDLESS)
    with pytest.raises(UsageError, match="has not ended"):
        zoo.run_async(X, 0)
    other = zoo.new_session().run_async(X, 0)
    np.testing.assert_array_equal(other.result(30)["y"], SUM)
    turns = threading.Thread(target=lambda: zoo(X, 0))  # a call waits for its turn
    turns.start()
    turns.join(0.05)
    assert turns.is_alive()
    future.cancel()
    turns.join(30)
    assert not turns.is_alive()


def test_a_call_that_waits_is_cancelled_and_not_the_one_that_runs(zoo: Module) -> None:
    results: list[object] = []
    running = threading.Thread(target=lambda: results.append(zoo.run((X, 60_000_000))))
    running.start()
    while not zoo._turn.busy:
        time.sleep(0.001)
    future = zoo.run_async(X, ENDLESS)
    future.cancel()
    with pytest.raises(CancelledError):
        future.result(60)
    running.join(60)
    assert len(results) == 1


def test_close_ends_it(zoo: Module) -> None:
    future = zoo.run_async(X, ENDLESS)
    zoo.close()
    with pytest.raises(CancelledError):
        future.result(0)
    with pytest.raises(UsageError, match="closed"):
        zoo.run_async(X, 0)


def test_the_call_keeps_the_module(files: tuple[Path, Path]) -> None:
    future = load(*files).run_async(X, 100_000)
    assert wait([future], 60).done
    np.testing.assert_array_equal(future.result()["y"], (X + 100_000 + [10, 20, 30, 40]) * 2)


def test_asyncio(zoo: Module) -> None:
    async def main() -> None:
        np.testing.assert_array_equal((await asyncio.wrap_future(zoo.run_async(X, 0)))["y"], SUM)
        future = zoo.run_async(X, ENDLESS)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(future), 0.05)
        assert isinstance(future.exception(30), CancelledError)  # the time-out has ended the run too

    asyncio.run(main())


def test_the_interpreter_waits_for_it(files: tuple[Path, Path]) -> None:
    code = "import sys, numpy as np, dycl_tvm\nf = dycl_tvm.load(*sys.argv[1:]).run_async(np.ones(4, 'f4'), 100_000)\n"
    code += "f.add_done_callback(lambda f: print(f.result()['y'][0]))"
    done = subprocess.run([sys.executable, "-c", code, *map(str, files)], capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert (done.stdout, done.returncode) == ("200022.0\n", 0), done.stderr


def test_fork_in_the_middle_of_a_call(files: tuple[Path, Path]) -> None:
    """In the child nothing waits for the thread that has the module in the parent."""
    code = """
import os, signal, sys, time, numpy as np, dycl_tvm
module, X = dycl_tvm.load(*sys.argv[1:]), np.ones(4, 'f4')
future = module.run_async(X, 2**62)
while not module._turn.busy: time.sleep(0.001)
time.sleep(0.05)
child = os.fork()
if child == 0:
    signal.alarm(30)
    try:
        module(X, 0)
    except dycl_tvm.UsageError:
        assert module.new_session()(X, 0)['y'][0] == 22 and module.last_path.site is None
        module.close()
        os._exit(0)
    os._exit(3)
failed = os.waitpid(child, 0)[1]
assert future.cancel() and not failed and type(future.exception(30)) is dycl_tvm.CancelledError
"""
    done = subprocess.run([sys.executable, "-c", code, *map(str, files)], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr


def test_without_a_thread_there_is_no_call(zoo: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            zoo.run_async(X, 0)
    np.testing.assert_array_equal(zoo.run_async(X, 0).result(30)["y"], SUM)


def test_fork_in_the_middle_of_a_run_of_c(files: tuple[Path, Path]) -> None:
    """The run does not go on in the child, where its session can be destroyed only; others can be used, and have threads of their own."""
    code = """
import ctypes, os, sys, threading, time, numpy as np, dycl_tvm
from dycl_tvm.runtime import capi
module, idle = (dycl_tvm.load(*sys.argv[1:]) for _ in range(2))
library, heard, over = module._library, [], threading.Event()
@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)
def done(user, status, site):
    heard.append((status, site))
    over.set()
run = library.dycl_run_async
p, size = ctypes.c_void_p, ctypes.c_size_t
run.argtypes = [p, p, size, p, size, p, p, p]
def start(of, n):
    inputs = of._inputs
    inputs.fill([inputs.prepared(0, np.ones(4, 'f4')), inputs.prepared(1, n)])
    return run(of._session, inputs.values, 2, None, 0, None, done, None)
assert start(idle, 0) == 0 and over.wait(30)  # it has a thread, which the child has not
over.clear()
assert start(module, 2**62) == 0
time.sleep(0.05)
child = os.fork()
if child == 0:
    again = start(module, 0)
    assert again == capi.ERROR_USAGE, again
    module._free()
    over.clear()
    assert start(idle, 0) == 0 and over.wait(30)
    assert idle.run_async(np.ones(4, 'f4'), 0).result(30)['y'][0] == 22
    os._exit(0 if heard == [(0, 0)] * 2 else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
module.cancel()
assert over.wait(30)
print(heard)
"""
    done = subprocess.run([sys.executable, "-c", code, *map(str, files)], capture_output=True, text=True, timeout=90, check=False)
    assert done.stdout == "[(0, 0), (7, -1)]\n", done.stderr
