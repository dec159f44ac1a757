# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Libraries that earlier releases have built (``tests/abi``) run in the Python package and in C++ programs of today.

``tests/abi/<version>/recorded.tar.xz`` is a library with its params as the release built it from ``network.py``, for x86-64-v3. After a
release add its own; never change one.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import pytest
import torch

import dycl_tvm
from dycl_tvm.codegen import toolchain
from dycl_tvm.errors import ArtifactError, CancelledError, DeadlineError, RunError
from dycl_tvm.runtime import capi, load
from dycl_tvm.runtime.trailer import read_trailer, why_not_here

REPOSITORY = Path(__file__).parents[3]
RECORDED = sorted((REPOSITORY / "tests" / "abi").iterdir())
ENDLESS = torch.tensor(2**62)


@pytest.fixture(scope="module", params=RECORDED, ids=lambda path: path.name)
def recorded(request: pytest.FixtureRequest) -> Path:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def files(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("recorded")
    with tarfile.open(recorded / "recorded.tar.xz") as archive:
        for name in ("recorded.so", "recorded.params"):
            member = archive.extractfile(name)
            assert member is not None
            (folder / name).write_bytes(member.read())
    if why := why_not_here(read_trailer(folder / "recorded.so")["target"]):
        pytest.skip(why)
    return folder / "recorded.so", folder / "recorded.params"


@pytest.fixture(scope="module")
def today(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return handmade.build(handmade.zoo_program(), tmp_path_factory.mktemp("today"))


@pytest.fixture
def eager(recorded: Path) -> Callable[..., torch.Tensor]:
    spec = importlib.util.spec_from_file_location(f"network_{recorded.name}", recorded / "network.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Recorded().eval()  # type: ignore[no-any-return]


def _inputs(n: int, sign: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(512, 64) + sign, torch.tensor(n)


def _agree(got: Any, want: torch.Tensor) -> None:
    torch.testing.assert_close(torch.as_tensor(got), want, rtol=1e-4, atol=5e-3)


def test_every_path_is_that_of_eager(files: tuple[Path, Path], eager: Callable[..., torch.Tensor]) -> None:
    module, taken = load(*files), set()
    for n in (0, 1, 2, 5):
        for sign in (1, -1):
            x, count = _inputs(n, sign)
            want = eager(x, count)
            _agree(module(x, count), want)
            *before, last = (int(step.choice) for step in module.last_path.branches)
            assert before == [0] + [1] * n + [0]
            taken.add(last)
            assert sum(module.kernels_run.values()) == sum(module.sub_dnns_run.values()) > 0
            assert module.last_path.cut is None
    assert taken == {0, 1}
    with pytest.raises(RunError, match="n is negative"):
        module(*_inputs(-1))


def test_whatever_it_could_it_can(files: tuple[Path, Path], eager: Callable[..., torch.Tensor]) -> None:
    module = load(*files, num_threads=1, mmap=False)
    x, n = _inputs(2)
    first, second = eager(x, n), eager(x, n)
    _agree(module(x.numpy(), n.numpy()), first)
    state = module.get_state()
    _agree(copy.copy(module)(x, n), second)
    _agree(pickle.loads(pickle.dumps(module))(x, count=n), second)
    with pytest.raises(DeadlineError):
        module.run((x, ENDLESS), deadline_ms=2)
    out = torch.empty(512, 64)
    assert module.bind(out=out)(x, n) is out
    _agree(out, second)
    module.set_state(state)
    _agree(module.run((x, n), deadline_ms=60_000), second)
    module.set_state(state)
    _agree(module.run_async(x, n).result(60), second)
    future = module.run_async(x, ENDLESS)
    while not module._turn.busy:
        pass
    threading.Timer(0.05, future.cancel).start()
    with pytest.raises(CancelledError):
        future.result(60)
    module.reset_state()
    module.set_num_threads(0)
    module.set_device_branches(False)
    module.manual_seed(3)
    _agree(module.new_session().run_leaves([x, n])[1][0], first)
    assert module.arena_bytes > 0 < module.session_bytes
    assert module.weight_bytes > 4 * 64 * 128
    assert module.certificate["level"] == "default"
    module.close()


def test_a_call_that_waits_can_be_cancelled(files: tuple[Path, Path], eager: Callable[..., torch.Tensor]) -> None:
    """A library of 0.2.0 does not look whether a run is cancelled that has not begun."""
    module = load(*files)
    x, n = _inputs(1)
    with module._turn.lock:
        future = module.run_async(x, n)
        future.cancel()
    with pytest.raises(CancelledError):
        future.result(60)
    assert module.last_path.branches == ()
    _agree(module(x, n), eager(x, n))


def test_what_it_lacks_is_said_where_it_is_asked_for(files: tuple[Path, Path], recorded: Path) -> None:
    module = load(*files)
    x, n = _inputs(1)
    direct = module.bind(out=torch.empty(512, 64), direct=True)
    before = {
        "dycl_set_log": lambda: module.set_log(print),
        "dycl_unload": module.unload,
        "dycl_session_set_priority": lambda: module.set_priority("low"),
        "dycl_session_set_cuda_stream": lambda: module.set_cuda_stream(0),
        "dycl_run_into": lambda: direct(x, n),
        "dycl_profile_start": module.profile,
        "dycl_params_fd": lambda: load(files[0], files[1].read_bytes()),
        "dycl_session_needs": lambda: module.new_session(largest_sizes={"N": 1}),
        "dycl_session_create_with": lambda: module.new_session(arena=bytearray(module.arena_bytes + 64)),
    }
    known = set((recorded / "exports.txt").read_text().split())
    missed = {name for name in capi._SIGNATURES if name not in known}
    for name, ask in before.items():
        assert name in missed
        with pytest.raises(ArtifactError, match=f"of an older version of dycl_tvm: it has no {name}. Build the model again"):
            ask()
        missed.remove(name)
        module = load(*files)
    with pytest.raises(ArtifactError, match="dycl_params_fd"):
        load(*files, mmap="sealed")
    with pytest.raises(ArtifactError, match="dycl_params_fd"):
        _ = module.params_fd
    # what tells nothing (a cut), goes with a function above, or passes libraries by that cannot be told (threads)
    assert missed == {"dycl_session_input_bounds", "dycl_path_cut", "dycl_profile_read", "dycl_profile_stop", "dycl_set_thread_options"}
    assert load(*files)(x, n).shape == (512, 64)


def _python(code: str, *arguments: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **environment})


def test_a_log_that_was_refused_is_not_taken_back_at_the_end(files: tuple[Path, Path]) -> None:
    code = """
import sys, dycl_tvm
module = dycl_tvm.load(*sys.argv[1:])
try: module.set_log(print)
except dycl_tvm.ArtifactError: print("refused")
"""
    done = _python(code, *files)
    assert (done.stdout, done.stderr, done.returncode) == ("refused\n", "", 0)


_BESIDE = """
import os, sys, threading
import numpy as np, dycl_tvm
old, today, twin = (dycl_tvm.load(*sys.argv[k:k + 2]) for k in (1, 3, 5))
dycl_tvm.set_affinity(None)  # passes the old one by
x = np.ones((512, 64), "float32")
wrong = []
def run_old(session):
    for k in range(1, 20):
        y = session(x, np.array(0))
        if not (y == 1 + 512 * k).all(): wrong.append(k)
        session(x * 0, np.array(3))
def run_today(session):
    for k in range(200):
        y = session(np.ones(4, "float32"), 0)["y"]
        if y.tolist() != [22, 42, 62, 82]: wrong.append(k)
pairs = [(run_old, old), (run_old, twin), (run_today, today)] * 2
threads = [threading.Thread(target=run, args=(m.new_session(),)) for run, m in pairs]
for thread in threads: thread.start()
for thread in threads: thread.join()
import time; time.sleep(0.1)  # the system takes threads away that have ended
print(wrong, len(os.listdir("/proc/self/task")))
today.unload()
print((old.new_session()(x, np.array(0)) == 513).all())
"""


def test_beside_a_library_of_today(files: tuple[Path, Path], today: tuple[Path, Path], tmp_path: Path) -> None:
    """Each kind has one pool of threads: libraries of 0.2 among themselves, and later ones."""
    twin = Path(shutil.copy(files[0], tmp_path))
    done = _python(_BESIDE, *files, *today, twin, files[1], DYCL_NUM_THREADS="3", OPENBLAS_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[] 5\nTrue\n"


def test_in_a_cpp_program(files: tuple[Path, Path], today: tuple[Path, Path], tmp_path: Path) -> None:
    sources = toolchain.runtime_sources().source
    units = [REPOSITORY / "tests" / "cpp" / "old_library_main.cc", *sorted((sources / "host").glob("*.cc"))]
    units += [sources / "json.cc", sources / "sha256.cc"]
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *toolchain.include_flags(), *map(str, units)]
    toolchain.find_compiler().run([*flags, "-o", str(tmp_path / "program"), "-ldl", "-lpthread"], "program")
    command = [tmp_path / "program", *files, *today]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env={**os.environ, "DYCL_NUM_THREADS": "3"})
    assert (done.stdout, done.returncode) == ("the old library runs\n", 0), done.stderr


def test_the_command_line_takes_it(files: tuple[Path, Path], tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.ones((512, 64), "float32"), count=np.array(2))
    for command in (["inspect", files[0]], ["run", *files, "--input", tmp_path / "inputs.npz"]):
        done = subprocess.run([sys.executable, "-m", "dycl_tvm.cli", *map(str, command)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Recorded" in done.stdout or "network.py" in done.stdout


def test_the_version_is_that_of_the_folder(recorded: Path) -> None:
    assert recorded.name.split(".")[:2] <= dycl_tvm.__version__.split(".")[:2]
    held = {path.name for path in recorded.iterdir()} - {"__pycache__"}  # of the network, which runs
    assert held == {"dycl", "exports.txt", "network.py", "recorded.tar.xz"}
