# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The draws of PyTorch on CUDA as functions of the state of a generator: :mod:`dycl_tvm.hcfg.draws` for GPUs.

Importing the file makes them PyTorch operators of the namespace ``dycl_philox``, with the names and parameters of ``dycl_random``: those
that PyTorch takes. The state is what ``torch.cuda.get_rng_state()`` gives: the seed and the offset. Here numbers are computed by
NumPy; :mod:`dycl_tvm.compile.ops.philox` has the kernels. Sources: PyTorch's ``DistributionTemplates.h``, ``TransformationHelper.h`` and
``Dropout.cu``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from dycl_tvm.hcfg import philox
from dycl_tvm.hcfg.draws import CPU, CUDA_NAMESPACE, Kind
from dycl_tvm.hcfg.philox import Way
from dycl_tvm.hcfg.types import TensorType

_Function = TypeVar("_Function", bound=Callable[..., object])
_Result = tuple[torch.Tensor, torch.Tensor]
_library = torch.library.Library(CUDA_NAMESPACE, "DEF")
#: Ranges from which a whole number takes two words.
TWO_WORDS = 1 << 28


def _operator(schema: str) -> Callable[[_Function], _Function]:
    """Make a function a PyTorch operator."""

    def register(function: _Function) -> _Function:
        _library.define(schema)
        _library.impl(schema.split("(")[0], function, "CompositeExplicitAutograd")
        return function

    return register


def _array(t: torch.Tensor) -> Any:
    """Return a copy as an array: PyTorch notes of memory that it was handed to NumPy."""
    return t.clone().numpy()


def moved(state: torch.Tensor, by: int) -> torch.Tensor:
    """Return the state after a draw."""
    seed, offset = philox.unpacked(_array(state))
    return torch.from_numpy(philox.packed(seed, offset + by)).clone()


def of_seed(seed: int) -> torch.Tensor:
    """Return the state of a generator that was given a seed."""
    return torch.from_numpy(philox.packed(seed, 0)).clone()


def way_of(size: Sequence[int], dtype: torch.dtype) -> Way:
    """Return how a draw of floating-point numbers is spread over threads."""
    return Way(math.prod(size), 2 if dtype == torch.float64 else 4)


def _drawn(state: torch.Tensor, size: Sequence[int], way: Way, make: Callable[[Any, Any], Any], dtype: torch.dtype) -> _Result:
    """Draw with a function from words and components to numbers."""
    numbers = make(*philox.drawn(_array(state), way))
    return torch.tensor(numbers).to(dtype).reshape(list(size)), moved(state, way.advance(philox.DEVICE.threads))


def _wide(x: float, dtype: torch.dtype) -> Any:
    """Return a parameter in the type in which PyTorch computes."""
    return np.float64(x) if dtype == torch.float64 else np.float32(x)


def interval(low: float, high: float, dtype: torch.dtype) -> tuple[float, float, float]:
    """Return the ends of an interval and its width, as PyTorch rounds them."""
    first, last = torch.tensor(low, dtype=dtype), torch.tensor(high, dtype=dtype)
    return float(first), float(last), float(last - first)


#: The draws whose numbers no function of a GPU approximates.
_EXACT = frozenset(
    f"{CUDA_NAMESPACE}.{name}.default" for name in ("uniform", "bernoulli", "bernoulli_each", "dropout", "integers", "seeded")
)


def is_of_device(op: str, numel: int) -> bool:
    """Whether the numbers of an operation, of so many elements, are known on the GPU only that draws them."""
    return op.startswith(f"{CUDA_NAMESPACE}.") and (op not in _EXACT or numel > philox.SMALL)


@_operator("uniform(Tensor state, int[] size, float low, float high, ScalarType dtype) -> (Tensor, Tensor)")
def _uniform(state: torch.Tensor, size: Sequence[int], low: float, high: float, dtype: torch.dtype) -> _Result:
    double = dtype == torch.float64
    first, last, width = interval(low, high, dtype)

    def make(words: Any, component: Any) -> Any:
        return philox.fused(philox.uniform(words, component, double), _wide(width, dtype), _wide(first, dtype))

    value, after = _drawn(state, size, way_of(size, dtype), make, dtype)
    return torch.where(value == last, torch.tensor(first, dtype=dtype), value), after


def _of_normal(dtype: torch.dtype, mean: float, std: float) -> Callable[[Any, Any], Any]:

    def make(words: Any, component: Any) -> Any:
        return philox.fused(philox.normal(words, component, dtype == torch.float64), _wide(std, dtype), _wide(mean, dtype))

    return make


@_operator("normal(Tensor state, int[] size, float mean, float std, ScalarType dtype, bool one_by_one) -> (Tensor, Tensor)")
def _normal(state: torch.Tensor, size: Sequence[int], mean: float, std: float, dtype: torch.dtype, one_by_one: bool) -> _Result:
    return _drawn(state, size, way_of(size, dtype), _of_normal(dtype, mean, std), dtype)


@_operator("log_normal(Tensor state, int[] size, float mean, float std, ScalarType dtype) -> (Tensor, Tensor)")
def _log_normal(state: torch.Tensor, size: Sequence[int], mean: float, std: float, dtype: torch.dtype) -> _Result:
    make = _of_normal(dtype, mean, std)
    return _drawn(state, size, way_of(size, dtype), lambda words, component: philox.rounded("exp", make(words, component)), dtype)


