# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Copies and pickles of modules: other sessions of the same library, with the state of the original."""

from __future__ import annotations

import copy
import gc
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import handmade
import numpy as np
import pytest

from dycl_tvm.errors import ArtifactError, UsageError
from dycl_tvm.runtime import Module, load

X = np.arange(4, dtype="float32")


def _calls(module: Module) -> int:
    """How many calls with n = 1 the state has counted."""
    return int(module(X, 0)["rest"][0]) - 100


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_has_the_state_and_is_independent(files: tuple[Path, Path], make: object) -> None:
    first = load(*files, num_threads=1)
    first(X, 1)
    first(X, 1)
    second: Module = make(first)  # type: ignore[operator]
    assert second.last_path.branches == ()
    second(X, 1)
    assert (_calls(first), _calls(second)) == (2, 3)
    assert second._num_threads == 1
    del first
    gc.collect()
    assert _calls(second) == 3
    second.reset_state()
    assert _calls(second) == 0


def test_state_goes_from_session_to_session(files: tuple[Path, Path]) -> None:
    first = load(*files)
    first(X, 1)
    other = first.new_session()
    assert _calls(other) == 0
    other.set_state(first.get_state())
    assert _calls(other) == 1
    with pytest.raises(UsageError, match=r"the state has 3 bytes, that of 'Zoo' has \d+"):
        other.set_state(b"abc")


def test_another_process(files: tuple[Path, Path]) -> None:
    module = load(*files)
    module(X, 1)
    code = "import pickle, sys, numpy as np; m = pickle.load(sys.stdin.buffer); print(m(np.ones(4, 'float32'), 0)['rest'][0])"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(module), capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"101\n", b"")


def test_what_cannot_be_unpickled(files: tuple[Path, Path], tmp_path: Path) -> None:
    for path in files:
        shutil.copy(path, tmp_path)
    here = [tmp_path / path.name for path in files]
    data = pickle.dumps(load(*here))
    handmade.build(handmade.straight_program("k_inc"), tmp_path)  # another network takes its place
    with pytest.raises(ArtifactError, match="pickled with another library"):
        pickle.loads(data)
    here[0].unlink()
    with pytest.raises(ArtifactError, match="cannot read the library"):
        pickle.loads(data)


@pytest.mark.parametrize("mmap", [True, False])
def test_params_in_memory_may_be_written_over(files: tuple[Path, Path], tmp_path: Path, mmap: bool) -> None:
    params = tmp_path / "own.params"
    shutil.copy(files[1], params)
    module = load(files[0], params, mmap=mmap)
    want = module(X, 0)["y"].copy()
    data = params.read_bytes()
    with open(params, "r+b") as file:  # in place, as cp does
        file.write(data[:-64] + bytes(64))
    if mmap:
        file_again = tmp_path / "again.params"
        shutil.copy(files[1], file_again)
        file_again.replace(params)  # as save_params does: the module keeps the old file
    else:
        params.write_bytes(b"")
        np.testing.assert_array_equal(module(X, 0)["y"], want)
    np.testing.assert_array_equal(load(files[0], files[1])(X, 0)["y"], want)


def test_close_frees_session_and_weights(files: tuple[Path, Path]) -> None:
    def mapped() -> bool:
        return str(files[1]) in Path("/proc/self/maps").read_text()

    gc.collect()
    with load(*files) as first:
        second = first.new_session()
        assert mapped()
    assert mapped()  # the other session has them
    for use in (
        lambda: first(X, 0),
        first.reset_state,
        first.new_session,
        first.get_state,
        lambda: first.last_path,
        lambda: first.arena_bytes,
    ):
        with pytest.raises(UsageError, match="the module 'Zoo' is closed"):
            use()
    first.cancel()
    first.close()
    assert _calls(second) == 0
    second.close()
    assert not mapped()
