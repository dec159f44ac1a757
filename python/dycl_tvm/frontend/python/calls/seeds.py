# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Seeds and states of generators of random numbers: PyTorch's functions for them, and the methods of ``torch.Generator``."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.session import current, staging
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.generators import Generators, born, kind_in_force, state_of
from dycl_tvm.frontend.trace.values.random import seed_by
from dycl_tvm.frontend.trace.values.recorder import dispatch
from dycl_tvm.frontend.trace.values.tensors import as_constant
from dycl_tvm.hcfg.draws import CPU

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
        if kind_in_force() is not CPU:
            return int.from_bytes(state.data[:8].clone().numpy().tobytes(), "little")
        return _with_state(torch.Generator(), state.data).initial_seed()


def _get_state(generator: _Generator) -> Any:
    return dispatch(torch.ops.aten.clone.default, (state_of(generator),), {})


def _set_state(generator: _Generator, new_state: Any) -> Any:
    state = state_of(generator)
    if not isinstance(new_state, torch.Tensor):
        raise of_program(TypeError(f"expected a torch.ByteTensor, but got {type(new_state).__name__}"))
    if new_state.dtype != torch.uint8 or new_state.shape != state.shape:
        raise of_program(RuntimeError("RNG state must be a torch.ByteTensor"))
    dispatch(torch.ops.aten.copy_.default, (state, new_state), {})
    return torch.default_generator if generator is None else generator


def _with_state(generator: torch.Generator, state: torch.Tensor) -> torch.Generator:
    generator.set_state(state)
    return generator


def _clone_state(generator: _Generator) -> Any:
    made = born(ProgramsGenerator())
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


def _refuse_default(generator: _Generator, name: str) -> None:
    """Refuse methods of the CPU's default generator in a network for a GPU, whose tensors are drawn from another."""
    if kind_in_force() is CPU or not (generator is None or current().get(Generators).is_default(generator)):
        return
    raise UnsupportedError(
        f"{name}() of the default generator of the CPU, from which a network on a GPU does not draw",
        current().origin(),
        "use torch.manual_seed(), torch.random.fork_rng(), or a torch.Generator() of the model's own",
    )


@contextlib.contextmanager
def _forked() -> Iterator[None]:
    state = _get_state(None)
    try:
        yield
    finally:
        _set_state(None, state)


def _fork(_callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args or kwargs:
        raise UnsupportedError(
            "fork_rng() with arguments in a network for a GPU",
            current().origin(),
            "call it without: the generators of all devices are kept",
        )
    return _forked()


def forking() -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None:
    """Return what is called in the place of ``torch.random.fork_rng``, which here knows the generator of the CPU only."""
    return None if kind_in_force() is CPU else _fork


class ProgramsGenerator(torch.Generator, OwnValue):
    """A generator of the program that is staged: its methods go to its state there, also where code calls them that is not rewritten."""

    def __getattribute__(self, name: str) -> Any:
        method = _METHODS.get(name)
        if method is not None and staging():
            if name != "manual_seed" or sys._getframe(1).f_code.co_filename != torch.random.__file__:
                _refuse_default(self, name)
            return functools.partial(method, self)
        return super().__getattribute__(name)

    def __deepcopy__(self, memo: Any) -> Any:
        return _clone_state(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UnsupportedError("a generator of random numbers is copied or saved", current().origin(), "use clone_state()")


ProgramsGenerator.__name__ = torch.Generator.__name__  # in messages


def twin_of_generator(generator: torch.Generator, generators: Generators) -> torch.Generator:
    """Return what stands for a generator of the model while this is staged."""
    if isinstance(generator, ProgramsGenerator) or generator.device.type != "cpu":
        return generator
    return generators.twin_of(generator, ProgramsGenerator)


@contextlib.contextmanager
def default_generator_of_the_program(generators: Generators) -> Iterator[None]:
    """Let what stands for the default generator be found where PyTorch has it, by libraries too."""
    modules: tuple[Any, ...] = (torch, torch._C, torch.random)
    real = torch.default_generator
    twin: Any = twin_of_generator(real, generators)
    for module in modules:
        module.default_generator = twin
    try:
        yield
    finally:
        for module in modules:
            module.default_generator = real


def _new(_callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with plainly():
        device = torch.Generator(*args, **kwargs).device
    if device.type != "cpu":
        raise UnsupportedError(f"a generator of random numbers on {device}", current().origin(), "make it on the CPU")
    return born(ProgramsGenerator())


def _of_default(method: Callable[..., Any]) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
    def call(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if method is not _initial_seed:
            _refuse_default(None, callee.__name__)
        return method(None, *args, **kwargs)

    return call


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

    def call(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _refuse_default(generator, callee.__name__)
        return method(generator, *args, **kwargs)

    return call


def unbound(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.Generator.get_state(generator)`` and its kind."""
    if args:
        _refuse_default(args[0], callee.__name__)
    return _METHODS[callee.__name__](*args, **kwargs)


#: What is called in the place of functions.
TABLE: dict[Any, Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    torch.Generator: _new,
    **dict.fromkeys([getattr(torch.Generator, name) for name in _METHODS], unbound),
    torch.random.manual_seed: _seed_of_all,
    torch.seed: _of_default(_seed),
    torch.initial_seed: _of_default(_initial_seed),
    torch.get_rng_state: _of_default(_get_state),
    torch.set_rng_state: _of_default(_nothing),
}
