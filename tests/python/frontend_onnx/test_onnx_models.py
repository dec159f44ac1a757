# Licensed under the Apache License, Version 2.0; see LICENSE.
"""ONNX models as files: shapes that are open, external data, operator sets, functions, and what is refused with which words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import dycl_tvm
from dycl_tvm.errors import UnsupportedError, UsageError
from dycl_tvm.frontend.onnx import NeedsValue, stage_onnx
from dycl_tvm.hcfg.nodes import TensorOp

sys.path.insert(0, str(Path(__file__).parent))

from onnx_models import check, model, run, same  # noqa: E402

F32 = np.float32

OPEN = "open (float[batch,3] x, float[batch,3] w) => (float[batch,3] y) { y = Add (x, w) }"


def test_symbolic_dimension_by_symbol_and_by_input() -> None:
    made = model(OPEN)
    for shapes in ({"batch": 2}, {"x": (2, 3), "w": (2, 3)}):
        assert [str(v.type) for v in stage_onnx(made, input_shapes=shapes).inputs] == ["float32[2, 3]"] * 2


@pytest.mark.parametrize(
    "shapes, words",
    [
        (None, r"dimension 0 of the input 'x' \(batch, 3\) has no size.*input_shapes=\{'x': \(1, 3\)\}, or its symbol.*'batch': 1"),
        ({"x": (2, 4)}, "size 4 in dimension 1, the model has 3"),
        ({"x": (2,)}, "has 1 dimensions, the model has 2"),
        ({"z": (2, 3)}, "neither an input nor a symbolic dimension.*inputs: x, w; symbolic dimensions: batch"),
        ({"batch": -1}, "give one size|has no size"),
    ],
)
def test_open_shapes_are_refused_with_advice(shapes: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        stage_onnx(model(OPEN), input_shapes=shapes)


def test_shape_arithmetic_disappears() -> None:
    made = model("""flat (float[2,3,4] x) => (float[N,M] y) {
      s = Shape (x)
      zero = Constant <value = int64 {0}> ()
      n = Gather (s, zero)
      axis = Constant <value = int64[1] {0}> ()
      row = Unsqueeze (n, axis)
      rest = Constant <value = int64[1] {-1}> ()
      shape = Concat <axis = 0> (row, rest)
      y = Reshape (x, shape)
    }""")
    graph, _ = check(made, [{"x": np.arange(24, dtype=F32).reshape(2, 3, 4)}])
    assert [s.op for s in graph.entry.steps if isinstance(s, TensorOp)] == ["aten.reshape.default"]


def test_external_data(tmp_path: Path) -> None:
    weight = np.arange(4000, dtype=F32).reshape(4, 1000)
    made = model("ext (float[1,4] x) => (float[1,1000] y) { y = MatMul (x, weight) }", weights={"weight": weight})
    path = tmp_path / "model.onnx"
    onnx.save_model(made, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (tmp_path / "weights.bin").stat().st_size >= weight.nbytes
    artifact = dycl_tvm.build(str(path), target="llvm")
    module = dycl_tvm.load(artifact.export_library(tmp_path / "model.so", embed_params=True))
    x = np.ones((1, 4), F32)
    np.testing.assert_allclose(np.asarray(module(x)), x @ weight)
    np.testing.assert_allclose(np.asarray(module(x=x)), x @ weight)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises((UsageError, UnsupportedError), match=r"weights\.bin"):
        dycl_tvm.build(path)


def test_no_such_file_and_no_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        dycl_tvm.build(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(UsageError, match="is not an ONNX model|empty graph"):
        dycl_tvm.build(tmp_path / "bad.onnx")


def test_build_says_what_does_not_fit() -> None:
    with pytest.raises(UsageError, match="an ONNX model says itself what its inputs are"):
        dycl_tvm.build(model(OPEN), (np.zeros((1, 3), F32),))
    with pytest.raises(UsageError, match="input_values is for ONNX models"):
        dycl_tvm.build(lambda x: x, (np.zeros(1, F32),), input_values={"x": 1})


def test_unknown_operator_names_node_and_type() -> None:
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "my.ops" : 1]>\ng (float[2] x) => (float[2] y) { y = my.ops.Wobble (x) }'
    )
    made.graph.node[0].name = "wobble_7"
    with pytest.raises(UnsupportedError, match=r"operator Wobble of the domain 'my.ops' \(node 'wobble_7'\) is not supported(.|\n)*Where"):
        stage_onnx(made)


def test_functions_of_the_model() -> None:
    made = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18, "my.ops" : 1]>
      g (float[2] x) => (float[2] y) { y = my.ops.scale <factor = 3.0> (x) }
      <domain: "my.ops", opset_import: ["" : 18]>
      scale <factor> (a) => (b) { f = Constant <value_float : float = @factor> () b = Mul (a, f) }""")
    same([np.array([3, 6], F32)], [run(stage_onnx(made), {"x": np.array([1, 2], F32)})[0]])


def test_shape_that_follows_from_values_is_refused_unless_constant() -> None:
    text = "nz (float[4] x) => (int64[1,N] y) { y = NonZero (x) }"
    with pytest.raises(NeedsValue, match=r"NonZero: its input, from whose values the shape(.|\n)*input_values=\{'x': \.\.\.\}") as caught:
        stage_onnx(model(text))
    assert caught.value.inputs == ("x",)
    assert caught.value.origin is not None
    assert "NonZero(x)" in caught.value.origin.code
    check(model(text), [{"x": np.array([0, 1, 0, 2], F32)}], input_values={"x": np.array([0, 1, 0, 2], F32)})


