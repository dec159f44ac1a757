# Licensed under the Apache License, Version 2.0; see LICENSE.
"""HCFG passes: each takes a graph, changes it in place and returns the number of changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from dycl_tvm.errors import InvariantError, UsageError
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.passes.block_parameters import block_parameters
from dycl_tvm.passes.common_subexpression import common_subexpression
from dycl_tvm.passes.constant_propagation import constant_propagation
from dycl_tvm.passes.dead_code import dead_code
from dycl_tvm.passes.decided_joins import decided_joins
from dycl_tvm.passes.early_quantisation import early_quantisation
from dycl_tvm.passes.element_checks import element_checks, missing_checks
from dycl_tvm.passes.fold_batch_norm import fold_batch_norm
from dycl_tvm.passes.identity_elimination import identity_elimination
from dycl_tvm.passes.index_as_data import index_as_data
from dycl_tvm.passes.integer_products import integer_products
from dycl_tvm.passes.jump_threading import jump_threading
from dycl_tvm.passes.merge_blocks import merge_blocks
from dycl_tvm.passes.outline import outline
from dycl_tvm.passes.sinking import sinking
from dycl_tvm.passes.tail_merging import tail_merging
from dycl_tvm.passes.value_ranges import value_ranges

Pass = Callable[[HCFG], int]

#: The passes in their order. All but the first and the last run again until none of them finds anything.
PASSES: list[tuple[str, Pass]] = [
    ("element_checks", element_checks),
    ("integer_products", integer_products),
    ("early_quantisation", early_quantisation),
    ("block_parameters", block_parameters),
    ("identity_elimination", identity_elimination),
    ("constant_propagation", constant_propagation),
    ("value_ranges", value_ranges),
    ("fold_batch_norm", fold_batch_norm),
    ("jump_threading", jump_threading),
    ("decided_joins", decided_joins),
    ("dead_code", dead_code),
    ("merge_blocks", merge_blocks),
    ("common_subexpression", common_subexpression),
    ("sinking", sinking),
    ("tail_merging", tail_merging),
    ("index_as_data", index_as_data),
    ("outline", outline),
]

#: Those that round otherwise than the graph before them, in ways that results may show.
_OTHER_ROUNDING = ("integer_products",)
#: Bound on the rounds; each round after the first only follows up what the round before made possible.
MAX_ROUNDS = 16

__all__ = ["MAX_ROUNDS", "PASSES", "Pass", "PassStats", "missing_checks", "quantised", "run_passes"]


@dataclass
class PassStats:
    """What the passes did.

    Attributes
    ----------
    changes : dict
        Number of changes by pass.
    seconds : dict
        Seconds by pass, without verification.
    verify_seconds : float
        Seconds in the verifier.
    rounds : int
        Rounds until nothing changed.
    """

    changes: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    verify_seconds: float = 0.0
    rounds: int = 0


def quantised(graph: HCFG, disabled: Collection[str] = ()) -> int:
    """Make integer arithmetic of the quantised layers of a graph, in place; return how many operations changed."""
    stats = PassStats()
    return sum(_run(graph, name, fn, stats) for name, fn in PASSES if name in _OTHER_ROUNDING and name not in disabled)


def run_passes(graph: HCFG, disabled: Collection[str] = (), outlined: bool = True) -> PassStats:
    """Run the passes on a graph, in place, with the verifier before the first and after each one that changes something.

    Parameters
    ----------
    graph : HCFG
        As the front end emits it, with tensor and host operations.
    disabled : collection of str
        Names of passes to leave out (for ablations). ``outline`` cannot be left out.
    outlined : bool
        False leaves single operations, for further passes.

    Raises
    ------
    UsageError
        If a name in ``disabled`` is none of the passes.
    InvariantError
        If the graph is unsound before, or a pass has broken it; the message names the pass.
    """
    names = [name for name, _ in PASSES]
    unknown = sorted(set(disabled) - set(names[:-1]))
    if unknown:
        raise UsageError(f"cannot disable {', '.join(unknown)}; passes that can be disabled: {', '.join(names[:-1])}")
    stats = PassStats()
    active = [(name, fn) for name, fn in PASSES[1:-1] if name not in disabled]
    _verify(graph, "the front end", stats)
    if PASSES[0][0] not in disabled:
        _run(graph, *PASSES[0], stats)
    changed = bool(active)
    while changed and stats.rounds < MAX_ROUNDS:
        stats.rounds += 1
        changed = False
        for name, fn in active:
            changed = bool(_run(graph, name, fn, stats)) or changed
    if outlined:
        _run(graph, *PASSES[-1], stats)
    return stats


def _run(graph: HCFG, name: str, fn: Pass, stats: PassStats) -> int:
    start = time.perf_counter()
    changes = fn(graph)
    stats.seconds[name] = stats.seconds.get(name, 0.0) + time.perf_counter() - start
    stats.changes[name] = stats.changes.get(name, 0) + changes
    if changes:
        _verify(graph, f"the pass {name}", stats)
    return changes


def _verify(graph: HCFG, after: str, stats: PassStats) -> None:
    start = time.perf_counter()
    try:
        verify(graph)
    except InvariantError as error:
        raise InvariantError(f"after {after}: {error}") from error
    finally:
        stats.verify_seconds += time.perf_counter() - start
