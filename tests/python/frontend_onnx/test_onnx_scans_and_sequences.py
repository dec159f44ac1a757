# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Scan in all directions and axes, loops by every way to end them, sequences, what may be left out, and all operator sets."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest

from dycl_tvm.frontend.onnx import stage_onnx
from dycl_tvm.hcfg.analysis import natural_loops
from dycl_tvm.passes import run_passes

sys.path.insert(0, str(Path(__file__).parent))

from onnx_models import check, model, run, same  # noqa: E402

F32 = np.float32


def rng(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


# -- Scan --------------------------------------------------------------------------------------------------------------
def scan(way_in: int, way_out: int, axis_in: int, axis_out: int) -> Any:
    shape = [2, 4]
    shape.insert(axis_in % 3, 3)  # three slices of shape (2, 4)
    out = [2, 4]
    out.insert(axis_out % 3, 3)
    return model(f"""scans (float[2,4] s, float{shape} x) => (float[2,4] t, float{out} y) {{
      t, y = Scan <num_scan_inputs = 1, scan_input_axes = [{axis_in}], scan_input_directions = [{way_in}],
                   scan_output_axes = [{axis_out}], scan_output_directions = [{way_out}],
                   body = step (float[2,4] a, float[2,4] p) => (float[2,4] b, float[2,4] o) {{
        c = Mul (a, gain)
        b = Add (c, p)
        o = Sub (b, p)
      }}> (s, x)
    }}""", weights={"gain": np.array(0.5, F32)})  # fmt: skip


@pytest.mark.parametrize("way_in, way_out", itertools.product((0, 1), (0, 1)))
def test_scan_directions_with_all_axes(way_in: int, way_out: int) -> None:
    s = rng(2, 4)
    for axis_in, axis_out in itertools.product((0, 1, 2, -1, -3), (0, 1, 2, -2)):
        slices = rng(3, 2, 4, seed=1)
        state, rows = s, []
        for p in slices[::-1] if way_in else slices:
            rows.append(state * F32(0.5))
            state = state * F32(0.5) + p
        y = np.stack(rows[::-1] if way_out else rows, axis_out)
        made = scan(way_in, way_out, axis_in, axis_out)
        found, _ = run(stage_onnx(made), {"s": s, "x": np.moveaxis(slices, 0, axis_in)})
        same([state, y], [found["t"], found["y"]])


def test_scan_in_a_branch_in_a_loop_with_captured_values() -> None:
    made = model("""deep (float[3] x, float[4,3] rows) => (float[3] y) {
      n = Constant <value = int64 {3}> ()
      yes = Constant <value = bool {1}> ()
      y = Loop (n, yes, x) <body = outer (int64 i, bool go, float[3] a) => (bool on, float[3] an) {
        top = ReduceMax <keepdims = 0> (a)
        one = Constant <value = float {1.0}> ()
        big = Greater (top, one)
        an = If (big) <
          then_branch = p () => (float[3] r) {
            r, unused = Scan <num_scan_inputs = 1, body = step (float[3] s, float[3] row) => (float[3] sn, float[3] o) {
              m = Mul (row, x)
              half = Div (s, two)
              sn = Add (half, m)
              o = Sub (sn, a)
            }> (a, rows)
          },
          else_branch = q () => (float[3] r2) { r2 = Add (a, one) }>
        on = Identity (go)
      }>
    }""", weights={"two": np.array(2, F32)})  # fmt: skip
    _, paths = check(made, [{"x": rng(3, seed=k), "rows": rng(4, 3, seed=k + 9)} for k in range(10)])
    assert len(paths) >= 3


# -- Loop --------------------------------------------------------------------------------------------------------------
def ends(count: str, cond: str) -> Any:
    """Return a loop that its count ends, its condition, or both; ``begin`` and ``n`` are known only at run time."""
    return model(f"""ends (int64 n, bool begin, float[2] x) => (float[2] y, int64 rounds) {{
      zero = Constant <value = int64 {{0}}> ()
      y, rounds = Loop ({count}, {cond}, x, zero) <body = step (int64 i, bool go, float[2] a, int64 k)
          => (bool on, float[2] b, int64 l) {{
        b = Add (a, x)
        one = Constant <value = int64 {{1}}> ()
        l = Add (i, one)
        s = ReduceSum <keepdims = 0> (b)
        limit = Constant <value = float {{8.0}}> ()
        on = Less (s, limit)
      }}>
    }}""")


@pytest.mark.parametrize("count, cond", [("n", "begin"), ("n", ""), ("", "begin"), ("", "")])
def test_every_way_to_end_a_loop(count: str, cond: str) -> None:
    """By ONNX's text, with loops of Python: the reference evaluator does not end a loop by its count if there is no condition."""
    made = ends(count, cond)
    graph, simplified = stage_onnx(made), stage_onnx(made)
    run_passes(simplified)
    assert len(natural_loops(graph).loops) == 1
    for n, begin, v in itertools.product((0, 1, 3, 50), (True, False), (0.4, 3.0)):
        y, rounds, on = np.array([v, v], F32), 0, begin or not cond
        while on and (not count or rounds < n):
            y, rounds = y + F32(v), rounds + 1
            on = y.sum() < 8
        for g in (graph, simplified):
            found, _ = run(g, {"n": np.array(n), "begin": np.array(begin), "x": np.array([v, v], F32)})
            same([y, np.array(rounds)], [found["y"], found["rounds"]])


# -- sequences ---------------------------------------------------------------------------------------------------------
def test_sequence_operators() -> None:
    made = model("""seqs (float[6,2] x, float[1,2] z) => (float[N,2] y, int64 n, float[1,2] last, seq(float[M,2]) halves) {
      one = Constant <value = int64 {1}> ()
      back = Constant <value = int64 {-1}> ()
      sizes = Constant <value_ints = [2, 3, 1]> ()
      parts = SplitToSequence <axis = 0> (x, sizes)
      more = SequenceInsert (parts, z, one)
      most = SequenceInsert (more, z)
      last = SequenceAt (most, back)
      fewer = SequenceErase (most, one)
      fewest = SequenceErase (fewer)
      n = SequenceLength (most)
      y = ConcatFromSequence <axis = 0> (fewest)
      two = Constant <value = int64 {4}> ()
      halves = SplitToSequence <axis = 0> (x, two)
    }""")
    graph, _ = check(made, [{"x": rng(6, 2), "z": rng(1, 2, seed=1)}])
    assert len(graph.blocks) == 1


def test_sequence_map_with_captured_value_and_a_branch() -> None:
    made = model("""maps (float[4,2] x, float[2] w, float[2] bias) => (float[N,2] y, float[4] z) {
      zero = Constant <value = int64 {0}> ()
      rows = SplitToSequence <axis = 0, keepdims = 0> (x)
      scaled, sums = SequenceMap (rows, w) <body = each (float[2] row, float[2] v) => (float[2] r, float t) {
        m = Mul (row, v)
        t = ReduceSum <keepdims = 0> (m)
        none = Constant <value = float {0.0}> ()
        up = Greater (t, none)
        r = If (up) <then_branch = p () => (float[2] a) { a = Add (m, bias) }, else_branch = q () => (float[2] b) { b = Neg (m) }>
      }>
      y = ConcatFromSequence <axis = 0, new_axis = 1> (scaled)
      z = ConcatFromSequence <axis = 0, new_axis = 1> (sums)
    }""")
    w, bias = rng(2, seed=7), rng(2, seed=8)
    graph = stage_onnx(made)
    paths = set()
    for k in range(6):
        x = rng(4, 2, seed=k)
        found, path = run(graph, {"x": x, "w": w, "bias": bias})
        want = [m + bias if m.sum() > 0 else -m for m in x * w]
        same([np.stack(want), (x * w).sum(1)], [found["y"], found["z"]])
        paths.add(tuple(path))
    assert len(paths) >= 3


# -- what may be left out ----------------------------------------------------------------------------------------------
def test_outputs_that_nothing_wants() -> None:
    """Of an operator (GRU), and of control flow: names may be empty."""
    made = model("""left (float[2,1,3] x, float[5] a0) => (float[1,1,4] h, float[5] y) {
      hidden, h = GRU <hidden_size = 4> (x, W, R)
      n = Constant <value = int64 {3}> ()
      yes = Constant <value = bool {1}> ()
      y, other, rows = Loop (n, yes, a0, a0) <body = step (int64 i, bool go, float[5] a, float[5] b)
          => (bool on, float[5] an, float[5] bn, float[5] r) {
        an = Add (a, b)
        bn = Neg (b)
        r = Identity (an)
        on = Identity (go)
      }>
    }""", weights={"W": rng(1, 12, 3, seed=1), "R": rng(1, 12, 4, seed=2)})  # fmt: skip
    feed = {"x": rng(2, 1, 3), "a0": rng(5)}
    want = onnx.reference.ReferenceEvaluator(made).run(None, feed)
    for node in made.graph.node:
        for k, name in enumerate(node.output):
            if name in ("hidden", "other", "rows"):
                node.output[k] = ""
    onnx.checker.check_model(made)
    found, _ = run(stage_onnx(made), feed)
    same(want, [found["h"], found["y"]])
    same([feed["a0"] * 2], [found["y"]])


# -- operator sets -----------------------------------------------------------------------------------------------------
CONTROL = """control (float[3] x, float[4,3] rows) => (float[3] y) {
  n = Constant <value = int64 {3}> ()
  yes = Constant <value = bool {1}> ()
  limit = Constant <value = float {2.0}> ()
  y = Loop (n, yes, x) <body = outer (int64 i, bool go, float[3] a) => (bool on, float[3] b) {
    top = ReduceMax <keepdims = 0> (a)
    big = Greater (top, limit)
    s = If (big) <then_branch = p () => (float[3] r) { r = Neg (a) },
                  else_branch = q () => (float[3] r2) {
                    r2, u = Scan <num_scan_inputs = 1, body = step (float[3] s, float[3] row) => (float[3] sn, float[3] o) {
                      sn = Add (s, row)
                      o = Identity (sn)
                    }> (a, rows)
                  }>
    b = Identity (s)
    on = Not (big)
  }>
}"""


@pytest.mark.parametrize("opset", range(11, onnx.defs.onnx_opset_version() + 1))
def test_control_flow_of_every_operator_set(opset: int) -> None:
    _, paths = check(model(CONTROL, opset), [{"x": rng(3, seed=k), "rows": np.abs(rng(4, 3, seed=k + 9)) / 2} for k in range(6)])
    assert len(paths) >= 2
