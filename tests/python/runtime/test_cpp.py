# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The runtime from C++: under sanitizers, without heap allocations, and by the example with its own CMake project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import handmade
import numpy as np
import pytest

from dycl_tvm import codegen
from dycl_tvm.codegen import toolchain
from dycl_tvm.codegen.link import _info_source, fingerprint_of
from dycl_tvm.codegen.metadata import metadata_of
from dycl_tvm.codegen.weights import weight_tensors
from dycl_tvm.runtime.params import data_digest

REPOSITORY = Path(__file__).parents[3]


def _run(*command: object, **environment: str) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def _damaged(params: Path, folder: Path) -> list[Path]:
    data = params.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    variants = [b"", data[:9], data[:-1], bytes([255]) * 16 + data[16:], data[:header] + bytes(len(data) - header)]
    variants += [data[:8] + b"[" * 1000 + data[1008:], data[:8] + b'{"a":"\\ud800\\u' + data[22:]]
    paths = []
    for k, contents in enumerate(variants):
        paths.append(folder / f"damaged{k}.params")
        paths[-1].write_bytes(contents)
    return paths


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers(files: tuple[Path, Path], tmp_path: Path, sanitizer: str) -> None:
    """The fixed runtime, a generated dispatcher and the host library in one program, four sessions at once."""
    program = handmade.zoo_program()
    source = codegen.generate(program)
    fingerprint = fingerprint_of(source, data_digest(weight_tensors(program)))
    (tmp_path / "dispatcher.cc").write_text(source)
    (tmp_path / "info.cc").write_text(_info_source(metadata_of(program, handmade.MACHINE, fingerprint, False), False))
    sources = toolchain.runtime_sources()
    units = [*sources.units(), *sorted((sources.source / "host").glob("*.cc")), tmp_path / "dispatcher.cc", tmp_path / "info.cc"]
    units += [Path(handmade.__file__).with_name("handmade_kernels.cc"), REPOSITORY / "tests" / "cpp" / "stress_main.cc"]
    flags = ["-std=c++17", "-O1", "-g1", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-Wall", "-Wextra", "-Werror"]
    compiler = toolchain.find_compiler()

    def compile_unit(unit: Path) -> Path:
        out = tmp_path / f"{unit.parent.name}_{unit.stem}.o"
        compiler.run([*flags, *toolchain.include_flags(), "-c", str(unit), "-o", str(out)], unit.name)
        return out

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_unit, units))
    compiler.run([*flags, *map(str, objects), "-o", str(tmp_path / "stress"), "-ldl", "-lpthread"], "link")
    options = {"ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1", "DYCL_NUM_THREADS": "3"}
    assert "done" in _run(tmp_path / "stress", files[1], *_damaged(files[1], tmp_path), **options)


