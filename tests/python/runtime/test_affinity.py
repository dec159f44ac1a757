# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The CPUs and the priority of the threads that parallel kernels have; those of the program stay as they are."""

from __future__ import annotations

import os
import subprocess
import sys

import handmade
import pytest

from dycl_tvm.errors import UsageError
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.runtime import set_affinity

_BEGIN = """
import os, sys, time, numpy as np, dycl_tvm
x = np.arange(1000, dtype="float32")
cpu = max(os.sched_getaffinity(0))
before = os.listdir("/proc/self/task")
def load(k):
    module = dycl_tvm.load(sys.argv[k], sys.argv[k + 1])
    assert (module(x) == 4 * x).all()
    return module
base = os.getpriority(os.PRIO_PROCESS, 0)
everywhere = sorted(os.sched_getaffinity(0))
def workers(cpus, nice):  # how many threads there are that run so; they set about it when they begin
    end = time.monotonic() + 20
    while True:
        tasks = [int(task) for task in set(os.listdir("/proc/self/task")) - set(before)]
        found = [(sorted(os.sched_getaffinity(task)), os.getpriority(os.PRIO_PROCESS, task) - base) for task in tasks]
        if all(one == (cpus, nice) for one in found) or time.monotonic() > end:
            return found.count((cpus, nice)), len(found)
        time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder, made = tmp_path_factory.mktemp("affinity"), []
    for name in ("one", "two"):
        program = handmade.straight_program("k_twice", "k_twice", type_=TensorType((1000,), "float32"))
        program.name = name
        made += map(str, handmade.build(program, folder, name=name))
    return made


def _run(code: str, files: list[str], **environment: str) -> str:
    command, env = [sys.executable, "-c", _BEGIN + code, *files], {**os.environ, "DYCL_NUM_THREADS": "3", **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_holds_for_libraries_before_and_after_it(files: list[str]) -> None:
    code = """
one = load(1)
dycl_tvm.set_affinity([cpu], nice=base + 4)
print(*workers([cpu], 4))
two = load(3)
own = two.new_session(num_threads=2)
assert (own(x) == 4 * x).all()
print(*workers([cpu], 4))
own.close()
one.unload()  # the threads are those of the other library now
assert (two(x) == 4 * x).all()
print(*workers([cpu], 4))
if os.geteuid() == 0:  # others may not take it back
    dycl_tvm.set_affinity(None)
    assert workers(everywhere, 0) == (2, 2)
assert sorted(os.sched_getaffinity(0)) == everywhere and os.getpriority(os.PRIO_PROCESS, 0) == base
"""
    assert _run(code, files).split("\n") == ["2 2", "3 3", "2 2", ""]


def test_the_environment_says_it_too(files: list[str]) -> None:
    cpu, nice = max(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0) + 2
    assert _run("one = load(1); print(*workers([cpu], 2))", files, DYCL_AFFINITY=f"{cpu}-{cpu}", DYCL_NICE=str(nice)) == "2 2\n"
    # there are as many threads as CPUs, where nothing else is said
    assert _run("one = load(1); print(*workers([cpu], 0))", files, DYCL_AFFINITY=str(cpu), DYCL_NUM_THREADS="") == "0 0\n"
    assert _run("one = load(1); print(*workers([cpu], 0))", files, DYCL_AFFINITY=f"{cpu}-900", DYCL_NUM_THREADS="") == "0 0\n"
    heard = "one = dycl_tvm.load(sys.argv[1], sys.argv[2]); one.set_log(lambda level, text: print(text)); one(x)"
    assert "DYCL_AFFINITY has none of the process's CPUs: 1023" in _run(heard, files, DYCL_AFFINITY="1023")
    told = _run(heard, files, DYCL_AFFINITY="3-1", DYCL_NICE="high")
    assert "DYCL_AFFINITY is no list of CPUs such as 0-3,8: 3-1" in told
    assert "DYCL_NICE is no number from -20 to 19: high" in told


def test_cpus_that_are_not_there_are_no_threads(files: list[str]) -> None:
    code = "dycl_tvm.set_affinity(range(1024)); one = load(1); print(workers(everywhere, 0)[1] - len(everywhere))"
    assert _run(code, files, DYCL_NUM_THREADS="") == "-1\n"


def test_what_cannot_be_is_refused(files: list[str]) -> None:
    for cpus, nice, words in (
        ([], 0, "there must be a CPU"),
        ([-1], 0, "0 to 1023"),
        ([1024], 0, "0 to 1023"),
        (None, 20, "nice"),
        ([0], 1.5, "a number"),
        (["0"], 0, "are numbers"),
    ):
        with pytest.raises(UsageError, match=words):
            set_affinity(cpus, nice)  # type: ignore[arg-type]
    code = """
one = load(1)
try:
    dycl_tvm.set_affinity([1023])
except dycl_tvm.UsageError as error:
    print(error)
assert (one(x) == 4 * x).all()
"""
    assert _run(code, files) == "none of these CPUs is the process's\n"
    code = """
dycl_tvm.set_affinity([1023])  # there is no library yet that could tell
for _ in range(2):
    try:
        load(1)
    except dycl_tvm.UsageError as error:
        last = str(error)
print(last)
dycl_tvm.set_affinity(None)
load(1)
"""
    assert _run(code, files) == "none of these CPUs is the process's\n"