@_operator("cauchy(Tensor state, int[] size, float median, float sigma, ScalarType dtype) -> (Tensor, Tensor)")
def _cauchy(state: torch.Tensor, size: Sequence[int], median: float, sigma: float, dtype: torch.dtype) -> _Result:
    double = dtype == torch.float64

    def make(words: Any, component: Any) -> Any:
        u = philox.uniform(words, component, double)
        if not double:
            u = np.clip(u, np.float32(2.0**-23), np.float32(1 - 2.0**-23))
        angle = u.dtype.type(np.pi) * (u - u.dtype.type(0.5))
        return philox.fused(philox.rounded("tan", angle), _wide(sigma, dtype), _wide(median, dtype))

    return _drawn(state, size, way_of(size, dtype), make, dtype)


def exponential_of(u: Any) -> Any:
    """Return the logarithm that PyTorch takes of a uniform number for an exponential one: never zero."""
    half = u.dtype.type(np.finfo(u.dtype).eps / 2)
    return np.where(u >= 1 - half, -half, philox.rounded("log", u))


@_operator("exponential(Tensor state, int[] size, float rate, ScalarType dtype) -> (Tensor, Tensor)")
def _exponential(state: torch.Tensor, size: Sequence[int], rate: float, dtype: torch.dtype) -> _Result:
    factor = _wide(-1.0, dtype) / _wide(rate, dtype)
    double = dtype == torch.float64
    return _drawn(state, size, way_of(size, dtype), lambda w, c: factor * exponential_of(philox.uniform(w, c, double)), dtype)


@_operator("geometric(Tensor state, int[] size, float p, ScalarType dtype) -> (Tensor, Tensor)")
def _geometric(state: torch.Tensor, size: Sequence[int], p: float, dtype: torch.dtype) -> _Result:
    double = dtype == torch.float64
    below = np.float64(math.log1p(-p)) if double else philox.rounded("log", np.float32(1) + -np.float32(p))

    def make(words: Any, component: Any) -> Any:
        return np.ceil(philox.rounded("log", philox.uniform(words, component, double)) / below)

    return _drawn(state, size, way_of(size, dtype), make, dtype)


@_operator("bernoulli(Tensor state, int[] size, float p, ScalarType dtype) -> (Tensor, Tensor)")
def _bernoulli(state: torch.Tensor, size: Sequence[int], p: float, dtype: torch.dtype) -> _Result:
    double = dtype == torch.float64
    return _drawn(state, size, way_of(size, dtype), lambda w, c: philox.uniform(w, c, double) < _wide(p, dtype), dtype)


@_operator("dropout(Tensor state, int[] size, float keep, ScalarType dtype) -> (Tensor, Tensor)")
def _dropout(state: torch.Tensor, size: Sequence[int], keep: float, dtype: torch.dtype) -> _Result:
    way = way_of_dropout(size)
    return _drawn(state, size, way, lambda words, component: philox.uniform(words, component, False) < np.float32(keep), dtype)


def way_of_dropout(size: Sequence[int]) -> Way:
    """Return how the mask of a dropout is spread over threads: four neighbours to each, or two, where that divides their number."""
    numel = math.prod(size)
    return Way(numel, 4, next(n for n in (4, 2, 1) if numel % n == 0))


@_operator("bernoulli_each(Tensor state, Tensor p, ScalarType dtype) -> (Tensor, Tensor)")
def _bernoulli_each(state: torch.Tensor, p: torch.Tensor, dtype: torch.dtype) -> _Result:
    chance = _array(p.double()).reshape(-1) if dtype == torch.float64 else _array(p.float()).reshape(-1)
    if not ((chance >= 0) & (chance <= 1)).all():
        raise RuntimeError("Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    element = np.arange(p.numel())
    words = philox.words(_array(state), element // 4, 0)
    made = philox.uniform(words, element % 4, False) <= chance
    return torch.tensor(made).to(dtype).reshape(p.shape), moved(state, philox.EACH_ADVANCE)


@_operator("integers(Tensor state, int[] size, int low, int high, ScalarType dtype) -> (Tensor, Tensor)")
def _integers(state: torch.Tensor, size: Sequence[int], low: int, high: int, dtype: torch.dtype) -> _Result:
    width = high - low

    def make(words: Any, component: Any) -> Any:
        found = philox.chosen(words, component)
        if width >= TWO_WORDS:
            high_word, low_word = philox.chosen((words[0], words[2]), component), philox.chosen((words[1], words[3]), component)
            found = high_word << np.uint64(32) | low_word
        return (found % np.uint64(width) + np.uint64(low % (1 << 64))).astype(np.int64)

    return _drawn(state, size, way_of_integers(size, width), make, dtype)


def way_of_integers(size: Sequence[int], width: int) -> Way:
    """Return how a draw of whole numbers is spread over threads."""
    return Way(math.prod(size), 2 if width >= TWO_WORDS else 4)


@_operator("multinomial(Tensor state, Tensor weights, int count, bool replacement, bool by_columns) -> (Tensor, Tensor)")
def _multinomial(state: torch.Tensor, weights: torch.Tensor, count: int, replacement: bool, by_columns: bool) -> _Result:
    if not bool(((weights >= 0) & (weights < math.inf)).all()):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    if bool((weights.sum(-1) == 0).any()):
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    size = tuple(reversed(weights.shape)) if by_columns else tuple(weights.shape)
    time, after = _exponential(state, size, 1.0, weights.dtype)
    return torch.argmax(weights / (time.t() if by_columns else time), -1, keepdim=True), after


@_operator("seeded(Tensor seed) -> Tensor")
def _seeded(seed: torch.Tensor) -> torch.Tensor:
    return of_seed(int(seed))


#: What the generators of a network for GPUs are.
CUDA = Kind(CUDA_NAMESPACE, TensorType((philox.STATE_BYTES,), "uint8"), of_seed)
#: The kinds of generators by the devices on which they draw.
KINDS = {"cpu": CPU, "cuda": CUDA}
