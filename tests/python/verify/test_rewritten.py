# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Rewritten operations are compared with what they were: a pass that is right passes, and one with a wrong border or sum does not."""

from __future__ import annotations

import pytest
import torch

from dycl_tvm.errors import VerificationError
from dycl_tvm.hcfg.builder import GraphBuilder, constant, tensor
from dycl_tvm.hcfg.nodes import HCFG, Constant, TensorOp
from dycl_tvm.hcfg.quantized import DIVIDED
from dycl_tvm.passes.integer_products import integer_products
from dycl_tvm.verify.rewritten import check_rewrites, makers

PAD, ADD = "aten.constant_pad_nd.default", "aten.add.Tensor"


def _network() -> HCFG:
    b = GraphBuilder("network", {"x": tensor(1, 4, 6, 5)})
    how = (constant(torch.tensor(0.05)), constant(torch.tensor(9.0)), -128, 127, torch.int8)
    q = b.op(b.entry, DIVIDED, b.params[0], *how)
    x = b.op(b.entry, "quantized_decomposed.dequantize_per_tensor.default", q, 0.05, 9, -128, 127, torch.int8)
    weights = torch.randint(-127, 128, (8, 4, 3, 3), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    w = b.op(b.entry, "quantized_decomposed.dequantize_per_tensor.default", constant(weights), 0.01, 0, -127, 127, torch.int8)
    y = b.op(b.entry, "aten.conv2d.default", x, w, constant(torch.arange(8.0)), [1, 1], [1, 1])
    b.leave(b.entry, y, b.op(b.entry, "aten.max_pool2d.default", x, [2, 2], [2, 2]), b.op(b.entry, "aten.mean.dim", x, [2, 3], True))
    return b.graph


def test_what_the_pass_makes_is_what_was_there() -> None:
    graph = _network()
    before = makers(graph)
    assert integer_products(graph)
    assert check_rewrites(before, graph) == 6  # what is quantised and dequantised, and what reads that
    assert not check_rewrites(makers(graph), graph)


@pytest.mark.parametrize("op, what", [(PAD, "aten.conv2d.default"), (ADD, "aten.conv2d.default|aten.mean.dim")])
def test_a_wrong_border_and_a_wrong_sum_are_found(op: str, what: str) -> None:
    graph = _network()
    before = makers(graph)
    integer_products(graph)
    step = next(s for s in graph.blocks[0].steps if isinstance(s, TensorOp) and s.op == op)
    more = step.args[1]
    wrong = constant(more.data + 3) if isinstance(more, Constant) else more
    step.args = (step.args[0], more, step.args[2] + 3) if op == PAD else (step.args[0], wrong)
    with pytest.raises(VerificationError, match=what):
        check_rewrites(before, graph)
