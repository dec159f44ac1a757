# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The graph before the passes against the graph after them: the same answers, the same tensors."""

from __future__ import annotations

from dycl_tvm.hcfg.hostops import NOT_PURE
from dycl_tvm.hcfg.nodes import HCFG, HostOp, Value
from dycl_tvm.verify.budget import Budget, BuildBudget
from dycl_tvm.verify.by_inputs import example_call
from dycl_tvm.verify.certificate import Level, Passes
from dycl_tvm.verify.control import Checker
from dycl_tvm.verify.runs import Call, Interpreted


def check_passes(
    before: HCFG, after: HCFG, call: Call | None, *, level: Level = "default", seed: int = 0, budget: Budget | None = None
) -> Passes:
    """Check that the passes kept the meaning of a graph.

    Parameters
    ----------
    before, after : HCFG
        They share no blocks.
    call : (tuple, dict), optional
        Example inputs; by default random ones of the graph's types.
    budget : Budget, optional
        By default that of a build at this level.

    Raises
    ------
    VerificationError
        If they differ: with the smallest path found and both results.
    """
    args, kwargs = call if call is not None else example_call(before, seed)
    granted = budget or BuildBudget(level).for_passes()
    checker = Checker(Interpreted(before), after, args, kwargs, granted, as_data=_made_tensors(before))
    checker.search(level, seed)
    checker.prove_pinned(seed)
    return Passes(
        runs=checker.runs,
        calls=checker.calls,
        edges=int(checker.covered.taken.sum()),
        edges_total=len(checker.covered.taken),
        inconclusive=checker.inconclusive,
        reason="; ".join(checker.reasons),
    )


def _made_tensors(graph: HCFG) -> set[int]:
    """Return the positions, among all steps, of the reads of a number that is made a tensor again.

    Passes may use the tensor that is read instead, and then another answer does not reach it. On its way the number may go through
    operations that passes find to hand it on (``n + 6 if n < 0 else n`` of a number that is not below 0).
    """
    steps = [s for b in graph.blocks for s in b.steps]
    made = {s.args[0] for s in steps if isinstance(s, HostOp) and s.op == "to_tensor"}
    onwards: dict[Value, list[Value]] = {}
    for block in graph.blocks:
        for edge in block.edges():
            for arg, param in zip(edge.args, edge.target.params):
                if isinstance(arg, Value):
                    onwards.setdefault(arg, []).append(param)
    for step in steps:
        if isinstance(step, HostOp) and step.op not in NOT_PURE:
            for operand in step.operands():
                if operand.type == step.output.type:
                    onwards.setdefault(operand, []).append(step.output)

    def is_made_a_tensor(number: Value) -> bool:
        todo, seen = [number], {number}
        while todo:
            value = todo.pop()
            if value in made:
                return True
            onward = [p for p in onwards.get(value, []) if p not in seen]
            seen.update(onward)
            todo += onward
        return False

    return {k for k, s in enumerate(steps) if isinstance(s, HostOp) and s.op == "item" and is_made_a_tensor(s.output)}
