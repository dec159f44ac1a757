# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What can be reached from an object, whatever it is, and what of it can change.

Nothing is listed by name: containers by their items, objects by ``__dict__`` and slots, functions by what they close over, their
defaults and the globals that their code names, classes by their bases; everything else by what the garbage collector knows.
"""

from __future__ import annotations

import dis
import enum
import functools
import gc
import inspect
import logging
import sys
import types
import typing
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, takewhile
from typing import Any

import numpy as np
import torch
from torch._library import custom_ops

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.by_code import by_code
from dycl_tvm.frontend.trace.clock import Dated, OwnValue
from dycl_tvm.frontend.trace.heap.compiled import owner_of
from dycl_tvm.frontend.trace.heap.places import (
    BUFFERS,
    MUTABLE,
    Bytes,
    Cell,
    Contents,
    Owned,
    Place,
    attribute_of,
    in_slots,
    slots_of,
    space_of,
)
from dycl_tvm.frontend.trace.heap.visible import INSTANCE_METHOD, Hidden, has_hidden, is_of_numpy
from dycl_tvm.hcfg.nodes import Origin

#: Objects that hold nothing that changes.
ATOMS = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    type(...),
    type(NotImplemented),
    range,
    slice,
    torch.dtype,
    torch.device,
    torch.Size,
    torch.layout,
    torch.memory_format,
    torch.SymInt,
    torch.SymFloat,
    torch.SymBool,
    types.CodeType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    # what stands for types: Python finds their bounds and values when it is asked for them
    *(getattr(typing, name) for name in ("TypeVar", "TypeVarTuple", "ParamSpec", "TypeAliasType") if hasattr(typing, name)),
)
_ATOM_TYPES = frozenset(ATOMS)
_CONTAINERS = frozenset([dict, list, set, deque, OrderedDict])

#: Staging's own values among the user's.
_SKIPPED = (Dated, torch.SymInt, torch.SymFloat, torch.SymBool, OwnValue)

#: ``(label, object)``: the label is how the user writes the way there.
Step = tuple[str, Any]


class Reached:
    """What can be reached from some objects: each once, with the way to it.

    Attributes
    ----------
    steps : list of (label, object)
        What may change, or hold what may.
    empty, empty_labels : list of object, list of str
        Containers that hold nothing, by far most of what there is: each module has a dozen for its hooks. Some may be there twice.
    unopened : list of object
        What was not looked into: functions, classes and modules of libraries.
    is_all : bool
        Whether there was no more than the limit.
    """

    __slots__ = ("empty", "empty_labels", "is_all", "steps", "unopened")

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.steps = list(steps)
        self.empty: list[Any] = []
        self.empty_labels: list[str] = []
        self.unopened: list[Any] = []
        self.is_all = True

    def complete(self, origin: Origin | None = None) -> Reached:
        """Return this if it is all that there is; ``origin`` is where it is asked for.

        Raises
        ------
        UnsupportedError
            If there was more than the limit: changes of the rest would not be seen.
        """
        if not self.is_all:
            label, x = self.steps[0]
            name = label or (f"{x.__name__}()" if hasattr(x, "__name__") else f"a {type(x).__name__}")
            raise UnsupportedError(
                f"{len(self.steps)} objects that may change can be reached from {name}, and still more: too many to see which of them do",
                origin,
                "keep large tables in tensors or NumPy arrays",
            )
        return self

    def __iter__(self) -> Iterator[Step]:
        return chain(self.steps, zip(self.empty_labels, self.empty))


def reach(
    roots: list[Step],
    is_library: Callable[[Any], bool],
    code_of: Callable[[Any], Any] = lambda f: f.__code__,
    limit: int = 1 << 20,
    by_code: bool = True,
) -> Reached:
    """Return every object that can be reached and may change or hold what may, with the way to it.

    Parameters
    ----------
    roots : list of (label, object)
    is_library : callable
        Whether a class, function or module belongs to Python or a library, so that what its code shares with all programs is not
        the user's.
    code_of : callable
        Returns the code that a function was written with.
    limit : int
        How many objects are visited at most.
    by_code : bool
        Whether what the user's functions find outside of themselves is reached, or their attributes only. Native code that is given
        such a function can only call it, and then it runs rewritten.
    """
    found = Reached()
    todo, seen, named = deque[Step](), set[int](), set[int]()
    fresh = roots
    while True:
        for step in fresh:
            x = step[1]
            kind: Any = type(x)
            if kind in _CONTAINERS and not x and not (kind is OrderedDict and gc.get_referents(x)):  # only that can have attributes
                found.empty.append(x)
                found.empty_labels.append(step[0])
            elif kind not in _ATOM_TYPES and id(x) not in seen:
                todo.append(step)
        if not todo or len(seen) >= limit:
            break
        fresh, step = [], todo.popleft()
        label, x = step
        kind = type(x)
        if kind is Named:
            x = x.module
            if id(x) not in seen and id(x) not in named:
                named.add(id(x))
                (found.unopened.append(x) if is_library(x) else found.steps.append((label, x)))
            continue
        if id(x) in seen or _is_skipped(kind):
            continue
        seen.add(id(x))
        children = _children_of(kind)
        if children in _SHARED and is_library(x):
            found.unopened.append(x)
            continue
        found.steps.append(step)
        fresh = children(label, x, code_of) if by_code or children is not _function else _attributes(label, x)
    found.is_all = not todo
    return found


def held_by(x: Any) -> list[Any]:
    """Return what an object refers to, attributes too: staging's own values, which :func:`reach` leaves out, among them."""
    return [*gc.get_referents(x), *(space_of(x) or {}).values()]


