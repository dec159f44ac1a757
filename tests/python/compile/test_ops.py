# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Every supported ATen operator against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hcfg_utils import Kernels, host_target, record, run_sub_dnn
from op_cases import CASES
from tvm import tirx

from dycl_tvm.backends.tir_cpu.reading.stages import size_of
from dycl_tvm.compile import pipeline
from dycl_tvm.compile.call_list import CallList, call_list
from dycl_tvm.compile.importer import import_sub_dnns
from dycl_tvm.compile.ops import semantics
from dycl_tvm.compile.program import KernelLibrary
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.nodes import Origin, SubDNN, TensorOp, Value
from dycl_tvm.hcfg.types import TensorType

Ready = dict[str, tuple[CallList, list[Any], Kernels]]


@pytest.fixture(scope="module")
def ready() -> Ready:
    """All cases as sub-DNNs of one module: one run of the passes, one compilation."""
    recorded = {}
    with torch.no_grad():
        for k, (name, fn, args) in enumerate(CASES):
            assert name not in recorded, f"two cases are called {name}"
            recorded[name] = record(fn, args, f"case_{k}")
    mod = import_sub_dnns([sub for sub, _ in recorded.values()])
    low = pipeline.to_kernels(mod, host_target())
    kernels = pipeline.KernelSet()
    lists = {name: call_list(sub.name, low, kernels, {}) for name, (sub, _) in recorded.items()}
    built = pipeline.build_kernels(kernels.functions, host_target())
    run = Kernels(KernelLibrary(tuple(built.objects)), [call.symbol for calls in lists.values() for call in calls.calls])
    return {name: (lists[name], [c.data for c in recorded[name][1]], run) for name in recorded}


@pytest.mark.parametrize("case", CASES, ids=[name for name, _, _ in CASES])
def test_operator_gives_what_torch_gives(case: Any, ready: Ready) -> None:
    name, fn, args = case
    calls, weights, kernels = ready[name]
    with torch.no_grad():
        want = fn(*args)
    got = run_sub_dnn(calls, [*args, *weights], kernels)
    wanted = list(want) if isinstance(want, (tuple, list)) else [want]
    wanted = [w for v in wanted for w in (v if isinstance(v, (tuple, list)) else [v])]
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted):
        assert g.shape == tuple(w.shape)
        assert str(g.dtype) == str(w.dtype).removeprefix("torch.")
        if w.dtype.is_floating_point:
            np.testing.assert_allclose(g, w.numpy(), rtol=2e-5, atol=2e-6 * max(1.0, _scale(w)), equal_nan=True)
        else:
            np.testing.assert_array_equal(g, w.numpy())


def _scale(t: torch.Tensor) -> float:
    finite = t[torch.isfinite(t)]
    return float(finite.abs().max()) if finite.numel() else 1.0


def test_unknown_operator_names_itself_and_the_line() -> None:
    x = Value(TensorType((2, 2), "float32"), "x")
    y = Value(TensorType((2, 2), "float32"), "y")
    origin = Origin("net.py", 12, "Net.forward", "y = torch.special.airy_ai(x)")
    sub = SubDNN("s", [x], [TensorOp("aten.special_airy_ai.default", (x,), {}, (y,), origin)], [y])
    with pytest.raises(UnsupportedError, match="airy_ai") as info:
        import_sub_dnns([sub])
    assert info.value.origin is origin
    assert "net.py" in str(info.value)


def test_random_operators_are_refused() -> None:
    x = Value(TensorType((2, 2), "float32"), "x")
    y = Value(TensorType((2, 2), "float32"), "y")
    sub = SubDNN("s", [x], [TensorOp("aten.rand_like.default", (x,), {}, (y,), Origin("net.py", 3))], [y])
    with pytest.raises(UnsupportedError, match="rand"):
        import_sub_dnns([sub])


def test_interpolation_of_integers_is_not_computed_with_weights_of_zero_and_one() -> None:
    x, y = Value(TensorType((1, 1, 4, 4), "uint8"), "x"), Value(TensorType((1, 1, 6, 6), "uint8"), "y")
    op = TensorOp("aten.upsample_bilinear2d.default", (x, [6, 6], True), {}, (y,), Origin("net.py", 3))
    with pytest.raises(UnsupportedError, match="linear interpolation of uint8"):
        import_sub_dnns([SubDNN("s", [x], [op], [y])])


SECOND_RESULTS = {
    "aten.max.dim": (torch.float32, (3, 9, 2), (1, False)),
    "aten.min.dim": (torch.bool, (3, 9), (1, True)),
    "aten.topk.default": (torch.float32, (4, 11), (3,)),
    "aten.sort.default": (torch.float32, (4, 11), (-1, True)),
    "aten.var_mean.correction": (torch.float32, (4, 11), ([1],)),
    "aten.max_pool2d_with_indices.default": (torch.float32, (1, 2, 8, 8), ([2, 2], [2, 2])),
    "aten.adaptive_max_pool2d.default": (torch.float32, (1, 2, 7, 7), ([3, 3],)),
}


@pytest.mark.parametrize("op", SECOND_RESULTS)
def test_only_the_second_result_is_read(op: str) -> None:
    dtype, shape, args = SECOND_RESULTS[op]
    data = torch.randn(shape, generator=torch.Generator().manual_seed(1)) if dtype.is_floating_point else torch.rand(shape) > 0.5
    _, name, overload = op.split(".")
    want = getattr(getattr(torch.ops.aten, name), overload)(data, *args)[1]
    x = Value(TensorType(shape, str(dtype).removeprefix("torch.")), "x")
    y = Value(TensorType(tuple(want.shape), str(want.dtype).removeprefix("torch.")), "y")
    sub = SubDNN("s", [x], [TensorOp(op, (x, *args), {}, (None, y), Origin("net.py", 3))], [y])
    low = pipeline.to_kernels(import_sub_dnns([sub]), host_target())
    kernels = pipeline.KernelSet()
    calls = call_list("s", low, kernels, {})
    built = pipeline.build_kernels(kernels.functions, host_target())
    (got,) = run_sub_dnn(calls, [data], Kernels(KernelLibrary(tuple(built.objects)), [call.symbol for call in calls.calls]))
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)


def test_chains_of_whole_number_division_stay_small() -> None:
    """Fusion writes one expression into the other: an operator that names its operand twice doubles the size with every link."""
    chain: Any = tirx.Var("x", "int64")
    for _ in range(8):
        chain = semantics.remainder(semantics.floor_divide(chain, tirx.Var("y", "int64")), tirx.Var("z", "int64"))
    assert size_of(chain) < 400
