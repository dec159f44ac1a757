# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A library goes out of memory when it is unloaded: its code, its threads, what these keep; and others go on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import handmade
import numpy as np
import pytest
import tvm
import tvm_ffi

from dycl_tvm.codegen import toolchain
from dycl_tvm.errors import UsageError
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.runtime import load

REPOSITORY = Path(__file__).parents[3]
X = np.arange(1000, dtype="float32")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    folder, made = tmp_path_factory.mktemp("unload"), {}
    for name in ("one", "two", "three"):
        program = handmade.straight_program("k_scratch", "k_twice", type_=TensorType((1000,), "float32"))
        program.name = name  # libraries with the same metadata would be one
        made[name] = handmade.build(program, folder, name=name)
    return made


def _mapped(library: Path) -> bool:
    return str(library) in Path("/proc/self/maps").read_text()


def _run(code: str, *files: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        # NumPy's threads come and go: a fork ends them
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nothing_of_it_is_left(files: dict[str, tuple[Path, Path]]) -> None:
    module = load(*files["one"])
    np.testing.assert_array_equal(module(X), 2 * X)
    assert _mapped(files["one"][0])
    module.unload()
    assert not _mapped(files["one"][0])
    module.unload()  # it is out already
    module.close()
    module.cancel()
    for use in (
        lambda: module(X),
        module.new_session,
        module.get_state,
        lambda: module.last_path,
        module.profile,
        lambda: module.set_log(print),
    ):
        with pytest.raises(UsageError, match=r"unloaded|closed"):
            use()
    again = load(*files["one"])
    np.testing.assert_array_equal(again(X), 2 * X)
    again.unload()


def test_it_is_refused_while_anything_is_in_use(files: dict[str, tuple[Path, Path]]) -> None:
    module = load(*files["one"])
    session, other = module.new_session(), load(*files["one"])
    with pytest.raises(UsageError, match="the library of 'one' is in use by 2 sessions, 2 other models and 0 tensors"):
        module.unload()
    np.testing.assert_array_equal(session(X), 2 * X)
    session.close()
    with pytest.raises(UsageError, match="in use by 1 sessions, 1 other models"):
        module.unload()
    np.testing.assert_array_equal(other(X), 2 * X)
    other.unload()
    assert not _mapped(files["one"][0])


def test_a_run_that_goes_on_ends_first(tmp_path: Path) -> None:
    module = load(*handmade.build(handmade.zoo_program(), tmp_path))
    future = module.run_async(np.zeros(4, "float32"), 2**62)
    module.unload()
    assert future.done()
    assert not _mapped(tmp_path)


_THREADS = """
import os, sys, numpy as np, dycl_tvm
x = np.arange(1000, dtype="float32")
def threads():
    return len(os.listdir("/proc/self/task")) - before
def loaded(k):
    module = dycl_tvm.load(sys.argv[k], sys.argv[k + 1])
    assert (module(x) == 2 * x).all()
    return module
before = len(os.listdir("/proc/self/task"))
one, two = loaded(1), loaded(3)
print(threads())
one.unload()          # its pool was that of both
print(threads())
assert (two(x) == 2 * x).all()
three = loaded(5)
print(threads())
child = os.fork()
if child == 0:
    two.unload()      # whose threads are in the parent
    assert (three(x) == 2 * x).all() and "two.so" not in open("/proc/self/maps").read()
    three.unload()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
two.unload(), three.unload()
print(threads(), ".so" in "".join(line for line in open("/proc/self/maps") if "unload" in line))
"""


def test_other_libraries_go_on_with_threads_of_their_own(files: dict[str, tuple[Path, Path]]) -> None:
    everything = [path for name in ("one", "two", "three") for path in files[name]]
    assert _run(_THREADS, *everything, DYCL_NUM_THREADS="3").split() == ["2", "0", "2", "0", "0", "False"]


_RELOADS = """
import sys, numpy as np, dycl_tvm
x = np.arange(1000, dtype="float32")
def cycle():
    module = dycl_tvm.load(sys.argv[1], sys.argv[2])
    assert (module(x) == 2 * x).all()
    module.unload()
def kilobytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4
for _ in range(30): cycle()
before = kilobytes()
for _ in range(100): cycle()
print(kilobytes() - before)
"""


def test_a_hundred_reloads_cost_nothing(files: dict[str, tuple[Path, Path]]) -> None:
    """They took 18 MB when libraries stayed."""
    assert int(_run(_RELOADS, *files["one"], DYCL_NUM_THREADS="2")) < 1000


def test_under_load(files: dict[str, tuple[Path, Path]]) -> None:
    """Libraries come and go, the one with the pool too, while another one runs kernels in that pool."""
    code = """
import sys, threading, numpy as np, dycl_tvm
x = np.arange(1000, dtype="float32")
def work(module):
    while not over.is_set():
        assert (module(x) == 2 * x).all()
    done.append(True)
def load(k):
    return dycl_tvm.load(sys.argv[2 * k + 1], sys.argv[2 * k + 2])
done = []
now = load(0)
for turn in range(12):
    over = threading.Event()
    runners = [threading.Thread(target=work, args=(m,)) for m in (now.new_session(), now.new_session())]
    for runner in runners: runner.start()
    others = [load((turn + k) % 3) for k in (1, 2)]
    for _ in range(20):
        for other in others: assert (other(x) == 2 * x).all()
        others[1].unload()
        others[1] = load((turn + 2) % 3)
    others[1].unload()
    over.set()
    for runner in runners: runner.join()
    del runners
    now.unload()          # the oldest, in whose pool the next one has been
    now = others[0]
print(len(done))
"""
    everything = [path for name in ("one", "two", "three") for path in files[name]]
    assert _run(code, *everything, DYCL_NUM_THREADS="3") == "24\n"


def test_a_fork_waits_for_threads_that_load(files: dict[str, tuple[Path, Path]]) -> None:
    """A child has the locks of the system's loader as they were, and of a first run what was being set up."""
    code = """
import os, signal, sys, threading, numpy as np, dycl_tvm
x = np.arange(1000, dtype="float32")
def cycle():
    module = dycl_tvm.load(sys.argv[1], sys.argv[2])
    assert (module(x) == 2 * x).all()
    module.unload()
def work():
    while not over.is_set(): cycle()
cycle()
over = threading.Event()
thread = threading.Thread(target=work)
thread.start()
ended = set()
for _ in range(60):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        module = dycl_tvm.load(sys.argv[1], sys.argv[2])
        assert (module(x) == 2 * x).all()
        os._exit(0)
    ended.add(os.waitpid(child, 0)[1])
over.set()
thread.join()
print(*ended)
"""
    assert _run(code, *files["one"], DYCL_NUM_THREADS="2") == "0\n"


def test_signal_handlers_load_and_unload(files: dict[str, tuple[Path, Path]]) -> None:
    """In the middle of all that a thread does with the same library."""
    code = """
import signal, sys, numpy as np, dycl_tvm
x = np.arange(1000, dtype="float32")
def cycle():
    module = dycl_tvm.load(sys.argv[1], sys.argv[2])
    assert (module(x) == 2 * x).all()
    try:
        module.unload()
    except dycl_tvm.UsageError:  # that of the handler, or of who was interrupted, is in use
        pass
def handle(*_):
    if len(depth) < 3:
        depth.append(1)
        cycle()
        depth.pop()
depth = []
cycle()
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
for _ in range(100): cycle()
signal.setitimer(signal.ITIMER_REAL, 0)
cycle()
print(sys.argv[1] in open("/proc/self/maps").read())
"""
    assert _run(code, *files["one"], DYCL_NUM_THREADS="2") == "False\n"


def test_daemon_threads_run_until_the_process_ends(files: dict[str, tuple[Path, Path]]) -> None:
    code = """
import sys, threading, time, numpy as np, dycl_tvm
x = np.arange(1000, dtype="float32")
def work(module):
    while True: module(x)
for _ in range(3):
    module = dycl_tvm.load(sys.argv[1], sys.argv[2])
    threading.Thread(target=work, args=(module,), daemon=True).start()
time.sleep(0.2)
"""
    for _ in range(3):
        assert _run(code, *files["one"], DYCL_NUM_THREADS="2", MALLOC_PERTURB_="165") == ""


def test_from_tvm(files: dict[str, tuple[Path, Path]]) -> None:
    module = tvm_ffi.load_module(str(files["two"][0]), keep_module_alive=False)  # by default TVM never closes a library
    session = module["create"](str(files["two"][1]))
    module["run"](session, tvm.runtime.tensor(X))
    kept = module["output"](session, 0)
    with pytest.raises(ValueError, match="in use by 1 sessions, 1 other models and 1 tensors"):
        module["unload"]()
    module["destroy"](session)
    with pytest.raises(ValueError, match="0 sessions, 0 other models and 1 tensors"):
        module["unload"]()
    np.testing.assert_array_equal(kept.numpy(), 2 * X)
    del kept
    module["unload"]()
    del module
    assert not _mapped(files["two"][0])


def test_from_tvm_it_stays_without(files: dict[str, tuple[Path, Path]]) -> None:
    """TVM closes a library with its last module; there may be threads and tensors of it."""
    module = tvm_ffi.load_module(str(files["three"][0]), keep_module_alive=False)
    session = module["create"](str(files["three"][1]))
    module["run"](session, tvm.runtime.tensor(X))
    kept = module["output"](session, 0)
    del module
    assert _mapped(files["three"][0])
    np.testing.assert_array_equal(kept.numpy(), 2 * X)


def test_cancel_and_deadline_from_tvm(tmp_path: Path) -> None:
    library, params = handmade.build(handmade.zoo_program(), tmp_path)
    module = tvm.runtime.load_module(str(library))
    session, x = module["create"](str(params)), tvm.runtime.tensor(np.zeros(4, "float32"))
    cancel, told = module["cancel"], []

    def run() -> None:
        try:
            module["run"](session, x, 2**62)
        except RuntimeError as error:
            told.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        cancel(session)
        thread.join(0.001)
    assert "the run was cancelled" in told[0]
    with pytest.raises(RuntimeError, match="deadline"):
        module["run_within"](session, 5, x, 2**62)
    with pytest.raises(RuntimeError, match="deadline"):
        module["run_within"](session, 0.0, x, 0)
    assert module["run_within"](session, 1e6, x, 0) == 0
    with pytest.raises(ValueError, match="cancel: 7 is not a session"):
        cancel(7)
    with pytest.raises(ValueError, match="run_within: argument 1 must be a number"):
        module["run_within"](session, "soon", x, 0)
    for function, number, words in (
        ("set_num_threads", -1, "negative"),
        ("set_num_threads", -(2**32) + 1, "negative"),
        ("kernel_runs", 99, "no kernel"),
    ):
        with pytest.raises(ValueError, match=words):
            module[function](session, number)


def test_from_c_and_cpp(files: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    units = toolchain.runtime_sources().host_units()
    main = REPOSITORY / "tests" / "cpp" / "unload_main.cc"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *toolchain.include_flags(), str(main), *map(str, units)]
    toolchain.find_compiler().run([*flags, "-o", str(tmp_path / "host"), "-ldl", "-lpthread"], "host")
    done = subprocess.run([tmp_path / "host", *files["one"], *files["two"]], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
