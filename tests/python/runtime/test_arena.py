# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sessions that compute in memory of the program, also several in one."""

from __future__ import annotations

import copy
import gc
import mmap
import pickle
import threading
import time
import weakref
from pathlib import Path

import handmade
import numpy as np
import pytest
from zoo_calls import ENDLESS, SUM, X, is_right

from dycl_tvm.errors import UsageError
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.runtime import load


def _room(size: int) -> np.ndarray:
    """Bytes in memory that begins at a multiple of 64."""
    room = np.zeros(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size]


def test_runs_compute_there_and_nowhere_else(files: tuple[Path, Path]) -> None:
    room = _room(4096)
    size = load(*files).arena_bytes
    for module in (load(*files, arena=room[:size]), load(*files).new_session(arena=room[:size])):
        room[:] = 0xA5
        is_right(module)
        assert (room[:size] != 0xA5).any()
        assert (room[size:] == 0xA5).all()
        kept = module(X, 0)["y"]
        room[:] = 0  # between calls it is the program's, and results are copies
        np.testing.assert_array_equal(kept, SUM)
        is_right(module)
        assert module.session_bytes < load(*files).session_bytes + size
        for other in (copy.copy(module), pickle.loads(pickle.dumps(module))):  # with memory of their own
            room[:] = 0xA5
            is_right(other)
            assert (room == 0xA5).all()


def test_it_is_kept_alive_as_long_as_the_session(files: tuple[Path, Path]) -> None:
    room = mmap.mmap(-1, 4096)
    module = load(*files, arena=room)
    with pytest.raises(BufferError):
        room.close()
    is_right(module)
    module.close()
    gc.collect()
    room.close()
    array = _room(4096)
    module, alive = load(*files, arena=array), weakref.ref(array.base)
    del array
    gc.collect()
    assert alive() is not None
    is_right(module)
    del module
    gc.collect()
    assert alive() is None


def test_memory_that_does_not_do_is_refused(files: tuple[Path, Path]) -> None:
    module, room = load(*files), _room(4096)
    for short in (room[: module.arena_bytes - 1], room[:0], room[4:]):
        with pytest.raises(UsageError, match="arena"):
            module.new_session(arena=short)
    read_only = room[:]
    read_only.flags.writeable = False
    for wrong in (read_only, bytes(4096), mmap.mmap(-1, 4096, prot=mmap.PROT_READ)):
        with pytest.raises(UsageError, match="read-only"):
            load(*files, arena=wrong)
    for strange in (3, room[::2], "room"):
        with pytest.raises(UsageError, match="contiguous buffer"):
            load(*files, arena=strange)
    is_right(load(*files, arena=room))


def test_modules_that_share_it_take_turns(tmp_path: Path) -> None:
    wide = TensorType((40_000,), "float32")
    program = handmade.straight_program("k_inc", "k_twice", "k_inc", type_=wide)
    first = load(*handmade.build(program, tmp_path))
    room = _room(first.arena_bytes + 64)
    modules = [first.new_session(arena=part) for part in (room, room[64:], room)]
    inputs, wrong = [np.full(40_000, k, "float32") for k in range(3)], []

    def work(k: int) -> None:
        for _ in range(50):
            y = modules[k](inputs[k])
            if not (y == 2 * (k + 1) + 1).all():
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_call_waits_for_that_of_a_module_with_the_same_arena(files: tuple[Path, Path]) -> None:
    room = _room(4096)
    one, two, apart = load(*files, arena=room[:2048]), load(*files, arena=room[:1024]), load(*files, arena=room[2048:])
    future = one.run_async(X, ENDLESS)
    while not one._turn.busy:
        time.sleep(0.001)
    is_right(apart)
    waits = threading.Thread(target=is_right, args=(two,))
    waits.start()
    waits.join(0.05)
    assert waits.is_alive()
    future.cancel()
    waits.join(30)
    assert not waits.is_alive()
    with pytest.raises(UsageError, match="overlaps several"):
        load(*files, arena=room)
    apart.close()
    del apart
    gc.collect()
    is_right(load(*files, arena=room))
