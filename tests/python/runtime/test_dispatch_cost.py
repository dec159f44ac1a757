# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Dispatch stays cheap. The bound is wide, because test machines are busy; ``benchmarks/dispatch.py`` gives the figures."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def test_cost_of_edges_and_calls() -> None:
    spec = importlib.util.spec_from_file_location("dispatch_benchmark", Path(__file__).parents[3] / "benchmarks" / "dispatch.py")
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    results = benchmark.measure(20_000)
    assert all(value < 60 for value in results.values()), results
