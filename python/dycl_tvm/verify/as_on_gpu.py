# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Eager on the CPU that draws random numbers as PyTorch does on CUDA, for networks that are built for a GPU.

A generator stays the CPU's own, so all that programs do with seeds and states is PyTorch's. Its seed is that of a GPU's generator,
and the offset of that stands where the CPU keeps the second of a pair of normal numbers: nothing else is drawn from it.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from dycl_tvm.hcfg import cuda_draws, philox
from dycl_tvm.hcfg.draws import CPU
from dycl_tvm.verify.functions import SeesFunctions, takes_functions

_draws = cuda_draws.CUDA.draws
#: Where the state of a CPU's generator has its seed, the second number, and whether there is one.
_SEED, _SECOND, _HAS_SECOND = 0, 5024, 5040
#: The operators that draw, and the numbers among their arguments with their defaults.
_NUMBERS: dict[str, tuple[Any, dict[str, float]]] = {
    "rand": (_draws.uniform, {"from": 0.0, "to": 1.0}),
    "uniform": (_draws.uniform, {"from": 0.0, "to": 1.0}),
    "randn": (_draws.normal, {"mean": 0.0, "std": 1.0}),
    "normal": (_draws.normal, {"mean": 0.0, "std": 1.0}),
    "exponential": (_draws.exponential, {"lambd": 1.0}),
    "geometric": (_draws.geometric, {"p": 0.0}),
    "cauchy": (_draws.cauchy, {"median": 0.0, "sigma": 1.0}),
    "log_normal": (_draws.log_normal, {"mean": 1.0, "std": 2.0}),
}


def state_of(generator: torch.Generator) -> torch.Tensor:
    """Return the state that a generator has on a GPU."""
    return _decoded(generator.get_state())


def _decoded(state: torch.Tensor) -> torch.Tensor:
    raw = bytes(state.tolist())
    (seed,) = struct.unpack_from("<Q", raw, _SEED)
    (second,) = struct.unpack_from("<d", raw, _SECOND)
    (has_second,) = struct.unpack_from("<i", raw, _HAS_SECOND)
    return torch.tensor(philox.packed(seed, int(second) if has_second else 0))


def set_state(generator: torch.Generator, state: torch.Tensor) -> None:
    """Give a generator the state of one on a GPU."""
    seed, offset = philox.unpacked(state.clone().numpy())
    raw = bytearray(torch.Generator().manual_seed(seed).get_state().tolist())
    struct.pack_into("<d", raw, _SECOND, float(offset))
    struct.pack_into("<i", raw, _HAS_SECOND, 1)
    generator.set_state(torch.tensor(list(raw), dtype=torch.uint8))


class _Draws(SeesFunctions, TorchDispatchMode):
    """Computes what operators draw."""

    def __init__(self) -> None:
        super().__init__()
        self.as_dropout = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        kwargs = kwargs or {}
        if takes_functions(func):
            return self.call_functions(func, args, kwargs)
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            return self._drawn(func, args, kwargs)

    def _drawn(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        schema = func._schema.arguments
        defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
        bound: dict[str, Any] = defaults | dict(zip((a.name for a in schema), args)) | kwargs
        generator = bound.get("generator") or torch.default_generator
        before = state_of(generator)
        out = func(*args, **kwargs)  # PyTorch says what is wrong with the arguments, and what the result looks like
        name = func._opname.rstrip("_").removesuffix("_like")
        if not isinstance(out, torch.Tensor) or (out.numel() == 0 and name != "bernoulli"):
            return out
        if name in _NUMBERS and not any(isinstance(bound.get(k), torch.Tensor) for k in _NUMBERS[name][1]):
            op, names = _NUMBERS[name]
            numbers, after = self._in_memory(op, before, out, [float(bound.get(k, v)) for k, v in names.items()])
        elif name == "normal":
            numbers, after = self._scaled(before, out, bound)
        elif name in ("randint", "random"):
            ends = [int(bound.get("low", bound.get("from", 0))), int(bound["high"] if "high" in bound else bound["to"])]
            numbers, after = self._in_memory(_draws.integers, before, out, ends)
        elif name == "bernoulli" and isinstance(bound.get("p"), (int, float)):
            op = _draws.dropout if self.as_dropout else _draws.bernoulli
            numbers, after = self._in_memory(op, before, out, [float(bound["p"])])
        elif name == "bernoulli":
            chances = bound.get("p", bound["self"]).expand(out.shape).contiguous()
            numbers, after = _draws.bernoulli_each(before, chances, out.dtype)
        elif name == "multinomial" and bound["num_samples"] == 1:
            weights = bound["self"]
            by_columns = weights.dim() == 2 and not torch.empty_like(weights).is_contiguous()
            numbers, after = _draws.multinomial(before, weights.contiguous(), 1, False, by_columns)
        else:
            return out  # the front end refuses it
        set_state(generator, after)
        return out.copy_(numbers)

    def _in_memory(self, op: Any, state: torch.Tensor, out: torch.Tensor, numbers: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw for a tensor, whose elements get their numbers in the order of their memory."""
        strides = out.stride()
        order = sorted(range(out.dim()), key=lambda d: -strides[d] if out.shape[d] > 1 else 0)
        rest = (False,) if op is _draws.normal else ()
        made, after = op(state, [out.shape[d] for d in order], *numbers, out.dtype, *rest)
        return made.permute([order.index(d) for d in range(out.dim())]), after

    def _scaled(self, state: torch.Tensor, out: torch.Tensor, bound: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw normal numbers with a mean or a deviation for each."""
        mean, std = bound.get("mean", 0.0), bound.get("std", 1.0)
        by = isinstance(std, torch.Tensor)
        made, after = self._in_memory(_draws.normal, state, out, [0.0, 1.0 if by else float(std)])
        if by and not isinstance(mean, torch.Tensor):
            return torch.addcmul(torch.full((), float(mean), dtype=out.dtype), made, std), after
        return (made * std if by else made) + mean, after


class _Dropouts(TorchFunctionMode):
    """Draws a dropout as the one kernel that it is on a GPU."""

    def __init__(self, draws: _Draws) -> None:
        super().__init__()
        self._draws = draws

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one function of PyTorch."""
        kwargs = kwargs or {}
        if func is not F.dropout and func is not torch.dropout:
            return func(*args, **kwargs)
        return _dropout(functools.partial(func, *args, **kwargs), self._draws, *args, **kwargs)


def _dropout(
    otherwise: Any, draws: _Draws, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool = True
) -> Any:
    if not (training and train and not inplace and 0 < p < 1 and input.numel() and input.dtype == torch.float32):
        return otherwise()
    keep = 1.0 - p
    mask = torch.empty_like(input)
    draws.as_dropout = True
    try:
        mask.bernoulli_(keep)
    finally:
        draws.as_dropout = False
    return input * mask * float(torch.tensor(1.0 / float(torch.tensor(keep, dtype=torch.float32)), dtype=torch.float32))


def as_given_on(device: str, value: Any) -> Any:
    """Return a result of eager with the states of generators among it as a device has them."""
    if device == "cpu" or not any(map(_is_state, tree_leaves(value))):
        return value
    return tree_map(lambda t: _decoded(t) if _is_state(t) else t, value)


def _is_state(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.dtype == torch.uint8 and tuple(t.shape) == CPU.state.shape


@contextlib.contextmanager
def drawing_as_on(device: str) -> Iterator[None]:
    """Let eager draw as on a device."""
    if device == "cpu":
        yield
        return
    draws = _Draws()
    with _Dropouts(draws), draws:
        yield