def test_tensors_of_changing_sizes_in_one_place(tmp_path: Path) -> None:
    """A run reads behind an input of fewer elements, and what the last call left there is gone."""
    units = [toolchain.runtime_sources().source / "tensor_copy.cc", REPOSITORY / "tests" / "cpp" / "tensor_copy_main.cc"]
    # what else the file has asks for a program, and is left out
    flags = ["-std=c++17", "-O1", "-g", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-Wall", "-Wextra", "-Werror"]
    toolchain.find_compiler().run([*flags, *toolchain.include_flags(), *map(str, units), "-o", str(tmp_path / "copies")], "link")
    assert "done" in _run(tmp_path / "copies")


def test_the_recorder_beside_a_list(tmp_path: Path) -> None:
    units = [toolchain.runtime_sources().source / "recorder.cc", REPOSITORY / "tests" / "cpp" / "recorder_main.cc"]
    flags = ["-std=c++17", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wall", "-Wextra", "-Werror"]
    toolchain.find_compiler().run([*flags, *toolchain.include_flags(), *map(str, units), "-o", str(tmp_path / "recorder")], "link")
    assert "done" in _run(tmp_path / "recorder")


@pytest.mark.parametrize(
    "header, compiler",
    [("dycl.h", "gcc -std=c99 -x c"), ("dycl.h", "g++ -std=c++11 -x c++"), ("module.h", "g++ -std=c++11 -x c++")],
)
def test_headers_in_the_oldest_languages(header: str, compiler: str, tmp_path: Path) -> None:
    (tmp_path / "unit").write_text(f"#include <dycl/{header}>\nint main(void) {{ return 0; }}\n")
    flags = ["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *toolchain.include_flags()]
    done = subprocess.run([*compiler.split(), *flags, str(tmp_path / "unit")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("threads", ["1", "3"])
def test_no_heap_allocation_after_the_first_run(files: tuple[Path, Path], tmp_path: Path, threads: str) -> None:
    compiler = toolchain.find_compiler()
    main = REPOSITORY / "tests" / "cpp" / "heap_main.cc"
    flags = ["-std=c++17", "-O1", "-fno-builtin", *toolchain.include_flags(), str(main), "-o", str(tmp_path / "heap"), "-ldl", "-rdynamic"]
    compiler.run(flags, "heap")
    found = re.search(r" (\d+) while running", _run(tmp_path / "heap", *files, DYCL_NUM_THREADS=threads))
    # with several threads each takes its scratch memory when it first has a task that needs some
    assert found is not None and int(found[1]) <= (0 if threads == "1" else 8)


def test_every_allocation_fails_once(files: tuple[Path, Path], tmp_path: Path) -> None:
    units = [REPOSITORY / "tests" / "cpp" / "lean_main.cc", *toolchain.runtime_sources().host_units()]
    flags = ["-std=c++17", "-O1", "-fno-builtin", "-Wall", "-Wextra", "-Werror", *toolchain.include_flags(), *map(str, units)]
    toolchain.find_compiler().run([*flags, "-o", str(tmp_path / "lean"), "-ldl", "-lpthread", "-rdynamic"], "lean")
    told = _run(tmp_path / "lean", *files, DYCL_NUM_THREADS="2")
    found = re.findall(r"^(.*): (\d+) allocations failed, (\d+) ended the process in the C library$", told, re.M)
    assert len(found) == 18
    for story, held, ended in found:
        # glibc gives each thread its variables of a library at its first look at them, or ends the process; loading twice doubles that
        assert int(held) > 50, story
        assert int(ended) <= 6, story


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built as a user would build it."""
    cmake = shutil.which("cmake")
    assert cmake is not None, "cmake is needed to build the example"
    folder = tmp_path_factory.mktemp("example")
    config = [f"-Ddycl_tvm_DIR={toolchain.cmake_dir()}", f"-DPython_EXECUTABLE={sys.executable}"]
    _run(cmake, "-S", REPOSITORY / "examples" / "cpp", "-B", folder, *config)
    _run(cmake, "--build", folder)
    return folder / "run_model"


def test_example(files: tuple[Path, Path], example: Path, tmp_path: Path) -> None:
    x, n = tmp_path / "x.bin", tmp_path / "n.bin"
    x.write_bytes(np.arange(4, dtype="float32").tobytes())
    n.write_bytes(np.int64(4).tobytes())
    out = _run(example, *files, "--input", x, "--input", n, "--repeat", 3)
    assert "return site 0\noutput 0: tensor [4] 28 50 72 94\noutput 1: int 100\n" in out
    assert "path:\ntrue   model.py:4: while i < n:" in out
    assert out.count("true   model.py:4") == 4
    assert "case 4 model.py:8: return outputs[n]\nreturn model.py:9: return y\n" in out
    assert "ms a run" in out


def test_example_says_what_is_wrong(files: tuple[Path, Path], example: Path, tmp_path: Path) -> None:
    def fails(*arguments: object) -> str:
        done = subprocess.run([str(example), *map(str, arguments)], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        return done.stderr

    assert "usage" in fails()
    assert "ArtifactError" in fails(files[0])
    data = bytearray(files[0].read_bytes())
    data[len(data) // 3] ^= 1
    broken = tmp_path / "broken.so"
    broken.write_bytes(data)
    assert "its checksum does not match" in fails(broken, files[1])
    broken.write_bytes(data[:1000])
    assert "no" in fails(broken, files[1])
    assert "cannot be opened" in fails(tmp_path / "missing.so")
    short = tmp_path / "short.bin"
    short.write_bytes(b"123")
    assert "input 'x' takes 16 bytes" in fails(*files, "--input", short)
    two = tmp_path / "n.bin"
    two.write_bytes(np.int64(2).tobytes())
    x = tmp_path / "x.bin"
    x.write_bytes(bytes(16))
    assert fails(*files, "--input", x, "--input", two).startswith("KeyError: two is not allowed")


def test_what_is_written_of_programs_in_c(tmp_path: Path) -> None:
    """A program that does all that docs/runtime.md says, linked with the library."""
    program = handmade.zoo_program()
    program.user_metadata = {"version": "3"}
    library, params = handmade.build(program, tmp_path)
    main = REPOSITORY / "tests" / "cpp" / "production_main.c"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", *toolchain.include_flags(), str(main), str(library), "-lpthread"]
    subprocess.run(["gcc", *flags, "-o", str(tmp_path / "program")], check=True)
    assert _run(tmp_path / "program", params) == "all as written\n"
