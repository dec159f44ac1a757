# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The programs of docs/runtime.md under "All of it in one program", in Python, C and C++, on the network that the page builds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pages
from dycl_tvm.codegen import toolchain

HEADING = "## All of it in one program"
FLAGS = ["-O1", "-Wall", "-Wextra", "-Werror"]


def _run(*command: object, folder: Path) -> str:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def _blocks(heading: str, language: str) -> list[str]:
    return pages.programs("runtime.md", heading, language)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the library and the params file of the network."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "build.py").write_text(_blocks(HEADING, "python")[0])  # a file: staging reads the source of the network
    _run(sys.executable, "build.py", folder=folder)
    return folder


@pytest.fixture
def printed() -> str:
    (text,) = _blocks(HEADING, "text")
    return text


def test_in_python(folder: Path, printed: str) -> None:
    (program,) = _blocks("### In Python", "python")
    assert _run(sys.executable, "-c", program, folder=folder) == printed


def test_in_c(folder: Path, printed: str) -> None:
    (program,) = _blocks("### In C", "c")
    (folder / "program.c").write_text(program)
    flags = ["-std=gnu11", *FLAGS, *toolchain.include_flags(), "./model.so", "-lpthread"]
    _run("gcc", "program.c", *flags, "-o", "in_c", folder=folder)
    assert _run("./in_c", folder=folder) == printed


def test_in_cpp(folder: Path, printed: str) -> None:
    (program,) = _blocks("### In C++", "cpp")
    (folder / "program.cpp").write_text(program)
    host = toolchain.runtime_sources().host_units()
    flags = ["-std=c++17", *FLAGS, *toolchain.include_flags(), "-ldl", "-lpthread"]
    _run("g++", "program.cpp", *host, *flags, "-o", "in_cpp", folder=folder)
    assert _run("./in_cpp", folder=folder) == printed
