# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A reference that quantises to the neighbouring integer is no defect of the build; one that does anything else is."""

from __future__ import annotations

import pytest
import torch

from dycl_tvm.errors import VerificationError
from dycl_tvm.hcfg.builder import GraphBuilder, constant, tensor
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.quantized import DIVIDED
from dycl_tvm.verify.by_inputs import check_by_inputs
from dycl_tvm.verify.nudged import within_rounding


def _graph(quantised: bool = True) -> HCFG:
    b = GraphBuilder("rounded", {"x": tensor(2, 4)})
    x = b.params[0]
    if quantised:
        x = b.op(b.entry, DIVIDED, x, constant(torch.tensor(0.5)), constant(torch.tensor(3.0)), 0, 255, torch.uint8)
        x = b.op(b.entry, "quantized_decomposed.dequantize_per_tensor.default", x, 0.5, 3, 0, 255, torch.uint8)
    b.leave(b.entry, b.op(b.entry, "aten.mul.Tensor", x, 2.0))
    return b.graph


#: The first number lies in the middle between two integers; no other one is near one.
X = torch.tensor([[0.25, 1.0, 2.0, 3.0], [0.0, 1.5, 2.5, 4.0]])


def test_a_step_is_forgiven_where_a_rounding_makes_one() -> None:
    built = 2 * X
    built[0, 0] = 0.0
    step = built.clone()
    step[0, 0] = 1.0
    call = (X,), {}
    assert within_rounding(_graph(), call, step, built, 1.0)
    assert not within_rounding(_graph(), call, step + torch.eye(2, 4).flip(1) * 9, built, 1.0)  # farther than a step can lead
    assert not within_rounding(_graph(False), call, step, built, 1.0)
    elsewhere = (X + 0.01,), {}  # no number is near a middle, and the first one is a step
    assert not within_rounding(_graph(), elsewhere, built, step, 1.0)
    assert not within_rounding(_graph(), call, step[:1], built, 1.0)


def test_a_reference_that_does_something_else_is_reported() -> None:
    graph = _graph()

    def reference(x: torch.Tensor) -> tuple[torch.Tensor]:
        how = (0.5, 3, 0, 255, torch.uint8)
        q = torch.ops.quantized_decomposed.quantize_per_tensor(x, *how)
        return (2 * torch.ops.quantized_decomposed.dequantize_per_tensor(q, *how) + 1,)

    with pytest.raises(VerificationError):
        check_by_inputs(reference, graph, ((X,), {}), "default")
