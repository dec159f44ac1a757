# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What lives on between the calls of a model: its objects, what functions that have run can change, and the user's names for them."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dycl_tvm.frontend.python.finalizers import Finalizers
from dycl_tvm.frontend.python.source.ownership import code_of, is_library, is_rewritten_class
from dycl_tvm.frontend.python.twins import Twins
from dycl_tvm.frontend.trace.heap.places import MISSING, Attribute, Place, space_of
from dycl_tvm.frontend.trace.heap.reach import Reached, Step, leads_to_all_modules, reach
from dycl_tvm.frontend.trace.heap.settings import SETTINGS
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.constants import constants
from dycl_tvm.frontend.trace.values.generators import key_of
from dycl_tvm.frontend.trace.values.real_memory import ReachedMemory
from dycl_tvm.frontend.trace.values.storage import Storage


class LivesOn:
    """The objects that live on.

    Parameters
    ----------
    reached : Reached
        What the model leads to.
    twin : callable
        Returns what stands for an object while the model is staged (an iterator stays where it is); most objects as they are.
    """

    def __init__(self, reached: Reached, twin: Callable[[Any], Any]) -> None:
        #: By identity, the objects that live on, and the user's names for them.
        self._reachable: dict[int, Any] = {}
        self._labels: dict[int, str] = {}
        #: The ``__dict__`` of objects to which another way leads too, or that two objects share.
        self._spaces: list[tuple[dict[str, Any], Any]] = []
        self.memory = ReachedMemory()
        self._twin = twin
        #: The functions that have run, and whether one of them comes to modules by ``sys.modules``.
        self._ran, self._all_modules = set[int](), False
        #: Functions of the user's that a library calls and that nothing leads to.
        self.registered: list[types.FunctionType] = []
        #: Places of the model that hold such an object, and what stands for it there.
        self._twins = Twins()
        #: The objects whose end the program would be told of.
        self.finalizers = Finalizers()
        self.finalizers.reached_from(reached.steps[:1])
        self._note(reached)

    def add_function(self, function: types.FunctionType) -> None:
        """Take down what a function of the user's can change: globals, defaults, attributes, closure."""
        if id(function) in self._ran:
            return
        self._ran.add(id(function))
        if id(function) not in self._reachable:
            self._reach([(function.__name__, function)])
        if not self._all_modules and leads_to_all_modules(function, code_of):
            self._all_modules = True
            self._reach([(f"sys.modules[{n!r}]", m) for n, m in list(sys.modules.items())])

    def add_registered(self, functions: list[types.FunctionType]) -> bool:
        """Take down functions that a library has in its hands; return whether they were not known before."""
        new = [f for f in functions if not any(f is known for known in self.registered)]
        self.registered += new
        return bool(new)

    def add_module(self, module: types.ModuleType) -> None:
        """Take down what a module holds that the program came to by another way than a name of its own."""
        if id(module) not in self._reachable:
            self._reach([(module.__name__, module)])

    def adopt(self, found: Iterable[Step]) -> None:
        """Take down what was found to live on, though the model does not reach it."""
        found = list(found)
        self.finalizers.reached_from(found)
        self._note(Reached(found))

    def _reach(self, roots: list[Step]) -> None:
        """Take down the objects that can be reached, with the user's name for each."""
        self.finalizers.reached_from(roots)
        self._note(reach(roots, is_library, code_of).complete())

    def _note(self, reached: Reached) -> None:
        twins: dict[int, tuple[Any, Any]] = {}
        roots: list[Step] = []
        reachable, labels = self._reachable, self._labels
        empty = [*map(id, reached.empty)]  # most of what there is: the tables of hooks of modules
        found = {id(x) for _, x in reached.steps if type(x) is dict}.union(empty)
        for label, x in reached.steps:
            if id(x) not in reachable:
                reachable[id(x)], labels[id(x)] = x, label
            kind: Any = type(x)
            if kind is dict or kind is list or kind is tuple:  # can be neither referred to weakly nor memory
                continue
            self.memory.note(x)
            self.finalizers.note(label, x)
            space = space_of(x)
            if space is not None:
                if type(space) is dict and (id(space) in found or id(space) in self._reachable) and not isinstance(x, types.ModuleType):
                    self._spaces.append((space, x))
                self._add(label, space)
            if kind is types.FunctionType:
                self._add("", x.__globals__)
            made = self._twin(x)
            if made is not x:
                twins[id(x)] = (x, made)
                roots.append((label, made))
        if reachable.keys().isdisjoint(empty):
            reachable.update(zip(empty, reached.empty))
            labels.update(zip(reversed(empty), reversed(reached.empty_labels)))  # the first one counts
        else:
            for key, label, x in zip(empty, reached.empty_labels, reached.empty):
                if key not in reachable:
                    reachable[key], labels[key] = x, label
        if twins:
            self._twins.put(self._reachable.values(), twins)
            self._reach(roots)

    def _add(self, label: str, x: Any) -> None:
        if id(x) not in self._reachable:
            self._reachable[id(x)], self._labels[id(x)] = x, label

    def lives_on(self, x: Any) -> bool:
        """Whether an object is one of the model's."""
        return self._reachable.get(id(x), MISSING) is x

    def name_of(self, generator: torch.Generator) -> str | None:
        """Return the user's name for a generator of random numbers; None if it is none of the model's."""
        known = (i for i, x in self._reachable.items() if isinstance(x, torch.Generator) and key_of(x) == key_of(generator))
        return next((self._labels[i] for i in known), None)

    def name_of_place(self, place: Place) -> str | None:
        """Return the user's name for a place of the model; None for a place that does not live on."""
        if current().heap.is_newer(place.owner, current().heap.run_started):
            return None
        if isinstance(place, Storage):
            real = place.real
            return None if real is None else constants().names.get(id(real)) or self._labels.get(id(real), "a tensor")
        if place is SETTINGS:
            return place.text
        if not self.lives_on(place.owner):
            return _shared_name(place)
        label = self._labels[id(place.owner)]
        if isinstance(place, Attribute):
            return f"{label}.{place.name}" if label and not isinstance(place.owner, types.ModuleType) else place.name
        return label


def _shared_name(place: Place) -> str | None:
    """Return the name of what all programs share: a variable of a module, class or function of a library. It lives on."""
    owner = place.owner
    if not isinstance(owner, (type, types.ModuleType, types.FunctionType)) or not is_library(owner):
        return None
    if isinstance(owner, type) and is_rewritten_class(owner):
        return None  # a number for each handle of a hook
    return f"{owner.__name__}.{place.name}" if isinstance(place, Attribute) else owner.__name__
