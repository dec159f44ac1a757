# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Libraries that are not at a path: in memory of the program, in a file that it has opened; in C by the name of a descriptor."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
from pathlib import Path

import handmade
import numpy as np
import pytest
from zoo_calls import is_right

from dycl_tvm.codegen import toolchain
from dycl_tvm.errors import ArtifactError, UsageError
from dycl_tvm.runtime import load

REPOSITORY = Path(__file__).parents[3]


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_bytes_and_descriptors(files: tuple[Path, Path], tmp_path: Path) -> None:
    before, data = _descriptors(), files[0].read_bytes()
    for library in (data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        module = load(library, files[1])
        is_right(module)
        module.unload()
        assert _descriptors() == before
    gone = tmp_path / "gone.so"
    shutil.copy(files[0], gone)
    with open(gone, "rb") as file:
        gone.unlink()
        file.seek(7)
        module = load(file.fileno(), files[1].read_bytes(), mmap=False)
        assert file.tell() == 7
    is_right(module)
    is_right(module.new_session())
    with pytest.raises(UsageError, match="no paths"):
        pickle.dumps(module)
    module.unload()
    assert _descriptors() == before


def test_the_same_bytes_are_loaded_once_and_others_are_not_mixed_up(files: tuple[Path, Path], tmp_path: Path) -> None:
    before, modules = _descriptors(), []
    for k in range(3):
        program = handmade.zoo_program()
        program.name = f"Zoo{k}"
        library, params = handmade.build(program, tmp_path, name=f"zoo{k}")
        modules += [load(library.read_bytes(), params) for _ in range(3)]
    assert _descriptors() == before + 3
    assert [module.name for module in modules] == ["Zoo0"] * 3 + ["Zoo1"] * 3 + ["Zoo2"] * 3
    assert modules[0]._library is modules[2]._library is not modules[3]._library
    for module in modules[:6]:
        is_right(module)
        module.close()
    modules[0].unload()  # its descriptor's number is free now
    modules[3].unload()
    again = load((tmp_path / "zoo1.so").read_bytes(), tmp_path / "zoo1.params")
    assert again.name == "Zoo1"
    is_right(again)
    is_right(load(tmp_path / "zoo0.so", tmp_path / "zoo0.params"))
    is_right(modules[8])


def test_a_file_that_was_built_again_is_loaded_beside_the_old_one(files: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    shutil.copy(files[0], path)
    old = load(path, files[1])
    program = handmade.zoo_program()
    program.name = "Again"
    path.unlink()
    library, params = handmade.build(program, tmp_path)
    assert library == path
    new = [load(path, params) for _ in range(2)]
    assert [module.name for module in (old, *new)] == ["Zoo", "Again", "Again"]
    assert new[0]._library is new[1]._library
    for module in (old, *new):
        is_right(module)


def test_what_is_no_library_is_refused(files: tuple[Path, Path]) -> None:
    before, data = _descriptors(), files[0].read_bytes()
    for wrong in (b"", data[:-1], data[:1000], data[:2000] + b"x" + data[2001:]):
        with pytest.raises(ArtifactError, match="the given bytes"):
            load(wrong, files[1])
    for strange in (None, True, 3.5, np.zeros((4, 4))[:, 1]):
        with pytest.raises(UsageError, match="a path, a file descriptor or a contiguous buffer"):
            load(strange, files[1])
    for descriptor in (999_999, -1):
        with pytest.raises(ArtifactError, match=f"descriptor {descriptor}': Bad file descriptor"):
            load(descriptor, files[1])
    reader, writer = os.pipe()
    with pytest.raises(ArtifactError, match="a pipe or a device"):
        load(reader, files[1])
    os.close(reader)
    os.close(writer)
    assert _descriptors() == before


def test_a_host_in_c_loads_it_by_the_name_of_a_descriptor(files: tuple[Path, Path], tmp_path: Path) -> None:
    source = REPOSITORY / "tests" / "cpp" / "old_host_main.c"
    subprocess.run(["gcc", *toolchain.include_flags(), str(source), "-o", str(tmp_path / "host"), "-ldl"], check=True)
    descriptor = os.memfd_create("library")
    os.write(descriptor, files[0].read_bytes())
    command = [tmp_path / "host", f"/proc/self/fd/{descriptor}", files[1]]
    done = subprocess.run(command, pass_fds=[descriptor], capture_output=True, text=True, check=False)
    os.close(descriptor)
    assert (done.stdout, done.returncode) == ("the old host runs\n", 0), done.stderr
