# Licensed under the Apache License, Version 2.0; see LICENSE.
"""One pool of threads for all libraries of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import handmade

from dycl_tvm.hcfg.types import TensorType

_CODE = """
import os, sys, threading, numpy as np, dycl_tvm
x = np.arange(1000, dtype="float32")
def threads():
    return len(os.listdir("/proc/self/task"))
before = threads()
modules = [dycl_tvm.load(sys.argv[k], sys.argv[k + 1]) for k in (1, 3, 5)]
counts = []
for module in modules:
    assert (module(x) == 4 * x).all()
    counts.append(threads() - before)
print(counts)
def work(module):
    for _ in range(200):
        assert (module(x) == 4 * x).all()
    done.append(True)
done = []
runners = [threading.Thread(target=work, args=(module,)) for module in modules]
for runner in runners: runner.start()
for runner in runners: runner.join()
assert len(done) == 3
child = os.fork()
if child == 0:
    # the workers of the pool are in the parent: whoever offered it makes others
    os._exit(0 if all((module(x) == 4 * x).all() for module in reversed(modules)) and threads() - 1 == 2 else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_libraries_share_their_threads(tmp_path: Path) -> None:
    """Three workers for three libraries, one of which has kernels with barriers; not two for each."""
    files = []
    for name, symbols in (("one", ("k_twice", "k_twice")), ("two", ("k_barrier", "k_twice")), ("three", ("k_twice", "k_twice"))):
        program = handmade.straight_program(*symbols, type_=TensorType((1000,), "float32"))
        program.name = name  # libraries with the same metadata would be one
        files += handmade.build(program, tmp_path, name=name)
    command = [sys.executable, "-c", _CODE, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "DYCL_NUM_THREADS": "3"})
    assert (done.stdout, done.returncode) == ("[2, 2, 2]\n0\n", 0), done.stderr
