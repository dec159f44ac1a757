# Licensed under the Apache License, Version 2.0; see LICENSE.
"""ONNX models some of whose dimensions each call decides, and whose data decide others: against ONNX Runtime at several sizes."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dycl_tvm
from dycl_tvm import Dim
from dycl_tvm.cli.exit_codes import OK
from dycl_tvm.cli.main import main
from dycl_tvm.errors import InputError, UnsupportedError, UsageError
from dycl_tvm.frontend.onnx import open_model
from dycl_tvm.hcfg.nodes import HCFG, HostOp

sys.path.insert(0, str(Path(__file__).parent))

from onnx_models import model, run, same  # noqa: E402

F32 = np.float32
N = Dim("N", max=8)
SIZES = (1, 2, 5, 8)


def numbers(*shape: int) -> Any:
    return np.random.RandomState(sum(shape)).randn(*shape).astype(F32)


def checked(made: Any, feeds: list[dict[str, Any]], **options: Any) -> HCFG:
    """Stage a model as a program and compare every run with ONNX Runtime."""
    graph = dycl_tvm.stage(made, passes=False, **options)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in made.graph.output]
    for feed in feeds:
        found, _ = run(graph, feed)
        same(session.run(None, feed), [found] if len(names) == 1 else [found[n] for n in names])
    return graph


#: Models on an input ``x`` of shape [N, ...], with the rest of that shape.
MODELS = {
    "add (float[N,3] x) => (float[N,3] y) { y = Add(x, x) }": (3,),
    """flat (float[N,3,4] x) => (float[N,12] y, int64 n) {
      s = Shape(x)  zero = Constant<value = int64 {0}>()  n = Gather(s, zero)  axis = Constant<value = int64[1] {0}>()
      row = Unsqueeze(n, axis)  rest = Constant<value = int64[1] {-1}>()  shape = Concat<axis = 0>(row, rest)  y = Reshape(x, shape)
    }""": (3, 4),
    """sizes (float[N,2] x) => (int64[N] i, float[N,2] full, float[N,2] spread, float[A,2] most) {
      s = Shape<start = 0, end = 1>(x)  n = Squeeze(s)  zero = Constant<value = int64 {0}>()  one = Constant<value = int64 {1}>()
      i = Range(zero, n, one)  shape = Shape(x)  full = ConstantOfShape<value = float[1] {2.5}>(shape)
      f = Constant<value = float {1.0}>()  spread = Expand(f, shape)
      two = Constant<value = int64[1] {2}>()  none = Constant<value = int64[1] {0}>()
      half = Div(s, two)  end = Max(half, two)  least = Min(end, s)  most = Slice(x, none, least, none)
    }""": (2,),
    """choice (float[N,3] x) => (float[N,3] y) {
      t = ReduceSum<keepdims = 0>(x)  z = Constant<value = float {0.0}>()  c = Greater(t, z)
      y = If(c) <then_branch = g () => (float[N,3] a) { a = Relu(x) }, else_branch = h () => (float[N,3] b) { q = Neg(x) b = Add(q, t) }>
    }""": (3,),
    """longer (float[N,3] x) => (float[N,3] y) {
      s = Shape<start = 0, end = 1>(x)  four = Constant<value = int64[1] {4}>()  c = Greater(s, four)
      y = If(c) <then_branch = g () => (float[N,3] a) { a = Relu(x) }, else_branch = h () => (float[N,3] b) { b = Neg(x) }>
    }""": (3,),
    """rounds (float[N,3] x) => (float[N,3] y) {
      yes = Constant<value = bool {1}>()  most = Constant<value = int64 {20}>()  end = Constant<value = float {50.0}>()
      y = Loop(most, yes, x) <body = b (int64 i, bool on, float[N,3] s) => (bool go, float[N,3] t) {
        t = Add(s, s)  a = Abs(t)  q = ReduceSum<keepdims = 0>(a)  go = Less(q, end) }>
    }""": (3,),
    """rows (float[N,3] x) => (float[N,3] y) {
      s = Shape(x)  zero = Constant<value = int64 {0}>()  n = Gather(s, zero)  yes = Constant<value = bool {1}>()
      y = Loop(n, yes) <body = b (int64 i, bool on) => (bool go, float[3] r) { go = Identity(on)  row = Gather(x, i)  r = Relu(row) }>
    }""": (3,),
    """scanned (float[N,3] x) => (float[3] h, float[3,N] ys) {
      first = Constant<value = float[3] {1.0, 2.0, 3.0}>()
      h, ys = Scan<num_scan_inputs = 1, scan_input_directions = [1], scan_output_axes = [1],
        body = b (float[3] h0, float[3] r) => (float[3] h1, float[3] o) { s = Add(h0, r)  h1 = Tanh(s)  o = Mul(h1, r) }>(first, x)
    }""": (3,),
    """slices (float[N,8] x) => (float[A,8] a, float[B,8] b, float[N,4] c, float[N,8] d, float[E,8] e) {
      one = Constant<value = int64[1] {1}>()  last = Constant<value = int64[1] {-1}>()  zero = Constant<value = int64[1] {0}>()
      two = Constant<value = int64[1] {2}>()  big = Constant<value = int64[1] {9223372036854775807}>()
      low = Constant<value = int64[1] {-9223372036854775807}>()
      a = Slice(x, one, big, zero)  b = Slice(x, zero, last, zero)  c = Slice(x, one, big, one, two)
      d = Slice(x, last, low, zero, last)  e = Slice(x, zero, big, zero, two)
    }""": (8,),
    """found (float[N,3] x) => (int64[2,K] at, float[K,3] rows, float[J] each) {
      z = Constant<value = float {0.0}>()  c = Greater(x, z)  at = NonZero(c)
      one = Constant<value = int64[1] {1}>()  t = ReduceSum<keepdims = 0>(x, one)  k = Greater(t, z)  rows = Compress<axis = 0>(x, k)
      r = Round(x)  each = Unique(r)
    }""": (3,),
    """images (float[N,2,4,4] x) => (float[N,2,8,8] a, float[N,2,2,2] b, float[N,2,1,1] c, float[N,2,6,6] e) {
      none = Constant<value = float[0] {}>()  by = Constant<value = float[4] {1.0, 1.0, 2.0, 2.0}>()
      a = Resize<mode = "linear">(x, none, by)
      b = AveragePool<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]>(x)  c = GlobalMaxPool(x)
      head = Shape<start = 0, end = 2>(x)  hw = Constant<value = int64[2] {6, 6}>()  to = Concat<axis = 0>(head, hw)
      e = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(x, , , to)
    }""": (2, 4, 4),
    """sequence (float[N,4] x) => (float[A,4] y, int64 k, float[N,2] b) {
      n = Neg(x)  s = SequenceConstruct(x, n)  y = ConcatFromSequence<axis = 0>(s)  k = SequenceLength(s)
      sizes = Constant<value = int64[2] {2, 2}>()  parts = SplitToSequence<axis = 1>(x, sizes)
      one = Constant<value = int64 {1}>()  b = SequenceAt(parts, one)
    }""": (4,),
    """quantised (float[N,4] x) => (float[N,3] y, uint8[N,4] q) {
      s = Constant<value = float {0.05}>()  z = Constant<value = uint8 {128}>()  q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
      w = Constant<value = int8[4,3] {1, -5, 100, -128, 127, 3, 7, 9, -30, -40, 50, 60}>()
      ws = Constant<value = float[3] {0.5, 0.25, 1.0}>()
      wz = Constant<value = int8[3] {0, 0, 0}>()  wd = DequantizeLinear<axis = 1>(w, ws, wz)
      m = MatMul(d, wd)  r = Relu(m)  c = Constant<value = uint8[3] {0, 1, 2}>()
      q2 = QuantizeLinear<axis = 1>(r, ws, c)  y = DequantizeLinear<axis = 1>(q2, ws, c)
    }""": (4,),
}  # fmt: skip


@pytest.mark.parametrize("text", MODELS, ids=lambda text: text.split()[0])
def test_models_of_several_sizes(text: str) -> None:
    checked(model(text), [{"x": numbers(n, *MODELS[text])} for n in SIZES], dynamic_shapes={"N": N})


def test_sizes_stay_numbers() -> None:
    """What exporters compute of shapes is arithmetic of the host, or nothing at all."""
    text = next(t for t in MODELS if t.startswith("flat")).replace(", int64 n)", ")")
    graph = dycl_tvm.stage(model(text), dynamic_shapes={"x": {0: N}})
    assert [op.op for sub in graph.sub_dnns() for op in sub.ops] == ["aten.view.default"]
    assert not any(isinstance(step, HostOp) for step in graph.entry.steps)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).view(x.shape[0], -1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.outer, self.norm = nn.Embedding(11, 16), nn.Linear(16, 48), nn.Linear(16, 11), nn.LayerNorm(16)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        b, t, d = x.shape
        q, k, v = self.inner(self.norm(x)).view(b, t, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.outer(x + y.transpose(1, 2).reshape(b, t, d))


class Recurrent(nn.Module):
    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.net = getattr(nn, kind)(5, 6, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[0][:, -1]


def exported(net: nn.Module, x: Tensor, dim: int, dynamo: bool = False) -> Any:
    """Return what PyTorch's exporter writes of a network one of whose dimensions is ``N``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            sizes = ({dim: torch.export.Dim("N", min=1, max=8)},)
            program = torch.onnx.export(net.eval(), (x,), dynamo=True, dynamic_shapes=sizes, input_names=["x"], verbose=False)
            assert program is not None
            return program.model_proto
        file = io.BytesIO()
        torch.onnx.export(net.eval(), (x,), file, dynamo=False, dynamic_axes={"x": {dim: "N"}}, input_names=["x"])
    return onnx.load_from_string(file.getvalue())


