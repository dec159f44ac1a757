# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Parallel kernels on threads of the program: what docs/runtime.md says under "Threads of the program"."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import handmade
import pytest

import pages
from dycl_tvm.codegen import toolchain
from dycl_tvm.hcfg.types import TensorType

REPOSITORY = Path(__file__).parents[3]


def _library(folder: Path, name: str, *symbols: str) -> list[str]:
    program = handmade.straight_program(*symbols, type_=TensorType((1000,), "float32"))
    program.name = name  # libraries with the same metadata would be one
    return list(map(str, handmade.build(program, folder, name=name)))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("parallel")
    names = {"one": ("k_twice", "k_twice"), "two": ("k_twice", "k_twice"), "barrier": ("k_barrier", "k_twice")}
    return [file for name, symbols in names.items() for file in _library(folder, name, *symbols)]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The objects of the host library, as old compilers make them."""
    folder = tmp_path_factory.mktemp("host")
    return [_object(unit, folder / f"{unit.stem}.o", "-std=c++11") for unit in toolchain.runtime_sources().host_units()]


def _object(unit: Path, out: Path, *flags: str) -> Path:
    every = [*flags, "-Wall", "-Wextra", "-Werror", *toolchain.include_flags()]
    toolchain.find_compiler().run([*every, "-c", str(unit), "-o", str(out)], unit.name)
    return out


def _linked(main: Path, host: list[Path], folder: Path, *flags: str) -> Path:
    objects = [_object(main, folder / "main.o", *flags), *host]
    toolchain.find_compiler().run([*map(str, objects), "-o", str(folder / "program"), "-ldl", "-lpthread"], "program")
    return folder / "program"


def _run(*command: object) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "DYCL_NUM_THREADS": "3"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example(files: list[str], host: list[Path], tmp_path: Path) -> None:
    """The program in docs/runtime.md, as it is written there."""
    (example,) = pages.programs("runtime.md", "## Threads of the program", "cpp")
    (tmp_path / "program.cc").write_text(example)
    assert _run(_linked(tmp_path / "program.cc", host, tmp_path, "-std=c++11"), *files[:2]) == "12\n"


def test_what_is_written_of_it(files: list[str], host: list[Path], tmp_path: Path) -> None:
    program = _linked(REPOSITORY / "tests" / "cpp" / "parallel_main.cc", host, tmp_path, "-std=c++17")
    assert _run(program, *files) == "all as written\n"


def test_one_thread_is_that_of_the_caller(files: list[str]) -> None:
    code = """
import os, sys, numpy as np, dycl_tvm
before = len(os.listdir("/proc/self/task"))
x = np.ones(1000, "float32")
assert (dycl_tvm.load(sys.argv[1], sys.argv[2], num_threads=1)(x) == 4).all()
print(len(os.listdir("/proc/self/task")) - before)
assert (dycl_tvm.load(sys.argv[1], sys.argv[2], num_threads=0)(x) == 4).all()
print(len(os.listdir("/proc/self/task")) - before)
"""
    assert _run(sys.executable, "-c", code, *files[:2]) == "0\n2\n"
