# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What code that runs as it is may change: what is known of it, and a watch over all that is not."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.calls.sealed import refuse_unknown
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.source.ownership import code_of, is_library, is_library_class
from dycl_tvm.frontend.trace.heap.compiled import is_unknown, module_of
from dycl_tvm.frontend.trace.heap.places import Place
from dycl_tvm.frontend.trace.heap.reach import ATOMS, names_of, reach
from dycl_tvm.frontend.trace.heap.settings import CONTEXT, SETTINGS
from dycl_tvm.frontend.trace.heap.visible import has_hidden
from dycl_tvm.frontend.trace.heap.watch import LIMIT, Snapshot, Watch
from dycl_tvm.frontend.trace.session import current

#: Classes whose own methods change the object and nothing else; what they change of it is saved.
_KNOWN = (
    *(list, dict, set, frozenset, tuple, str, bytes, int, float, complex, bool, bytearray, range, slice, type),
    *(collections.deque, collections.OrderedDict, collections.defaultdict, np.ndarray, np.generic, torch.Size),
    *(torch.Tensor, torch._C.TensorBase),
    *(types.GeneratorType, types.FunctionType, types.MethodType, types.ModuleType, BaseException, property, super),
    object,
)
#: What holds the compiled functions ``torch.cat``, ``torch.sigmoid`` and so on.
_COMPILED: Any = torch.cat.__self__  # type: ignore[attr-defined]
#: How many functions of libraries are followed from one that is called.
_FOLLOWED = 300


def watching(run: Callable[..., Any], callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any], pure: bool) -> Any:
    """Return ``run(callee, args, kwargs)``, a call of code that is not rewritten, and note what it changes.

    Raises
    ------
    UnsupportedError
        If it changes what lives on between calls, and cannot be kept.
    """
    heap = current().heap
    if is_unknown(callee):
        refuse_unknown(callee)
    module = module_of(callee)
    if module.startswith("torch"):
        heap.journal.touch(SETTINGS, surely=False)
    if pure or _is_compiled(callee, args, kwargs) or _is_known(callee, module):
        return run(callee, args, kwargs)
    heap.journal.touch(CONTEXT, surely=False)
    owner = getattr(callee, "__self__", None)
    roots = [("", callee), *(("", a) for a in (owner, *args, *kwargs.values())), *(("", x) for x in _shared_by(callee))]
    watch = Watch(heap, Snapshot(reach(roots, is_library, code_of, LIMIT)))
    try:
        result = run(callee, args, kwargs)
    except BaseException:
        watch.settle(_lost_for_good)
        raise
    watch.settle(_lost)
    return result


def is_opaque(obj: Any) -> bool:
    """Whether the operators of an object are code that is neither rewritten nor known."""
    kind = type(obj)
    if kind in _KNOWN or issubclass(kind, (*_KNOWN[:-1], torch.nn.Module)):
        return False
    return is_library_class(kind) or has_hidden(kind)


def operate(function: Any, *args: Any) -> Any:
    """Call an operator of Python's on an object whose class is a library's; what it changes is noted."""
    return watching(lambda f, given, _: f(*given), function, args, {}, False)


def _lost(place: Place) -> None:
    _lost_for_good(place)
    current().heap.check_undoable(place.owner, _changed(place))


def _lost_for_good(place: Place) -> None:
    if program().state.lives_on(place.owner) or isinstance(place.owner, types.ModuleType):
        _refuse(f"{_changed(place)}, and it lives on between calls")


def _changed(place: Place) -> str:
    return f"a {type(place.owner).__name__} is changed, whose state cannot be put back"


def _refuse(reason: str) -> None:
    raise UnsupportedError(
        reason, current().origin(), "make such objects in the forward, or keep them out of it and pass in what they give"
    )


def _is_known(callee: Any, module: str) -> bool:
    """Whether a call changes only what it is a method of, which is saved, or nothing of Python's."""
    if module.startswith(("torch.nn.functional", "torch._C", "torch._tensor", "torch.functional", "torch._refs", "torch.overrides")):
        return True
    if isinstance(callee, torch.nn.Module):
        return is_library_class(type(callee))
    if isinstance(callee, types.FunctionType):
        return callee.__name__ in ("forward", "_call_impl", "_wrapped_call_impl") and module.startswith("torch.nn.modules.")
    if isinstance(callee, type):
        return issubclass(callee, _KNOWN) and is_library_class(callee) and callee is not object
    owner = getattr(callee, "__self__", None)
    if isinstance(owner, types.ModuleType):
        return owner.__name__.split(".")[0] in ("math", "cmath", "_bisect", "_heapq", "torch", "_stat", "unicodedata")
    holder = getattr(callee, "__objclass__", None)
    if holder is None:
        holder = owner if isinstance(owner, type) else type(owner)
        holder = next((c for c in holder.__mro__ if callee.__name__ in vars(c)), holder) if hasattr(callee, "__name__") else holder
    return holder in _KNOWN or isinstance(callee, torch._C._ScriptMethod if hasattr(torch._C, "_ScriptMethod") else ())


def _is_compiled(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call is one of a compiled function of PyTorch's that is given no code: it changes tensors only, which the recorder sees."""
    if type(callee) is not types.BuiltinFunctionType or callee.__self__ is not _COMPILED:
        return False
    return not any(map(callable, args)) and not any(map(callable, kwargs.values()))


def _shared_by(callee: Any) -> list[Any]:
    """Return what library functions share: what the code of a callee, and of the functions that it names, closes over or finds global."""
    function = callee.__func__ if isinstance(callee, types.MethodType) else callee
    if not isinstance(function, types.FunctionType):
        function = getattr(type(callee), "__call__", None)  # noqa: B004  (the method itself is wanted)
    return list(_shared(function)) if isinstance(function, types.FunctionType) else []


@functools.lru_cache(maxsize=4096)
def _shared(function: types.FunctionType) -> tuple[Any, ...]:
    found, todo, seen = [], [function], set[int]()
    while todo and len(seen) < _FOLLOWED:
        f = todo.pop()
        if id(f) in seen or (module_of(f).startswith(("torch.", "numpy.")) and seen):
            continue
        seen.add(id(f))
        values = [f.__globals__[n] for n in names_of(code_of(f)) if n in f.__globals__]
        cells = list(f.__closure__ or ())
        found += [*cells, *(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()]
        for v in [*values, *(c.cell_contents for c in cells if c != types.CellType())]:
            if isinstance(v, types.FunctionType):
                todo.append(v)
            elif isinstance(v, type):
                todo += [m for m in vars(v).values() if isinstance(m, types.FunctionType)] if v.__module__ == f.__module__ else []
                found += [m for m in vars(v).values() if isinstance(m, (list, dict, set))]
            elif not isinstance(v, (*ATOMS, types.ModuleType, staticmethod, classmethod, property)):
                found.append(v)
    return tuple(found)
