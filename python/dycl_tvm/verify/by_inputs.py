# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Models without a Python forward against their own reference: an exported program's eager module, ONNX Runtime or onnx's evaluator.

No oracle answers for their tensors, so paths are taken by inputs: random ones of several scales, and so many that either side of a
decision comes up where inputs of that kind take it at all.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dycl_tvm.compile.weights import tensor_of
from dycl_tvm.errors import VerificationError
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.runtime.structure import leaf_types, unflatten_call
from dycl_tvm.verify.certificate import Control, Level
from dycl_tvm.verify.coverage_map import Covered
from dycl_tvm.verify.inputs import copied, like
from dycl_tvm.verify.nudged import within_rounding
from dycl_tvm.verify.runs import Call, Outcome, Undecided, compare, resized, run_graph

#: Runs at least and at most; after the fewest they go on as long as new edges come up.
_RUNS = {"default": (4, 16), "full": (32, 512)}
_PATIENCE = 6
#: How many times the bounds of rounding a result may be off.
_LOOSE = 10.0

#: What a reference does with one call.
Reference = Callable[..., Any]


def check_by_inputs(reference: Reference, graph: HCFG, call: Call, level: Level, seed: int = 0) -> Control:
    """Check a staged graph against a reference on random inputs.

    Raises
    ------
    VerificationError
        If they differ: with both results.
    """
    covered = Covered(graph)
    fewest, most = _RUNS[level]
    runs = inconclusive = 0
    last_new = 0
    reasons: dict[str, None] = {}
    for k in range(most):
        if k >= fewest and (k - last_new > _PATIENCE or not covered.missing()):
            break
        generator = torch.Generator().manual_seed(seed + k)
        scale = (1.0, 3.0, 0.1, 30.0)[k % 4]
        given = call if k == 0 else like(resized(graph, call, generator), generator, scale, k % 4 == 3)
        expected = Outcome()
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected.value = reference(*copied(given[0]), **copied(given[1]))
        except Undecided as reason:
            inconclusive += 1
            reasons[str(reason)] = None
            continue
        except Exception as error:
            expected.error = error
        built = run_graph(graph, [given], [()])
        if expected.error is not None and built[0].error is not None:
            expected.error = built[0].error  # a runtime has exceptions of its own
        try:
            found = compare([expected], built, loose=_LOOSE)
        except Undecided as reason:
            inconclusive += 1
            reasons[str(reason)] = None
            continue
        if found is not None and found.soft and within_rounding(graph, given, expected.value, built[0].value, _LOOSE):
            found = None
        if found is not None:
            raise VerificationError(
                f"what was built of {graph.name} does something else than the model: a defect of dycl_tvm. Nothing was written.\n"
                f"On random inputs (seed {seed + k}): {found.what}\nreference: {expected.text()}\nas built: {built[0].text()}"
            )
        runs += 1
        if built[0].answers is not None and covered.add(built[0].answers.edges):
            last_new = k
    pairs, pairs_total = covered.pairs()
    return Control(
        method="inputs",
        runs=runs,
        calls=runs,
        edges=int(covered.taken.sum()),
        edges_total=len(covered.taken),
        untaken=covered.untaken(),
        pairs=pairs,
        pairs_total=pairs_total,
        trips=covered.trip_counts(),
        inconclusive=inconclusive,
        reason="; ".join(reasons),
    )


def example_call(graph: HCFG, seed: int = 0) -> Call:
    """Return inputs of the graph's own types, for models that bring no examples."""
    generator = torch.Generator().manual_seed(seed)
    leaves: list[Any] = []
    for value, kind in zip(graph.inputs, leaf_types(graph.input_structure)):
        if isinstance(value.type, TensorType):
            leaves.append(like(torch.zeros(value.type.shape, dtype=getattr(torch, value.type.dtype)), generator))
        else:
            leaves.append({"int": 1, "float": 0.5, "bool": True}[kind])
    return unflatten_call(graph.input_structure, leaves)


def exported_reference(program: Any) -> Reference:
    """Return the eager module of an exported program: every call is a first one, and leaves the program's buffers as they are."""
    module = program.module()
    buffers = [(b, b.clone()) for b in module.buffers()]

    def reference(*args: Any, **kwargs: Any) -> Any:
        try:
            return copied(module(*args, **kwargs))
        finally:
            for buffer, saved in buffers:
                buffer.copy_(saved)

    return reference


def onnx_reference(model: Any, fixed: dict[str, Any] | None) -> Reference:
    """Return a function that runs an ONNX model by ONNX Runtime where it is installed, else by onnx's reference evaluator."""
    import onnx

    proto = onnx.load(os.fspath(model)) if not isinstance(model, onnx.ModelProto) else model
    outputs = list(proto.graph.output)
    run = _by_onnxruntime(proto) or _by_onnx(proto)

    def reference(**inputs: Any) -> Any:
        found = run({k: _array(v) for k, v in {**inputs, **(fixed or {})}.items()})
        for output, value in zip(outputs, found):
            _check_declared(output, value)
        tensors = [_tensor(v) for v in found]
        return tensors[0] if len(tensors) == 1 else dict(zip([o.name for o in outputs], tensors))

    return reference


def _check_declared(output: Any, value: Any) -> None:
    """Leave out inputs on which a model breaks what it declares of its outputs' shapes, for an artefact relies on that."""
    kind = output.type
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape") or value is None:
        return
    declared = [d.dim_value if d.HasField("dim_value") else None for d in kind.tensor_type.shape.dim]
    shape = np.shape(value)
    if len(shape) != len(declared) or any(d is not None and d != n for d, n in zip(declared, shape)):
        raise Undecided("the reference's result is not of the shape that the model declares")


def _by_onnxruntime(proto: Any) -> Callable[[dict[str, Any]], list[Any]] | None:
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # not installed, or an operator that it does not have
        return None
    return lambda feeds: list(session.run(None, {k: v for k, v in feeds.items() if v is not None}))


def _by_onnx(proto: Any) -> Callable[[dict[str, Any]], list[Any]]:
    from onnx.reference import ReferenceEvaluator

    if _has_lengths(proto.graph) or any(map(_has_lengths, proto.functions)):
        raise NotImplementedError("onnx's evaluator ignores the lengths of the sequences of a recurrent layer")
    evaluator = ReferenceEvaluator(proto)
    return lambda feeds: list(evaluator.run(None, feeds))


def _has_lengths(graph: Any) -> bool:
    """Whether a graph or function holds a recurrent layer with lengths, however deep."""
    return any(
        (n.op_type in ("RNN", "GRU", "LSTM") and len(n.input) > 4 and n.input[4] != "")
        or any(_has_lengths(a.g) for a in n.attribute if a.HasField("g"))
        for n in graph.node
    )


def _array(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.dtype != torch.bfloat16:
            return value.numpy()
        import ml_dtypes  # onnx needs it too

        return value.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    if value is None:  # an optional without an element
        return None
    return [_array(v) for v in value] if isinstance(value, (list, tuple)) else np.asarray(value)


def _tensor(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_tensor(v) for v in value]
    return tensor_of(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else value
