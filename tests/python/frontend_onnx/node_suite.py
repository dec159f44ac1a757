# Licensed under the Apache License, Version 2.0; see LICENSE.
"""ONNX's own node tests, through the backend of this package. As a program it runs all of them and prints the pass rate by kind:

    python tests/python/frontend_onnx/node_suite.py [--compiled | --open] [--pattern REGEX] [--json FILE]

A case passes as it is, or with inputs fixed from whose values a shape follows; it is refused (a typed error); or it is wrong.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import re
import sys
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from dycl_tvm.errors import DyclError, UnsupportedError
from dycl_tvm.frontend.onnx.backend import CompiledBackend, InterpretedBackend

#: Wider than ONNX's tolerance (1e-7), which is below one unit of float16: two units of values below 1.
FLOAT16 = 1e-3
#: Cases whose expected values are rounding noise of about 1e-6 beside values near 40.
NOISE = {"test_dft_inverse": 1e-5, "test_dft_inverse_opset19": 1e-5}
CONTROL = {"If", "Loop", "Scan", "SequenceMap"}


@dataclass
class Result:
    """What became of a case: ``pass``, ``fixed``, ``refused`` or ``wrong``."""

    status: str
    reason: str = ""


@functools.cache
def cases() -> dict[str, Any]:
    """Return the node cases by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind="node")}


@functools.cache
def control_cases() -> list[str]:
    """Return the names of the cases with control flow, however deep it lies."""
    return [name for name, case in cases().items() if _has_control(case.model.graph)]


def _has_control(graph: Any) -> bool:
    for node in graph.node:
        if node.op_type in CONTROL or any(_has_control(a.g) for a in node.attribute if a.type == onnx.AttributeProto.GRAPH):
            return True
    return False


def run_case(name: str, backend: type[CompiledBackend]) -> tuple[str, ...]:
    """Run a case; return the inputs that had to be fixed.

    Raises
    ------
    AssertionError
        If a result is wrong.
    """
    case = cases()[name]
    prepared = backend.prepare(case.model, "CPU")
    for inputs, expected in case.data_sets:
        found = prepared.run([array(x) for x in inputs])
        compare([array(x) for x in expected], list(found), case.rtol, max(case.atol, NOISE.get(name, 0.0)))
    return prepared.fixed


def compare(expected: list[Any], found: list[Any], rtol: float, atol: float) -> None:
    """Compare outputs; unlike ONNX's own comparison it can compare sequences of scalars."""
    assert len(expected) == len(found)
    for want, have in zip(expected, found):
        if isinstance(want, list):
            assert isinstance(have, list)
            compare(want, have, rtol, atol)
        elif want is None:
            assert have is None
        else:
            want = np.asarray(want)
            Runner.assert_similar_outputs([want], [np.asarray(have)], rtol, max(atol, FLOAT16) if want.dtype == np.float16 else atol)


def array(x: Any) -> Any:
    """Return an input or output of a case as an array."""
    return onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x


def result_of(name: str, backend: type[CompiledBackend]) -> Result:
    """Run a case and tell what became of it."""
    try:
        return Result("fixed" if run_case(name, backend) else "pass")
    except DyclError as error:
        return Result("refused", error.reason if isinstance(error, UnsupportedError) else str(error))
    except Exception as error:  # anything else is a defect, whatever it is
        return Result("wrong", f"{type(error).__name__}: {str(error).strip()[-200:]}")


def kind_of(reason: str) -> str:
    """Return what many refusals have in common."""
    reason = re.sub(r"the input '[^']*'", "an input", re.sub(r"\(node '[^']*'\)", "", reason.split("\n")[0]))
    reason = re.sub(r"elements of (\w+);.*", r"elements of \1", reason)
    return reason[:150]


def main() -> int:
    """Run the suite; the exit status is 1 if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--compiled", action="store_true", help="build and load each case instead of interpreting its graph")
    parser.add_argument("--open", action="store_true", help="leave the dimensions of the inputs open: see open_suite.py")
    parser.add_argument("--pattern", default="", help="only cases whose name matches")
    parser.add_argument("--json", default="", help="write all results to a file")
    options = parser.parse_args()
    if options.open:
        import open_suite

        return open_suite.main(options.pattern, options.json)
    backend = CompiledBackend if options.compiled else InterpretedBackend
    results: dict[str, Result] = {}
    names = [name for name in cases() if re.search(options.pattern, name)]
    for k, name in enumerate(names):
        results[name] = result_of(name, backend)
        if k % 100 == 99:
            print(f"{k + 1} of {len(names)}", file=sys.stderr)
    counts = collections.Counter(r.status for r in results.values())
    total = max(len(results), 1)
    print(
        f"{len(results)} cases: "
        + ", ".join(f"{counts[s]} {s} ({100 * counts[s] / total:.1f} %)" for s in ("pass", "fixed", "refused", "wrong"))
    )
    for reason, count in collections.Counter(kind_of(r.reason) for r in results.values() if r.status == "refused").most_common():
        print(f"  refused {count:4d}  {reason}")
    for name, result in results.items():
        if result.status == "wrong":
            print(f"  wrong   {name}: {result.reason}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({name: [r.status, r.reason] for name, r in results.items()}, file, indent=1)
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
