# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What functions of libraries share with each other: globals, closures, defaults, attributes of functions and classes.

It lives on between calls, though the model does not reach it: it becomes a part of the model's state when a call has changed it.
"""

from __future__ import annotations

import dis
import functools
import re
import sys
import types
from collections.abc import Iterable
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.source.ownership import code_of, is_library, is_library_class, users_function
from dycl_tvm.frontend.trace.by_code import by_code
from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.heap.compiled import is_python, module_of
from dycl_tvm.frontend.trace.heap.places import MUTABLE, Place, attribute_of, space_of
from dycl_tvm.frontend.trace.heap.reach import ATOMS, ClassBody, Step, names_of, reach
from dycl_tvm.frontend.trace.heap.visible import CACHED
from dycl_tvm.frontend.trace.heap.watch import LIMIT
from dycl_tvm.frontend.trace.session import current

#: Results that hold nothing that can change, or are found otherwise.
_NO_STATE = (*ATOMS, type, types.FunctionType, types.ModuleType, torch.Tensor, OwnValue)
#: What the functions of ``re`` keep of expressions that they have seen.
_CACHES = [cache for cache in (getattr(re, name, None) for name in ("_cache", "_cache2")) if cache is not None]
#: How many functions are followed from one that is called, at most.
_FOLLOWED = 4000


class Shared:
    """What the functions that a call may run share.

    Parameters
    ----------
    callee : callable
    args : tuple
        Its arguments.
    given : iterable of (label, object)
        What the call is given, as :func:`reach` finds it: it is not among what is shared.
    """

    def __init__(self, callee: Any, args: tuple[Any, ...], given: Iterable[Step]) -> None:
        function: Any = callee.__func__ if isinstance(callee, types.MethodType) else callee
        if not isinstance(function, types.FunctionType):
            function = getattr(type(callee), "__call__", None)  # noqa: B004  (the method itself is wanted)
        objects, places = _shared_by(function) if isinstance(function, types.FunctionType) else ((), ())
        self._given = {id(x) for _, x in given}
        self._makes, self._gives_classes = _makes_anew(callee), gives_classes(callee)
        roots = [(f"what {function.__name__}() keeps", x) for x in objects]
        reached = reach(roots, is_library, code_of, LIMIT, by_code=False).complete(current().origin())
        self.steps = [step for step in reached if id(step[1]) not in self._given]
        owners = [x if isinstance(x, type) else type(x) for x in (getattr(callee, "__self__", None), *args[:1])]
        self.places = [*places, *(body for cls in owners for body in _bodies(cls))]

    def adopt(self, changed: Place) -> None:
        """Make what is shared a part of the model's state, if that is what was changed."""
        owner = changed.owner
        current().heap.check_lent(owner)
        if any(p.key == changed.key for p in self.places):
            program().state.adopt([(changed.text, owner)])
        elif any(x is owner or space_of(x) is owner for _, x in self.steps):
            program().state.adopt(self.steps)

    def adopt_result(self, result: Any) -> None:
        """Make the result a part of the model's state if it is held by what nobody sees."""
        if self._gives_classes:
            found = [("a subclass", c) for c in result if not current().heap.birth(c) and not program().state.lives_on(c)]
            program().state.adopt(reach(found, is_library, code_of).complete())
            return
        if self._makes or sys.getrefcount(result) <= _FRESH or isinstance(result, _NO_STATE):
            return
        if id(result) not in self._given and not current().heap.birth(result) and not program().state.lives_on(result):
            program().state.adopt(reach([("what a library keeps", result)], is_library, code_of).complete())


def gives_classes(callee: Any) -> bool:
    """Whether a callable gives the classes that derive from one, to which nothing else of the program need lead."""
    is_method = isinstance(callee, (types.BuiltinFunctionType, types.MethodDescriptorType))
    return is_method and callee.__name__ == "__subclasses__"


def _makes_anew(callee: Any) -> bool:
    """Whether a callable is a class each call of which gives a new object: one of Python's own types makes it."""
    if not isinstance(callee, type) or type(callee).__call__ is not type.__call__:
        return False
    return getattr(getattr(callee.__new__, "__self__", None), "__module__", None) in ("builtins", "collections")


def _count(result: Any) -> int:
    return sys.getrefcount(result)


def _fresh() -> int:
    result = object()
    return _count(result)


#: How often an object is referred to in :meth:`Shared.adopt_result` if nothing but its caller holds it.
_FRESH = _fresh()


@functools.lru_cache(maxsize=4096)
def _shared_by(function: types.FunctionType) -> tuple[tuple[Any, ...], tuple[Place, ...]]:
    """Return the objects, and the variables, that the code of a function, and of those that it names, finds outside of itself."""
    objects, places, todo, seen = list[Any](), list[Place](), [function], set[int]()
    while todo and len(seen) < _FOLLOWED:
        f = todo.pop()
        if id(f) in seen or (seen and (module_of(f).startswith(("torch.", "numpy.")) or users_function(f) is f)):
            continue  # the user's own functions run rewritten, also those that are put into a class of a library
        seen.add(id(f))
        code = code_of(f)
        values = [f.__globals__[n] for n in names_of(code) if n in f.__globals__]
        cells = list(f.__closure__ or ())
        objects += [*cells, *(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()]
        places += [attribute_of(f.__globals__, n) for n in _stored_globals(code)]
        if vars(f):
            objects.append(vars(f))
        for v in [*values, *(c.cell_contents for c in cells if c != types.CellType())]:
            if isinstance(v, types.FunctionType):
                todo.append(v)
            elif isinstance(v, type):
                if module_of(v) == module_of(f):
                    methods = [getattr(m, "__func__", m) for m in vars(v).values()]
                    todo += [m for m in methods if isinstance(m, types.FunctionType)]
                places += _bodies(v)
                objects += [m for m in vars(v).values() if isinstance(m, MUTABLE)]
            elif not isinstance(v, (*ATOMS, types.ModuleType, staticmethod, classmethod, property)) and not _is_cache(v):
                objects.append(v)
    if todo:
        raise UnsupportedError(
            f"{function.__name__}() leads to more than {_FOLLOWED} functions: too many to see what they share",
            current().origin(),
            "call it outside of the forward, and pass in what it gives",
        )
    return tuple(objects), tuple({p.key: p for p in places}.values())


def _is_cache(x: Any) -> bool:
    """Whether the standard library keeps something only to be faster: what its functions give does not depend on it."""
    if isinstance(x, CACHED):
        return module_of(x).partition(".")[0] in sys.stdlib_module_names
    return any(x is cache for cache in _CACHES)


@functools.cache
def _bodies(cls: Any) -> tuple[Place, ...]:
    """Return the variables of a library's class, and of its bases."""
    return tuple([ClassBody(base) for base in cls.__mro__ if is_library_class(base) and is_python(base)])


@by_code
def _stored_globals(code: types.CodeType) -> tuple[str, ...]:
    inner = [n for c in code.co_consts if isinstance(c, types.CodeType) for n in _stored_globals(c)]
    return (*inner, *[i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")])
