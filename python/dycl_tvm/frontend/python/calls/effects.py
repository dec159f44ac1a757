# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What code that runs as it is may change: what is known of it, and a watch over all that is not."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.calls.sealed import refuse_unknown
from dycl_tvm.frontend.python.calls.shared import Shared, gives_classes
from dycl_tvm.frontend.python.calls.unseen import Unseen
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.source.ownership import code_of, is_library, is_library_class
from dycl_tvm.frontend.trace.heap.compiled import CODE, is_unknown, module_of
from dycl_tvm.frontend.trace.heap.places import Place
from dycl_tvm.frontend.trace.heap.reach import OPERATORS, reach
from dycl_tvm.frontend.trace.heap.settings import CONTEXT, SETTINGS
from dycl_tvm.frontend.trace.heap.visible import has_hidden
from dycl_tvm.frontend.trace.heap.watch import LIMIT, Snapshot, Watch
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.garbage import no_collections

#: Classes whose own methods change the object and nothing else; what they change of it is saved.
_KNOWN = (
    *(list, dict, set, frozenset, tuple, str, bytes, int, float, complex, bool, bytearray, range, slice, type),
    *(collections.deque, collections.OrderedDict, collections.defaultdict, np.ndarray, np.generic, torch.Size),
    *(torch.Tensor, torch._C.TensorBase),
    *(types.GeneratorType, types.FunctionType, types.MethodType, types.ModuleType, property, super),
    object,
)
#: Modules whose functions change tensors only.
_KNOWN_MODULES = frozenset(["torch.nn.functional", "torch._C", "torch._tensor", "torch.functional", "torch._refs", "torch.overrides"])
#: Functions of Python's that read what they are given and nothing else; libraries that check types ask them hundreds of times.
_QUESTIONS = frozenset([typing.get_args, typing.get_origin, dataclasses.fields, dataclasses.is_dataclass, inspect.isclass])
#: What holds the compiled functions ``torch.cat``, ``torch.sigmoid`` and so on.
_COMPILED: Any = torch.cat.__self__  # type: ignore[attr-defined]


class AboutCallee:
    """What is known of code that runs as it is, whatever it is given.

    Attributes
    ----------
    module : str
        The module that it says it is of.
    unknown : bool
        Whether it is compiled code that is not known.
    known : bool
        Whether it changes only what it is a method of, which is saved, or nothing of Python's.
    compiled : bool
        Whether it is a compiled function of PyTorch's, which calls code only that it is given.
    allowed : bool
        Whether it was looked at, and a compiled network may call it.
    """

    __slots__ = ("allowed", "callee", "compiled", "known", "module", "unknown")

    def __init__(self, callee: Any) -> None:
        self.callee, self.allowed = callee, False
        self.module, self.unknown = module_of(callee), is_unknown(callee)
        self.known = not self.unknown and _is_known(callee, self.module)
        self.compiled = is_library(callee) if isinstance(callee, OPERATORS) else _is_method(callee, _COMPILED)


class _Callees:
    """What a session knows of functions, by their ids."""

    def __init__(self) -> None:
        self.known: dict[int, AboutCallee] = {}


def about_callee(callee: Any) -> AboutCallee:
    """Return what is known of a callee; of a library's function, which is called again and again, it is found once in a session."""
    callees = current().get(_Callees).known
    about = callees.get(id(callee))
    if about is not None and about.callee is callee:
        return about
    about, kind = AboutCallee(callee), type(callee)
    if kind is types.BuiltinFunctionType:
        lasting = about.compiled or type(callee.__self__) is types.ModuleType
    else:
        lasting = kind is types.FunctionType and is_library(callee)
    if lasting:
        callees[id(callee)] = about
    return about


def watching(
    run: Callable[..., Any], callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any], pure: bool, about: AboutCallee | None = None
) -> Any:
    """Return ``run(callee, args, kwargs)``, a call of code that is not rewritten, and note what it changes.

    ``about`` is :func:`about_callee` of the callee, where it was asked for already.

    Raises
    ------
    UnsupportedError
        If it changes what lives on between calls, and cannot be kept.
    """
    heap = current().heap
    about = about or about_callee(callee)
    if about.unknown:
        refuse_unknown(callee)
    if about.module.startswith("torch"):
        heap.journal.touch(SETTINGS, surely=False)
    if pure or about.known or (about.compiled and not any(map(callable, args)) and not any(map(callable, kwargs.values()))):
        return run(callee, args, kwargs)
    heap.journal.touch(CONTEXT, surely=False)
    owner = getattr(callee, "__self__", None)
    roots = [("", x) for x in (callee, owner, *args, *kwargs.values())]
    by_code = isinstance(callee, types.FunctionType) and not is_library(callee)  # it runs as it is
    given = reach(roots, is_library, code_of, LIMIT, by_code).complete(current().origin())
    shared = Shared(callee, args, given)
    given.steps += shared.steps
    snapshot = Snapshot(given)
    for place in shared.places:
        snapshot.add_place(place)
    watch = Watch(heap, snapshot)
    try:
        with no_collections(), Unseen():
            result = run(callee, args, kwargs)
    except BaseException:
        watch.settle(shared.adopt, _lost_for_good)
        raise
    watch.settle(shared.adopt, _lost)
    shared.adopt_result(result)
    return result


def is_opaque(obj: Any) -> bool:
    """Whether the operators of an object are code that is neither rewritten nor known."""
    kind: Any = type(obj)
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
    if module in _KNOWN_MODULES or module.startswith(("torch._C.", "torch._refs.", "dycl_tvm.frontend.")):
        return True  # PyTorch's, or a method of staging's own values
    if isinstance(callee, torch.nn.Module):
        return is_library_class(type(callee))
    if isinstance(callee, types.FunctionType):
        if callee in _QUESTIONS:
            return True
        return callee.__name__ in ("forward", "_call_impl", "_wrapped_call_impl") and module.startswith("torch.nn.modules.")
    if isinstance(callee, type):
        return issubclass(callee, _KNOWN) and is_library_class(callee) and callee is not object
    if gives_classes(callee):
        return False
    owner = getattr(callee, "__self__", None)
    if isinstance(owner, types.ModuleType):
        return owner.__name__.split(".")[0] in ("math", "cmath", "_bisect", "_heapq", "torch", "_stat", "unicodedata")
    holder = getattr(callee, "__objclass__", None)
    if holder is None:
        holder = owner if isinstance(owner, type) else type(owner)
        holder = next((c for c in holder.__mro__ if _is_of(callee, owner, c)), holder) if hasattr(callee, "__name__") else holder
    return holder in _KNOWN or isinstance(callee, torch._C._ScriptMethod if hasattr(torch._C, "_ScriptMethod") else ())


def _is_of(method: Any, owner: Any, cls: type) -> bool:
    """Whether a class is that of a method: not one derived from it that has a method of this name, which may call it by ``super()``."""
    found: Any = vars(cls).get(method.__name__)
    if found is None or (type(method) is not types.FunctionType and isinstance(found, types.FunctionType)):
        return False
    if type(found) not in CODE or not hasattr(found, "__get__"):
        return True
    return bool((found.__get__(None, owner) if isinstance(owner, type) else found.__get__(owner, type(owner))) == method)


def _is_method(callee: Any, owner: Any) -> bool:
    return type(callee) is types.BuiltinFunctionType and callee.__self__ is owner
