# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Rewritten operations against those that they replace, each one alone, on random operands.

A pass that rounds otherwise than the model may change what a quantised network returns by whole steps, so results say little of whether it
is right. The sums of one operation differ by the roundings of float32 only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dycl_tvm.errors import VerificationError
from dycl_tvm.hcfg.interpreter import resolve
from dycl_tvm.hcfg.nodes import HCFG, Constant, TensorOp, Value
from dycl_tvm.hcfg.types import TensorType

Makers = Mapping[Value, TensorOp]
#: How far sums of float32 may be from exact ones, of the largest result, and where that has few digits.
_ROUNDING, _LEAST = 2e-5, 1e-37


def makers(graph: HCFG) -> dict[Value, TensorOp]:
    """Return the operation that makes each value."""
    return {v: s for b in graph.blocks for s in b.steps if isinstance(s, TensorOp) for v in s.results()}


def check_rewrites(before: Makers, graph: HCFG, seed: int = 0) -> int:
    """Compare each value of which a pass has changed the maker; return how many were compared.

    Parameters
    ----------
    before : mapping
        The makers before the pass, which leaves values that it keeps as they are.
    graph : HCFG
        After it.
    seed : int
        Of the operands.

    Raises
    ------
    VerificationError
        If a value differs by more than roundings.
    """
    after, compared = makers(graph), 0
    for value, step in after.items():
        old = before.get(value)
        if old is None or old is step or not isinstance(value.type, TensorType) or not value.type.numel:
            continue
        drawn = _Operands(before, torch.Generator().manual_seed(seed))
        found = drawn.run(value, after)
        with torch.no_grad():
            expected = drawn.run(value, before)
        compared += 1
        what = _difference(expected, found)
        if what is not None:
            raise VerificationError(f"{old.op} was rewritten to something else: a defect of dycl_tvm. Nothing was written.\n{what}")
    return compared


class _Operands:
    """Values of one comparison: those that both sides read are drawn."""

    def __init__(self, shared: Makers, generator: torch.Generator) -> None:
        self._shared, self._generator, self._drawn = shared, generator, dict[Value, torch.Tensor]()

    def run(self, value: Value, made: Makers) -> torch.Tensor:
        """Compute a value of what was drawn already, or of what the graph had before, which is drawn now."""
        return self._of(value, made, {}, self._drawn if made is self._shared else None)

    def _of(self, value: Value, made: Makers, done: dict[Value, Any], known: Mapping[Value, torch.Tensor] | None) -> Any:
        stack = [value]
        while stack:
            step = made[stack[-1]]
            missing = [v for v in step.operands() if not isinstance(v, Constant) and v not in done]
            ready = True
            for v in missing:
                stop = v not in made or (v in known if known is not None else v in self._shared)
                if stop:
                    done[v] = self._draw(v)
                else:
                    stack.append(v)
                    ready = False
            if not ready:
                continue
            args, kwargs = _filled((step.args, step.kwargs), done)
            results = resolve(step.op)(*args, **kwargs)
            results = results if isinstance(results, (tuple, list)) else (results,)
            done.update({out: r for out, r in zip(step.outputs, results) if out is not None})
            stack.pop()
        return done[value]

    def _draw(self, value: Value) -> torch.Tensor:
        if value not in self._drawn:
            assert isinstance(value.type, TensorType)
            shape, dtype = value.type.shape, getattr(torch, value.type.dtype)
            if dtype in (torch.int8, torch.uint8):
                low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1
            else:  # of other integers a zero point
                low, high = 0, 100
            if dtype.is_floating_point:
                drawn = torch.randn(shape, generator=self._generator, dtype=torch.float64) * 3
                drawn = drawn.abs() + 0.01 if value.type.numel == 1 else drawn  # a scale
            else:
                drawn = torch.randint(low, high, shape, generator=self._generator)
            self._drawn[value] = drawn.to(dtype)
        return self._drawn[value]


def _filled(argument: Any, done: Mapping[Value, Any]) -> Any:
    if isinstance(argument, Constant):
        return argument.data
    if isinstance(argument, Value):
        return done[argument]
    if isinstance(argument, dict):
        return {k: _filled(v, done) for k, v in argument.items()}
    return type(argument)(_filled(a, done) for a in argument) if isinstance(argument, (tuple, list)) else argument


def _difference(expected: torch.Tensor, found: torch.Tensor) -> str | None:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return f"{found.dtype}{list(found.shape)} in the place of {expected.dtype}{list(expected.shape)}"
    a, b = expected.double(), found.double()
    there = a.isfinite() & b.isfinite()  # operands are finite: what is not is beyond float32, where the order of a sum tells
    bound = _ROUNDING * (a * there).nan_to_num(0, 0, 0).abs().max() + _LEAST if expected.is_floating_point() else 0.0
    wrong = there & ((a - b).abs() > bound)
    return f"{int(wrong.sum())} of {wrong.numel()} elements differ, by {(a - b)[wrong].abs().max():.3g} at most" if wrong.any() else None
