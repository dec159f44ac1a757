# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Artefacts for TX2, Xavier and Orin in a stand-alone C++ program on the board's CPU and glibc, both emulated: equal to eager."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from boards import REPOSITORY, Deployed, compile_program, read_outputs, write_inputs
from emulated_boards import BOARDS, NETWORKS, ON, ORIN, RASPBERRY_PI, TX2, XAVIER, Board, qemu, root
from servers import running
from torch import nn
from torch.nn import functional as F

import dycl_tvm
from dycl_tvm import zoo
from dycl_tvm.codegen.elf import read_library
from dycl_tvm.codegen.gate import newest_glibc
from dycl_tvm.compare import difference
from dycl_tvm.deploy import RemoteModule, bundle, connect
from dycl_tvm.errors import CompileError

pytestmark = pytest.mark.xdist_group("deploy")


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a board gets: the server and TVM's libraries. The same for all boards."""
    qemu()
    folder = tmp_path_factory.mktemp("bundle") / "board"
    try:
        return bundle(folder, TX2.target)
    except CompileError as error:
        if "pip cannot get" in str(error):
            pytest.skip(str(error).splitlines()[0])
        raise


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, once for all boards: code for the oldest glibc runs on all."""
    qemu()
    return compile_program(TX2, [REPOSITORY / "tests" / "cpp" / "replay_main.cc"], tmp_path_factory.mktemp("replay") / "replay")


def _run(board: Board, *command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(board.command(*command), capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    "board, name",
    [*((board, name) for board, names in ON.items() for name in names), (RASPBERRY_PI, "cascade")],
    ids=lambda v: getattr(v, "name", v),
)
def test_a_stand_alone_program_agrees_with_eager(
    board: Board, name: str, deployed: Callable[..., Deployed], replay: Path, tmp_path: Path
) -> None:
    net = deployed(name, board)
    write_inputs(net, tmp_path / "inputs.bin")
    done = _run(board, replay, net.library, net.params, tmp_path / "inputs.bin", tmp_path / "outputs.bin", 2)
    assert done.returncode == 0, done.stderr
    results = read_outputs(net, tmp_path / "outputs.bin")
    assert len(results) == len(net.outputs)
    for k, (expected, (_, actual, _)) in enumerate(zip(net.outputs, results)):
        assert difference(expected, actual, rtol=1e-4) is None, f"input {k}"
    assert len({path for _, _, path in results}) >= NETWORKS[name]


class _Small(nn.Module):
    """One of each kernel of 8-bit integers, a branch, a pool and a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, 2, 1)
        self.depthwise = nn.Conv2d(16, 16, 3, 1, 1, groups=16)
        self.pointwise = nn.Conv2d(16, 16, 1)
        self.last = nn.Conv2d(32, 20, 3, 1, 1)
        self.head = nn.Linear(20, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 3, 2, 1)
        y = F.relu(self.pointwise(F.relu(self.depthwise(x))) + x)
        z = F.relu(self.last(torch.cat([x, y], 1)))
        if z.mean() > 0.3:
            z = z * 0.5
        return self.head(z.mean((2, 3)))


@pytest.mark.parametrize("board", [TX2, ORIN], ids=lambda b: b.name)
def test_a_quantised_network_gives_the_bits_of_its_graph(board: Board, replay: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = [(torch.randn(1, 3, 24, 24),), (4 * torch.randn(1, 3, 24, 24),)]
    model = _Small().eval()
    quantised = dycl_tvm.quantize(model, inputs)
    artifact = dycl_tvm.build(quantised, target=board.target)
    assert artifact.report().families["int8"] == 5
    files = artifact.export_library(tmp_path / "model.so"), artifact.save_params(tmp_path / "model.params")
    entry = zoo.Entry("small", model, inputs[0], "", lambda generator: iter(inputs))
    net = Deployed(entry, artifact, *files, inputs, [quantised(*args) for args in inputs])
    write_inputs(net, tmp_path / "inputs.bin")
    done = _run(board, replay, *files, tmp_path / "inputs.bin", tmp_path / "outputs.bin")
    assert done.returncode == 0, done.stderr
    results = read_outputs(net, tmp_path / "outputs.bin")
    for expected, (_, found, _) in zip(net.outputs, results, strict=True):
        assert difference(expected, found, rtol=0) is None
    assert len({path for _, _, path in results}) == 2


@pytest.mark.parametrize("board", BOARDS, ids=lambda b: b.name)
def test_the_rpc_server_without_python(board: Board, deployed: Callable[..., Deployed], bundled: Path, tmp_path: Path) -> None:
    """Uploaded over TVM's RPC to our server on the board, with the libraries of TVM's aarch64 wheels."""
    with running(board.command(bundled / "dycl-rpc-server", "--port", 0, "--work", tmp_path, "--key", board.name), tmp_path) as server:
        for name in ON[board]:
            net, paths = deployed(name, board), set()
            module = RemoteModule(connect(server.address, key=board.name), net.library, net.params)
            for k, (args, expected) in enumerate(zip(net.inputs, net.outputs)):
                assert difference(expected, module(*args), rtol=1e-4) is None, f"{name}, input {k}"
                paths.add(module.last_path)
            assert len(paths) >= NETWORKS[name]
            assert module.seconds(*net.inputs[0], number=1, repeat=1) > 0
            module.close()
            del module
    assert list(tmp_path.iterdir()) == []


def test_the_finished_library(deployed: Callable[..., Deployed]) -> None:
    for board, names in ON.items():
        library = read_library(deployed(names[0], board).library.read_bytes())
        assert library.machine == "aarch64"
        assert (2, 17) <= newest_glibc(library) <= (2, 27)
        assert not [name for name in library.needed if "c++" in name or "gcc" in name]
        assert "__tvm_ffi_run" in library.exported


def test_code_of_a_newer_cpu_is_refused_before_it_runs(deployed: Callable[..., Deployed], replay: Path, tmp_path: Path) -> None:
    """Xavier's half-precision instructions on a TX2 would end in SIGILL."""
    net = deployed(ON[XAVIER][0], XAVIER)
    write_inputs(net, tmp_path / "inputs.bin")
    done = _run(TX2, replay, net.library, net.params, tmp_path / "inputs.bin", tmp_path / "outputs.bin")
    assert done.returncode == 1
    assert "uses instructions that this CPU lacks: asimd" in done.stderr


def test_code_of_this_machine_is_refused_on_a_board(deployed: Callable[..., Deployed], replay: Path, tmp_path: Path) -> None:
    net = deployed("cascade")
    done = _run(ORIN, replay, net.library, net.params, tmp_path / "x", tmp_path / "y")
    assert done.returncode == 1
    assert "was built for x86_64; this machine is aarch64" in done.stderr


def test_the_roots_have_the_glibc_of_the_boards() -> None:
    for board in BOARDS:
        files = sorted(path.name for path in (root(board.glibc) / "lib").glob("libc[-.]*"))
        said = b"GNU C Library" in (text := (root(board.glibc) / "lib" / "libc.so.6").read_bytes())
        assert said and f"release version {board.glibc}".encode() in text, files
