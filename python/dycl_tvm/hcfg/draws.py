# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Random operators as functions of the state of a generator: they take a state and give the numbers and the next state.

So they are as pure as all operations of a graph: what is drawn, and in which order, follows from the flow of the state, and no pass
needs to know of randomness. Importing the file makes them PyTorch operators of the namespace ``dycl_random``; here they are PyTorch's own
draws from a generator of that state, so they give on this machine what eager gives. ``src/runtime/draws.h`` has the same for artefacts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.hcfg.types import TensorType

#: What begins the name of a draw in a graph, and of one as GPUs draw (:mod:`dycl_tvm.hcfg.cuda_draws`).
NAMESPACE, CUDA_NAMESPACE = "dycl_random", "dycl_philox"
#: The state of a generator: the bytes of ``torch.Generator.get_state()``.
STATE = TensorType((torch.Generator().get_state().numel(),), "uint8")
#: The name of the state variable that stands for PyTorch's default generator.
DEFAULT_GENERATOR = "torch.default_generator"

_Result = tuple[torch.Tensor, torch.Tensor]
_library = torch.library.Library(NAMESPACE, "DEF")


#: The seed of a new ``torch.Generator()``, with which a session begins.
FIRST_SEED = torch.Generator().initial_seed()


@dataclass(frozen=True)
class Kind:
    """A kind of generators.

    Attributes
    ----------
    namespace : str
        Of its draws.
    state : TensorType
    of_seed : callable
        Returns the state of a generator that was given a seed.
    """

    namespace: str
    state: TensorType
    of_seed: Callable[[int], torch.Tensor]

    @property
    def draws(self) -> Any:
        """The operators that draw, as attributes."""
        return getattr(torch.ops, self.namespace)

    def first(self) -> torch.Tensor:
        """Return the state with which the default generator of a session begins."""
        return self.of_seed(FIRST_SEED)


#: What the generators of a network for CPUs are.
CPU = Kind(NAMESPACE, STATE, lambda seed: torch.Generator().manual_seed(seed).get_state())


def default_state() -> torch.Tensor:
    """Return the state with which the default generator of a new process begins."""
    return CPU.first()


def is_draw(op: str) -> bool:
    """Whether an operation of a graph is one of these, by its name."""
    return op.startswith((f"{NAMESPACE}.", f"{CUDA_NAMESPACE}."))


