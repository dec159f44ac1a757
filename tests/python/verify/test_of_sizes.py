# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Numbers of a graph that follow from the sizes of a call, as checks of kernels draw them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.nodes import HostOp
from dycl_tvm.hcfg.sizes import Dim
from dycl_tvm.verify.of_sizes import OfSizes


def model(x):
    n = int((x > 0).sum())
    padded = F.pad(x, (-x.shape[0] % 4, 0))
    return padded, x[: x.shape[0] // 3], x[:n]


def test_numbers_of_sizes_are_known():
    graph = stage(model, (torch.ones(5),), dynamic_shapes=({0: Dim("N", max=9)},))
    of_sizes, like = OfSizes(graph), torch.zeros((), dtype=torch.int64)
    tensors = [s for block in graph.blocks for s in block.steps if isinstance(s, HostOp) and s.op == "to_tensor"]
    found = [[int(t) if (t := of_sizes.tensor(s.output, like, [n])) is not None else None for n in (1, 6, 9)] for s in tensors]
    assert [-n % 4 for n in (1, 6, 9)] in found
    assert all(None not in numbers or numbers == [None] * 3 for numbers in found)
    item = next(s for block in graph.blocks for s in block.steps if isinstance(s, HostOp) and s.op == "item")
    assert of_sizes.tensor(item.output, like, [5]) is None
