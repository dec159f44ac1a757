# Licensed under the Apache License, Version 2.0; see LICENSE.
"""From the least index at which a block of a GPU's grid stores to the number of blocks that are launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import tirx
from tvm.ir.expr import Var

from dycl_tvm.backends.tir_cuda.grid import _around, _joined
from dycl_tvm.compile.program import GridSize

BLOCKS = 24


def const(number: int) -> Any:
    return tirx.const(number, "int64")


@pytest.mark.parametrize(
    ("index", "python", "exact"),
    [
        (lambda b: b, lambda b: b, True),
        (lambda b: b * const(64), lambda b: b * 64, True),
        (lambda b: b * const(4) + const(3), lambda b: b * 4 + 3, True),
        (lambda b: tvm.tirx.floordiv(b * const(256), const(40)), lambda b: b * 256 // 40, True),
        (lambda b: tvm.tirx.floordiv(b, const(5)) * const(7), lambda b: b // 5 * 7, True),
        (
            lambda b: tvm.tirx.floordiv(tvm.tirx.floordiv(b * const(32), const(12)), const(3)) * const(2),
            lambda b: b * 32 // 12 // 3 * 2,
            True,
        ),
        (
            lambda b: tvm.tirx.floordiv(b, const(3)) * const(6) + tvm.tirx.floormod(b, const(3)) * const(2),
            lambda b: b // 3 * 6 + b % 3 * 2,
            False,
        ),
    ],
)
def test_all_blocks_that_write_what_is_wanted_are_launched(index: Callable[[Any], Any], python: Callable[[int], int], exact: bool) -> None:
    block = Var("b", "int64")
    steps = _around(index(block), block, BLOCKS)
    assert steps is not None
    for wanted in range(-3, python(BLOCKS) + 3):
        count = GridSize(0, 0, _joined([(1, 0, 1), *steps])).at(wanted, BLOCKS)
        needed = max((b + 1 for b in range(BLOCKS) if python(b) < wanted), default=0)
        assert count == needed if exact else needed <= count < needed + 3


def test_an_index_that_begins_anew_says_nothing() -> None:
    block = Var("b", "int64")
    assert _around(tvm.tirx.floormod(block, const(5)), block, BLOCKS) is None
    assert _around(const(9) - block, block, BLOCKS) is None
    assert _around(block * block, block, BLOCKS) is None


def test_steps_are_put_together_only_where_they_round_alike() -> None:
    assert _joined([(2, 1, 1), (1, 0, 32), (1, 0, 4)]) == ((2, 1, 128),)
    assert _joined([(1, 0, 8), (5, 0, 1), (1, 0, 2)]) == ((1, 0, 8), (5, 0, 2))
    assert _joined([(3, 2, 1), (1, -4, 1), (40, 0, 1)]) == ((120, -80, 1),)
