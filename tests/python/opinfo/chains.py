# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Random chains of operators: each takes the result of the one before, with views and reshapes in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from check import convertible, difference
from samples import OPERATORS, Sample, samples, tensors_of
from torch import Tensor

#: Elements beyond which a chain is not followed.
_LARGEST = 4096


def view(x: Tensor, draw: random.Random) -> tuple[str, Callable[[Tensor], Tensor]]:
    """Return a random way of looking at a tensor that moves elements and computes nothing."""
    rank, shape = x.dim(), list(x.shape)
    dim = draw.randrange(rank) if rank else 0
    order = draw.sample(range(rank), rank)
    flat = _shape(x.numel(), draw)
    by, start = draw.randint(1, 3), draw.randrange(shape[dim]) if rank and shape[dim] else 0
    shifts = [draw.randint(-3, 3) for _ in shape]
    choices: list[tuple[str, Callable[[Tensor], Tensor]]] = [
        (f"reshape({flat})", lambda t: t.reshape(flat)),
        (f"reshape({flat})", lambda t: t.reshape(flat)),
        (f"permute({order})", lambda t: t.permute(order)),
        (f"flip({dim})", lambda t: t.flip(dim) if rank else t),
        (f"roll({shifts})", lambda t: t.roll(shifts, list(range(rank))) if rank else t),
        (f"[{start}::{by}] of {dim}", lambda t: t[(slice(None),) * dim + (slice(start, None, by),)] if rank else t),
        (f"repeat_interleave(2, {dim})", lambda t: t.repeat_interleave(2, dim) if rank else t),
        (f"cat with its flip in {dim}", lambda t: torch.cat([t, t.flip(dim)], dim) if rank else t),
        (f"pad({by}, 1)", lambda t: torch.nn.functional.pad(t, (by, 1), value=0.5) if rank else t),
    ]
    return draw.choice(choices)


def _shape(count: int, draw: random.Random) -> list[int]:
    factors: list[int] = []
    while count > 1:
        divisors = [d for d in range(2, count + 1) if count % d == 0]
        factors.append(draw.choice([*divisors[:4], divisors[-1]]))
        count //= factors[-1]
    draw.shuffle(factors)
    return factors or [count]


class Chains:
    """Chains of samples of the operators that can be compiled, each of one of the types."""

    def __init__(self, operators: list[str], dtypes: Sequence[torch.dtype] = (torch.float32,)) -> None:
        self.operators, self.dtypes = operators, dtypes
        self._samples: dict[tuple[str, torch.dtype], list[Sample]] = {}

    def chain(self, seed: int) -> Sample:
        """Return a chain of 3 to 6 operators."""
        draw = random.Random(seed)
        start = torch.randn(_shape(draw.choice([8, 12, 24, 36, 48, 60, 64]), draw), generator=torch.Generator().manual_seed(seed))
        x, extra = start, [start]
        steps: list[tuple[str, Callable[[Tensor, Any], Any], tuple[int, int]]] = []
        wanted, tries = draw.randint(3, 6), 0
        while sum(name in OPERATORS for name, _, _ in steps) < wanted and tries < 200:
            tries += 1
            if draw.random() < 0.45:
                name, fn = view(x, draw)
                step, own = (lambda t, _, fn=fn: fn(t)), []
            else:
                name = draw.choice(self.operators)
                found = self._step(name, x, draw)
                if found is None:
                    continue
                step, own = found
            try:
                with torch.no_grad():
                    y = step(x.clone(), own)
            except Exception:
                continue
            if not _goes_on(y):
                continue
            steps.append((name, step, (len(extra), len(extra) + len(own))))
            extra += own
            x = y

        def run(*tensors: Tensor) -> Any:
            value = tensors[0]
            for _, step, (a, b) in steps:
                value = step(value, tensors[a:b])
            return value

        return Sample(f"chain {seed}: {tuple(start.shape)} -> {' -> '.join(n for n, _, _ in steps)}", "chain", run, tuple(extra))

    def _step(self, name: str, x: Tensor, draw: random.Random) -> Any:
        """Return a sample with its first tensor replaced by the chain's, reshaped to it if the elements are as many."""
        dtype = draw.choice(self.dtypes)
        if (name, dtype) not in self._samples:
            self._samples[name, dtype] = [s for s in samples(name, dtype, 6) if s.tensors and convertible(s).kind == "right"]
        if not self._samples[name, dtype]:
            return None
        sample = draw.choice(self._samples[name, dtype])
        first, *others = sample.tensors
        run, shape, dtype = sample.run, list(first.shape), first.dtype
        if dtype not in self.dtypes or first.numel() == 0:
            return None
        count = first.numel()
        if others:  # their shapes were made for that of the first: its elements are taken in turn

            def step(t: Tensor, own: Any) -> Any:
                taken = torch.cat([t.reshape(-1)] * -(-count // t.numel()))[:count]
                return self._first(run(_as(taken, dtype).reshape(shape), *own))

            return step, others
        return (lambda t, own: self._first(run(_as(t, dtype)))), []

    def _first(self, result: Any) -> Any:
        return next((t for t in tensors_of(result) if isinstance(t, Tensor) and t.dtype in self.dtypes), None)


def is_stable(chain: Sample) -> bool:
    """Whether a chain keeps small errors small: one that does not, such as a floor of a sum, says nothing about the compiler."""
    noise = torch.Generator().manual_seed(0)

    def near(t: Tensor) -> Tensor:
        return t * (1 + 1e-6 * torch.randn(t.shape, generator=noise)) if t.dtype.is_floating_point else t

    with torch.no_grad():
        return difference(chain.eager(), chain.run(*(near(t) for t in chain.tensors))) == ""


def _as(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor in another type by operations that are defined for all of its elements, and that small errors do not change."""
    if not t.dtype.is_floating_point or dtype.is_floating_point:
        return t.to(dtype)
    return t > 0.01 if dtype == torch.bool else t.clamp(0, 100).round().to(dtype)


def _goes_on(y: Any) -> bool:
    """Whether a chain can go on from a result: finite numbers of moderate size, which later operators do not blow up."""
    if not isinstance(y, Tensor) or not 2 <= y.numel() <= _LARGEST or y.dim() > 6:
        return False
    return bool(y.isfinite().all()) and 1e-3 < float(y.double().abs().max()) < 1e3
