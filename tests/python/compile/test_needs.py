# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Where the planner puts what sessions for smaller sizes need, and which blocks their calls reach."""

from __future__ import annotations

import torch

import dycl_tvm
from dycl_tvm.compile import arena
from dycl_tvm.compile.needs import regions


def test_what_a_region_uses_lies_at_the_beginning() -> None:
    # A test parts a path of its own (2) from that for all (1), whose kernels read a number (4) that is written before the test.
    blocks = [
        arena.FlowBlock([arena.Point((), (4,))], edges=[arena.EdgeMoves(1), arena.EdgeMoves(2)]),
        arena.FlowBlock([arena.Point((4,), (0,)), arena.Point((0, 4), (1,))], (1,)),
        arena.FlowBlock([arena.Point((), (2,)), arena.Point((2,), (3,))], (3,)),
    ]
    sizes = [6400, 12800, 128, 256, 8]
    usual, near = arena.plan(sizes, blocks), arena.plan(sizes, blocks, regions=[{0, 2}])
    end = [max(plan.offset[s] + arena.round_up(sizes[s]) for s in (2, 3, 4)) for plan in (usual, near)]
    assert end[0] > 19200 and end[1] == 128 + 256
    assert usual.bytes == near.bytes == near.lower_bound


def test_which_blocks_calls_reach() -> None:
    rows = dycl_tvm.Dim("N", min=1, max=9)

    def model(x: torch.Tensor) -> torch.Tensor:
        return x.relu() if x.shape[0] > 5 else x.abs() if x.sum() > 0 else x + 1

    shapes = ({0: rows},)
    graph = dycl_tvm.stage(model, (torch.ones(2, 3),), dynamic_shapes=shapes, specialize=[1, "N<=6", 7])
    found = regions(graph)
    assert [region.most for region in found] == [(1,), (6,)]  # of 7 alone no session is
    assert found[0].blocks < found[1].blocks < set(range(len(graph.blocks)))
    assert [region.most for region in regions(dycl_tvm.stage(model, (torch.ones(2, 3),), dynamic_shapes=shapes))] == []
