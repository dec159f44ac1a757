# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Calls: deciding how each callee is run, and rewriting the user's functions when they are first called."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dycl_tvm.frontend.python import substitutes
from dycl_tvm.frontend.python.context import current
from dycl_tvm.frontend.python.heap import MUTABLE, Attribute
from dycl_tvm.frontend.python.merge import Poison, use
from dycl_tvm.frontend.python.rewrite import rewrite
from dycl_tvm.frontend.python.source import is_library_file
from dycl_tvm.frontend.python.switch import Chosen, over

#: Callables that change none of their arguments, so that these need not be saved.
_PURE: frozenset[Any] = frozenset(
    {
        len,
        sum,
        zip,
        enumerate,
        isinstance,
        issubclass,
        min,
        max,
        sorted,
        any,
        all,
        tuple,
        list,
        dict,
        set,
        frozenset,
        str,
        repr,
        iter,
        id,
        hash,
        type,
        reversed,
        map,
        filter,
        int,
        float,
        bool,
        abs,
        round,
        range,
        getattr,
        hasattr,
        callable,
        print,
        format,
        divmod,
    }
)


def call(callee: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call anything from rewritten code."""
    return _call(callee, args, kwargs, False)


def tail_call(callee: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call where the result is returned as it is: from the outermost function the callee returns from the whole network."""
    stage = current()
    return _call(callee, args, kwargs, bool(stage.frames) and stage.frames[-1].root)


def call_root(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the model itself."""
    return _call(model, args, kwargs, True)


def _call(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any], root: bool) -> Any:
    if type(callee) is Chosen:
        return over(callee, lambda item: _call(item, args, kwargs, False))
    if isinstance(callee, Poison):
        use(callee)
    substitute = substitutes.find(callee)
    if substitute is not None:
        return substitute(callee, args, kwargs)
    if isinstance(callee, functools.partial):
        return _call(callee.func, (*callee.args, *args), {**callee.keywords, **kwargs}, root)
    if isinstance(callee, torch.nn.Module):
        return _call_module(callee, args, kwargs, root)
    if isinstance(callee, types.MethodType):
        if isinstance(callee.__self__, torch.Tensor):
            return callee(*args, **kwargs)
        return _call(callee.__func__, (callee.__self__, *args), kwargs, root)
    if isinstance(callee, types.FunctionType):
        return _call_function(callee, args, kwargs, root)
    if isinstance(callee, type):
        return _instantiate(callee, args, kwargs)
    if isinstance(callee, types.BuiltinFunctionType) and isinstance(callee.__self__, MUTABLE):
        current().changing(callee.__self__)
        return _native(callee, args, kwargs)
    method = getattr(type(callee), "__call__", None)  # noqa: B004  (the method itself is wanted)
    if isinstance(method, types.FunctionType) and is_users(method):
        return _call_function(method, (callee, *args), kwargs, root)
    return _native(callee, args, kwargs)


def _call_function(function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], root: bool) -> Any:
    if not is_users(function):
        wrapped = getattr(function, "__wrapped__", None)
        if isinstance(wrapped, types.FunctionType) and is_users(wrapped) and function.__code__.co_filename.endswith("_contextlib.py"):
            # a decorator such as torch.no_grad(): the whole stage runs without gradients
            return _call_function(wrapped, args, kwargs, root)
        return _native(function, args, kwargs)
    made = converted(function)
    stage = current()
    stage.offer_root(root and "_frame" in made.__code__.co_varnames)
    try:
        result = made(*args, **kwargs)
    finally:
        stage.offer_root(False)
    return stage.born(result) if isinstance(result, types.GeneratorType) else result


def _call_module(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], root: bool) -> Any:
    forward = _forward_of(module)
    hooked = module._forward_hooks or module._forward_pre_hooks or torch.nn.modules.module._global_forward_hooks
    own_call = type(module).__call__ is not torch.nn.Module.__call__
    if forward is not None and not hooked and not own_call:
        return _call_function(forward, (module, *args), kwargs, root)
    _patch(module)
    return module(*args, **kwargs)


def _forward_of(module: torch.nn.Module) -> types.FunctionType | None:
    """Return the user's forward of a module; None if it is a library's."""
    own = module.__dict__.get("forward")
    if own is not None:
        forward = getattr(own, "__dycl_forward__", None)
    else:
        forward = type(module).forward
    return forward if isinstance(forward, types.FunctionType) and is_users(forward) else None


def _instantiate(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    init = cls.__init__  # type: ignore[misc]  # of the class that the user names
    plain = type(cls) is type and cls.__new__ is object.__new__
    if plain and isinstance(init, types.FunctionType) and is_users(init):
        made: Any = object.__new__(cls)
        current().born(made)
        _call_function(init, (made, *args), kwargs, False)
        return made
    made = _native(cls, args, kwargs)
    return current().born(made) if isinstance(made, MUTABLE) else made


def _native(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call what is not rewritten. It must not see a poison, and may change the containers that it is given."""
    stage = current()
    pure = callee in _PURE if _hashable(callee) else False
    module = getattr(callee, "__module__", None) or ""
    for a in (*args, *kwargs.values()):
        if isinstance(a, Poison):
            use(a)
        stage.advancing(a)
        if isinstance(a, (list, tuple)):
            for item in a:
                if isinstance(item, Poison):
                    use(item)
        if isinstance(a, MUTABLE) and not pure and not module.startswith("torch"):
            stage.changing(a)
    python = isinstance(callee, types.FunctionType) or not (pure or module.startswith("torch"))
    stage.native_depth += python
    try:
        result = callee(*args, **kwargs)
    finally:
        stage.native_depth -= python
    return stage.born(result) if hasattr(type(result), "__next__") else result


def _hashable(x: Any) -> bool:
    return getattr(type(x), "__hash__", None) is not None


def is_users(function: types.FunctionType) -> bool:
    """Whether a function is the user's (or of a package), so that it is rewritten."""
    return not is_library_file(function.__code__.co_filename) and not getattr(function, "__dycl_converted__", False)


def converted(function: types.FunctionType) -> types.FunctionType:
    """Return the rewritten form of a function."""
    from dycl_tvm.frontend.python import operators

    made = rewrite(function, operators)
    made.__dycl_converted__ = True  # type: ignore[attr-defined]
    return made


# -- modules called by code that is not rewritten ------------------------------------------------------------------
def _patch(module: torch.nn.Module) -> None:
    """Let a module run its rewritten forward also when a library module (Sequential) calls it."""
    forward = _forward_of(module)
    if forward is not None and "forward" not in module.__dict__:
        current().journal.touch(Attribute(module, "forward"))
        module.__dict__["forward"] = _bound(forward, module)


def _bound(forward: types.FunctionType, module: torch.nn.Module) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        stage = current()
        depth, stage.native_depth = stage.native_depth, 0
        try:
            return _call_function(forward, (module, *args), kwargs, False)
        finally:
            stage.native_depth = depth

    run.__dycl_forward__ = forward  # type: ignore[attr-defined]
    return run


@contextmanager
def prepare(model: Any) -> Iterator[None]:
    """Patch the modules of a model while it is staged."""
    owner = model if isinstance(model, torch.nn.Module) else getattr(model, "__self__", None)
    patched = []
    for module in owner.modules() if isinstance(owner, torch.nn.Module) else ():
        forward = _forward_of(module)
        if forward is not None and "forward" not in module.__dict__:
            module.__dict__["forward"] = _bound(forward, module)
            patched.append(module)
    try:
        yield
    finally:
        for module in patched:
            module.__dict__.pop("forward", None)
