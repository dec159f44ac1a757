# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What operators return, without values: as PyTorch itself says it, and without its compiler."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from dycl_tvm.frontend.python import stage
from dycl_tvm.frontend.trace.values.result_types import _is_cheap, result_of

aten = torch.ops.aten


def t(*shape: int, dtype: torch.dtype = torch.float32, **how: Any) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", **how)


def i(*shape: int) -> torch.Tensor:
    return t(*shape, dtype=torch.int64)


def last(*shape: int) -> torch.Tensor:
    return t(*shape, memory_format=torch.channels_last)


def conv(x: torch.Tensor, w: torch.Tensor, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1, **turned: Any) -> Any:
    bias = t(w.shape[1] if turned else w.shape[0])
    return aten.convolution.default, (x, w, bias, [stride], [padding], [dilation], bool(turned), [0], groups), {}


def op(func: Any, *args: Any, **kwargs: Any) -> Any:
    return func, args, kwargs


def norm(x: torch.Tensor) -> Any:
    c = x.shape[1]
    return aten.native_batch_norm.default, (x, t(c), t(c), t(c), t(c), False, 0.1, 1e-5), {}


CASES = {
    "conv": conv(t(2, 6, 9, 8), t(4, 3, 3, 2), 2, 1, 2, 2),
    "conv_1d": conv(t(2, 6, 9), t(4, 6, 3), 1, 1),
    "conv_channels_last": conv(last(2, 6, 9, 8), t(4, 6, 3, 3)),
    "conv_one_channel": conv(t(2, 1, 9, 8), t(4, 1, 3, 3)),
    "conv_one_pixel": conv(t(2, 6, 1, 1), t(4, 6, 1, 1)),
    "conv_grown_pixel": conv(t(2, 6, 1, 1), t(4, 6, 1, 1), 1, 1),
    "conv_transposed": conv(t(2, 6, 5, 5), t(6, 4, 3, 3), 2, transposed=True),
    "norm_channels_last": norm(last(2, 6, 9, 8)),
    "mm": op(aten.mm.default, t(2, 3), t(3, 4)),
    "bmm": op(aten.bmm.default, t(5, 2, 3), t(5, 3, 4)),
    "addmm": op(aten.addmm.default, t(4), t(2, 3), t(3, 4)),
    "addmm_bias_rows": op(aten.addmm.default, t(2, 1), t(2, 3), t(3, 4)),
    "relu": op(aten.relu.default, t(2, 6, 9, 8)),
    "relu_channels_last": op(aten.relu.default, last(2, 6, 9, 8)),
    "relu_transposed": op(aten.relu.default, t(3, 4).t()),
    "relu_one_channel": op(aten.relu.default, t(2, 1, 9, 8)),
    "relu_empty": op(aten.relu.default, t(0, 4)),
    "relu_scalar": op(aten.relu.default, t()),
    "add_broadcast": op(aten.add.Tensor, t(2, 6, 9, 8), t(6, 1, 1)),
    "add_broadcast_first": op(aten.add.Tensor, t(6, 1, 1), last(2, 6, 9, 8)),
    "add_promotes": op(aten.add.Tensor, i(3), t(3, dtype=torch.float64)),
    "add_zero_dim": op(aten.add.Tensor, t(3, dtype=torch.float16), t(dtype=torch.float64)),
    "add_same_zero_dim": op(aten.add.Tensor, t(dtype=torch.float16), t(dtype=torch.float64)),
    "mul_number": op(aten.mul.Tensor, i(3), 2.5),
    "rsub": op(aten.rsub.Scalar, t(2, 3), 1.0),
    "rsub_integers": op(aten.rsub.Scalar, i(2, 3), 1.5),
    "floor_divide": op(aten.floor_divide.default, i(2, 3), i(2, 3)),
    "where": op(aten.where.self, t(2, 1, dtype=torch.bool), t(2, 3), t(3)),
    "compare": op(aten.gt.Scalar, t(2, 3), 0.5),
    "expanded": op(aten.exp.default, t(1, 3).expand(4, 3)),
    "sum": op(aten.sum.dim_IntList, t(2, 3, 4), [1], True),
    "mean": op(aten.mean.dim, t(2, 3, 4), [-1]),
    "max_dim": op(aten.max.dim, t(2, 3), 1),
    "argmax": op(aten.argmax.default, t(2, 3), 1),
    "softmax": op(aten._softmax.default, t(2, 3), 1, False),
    "layer_norm": op(aten.native_layer_norm.default, t(2, 3, 8), [8], t(8), t(8), 1e-5),
    "group_norm": op(aten.native_group_norm.default, t(2, 4, 3, 3), t(4), t(4), 2, 4, 9, 2, 1e-5),
    "max_pool": op(aten.max_pool2d_with_indices.default, t(2, 6, 9, 8), [3, 2], [2, 2], [1, 1]),
    "avg_pool_channels_last": op(aten.avg_pool2d.default, last(2, 6, 9, 8), [2, 2]),
    "adaptive": op(aten._adaptive_avg_pool2d.default, t(2, 6, 9, 8), [2, 3]),
    "upsample": op(aten.upsample_nearest2d.default, t(1, 2, 4, 4), [8, 8]),
    "pad": op(aten.constant_pad_nd.default, t(2, 3), [1, 2]),
    "cat": op(aten.cat.default, [t(2, 3), t(2, 4)], 1),
    "cat_promotes": op(aten.cat.default, [i(2, 3), t(2, 4)], 1),
    "embedding": op(aten.embedding.default, t(10, 4), i(2, 3)),
    "embedding_of_one": op(aten.embedding.default, t(1, 4), i()),
    "index_select": op(aten.index_select.default, t(2, 3, 4), -2, i(5)),
    "index_select_channels_last": op(aten.index_select.default, last(2, 6, 9, 8), 1, i(5)),
    "index_select_transposed": op(aten.index_select.default, t(3, 4).t(), 0, i(2)),
    "index": op(aten.index.Tensor, t(3, 4), [i(5)]),
    "index_two": op(aten.index.Tensor, t(3, 4, 5), [i(2, 1), i(6)]),
    "index_apart": op(aten.index.Tensor, t(3, 4, 5), [i(6), None, i(6)]),
    "index_inner": op(aten.index.Tensor, t(3, 4, 5), [None, i(2, 2)]),
    "index_bool": op(aten.index.Tensor, t(3, 4, dtype=torch.bool), [i(2)]),
    "stack": op(aten.stack.default, [t(2, 3), t(2, 3)], -1),
    "safe_softmax": op(aten._safe_softmax.default, t(2, 3, 4), -1),
    "log_sigmoid": op(aten.log_sigmoid_forward.default, t(2, 3)),
    "gather": op(aten.gather.default, t(2, 3), 1, i(2, 2)),
    "topk": op(aten.topk.default, t(2, 8), 3),
    "zeros_like": op(aten.zeros_like.default, t(3, 4).t(), dtype=torch.int32, device=torch.device("meta")),
    "arange": op(aten.arange.default, 4, device=torch.device("meta")),
    "arange_step": op(aten.arange.start_step, 1, 8, 2.5, device=torch.device("meta")),
    "attention": op(aten._scaled_dot_product_flash_attention_for_cpu.default, t(1, 2, 4, 8), t(1, 2, 5, 8), t(1, 2, 5, 8)),
    "clone_as": op(aten.clone.default, t(2, 6, 9, 8), memory_format=torch.channels_last),
    "nothing_special": op(aten.roll.default, t(3, 4), [1], [0]),
}


