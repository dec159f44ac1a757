# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Generators of random numbers: the state of each is a tensor that drawing changes in place, like a buffer of the model.

So it is joined at branches, carried through loops and kept from call to call by what does that for all tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.unrecorded import DEFAULT_GENERATOR as REAL_DEFAULT
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.constants import constants
from dycl_tvm.frontend.trace.values.folding import made_once
from dycl_tvm.frontend.trace.values.storage import Storage
from dycl_tvm.frontend.trace.values.tensors import fresh, storage_of
from dycl_tvm.hcfg.draws import CPU, DEFAULT_GENERATOR, Kind

_HINT = "pass the random numbers in as an input"


def key_of(generator: Any) -> int:
    """Return what is one for all of Python's objects for a generator: PyTorch makes several."""
    return int(generator._cdata)


class Generators:
    """The states of the generators that live on between calls.

    Parameters
    ----------
    kind : Kind
        What generators are on the machine for which the program is staged.

    Attributes
    ----------
    name_of : callable or None
        Returns the user's name of a generator that was there before the program ran, None for others. None: there is no place for states.
    """

    def __init__(self, kind: Kind = CPU) -> None:
        self.kind = kind
        self.name_of: Callable[[torch.Generator], str | None] | None = None
        self._known: dict[int, tuple[torch.Generator, torch.Tensor, str]] = {}
        #: What stands for a generator while the model is staged, by its key, and the generator.
        self._twins: dict[int, tuple[torch.Generator, torch.Generator]] = {}

    def twin_of(self, generator: torch.Generator, make: Callable[[], torch.Generator]) -> torch.Generator:
        """Return what stands for a generator; it is made when it is first asked for."""
        known = next((twin for twin, of in self._twins.values() if key_of(of) == key_of(generator)), None)
        twin = make() if known is None else known
        self._twins[key_of(twin)] = (twin, generator)
        return twin

    def is_default(self, generator: torch.Generator) -> bool:
        """Whether a generator is the default one, or stands for it."""
        return key_of(self._twins.get(key_of(generator), (None, generator))[1]) == key_of(REAL_DEFAULT)

    def state(self, generator: torch.Generator | None) -> torch.Tensor:
        """Return the tensor that is the state of a generator (None: the default one)."""
        generator = REAL_DEFAULT if generator is None else generator
        made = current().get(_Made).states.get(key_of(generator))
        if made is not None:
            return made[1]
        _, generator = self._twins.get(key_of(generator), (None, generator))
        known = self._known.get(key_of(generator))
        if known is None:
            known = self._known[key_of(generator)] = (generator, *self._first_state(generator))
        _, state, name = known
        constants().names[id(state)] = name
        return state

    def is_state(self, storage: Storage) -> bool:
        """Whether a place is the state of a generator that lives on between calls."""
        return any(storage_of(state) is storage for _, state, _ in self._known.values())

    def _first_state(self, generator: torch.Generator) -> tuple[torch.Tensor, str]:
        if self.name_of is None:
            raise UnsupportedError("random numbers give another result at every call", current().origin(), _HINT)
        with plainly():
            if key_of(generator) == key_of(REAL_DEFAULT):
                return self.kind.first(), DEFAULT_GENERATOR
            if generator.device.type != "cpu":
                raise UnsupportedError(f"a generator of random numbers on {generator.device}", current().origin(), _HINT)
            name = self.name_of(generator)
            if name is None:
                raise UnsupportedError(
                    "a generator of random numbers that was made where it could not be seen",
                    current().origin(),
                    "make it in the forward (torch.Generator()), or keep it as an attribute of the model",
                )
            return self._converted(generator), name

    def _converted(self, generator: torch.Generator) -> torch.Tensor:
        """Return the state of a generator of the model, as the kind has it."""
        state, seeded = generator.get_state(), self.kind.of_seed(generator.initial_seed())
        if self.kind is CPU:
            return state
        if not torch.equal(state, CPU.of_seed(generator.initial_seed())):
            raise UnsupportedError(
                "a generator from which numbers were drawn on the CPU, in a network for a GPU",
                current().origin(),
                "give it a seed before the build: generator.manual_seed(seed)",
            )
        return seeded


class _Made(OfOneRun):
    """The generators that one run of the program has made."""

    def __init__(self) -> None:
        self.states: dict[int, tuple[torch.Generator, torch.Tensor]] = {}


def born(generator: torch.Generator) -> torch.Generator:
    """Note that the program has made a generator."""
    state = fresh(made_once(("first state of a generator",), kind_in_force().first))
    current().get(_Made).states[key_of(generator)] = (generator, state)
    return generator


def kind_in_force() -> Kind:
    """Return what generators are on the machine for which the program is staged."""
    return current().get(Generators).kind


def state_of(generator: torch.Generator | None) -> torch.Tensor:
    """Return the tensor that is the state of a generator (None: the default one)."""
    return current().get(Generators).state(generator)
