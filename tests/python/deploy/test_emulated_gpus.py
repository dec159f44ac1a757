# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Artefacts for the GPUs of the boards: host code on the emulated CPU and glibc, kernels by the emulated CUDA driver for aarch64."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from boards import REPOSITORY, Deployed, compile_program, deploy, read_outputs, write_inputs
from emulated_boards import ALL, NETWORKS, ON, TX2, XAVIER, Board, qemu
from emulated_python import python_command, python_server
from servers import running, soon

from dycl_tvm.codegen.cross import compiler_for
from dycl_tvm.codegen.machine import machine_of
from dycl_tvm.codegen.toolchain import Compiler
from dycl_tvm.compare import difference
from dycl_tvm.deploy import RemoteModule, bundle, connect
from dycl_tvm.target import resolve_target

pytestmark = pytest.mark.xdist_group("deploy")
PAIRS = pytest.mark.parametrize("board, name", [(b, n) for b, names in ON.items() for n in names], ids=lambda v: getattr(v, "name", v))

#: The driver's macros must not meet those of the C++ library: it comes first. And newer C libraries declare rsqrt.
PREFIX = """\
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#define rsqrt emulated_rsqrt
#define rsqrtf emulated_rsqrtf
"""


def _cuda() -> ModuleType:
    """The emulated driver's own module, which lies with the tests of CUDA."""
    spec = importlib.util.spec_from_file_location("deploy_cuda_emulation", REPOSITORY / "tests" / "python" / "cuda" / "emulation.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compiler() -> Compiler:
    return compiler_for(machine_of(resolve_target(TX2.target).target), TX2.glibc)


def _compile(out: Path, *words: object) -> Path:
    compiler = _compiler()
    (out.parent / "prefix.h").write_text(PREFIX)
    flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-U_FORTIFY_SOURCE", "-include", str(out.parent / "prefix.h")]
    compiler.run([*flags, *compiler.link_flags, *map(str, words), "-o", str(out), "-ldl", "-lpthread"], out.name)
    return out


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``libcuda.so.1`` for aarch64."""
    qemu()
    sources = REPOSITORY / "tests" / "cpp" / "cuda"
    folder = tmp_path_factory.mktemp("driver")
    units = [sources / name for name in _cuda().DRIVER_UNITS]
    return _compile(folder / "libcuda.so.1", *units, "-Wl,-soname,libcuda.so.1")


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    qemu()
    return compile_program(TX2, [REPOSITORY / "tests" / "cpp" / "replay_main.cc"], tmp_path_factory.mktemp("replay") / "replay")


@pytest.fixture(scope="module")
def on_gpu(driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Board], tuple[Deployed, Path]]:
    """Return a function from a network and a board to the artefact for its GPU, and its kernels as code for the emulated driver."""

    @functools.cache
    def get(name: str, board: Board) -> tuple[Deployed, Path]:
        folder = tmp_path_factory.mktemp(f"{name}-{board.name}-gpu")
        net = deploy(name, board, folder, gpu=True)
        device = net.artifact._lowered.program.device
        assert device is not None
        (folder / "kernels.cc").write_text(_cuda().kernels_as_cpp(device.source))
        headers = REPOSITORY / "tests" / "cpp" / "cuda"
        return net, _compile(folder / "kernels.so", folder / "kernels.cc", f"-I{headers}", driver)

    return get


def _run(net: Deployed, kernels: Path | str, board: Board, driver: Path | None, replay: Path, folder: Path, **more: object):
    write_inputs(net, folder / "inputs.bin")
    words = [replay, net.library, net.params, folder / "inputs.bin", folder / "outputs.bin"]
    environment = {"EMULATED_CUDA_KERNELS": kernels, "EMULATED_CUDA_SM": board.sm, "EMULATED_CUDA_VERSION": board.cuda, **more}
    if driver is not None:
        environment["LD_LIBRARY_PATH"] = driver.parent
    return subprocess.run(board.command(*words, **environment), capture_output=True, text=True, timeout=300, check=False)


@PAIRS
def test_agrees_with_eager(board: Board, name: str, on_gpu, driver: Path, replay: Path, tmp_path: Path) -> None:
    net, kernels = on_gpu(name, board)
    done = _run(net, kernels, board, driver, replay, tmp_path)
    assert done.returncode == 0, done.stderr
    results = read_outputs(net, tmp_path / "outputs.bin")
    assert len(results) == len(net.outputs)
    for k, (expected, (_, actual, _)) in enumerate(zip(net.outputs, results)):
        assert difference(expected, actual, rtol=1e-3) is None, f"input {k}"
    assert len({path for _, _, path in results}) >= NETWORKS[name]


@PAIRS
def test_over_rpc(board: Board, name: str, on_gpu, driver: Path, tmp_path: Path) -> None:
    """To our server on the board: tensors of the host go in and come out."""
    net, kernels = on_gpu(name, board)
    folder, work = bundle(tmp_path / "board", board.gpu_target), tmp_path / "work"
    work.mkdir()
    environment = {"EMULATED_CUDA_KERNELS": kernels, "EMULATED_CUDA_SM": board.sm, "EMULATED_CUDA_VERSION": board.cuda}
    command = board.command(folder / "dycl-rpc-server", "--port", 0, "--work", work, LD_LIBRARY_PATH=driver.parent, **environment)
    with running(command, work) as server:
        module = RemoteModule(connect(server.address), net.library, net.params)
        for k, (args, expected) in enumerate(zip(net.inputs, net.outputs)):
            assert difference(expected, module(*args), rtol=1e-3) is None, f"input {k}"
        module.close()
        del module
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("board", ON if ALL else [TX2], ids=lambda b: b.name)
def test_tvms_own_python_server(board: Board, deployed: Callable[..., Deployed], on_gpu, driver: Path, tmp_path: Path) -> None:
    """For the board's CPU and for its GPU, over the RPC server that TVM's wheel brings."""
    libc = "import os; print(os.confstr('CS_GNU_LIBC_VERSION'))"
    said = subprocess.run([*python_command(board), "-c", libc], capture_output=True, text=True, check=False)
    assert said.stdout == f"glibc {board.glibc}\n", said.stderr
    kernels = tmp_path / "kernels.so"
    environment = {"EMULATED_CUDA_KERNELS": kernels, "EMULATED_CUDA_SM": board.sm, "EMULATED_CUDA_VERSION": board.cuda}
    with python_server(board, tmp_path, "board", LD_LIBRARY_PATH=driver.parent, **environment) as server:
        for name in ON[board]:
            kernels.unlink(missing_ok=True)
            kernels.symlink_to(on_gpu(name, board)[1])
            for net in (deployed(name, board), on_gpu(name, board)[0]):
                module = RemoteModule(soon(lambda: connect(server.address, key="board"), 60), net.library, net.params)
                paths = set()
                for k, (args, expected) in enumerate(zip(net.inputs, net.outputs)):
                    assert difference(expected, module(*args), rtol=1e-3) is None, f"{name}, input {k}"
                    paths.add(module.last_path)
                assert len(paths) >= NETWORKS[name]
                module.close()
                del module


def test_a_board_without_a_driver(on_gpu, replay: Path, tmp_path: Path) -> None:
    net, _ = on_gpu("act_rnn", TX2)
    done = _run(net, "", TX2, None, replay, tmp_path)
    assert done.returncode == 1
    assert "there is no NVIDIA driver on this machine" in done.stderr


def test_another_gpu(on_gpu, driver: Path, replay: Path, tmp_path: Path) -> None:
    """Code for Xavier's GPU on a TX2's."""
    net, kernels = on_gpu("moe_top1", XAVIER)
    done = _run(net, kernels, XAVIER, driver, replay, tmp_path, EMULATED_CUDA_SM=62)
    assert done.returncode == 1
    assert "sm_62" in done.stderr or "sm_72" in done.stderr, done.stderr
