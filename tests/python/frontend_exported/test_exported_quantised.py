# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Exported programs of PyTorch's quantised operators, as PT2E makes them: computed in bytes, the same as eager up to a rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dycl_tvm
from dycl_tvm.build import stage
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.interpreted import InterpretedModule

D = torch.ops.quantized_decomposed


def _fake(x: torch.Tensor, scale: float, zero: int, kind: torch.dtype) -> torch.Tensor:
    info = torch.iinfo(kind)
    q = D.quantize_per_tensor(x, scale, zero, info.min, info.max, kind)
    return D.dequantize_per_tensor(q, scale, zero, info.min, info.max, kind)


class _Residual(nn.Module):
    """Convolutions with a residual, a join and an average; activations of int8 or uint8, scales a channel."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.zero = kind, 3 if kind == torch.uint8 else -7
        for name, shape in (("first", (16, 3, 3, 3)), ("second", (16, 16, 3, 3)), ("last", (5, 32))):
            self.register_buffer(name, torch.randint(-127, 128, shape).to(torch.int8))
            self.register_buffer(f"{name}_scales", torch.rand(shape[0]) / 300 + 0.001)

    def weight(self, name: str) -> torch.Tensor:
        return D.dequantize_per_channel(getattr(self, name), getattr(self, f"{name}_scales"), None, 0, -127, 127, torch.int8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind, zero = self.kind, self.zero
        x = _fake(x, 0.02, zero, kind)
        y = _fake(torch.relu(torch.conv2d(x, self.weight("first"), padding=1)), 0.03, zero, kind)
        z = _fake(torch.conv2d(y, self.weight("second"), padding=1), 0.04, zero, kind)
        z = _fake(z + y, 0.05, zero, kind)
        z = _fake(torch.cat([nn.functional.max_pool2d(y, 2), nn.functional.avg_pool2d(z, 2)], 1), 0.05, zero, kind)
        z = _fake(z.mean((2, 3)), 0.02, zero, kind)
        return nn.functional.linear(z, self.weight("last"))


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8])
def test_static_scales_are_computed_in_bytes(kind: torch.dtype, tmp_path: Path) -> None:
    model, x = _Residual(kind).eval(), torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(model, (x,))
    reference = stage(program)
    float32 = {
        o.op
        for f in reference.sub_dnns()
        for o in f.ops
        if o.op.startswith("aten.") and o.op.split(".")[1] in ("convolution", "conv2d", "linear", "mean")
    }
    assert not float32
    moved = {v.type.dtype for f in reference.sub_dnns() for o in f.ops if o.op == "aten.cat.default" for v in o.operands()}  # type: ignore[union-attr]
    assert moved == {"uint8"}
    art = dycl_tvm.build(program, target="native")
    art.export_library(tmp_path / "m.so")
    art.save_params(tmp_path / "m.params")
    found = np.asarray(dycl_tvm.load(tmp_path / "m.so", tmp_path / "m.params")(x.numpy()))
    np.testing.assert_array_equal(found, reference.interpret()(x).numpy())
    torch.testing.assert_close(torch.from_numpy(found), model(x), rtol=0.02, atol=0.02)


class _Dynamic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("w", torch.randint(-127, 128, (24, 16)).to(torch.int8))
        self.register_buffer("scales", torch.rand(24) / 100 + 0.001)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, zero = D.choose_qparams.tensor(x, -128, 127, 1e-7, torch.int8)
        q = D.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        x = D.dequantize_per_tensor.tensor(q, scale, zero, -128, 127, torch.int8)
        return nn.functional.linear(x, D.dequantize_per_channel(self.w, self.scales, None, 0, -127, 127, torch.int8))


def test_scales_that_each_call_chooses_are_computed_in_bytes(tmp_path: Path) -> None:
    model = _Dynamic().eval()
    given = [s * torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(k)) + k for k, s in enumerate((1.0, 0.01, 30.0))]
    program = torch.export.export(model, (given[0],))
    assert "dycl_quantized.matmul.default" in {o.op for f in stage(program).sub_dnns() for o in f.ops}
    art = dycl_tvm.build(program, target="native")
    art.export_library(tmp_path / "m.so")
    art.save_params(tmp_path / "m.params")
    module = dycl_tvm.load(tmp_path / "m.so", tmp_path / "m.params")
    for x in [*given, torch.zeros(3, 5, 16)]:
        torch.testing.assert_close(torch.from_numpy(np.asarray(module(x.numpy()))), model(x), rtol=1e-4, atol=1e-4)


class _Halves(nn.Module):
    """A weight of a class that holds it as two tensors."""

    def __init__(self, change: bool) -> None:
        super().__init__()
        from torch.testing._internal.two_tensor import TwoTensor

        self.w, self.change = nn.Parameter(TwoTensor(torch.randn(4, 4), torch.randn(4, 4)), requires_grad=False), change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.change:
            self.w.a.add_(1.0)
        return x @ self.w.a + x @ self.w.b


def _exported(change: bool) -> tuple[Any, torch.Tensor]:
    x = torch.randn(2, 4)
    return torch.export.export(_Halves(change).eval(), (x,)), x


def test_weights_of_classes_that_hold_other_tensors() -> None:
    program, x = _exported(False)
    w = next(iter(program.state_dict.values()))
    torch.testing.assert_close(stage(program).interpret()(x), x @ w.a + x @ w.b)


def test_such_a_weight_that_is_changed_is_refused() -> None:
    program, _ = _exported(True)
    with pytest.raises(UnsupportedError, match="changes a of"):
        stage(program)


class _OfAnyBatch(nn.Module):
    """Each of the operators that quantise, by a scale of the tensor, of a channel, of all that a call gives, and of each row of it."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scales, zeros = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0, 1, -2, 3])
        channels = D.quantize_per_channel(x, scales, zeros, 1, -128, 127, torch.int8)
        scale, zero = D.choose_qparams.tensor(x, -128, 127, 1e-6, torch.int8)
        chosen = D.quantize_per_tensor.tensor(x + 3, scale, zero, -128, 127, torch.int8)
        each, at = D.choose_qparams_per_token_asymmetric(x, torch.int8)
        rows = D.quantize_per_token(x, each, at, -128, 127, torch.int8)
        back = D.dequantize_per_channel(channels, scales, zeros, 1, -128, 127, torch.int8)
        rows = D.dequantize_per_token(rows, each, at, -128, 127, torch.int8, torch.float32)
        return _fake(x, 0.02, 3, torch.uint8), back, D.dequantize_per_tensor.tensor(chosen, scale, zero, -128, 127, torch.int8), rows


def test_a_batch_that_calls_decide() -> None:
    model, x = _OfAnyBatch(), torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("B", min=1, max=6)},))
    for graph in (stage(program), stage(model, (x,), dynamic_shapes=({0: dycl_tvm.Dim("B", min=1, max=6)},))):
        for n in (1, 3, 6):
            x = torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) + 1  # zero is not within the range of each row
            torch.testing.assert_close(InterpretedModule(graph)(x), model(x), rtol=0, atol=0)
