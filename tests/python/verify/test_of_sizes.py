# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sizes of the calls of a check, and numbers of a graph that follow from them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import dycl_tvm
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.nodes import HostOp
from dycl_tvm.hcfg.sizes import Dim
from dycl_tvm.verify.of_sizes import OfSizes, SizesOfBlocks, draw_sizes


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


def test_sizes_of_calls_are_bounds_and_special_ones_more_often_than_others() -> None:
    sizes = {0: Dim("B", min=0, max=900), 1: Dim("T", min=3, max=900)}
    graph = stage(lambda x: x.sum(1), (torch.ones(2, 5),), dynamic_shapes=(sizes,), specialize=[{"B": 7, "T": 70}, {"T": 77}])
    noise = torch.Generator().manual_seed(0)
    drawn = [tuple(draw_sizes(graph, noise)) for _ in range(400)]
    assert all(0 <= b <= 900 and 3 <= t <= 900 for b, t in drawn)
    assert 60 < drawn.count((7, 70)) < 140 and 60 < sum(t == 77 for _, t in drawn) < 140
    assert min(sum(b == n for b, _ in drawn) for n in (0, 900)) > 30 and len({b for b, _ in drawn}) > 100


def test_a_path_is_compared_at_the_sizes_that_lead_there() -> None:
    """What is cut to two rows there, and flattened, has no more elements than these, whatever the product of other sizes is."""
    rows, columns = Dim("N", max=8), Dim("M", max=8)

    def flat(x):
        return (x if x.shape[0] > 2 else -x).flatten()

    options = {"dynamic_shapes": ({0: rows, 1: columns},), "specialize": ["N<=2", "M<=2"]}
    graph = stage(flat, (torch.ones(4, 4),), **options)
    spans = [tuple(map(tuple, SizesOfBlocks(graph).spans(block))) for block in graph.blocks]
    assert ((1, 2), (1, 8)) in spans and ((3, 8), (1, 2)) in spans and ((3, 8), (3, 8)) in spans
    noise = torch.Generator().manual_seed(0)
    assert all(draw_sizes(graph, noise, SizesOfBlocks(graph).spans(graph.blocks[1]))[0] <= 2 for _ in range(50))
    dycl_tvm.build(flat, (torch.ones(4, 4),), **options)


def test_rows_that_no_kernel_has_computed_are_nothing_to_compare_with() -> None:
    """The second layer finds them in memory, and in ATen they would spoil the rows that count."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0) for _ in range(2))
            self.last = nn.Linear(32, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
                p = torch.softmax(self.last(x[:, 0]), -1)
                if p.max() > 0.6:
                    return p
            return p

    dycl_tvm.build(Layers().eval(), (torch.zeros(1, 6, 32),), dynamic_shapes={"x": {1: Dim("T", min=1, max=12)}})
