# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Seeds and states of generators of random numbers: PyTorch's functions for them, and the methods of ``torch.Generator``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.generators import new_generator, state_of
from dycl_tvm.frontend.trace.values.random import seed_by
from dycl_tvm.frontend.trace.values.tensors import as_constant

_Generator = torch.Generator | None


def _manual_seed(generator: _Generator, seed: Any) -> Any:
    if scalars.is_symbolic(seed) and scalars._kind(scalars.operand_of(seed)) != "int":
        raise UnsupportedError("a seed that is no whole number", current().origin(), "convert it before: int(seed)")
    try:
        seed_by(generator, seed)
    except (RuntimeError, OverflowError, ValueError) as error:
        raise of_program(error) from None
    return torch.default_generator if generator is None else generator


def _seed_of_all(_callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (seed,) = args or kwargs.values()
    if not scalars.is_symbolic(seed):
        try:
            seed = int(seed)
        except (TypeError, ValueError) as error:
            raise of_program(error) from None
    return _manual_seed(None, seed)


def _seed(generator: _Generator) -> Any:
    raise UnsupportedError("seed() takes a seed that differs in every run", current().origin(), "use manual_seed(), or none")


def _initial_seed(generator: _Generator) -> Any:
    state = as_constant(state_of(generator))
    if state is None:
        raise UnsupportedError(
            "initial_seed() of a generator that callers may have given another seed", current().origin(), "keep the seed in the model"
        )
    with plainly():
        return _with_state(torch.Generator(), state.data).initial_seed()


def _get_state(generator: _Generator) -> Any:
    return state_of(generator).clone()


def _set_state(generator: _Generator, new_state: Any) -> Any:
    state = state_of(generator)
    if not isinstance(new_state, torch.Tensor):
        raise of_program(TypeError(f"expected a torch.ByteTensor, but got {type(new_state).__name__}"))
    if new_state.dtype != torch.uint8 or new_state.shape != state.shape:
        raise of_program(RuntimeError("RNG state must be a torch.ByteTensor"))
    state.copy_(new_state)
    return torch.default_generator if generator is None else generator


def _with_state(generator: torch.Generator, state: torch.Tensor) -> torch.Generator:
    generator.set_state(state)
    return generator


def _clone_state(generator: _Generator) -> Any:
    made = new_generator()
    _set_state(made, _get_state(generator))
    return made


def _nothing(generator: _Generator, new_state: Any) -> None:
    _set_state(generator, new_state)


_METHODS: dict[str, Callable[..., Any]] = {
    "manual_seed": _manual_seed,
    "seed": _seed,
    "initial_seed": _initial_seed,
    "get_state": _get_state,
    "set_state": _set_state,
    "clone_state": _clone_state,
}


def _new(_callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with plainly():
        device = torch.Generator(*args, **kwargs).device
    if device.type != "cpu":
        raise UnsupportedError(f"a generator of random numbers on {device}", current().origin(), "make it on the CPU")
    return new_generator()


def _of_default(method: Callable[..., Any]) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
    return lambda _callee, args, kwargs: method(None, *args, **kwargs)


def method_of(callee: Any) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None:
    """Return what is called in the place of a method of a generator; None for other callables."""
    generator = getattr(callee, "__self__", None)
    if not isinstance(generator, torch.Generator):
        return None
    method = _METHODS.get(callee.__name__)
    if method is None:
        raise UnsupportedError(
            f"the method {callee.__name__}() of a generator of random numbers", current().origin(), f"use one of {', '.join(_METHODS)}"
        )
    return lambda _callee, args, kwargs: method(generator, *args, **kwargs)


#: What is called in the place of functions.
TABLE: dict[Any, Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    torch.Generator: _new,
    torch.random.manual_seed: _seed_of_all,
    torch.seed: _of_default(_seed),
    torch.initial_seed: _of_default(_initial_seed),
    torch.get_rng_state: _of_default(_get_state),
    torch.set_rng_state: _of_default(_nothing),
}
