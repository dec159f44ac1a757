# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The C++ examples, built by CMake as a user would: a camera's loop, threads, and a program with the model inside."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from boards import REPOSITORY, Deployed, compile_program, read_outputs, write_inputs
from emulated_boards import TX2

from dycl_tvm.compare import difference

pytestmark = pytest.mark.xdist_group("deploy")


def _run(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def examples(deployed: Callable[..., Deployed], tmp_path_factory: pytest.TempPathFactory) -> Path:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    folder = tmp_path_factory.mktemp("examples")
    archive = deployed("cascade").artifact.export_library(folder / "model.a", embed_params=True)
    options = [f"-Ddycl_tvm_DIR={REPOSITORY / 'cmake'}", f"-DPython_EXECUTABLE={sys.executable}", f"-DMODEL={archive}"]
    # The oldest C++ that is promised; without it the compiler takes its newest.
    options += ["-DCMAKE_CXX_STANDARD=11", "-DCMAKE_CXX_EXTENSIONS=OFF", "-DCMAKE_CXX_FLAGS=-pedantic"]
    _run(cmake, "-S", REPOSITORY / "examples" / "cpp", "-B", folder, *options)
    _run(cmake, "--build", folder, "--parallel", 2)
    return folder


def test_camera(examples: Path, deployed: Callable[..., Deployed]) -> None:
    net = deployed("cascade")
    text = _run(examples / "camera", net.library, net.params, "--frames", 12, "--rate", 100)
    done, dropped = map(int, re.match(r"(\d+) frames, (\d+) dropped", text).groups())
    assert done + dropped == 12
    assert done >= 1
    assert sum(map(int, re.findall(r"return site \d+: (\d+)", text))) == done


def test_threads(examples: Path, deployed: Callable[..., Deployed]) -> None:
    net = deployed("cascade")
    text = _run(examples / "threads", net.library, net.params, "--threads", 3, "--runs", 3)
    assert len(re.findall(r"^thread \d: ", text, re.MULTILINE)) == 3
    assert text.count("return ") >= 3


def test_the_model_inside_a_program(examples: Path, deployed: Callable[..., Deployed], tmp_path: Path) -> None:
    """It takes the path that the shared library takes, with no library or file of the model there."""
    net = deployed("cascade")
    text = _run(examples / "embedded")
    shared = _run(examples / "run_model", net.library, net.params, "--seed", 0)
    site, path = text.split("\n", 1)
    assert site in shared
    assert path.strip() in shared
    assert "model" not in _run("ldd", examples / "embedded")


def test_a_stand_alone_program(deployed: Callable[..., Deployed], tmp_path: Path) -> None:
    """It fails itself where a library of TVM or Python is in its address space. The same for boards: ``test_emulated_boards.py``."""
    program = compile_program(None, [REPOSITORY / "tests" / "cpp" / "replay_main.cc"], tmp_path / "replay")
    for name in ("cascade", "act_rnn", "moe_top1"):
        net = deployed(name)
        write_inputs(net, tmp_path / "inputs.bin")
        _run(program, net.library, net.params, tmp_path / "inputs.bin", tmp_path / "outputs.bin", 2)
        results = read_outputs(net, tmp_path / "outputs.bin")
        assert len(results) == len(net.outputs)
        for k, (expected, (_, actual, _)) in enumerate(zip(net.outputs, results)):
            assert difference(expected, actual, rtol=1e-4) is None, f"{name}, input {k}"
        assert len({path for _, _, path in results}) >= 2


def test_a_static_library_for_a_board(deployed: Callable[..., Deployed], tmp_path: Path) -> None:
    """Linked into a program for the TX2, and run on an emulated one with no file beside it."""
    archive = deployed("cascade", TX2).artifact.export_library(tmp_path / "model.a", embed_params=True)
    members = _run("ar", "t", archive).split()
    assert members == ["model.o"]
    program = compile_program(TX2, [REPOSITORY / "examples" / "cpp" / "embedded.cc", archive], tmp_path / "embedded", model_inside=True)
    archive.unlink()
    header = program.read_bytes()[:20]
    assert header[:4] == b"\x7fELF"
    assert int.from_bytes(header[18:20], "little") == 183  # aarch64
    assert re.match(r"return site \d\n(true|false) .*\nreturn ", _run(*TX2.command(program)))
