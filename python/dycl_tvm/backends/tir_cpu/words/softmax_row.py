# Licensed under the Apache License, Version 2.0; see LICENSE.
"""One row of a softmax: its maximum, the exponentials of what is below it, and their sum."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.tir_cpu.words import vector_math
from dycl_tvm.backends.tir_cpu.words.loops import store
from dycl_tvm.backends.tir_cpu.words.vectors import CHAINS, across, along, fill, merge


def larger(a: Any, b: Any) -> Any:
    """Return the larger of two; b where one is NaN (a softmax's sum spreads NaN anyway)."""
    return tirx.Select(a > b, a, b)


def _chains(n: Any, lanes: int, value: float) -> list[Any]:
    """Declare what n elements are reduced to, a vector for each of those that are under way at once."""
    chains = [T.alloc_buffer((lanes,), "float32") for _ in range(min(CHAINS, -(-n // lanes)) if isinstance(n, int) else CHAINS)]
    for chain in chains:
        fill(chain, lanes, lanes, value)
    return chains


def reduce_row(n: Any, lanes: int, identity: float, value: Callable[[Any], Any], combine: Callable[[Any, Any], Any]) -> Any:
    """Emit the reduction of ``value(element)`` over n elements; return a buffer whose first element is the result.

    Where ``n`` is an expression, it is a multiple of ``lanes``.
    """
    chains = _chains(n, lanes, identity)
    along(n, lanes, lambda c, v, j: store(chains[c], [v], combine(chains[c][v], value(j))))
    first = chains[0]
    for chain in chains[1:]:
        merge(first, chain, lanes, lanes, combine)
    across(first, lanes, combine)
    return first


def softmax_row(
    n: Any,
    lanes: int,
    load: Callable[[Any], Any],
    put: Callable[[Any, Any], None],
    again: Callable[[Any], Any],
    settle: Callable[[Any], None] = lambda peak: None,
) -> tuple[Any, Any]:
    """Emit one row: exponentials of ``load`` less its maximum to ``put``; return buffers with the maximum and the sum as first elements.

    Where ``n`` is an expression, it is a multiple of ``lanes``. ``settle`` may change the maximum before it is used.
    """
    peak = reduce_row(n, lanes, -math.inf, load, larger)
    settle(peak)
    chains = _chains(n, lanes, 0.0)

    def element(c: int, v: Any, j: Any) -> None:
        put(j, vector_math.exp_of_difference(load(j) + tirx.const(-1, "float32") * peak[0]))
        store(chains[c], [v], chains[c][v] + again(j))

    along(n, lanes, element)
    first = chains[0]
    for chain in chains[1:]:
        merge(first, chain, lanes, lanes, operator.add)
    across(first, lanes, operator.add)
    return peak, first
