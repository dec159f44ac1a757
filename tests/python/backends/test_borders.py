# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Borders that one number fills are read from loops; anything else around an image is none of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from legalized import prim_func
from tvm import te, tirx

from dycl_tvm.backends.tir_cpu.reading.borders import Border, border
from dycl_tvm.backends.tir_cpu.reading.channelwise_op import channelwise

IMAGE = torch.zeros(2, 3, 5, 7, dtype=torch.uint8)


def _read(fn, x=IMAGE):
    op = channelwise(prim_func(fn, x))
    return None if op is None else border(op)


@pytest.mark.parametrize("pad", [(1, 2, 3, 4), (0, 0, 2, 1), (3, 0, 0, 0), (0, 0, 1, 1)])
@pytest.mark.parametrize("number", [0, 7, 255])
def test_a_border_is_read(pad, number):
    left, right, top, bottom = pad
    assert _read(lambda x: F.pad(x, pad, value=number)) == Border((top, left, bottom, right), number)


@pytest.mark.parametrize("fn", [
    lambda x: F.pad(x, (1, -1, 0, 0), value=3),  # it cuts columns off
    lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    lambda x: F.pad(x, (1, 1, 0, 0, 1, 1), value=3),  # channels too
    lambda x: F.max_pool2d(x, 3, 1, 1),
    lambda x: x[:, :, 1:],
])  # fmt: skip
def test_what_is_no_border(fn):
    assert _read(fn) is None


def _padded(begin):
    """Return what puts 3 where a column is before ``begin`` or behind the fifth one, and elsewhere the column before it."""
    x = te.placeholder((1, 2, 4, 4), "uint8", "x")

    def element(n, c, h, w):
        return tirx.if_then_else(tirx.all(w >= begin, w < 5), x[n, c, h, w - 1], tirx.const(3, "uint8"))

    extents = [tirx.IntImm("int64", e) for e in (1, 2, 4, 6)]
    return te.create_prim_func([x, te.compute(extents, element)])


@pytest.mark.parametrize("begin, found", [(1, Border((0, 1, 0, 1), 3)), (2, None)])
def test_a_border_is_where_the_image_is_not(begin, found):
    op = channelwise(_padded(begin))
    assert op is not None and border(op) == found


def test_numbers_that_are_not_whole_are_no_border():
    assert _read(lambda x: F.pad(x, (1, 1), value=0.5), IMAGE.float()) is None