#: Of these a CPU returns something else than the device meta.
ON_A_CPU = {
    "norm": norm(t(2, 6, 9, 8)),
    "norm_of_the_batch": op(aten.native_batch_norm.default, t(2, 6, 9, dtype=torch.bfloat16), None, None, None, None, True, 0.1, 1e-5),
    "norm_without_statistics": op(aten._native_batch_norm_legit.no_stats, t(2, 6, 9, dtype=torch.bfloat16), None, None, True, 0.1, 1e-5),
}


def strides(result: torch.Tensor) -> list[int]:
    """Those that matter: of dimensions that have more than one index."""
    return [stride for size, stride in zip(result.shape, result.stride()) if size > 1] if result.numel() else []


@pytest.mark.parametrize("name", CASES)
def test_as_on_the_device_meta(name: str) -> None:
    func, args, kwargs = CASES[name]
    found, expected = (pytree.tree_leaves(f(func, args, kwargs)) for f in (result_of, lambda f, a, k: f(*a, **k)))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        assert (ours.device.type, ours.shape, ours.dtype, strides(ours)) == ("meta", theirs.shape, theirs.dtype, strides(theirs))


@pytest.mark.parametrize("name", ON_A_CPU)
def test_as_on_a_cpu(name: str) -> None:
    func, args, kwargs = ON_A_CPU[name]
    real = [torch.zeros_like(a, device="cpu") if isinstance(a, torch.Tensor) else a for a in args]
    for ours, theirs in zip(pytree.tree_leaves(result_of(func, args, kwargs)), pytree.tree_leaves(func(*real, **kwargs)), strict=True):
        assert (ours.shape, ours.dtype, strides(ours)) == (theirs.shape, theirs.dtype, strides(theirs))


