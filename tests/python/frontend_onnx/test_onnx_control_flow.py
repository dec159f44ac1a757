# Licensed under the Apache License, Version 2.0; see LICENSE.
"""If, Loop, Scan and sequences as exporters write them, against ONNX's reference evaluator on every path."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dycl_tvm
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.onnx import NeedsValue, stage_onnx
from dycl_tvm.hcfg.analysis import natural_loops
from dycl_tvm.passes import run_passes

sys.path.insert(0, str(Path(__file__).parent))

from onnx_models import check, model, run, same  # noqa: E402

F32 = np.float32


def rng(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


DECODER = """
decoder (float[1,8] h0, float[1,8] c0, int64[1] first) => (float[1,8] h, int64[N,1] words) {
  most = Constant <value = int64 {12}> ()
  yes = Constant <value = bool {1}> ()
  h, c, word, words = Loop (most, yes, h0, c0, first) <body = step (int64 i, bool go, float[1,8] hp, float[1,8] cp, int64[1] wp)
      => (bool on, float[1,8] hn, float[1,8] cn, int64[1] wn, int64[1] out) {
    e = Gather (table, wp)
    x = Unsqueeze (e, zero)
    hq = Unsqueeze (hp, zero)
    cq = Unsqueeze (cp, zero)
    y, hy, cy = LSTM <hidden_size = 8> (x, W, R, B, , hq, cq)
    hn = Squeeze (hy, zero)
    cn = Squeeze (cy, zero)
    scores = Gemm (hn, V, b)
    wn = ArgMax <axis = 1, keepdims = 0> (scores)
    out = Identity (wn)
    ends = Equal (wn, end)
    one = Squeeze (ends, zero)
    on = Not (one)
  }>
}
"""


def decoder() -> Any:
    weights = {
        "table": rng(6, 4, seed=1),
        "W": rng(1, 32, 4, seed=2), "R": rng(1, 32, 8, seed=3), "B": rng(1, 64, seed=4), "V": 2 * rng(8, 6, seed=5),
        "b": np.zeros(6, F32), "zero": np.array([0]), "end": np.array([0]),
    }  # fmt: skip
    return model(DECODER, weights=weights)


def decoder_feeds(count: int) -> list[dict[str, Any]]:
    return [{"h0": 3 * rng(1, 8, seed=s), "c0": 3 * rng(1, 8, seed=s + 99), "first": np.array([s % 6])} for s in range(count)]


def test_lstm_decoder_gives_sentences_of_their_own_length() -> None:
    graph, _ = check(decoder(), decoder_feeds(40))
    assert len(natural_loops(graph).loops) == 1, "the decoder's steps are one loop, not copies"
    lengths = {run(graph, f)[0]["words"].shape[0] for f in decoder_feeds(40)}
    assert len(lengths) >= 4


def test_lstm_decoder_compiled(tmp_path: Path) -> None:
    artifact = dycl_tvm.build(decoder())
    module = dycl_tvm.load(artifact.export_library(tmp_path / "model.so", embed_params=True))
    graph = stage_onnx(decoder())
    lengths = set()
    for feed in decoder_feeds(20):
        want, _ = run(graph, feed)
        have = module(**feed)
        assert list(have) == ["h", "words"]
        same([want["h"].numpy(), want["words"].numpy()], [np.asarray(have["h"]), np.asarray(have["words"])])
        lengths.add(np.asarray(have["words"]).shape)
    assert len(lengths) >= 3


NMS = """
nms (float[6,4] boxes, float[6] scores) => (int64[3] kept, float[6] left) {
  zeros = Constant <value = int64[3] {-1, -1, -1}> ()
  most = Constant <value = int64 {3}> ()
  yes = Constant <value = bool {1}> ()
  zero = Constant <value = int64[1] {0}> ()
  kept, left = Loop (most, yes, zeros, scores) <body = pick (int64 i, bool go, int64[3] k, float[6] s)
      => (bool on, int64[3] kn, float[6] sn) {
    best = ArgMax <axis = 0> (s)
    at = Unsqueeze (i, zero)
    kn = ScatterElements (k, at, best)
    box = Gather (boxes, best)
    low = Constant <value_ints = [0, 1]> ()
    high = Constant <value_ints = [2, 3]> ()
    a0 = Gather <axis = 1> (boxes, low)
    a1 = Gather <axis = 1> (boxes, high)
    b0 = Gather <axis = 1> (box, low)
    b1 = Gather <axis = 1> (box, high)
    i0 = Max (a0, b0)
    i1 = Min (a1, b1)
    side = Sub (i1, i0)
    none = Constant <value = float {0.0}> ()
    clipped = Max (side, none)
    one = Constant <value = int64[1] {1}> ()
    both = ReduceProd <keepdims = 0> (clipped, one)
    sa = Sub (a1, a0)
    sb = Sub (b1, b0)
    ra = ReduceProd <keepdims = 0> (sa, one)
    rb = ReduceProd <keepdims = 0> (sb, one)
    total = Add (ra, rb)
    union = Sub (total, both)
    iou = Div (both, union)
    limit = Constant <value = float {0.3}> ()
    far = LessOrEqual (iou, limit)
    gone = Constant <value = float {-1.0}> ()
    sn = Where (far, s, gone)
    top = ReduceMax <keepdims = 0> (sn)
    on = Greater (top, none)
  }>
}
"""


def test_nms_loop(tmp_path: Path) -> None:
    def feed(seed: int, spread: float) -> dict[str, Any]:
        corner = np.abs(rng(6, 2, seed=seed)) * spread
        return {"boxes": np.concatenate([corner, corner + 1], 1).astype(F32), "scores": np.abs(rng(6, seed=seed + 50))}

    feeds = [feed(s, spread) for s in range(8) for spread in (0.05, 0.6, 3.0)]
    graph, paths = check(model(NMS), feeds)
    assert len(paths) == 3
    module = dycl_tvm.load(dycl_tvm.build(model(NMS)).export_library(tmp_path / "model.so", embed_params=True))
    for given in feeds:
        want, _ = run(graph, given)
        have = module(**given)
        same([want["kept"].numpy(), want["left"].numpy()], [np.asarray(have["kept"]), np.asarray(have["left"])])


NESTED = """
nested (float[4] x) => (float[4] y, float total) {
  n = Constant <value = int64 {5}> ()
  start = Constant <value = float {0.0}> ()
  yes = Constant <value = bool {1}> ()
  y, total = Loop (n, yes, x, start) <body = outer (int64 i, bool go, float[4] a, float t) => (bool on, float[4] an, float tn) {
    s = ReduceSum <keepdims = 0> (a)
    limit = Constant <value = float {2.0}> ()
    big = Greater (s, limit)
    an, add = If (big) <
      then_branch = big_side () => (float[4] r, float q) {
        m = Constant <value = int64 {3}> ()
        r = Loop (m, yes, a) <body = inner (int64 j, bool go2, float[4] b) => (bool on2, float[4] bn) {
          half = Constant <value = float {0.5}> ()
          scaled = Mul (b, half)
          bn = Add (scaled, x)
          on2 = Identity (go2)
        }>
        q = Identity (limit)
      },
      else_branch = small_side () => (float[4] r2, float q2) {
        r2 = Add (a, bias)
        f = Cast <to = 1> (i)
        q2 = Neg (f)
      }>
    tn = Add (t, add)
    on = Identity (go)
  }>
}
"""


def test_nested_with_captured_values() -> None:
    graph, paths = check(model(NESTED, weights={"bias": np.full(4, 0.4, F32)}), [{"x": rng(4, seed=s)} for s in range(12)])
    assert len(natural_loops(graph).loops) == 2
    assert len(paths) >= 4


def test_condition_only() -> None:
    made = model("""halve (float[1] x) => (float[1] y, int64[1] n) {
      one = Constant <value = float[1] {1.0}> ()
      zero = Constant <value = int64[1] {0}> ()
      begin = Greater (x, one)
      y, n = Loop (, begin, x, zero) <body = step (int64 i, bool go, float[1] a, int64[1] k) => (bool on, float[1] b, int64[1] l) {
        two = Constant <value = float[1] {2.0}> ()
        b = Div (a, two)
        inc = Constant <value = int64[1] {1}> ()
        l = Add (k, inc)
        on = Greater (b, one)
      }>
    }""")
    check(made, [{"x": np.array([v], F32)} for v in (0.5, 1.5, 9.0, 1000.0)])


def test_scan_all_directions_and_axes() -> None:
    made = model("""scans (float[3] s, float[2,5,3] x, float[5,3] w) => (float[3] t, float[3,5] y, float[5,3] z) {
      t, y, z = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0], scan_output_axes = [1, 0],
                      scan_output_directions = [0, 1], body = step (float[3] a, float[2,3] p, float[3] q) => (float[3] b,
      float[3] o, float[3] r) {
        zero = Constant <value_ints = [0]> ()
        m = ReduceSum <keepdims = 0> (p, zero)
        c = Add (a, m)
        b = Mul (c, q)
        o = Identity (b)
        r = Sub (a, q)
      }> (s, x, w)
    }""")
    s, x, w = rng(3), rng(2, 5, 3, seed=1), rng(5, 3, seed=2)
    y, z = np.zeros((3, 5), F32), np.zeros((5, 3), F32)
    state = s
    for k in range(5):  # x is read backwards, z written backwards
        z[4 - k] = state - w[k]
        state = (state + x[:, 4 - k].sum(0)) * w[k]
        y[:, k] = state
    for graph in (stage_onnx(made), simplified(made)):
        found, _ = run(graph, {"s": s, "x": x, "w": w})
        same([state, y, z], [found["t"], found["y"], found["z"]])


def simplified(made: Any) -> Any:
    """Return the graph after all passes."""
    graph = stage_onnx(made)
    run_passes(graph)
    return graph


def test_loop_without_condition_input() -> None:
    made = model("""plain (float[2] x) => (float[2] y) {
      n = Constant <value = int64 {4}> ()
      y = Loop (n, , x) <body = step (int64 i, bool go, float[2] a) => (bool on, float[2] b) {
        f = Cast <to = 1> (i)
        b = Add (a, f)
        on = Identity (go)
      }>
    }""")
    graph = stage_onnx(made)
    assert len(natural_loops(graph).loops) == 1
    same([np.array([7, 8], F32)], [run(graph, {"x": np.array([1, 2], F32)})[0]])


def test_branches_of_different_shape_return_each_their_own() -> None:
    made = model("""shapes (float[2,3] x) => (float[N] y) {
      s = ReduceSum <keepdims = 0> (x)
      zero = Constant <value = float {0.0}> ()
      c = Greater (s, zero)
      shape = If (c) <then_branch = a () => (int64[1] p) { p = Constant <value = int64[1] {6}> () },
                      else_branch = b () => (int64[1] q) { q = Constant <value = int64[1] {3}> () }>
      twice = Concat <axis = 0> (x, x)
      flat = ReduceMax <keepdims = 0> (twice, axis)
      rows = ReduceMin <keepdims = 0> (x, axis)
      both = Concat <axis = 0> (flat, rows)
      start = Constant <value = int64[1] {0}> ()
      y = Slice (both, start, shape)
    }""", weights={"axis": np.array([0])})  # fmt: skip
    graph, paths = check(made, [{"x": rng(2, 3)}, {"x": -np.abs(rng(2, 3))}, {"x": np.abs(rng(2, 3))}])
    assert len(paths) == 2
    assert len(graph.return_sites()) == 2


def test_optional_and_sequence_outputs() -> None:
    made = model("""opt (float[2] x) => (optional(seq(float[2])) y) {
      s = ReduceSum <keepdims = 0> (x)
      zero = Constant <value = float {0.0}> ()
      c = Greater (s, zero)
      y = If (c) <then_branch = a () => (optional(seq(float[2])) p) { n = Neg (x) q = SequenceConstruct (x, n) p = Optional (q) },
                  else_branch = b () => (optional(seq(float[2])) r) { r = Optional <type = seq(float[2])> () }>
    }""")  # fmt: skip
    graph = stage_onnx(made)
    up, _ = run(graph, {"x": np.array([1, 2], F32)})
    assert [t.tolist() for t in up] == [[1, 2], [-1, -2]]
    assert run(graph, {"x": np.array([-1, -2], F32)})[0] is None


def test_sequence_grows_in_a_loop_with_early_end() -> None:
    made = model("""grow (float[2] x) => (float[N,2] y) {
      n = Constant <value = int64 {4}> ()
      yes = Constant <value = bool {1}> ()
      empty = SequenceEmpty <dtype = 1> ()
      seq, last = Loop (n, yes, empty, x) <body = step (int64 i, bool go, seq(float[2]) s, float[2] a)
      => (bool on, seq(float[2]) t, float[2] b) {
        b = Add (a, x)
        t = SequenceInsert (s, b)
        total = ReduceSum <keepdims = 0> (b)
        limit = Constant <value = float {4.0}> ()
        on = Less (total, limit)
      }>
      y = ConcatFromSequence <axis = 0, new_axis = 1> (seq)
    }""")
    graph, paths = check(made, [{"x": np.array([v, v], F32)} for v in (0.1, 0.6, 0.8, 2.0)])
    assert len(paths) == 4


RUNTIME_TRIPS = """
trips (int64 n, float[2] x) => (float[2] y, float[{length},2] rows) {{
  yes = Constant <value = bool {{1}}> ()
  y, rows = Loop (n, yes, x) <body = step (int64 i, bool go, float[2] a) => (bool on, float[2] b, float[2] r) {{
    b = Add (a, x)
    r = Identity (b)
    on = Identity (go)
  }}>
}}
"""


def test_scan_output_of_declared_length_is_checked_at_run_time() -> None:
    made = model(RUNTIME_TRIPS.format(length=3))
    graph, _ = check(made, [{"n": np.array(3), "x": rng(2)}])
    for wrong in (2, 4):
        with pytest.raises(ValueError, match="3 iterations that the model declares"):
            run(graph, {"n": np.array(wrong), "x": rng(2)})


def test_scan_output_without_bound_is_refused_until_the_count_is_fixed() -> None:
    made = model(RUNTIME_TRIPS.format(length="N"))
    with pytest.raises(NeedsValue, match=r"nothing bounds(.|\n)*constant trip count") as caught:
        stage_onnx(made)
    assert caught.value.inputs == ("n",)
    check(made, [{"n": np.array(3), "x": rng(2)}], input_values={"n": np.array(3)})


def test_lengths_beyond_the_bound_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="one of 13 lengths, and at most 8"):
        stage_onnx(decoder(), max_paths=8)


def test_what_an_iteration_changes_late_is_carried_too() -> None:
    """The first iterations of `a` and `b` give what they got; only `c` seems to change."""
    made = model("""late (float[1] x) => (float[1] p, float[1] q, float[1] r) {
      n = Constant <value = int64 {6}> ()
      yes = Constant <value = bool {1}> ()
      zero = Constant <value = float[1] {0.0}> ()
      p, q, r = Loop (n, yes, zero, zero, zero) <body = step (int64 i, bool go, float[1] a, float[1] b, float[1] c)
          => (bool on, float[1] an, float[1] bn, float[1] cn) {
        an = Identity (b)
        bn = Identity (c)
        cn = Add (c, x)
        on = Identity (go)
      }>
    }""")
    graph, _ = check(made, [{"x": np.array([2], F32)}])
    assert len(natural_loops(graph).loops) == 1
