# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which schedules a kernel may have on a GPU, best first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.s_tir import dlight

from dycl_tvm.backends.tir_cuda.convolution import convolution
from dycl_tvm.backends.tir_cuda.gemv import gemv
from dycl_tvm.backends.tir_cuda.int8 import int8
from dycl_tvm.backends.tir_cuda.per_output import elementwise, small_reduction
from dycl_tvm.backends.tir_cuda.product import product
from dycl_tvm.backends.tir_cuda.rows import pairs, rows
from dycl_tvm.backends.tir_cuda.tensor_cores import tensor_cores


@dataclass(frozen=True)
class Candidate:
    """A scheduled PrimFunc and the name of the rule that made it."""

    rule: str
    function: Any


def _dlight(rule: Any) -> Callable[[Any, Any], Any]:
    def apply(fn: Any, target: tvm.target.Target) -> Any:
        found = rule.apply(fn, target, False)
        if found is None:
            return None
        schedule = found[0] if isinstance(found, (list, tuple)) else found
        return schedule.mod["main"]

    return apply


class _Reduction(dlight.gpu.Reduction):  # type: ignore[misc]  # TVM has no types
    """DLight's rule, without what it gets wrong.

    Where an index is divided in what is read, as the channel is in a convolution of groups, a thread stores several neighbouring results
    in memory of its own; what follows the sum is spread over the threads in another way and reads results of other threads there.
    """

    def _sch_inner_reduction(self, sch: Any, target: Any, block: Any, unrolled: Any, epilogue: Any, *rest: Any) -> None:
        _refuse_finishes_of_others(unrolled, epilogue)
        super()._sch_inner_reduction(sch, target, block, unrolled, epilogue, *rest)

    def _sch_inner_spatial(self, sch: Any, target: Any, block: Any, extent: Any, unrolled: Any, epilogue: Any, *rest: Any) -> None:
        _refuse_finishes_of_others(unrolled, epilogue)
        super()._sch_inner_spatial(sch, target, block, extent, unrolled, epilogue, *rest)


def _refuse_finishes_of_others(unrolled: Any, epilogue: Any) -> None:
    if unrolled is not None and epilogue is not None:
        raise ValueError("results of a thread would be finished by others")


#: Rules in the order in which they are asked. The last one takes everything that has no threads of its own.
_RULES: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("int8", int8),
    ("convolution", convolution),
    ("elementwise", elementwise),
    ("pairs", pairs),
    ("rows", rows),
    ("gemv", gemv),
    ("product", product),
    ("small_reduction", small_reduction),
    ("matmul", _dlight(dlight.gpu.Matmul())),
    ("dlight_gemv", _dlight(dlight.gpu.GEMV())),
    ("reduction", _dlight(_Reduction())),
    ("general_reduction", _dlight(dlight.gpu.GeneralReduction())),
    ("transpose", _dlight(dlight.gpu.Transpose())),
    ("fallback", _dlight(dlight.gpu.Fallback())),
)


def candidates(fn: Any, target: tvm.target.Target, half: bool = False) -> Iterator[Candidate]:
    """Yield the schedules of a PrimFunc for a GPU, best first; the caller takes the first that compiles.

    Parameters
    ----------
    fn : tvm.tirx.PrimFunc
        Unscheduled.
    target : tvm.target.Target
        Of kind ``cuda``.
    half : bool
        Whether factors of products may be rounded to float16.
    """
    rules = (("tensor_cores", lambda fn, target: tensor_cores(fn, target, half)), *_RULES)
    with target:
        for name, rule in rules:
            try:
                scheduled = rule(fn, target)
            except Exception:  # a rule that meets a form it was not written for; the next one is asked
                continue
            if scheduled is not None:
                yield Candidate(name, scheduled)