Children = Callable[[str, Any, Callable[[Any], Any]], list[Step]]


@functools.lru_cache(maxsize=4096)
def _is_skipped(kind: Any) -> bool:
    return issubclass(kind, _SKIPPED)


def _logger(label: str, x: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    """All other loggers, and the streams that messages go to, are no part of a program: its messages are left out."""
    return []


def _items(label: str, x: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    found = [
        (f"{label}[{k!r}]" if type(k) in _ATOM_TYPES else f"{label}[...]", v) for k, v in list(dict.items(x)) if type(v) not in _ATOM_TYPES
    ]
    found += [(f"a key of {label}", k) for k in list(dict.keys(x)) if type(k) not in _ATOM_TYPES]
    return found if type(x) is dict else found + _instance(f"{label}." if label else "", x)


def _array(label: str, x: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    found = [] if x.base is None else [(label, x.base)]
    if x.dtype.hasobject:
        found += [(f"{label}[{i}]", v) for i, v in enumerate(x.ravel().tolist()) if type(v) not in _ATOM_TYPES]
    return found if type(x) is np.ndarray else found + _instance(f"{label}." if label else "", x)


def _elements(label: str, x: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    found = [(f"{label}[{i}]", v) for i, v in enumerate(x) if type(v) not in _ATOM_TYPES]
    return found + _instance(f"{label}." if label else "", x) if space_of(x) is not None else found


def _cell(label: str, x: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    return [(label, Cell(x).read())]


def _method(label: str, x: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    return [(label, x.__self__), (label, x.__func__)]


def _instance_method(label: str, x: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    return [(label, x.__func__)]


def _builtin(label: str, x: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    owner = owner_of(x)
    return [] if owner is None else [(label, owner)]


def _partial(label: str, x: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    return [(label, x.func), (label, x.args), (label, x.keywords)]


def _class_body(label: str, x: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    return _variables(label, x, code_of) + [(b.__name__, b) for b in x.__bases__]


def _variables(label: str, x: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    left_out = _ENUM_CACHES if isinstance(x, enum.EnumMeta) else ()
    found = [(f"{x.__name__}.{k}", v) for k, v in list(vars(x).items()) if not k.startswith("__") and k not in left_out]
    return [step for step in found if step[1] is not sys.modules]


#: Where Python keeps members of an enum that stand for several flags, once they were asked for.
_ENUM_CACHES = ("_value2member_map_", "_unhashable_values_")


def _module(label: str, x: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    dot = f"{label}." if label else ""
    tables = [x.__dict__.get(table, {}) for table in _TABLES]
    return [(dot + k, v) for table in tables for k, v in table.items() if type(v) not in _ATOM_TYPES] + _instance(dot, x)


def _tensor(label: str, x: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    dot = f"{label}." if label else ""
    return [(dot + k, v) for k, v in vars(x).items()] if type(x) in (torch.Tensor, torch.nn.Parameter) else []


def _function(label: str, f: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    return [step for step in _of_function(label, f, code_of) if step[1] is not sys.modules]


def _attributes(label: str, f: Any) -> list[Step]:
    return [(f"{label}.{k}", v) for k, v in vars(f).items()]


def leads_to_all_modules(f: types.FunctionType, code_of: Callable[[Any], Any]) -> bool:
    """Whether the code of a function names ``sys.modules``: all of Python's modules are within its reach, if it runs.

    To ask whether there is a module of a name leads to none.
    """
    return any(x is sys.modules and label not in _only_searched(code_of(f)) for label, x in _of_function("", f, code_of))


@by_code
def _only_searched(code: types.CodeType) -> frozenset[str]:
    """Return what code names, such as ``sys.modules``, only to ask whether something is in it."""
    searched, used = set[str](), set[str]()
    for name, path, after in _loads(code):
        (searched if after == "CONTAINS_OP" else used).add(".".join((name, *path)))
    return frozenset(searched - used)


def _of_function(label: str, f: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    code = code_of(f)
    found = _attributes(label, f)
    found += [(f"a default of {f.__name__}()", v) for v in (*(f.__defaults__ or ()), f.__kwdefaults__)]
    found += list(zip(code.co_freevars, f.__closure__ or ()))
    names = names_of(code)
    for n in names:
        x = f.__globals__.get(n)
        if issubclass(type(x), types.ModuleType):
            uses = uses_of(code).get(n, ())
            found += [step for use in uses for step in _used(n, x, use, names)]
        elif n in f.__globals__:
            found.append((n, x))
    return found


class Named:
    """A module of which code names variables only: it is not looked into, for nothing else of it is within reach.

    Functions of it that are named, and then run, name more; whatever assigns to its variables is seen, for they are compared.
    """

    __slots__ = ("module",)

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module


def _used(label: str, module: types.ModuleType, use: tuple[str, ...], names: tuple[str, ...]) -> list[Step]:
    """Return what ``module.a.b.c`` leads to, and the modules on the way; of a module that goes somewhere else, all that code may name."""
    found: list[Step] = []
    for name in use:
        if not isinstance(module, _NAMESPACES):
            found.append((label, Named(module)))
        x = vars(module).get(name)
        label = f"{label}.{name}"
        if not isinstance(x, types.ModuleType):
            return [*found, (label, x)]
        module = x
    return found if isinstance(module, _NAMESPACES) else [*found, (label, module), *_named_in(label, module, names)]


@by_code
def uses_of(code: types.CodeType) -> dict[str, frozenset[tuple[str, ...]]]:
    """Return how code, and the functions in it, use each global: the attributes read or set from there, one by one.

    ``a.b.c`` is ``("b", "c")``; nothing, where the object itself goes somewhere else: as an argument, to a variable.
    """
    found: dict[str, set[tuple[str, ...]]] = {}
    for name, path, _ in _loads(code):
        found.setdefault(name, set()).add(path)
    return {n: frozenset(uses) for n, uses in found.items()}


def _loads(code: types.CodeType) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Give each load of a global in code and the functions in it: its name, the attributes read or set from there, what comes then."""
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE")]
    for k, i in enumerate(instructions):
        if i.opname in _LOADS:
            path = tuple([str(j.argval) for j in takewhile(lambda j: j.opname in _ATTRIBUTES, instructions[k + 1 :])])
            yield str(i.argval), path, instructions[k + 1 + len(path)].opname
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from _loads(c)


_LOADS = frozenset(["LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"])
_ATTRIBUTES = frozenset(["LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR"])


def _named_in(label: str, x: Any, names: tuple[str, ...], depth: int = 4) -> list[Step]:
    """Return the objects of a module that code names: also where the module is a library's, whose others are not the program's."""
    found: list[Step] = []
    for n in names if type(x) is types.ModuleType and depth else ():
        part = vars(x).get(n)
        if isinstance(part, types.ModuleType):
            found += _named_in(f"{label}.{n}", part, names, depth - 1)
        elif part is not None and not callable(part) and not isinstance(part, ATOMS):
            found.append((f"{label}.{n}", part))
    return found


def _object(label: str, x: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    found = _instance(f"{label}." if label else "", x)
    if has_hidden(_class(x)) and not isinstance(x, (types.GeneratorType, types.FrameType)) and not is_of_numpy(x):
        for v in gc.get_referents(x):  # a container among these may be a part of the object's own working: it is not the program's
            inner = list(v.values()) if type(v) is dict else list(v) if type(v) in (list, tuple, set, deque) else [v]
            found += [(label, i) for i in inner if not isinstance(i, (type, types.ModuleType, types.FrameType))]
    return found


def _operator(label: str, x: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    """What runs in Python if it is called; the rest is PyTorch's bookkeeping."""
    overloads = [x] if isinstance(x, torch._ops.OpOverload) else [v for v in vars(x).values() if isinstance(v, torch._ops.OpOverload)]
    return [(label, o.py_kernels) for o in overloads]


def _definition(label: str, x: Any, code_of: Callable[[Any], Any]) -> list[Step]:
    """What the user has given to define an operator; the rest is PyTorch's bookkeeping."""
    return [(label, x._init_fn), (label, x._backend_fns)]


#: ``torch.ops`` and what is in it: PyTorch's tables of the operators that were looked up.
_NAMESPACES = (torch._ops._Ops, torch._ops._OpNamespace)
#: What these hold.
OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
#: What objects of a class hold, with labels: by the first of these bases that it has.
_CHILDREN: tuple[tuple[Any, Children], ...] = (
    (dict, _items),
    ((list, tuple, set, frozenset, deque), _elements),
    (types.CellType, _cell),
    (types.FunctionType, _function),
    (types.MethodType, _method),
    (types.BuiltinFunctionType, _builtin),
    (INSTANCE_METHOD, _instance_method),
    (functools.partial, _partial),
    (type, _class_body),
    (types.ModuleType, _variables),
    (torch.nn.Module, _module),
    (torch.Tensor, _tensor),
    (np.ndarray, _array),
    (OPERATORS, _operator),
    (custom_ops.CustomOpDef, _definition),
    (logging.Logger, _logger),
    (object, _object),
)
#: Those of what may be a library's, and is not looked into then.
_SHARED = (_class_body, _function, _variables, _operator)


@functools.lru_cache(maxsize=4096)
def _children_of(kind: Any) -> Children:
    return next(children for base, children in _CHILDREN if issubclass(kind, base))


#: Where a module keeps what it is made of; not there yet while it is made.
_TABLES = ("_modules", "_parameters", "_buffers")


def _instance(dot: str, x: Any) -> list[Step]:
    found = [(dot + k, v) for k, v in list((space_of(x) or {}).items()) if type(v) not in _ATOM_TYPES]
    found += [(dot + name, v) for name, v in in_slots(x)]
    return [*found, (type(x).__name__, type(x))]


@by_code
def names_of(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that code, and the functions in it, may look up among the globals.

    A name that no source can spell was put there by a tool that rewrites code, as pytest does with ``assert``: it is not the program's.
    """
    inner = [n for c in code.co_consts if isinstance(c, types.CodeType) for n in names_of(c)]
    return tuple(dict.fromkeys([*filter(str.isidentifier, code.co_names), *inner]))


class ClassBody(Owned):
    """The variables of a class that are no functions."""

    __slots__ = ()

    @property
    def key(self) -> Any:
        return (id(self._owner), "class")

    @property
    def text(self) -> str:
        return f"the class {self._owner.__name__}"

    def read(self) -> Any:
        return tuple([(k, v) for k, v in vars(self._owner).items() if not k.startswith("__") and not _is_code(v)])

    def write(self, contents: Any) -> None:
        for name in dict(self.read()).keys() - dict(contents).keys():
            type.__delattr__(self._owner, name)
        for name, value in contents:
            if vars(self._owner).get(name, self) is not value:
                type.__setattr__(self._owner, name, value)

    def flatten(self, contents: Any) -> Any:
        return tuple([k for k, _ in contents]), [v for _, v in contents]

    def unflatten(self, contents: Any, items: Any) -> Any:
        return tuple([(k, item) for (k, _), item in zip(contents, items)])


def _is_code(x: Any) -> bool:
    return isinstance(x, (types.FunctionType, staticmethod, classmethod, property, functools.cached_property))


@functools.lru_cache(maxsize=4096)
def has_attributes_only(cls: Any) -> bool:
    """Whether all that can change of objects of a class is what their ``__dict__`` holds."""
    special = (*MUTABLE, *BUFFERS, type, types.CellType, types.ModuleType, types.FunctionType, tuple, frozenset, torch.Tensor)
    spaces = [vars(base)["__dict__"] for base in cls.__mro__ if "__dict__" in vars(base)]
    if not spaces or not all(isinstance(space, types.GetSetDescriptorType) for space in spaces):  # several bases may each declare the one
        return False
    return not issubclass(cls, special) and not slots_of(cls) and not has_hidden(cls)


def places_in(x: Any) -> list[Place]:
    """Return what can change of an object: the places that can be restored, and what can only be compared."""
    if isinstance(x, types.CellType):
        return [Cell(x)]
    if isinstance(x, type):
        return [ClassBody(x)]
    if isinstance(x, (types.ModuleType, types.FunctionType)):
        return [Contents(vars(x))]
    if isinstance(x, (tuple, frozenset, torch.Tensor)):
        return []
    found: list[Place] = [Contents(x)] if isinstance(x, MUTABLE) else [Bytes(x)] if isinstance(x, BUFFERS) else []
    space = space_of(x)
    if space is not None:
        found.append(Contents(space))
    kind = _class(x)
    found += [attribute_of(x, name) for name, slot in slots_of(kind).items() if inspect.getattr_static(kind, name) is slot]
    hidden = Hidden.of(x)
    return found if hidden is None else [*found, hidden]


def _class(x: Any) -> Any:
    return type(x)
