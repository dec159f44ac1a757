# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Loaded modules: inputs and outputs, checks of inputs, sessions, threads, processes without torch and TVM."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import handmade
import numpy as np
import pytest
import torch
from zoo_calls import SUM, X

from dycl_tvm.errors import InputError, UsageError
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.runtime import Module, load


@pytest.fixture
def zoo(files: tuple[Path, Path]) -> Module:
    return load(*files)


def test_torch_in_torch_out(zoo: Module) -> None:
    out = zoo(torch.arange(4.0), 0)
    assert isinstance(out["y"], torch.Tensor)
    assert torch.equal(out["y"], torch.from_numpy(SUM.astype("float32")))
    before = out["y"].clone()
    zoo(torch.zeros(4), 0)
    assert torch.equal(out["y"], before)  # not a view of the session
    assert isinstance(zoo(X, 0)["y"], np.ndarray)


def test_leaves_in_leaves_out(zoo: Module) -> None:
    site, leaves = zoo.run_leaves([X, 0])
    assert site == zoo.last_path.site and len(leaves) == len(zoo.metadata["sites"][site]["types"])
    assert any(isinstance(leaf, np.ndarray) and np.array_equal(leaf, SUM) for leaf in leaves)
    with pytest.raises(InputError, match="got 1"):
        zoo.run_leaves([X])


def test_paths_have_keys(zoo: Module) -> None:
    keys: dict[bytes, tuple[object, ...]] = {}
    for number in (0, 1, 0, 1, 4):
        zoo(X, number)
        assert keys.setdefault(zoo.path_key, zoo.last_path.key()) == zoo.last_path.key()
    assert len(keys) == len(set(keys.values())) > 1


@pytest.mark.parametrize("offset", range(4))
def test_any_layout_in(zoo: Module, offset: int) -> None:
    """Unaligned, strided, reversed, broadcast and read-only memory gives the same result."""
    room = np.zeros(40, "float32")
    unaligned = room[offset : offset + 4]
    unaligned[:] = X
    strided = np.zeros((4, 3 + offset), "float32")
    strided[:, 1] = X
    frozen = X.copy()
    frozen.flags.writeable = False
    for x in (unaligned, strided[:, 1], X[::-1].copy()[::-1], torch.from_numpy(strided)[:, 1], frozen, X.astype(">f4")):
        np.testing.assert_array_equal(np.asarray(zoo(x, 0)["y"]), SUM)
    np.testing.assert_array_equal(zoo(np.broadcast_to(np.float32(3), (4,)), 0)["y"], (3 + np.array([10, 20, 30, 40])) * 2)
    assert torch.equal(zoo(torch.zeros(4, requires_grad=True), 0)["y"], torch.tensor([20.0, 40, 60, 80]))


def test_inputs_by_name(zoo: Module) -> None:
    np.testing.assert_array_equal(zoo(n=0, x=X)["y"], SUM)
    np.testing.assert_array_equal(zoo(X, n=np.int32(0))["y"], SUM)


@pytest.mark.parametrize(
    "args, message",
    [
        ((np.zeros(5, "float32"), 0), r"input 'x': expected float32\[4\], got float32\[5\]"),
        ((np.zeros((4, 1), "float32"), 0), r"input 'x': expected float32\[4\], got float32\[4, 1\]"),
        ((np.zeros((), "float32"), 0), r"input 'x': expected float32\[4\], got float32\[\]"),
        ((np.zeros(4), 0), r"input 'x': expected float32\[4\], got float64\[4\]"),
        ((torch.zeros(4, dtype=torch.bfloat16), 0), r"input 'x': expected float32\[4\], got bfloat16\[4\]"),
        ((torch.zeros(4, device="meta"), 0), r"input 'x': expected a tensor in CPU memory, got one on meta"),
        ((torch.zeros(4).to_sparse(), 0), r"input 'x': expected a dense tensor"),
        ((np.zeros(4, "U3"), 0), r"input 'x'.*not supported"),
        (([0.0] * 4, 0), r"input 'x': expected a tensor"),
        ((1.5, 0), r"input 'x': expected a tensor float32\[4\], got a float"),
        ((None, 0), r"input 'x': expected a tensor"),
        ((X, 1.5), r"input 'n': expected an int, got a float"),
        ((X, "1"), r"input 'n': expected a Python int, got a str"),
        ((X, 2**63), r"input 'n': 9223372036854775808 does not fit"),
        ((X,), r"'Zoo'.*input 'n' is missing"),
        ((X, 1, 2), r"'Zoo' takes 2 positional inputs \(x, n\), got 3"),
    ],
)
def test_wrong_inputs(zoo: Module, args: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        zoo(*args)
    np.testing.assert_array_equal(zoo(X, 0)["y"], SUM)


def test_unknown_name(zoo: Module) -> None:
    with pytest.raises(InputError, match="no input 'z'; it has x, n"):
        zoo(X, z=1)
    with pytest.raises(InputError, match="'x' twice"):
        zoo(X, x=X)


def test_no_output_before_a_run(zoo: Module) -> None:
    import ctypes

    count = ctypes.c_size_t()
    assert zoo._library.dycl_num_outputs(zoo._session, ctypes.byref(count)) == 5
    assert "no run has succeeded" in zoo._library.dycl_last_error().decode()
    with pytest.raises(UsageError, match="negative"):
        zoo.set_num_threads(-1)
    for number in (2**32, 1.5):  # not its low half, which is 0
        with pytest.raises(UsageError, match="has 31 bits"):
            zoo.set_num_threads(number)  # type: ignore[arg-type]


def test_sizes(zoo: Module) -> None:
    assert zoo.arena_bytes == 192
    assert zoo.session_bytes > 192
    assert zoo.weight_bytes == 128  # two tensors of 16 bytes, each at a multiple of 64
    assert zoo.metadata["sites"][1]["origin"]["line"] == 10


def test_outputs_may_be_fed_back(tmp_path: Path) -> None:
    """The view of an output is memory of the session: as the next input it must be copied first."""
    import ctypes

    from dycl_tvm.runtime import capi

    module = handmade.build_and_load(handmade.straight_program("k_inc", "k_inc", "k_inc", "k_inc"), tmp_path)
    assert module(np.zeros(4, "float32")).tolist() == [4] * 4
    value = capi.Value()
    for k in range(2, 6):
        assert module._library.dycl_output(module._session, 0, ctypes.byref(value)) == 0
        assert module._library.dycl_run(module._session, ctypes.byref(value), 1, ctypes.byref(ctypes.c_int32())) == 0
        module._site = 0
        assert module._collect(0, False).tolist() == [4 * k] * 4


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "float16", "uint8", "int64"])
def test_other_dtypes(dtype: str, tmp_path: Path) -> None:
    program = handmade.straight_program(type_=TensorType((2, 3), dtype))
    module = handmade.build_and_load(program, tmp_path)
    x = torch.tensor([[0, 1, 0], [1, 1, 0]]).to(getattr(torch, dtype))
    assert torch.equal(module(x), x)
    assert module(x).dtype == x.dtype
    array = x.view(torch.int16).numpy().view("uint16") if dtype == "bfloat16" else x.numpy()
    got = module(array)
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


