# Licensed under the Apache License, Version 2.0; see LICENSE.
"""State that no attribute shows: what an object of a compiled class keeps for itself.

It is asked for by the ways that every object offers: the state that it gives to ``pickle`` and ``copy``, its buffer, the position
of an iterator, the frame of a generator. An object that offers none of them, and is larger than what can be seen of it, is
*invisible*: it counts as changed whenever code that is not known has had it in its hands.
"""

from __future__ import annotations

import functools
import gc
import threading
import types
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dycl_tvm.frontend.trace.heap.places import Owned

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
    types.CellType,
    types.SimpleNamespace,
    types.MappingProxyType,
    functools.partial,
    property,
    staticmethod,
    classmethod,
    # locks are for threads: one thread runs the program that is staged
    type(threading.Lock()),
    type(threading.RLock()),
)
_PYTHON_CLASS = 1 << 9  # Py_TPFLAGS_HEAPTYPE


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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seen) and self.fingerprint is not INVISIBLE and self.fingerprint == other.fingerprint

    __hash__ = None  # type: ignore[assignment]

    def restore(self, x: Any) -> None:
        """Give an object this state again, by its buffer or by ``__setstate__``."""
        if self._bytes is not None:
            with memoryview(x) as view:
                view.cast("B")[:] = self._bytes
        elif self._state is not INVISIBLE and len(self._state) > 1 and hasattr(x, "__setstate__"):
            x.__setstate__(self._state[1])
        else:
            raise TypeError("the state cannot be restored")


class Hidden(Owned):
    """The state that a compiled object keeps for itself."""

    __slots__ = ()

    @classmethod
    def of(cls, x: Any) -> Hidden | None:
        """Return the hidden state of an object; None if all of it can be seen."""
        return cls(x) if has_hidden(_class(x)) else None

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

    def flatten(self, contents: Any) -> tuple[Any, Sequence[Any]]:
        return contents, ()

    def unflatten(self, contents: Any, items: Sequence[Any]) -> Any:
        return contents


@functools.cache
def has_hidden(cls: Any) -> bool:
    """Whether objects of a class may keep state that neither attributes nor items show."""
    for base in cls.__mro__:
        if base in _SEEN:
            return False
        if not _is_python(base):
            return True
    return True


def _is_python(cls: type) -> bool:
    """Whether a class was made by a ``class`` statement: it adds nothing but ``__dict__`` and slots to its base."""
    if not cls.__flags__ & _PYTHON_CLASS:
        return False
    base = cls.__base__
    assert base is not None
    slots = [k for k, v in vars(cls).items() if isinstance(v, types.MemberDescriptorType)]
    added = len(slots) + (cls.__weakrefoffset__ != base.__weakrefoffset__) + (cls.__dictoffset__ != base.__dictoffset__)
    return cls.__basicsize__ <= base.__basicsize__ + 8 * added


def fingerprint(x: Any, depth: int = 3) -> Any:
    """Return what is equal for an object as long as it has not changed; :data:`INVISIBLE` if that cannot be told."""
    if isinstance(x, types.GeneratorType):
        frame = x.gi_frame
        return None if frame is None else (frame.f_lasti, tuple([(k, id(v)) for k, v in frame.f_locals.items()]))
    found: list[Any] = []
    state = _reduced(x)
    if state is not INVISIBLE:
        found.append(_plain(state, depth))
    contents = _bytes(x)
    if contents is not None:
        found.append(contents)
    if isinstance(x, _CACHE):
        found.append(x.cache_info())
    if hasattr(type(x), "__length_hint__"):
        found.append(type(x).__length_hint__(x))
    if not found:
        return INVISIBLE
    found.append(tuple([id(v) for v in gc.get_referents(x)]) if state is INVISIBLE else None)
    return tuple(found)


def _bytes(x: Any) -> bytes | None:
    """Return the bytes of an object that offers its buffer."""
    try:
        with memoryview(x) as view:
            return view.tobytes()
    except (TypeError, ValueError, BufferError):
        return None


_CACHE = type(functools.lru_cache(len))


def _reduced(x: Any) -> Any:
    """Return what an object gives to ``pickle``."""
    cls = type(x)
    if isinstance(x, (list, dict)) and cls.__reduce_ex__ is object.__reduce_ex__ and cls.__reduce__ is object.__reduce__:
        return INVISIBLE  # Python gives the items only
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = x.__reduce_ex__(4)
    except Exception:
        return INVISIBLE
    return INVISIBLE if isinstance(made, str) else made[1:3]


def is_invisible(seen: Any) -> bool:
    """Whether nothing can be said of a state that was read."""
    return isinstance(seen, Seen) and seen.fingerprint is INVISIBLE


def _plain(x: Any, depth: int) -> Any:
    """Return a value that later changes do not touch, and that is compared by value as far as it is plain."""
    if x is None or isinstance(x, (str, bytes, int, float, complex, type)):
        return (type(x), repr(x) if isinstance(x, (float, complex)) else x)
    if isinstance(x, (tuple, list)) and depth:
        return (type(x), *[_plain(v, depth - 1) for v in x])
    if type(x) is dict and depth:
        return (dict, *[(_plain(k, 0), _plain(v, depth - 1)) for k, v in x.items()])
    if isinstance(x, (tuple, list, dict)):
        return (type(x), len(x))  # may be made anew by every question
    if has_hidden(_class(x)) and depth and not isinstance(x, types.BuiltinFunctionType):
        return (type(x), fingerprint(x, depth - 1))
    return id(x)


def _class(x: Any) -> Any:
    return type(x)