def _operator(schema: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Make a function a PyTorch operator."""

    def register(function: Callable[..., object]) -> Callable[..., object]:
        _library.define(schema)
        _library.impl(schema.split("(")[0], function, "CompositeExplicitAutograd")
        return function

    return register


def _from(state: torch.Tensor, draw: Callable[[torch.Generator], torch.Tensor]) -> _Result:
    generator = torch.Generator()
    generator.set_state(state)
    return draw(generator), generator.get_state()


@_operator("uniform(Tensor state, int[] size, float low, float high, ScalarType dtype) -> (Tensor, Tensor)")
def _uniform(state: torch.Tensor, size: Sequence[int], low: float, high: float, dtype: torch.dtype) -> _Result:
    return _from(state, lambda g: torch.empty(size, dtype=dtype).uniform_(low, high, generator=g))


@_operator("normal(Tensor state, int[] size, float mean, float std, ScalarType dtype, bool one_by_one) -> (Tensor, Tensor)")
def _normal(state: torch.Tensor, size: Sequence[int], mean: float, std: float, dtype: torch.dtype, one_by_one: bool) -> _Result:
    def draw(generator: torch.Generator) -> torch.Tensor:
        # PyTorch has another algorithm for 16 contiguous elements and more
        made = torch.empty([*size, 2], dtype=dtype)[..., 0] if one_by_one else torch.empty(size, dtype=dtype)
        return made.normal_(mean, std, generator=generator).clone(memory_format=torch.contiguous_format)

    return _from(state, draw)


def _some(count: torch.Tensor, size: int, draw: Callable[[int], _Result]) -> _Result:
    """Draw as many numbers as a tensor says, at most ``size``; zeros are behind them."""
    made, state = draw(min(max(int(count), 0), size))
    return torch.cat([made, made.new_zeros(size - made.numel())]), state


@_operator("uniform_some(Tensor state, Tensor count, int size, float low, float high, ScalarType dtype) -> (Tensor, Tensor)")
def _uniform_some(state: torch.Tensor, count: torch.Tensor, size: int, low: float, high: float, dtype: torch.dtype) -> _Result:
    return _some(count, size, lambda n: CPU.draws.uniform(state, [n], low, high, dtype))


@_operator(
    "normal_some(Tensor state, Tensor count, Tensor one_by_one, int size, float mean, float std, ScalarType dtype) -> (Tensor, Tensor)"
)
def _normal_some(
    state: torch.Tensor, count: torch.Tensor, one_by_one: torch.Tensor, size: int, mean: float, std: float, dtype: torch.dtype
) -> _Result:
    return _some(count, size, lambda n: CPU.draws.normal(state, [n], mean, std, dtype, bool(one_by_one)))


@_operator("log_normal(Tensor state, int[] size, float mean, float std, ScalarType dtype) -> (Tensor, Tensor)")
def _log_normal(state: torch.Tensor, size: Sequence[int], mean: float, std: float, dtype: torch.dtype) -> _Result:
    return _from(state, lambda g: torch.empty(size, dtype=dtype).log_normal_(mean, std, generator=g))


@_operator("cauchy(Tensor state, int[] size, float median, float sigma, ScalarType dtype) -> (Tensor, Tensor)")
def _cauchy(state: torch.Tensor, size: Sequence[int], median: float, sigma: float, dtype: torch.dtype) -> _Result:
    return _from(state, lambda g: torch.empty(size, dtype=dtype).cauchy_(median, sigma, generator=g))


@_operator("exponential(Tensor state, int[] size, float rate, ScalarType dtype) -> (Tensor, Tensor)")
def _exponential(state: torch.Tensor, size: Sequence[int], rate: float, dtype: torch.dtype) -> _Result:
    return _from(state, lambda g: torch.empty(size, dtype=dtype).exponential_(rate, generator=g))


@_operator("geometric(Tensor state, int[] size, float p, ScalarType dtype) -> (Tensor, Tensor)")
def _geometric(state: torch.Tensor, size: Sequence[int], p: float, dtype: torch.dtype) -> _Result:
    return _from(state, lambda g: torch.empty(size, dtype=dtype).geometric_(p, generator=g))


@_operator("bernoulli(Tensor state, int[] size, float p, ScalarType dtype) -> (Tensor, Tensor)")
def _bernoulli(state: torch.Tensor, size: Sequence[int], p: float, dtype: torch.dtype) -> _Result:
    return _from(state, lambda g: torch.empty(size, dtype=dtype).bernoulli_(p, generator=g))


@_operator("bernoulli_each(Tensor state, Tensor p, ScalarType dtype) -> (Tensor, Tensor)")
def _bernoulli_each(state: torch.Tensor, p: torch.Tensor, dtype: torch.dtype) -> _Result:
    return _from(state, lambda g: torch.empty(p.shape, dtype=dtype).bernoulli_(p, generator=g))


@_operator("normal_each(Tensor state, Tensor mean, Tensor std, bool one_by_one) -> (Tensor, Tensor)")
def _normal_each(state: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, one_by_one: bool) -> _Result:
    if std.numel() and not bool(std.min() >= 0):
        raise RuntimeError("normal expects all elements of std >= 0.0")
    made, after = CPU.draws.normal(state, mean.shape, 0.0, 1.0, mean.dtype, one_by_one)
    return made * std + mean, after


@_operator("poisson(Tensor state, Tensor rate) -> (Tensor, Tensor)")
def _poisson(state: torch.Tensor, rate: torch.Tensor) -> _Result:
    return _from(state, lambda g: torch.poisson(rate.contiguous(), generator=g))


@_operator("gamma(Tensor state, Tensor shape) -> (Tensor, Tensor)")
def _gamma(state: torch.Tensor, shape: torch.Tensor) -> _Result:
    return _from(state, lambda g: torch._standard_gamma(shape.contiguous(), generator=g))


@_operator("integers(Tensor state, int[] size, int low, int high, ScalarType dtype) -> (Tensor, Tensor)")
def _integers(state: torch.Tensor, size: Sequence[int], low: int, high: int, dtype: torch.dtype) -> _Result:
    return _from(state, lambda g: torch.empty(size, dtype=dtype).random_(low, high, generator=g))


@_operator("permutation(Tensor state, int n, ScalarType dtype) -> (Tensor, Tensor)")
def _permutation(state: torch.Tensor, n: int, dtype: torch.dtype) -> _Result:
    return _from(state, lambda g: torch.randperm(n, generator=g, dtype=dtype))


@_operator("multinomial(Tensor state, Tensor weights, int count, bool replacement, bool by_columns) -> (Tensor, Tensor)")
def _multinomial(state: torch.Tensor, weights: torch.Tensor, count: int, replacement: bool, by_columns: bool) -> _Result:
    weights = weights.t().contiguous().t() if by_columns else weights.contiguous()
    return _from(state, lambda g: torch.multinomial(weights, count, replacement, generator=g))


@_operator("seeded(Tensor seed) -> Tensor")
def _seeded(seed: torch.Tensor) -> torch.Tensor:
    return torch.Generator().manual_seed(int(seed)).get_state()
