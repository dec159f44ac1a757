# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The graph before the passes against the graph after them: the same answers, the same tensors."""

from __future__ import annotations

from typing import Any

from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.verify.certificate import Level, Passes
from dycl_tvm.verify.control import Checker
from dycl_tvm.verify.runs import Interpreted


def check_passes(
    before: HCFG, after: HCFG, args: tuple[Any, ...], kwargs: dict[str, Any], *, level: Level = "default", seed: int = 0
) -> Passes:
    """Check that the passes kept the meaning of a graph.

    Parameters
    ----------
    before, after : HCFG
        They share no blocks.
    args, kwargs
        Example inputs.

    Raises
    ------
    VerificationError
        If they differ: with the smallest path found and both results.
    """
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
