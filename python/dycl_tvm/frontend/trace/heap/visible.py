# Licensed under the Apache License, Version 2.0; see LICENSE.
"""State that no attribute shows: what an object of a compiled class keeps for itself.

It is asked for by the ways that every object offers: the state that it gives to ``pickle`` and ``copy``, its buffer, the position
of an iterator, the frame of a generator. An object that offers none of them, and is larger than what can be seen of it, is
*invisible*: it counts as changed whenever code that is not known has had it in its hands.
"""

from __future__ import annotations

import abc
import contextvars
import copyreg
import ctypes
import functools
import gc
import re
import sys
import threading
import types
import warnings
import weakref
from collections import OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import torch

from dycl_tvm.frontend.trace.heap.compiled import is_python, is_unknown, is_unknown_class
from dycl_tvm.frontend.trace.heap.places import MUTABLE, Contents, Indivisible, Owned
from dycl_tvm.frontend.trace.unrecorded import plainly

#: How a function in C is put into a class in C.
INSTANCE_METHOD: Any = type(vars(torch._C.Graph)["nodes"])
#: Classes in C whose state is what their places, or their items, hold.
_SEEN: tuple[type, ...] = (
    object,
    type,
    list,
    dict,
    set,
    frozenset,
    tuple,
    deque,
    OrderedDict,
    defaultdict,
    str,
    bytes,
    int,
    float,
    complex,
    bytearray,
    np.ndarray,
    np.generic,
    torch.Tensor,
    torch.nn.Parameter,
    BaseException,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    INSTANCE_METHOD,
    types.CellType,
    types.SimpleNamespace,
    types.MappingProxyType,
    weakref.ref,
    contextvars.ContextVar,  # what it holds is a place of its own
    type(abc.ABC._abc_impl),  # type: ignore[attr-defined]  # which classes were asked for; those that are registered are refused
    types.GenericAlias,
    types.UnionType,
    re.Pattern,
    re.Match,
    property,
    staticmethod,
    classmethod,
    # locks are for threads: one thread runs the program that is staged
    type(threading.Lock()),
    type(threading.RLock()),
)
#: Tensors of more elements, and states of more objects, are not compared.
_LARGE = 1 << 16


class _Invisible:
    """Stands for state that cannot be seen: equal to nothing, itself included."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "<state that cannot be seen>"


INVISIBLE = _Invisible()


class Seen:
    """What can be seen of a compiled object at one moment."""

    def __init__(self, x: Any) -> None:
        self.fingerprint = fingerprint(x)
        self._state = _reduced(x)
        self._bytes = _bytes(x)

    @property
    def tells(self) -> bool:
        """Whether it can be told from this if the object changes."""
        return self.fingerprint is not INVISIBLE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seen) and self.fingerprint is not INVISIBLE and self.fingerprint == other.fingerprint

    __hash__ = None  # type: ignore[assignment]

    def restore(self, x: Any) -> None:
        """Give an object this state again, by its buffer or by ``__setstate__``."""
        if self._bytes is not None:
            with memoryview(x) as view:
                view.cast("B")[:] = self._bytes
        elif self._state is not INVISIBLE and self._state[1] is not None and hasattr(x, "__setstate__"):
            x.__setstate__(self._state[1])
        else:
            raise TypeError("the state cannot be restored")


class Hidden(Indivisible, Owned):
    """The state that a compiled object keeps for itself."""

    __slots__ = ()

    @classmethod
    def of(cls, x: Any) -> Hidden | None:
        """Return the hidden state of an object; None if all of it can be seen."""
        return (
            cls(x) if (has_hidden(_class(x)) and not is_of_numpy(x)) or (type(x) is types.BuiltinFunctionType and is_unknown(x)) else None
        )

    @property
    def key(self) -> Any:
        return (id(self._owner), "hidden")

    def read(self) -> Any:
        return Seen(self._owner)

    def write(self, contents: Any) -> None:
        contents.restore(self._owner)

    def can_restore(self, before: Any, now: Any) -> bool:
        """Whether what the object held before can be put back: it is tried."""
        try:
            before.restore(self._owner)
            restored = Seen(self._owner) == before
            now.restore(self._owner)
            return restored and Seen(self._owner) == now
        except Exception:
            return False


#: Functions of NumPy's that are objects.
NUMPY_FUNCTIONS = (np.ufunc, type(np.linspace))


def is_of_numpy(x: Any) -> bool:
    """Whether something is one of NumPy's own compiled functions: they keep no state, but do not show that."""
    if not isinstance(x, NUMPY_FUNCTIONS):
        return False
    name = "numpy" if isinstance(x, np.ufunc) else str(x.__module__)
    return name.split(".")[0] == "numpy" and getattr(sys.modules.get(name), x.__name__, None) is x


@functools.cache
def has_hidden(cls: Any) -> bool:
    """Whether objects of a class may keep state that neither attributes nor items show."""
    if is_unknown_class(cls):
        return True
    for base in cls.__mro__:
        if base in _SEEN:
            return False
        if not is_python(base) and not _adds_nothing(base):
            return True
    return True


