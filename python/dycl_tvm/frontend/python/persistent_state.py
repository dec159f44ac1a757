# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What one call leaves behind on the model for the next: counters, hidden states, buffers.

Staging is repeated until the set of places is complete: the first time the model is taken as it is; a place of the model that
some path leaves changed becomes a state variable (its value at entry is then a parameter) if it keeps its type, and a
poison at entry if it does not, so that a forward which reads it before writing it is refused rather than given
the value that the model happened to have when it was built.
"""

from __future__ import annotations

import types
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.calls.class_patches import is_library_class, users_function
from dycl_tvm.frontend.trace.heap.journal import MISSING, Attribute, Contents, Place
from dycl_tvm.frontend.trace.join.captured import Captured, Items, NumberLeaf, Plain, TensorLeaf, capture, same_number, same_plain
from dycl_tvm.frontend.trace.join.fixpoint import rebuild
from dycl_tvm.frontend.trace.join.join import describe
from dycl_tvm.frontend.trace.join.poison import Poison
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.constants import constants
from dycl_tvm.frontend.trace.values.storage import Stale, Storage, tensor_type
from dycl_tvm.frontend.trace.values.tensors import fresh_like
from dycl_tvm.hcfg.nodes import Constant, Operand, StateVar, Value

Path = tuple[Any, ...]


@dataclass
class _Site:
    """Stands for the model's state in messages: using a poison of it is an error, never a fork."""

    index: int = -1

    def refuse(self, reason: str) -> None:
        """Raise the error."""
        raise UnsupportedError(
            f"{reason}: what one call leaves behind is read by the next, and changes its type",
            current().origin(),
            "set it at the beginning of the forward, or give it its final type in __init__; where it is made once and kept (a cache), "
            "call the model once before it is built",
        )


@dataclass
class _Leaf:
    """One state variable: a leaf of what a place holds."""

    name: str
    type: Any
    initial: Constant | int | float | bool


