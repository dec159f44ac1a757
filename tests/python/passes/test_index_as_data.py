# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Reads of single elements share one sub-DNN."""

from __future__ import annotations

import pytest
import torch

from dycl_tvm.hcfg.builder import GraphBuilder, tensor
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.passes import run_passes
from dycl_tvm.passes.index_as_data import index_as_data


def _reads(shape: tuple[int, ...], reads: list[tuple[int, int]]) -> GraphBuilder:
    """Return a graph that reads ``x.select(dim, index)`` in a block of its own for each, and returns the sum."""
    g = GraphBuilder("reads", {"x": tensor(*shape)})
    block, total = g.entry, None
    for dim, index in reads:
        following = g.block(f"read{index}")
        g.jump(block, following)
        block = following
        element = g.op(block, "aten.mul.Tensor", g.op(block, "aten.select.int", g.params[0], dim, index), 2.0)
        total = element if total is None else g.op(block, "aten.sub.Tensor", total, element)
    g.leave(block, total)
    return g


@pytest.mark.parametrize(
    "shape, reads",
    [
        ((5,), [(0, 0), (0, 3), (0, -1), (-1, 2)]),
        ((1, 4), [(1, 1), (-1, 2), (1, -4)]),
        ((4, 1, 1), [(0, 3), (0, 0), (-3, 3)]),
    ],
)
def test_elements_are_read_by_constants(shape: tuple[int, ...], reads: list[tuple[int, int]]) -> None:
    g = _reads(shape, reads)
    x = torch.randn(shape)
    (before,), _ = interpret(g.graph, [x])
    assert index_as_data(g.graph) == len(reads)
    verify(g.graph)
    assert torch.equal(interpret(g.graph, [x])[0][0], before)
    assert index_as_data(g.graph) == 0
    # -1 of five and 4 of five are one index
    indices = {index % shape[dim] for dim, index in reads}
    assert len(g.graph.constants()) == len(indices)


@pytest.mark.parametrize(
    "shape, reads",
    [
        ((5,), [(0, 2), (0, 2)]),  # one read, twice: there is nothing to share
        ((3, 4), [(0, 0), (0, 1)]),  # rows: a kernel that copies one knows best where it is
        ((4, 1), [(1, 0), (1, 0)]),
    ],
)
def test_other_reads_stay(shape: tuple[int, ...], reads: list[tuple[int, int]]) -> None:
    assert index_as_data(_reads(shape, reads).graph) == 0


def test_number_of_sub_dnns_does_not_grow() -> None:
    sizes = []
    for n in (4, 40):
        # the block merger would make one sub-DNN of the straight line
        g = _reads((64,), [(0, k) for k in range(n)])
        run_passes(g.graph, ["merge_blocks"])
        sizes.append(len(g.graph.sub_dnns()))
    assert sizes[0] == sizes[1]
