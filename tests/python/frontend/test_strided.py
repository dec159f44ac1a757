# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Views by sizes and strides of a tensor's memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from differential import check, stage

from dycl_tvm.errors import UnsupportedError

X = [(torch.randn(2, 4, 4, 3, generator=torch.Generator().manual_seed(k)) + k - 1,) for k in range(3)]


def reads(x):
    a = x[0].as_strided((2, 3, 2), (4, 2, 1))
    b = x.permute(0, 3, 1, 2).as_strided((2, 2), (3, 1), 1)
    x.add_(1)
    return a, b, a.stride(), b.storage_offset(), x.as_strided((96,), (1,))


def writes(x):
    w = x.clone()
    w.as_strided((2, 2), (3, 1), 1).mul_(5)
    d = x[0, :, :, 0].contiguous()
    d.fill_diagonal_(7.0)
    part = w.as_strided((4,), (2,), 5)
    w += 1
    return w, d, part


def pools_channels_last(x):
    a = F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), 1)
    b = F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last), 1).flatten(1)
    return (a, b) if b.sum() > 0 else (b, a)


def chunks(x):
    """Windows that overlap, as long-sequence attention makes them."""
    y = x.flatten()[:32].view(1, 16, 2)
    size, stride = list(y.size()), list(y.stride())
    size[1:1], stride[1:1] = [3], [8]
    size[2] = 8
    stride[1] = 4 * stride[2]
    return y.as_strided(size=size, stride=stride) * 2


def copies(x):
    a = torch.as_strided_copy(x[1:], (2, 3), (1, 2), 3)
    b = torch.as_strided_scatter(x, a, (2, 3), (3, 1), 1)
    x.add_(1)
    return a, b, x, b.stride()


@pytest.mark.parametrize("program", [reads, writes, copies, pools_channels_last, chunks], ids=lambda f: f.__name__)
def test_as_strided(program):
    check(program, [(x.clone(),) for (x,) in X])


@pytest.mark.parametrize(
    "program, reason",
    [
        (lambda x: x.as_strided((97,), (1,)), "beyond the memory"),
        (lambda x: x.clone().as_strided((2, 2), (1, 1)).add_(1), "whose elements overlap|more than one element"),
    ],
)
def test_refused(program, reason):
    with pytest.raises((UnsupportedError, RuntimeError), match=reason):
        stage(program, X[0])
