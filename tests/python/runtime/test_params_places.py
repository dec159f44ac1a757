# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Params that are not at a path: in memory of the program, in a file that it has opened, in sealed memory."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from zoo_calls import SUM, X, is_right

from dycl_tvm.codegen import toolchain
from dycl_tvm.errors import ArtifactError, UsageError
from dycl_tvm.runtime import load


def _aligned(data: bytes, at: int = 0) -> np.ndarray:
    """The bytes in memory that begins ``at`` bytes behind a multiple of 64."""
    room = np.zeros(len(data) + 128, np.uint8)
    start = -room.ctypes.data % 64 + at
    room[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return room[start : start + len(data)]


def test_memory_is_used_where_it_is(files: tuple[Path, Path]) -> None:
    memory = _aligned(files[1].read_bytes())
    module = load(files[0], memory)
    is_right(module)
    bias = memory.view(np.float32).tolist().index(10.0)  # of the weight; the state was copied when the session was made
    memory.view(np.float32)[bias] = 110.0
    assert module(X, 0)["y"][0] == 220.0
    del memory
    gc.collect()
    assert module(X, 0)["y"][0] == 220.0  # the module keeps it


@pytest.mark.parametrize("how", [False, "sealed"])
def test_memory_that_is_copied_may_change(files: tuple[Path, Path], how: object) -> None:
    memory = _aligned(files[1].read_bytes(), 1)
    module = load(files[0], memory, mmap=how)  # type: ignore[arg-type]
    memory[:] = 0
    is_right(module)
    is_right(load(files[0], files[1].read_bytes(), mmap=how))  # type: ignore[arg-type]


def test_a_mapping_of_the_program(files: tuple[Path, Path]) -> None:
    with open(files[1], "rb") as file:
        module = load(files[0], mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    is_right(module)


@pytest.mark.parametrize("how", [True, False, "sealed"])
@pytest.mark.parametrize("before", [0, 64, 4096 + 128])
def test_a_part_of_an_open_file(files: tuple[Path, Path], tmp_path: Path, how: object, before: int) -> None:
    data, archive = files[1].read_bytes(), tmp_path / "archive"
    archive.write_bytes(b"a" * before + data + b"z" * 77)
    with open(archive, "rb") as file:
        file.seek(5)
        module = load(files[0], file.fileno(), mmap=how, params_offset=before, params_size=len(data))  # type: ignore[arg-type]
        assert file.tell() == 5
    is_right(module)
    with pytest.raises(UsageError, match="no paths"):
        pickle.dumps(module)
    if how is True:
        return
    archive.write_bytes(b"")  # a mapping would end the process
    is_right(module)


@pytest.mark.skipif(not os.path.exists("/sys/kernel/mm/transparent_hugepage"), reason="this system has no large pages")
@pytest.mark.parametrize("how", [True, False, "sealed"])
def test_large_pages_are_asked_for(files: tuple[Path, Path], how: object) -> None:
    """Of the memory that the weights are in: kernels read it in order, and fetch ahead to the end of a page."""

    def asked() -> int:
        return sum("hg" in line.split() for line in Path("/proc/self/smaps").read_text().splitlines() if line.startswith("VmFlags"))

    before = asked()
    module = load(files[0], files[1], mmap=how)  # type: ignore[arg-type]
    assert asked() > before
    is_right(module)


def test_places_that_cannot_be_used_are_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    data, archive = files[1].read_bytes(), tmp_path / "archive"
    archive.write_bytes(b"abc" + data)
    with pytest.raises(UsageError, match="multiple of 64"):
        load(files[0], _aligned(data, 4))
    for damaged in (b"", data[:7], data[:-1], data[:-1] + b"x"):
        for how in (True, False, "sealed"):
            with pytest.raises(ArtifactError, match="given memory"):
                load(files[0], _aligned(damaged), mmap=how)  # type: ignore[arg-type]
    for wrong in (np.zeros((4, 4))[:, 1], 3.5, [1]):
        with pytest.raises(UsageError, match="a path, a file descriptor or a contiguous buffer"):
            load(files[0], wrong)
    with pytest.raises(UsageError, match="'sealed'"):
        load(files[0], files[1], mmap="seal")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="as a file descriptor"):
        load(files[0], files[1], params_offset=3)
    with open(archive, "rb") as file:
        fd = file.fileno()
        with pytest.raises(UsageError, match="no multiple of 64"):
            load(files[0], fd, params_offset=3)
        is_right(load(files[0], fd, params_offset=3, mmap=False))
        for offset, size in ((0, len(data) + 4), (len(data) + 4, 0), (2**63, 2**63)):
            with pytest.raises(UsageError, match="bytes; it has no"):
                load(files[0], fd, params_offset=offset, params_size=size)
        for how in (True, False, "sealed"):
            with pytest.raises(ArtifactError, match="shorter than a header"):  # at its end
                load(files[0], fd, params_offset=len(data) + 3, mmap=how)  # type: ignore[arg-type]
        is_right(load(files[0], np.int64(fd), params_offset=np.int64(3), mmap=False))  # type: ignore[arg-type]
        # C has room for the lower bits only, which name a place that is there
        for of, offset, size in ((fd + 2**32, 3, 0), (fd, 2**64 + 3, 0), (fd, 3, 2**64)):
            with pytest.raises(UsageError, match="not negative and has"):
                load(files[0], of, params_offset=offset, params_size=size, mmap=False)
        with pytest.raises(ArtifactError, match="descriptor"):
            load(files[0], fd, params_offset=0)
        with pytest.raises(UsageError, match="not negative"):
            load(files[0], fd, params_offset=-1)
    with pytest.raises(ArtifactError, match="Bad file descriptor"):
        load(files[0], 999_999)
    reader, writer = os.pipe()
    with pytest.raises(ArtifactError, match="a pipe or a device"):
        load(files[0], reader)
    os.close(reader)
    os.close(writer)


def test_sealed_memory_cannot_be_changed_and_is_shared(files: tuple[Path, Path], tmp_path: Path) -> None:
    params = tmp_path / "sealed.params"
    params.write_bytes(files[1].read_bytes())
    module = load(files[0], params, mmap="sealed")
    params.write_bytes(b"")
    is_right(module)
    fd = module.params_fd
    assert not os.get_inheritable(fd)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == seals
    for change in (lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 8)):
        with pytest.raises(PermissionError):
            change()
    code = (
        "import sys, numpy as np, dycl_tvm; m = dycl_tvm.load(sys.argv[1], int(sys.argv[2])); print(m(np.arange(4.0, dtype='f4'), 0)['y'])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(files[0]), str(fd)], pass_fds=[fd], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(SUM.astype("float32")), done.stderr
    again = load(files[0], fd)
    module.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    is_right(again)
    with pytest.raises(UsageError, match="closed"):
        _ = module.params_fd
    assert load(*files).params_fd == -1


def test_a_pickle_is_sealed_again(files: tuple[Path, Path]) -> None:
    copy = pickle.loads(pickle.dumps(load(*files, mmap="sealed")))
    assert copy.params_fd >= 0
    is_right(copy)


def test_a_file_that_is_written_to_while_it_is_read(files: tuple[Path, Path], tmp_path: Path) -> None:
    params, program = tmp_path / "changing.params", tmp_path / "program"
    params.write_bytes(files[1].read_bytes())
    main = Path(__file__).parents[2] / "cpp" / "changing_params_main.cc"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *toolchain.include_flags(), str(main), "-o", str(program)]
    toolchain.find_compiler().run([*flags, "-ldl", "-rdynamic"], "program")
    done = subprocess.run([program, files[0], params], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("what changes is refused\n", 0), done.stderr