def test_empty_tensors(tmp_path: Path) -> None:
    module = handmade.build_and_load(handmade.straight_program(type_=TensorType((0, 3), "float32")), tmp_path)
    assert module(np.zeros((0, 3), "float32")).shape == (0, 3)


@pytest.mark.parametrize("threads", [None, 1, 2, 3, 7])
def test_parallel_kernels(tmp_path: Path, threads: int | None) -> None:
    type_ = TensorType((1000,), "float32")
    library, params = handmade.build(handmade.straight_program("k_twice", "k_barrier", "k_scratch", "k_twice", type_=type_), tmp_path)
    module = load(library, params, num_threads=threads)
    x = np.random.default_rng(0).standard_normal(1000).astype("float32")
    for _ in range(50):
        np.testing.assert_array_equal(module(x), x * 8)


def test_idle_threads_sleep(tmp_path: Path) -> None:
    """Workers spin for some microseconds after a job; then they cost nothing."""
    type_ = TensorType((1000,), "float32")
    module = load(*handmade.build(handmade.straight_program("k_twice", type_=type_), tmp_path), num_threads=4)
    for _ in range(3):
        module(np.ones(1000, "float32"))
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.03, "one spinning worker would have taken 0.3 s"


def test_failing_task(tmp_path: Path) -> None:
    from dycl_tvm.errors import RunError

    module = handmade.build_and_load(handmade.straight_program("k_fail_task"), tmp_path)
    with pytest.raises(RunError, match="k_fail_task"):
        module(X)


def test_sessions_in_threads(zoo: Module) -> None:
    failures: list[str] = []

    def work(seed: int) -> None:
        mine = zoo.new_session(num_threads=seed % 3)
        x = np.full(4, seed, "float32")
        for k in range(200):
            n = (seed + k) % 5 + 4
            if not np.array_equal(mine(x, n)["y"], (x + n + [10, 20, 30, 40]) * 2) or len(mine.last_path.branches) != n + 2:
                failures.append(f"{seed} {n}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_calls_of_one_module_take_turns(zoo: Module) -> None:
    results: list[bool] = []

    def work(seed: int) -> None:
        x = np.full(4, seed, "float32")
        results.extend(np.array_equal(zoo(x, 8)["y"], (x + 8 + [10, 20, 30, 40]) * 2) for _ in range(200))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 600
    assert all(results)


def _child(code: str, *args: object) -> str:
    done = subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, env=dict(os.environ), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_torch_and_tvm(files: tuple[Path, Path]) -> None:
    code = """
import sys
class Refuse:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("torch", "tvm", "tvm_ffi"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import numpy as np, dycl_tvm
module = dycl_tvm.load(sys.argv[1], sys.argv[2])
print(module(np.arange(4, dtype="float32"), 0)["y"].tolist(), module.last_path.site)
"""
    assert _child(code, *files) == f"{SUM.tolist()} 0\n"


def test_after_fork(files: tuple[Path, Path]) -> None:
    """The workers of a pool do not exist in a child: it makes its own."""
    code = """
import os, sys, numpy as np, dycl_tvm
os.environ["DYCL_NUM_THREADS"] = "3"
module = dycl_tvm.load(sys.argv[1], sys.argv[2])
own = module.new_session(num_threads=2)
x = np.arange(4, dtype="float32")
want = module(x, 0)["y"].tolist()
own(x, 0)
child = os.fork()
if child == 0:
    same = module(x, 0)["y"].tolist() == want == own(x, 0)["y"].tolist() == own.new_session()(x, 0)["y"].tolist()
    os._exit(0 if same else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    _child(code, *files)


def test_module_goes_away(files: tuple[Path, Path]) -> None:
    first = load(*files)
    second = first.new_session()
    del first
    np.testing.assert_array_equal(second(X, 0)["y"], SUM)