def test_random_operators_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="RandomNormalLike"):
        stage_onnx(model("r (float[2] x) => (float[2] y) { y = RandomNormalLike (x) }"))


SOFTMAX = "s (float[2,3,4] x) => (float[2,3,4] y) {{ y = Softmax <axis = 1> (x) }}"
SQUEEZE = {11: "q (float[1,3] x) => (float[3] y) { y = Squeeze <axes = [0]> (x) }",
           13: "q (float[1,3] x) => (float[3] y) { a = Constant <value_ints = [0]> () y = Squeeze (x, a) }"}  # fmt: skip


@pytest.mark.parametrize("opset", [11, 12, 13, 18, 21, onnx.defs.onnx_opset_version()])
def test_operator_sets(opset: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(F32)
    axes = (1, 2) if opset < 13 else (1,)
    e = np.exp(x - x.max(axis=axes, keepdims=True))
    found, _ = run(stage_onnx(model(SOFTMAX.format(), opset)), {"x": x})
    np.testing.assert_allclose(found.numpy(), e / e.sum(axis=axes, keepdims=True), rtol=1e-5)
    check(model(SQUEEZE[11 if opset < 13 else 13], opset), [{"x": x[:1, :, 0]}])


def test_operator_set_of_the_future_is_refused() -> None:
    made = model(OPEN)
    made.opset_import[0].version = 99
    with pytest.raises(UsageError, match="operator set 99; 7 to"):
        stage_onnx(made, input_shapes={"batch": 1})


def test_weights_of_unrolled_copies_are_shared() -> None:
    made = model("""twice (float[1,4] x) => (float[1,4] y) {
      n = Constant <value = int64 {2}> ()
      y = Loop (n, , x) <body = step (int64 i, bool go, float[1,4] a) => (bool on, float[1,4] b) {
        b = Gemm <transB = 1> (a, w)
        on = Identity (go)
      }>
    }""", weights={"w": np.eye(4, dtype=F32) * 2})  # fmt: skip
    graph = stage_onnx(made)
    assert len(graph.blocks) == 1
    assert [c.name for c in graph.constants()] == ["w"]
    same([np.full((1, 4), 4, F32)], [run(graph, {"x": np.ones((1, 4), F32)})[0]])


def test_several_outputs_are_a_dict_in_their_order() -> None:
    made = model("two (float[2] x) => (float[2] second, float[2] first) { first = Neg (x) second = Abs (x) }")
    found, _ = run(stage_onnx(made), {"x": np.array([1, -2], F32)})
    assert list(found) == ["second", "first"]


def test_sequence_and_optional_inputs() -> None:
    made = model("s (seq(float[N]) xs, optional(float[2]) o) => (float[M] y, bool h) "
                 "{ y = ConcatFromSequence <axis = 0> (xs) h = OptionalHasElement (o) }")  # fmt: skip
    graph = stage_onnx(made, input_shapes={"xs": [(2,), (1,)], "o": None})
    found, _ = run(graph, {"xs": [np.array([1, 2], F32), np.array([3], F32)], "o": None})
    assert found["y"].tolist() == [1, 2, 3]
    assert not bool(found["h"])
    with pytest.raises(UsageError, match="'xs' is a sequence; say how long"):
        stage_onnx(made, input_shapes={"o": None})


def test_indices_below_the_range_are_not_counted_from_the_end_twice() -> None:
    """Nor is one that is out of the range of its dimension and within the flattened tensor another element's."""
    x, one = np.arange(12, dtype=F32).reshape(3, 4), np.ones(1, dtype=F32)
    gather = model("gather (float[3,4] x, int64[1,2] i) => (float[1] y) { y = GatherND (x, i) }")
    scatters = [
        model(f"scatter (float[3,4] x, int64[1,2] i, float[1] u) => (float[3,4] y) {{ y = ScatterND <reduction = {how}> (x, i, u) }}")
        for how in ('"none"', '"add"', '"mul"')
    ]
    inside = [{"x": x, "i": np.array([at])} for at in ([2, 3], [0, 0], [-3, -4])]
    check(gather, inside)
    for scatter in scatters:
        check(scatter, [{**feed, "u": one * 5} for feed in inside])
    for at in ([-4, 0], [0, -5], [0, 4], [3, 0], [1, -5]):
        feed = {"x": x, "i": np.array([at])}
        with pytest.raises(IndexError):
            run(stage_onnx(gather), feed)
        for scatter in scatters:
            with pytest.raises(IndexError):
                run(stage_onnx(scatter), {**feed, "u": one})


@pytest.mark.parametrize("a, b, out", [("4", "4,5", "[5]"), ("4", "2,4,5", "[2,5]"), ("3,4", "4", "[3]"), ("4", "4", "")])
def test_products_with_vectors(a: str, b: str, out: str) -> None:
    made = model(f"product (float[{a}] x, float[{b}] w) => (float{out} y) {{ y = MatMul (x, w) }}")
    generator = np.random.default_rng(0)
    shapes = {"x": a, "w": b}
    check(made, [{n: generator.normal(size=tuple(map(int, s.split(",")))).astype(F32) for n, s in shapes.items()}])
