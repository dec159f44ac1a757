# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The state that a program may change, taken down before it runs and put back after, in place.

The program runs on the user's own objects, so that all identities are those of the program. What it can reach is taken down: attributes,
slots, containers, cells, defaults, the globals that its functions name, attributes of its classes, NumPy arrays, positions of iterators,
random states. Memory of tensors is saved when it is about to be written, and not before.
"""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import copy
import functools
import inspect
import itertools
import operator
import random
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

#: Packages whose own functions and classes keep no state of the user's program.
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "tvm", "tvm_ffi", "dycl_tvm"}
_ZOO = "dycl_tvm.zoo"
_SITE = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, type(...), torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format,
    types.BuiltinFunctionType, types.CodeType, range, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
)  # fmt: skip
#: Iterators whose position can be copied, but not be set back.
_ITERABLES: tuple[Any, ...] = ([], (), {}, {}.values(), {}.items(), set(), range(0), range(1 << 70), "", b"", collections.deque())
_EXAMPLES: tuple[Any, ...] = (
    *map(iter, _ITERABLES),
    *(reversed([]), reversed({}), zip(), enumerate([]), map(abs, []), filter(None, [])),  # type: ignore[list-item]
)
_COPYABLE = tuple({type(i) for i in _EXAMPLES} | {t for t in vars(itertools).values() if isinstance(t, type)})
_MOST_OBJECTS = 500_000


def is_library(module: str | None) -> bool:
    """Tell whether a module of that name is of Python's standard library, PyTorch, NumPy, TVM or this package, but for its zoo.

    A program that names ``dycl_tvm.bound`` reaches all of the compiler otherwise.
    """
    if module is None or module.startswith(_ZOO):
        return False
    return module.partition(".")[0] in _LIBRARIES


class Snapshot:
    """The state that a program reaches.

    Attributes
    ----------
    lost : set of str
        What was found whose state can be neither taken down nor put back, such as a running generator.
    """

    def __init__(self, *roots: Any) -> None:
        self.lost: set[str] = set()
        self._restorers: list[Callable[[], None]] = []
        self._holders: list[tuple[Any, list[Any]]] = []
        #: By identity of what cannot be set back, such as an iterator: what it is, and what makes another that a run has in its place.
        self._replaced: dict[int, tuple[str, Callable[[], Any]]] = {}
        self._seen: dict[int, Any] = {}
        self._memory: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._made: set[int] = set()
        self._walk(roots)
        self._take_random_states()

    # -- while the program runs --------------------------------------------------------------------------------------------
    def before_write(self, t: torch.Tensor) -> None:
        """Save the memory of a tensor that is about to be written, if it was there before the program ran."""
        storage = t.untyped_storage()
        key = storage._cdata
        if key not in self._memory and key in self._owned:
            self._memory[key] = (storage, storage.clone())

    def begin(self) -> None:
        """Give the run to come others in the place of what cannot be set back."""
        if not self._replaced:
            return
        copies = {key: made() for key, (_, made) in self._replaced.items()}
        for replace, values in self._holders:
            if any(id(v) in copies for v in values):
                replace([copies.get(id(v), v) for v in values])

    def restore(self) -> None:
        """Put everything back."""
        for restore in self._restorers:
            restore()
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for storage, saved in self._memory.values():
                storage.copy_(saved)
        self._memory.clear()

    # -- taking down -------------------------------------------------------------------------------------------------------
    def _walk(self, roots: Any) -> None:
        self._owned: dict[int, torch.UntypedStorage] = {}
        stack = list(roots)
        held: collections.Counter[int] = collections.Counter()
        while stack:
            x = stack.pop()
            if isinstance(x, _ATOMS) or id(x) in self._seen:
                continue
            if len(self._seen) > _MOST_OBJECTS:
                self.lost.add(f"more than {_MOST_OBJECTS} objects")
                return
            self._seen[id(x)] = x
            found = list(self._take(x))
            stack += found
            if id(x) not in self._replaced:  # what is inside of an iterator is copied with it
                held.update(map(id, found))
        for _, values in self._holders:
            held.subtract(map(id, values))
        for key in [key for key in self._replaced if held[key] > 0]:  # none can take its place everywhere
            what, _ = self._replaced.pop(key)
            x = self._seen[key]
            if isinstance(x, functools._lru_cache_wrapper):
                self._restorers.append(self._emptying(x, what))
            else:
                self.lost.add(what)

    def _emptying(self, cache: Any, what: str) -> Callable[[], None]:
        """Return what empties a cache if a run has filled it: answers to a run that was forced must not stay."""
        misses = cache.cache_info().misses

        def restore() -> None:
            nonlocal misses
            if cache.cache_info().misses != misses:
                cache.cache_clear()
                misses = 0
                self.lost.add(what)

        return restore

    def _take(self, x: Any) -> Iterator[Any]:
        """Take one object down and yield what it refers to."""
        if isinstance(x, torch.Tensor):
            yield from self._take_tensor(x)
        elif isinstance(x, np.ndarray):
            if x.dtype.hasobject:
                yield from x.flat
            own = np.asarray(x)  # the memory, whatever a class of arrays makes of it
            self._put_back(own.copy(), lambda: own, lambda saved: np.copyto(own, saved), lambda a, b: a.tobytes() == b.tobytes())
        elif isinstance(x, types.ModuleType):
            yield from self._take_module(x)
        elif isinstance(x, type):
            yield from self._take_class(x)
        elif isinstance(x, types.FunctionType):
            yield from self._take_function(x)
        elif isinstance(x, types.CellType):
            yield from self._take_cell(x)
        elif isinstance(x, types.MethodType):
            yield x.__self__
            yield x.__func__
        elif isinstance(x, (staticmethod, classmethod)):
            yield x.__func__
        elif isinstance(x, property):
            yield from (x.fget, x.fset, x.fdel)
        elif isinstance(x, (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)):
            if id(x) not in self._replaced:
                self.lost.add(f"the generator {x.__qualname__}")
        elif type(x) in _COPYABLE:
            try:
                copy.copy(x)
            except TypeError:
                self.lost.add(f"the iterator {x!r}")
                return
            self._replaced[id(x)] = f"the iterator {x!r}", functools.partial(_copied, x)
            yield from _inside(x)
        elif isinstance(x, contextvars.ContextVar):
            saved = x.get(_NOTHING)
            if saved is not _NOTHING:
                self._restorers.append(lambda: None if x.get(_NOTHING) is saved else (x.set(saved), None)[1])
                yield saved
        elif isinstance(x, (random.Random, torch.Generator, np.random.Generator, np.random.RandomState)):
            self._take_generator(x)
        elif isinstance(x, functools._lru_cache_wrapper):
            yield from self._take_cache(x)
        else:
            yield from self._take_object(x)

    def _take_cache(self, x: Any) -> Iterator[Any]:
        if is_library(x.__module__):
            return
        if x.cache_info().currsize:
            empty = functools.lru_cache(**x.cache_parameters())
            name = f"the cache of {getattr(x, '__qualname__', x)}"
            self._replaced[id(x)] = name, functools.partial(empty, x.__wrapped__)  # what a cache holds can be taken down by nobody
        else:
            self._restorers.append(lambda: x.cache_clear() if x.cache_info().currsize else None)
        yield x.__wrapped__

    def _take_object(self, x: Any) -> Iterator[Any]:
        if isinstance(x, dict):
            # By dict's own methods, whatever the class defines; an OrderedDict keeps its order elsewhere.
            base = collections.OrderedDict if isinstance(x, collections.OrderedDict) else dict

            def fill(pairs: list[Any]) -> None:
                base.clear(x)
                for key, value in zip(pairs[::2], pairs[1::2]):
                    base.__setitem__(x, key, value)

            self._hold(lambda: [v for pair in base.items(x) for v in pair], fill)
            for pair in base.items(x):
                yield from pair
        elif isinstance(x, list):
            self._hold(lambda: list(list.__iter__(x)), lambda values: list.__setitem__(x, slice(None), values))
            yield from list.__iter__(x)
        elif isinstance(x, collections.deque):

            def refill(values: list[Any]) -> None:
                x.clear()
                x.extend(values)

            self._hold(lambda: list(x), refill)
            yield from list(x)
        elif isinstance(x, set):

            def renew(values: list[Any]) -> None:
                x.clear()
                x.update(values)

            self._hold(lambda: list(x), renew)
            yield from list(x)
        elif isinstance(x, (tuple, frozenset)):
            yield from x
        elif isinstance(x, (bytearray, array.array)):
            self._put_back(x[:], lambda: x, lambda saved: x.__setitem__(slice(None), saved), lambda a, b: a == b)
        elif isinstance(x, functools.partial):
            yield from (x.func, x.args, x.keywords)
        elif isinstance(x, contextlib._GeneratorContextManager) and inspect.getgeneratorstate(x.gen) == inspect.GEN_CREATED:
            again = functools.partial(x.func, *x.args, **x.kwds)  # type: ignore[attr-defined]
            self._replaced[id(x.gen)] = f"the generator {x.func.__qualname__}", again  # as a decorator it makes another for each call
        elif not _has_attributes(x) and callable(getattr(type(x), "__next__", None)):
            self.lost.add(f"the iterator {type(x).__name__}")
        attributes = _attributes(x)
        if attributes is not None:
            yield attributes
        for member in _slots(type(x)):
            value = _slot(member, x)
            self._put_back(value, functools.partial(_slot, member, x), functools.partial(_set_slot, member, x), lambda a, b: a is b)
            yield value
        yield type(x)

    def _take_tensor(self, t: torch.Tensor) -> Iterator[Any]:
        with torch._C.DisableTorchFunction():
            if t.layout == torch.strided and not t.is_meta and type(t) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
                storage = t.untyped_storage()
                self._owned[storage._cdata] = storage
                here, needs = t.detach(), t.requires_grad

                def restore() -> None:
                    if t.data_ptr() != here.data_ptr() or t.shape != here.shape or t.stride() != here.stride() or t.dtype != here.dtype:
                        t.data = here
                    if t.requires_grad != needs and t.is_leaf:
                        t.requires_grad_(needs)

                self._restorers.append(restore)
        attributes = _attributes(t)
        if attributes:
            yield attributes

    def _take_function(self, f: types.FunctionType) -> Iterator[Any]:
        yield from f.__closure__ or ()
        saved = (f.__defaults__, f.__kwdefaults__)
        self._put_back(saved, lambda: (f.__defaults__, f.__kwdefaults__), lambda s: _set_defaults(f, s), lambda a, b: a == b)
        yield saved
        if f.__dict__:
            yield f.__dict__
        if is_library(f.__globals__.get("__name__")):
            return
        names = _names(f.__code__)
        for name in sorted(f.__globals__ if "globals" in names else names):
            if name in f.__globals__:
                value = f.__globals__[name]
                self._hold_key(f.__globals__, name)
                yield value
            else:
                self._hold_key(f.__globals__, name)

    def _take_cell(self, cell: types.CellType) -> Iterator[Any]:
        def read() -> list[Any]:
            try:
                return [cell.cell_contents]
            except ValueError:
                return []

        def write(values: list[Any]) -> None:
            if values:
                cell.cell_contents = values[0]
            else:
                del cell.cell_contents

        self._hold(read, write)
        yield from read()

    def _take_class(self, cls: type) -> Iterator[Any]:
        yield from cls.__bases__
        if is_library(cls.__module__) or not cls.__flags__ & _HEAP_TYPE:
            return
        for name, value in list(vars(cls).items()):
            if name in ("__dict__", "__weakref__", "__doc__", "__module__", "__abstractmethods__", "_abc_impl"):
                continue
            yield value
        names = {n: v for n, v in vars(cls).items() if n not in ("__dict__", "__weakref__", "__doc__", "_abc_impl")}

        def restore() -> None:
            now = vars(cls)
            for name in [n for n in now if n not in names and n not in ("__dict__", "__weakref__", "__doc__", "_abc_impl")]:
                type.__delattr__(cls, name)
            for name, value in names.items():
                if now.get(name, _NOTHING) is not value:
                    type.__setattr__(cls, name, value)

        self._restorers.append(restore)

    def _take_module(self, module: types.ModuleType) -> Iterator[Any]:
        file = getattr(module, "__file__", None)
        if is_library(module.__name__) or (file or "").startswith(_SITE):  # a module without a file may be one that the program made
            return
        for name, value in list(vars(module).items()):
            if name.startswith("__"):
                continue
            self._hold_key(vars(module), name)
            yield value

    def _take_generator(self, g: Any) -> None:
        if isinstance(g, random.Random):
            state = g.getstate()
            self._restorers.append(lambda: g.setstate(state))
        elif isinstance(g, torch.Generator):
            position = g.get_state()
            self._restorers.append(lambda: (g.set_state(position), None)[1])
        elif isinstance(g, np.random.Generator):
            bits = copy.deepcopy(g.bit_generator.state)
            self._restorers.append(lambda: setattr(g.bit_generator, "state", bits))
        else:
            old = g.get_state()
            self._restorers.append(lambda: g.set_state(old))

    def _take_random_states(self) -> None:
        torch_state, python, numpy, default = torch.get_rng_state(), random.getstate(), np.random.get_state(), torch.get_default_dtype()

        def restore() -> None:
            torch.set_rng_state(torch_state)
            random.setstate(python)
            np.random.set_state(numpy)
            torch.set_default_dtype(default)

        self._restorers.append(restore)

    # -- places ------------------------------------------------------------------------------------------------------------
    def _hold(self, read: Callable[[], list[Any]], write: Callable[[list[Any]], None]) -> None:
        saved = read()
        self._holders.append((write, saved))

        def restore() -> None:
            now = read()
            if len(now) != len(saved) or any(map(operator.is_not, now, saved)):
                write(saved)

        self._restorers.append(restore)

    def _hold_key(self, names: dict[str, Any], name: str) -> None:
        def read() -> list[Any]:
            return [names[name]] if name in names else []

        def write(values: list[Any]) -> None:
            if values:
                names[name] = values[0]
            else:
                names.pop(name, None)

        self._hold(read, write)

    def _put_back(self, saved: Any, read: Callable[[], Any], write: Callable[[Any], Any], same: Callable[[Any, Any], bool]) -> None:
        def restore() -> None:
            if not same(read(), saved):
                write(saved)

        self._restorers.append(restore)


_NOTHING = object()
_HEAP_TYPE = 1 << 9  # the class was made by Python code


def _names(code: types.CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found


def _attributes(x: Any) -> dict[str, Any] | None:
    try:
        found = object.__getattribute__(x, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def _has_attributes(x: Any) -> bool:
    return _attributes(x) is not None or bool(_slots(type(x)))


_SLOTS: dict[type, tuple[Any, ...]] = {}


def _slots(cls: type) -> tuple[Any, ...]:
    if cls not in _SLOTS:
        bases = [base for base in cls.__mro__ if "__slots__" in vars(base)]
        _SLOTS[cls] = tuple(m for base in bases for m in vars(base).values() if isinstance(m, types.MemberDescriptorType))
    return _SLOTS[cls]


def _slot(member: Any, x: Any) -> Any:
    try:
        return member.__get__(x)
    except AttributeError:
        return _NOTHING


def _set_slot(member: Any, x: Any, value: Any) -> None:
    if value is _NOTHING:
        member.__delete__(x)
    else:
        member.__set__(x, value)


def _set_defaults(f: types.FunctionType, saved: tuple[Any, Any]) -> None:
    f.__defaults__, f.__kwdefaults__ = saved


def _inside(iterator: Any) -> list[Any]:
    """Return what an iterator iterates over, as far as it says so."""
    try:
        return list(iterator.__reduce__()[1:])
    except (AttributeError, TypeError):
        return []


def _copied(iterator: Any) -> Any:
    """Return an iterator at the same position; iterators inside of it are copied too, what they give is not."""
    made = iterator.__reduce__()
    function, args, *state = made
    args = tuple(_copied(a) if type(a) in _COPYABLE else a for a in args)
    copied = function(*args)
    if state and state[0] is not None:
        copied.__setstate__(_copied(state[0]) if type(state[0]) in _COPYABLE else state[0])
    return copied
