# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Whose code it is: the user's (and pure Python of libraries that keeps state) runs rewritten, all else as it is."""

from __future__ import annotations

import _collections_abc
import collections
import contextlib
import copy
import dataclasses
import functools
import inspect
import linecache
import queue
import sys
import types
from typing import Any

import torch
from torch import nn
from torch.nn import init
from torch.nn.modules import adaptive, container
from torch.utils import hooks

from dycl_tvm.frontend.python.source import plain_attention, plain_lists, plain_progress, plain_sequences, plain_torch, plain_vision
from dycl_tvm.frontend.python.source.locate import is_library_file, is_library_package
from dycl_tvm.frontend.trace.heap.compiled import module_of
from dycl_tvm.frontend.trace.heap.reach import OPERATORS

#: Library files whose functions run rewritten when the user's code calls them: they keep state, call what they are given, loop until
#: tensors hold what they want, or say in texts of errors what tensors hold.
REWRITTEN_FILES = frozenset(
    str(m.__file__)
    for m in (
        _collections_abc,
        adaptive,
        collections,
        contextlib,
        copy,
        functools,
        queue,
        container,
        hooks,
        init,
        plain_attention,
        plain_lists,
        plain_progress,
        plain_sequences,
        plain_torch,
        plain_vision,
        *(m for m in vars(torch.distributions).values() if isinstance(m, types.ModuleType)),
    )
)
#: Methods of ``nn.Module`` that do.
_OF_MODULES = (
    "add_module",
    "apply",
    "eval",
    "register_buffer",
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_module",
    "register_parameter",
    "requires_grad_",
    "set_submodule",
    "train",
)
#: What calls attention, for whose fast path something stands.
_AROUND_ATTENTION = [
    *[(cls, "forward") for cls in (nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder)],
    *[(cls, name) for cls in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer) for name in ("forward", "_sa_block", "_mha_block")],
]
_REWRITTEN = [
    *[(nn.Module, name) for name in _OF_MODULES],
    *_AROUND_ATTENTION,
    (dataclasses, "replace"),
    (dataclasses, "_replace"),
]
_REWRITTEN_FUNCTIONS = frozenset(getattr(owner, name).__code__ for owner, name in _REWRITTEN if hasattr(owner, name))
#: The flag of classes that are not static data of a compiled module (``Py_TPFLAGS_HEAPTYPE``).
_MADE_IN_PYTHON = 1 << 9
#: What PyTorch puts around a function that a context manager decorates.
_DECORATING = frozenset(["decorate_context", "generator_context", "decorate_autocast"])
#: The code of functions whose own is replaced while a model is staged (see trampolines), by the function's identity.
replaced: dict[int, tuple[types.FunctionType, types.CodeType]] = {}


def code_of(function: types.FunctionType) -> types.CodeType:
    """Return the code that a function was written with."""
    known = replaced.get(id(function))
    return known[1] if known is not None and known[0] is function else function.__code__


def with_code(function: types.FunctionType, code: types.CodeType, closure: tuple[types.CellType, ...] | None = None) -> types.FunctionType:
    """Return a function like another one, with other code; ``closure`` is for code that closes over other variables."""
    made = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure or function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def users_function(function: Any) -> types.FunctionType | None:
    """Return the function if it runs rewritten, seen through ``@torch.no_grad()``; None if it runs as it is."""
    while isinstance(function, types.FunctionType):
        code = code_of(function)
        if not is_library_file(code.co_filename):
            return None if _is_generated(function, code) else function
        if code.co_filename in REWRITTEN_FILES or code in _REWRITTEN_FUNCTIONS:
            return function
        if code.co_name not in _DECORATING or not code.co_filename.endswith(("_contextlib.py", "autocast_mode.py")):
            return None
        function = getattr(function, "__wrapped__", None)
    return None


def _is_generated(function: types.FunctionType, code: types.CodeType) -> bool:
    """Whether a function was made by ``dataclass``, ``namedtuple`` or ``attrs``: it has no source, and only sets fields of a new object."""
    file = code.co_filename
    if not file.startswith("<") or linecache.getlines(file):
        return False
    if file.startswith("<attrs generated") or str(function.__globals__.get("__name__")).startswith("namedtuple_"):
        return True
    if not function.__name__.startswith("__"):
        return False
    if hasattr(code, "co_qualname"):
        return code.co_qualname.startswith("__create_fn__")
    # Python 3.10 does not tell in what a function was defined: here it stands in the second line of a text, within another
    return file == "<string>" and code.co_firstlineno == 2 and bool(code.co_flags & inspect.CO_NESTED)


def is_rewritten_class(cls: type) -> bool:
    """Whether methods of a class run rewritten: a user's class, or a container written in Python."""
    if not cls.__flags__ & _MADE_IN_PYTHON:  # Python code can give it no methods
        return False
    if not is_library_class(cls):
        return True
    return any(isinstance(v, types.FunctionType) and code_of(v).co_filename in REWRITTEN_FILES for v in vars(cls).values())


def is_library_class(cls: type) -> bool:
    """Whether a class is Python's or a library's."""
    if module_of(cls).split(".")[0] in sys.stdlib_module_names:
        return True
    methods = [v for v in vars(cls).values() if isinstance(v, types.FunctionType)]
    if methods:
        return all(is_library_file(code_of(m).co_filename) or _is_generated(m, code_of(m)) for m in methods)
    return issubclass(cls, nn.Module) and module_of(cls).startswith("torch.")


def are_of_libraries(exceptions: Any) -> bool:
    """Whether any of some classes of exceptions (one, or a tuple of them) is Python's or a library's: its functions raise those only."""
    if isinstance(exceptions, tuple):
        return any(map(are_of_libraries, exceptions))
    package = module_of(exceptions).split(".")[0]
    return not package or is_library_package(package)


def is_library(x: Any) -> bool:
    """Whether a class, module, function or operator is Python's or a library's."""
    if isinstance(x, type):  # a class of the user's may have methods only that the library made for it
        return is_library_class(x) and is_library_package(module_of(x).split(".")[0])
    if isinstance(x, types.ModuleType):
        file = getattr(x, "__file__", None)  # modules in C and packages without a file have none, nor have those that a program makes
        return is_library_file(str(file)) if file else is_library_package(x.__name__.split(".")[0])
    if isinstance(x, OPERATORS):
        return str(x).startswith("aten.")  # others may be anybody's
    return users_function(x) is None
