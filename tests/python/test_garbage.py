# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a build does to Python's garbage collector, and leaves behind."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import dycl_tvm
from dycl_tvm.garbage import young_garbage_only


class Node:
    def __init__(self):
        self.me = self


def test_old_objects_are_spared_and_young_garbage_is_collected():
    gc.collect()  # so that none happens by itself in the next lines
    old = weakref.ref(Node())
    with young_garbage_only():
        assert gc.get_freeze_count() > 1000
        young = weakref.ref(Node())
        gc.collect()
        assert young() is None
        assert old() is not None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert old() is None


def test_an_error_and_a_freeze_of_the_users():
    with pytest.raises(KeyError), young_garbage_only():
        raise KeyError
    assert gc.get_freeze_count() == 0
    gc.freeze()
    try:
        with young_garbage_only():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_frozen_objects_are_not_counted_by_who_froze_them(monkeypatch: pytest.MonkeyPatch):
    with young_garbage_only():
        monkeypatch.setattr(gc, "get_freeze_count", lambda: pytest.fail("a million objects were counted"))
        with young_garbage_only():
            pass
        monkeypatch.undo()
        assert gc.get_freeze_count() > 1000  # the inner one leaves them frozen
    assert gc.get_freeze_count() == 0


def test_a_build_spares_what_was_there_before():
    found = []
    dycl_tvm.build(torch.nn.ReLU(), torch.zeros(1, 4), progress=lambda line: found.append(gc.get_freeze_count()))
    assert found and min(found) > 1000
    assert gc.get_freeze_count() == 0