class ModelState:
    """The state variables of a model, found while it is staged.

    Parameters
    ----------
    roots : list of (name, object)
        The objects that live on between calls.
    """

    def __init__(self, roots: list[tuple[str, Any]]) -> None:
        self._reachable: dict[int, tuple[Any, str]] = {}
        for name, root in roots:
            self._reach(root, name)
        self._places: dict[Any, Place] = {}
        self._leaves: dict[Path, _Leaf] = {}
        self._poisoned: dict[Path, str] = {}
        self._entry: dict[Path, Operand] = {}
        self._tensors: dict[int, tuple[torch.Tensor, str]] = {}
        self._site = _Site()

    def add_function(self, function: types.FunctionType) -> None:
        """Take down what a function of the user's can change: globals, defaults, attributes, closure."""
        if id(function) not in self._reachable:
            self._reach(function, function.__name__)

    def _reach(self, root: Any, name: str) -> None:
        """Take down the mutable objects that can be reached from ``root``, with the user's name for each."""
        todo = deque([(root, name)])
        while todo:
            x, where = todo.popleft()
            if id(x) in self._reachable or isinstance(
                x, (str, bytes, int, float, bool, type(None), torch.dtype, types.ModuleType, torch.device)
            ):
                continue
            if isinstance(x, type):
                if not is_library_class(x):
                    self._reachable[id(x)] = (x, where)
                    todo.extend((v, f"{where}.{k}") for k, v in vars(x).items() if not callable(v))
                continue
            if isinstance(x, types.FunctionType):
                if users_function(x) is None or getattr(x, "__dycl_original__", None) is not None:
                    continue
                self._reachable[id(x)] = (x, where)
                todo.extend((v, f"{where}.{k}") for k, v in vars(x).items())
                for default in (*(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()):
                    todo.append((default, f"a default of {x.__name__}()"))
                for n in x.__code__.co_names:
                    value = x.__globals__.get(n)
                    if isinstance(value, (list, dict, set, deque, type)) or hasattr(value, "__dict__"):
                        todo.append((value, n))
                for n, cell in zip(x.__code__.co_freevars, x.__closure__ or ()):
                    self._reachable[id(cell)] = (cell, n)
                    try:
                        todo.append((cell.cell_contents, n))
                    except ValueError:
                        continue
                continue
            if isinstance(x, types.MethodType):
                todo.append((x.__self__, where))
                continue
            self._reachable[id(x)] = (x, where)
            if isinstance(x, torch.Tensor):
                continue
            dot = f"{where}." if where else ""
            if isinstance(x, dict):
                todo.extend((v, f"{where}[{k!r}]") for k, v in x.items())
            elif isinstance(x, (list, tuple, set, frozenset, deque)):
                todo.extend((v, f"{where}[{i}]") for i, v in enumerate(x))
            elif isinstance(x, torch.nn.Module):
                for table in (x._modules, x._parameters, x._buffers):
                    self._reachable[id(table)] = (table, where)
                    todo.extend((v, f"{dot}{k}") for k, v in table.items())
                todo.append((type(x), type(x).__name__))
                todo.extend((v, f"{dot}{k}") for k, v in x.__dict__.items() if k not in ("_modules", "_parameters", "_buffers"))
            elif hasattr(x, "__dict__") and not is_library_class(type(x)):
                todo.append((type(x), type(x).__name__))
                todo.extend((v, f"{dot}{k}") for k, v in vars(x).items())

    def objects(self) -> list[Any]:
        """Return the objects that the model reaches."""
        return [x for x, _ in self._reachable.values()]

    @property
    def variables(self) -> list[StateVar]:
        """The state variables, in the order of the entry's parameters."""
        return [StateVar(leaf.name, leaf.type, leaf.initial) for leaf in self._leaves.values()]

    @property
    def size(self) -> int:
        """Grows with everything found."""
        return len(self._places) + len(self._leaves) + len(self._poisoned)

    # -- a run ------------------------------------------------------------------------------------------------------------
    def enter(self, params: list[Value]) -> None:
        """Give the places of the state what they hold at entry."""
        self._entry = dict(zip(self._leaves, params))
        for key, place in self._places.items():
            if isinstance(place, Storage):
                place = constants().storage(self._tensors[key[0]][0])
                if (key,) in self._entry:
                    place.set(self._entry[(key,)])  # type: ignore[arg-type]
                continue
            contents = place.read()
            current().journal.touch(place)
            if isinstance(place, Contents):
                pairs = isinstance(place.owner, dict)
                captured = [capture(c[1] if pairs else c) for c in contents]
                items = [self._at_entry((key, i), c) for i, c in enumerate(captured)]
                place.write(tuple(zip([k for k, _ in contents], items)) if pairs else tuple(items))
            elif contents is not MISSING or (key,) in self._poisoned:
                place.write(self._at_entry((key,), Plain(contents) if contents is MISSING else capture(contents)))

    def _at_entry(self, path: Path, c: Captured) -> Any:
        if path in self._poisoned:
            return Poison(self._site, self._poisoned[path])
        if path in self._entry:
            param = self._entry[path]
            if isinstance(c, TensorLeaf):
                assert isinstance(param, Value)
                return fresh_like(torch.empty_strided(c.obj.shape, c.obj.stride(), dtype=c.obj.dtype, device="meta"), param)
            return scalars.wrap(param)
        if isinstance(c, Items) and any(p[: len(path)] == path for p in (*self._entry, *self._poisoned)):
            return rebuild(c, [self._at_entry((*path, i), item) for i, item in enumerate(c.items)])
        return c.obj

    def leave(self, mark: int) -> list[Operand]:
        """Return the state at the end of a path, and note what it leaves changed."""
        stage = current()
        found: dict[Path, Operand] = {}
        before = stage.journal.before(mark)
        for key, place in stage.journal.changes(mark).items():
            named = None if stage.heap.is_newer(place.owner, stage.heap.run_started) else self._named(place)
            if named is None:
                continue
            if isinstance(place, Storage):
                tensor, name = named
                self._note_storage(tensor, name, place, found)
                continue
            initial = self._initial(key, place, before[key])
            self._compare_place(key, place, initial, str(named[1]), found)
        return [found.get(path, self._entry.get(path, leaf.initial)) for path, leaf in self._leaves.items()]

    def is_changed(self, mark: int) -> bool:
        """Whether the path at hand has changed anything that lives on between calls."""
        stage = current()
        places = stage.journal.changes(mark).values()
        return any(self._named(place) is not None for place in places if not stage.heap.is_newer(place.owner, stage.heap.run_started))

    def _named(self, place: Place) -> tuple[Any, str] | None:
        if isinstance(place, Storage):
            tensor = constants().real_tensor_of(place)
            known = None if tensor is None else self._reachable.get(id(tensor))
            return known if known is not None and known[0] is tensor else None
        known = self._reachable.get(id(place.owner))
        if known is None or known[0] is not place.owner:
            return None
        if isinstance(place, Attribute):
            return place.owner, f"{known[1]}.{place.name}" if known[1] else place.name
        return known

    def _initial(self, key: Any, place: Place, before: Any) -> Any:
        """Return what a place held before the first run: the poison or parameter of the entry stands for it."""
        if key not in self._places:
            self._raw = getattr(self, "_raw", {})
            self._raw[key] = before
        return self._raw[key]

    def _note_storage(self, tensor: torch.Tensor, name: str, place: Storage, found: dict[Path, Operand]) -> None:
        key = (id(tensor), "storage")
        path = (key,)
        if isinstance(place.value, Stale):
            place.value.refuse()
        if path in self._leaves:
            found[path] = place.value
        elif place.value is not constants().of(tensor):
            self._places[key] = place
            self._tensors[id(tensor)] = (tensor, name)
            constant = constants().of(tensor)
            self._leaves[path] = _Leaf(name, constant.type, constant)

    def _compare_place(self, key: Any, place: Place, initial: Any, name: str, found: dict[Path, Operand]) -> None:
        now = place.read()
        known = self.size
        if isinstance(place, Contents):
            pairs = isinstance(place.owner, dict)
            if len(now) != len(initial) or (pairs and [k for k, _ in now] != [k for k, _ in initial]) or isinstance(place.owner, set):
                if isinstance(place.owner, set) and set(now) == set(initial):
                    return
                raise UnsupportedError(
                    f"the {type(place.owner).__name__} `{name}` of the model is left with other items than it had: "
                    "every call would change it more",
                    current().origin(),
                    f"make it anew at the beginning of the forward (`{name} = {type(place.owner).__name__}()`)",
                )
            for i, (old, new) in enumerate(zip(initial, now)):
                old, new = (old[1], new[1]) if pairs else (old, new)
                self._compare((key, i), capture(old), capture(new), f"{name}[{(initial[i][0] if pairs else i)!r}]", found)
        elif initial is MISSING or now is MISSING:
            if initial is not now:
                self._poisoned.setdefault((key,), f"`{name}` is not there before the first call")
        else:
            self._compare((key,), capture(initial), capture(now), name, found)
        if self.size != known:
            self._places[key] = place

    def _compare(self, path: Path, initial: Captured, now: Captured, name: str, found: dict[Path, Operand]) -> None:
        if path in self._poisoned or isinstance(now.obj, Poison):
            return
        if isinstance(initial, TensorLeaf) and isinstance(now, TensorLeaf) and tensor_type(initial.obj) == tensor_type(now.obj):
            if path in self._leaves:
                found[path] = now.value
            elif initial.value is not now.value:
                assert isinstance(initial.value, Constant)
                self._leaves[path] = _Leaf(name, initial.value.type, initial.value)
        elif (
            isinstance(initial, NumberLeaf) and isinstance(now, NumberLeaf) and scalars._kind(initial.operand) == scalars._kind(now.operand)
        ):
            if path in self._leaves:
                found[path] = now.operand
            elif not same_number(initial, now):
                assert not isinstance(initial.operand, Value)
                self._leaves[path] = _Leaf(name, scalars.ScalarType(scalars._kind(now.operand)), initial.operand)  # type: ignore[arg-type]
        elif (
            isinstance(initial, Items)
            and isinstance(now, Items)
            and type(initial.obj) is type(now.obj)
            and initial.keys == now.keys
            and len(initial.items) == len(now.items)
        ):
            for i, (a, b) in enumerate(zip(initial.items, now.items)):
                self._compare((*path, i), a, b, f"{name}[{i}]", found)
        elif initial.obj is not now.obj and not same_plain([initial.obj, now.obj]):
            self._poisoned[path] = f"`{name}` is {describe(initial)} before the first call, and {describe(now)} after it"
