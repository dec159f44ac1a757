# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The compiler, the kept runtime objects, the machine of a target."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import handmade
import pytest
import tvm

from dycl_tvm import codegen
from dycl_tvm.codegen import toolchain
from dycl_tvm.errors import CompileError


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler --flag")
    with pytest.raises(CompileError, match="'no-such-compiler' cannot be run"):
        toolchain.find_compiler()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(toolchain, "has_zig", lambda: False)
    with pytest.raises(CompileError, match=r"install g\+\+ .*pip install 'dycl-tvm\[cross\]'"):
        toolchain.find_compiler()


def test_zig_where_there_is_no_other_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not toolchain.has_zig():
        pytest.skip("without zig: pip install 'dycl-tvm[cross]'")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "two.c").write_text("int two(void) { return 2; }\n")
    compiler = toolchain.find_compiler()
    assert "ziglang" in compiler.command
    compiler.run(["-x", "c", "-c", str(tmp_path / "two.c"), "-o", str(tmp_path / "two.o")], "compile")
    toolchain.link_shared(str(tmp_path / "two.so"), [str(tmp_path / "two.o")])
    assert ctypes.CDLL(str(tmp_path / "two.so")).two() == 2


def test_objects_are_kept_until_something_changes(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYCL_CACHE_DIR", str(tmp_path))
    compiler = toolchain.find_compiler()
    ran: list[str] = []
    monkeypatch.setattr(toolchain, "run_tool", lambda command, what, environment: (ran.append(what), open(command[-1], "wb").close()))
    first = toolchain.runtime_objects(compiler)
    assert len(first.objects) == len(toolchain.runtime_sources().units())
    assert len(ran) == len(first.objects) + compiler.is_gcc
    assert toolchain.runtime_objects(compiler) == first
    assert len(ran) == len(first.objects) + compiler.is_gcc
    other = toolchain.runtime_objects(compiler, (*toolchain.CXX_FLAGS, "-g"))
    assert not set(other.objects) & set(first.objects)
    assert [path.name for path in tmp_path.iterdir()] == ["runtime"]


def test_a_changed_source_is_all_that_is_compiled_again(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYCL_CACHE_DIR", str(tmp_path / "cache"))
    sources = toolchain.runtime_sources()
    copy = toolchain.RuntimeSources(tmp_path / "runtime", tmp_path / "runtime" / "include")
    shutil.copytree(sources.source, copy.source)
    monkeypatch.setattr(toolchain, "runtime_sources", lambda: copy)
    compiler = toolchain.find_compiler()
    ran: list[str] = []
    monkeypatch.setattr(toolchain, "run_tool", lambda command, what, environment: (ran.append(what), open(command[-1], "wb").close()))
    first = toolchain.runtime_objects(compiler).objects
    ran.clear()
    (copy.source / "json.cc").write_text("// changed\n")
    second = toolchain.runtime_objects(compiler).objects
    assert ran == ["compile json.cc"]
    assert {path.name for path in set(second) - set(first)} == {"json.o"}
    ran.clear()
    (copy.source / "json.h").write_text("// changed\n")
    assert not set(toolchain.runtime_objects(compiler).objects) & set(second)


def test_processes_that_need_an_object_at_once_compile_it_once(tmp_path: Path) -> None:
    code = """
import time
from pathlib import Path
from dycl_tvm.codegen import toolchain
def run(self, arguments, what):
    time.sleep(0.1)
    with open("ran", "a") as file:
        file.write(what + "\\n")
    Path(arguments[-1]).touch()
toolchain.Compiler.run = run
toolchain.runtime_objects(toolchain.find_compiler())
"""
    environment = {**os.environ, "DYCL_CACHE_DIR": str(tmp_path / "cache")}
    processes = [subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=tmp_path) for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]
    ran = (tmp_path / "ran").read_text().split("\n")
    assert len(ran) == len(set(ran))


def test_the_dispatcher_takes_the_header_that_was_parsed_before(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = toolchain.find_compiler()
    if not compiler.is_gcc:
        pytest.skip("only GCC's parsed headers are used")
    commands: dict[str, list[str]] = {}
    run = toolchain.Compiler.run
    monkeypatch.setattr(toolchain.Compiler, "run", lambda self, words, what: (commands.update({what: list(words)}), run(self, words, what)))
    handmade.build(handmade.zoo_program(), tmp_path)
    words = commands["compile dispatcher.cc"]
    (tmp_path / "dispatcher.cc").write_text('#include "dispatch.h"\n')
    words[words.index("-c") + 1 :] = [str(tmp_path / "dispatcher.cc"), "-o", str(tmp_path / "dispatcher.o"), "-H"]
    said = subprocess.run([*compiler.command, *words], capture_output=True, text=True, check=True).stderr
    assert re.match(r"! \S+/dispatch\.h\.gch$", said.splitlines()[0]), said


@pytest.mark.parametrize(
    "target, arch, flags",
    [
        ({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"}, "x86_64", {"avx2", "fma", "bmi1"}),
        ({"kind": "llvm", "mtriple": "x86_64-linux-gnu"}, "x86_64", set()),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "carmel"}, "aarch64", {"asimdhp", "atomics"}),
        (
            {"kind": "cuda", "arch": "sm_72", "host": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "carmel"}},
            "aarch64",
            {"asimdhp"},
        ),
    ],
)
def test_machine_of_a_target(target: dict, arch: str, flags: set[str]) -> None:
    machine = codegen.machine_of(tvm.target.Target(target))
    assert machine.arch == arch
    assert flags <= set(machine.cpu_flags)
    assert bool(machine.cpu_flags) == bool(flags)


def test_a_cache_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    """Objects are then of one process, which removes them at its end."""
    code = """
import os, sys
from pathlib import Path
from dycl_tvm.codegen import toolchain
toolchain.Compiler.run = lambda self, arguments, what: Path(arguments[-1]).touch()
compiler = toolchain.find_compiler()
first = toolchain.runtime_objects(compiler)
assert toolchain.runtime_objects(compiler) == first
print(first.objects[0].parent)
"""
    (tmp_path / "file").touch()
    environment = {**os.environ, "DYCL_CACHE_DIR": str(tmp_path / "file" / "cache"), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path}/dycl-runtime-")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
