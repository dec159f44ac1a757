# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A library with a sanitizer shows the mistakes of the program that uses it, also where the kernels read, which no sanitizer knows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import handmade
import pytest

from dycl_tvm import codegen
from dycl_tvm.codegen import cross, toolchain
from dycl_tvm.codegen.machine import Machine
from dycl_tvm.codegen.sanitizers import link_flags, sanitizing
from dycl_tvm.errors import ArtifactError, UsageError
from dycl_tvm.runtime import load
from dycl_tvm.runtime.trailer import read_trailer

REPOSITORY = Path(__file__).parents[3]


def test_an_input_that_is_freed_too_early(tmp_path: Path) -> None:
    program = handmade.straight_program("k_inc", "k_inc")
    library, params, host = tmp_path / "net.so", tmp_path / "net.params", tmp_path / "host"
    # what is linked is checked before in this process, with an object that has no sanitizer
    seen: list[object] = []
    codegen.link(program, handmade.LIBRARY, library, handmade.MACHINE, watch=lambda *given: seen.append(given[1]), sanitize="address")
    assert seen == [cross.compiler_for(handmade.MACHINE)]
    codegen.save_params(program, params)
    assert read_trailer(library)["sanitize"] == "address"
    main = REPOSITORY / "tests" / "cpp" / "early_free_main.c"
    flags = ["-std=c11", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address", *toolchain.include_flags()]
    subprocess.run(["gcc", *flags, str(main), str(library), "-o", str(host)], check=True)
    good = subprocess.run([host, params, "good"], capture_output=True, text=True, check=False)
    assert (good.stdout, good.returncode) == ("site 0\n", 0), good.stderr
    bad = subprocess.run([host, params], capture_output=True, text=True, check=False)
    assert bad.returncode != 0
    for words in ("heap-use-after-free", "TellUseByKernel", "early_free_main.c:"):
        assert words in bad.stderr
    with pytest.raises(ArtifactError, match=r"built with sanitize='address', for programs that are compiled with -fsanitize=address"):
        load(library, params)


def test_which_there_are() -> None:
    compiler = toolchain.Compiler(("clang++",), "clang version 16")
    with pytest.raises(UsageError, match="sanitize is one of 'address', 'undefined', 'thread', not 'memory'"):
        sanitizing(compiler, "memory")
    assert "-fsanitize=thread" in sanitizing(compiler, "thread").flags
    # clang has the runtime in the program, so a library cannot be without open symbols
    assert "-Wl,-z,defs" not in link_flags(compiler, "thread")
    assert "-Wl,-z,defs" in link_flags(compiler, "")
    board = cross.compiler_for(Machine("aarch64", "aarch64-linux-gnu", "cortex-a57", ()))
    with pytest.raises(UsageError, match="zig"):
        sanitizing(board, "address")