@pytest.mark.parametrize(
    ("net", "dim", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4), nn.Softmax(-1)), 0, (4, 6)),
        (Convolutions, 0, (4, 3, 8, 8)),
        (Attention, 0, (4, 5)),
        (Attention, 1, (2, 4)),
        (lambda: Recurrent("LSTM", bidirectional=True), 1, (2, 4, 5)),
        (lambda: Recurrent("GRU"), 1, (2, 4, 5)),
        (lambda: Recurrent("RNN"), 0, (4, 3, 5)),
    ],
    ids=["mlp", "convolutions", "attention", "attention_of_any_length", "lstm", "gru", "rnn"],
)
def test_what_exporters_write(net: Callable[[], nn.Module], dim: int, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    made = net()

    def example(n: int) -> Tensor:
        of = [n if d == dim else size for d, size in enumerate(shape)]
        return torch.randint(0, 11, of) if isinstance(made, Attention) else torch.randn(of)

    checked(exported(made, example(4), dim), [{"x": example(n).numpy()} for n in SIZES], dynamic_shapes={"N": N})


def test_a_batch_of_sequences_of_any_length() -> None:
    file, example = io.BytesIO(), torch.zeros(2, 3, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        axes = {"x": {0: "B", 1: "T"}}
        torch.onnx.export(Attention().eval(), (example,), file, dynamo=False, dynamic_axes=axes, input_names=["x"])
    feeds = [{"x": np.random.RandomState(b * t).randint(0, 11, (b, t))} for b, t in ((1, 1), (3, 5), (4, 8), (2, 7))]
    checked(onnx.load_from_string(file.getvalue()), feeds, dynamic_shapes={"B": Dim("B", max=4), "T": Dim("T", max=8)})


def test_what_the_exporter_of_programs_writes() -> None:
    made = exported(Convolutions(), torch.randn(4, 3, 8, 8), 0, dynamo=True)
    checked(made, [{"x": numbers(n, 3, 8, 8)} for n in SIZES], dynamic_shapes={"x": {0: N}})


CHOICE = next(t for t in MODELS if t.startswith("choice"))


def test_a_library_of_such_a_model(tmp_path: Path) -> None:
    made = model(CHOICE)
    onnx.save(made, tmp_path / "model.onnx")
    library = tmp_path / "model.so"
    assert main(["compile", str(tmp_path / "model.onnx"), "-i", "x=N<=8x3", "-o", str(library), "-q", "--embed-params"]) == OK
    module, session = dycl_tvm.load(library), onnxruntime.InferenceSession(made.SerializeToString())
    for n in SIZES:
        for x in (abs(numbers(n, 3)), -abs(numbers(n, 3))):
            same(session.run(None, {"x": x}), [np.asarray(module(x=x))])
    with pytest.raises(InputError, match=r"'x': dimension 0 is 9, expected N = 1 to 8"):
        module(numbers(9, 3))


def test_a_bound_for_all_that_the_model_leaves_open() -> None:
    body = "axes = Constant<value_ints: ints = [1]>() u = Unsqueeze(w, axes) y = Mul(x, u)"
    made = model(f"two (float[N,M,3] x, float[N,3] w) => (float[N,M,3] y) {{ {body} }}")
    feeds = [{"x": numbers(n, m, 3), "w": numbers(n, 3)} for n, m in ((1, 1), (2, 8), (8, 3))]
    graph = checked(made, feeds, max_length=8)
    assert [(size.name, size.least, size.most) for size in graph.sizes] == [("N", 1, 8), ("M", 1, 8)]
    with pytest.raises(InputError, match="dimension 1 is 9, expected M = 1 to 8"):
        run(graph, {"x": numbers(2, 9, 3), "w": numbers(2, 3)})
    fixed = dycl_tvm.stage(made, input_shapes={"M": 5}, max_length=8)
    assert [size.name for size in fixed.sizes] == ["N"] and fixed.entry.params[0].type.shape == (8, 5, 3)
    with pytest.raises(UsageError, match="has no size; .* or max_length=8 for all such dimensions"):
        dycl_tvm.stage(made)


def test_names_that_python_has_not() -> None:
    text = "range (float[N,3] x, float[N,3] w) => (float[N,3] y) { forward = Add(x, w)  y = Mul(forward, training) }"
    made = model(text, weights={"training": numbers(3)})
    for old, new in (("x", "input.1"), ("w", "1/in")):
        value = next(i for i in made.graph.input if i.name == old)
        value.name = new
        made.graph.node[0].input[:] = [new if i == old else i for i in made.graph.node[0].input]
    graph = checked(made, [{"input.1": numbers(n, 3), "1/in": numbers(n, 3)} for n in SIZES], dynamic_shapes={"N": N})
    assert graph.input_names == ["input.1", "1/in"] and [p.name for p in graph.entry.params] == ["input.1", "1/in", "N"]


def test_sizes_of_one_symbol_agree() -> None:
    made = model("two (float[N,3] x, float[N,3] w) => (float[N,3] y) { y = Add(x, w) }")
    graph = dycl_tvm.stage(made, dynamic_shapes={"x": {0: N}})
    with pytest.raises(InputError, match="dimension 0 is 3, expected 2"):
        run(graph, {"x": numbers(2, 3), "w": numbers(3, 3)})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, r"or a bound, up to which each call decides: dynamic_shapes=\{'N': dycl_tvm.Dim\('N', max=8\)\}"),
        ({"Q": N}, "dynamic_shapes has 'Q', which is neither an input nor a symbolic dimension"),
        ({"N": 3}, r"dynamic_shapes says 3 of 'N'; give the bounds of a size by its symbol"),
        ({"x": {1: N}}, "dimension 1 of the input 'x', which is 3 in the model"),
        ({"x": {5: N}}, "names dimension 5 of the input 'x', which has 2"),
        ({"x": N}, r"dynamic_shapes\['x'\] is N with N from 1 to 8; give the bounds"),
        ([N], "for an ONNX model it is a dict"),
    ],
)
def test_bounds_that_make_no_sense(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        dycl_tvm.stage(model(CHOICE), dynamic_shapes=given)


def test_a_refusal_shows_the_node() -> None:
    made = model("odd (float[N,3] x, int64[4] p) => (float[A,B] y) { y = Pad(x, p) }")
    with pytest.raises(UnsupportedError, match="that nothing bounds") as error:
        dycl_tvm.stage(made, dynamic_shapes={"N": N})
    assert "y = Pad(x, p)" in str(error.value)


@pytest.mark.parametrize(("start", "end", "step"), [(-1, -3, -1), (-2, 0, -1), (4, 1, -1), (2**40, -5, -3), (-1, -(2**62), -2)])
def test_slices_that_go_backwards(start: int, end: int, step: int) -> None:
    weights = {"start": np.array([start]), "end": np.array([end]), "axis": np.array([0]), "step": np.array([step])}
    made = model("odd (float[N,3] x) => (float[A,3] y) { y = Slice(x, start, end, axis, step) }", weights=weights)
    checked(made, [{"x": numbers(n, 3)} for n in SIZES], dynamic_shapes={"N": N})


#: Models of images of any height and width.
IMAGES = {
    "windows": """MaxPool<kernel_shape = [3,3], strides = [2,2], ceil_mode = 1, pads = [0,0,1,1]>(x)
        b = AveragePool<kernel_shape = [3,2], strides = [2,1], auto_pad = "SAME_LOWER">(x)
        c = Conv<auto_pad = "SAME_UPPER", strides = [2,3]>(x, w)""",
    "resizes": """Resize<mode = "cubic", coordinate_transformation_mode = "half_pixel">(x, , by)
        b = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel_symmetric">(x, , by)
        to = Constant<value = int64[2] {5, 3}>()
        c = Resize<mode = "cubic", axes = [2, 3], coordinate_transformation_mode = "align_corners">(x, , , to)""",
    "padding": """Pad<mode = "reflect">(x, two)
        hw = Shape<start = 2, end = 4>(x)  four = Constant<value = int64[2] {4, 4}>()  less = Neg(hw)  rest = Mod(less, four)
        none = Constant<value = int64[2] {0, 0}>()  row = Concat<axis = 0>(none, rest)  pairs = Constant<value = int64[2] {2, 2}>()
        both = Reshape(row, pairs)  turned = Transpose<perm = [0, 1]>(both)  flat = Constant<value = int64[1] {-1}>()
        pads = Reshape(turned, flat)  axes = Constant<value = int64[2] {2, 3}>()  b = Pad(x, pads, , axes)  c = Relu(b)""",
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_of_any_size(name: str) -> None:
    weights = {"w": numbers(3, 2, 3, 3), "by": np.array([1, 1, 0.6, 1.7], F32), "two": np.array([0, 0, 2, 1, 0, 0, 1, 2])}
    text = f"images (float[1,2,H,W] x) => (float[1,C,A,B] a, float[1,D,E,F] b, float[1,G,I,J] c) {{ a = {IMAGES[name]} }}"
    feeds = [{"x": numbers(1, 2, h, w)} for h, w in ((3, 3), (5, 8), (8, 4), (6, 7))]
    checked(model(text, weights=weights), feeds, dynamic_shapes={"H": Dim("H", min=3, max=8), "W": Dim("W", min=3, max=8)})


def test_steps_that_no_network_of_pytorch_has() -> None:
    """Sequences of several lengths, and gates of other kinds, over any number of steps."""
    weights = {"w": numbers(2, 12, 3), "r": numbers(2, 12, 4), "gw": numbers(1, 12, 3), "gr": numbers(1, 12, 4)}
    weights |= {"lw": numbers(1, 16, 3), "lr": numbers(1, 16, 4), "p": numbers(1, 12)}
    text = """steps (float[T,2,3] x, int32[2] n) => (float[T,2,2,4] a, float[2,2,4] h, float[T,1,2,4] b, float[1,2,4] c) {
      a, h = GRU<direction = "bidirectional", hidden_size = 4>(x, w, r, , n)
      b, d, c = LSTM<hidden_size = 4, direction = "reverse">(x, lw, lr, , , , , p)
    }"""
    feeds = [{"x": numbers(t, 2, 3), "n": np.array([t, max(t - 2, 1)], np.int32)} for t in SIZES]
    checked(model(text, weights=weights), feeds, dynamic_shapes={"T": Dim("T", max=8)})


def test_a_function_of_onnx_that_leaves_inputs_out() -> None:
    """ONNX's own inliner does not write such a call out."""
    text = """cache (float[B,2,T,4] q, float[B,2,T,4] k, float[B,2,T,4] v, float[B,2,P,4] a, float[B,2,P,4] b)
      => (float[B,2,T,4] y, float[B,2,S,4] c, float[B,2,S,4] d) { y, c, d = Attention<is_causal = 1>(q, k, v, , a, b) }"""
    feeds = []
    for batch, t, past in ((1, 1, 5), (2, 3, 1), (3, 4, 2)):
        feeds.append({**{n: numbers(batch, 2, t, 4) for n in "qkv"}, **{n: numbers(batch, 2, past, 4) for n in "ab"}})
    sizes = {"B": Dim("B", max=3), "T": Dim("T", max=4), "P": Dim("P", max=5)}
    checked(model(text, opset=23), feeds, dynamic_shapes=sizes)


def test_lengths_that_the_data_decide_need_no_bounds() -> None:
    """A model of fixed sizes in which a shape follows from data is a program too."""
    text = next(t for t in MODELS if t.startswith("found")).replace("N,3", "5,3")
    feeds = [{"x": numbers(5, 3)}, {"x": -abs(numbers(5, 3))}, {"x": abs(numbers(5, 3))}]
    checked(model(text), feeds)


@pytest.mark.parametrize("center", [0, 1])
def test_boxes_that_are_suppressed(center: int) -> None:
    text = """boxes (float[N,7,4] b, float[N,2,7] s) => (int64[K,3] y) {
      most = Constant<value = int64[1] {3}>()  overlap = Constant<value = float[1] {0.3}>()  least = Constant<value = float[1] {0.2}>()
      y = NonMaxSuppression<center_point_box = CENTER>(b, s, most, overlap, least)
    }""".replace("CENTER", str(center))
    feeds = []
    for n in (1, 2, 3):
        at, extent = np.random.RandomState(n).rand(2, n, 7, 2)
        boxes = np.concatenate([at, extent * 0.6 + (0 if center else at)], 2)
        feeds.append({"b": boxes.astype(F32), "s": np.random.RandomState(n).rand(n, 2, 7).astype(F32)})
    checked(model(text), feeds, dynamic_shapes={"N": Dim("N", max=3)})


def test_the_program_of_a_model() -> None:
    text = open_model(model(CHOICE), None, None, {"N": N}).program.text
    assert text.splitlines()[:4] == [
        "def choice(x):",
        "    t, = ReduceSum(x)",
        "    c, = Greater(t, weights.z)",
        "    if holds(c):",
    ]


def test_sizes_with_a_path_of_their_own() -> None:
    text = next(t for t in MODELS if t.startswith("flat"))
    feeds = [{"x": numbers(n, *MODELS[text])} for n in SIZES]
    graph = checked(model(text), feeds, dynamic_shapes={"N": N}, specialize=[1, {"N": 3}])
    assert graph.special_sizes == [{"N": (1, 1)}, {"N": (3, 3)}]
    with pytest.raises(UsageError, match="no input has a size that calls decide"):
        dycl_tvm.stage(model(text), input_shapes={"N": 3}, specialize=[3])
