# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The mechanism that gives regions to backends, shown by a tiny backend that writes C."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hcfg_utils import Kernels, host_target, new_machine, run_program
from tvm.relax.dpl import is_op, wildcard

from dycl_tvm.backends.registry import Backend, Generated, Pattern, Region, active_backends, register_backend, unregister_backend
from dycl_tvm.compile import lower
from dycl_tvm.errors import UsageError
from dycl_tvm.hcfg.builder import GraphBuilder, tensor
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.passes.outline import outline

_SOURCE = """
#include <tvm/ffi/c_api.h>
extern "C" int __tvm_ffi_{symbol}(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {{
  DLTensor* t[3];
  for (int i = 0; i < 3; ++i) {{
    t[i] = args[i].type_index == kTVMFFIDLTensorPtr ? static_cast<DLTensor*>(args[i].v_ptr)
        : reinterpret_cast<DLTensor*>(reinterpret_cast<char*>(args[i].v_obj) + sizeof(TVMFFIObject));
  }}
  const float* a = static_cast<const float*>(t[0]->data);
  const float* b = static_cast<const float*>(t[1]->data);
  float* y = static_cast<float*>(t[2]->data);
  for (int i = 0; i < {n}; ++i) {{
    float s = a[i] * b[i];
    y[i] = s > 0 ? s : 0;
  }}
  return 0;
}}
"""


def generate(regions: Sequence[Region], target: Any) -> Generated:
    """Write one C++ function a region."""
    texts = [_SOURCE.format(symbol=r.symbol, n=math.prod(int(d) for d in r.function.ret_ty.shape)) for r in regions]
    return Generated(sources=tuple((f"tiny_{k}.cc", text) for k, text in enumerate(texts)))


def backend(worth: Any = None) -> Backend:
    """Take relu(a * b) of two tensors of the same shape, at least 8 elements."""

    def patterns(target: Any) -> list[Pattern]:
        a, b = wildcard(), wildcard()
        product = is_op("relax.multiply")(a, b)
        relu = is_op("relax.nn.relu")(product)

        def check(context: Any) -> bool:
            left, right = context.annotated_expr["a"].ty, context.annotated_expr["b"].ty
            shapes = [[int(d) for d in side.shape] for side in (left, right)]
            return shapes[0] == shapes[1] and math.prod(shapes[0]) >= 8 and str(left.dtype.dtype) == "float32"

        return [Pattern("mul_relu", relu, {"a": a, "b": b}, check)]

    return Backend("tiny", patterns, generate, worth)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    unregister_backend("tiny")


def graph(n: int = 16, places: int = 2) -> HCFG:
    """relu(x * y), then relu of that times x, with a subtraction between."""
    gb = GraphBuilder("net", {"x": tensor(n), "y": tensor(n)})
    x, y = gb.params
    for _ in range(places):
        product = gb.op(gb.entry, "aten.mul.Tensor", x, y)
        y = gb.op(gb.entry, "aten.sub.Tensor", gb.op(gb.entry, "aten.relu.default", product), 0.25)
    gb.leave(gb.entry, y)
    outline(gb.graph)
    return gb.graph


def run(lowered: Any, net: HCFG, n: int) -> list[str]:
    kernels = Kernels(lowered.library)
    inputs = [torch.randn(n), torch.randn(n)]
    want, _ = interpret(net, inputs)
    _, got = run_program(new_machine(lowered.program), kernels, *[t.numpy() for t in inputs])
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-6)
    return kernels.calls


def test_regions_go_to_the_backend_and_run() -> None:
    register_backend(backend())
    net = graph()
    lowered = lower(net, host_target())
    calls = run(lowered, net, 16)
    assert calls.count("tiny_region_0") == 2  # equal regions are generated once
    assert len(lowered.library.sources) == 1
    offload = lowered.stats.offload
    assert (offload["tiny"].regions, offload["tiny"].nodes) == (2, 4)
    assert lowered.stats.offload_ratio()[0] == pytest.approx(4 / 6)


def test_predicate_keeps_small_matches() -> None:
    register_backend(backend())
    net = graph(n=4)
    lowered = lower(net, host_target())
    assert not lowered.library.sources
    assert not any(c.startswith("tiny") for c in run(lowered, net, 4))


def test_cost_hook_sends_regions_back() -> None:
    register_backend(backend(worth=lambda region, target: region.nodes > 100))
    net = graph()
    lowered = lower(net, host_target())
    assert not lowered.library.sources
    assert lowered.stats.offload["tiny"].rejected == 2
    assert lowered.stats.offload["tvm"].nodes == 6
    assert not any(c.startswith("tiny") for c in run(lowered, net, 16))


def test_disabled_backend_takes_nothing() -> None:
    register_backend(backend())
    net = graph()
    assert not lower(net, host_target(), disabled_backends=["tiny"]).library.sources


def test_unknown_backend_is_an_error() -> None:
    with pytest.raises(UsageError, match="nonsense"):
        active_backends(["nonsense"])
