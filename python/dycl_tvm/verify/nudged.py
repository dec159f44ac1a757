# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How far the results of a graph move if what it quantises moves by a rounding.

A sum that two programs take in another order may be quantised to neighbouring integers, where it lies next to the middle between them. What
becomes of such a step on the way to the result no fixed bound tells, so the graph is asked: it runs with every tensor that it quantises
multiplied by a number next to one. Where no such tensor lies near a middle, results do not move, and nothing is forgiven.
"""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.hcfg.copies import copied_graph
from dycl_tvm.hcfg.interpreter import tensor_type
from dycl_tvm.hcfg.nodes import HCFG, Constant, Step, TensorOp, Value
from dycl_tvm.hcfg.quantized import DECOMPOSED, QUANTIZES
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.verify.runs import Call, run_graph
from dycl_tvm.verify.same import difference, tensors_of

#: How far tensors are moved, relatively; in how many runs; and how much farther than in these a result may be.
_MOVED, _RUNS, _FARTHER = 2**-18, 8, 2.0


def within_rounding(graph: HCFG, call: Call, expected: Any, built: Any, loose: float) -> bool:
    """Whether two results of a call differ by no more than roundings of what the graph quantises make."""
    if not any(_is_quantisation(step) for block in graph.blocks for step in block.steps):
        return False
    theirs, ours = tensors_of(expected), tensors_of(built)
    if [(t.shape, t.dtype) for t in theirs] != [(t.shape, t.dtype) for t in ours]:
        return False
    moved = [torch.zeros((), dtype=torch.float64) for _ in ours]
    generator = torch.Generator().manual_seed(0)
    for _ in range(_RUNS):
        (outcome,) = run_graph(_nudged(graph, generator), [call], [()])
        found = tensors_of(outcome.value)
        if outcome.error is None and [t.shape for t in found] == [t.shape for t in ours]:
            moved = [torch.maximum(m, _farthest(a, b)) for m, a, b in zip(moved, found, ours)]
    return all(
        difference(theirs[k], ours[k], loose=loose) is None or bool(_farthest(theirs[k], ours[k]) <= _FARTHER * moved[k])
        for k in range(len(ours))
    )


def _farthest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return how far the elements of two tensors are apart at most; what is not finite is nowhere near."""
    if a.is_complex() or not a.numel():
        return torch.zeros((), dtype=torch.float64) if torch.equal(a, b) else torch.tensor(float("nan"), dtype=torch.float64)
    return (a.double() - b.double()).abs().max()


def _nudged(graph: HCFG, generator: torch.Generator) -> HCFG:
    """Return the graph with every float32 tensor that it quantises moved, by this much or that."""
    made = copied_graph(graph)
    for block in made.blocks:
        steps: list[Step] = []
        for step in block.steps:
            if _is_quantisation(step):
                assert isinstance(step, TensorOp)
                sign = 1 - 2 * int(torch.randint(2, (), generator=generator))
                factor = torch.tensor(1 + sign * _MOVED, dtype=torch.float32)
                x = Value(step.args[0].type)
                steps.append(TensorOp("aten.mul.Tensor", (step.args[0], Constant(tensor_type(factor), factor)), {}, (x,), step.origin))
                step.args = (x, *step.args[1:])
            steps.append(step)
        block.steps = steps
    return made


def _is_quantisation(step: Step) -> bool:
    if not isinstance(step, TensorOp) or not (step.op in QUANTIZES or step.op.startswith(f"{DECOMPOSED}.quantize_per_")):
        return False
    kind = step.args[0].type if isinstance(step.args[0], Value) else None
    return isinstance(kind, TensorType) and kind.dtype == "float32"
