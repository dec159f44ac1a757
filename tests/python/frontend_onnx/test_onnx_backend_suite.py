# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Cases of ONNX's own suite: all of control flow in both engines, a part of the others. `make onnx-suite` runs the whole."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from dycl_tvm.frontend.onnx.backend import CompiledBackend, InterpretedBackend

sys.path.insert(0, str(Path(__file__).parent))

import node_suite  # noqa: E402
import open_suite  # noqa: E402

CONTROL = node_suite.control_cases()
#: Every so many of the other cases run in `make test`.
STEP = 15
#: What the others may be refused for: element types, and the operators that docs/front-ends.md lists.
DOCUMENTED = re.compile(
    r"has elements of |: the type |ImageDecoder|TfIdfVectorizer|TreeEnsemble|RandomUniformLike"
    r"|^BitCast|^Dropout: in training|uses operator set 1;"
)


def test_there_are_cases_of_every_control_flow_operator() -> None:
    found = {n.op_type for name in CONTROL for n in node_suite.cases()[name].model.graph.node}
    assert found >= node_suite.CONTROL
    assert len(CONTROL) >= 42


@pytest.mark.parametrize("name", CONTROL)
def test_control_flow_interpreted(name: str) -> None:
    node_suite.run_case(name, InterpretedBackend)


#: Cases that are many of a kind, and which of each kind are compiled here; all are compiled by `make onnx-suite ONNX_ARGS=--compiled`.
MANY = re.compile(r"linear_attention|affine|sequence_map_.*_expanded")
CHOSEN = re.compile(r"delta_gqa|2d_align|sequence_map_add_1_sequence_1_tensor")


@pytest.mark.parametrize("name", [n for n in CONTROL if not MANY.search(n) or CHOSEN.search(n)])
def test_control_flow_compiled(name: str) -> None:
    node_suite.run_case(name, CompiledBackend)


def test_other_cases_interpreted() -> None:
    names = [name for name in node_suite.cases() if name not in CONTROL][::STEP]
    results = {name: node_suite.result_of(name, InterpretedBackend) for name in names}
    assert {name: r.reason for name, r in results.items() if r.status == "wrong"} == {}
    refused = {name: r.reason for name, r in results.items() if r.status == "refused"}
    assert {name: reason for name, reason in refused.items() if not DOCUMENTED.search(reason)} == {}
    assert len(refused) < len(names) / 5


@pytest.mark.parametrize(
    "name",
    ["test_lstm_with_peepholes", "test_gemm_all_attributes", "test_conv_with_strides_and_asymmetric_padding", "test_slice_neg_steps",
     "test_resize_upsample_scales_linear", "test_layer_normalization_4d_axis1", "test_qlinearmatmul_2D_uint8_float32", "test_top_k",
     "test_sce_mean",
     "test_optional_has_element_empty_optional_input", "test_det_nd", "test_einsum_batch_matmul", "test_attention_4d_causal"],
)  # fmt: skip
def test_other_cases_compiled(name: str) -> None:
    node_suite.run_case(name, CompiledBackend)


#: Cases with open dimensions, of unlike kinds; `make onnx-suite ONNX_ARGS=--open` runs all.
OPEN = ["test_add_bcast", "test_concat_3d_axis_negative_2", "test_maxpool_2d_ceil", "test_resize_upsample_scales_cubic_align_corners",
        "test_dynamicquantizelinear", "test_attention_4d_causal_with_past_and_present", "test_affine_grid_2d_expanded",
        "test_lstm_with_peepholes", "test_slice_neg_steps"]  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
def test_open_dimensions(name: str) -> None:
    found = list(open_suite.results([name]))
    assert found and {str(v): v.reason for v in found if v.status != "right"} == {}


def test_backend_runs_one_node() -> None:
    node = onnx.helper.make_node("Gemm", ["a", "b"], ["y"], transB=1)
    a, b = np.ones((2, 3), np.float32), np.full((4, 3), 2, np.float32)
    (found,) = InterpretedBackend.run_node(node, [a, b])
    np.testing.assert_allclose(found, a @ b.T)
    assert InterpretedBackend.supports_device("CPU")
    assert not InterpretedBackend.supports_device("CUDA")
