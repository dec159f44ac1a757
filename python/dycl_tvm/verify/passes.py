# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The graph before the passes against the graph after them: the same answers, the same tensors."""

from __future__ import annotations

from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.verify.by_inputs import example_call
from dycl_tvm.verify.certificate import Level, Passes
from dycl_tvm.verify.control import Checker
from dycl_tvm.verify.runs import Call, Interpreted


def check_passes(before: HCFG, after: HCFG, call: Call | None, *, level: Level = "default", seed: int = 0) -> Passes:
    """Check that the passes kept the meaning of a graph.

    Parameters
    ----------
    before, after : HCFG
        They share no blocks.
    call : (tuple, dict), optional
        Example inputs; by default random ones of the graph's types.

    Raises
    ------
    VerificationError
        If they differ: with the smallest path found and both results.
    """
    args, kwargs = call if call is not None else example_call(before, seed)
    checker = Checker(Interpreted(before), after, args, kwargs, passes=True)
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
