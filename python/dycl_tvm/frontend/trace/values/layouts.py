# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors whose strides depend on the path: a join of tensors of one shape that lie otherwise in memory, and what is computed of it.

PyTorch itself asks for strides (``reshape`` is a view or a copy by them), so such a tensor answers by operators of ATen, which come to the
recorder; there the join is forked. The result of an operator is found for each of the layouts; mostly it is the same.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.arguments import leaves, map_leaves, tensors_of

aten = torch.ops.aten

#: Results are found for no more combinations of layouts than this; for more the join is forked.
_COMBINATIONS = 16
#: The operators by which PyTorch asks.
QUESTIONS = frozenset(
    ["stride", "sym_stride", "is_contiguous", "sym_is_contiguous", "is_strides_like_format", "is_non_overlapping_and_dense"]
)


class Layouts:
    """The strides that a tensor may have, and the decision to fork so that they are known."""

    __slots__ = ("decision", "strides")

    def __init__(self, strides: Iterable[tuple[int, ...]], decision: Any) -> None:
        self.strides, self.decision = tuple(dict.fromkeys(strides)), decision

    def answer(self, question: Callable[[torch.Tensor], Any], t: torch.Tensor) -> Any:
        """Answer a question of PyTorch's about a tensor; fork if the answer depends on the strides."""
        with plainly():
            answers = [question(meta_of(tuple(t.shape), strides, t.dtype)) for strides in self.strides]
        return answers[0] if all(a == answers[0] for a in answers) else self.settle()

    def settle(self) -> Any:
        """Fork: what is asked for depends on the strides."""
        current().decisions.fork(self.decision, "how a tensor lies in memory depends on the path, and is asked for")


def layouts_of(t: torch.Tensor) -> Layouts | None:
    """Return the layouts of a staged tensor, or of one on the device ``meta`` made by :func:`meta_with`; None if there is one only."""
    found: Layouts | None = getattr(t, "layouts", None)
    return found


def marks_of(t: torch.Tensor) -> tuple[bool, bool]:
    """Return whether a tensor is the conjugate, and the negative, of what lies in its memory: PyTorch's lazy ``conj()``, ``imag``."""
    with torch._C.DisableTorchFunction():  # staging itself looks at the tensor
        return t.is_conj(), t.is_neg()


def with_marks(t: torch.Tensor, conjugate: bool, negative: bool) -> torch.Tensor:
    """Mark a tensor that was just made, see :func:`marks_of`."""
    if conjugate:
        torch._C._set_conj(t, True)  # type: ignore[attr-defined]
    if negative:
        torch._C._set_neg(t, True)  # type: ignore[attr-defined]
    return t


def strides_of(t: torch.Tensor) -> tuple[tuple[int, ...], ...]:
    """Return the strides that a tensor may have."""
    layouts = layouts_of(t)
    return (tuple(t.stride()),) if layouts is None else layouts.strides


def _new_meta(shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: torch.dtype) -> torch.Tensor:
    with plainly():
        if strides is None:
            return torch.empty(shape, dtype=dtype, device="meta")
        return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


@functools.lru_cache(maxsize=4096)
def meta_of(shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor on the device ``meta``, contiguous if no strides are given: one for all that ask, so nobody changes it."""
    return _new_meta(shape, strides, dtype)


def meta_with(shape: Iterable[int], dtype: torch.dtype, strides: Iterable[tuple[int, ...]], decision: Any) -> torch.Tensor:
    """Return a tensor on the device ``meta`` that has one of several strides; nobody changes it."""
    layouts = Layouts(strides, decision)
    if len(layouts.strides) == 1:
        return meta_of(tuple(shape), layouts.strides[0], dtype)
    meta = _new_meta(tuple(shape), layouts.strides[0], dtype)
    meta.layouts = layouts  # type: ignore[attr-defined]
    return meta


def join_layouts(tensors: Sequence[torch.Tensor], decision: Any) -> torch.Tensor:
    """Make a tensor on the device ``meta`` that lies in memory as one of several do, on the paths of ``decision``.

    All have the same marks.
    """
    first = strides_of(tensors[0])
    decisions = [layouts.decision for layouts in map(layouts_of, tensors) if layouts is not None]
    if any(strides_of(t) != first for t in tensors):
        decisions.append(decision)
    earliest = min(decisions, key=_when, default=None)
    joined = meta_with(tensors[0].shape, tensors[0].dtype, [s for t in tensors for s in strides_of(t)], earliest)
    marks = marks_of(tensors[0])
    if any(marks):
        if layouts_of(joined) is None:
            joined = _new_meta(tuple(joined.shape), tuple(joined.stride()), joined.dtype)
        with_marks(joined, *marks)
    return joined


def _when(decision: Any) -> float:
    """Return the place of a decision among all; what stands in the place of one, and is refused, comes last."""
    return float(getattr(decision, "index", math.inf))


def _certain(t: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    return t if layouts_of(t) is None else meta_of(tuple(t.shape), strides, t.dtype)


def result_by_layouts(result: Callable[[Any, Any], Any], args: Any, kwargs: Any, ambiguous: list[Layouts]) -> Any:
    """Return the result of an operator on tensors of which some have several layouts.

    Parameters
    ----------
    result : callable
        Gives the result for arguments of certain layouts.
    args, kwargs
        The arguments.
    ambiguous : list of Layouts
        Those of their tensors that have several.
    """
    decisions = [a.decision for a in ambiguous]
    first = ambiguous[decisions.index(min(decisions, key=_when))]
    if any(any(marks_of(t)) for t in tensors_of(args, kwargs)):
        first.settle()
    tensors = {id(t): t for t in tensors_of(args, kwargs)}
    choices = [[(i, s) for s in strides_of(t)] for i, t in tensors.items()]
    found: list[Any] = []
    errors: list[Exception] = []
    for count, combination in enumerate(itertools.product(*choices)):
        if count == _COMBINATIONS:
            first.settle()
        metas = {i: _certain(tensors[i], s) for i, s in combination}
        with_metas = lambda x, metas=metas: metas[id(x)] if isinstance(x, torch.Tensor) else x  # noqa: E731
        try:
            found.append(result(map_leaves(with_metas, args), map_leaves(with_metas, kwargs)))
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            errors.append(error)
    if errors and found:
        first.settle()
    if errors:
        raise errors[0]
    columns = [list(column) for column in zip(*map(leaves, found))]
    if any(isinstance(c[0], torch.Tensor) and {(x.shape, x.dtype) for x in c} != {(c[0].shape, c[0].dtype)} for c in columns):
        first.settle()
    joined = iter(
        meta_with(c[0].shape, c[0].dtype, [tuple(x.stride()) for x in c], first.decision) if isinstance(c[0], torch.Tensor) else c[0]
        for c in columns
    )
    return map_leaves(lambda _: next(joined), found[0])
