# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Runs ONNX models against ONNX's reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx.reference import ReferenceEvaluator

from dycl_tvm.frontend.onnx import stage_onnx
from dycl_tvm.frontend.onnx.node import from_array
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.passes import run_passes
from dycl_tvm.runtime.structure import flatten_call


def model(text: str, opset: int = 18, weights: dict[str, Any] | None = None) -> Any:
    """Return a model of its text; ``weights`` become initializers."""
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    made.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in (weights or {}).items())
    onnx.checker.check_model(made)
    return made


def run(graph: HCFG, feeds: dict[str, Any]) -> tuple[Any, Any]:
    """Run a graph in the reference interpreter; return the result and the path."""
    leaves = flatten_call(graph.input_structure, (), feeds, graph.input_names)
    return interpret(graph, [from_array(v) for _, v in leaves])


def check(made: Any, feeds: list[dict[str, Any]], **options: Any) -> tuple[HCFG, set[Any]]:
    """Stage a model, before and after all passes, and compare every run with the reference evaluator; return graph and paths."""
    oracle = ReferenceEvaluator(made)
    graph = stage_onnx(made, **options)
    verify(graph)
    simplified = stage_onnx(made, **options)
    run_passes(simplified)
    names = [o.name for o in made.graph.output]
    paths = set()
    for feed in feeds:
        want = oracle.run(None, feed)
        given = {k: v for k, v in feed.items() if k not in (options.get("input_values") or {})}
        for g in (graph, simplified):
            found, path = run(g, given)
            have = [found] if len(names) == 1 else [found[n] for n in names]
            same(want, have)
            if g is graph:
                paths.add(tuple(path))
    return graph, paths


def same(want: list[Any], have: list[Any]) -> None:
    """Compare outputs, structures included."""
    assert len(want) == len(have)
    for a, b in zip(want, have):
        if isinstance(a, list):
            assert isinstance(b, list)
            same(a, b)
        elif a is None:
            assert b is None
        else:
            b = np.asarray(b)
            assert np.shape(a) == b.shape
            assert np.asarray(a).dtype == b.dtype
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
