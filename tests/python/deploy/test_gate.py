# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The build gate and the choice of compilers: what is refused, and in which words."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from dycl_tvm.codegen import cross, toolchain
from dycl_tvm.codegen.elf import ElfError, read_library
from dycl_tvm.codegen.gate import check_library, check_program, exported_patterns, newest_glibc
from dycl_tvm.codegen.machine import Machine
from dycl_tvm.errors import BuildGateError, CompileError
from dycl_tvm.runtime.trailer import this_arch

HERE = this_arch()
BOARD = Machine("aarch64", "aarch64-linux-gnu", "cortex-a57", ())


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gate") / "exports.map"
    path.write_text("/* a comment; */ { global: api_*; run; local: *; };\n")
    return path


SOURCE = "int run(void) { return 1; } int api_a(void) { return 2; }"


def _link(folder: Path, source: str, *flags: str, script: Path | None = None) -> Path:
    (folder / "x.c").write_text(source)
    words = ["gcc", "-shared", "-fPIC", "-o", str(folder / "x.so"), str(folder / "x.c"), *flags]
    words += [f"-Wl,--version-script={script}"] if script else []
    subprocess.run(words, check=True)
    return folder / "x.so"


def test_patterns_are_those_of_the_version_script(exports: Path) -> None:
    assert exported_patterns(exports) == ["api_*", "run"]
    ours = exported_patterns(toolchain.runtime_sources().exports)
    assert "dycl_*" in ours
    assert "__tvm_ffi_run" in ours


def test_a_good_library(exports: Path, tmp_path: Path) -> None:
    library = check_library(_link(tmp_path, SOURCE, script=exports), HERE, None, exports)
    assert library.exported >= {"run", "api_a"}
    assert not library.executable_stack


@pytest.mark.parametrize(
    "source, flags, hide, words",
    [
        (SOURCE, (), False, None),
        (SOURCE + " int helper(void) { return 3; }", (), False, "it exports helper, which could meet symbols"),
        ("int api_a(void) { return 2; }", (), True, "it does not export run"),
        (SOURCE, ("-Wl,--no-as-needed", "-lgcc_s"), True, r"it needs libgcc_s\.so\.1, which the target may not have"),
        (SOURCE, ("-Wl,-z,execstack",), True, "it asks for an executable stack"),
    ],
)
def test_faults(source: str, flags: tuple[str, ...], hide: bool, words: str | None, exports: Path, tmp_path: Path) -> None:
    path = _link(tmp_path, source, *flags, script=exports if hide else None)
    if words is None:
        check_library(path, HERE, None, exports)
        return
    with pytest.raises(BuildGateError, match=words):
        check_library(path, HERE, None, exports)


def test_what_a_backend_asked_for_is_allowed(exports: Path, tmp_path: Path) -> None:
    path = _link(tmp_path, SOURCE, "-Wl,--no-as-needed", "-lgcc_s", script=exports)
    for flag in ("-lgcc_s", "-l:libgcc_s.so.1", "/usr/lib/libgcc_s.so.1"):
        check_library(path, HERE, None, exports, (flag,))


def test_another_machine(exports: Path, tmp_path: Path) -> None:
    path = _link(tmp_path, SOURCE, script=exports)
    with pytest.raises(BuildGateError, match=f"it is code for {HERE}, the target is riscv64"):
        check_library(path, "riscv64", None, exports)


def test_too_new_a_glibc(exports: Path, tmp_path: Path) -> None:
    """Linked against the C library of this system, which has functions that JetPack 4 lacks."""
    source = (
        "#define _GNU_SOURCE\n#include <stdio.h>\n#include <sys/mman.h>\n" + SOURCE + ' int api_b(void) { return memfd_create("x", 0); }'
    )
    path = _link(tmp_path, source, script=exports)
    # By number, not by text: 2.4 is older than 2.27.
    assert newest_glibc(read_library(path.read_bytes())) >= (2, 27)
    check_library(path, HERE, "2.99", exports)
    with pytest.raises(BuildGateError, match=r"it needs glibc 2\.\d+, the target has 2\.17"):
        check_library(path, HERE, "2.17", exports)


def test_files_that_are_no_libraries(exports: Path, tmp_path: Path) -> None:
    good = _link(tmp_path, SOURCE, script=exports).read_bytes()
    path = tmp_path / "bad.so"
    for data in (
        b"",
        b"\x7fELF",
        good[:100],
        good[: len(good) // 2],
        good[:5] + b"\2" + good[6:],
        good[:16] + struct.pack("<H", 2) + good[18:],
    ):
        path.write_bytes(data)
        with pytest.raises(ElfError):
            read_library(data)
        with pytest.raises(BuildGateError, match="cannot be used"):
            check_library(path, HERE, None, exports)
        with pytest.raises(BuildGateError, match="cannot be used"):
            check_program(path, HERE, None)


def test_the_gate_is_in_the_way_of_every_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import handmade

    monkeypatch.setattr(toolchain, "LINK_LIBRARIES", (*toolchain.LINK_LIBRARIES, "-Wl,--no-as-needed", "-lgcc_s"))
    with pytest.raises(BuildGateError, match="it needs libgcc_s"):
        handmade.build(handmade.zoo_program(), tmp_path)
    assert not list(tmp_path.glob("*.so"))


def test_the_compiler_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++")
    assert cross.compiler_for(Machine(HERE, "", "", ())).command == ("g++",)
    zig = cross.compiler_for(BOARD)
    assert zig.command[1:] == ("-m", "ziglang", "c++")
    assert zig.flags[:2] == ("-target", "aarch64-linux-gnu.2.17")
    assert cross.compiler_for(BOARD, "2.31") == zig
    monkeypatch.delenv("CXX")
    assert cross.compiler_for(Machine("x86_64", "", "", ()), "2.27").flags[1] == "x86_64-linux-gnu.2.17"
    assert cross.compiler_for(Machine("x86_64", "", "", ()), "2.12").flags[1] == "x86_64-linux-gnu.2.12"
    with pytest.raises(CompileError, match=f"makes code for {HERE}, the target is aarch64"):
        cross.compiler_for(BOARD, cxx="g++ -O1")


def test_the_users_cross_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "board-g++"
    fake.write_text("#!/bin/sh\ncase \"$*\" in *-dumpmachine*) true;; *) false;; esac && echo aarch64-linux-gnu || echo 'board-g++ 1.0'\n")
    fake.chmod(0o755)
    assert cross.compiler_for(BOARD, cxx=f"{fake} --sysroot=/x").command == (str(fake), "--sysroot=/x")
    monkeypatch.setenv("CXX", str(fake))
    assert cross.compiler_for(BOARD).command == (str(fake),)


def test_without_a_tool_chain_the_build_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    import dycl_tvm

    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(cross, "has_zig", lambda: False)
    with pytest.raises(CompileError, match=r"pip install 'dycl-tvm\[cross\]'"):
        dycl_tvm.build(lambda x: x + 1, (), target="raspberry-pi/4b-aarch64")


def test_bounds() -> None:
    machine = Machine(HERE, "", "", ())
    assert cross.glibc_bound(machine) is None
    assert cross.glibc_bound(machine, "2.31") == "2.31"
    assert cross.glibc_bound(Machine("x86_64" if HERE == "aarch64" else "aarch64", "", "", ())) == "2.27"