def _adds_nothing(cls: Any) -> bool:
    """Whether objects of a compiled class hold no more than those of its base: ``typing.Generic`` is one since Python 3.12."""
    sizes = ("__basicsize__", "__itemsize__", "__dictoffset__", "__weakrefoffset__")
    return cls.__base__ is not None and all(getattr(cls, size) == getattr(cls.__base__, size) for size in sizes)


def fingerprint(x: Any) -> Any:
    """Return what is equal for an object as long as it has not changed; :data:`INVISIBLE` if that cannot be told.

    A state that differs from itself when it is read twice says nothing: objects in it are made anew by every question.
    """
    try:
        found = _fingerprint(x, {})
        return found if not _names_objects(found) or found == _fingerprint(x, {}) else INVISIBLE
    except (_CannotTell, RecursionError):
        return INVISIBLE


class _CannotTell(Exception):
    """Some of the state cannot be compared."""


class _Same:
    """Stands for an object that is compared by identity, and keeps it: no other takes its address."""

    __slots__ = ("_x",)

    def __init__(self, x: Any) -> None:
        self._x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._x is other._x

    __hash__ = None  # type: ignore[assignment]


def _names_objects(found: Any) -> bool:
    """Whether a fingerprint compares objects by identity that the question may have made."""
    return isinstance(found, _Same) or (isinstance(found, tuple) and any(map(_names_objects, found)))


def _fingerprint(x: Any, seen: dict[int, Any]) -> Any:
    if is_unknown(x):
        raise _CannotTell  # it may tell less than its state
    if isinstance(x, types.GeneratorType):
        frame = x.gi_frame
        return None if frame is None else (frame.f_lasti, *[(k, _Same(v)) for k, v in frame.f_locals.items()])
    found: list[Any] = []
    state = _reduced(x)
    if state is not INVISIBLE:
        found.append(_plain(state, seen))
    contents = _bytes(x)
    if contents is not None and (found or isinstance(x, memoryview)):  # a buffer alone need not be all of an object
        found.append(contents)
    if isinstance(x, CACHED):
        found.append(x.cache_info())
    if hasattr(type(x), "__length_hint__"):
        found.append(type(x).__length_hint__(x))
    if not found:
        raise _CannotTell
    if state is INVISIBLE:
        found += [_Same(v) for v in gc.get_referents(x)]
    return tuple(found)


def _bytes(x: Any) -> bytes | None:
    """Return the bytes of an object that offers its buffer."""
    try:
        with memoryview(x) as view:
            return view.tobytes()
    except (TypeError, ValueError, BufferError):
        return None


#: What ``functools.lru_cache`` makes of a function.
CACHED = type(functools.lru_cache(len))


def _reduced(x: Any) -> Any:
    """Return what an object gives to ``pickle``: arguments, state and items."""
    cls = type(x)
    if isinstance(x, (list, dict)) and cls.__reduce_ex__ is object.__reduce_ex__ and cls.__reduce__ is object.__reduce__:
        return INVISIBLE  # Python gives the items only
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            registered = copyreg.dispatch_table.get(cls)
            made = x.__reduce_ex__(4) if registered is None else registered(x)
            if isinstance(made, str):
                return INVISIBLE
            _, args, state, *items = (*made, None)[: max(3, len(made))]
            return (args, state, *[tuple(part) for part in items[:2] if part is not None])
    except Exception:
        return INVISIBLE


def _plain(x: Any, seen: dict[int, Any]) -> Any:
    """Return a value that later changes do not touch, and that is compared by value as far as it is plain."""
    kind: Any = type(x)
    if x is None or kind in (int, str, bytes, torch.device, torch.dtype, torch.Size):
        return x
    if kind in (bool, float, complex):
        return (kind, repr(x))
    if isinstance(x, type) or (kind is types.BuiltinFunctionType and isinstance(x.__self__, types.ModuleType)):
        return id(x)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return (kind, x.dtype, tuple(x.shape), _tensor_bytes(x))
    container = isinstance(x, (tuple, frozenset, *MUTABLE))
    if not (container or isinstance(x, np.ndarray) or has_hidden(kind)):
        return _Same(x)
    if id(x) in seen:
        return (kind, seen[id(x)][0])
    if len(seen) > _LARGE:
        raise _CannotTell
    seen[id(x)] = (len(seen), x)
    if container:
        return (kind, *[_plain(v, seen) for v in (Contents(x).read() if isinstance(x, MUTABLE) else x)])
    if isinstance(x, np.ndarray):
        return (kind, x.dtype, x.shape, _plain(x.tolist(), seen) if x.dtype.hasobject else x.tobytes())
    return (kind, _fingerprint(x, seen))


def _tensor_bytes(t: torch.Tensor) -> bytes:
    if t.layout != torch.strided or t.numel() > _LARGE:
        raise _CannotTell
    with plainly():
        return bytes_of(t)


def bytes_of(t: torch.Tensor) -> bytes:
    """Return what a tensor holds; nothing if it has no data."""
    if t.device.type == "meta" or not t.numel():
        return b""
    if t.device.type == "cpu" and t.is_contiguous():
        return ctypes.string_at(t.data_ptr(), t.numel() * t.element_size())
    return bytes(t.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes())


def _class(x: Any) -> Any:
    return type(x)