def test_size_is_bounded() -> None:
    """Memory for the results would be 64 GiB."""
    assert result_of(aten.add.Tensor, (t(1 << 17, 1), t(1 << 17)), {}).shape == (1 << 17, 1 << 17)
    assert result_of(aten.relu.default, (t(1 << 17, 1 << 17),), {}).shape == (1 << 17, 1 << 17)
    assert result_of(aten.index_select.default, (t(2, 1 << 17), 0, i(1 << 17)), {}).shape == (1 << 17, 1 << 17)
    assert result_of(aten.embedding.default, (t(2, 1 << 17), i(1 << 17)), {}).shape == (1 << 17, 1 << 17)
    assert result_of(aten.index.Tensor, (t(2, 1 << 17), [i(1 << 17)]), {}).shape == (1 << 17, 1 << 17)
    assert _is_cheap(aten.index.Tensor, (t(2, 1 << 10), [i(1 << 10)]), {})
    assert not _is_cheap(aten.index.Tensor, (t(2, 1 << 11), [i(1 << 11)]), {})


@pytest.mark.parametrize(
    "case",
    [
        op(aten.mm.default, t(2, 3), t(4, 5)),
        op(aten.bmm.default, t(5, 2, 3), t(4, 3, 4)),
        op(aten.add.Tensor, t(2, 3), t(4)),
        op(aten.cat.default, [t(2, 3), t(3, 3)], 1),
        op(aten.index_select.default, t(2, 3), 2, i(4)),
        op(aten.index.Tensor, t(2, 3), [t(2, dtype=torch.bool)]),
        conv(t(2, 6, 9, 8), t(4, 5, 3, 3)),
        conv(t(2, 6, 2, 2), t(4, 6, 3, 3)),
        op(aten.nonzero.default, t(3)),
    ],
    ids=str,
)
def test_errors_are_pytorchs(case: Any) -> None:
    func, args, kwargs = case
    with pytest.raises((RuntimeError, NotImplementedError, IndexError)) as expected:
        func(*args, **kwargs)
    with pytest.raises(expected.type) as found:
        result_of(func, args, kwargs)
    assert str(found.value) == str(expected.value)


PROGRAM = """
import sys
import torch
from torch import nn
from dycl_tvm.progress import Phases
from dycl_tvm.staging import stage_model

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.attend = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.layer, self.head = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(2).mT
        if x.mean() > 0.25:
            x = x + self.attend(x, x, x)[0] * 0.5
        scores = self.head(torch.nn.functional.gelu(self.layer(x)).mean(1)).softmax(-1)
        pair, best = torch.stack([x, x]), x.argmax(1)
        x = torch.nn.functional.scaled_dot_product_attention(pair, pair, pair, attn_mask=x.mT @ x > 0) if x.size(1) == 8 else pair
        return 1 - scores, scores.argmax(-1), torch.cat([scores, scores], 1), x[:, 0, best[0]], torch.nn.functional.logsigmoid(scores)

stage_model(Net().eval().requires_grad_(False), torch.randn(1, 3, 8, 8), phases=Phases())
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


def test_common_operators_need_no_compiler_of_pytorch(tmp_path: Any) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr[-2000:]


def test_what_is_compiled_by_pytorch_runs_as_it_was_written() -> None:
    compiled = torch.compile(lambda x: torch.relu(x) + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTorch's compiler warns of what it meets when it follows a staged tensor
        graph = stage(lambda x: compiled(x) * 2, (torch.randn(2, 4),))
    assert [step.op for step in graph.entry.steps] == ["aten.relu.default", "aten.add.Tensor", "aten.mul.Tensor"]
