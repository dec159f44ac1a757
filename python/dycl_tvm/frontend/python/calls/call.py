# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Calls: deciding how each callee is run, and rewriting the user's functions when they are first called."""

from __future__ import annotations

import contextvars
import dis
import functools
import inspect
import sys
import types
import typing
import weakref
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from dycl_tvm.errors import DyclError, StagingLimitError, UnsupportedError
from dycl_tvm.frontend.python import attributes
from dycl_tvm.frontend.python.calls import builtins as substitutes
from dycl_tvm.frontend.python.calls.builtin_methods import note_method
from dycl_tvm.frontend.python.calls.by_length import counters_of, tried_by_length
from dycl_tvm.frontend.python.calls.caches import DISPATCH, cached_call, dispatched, refuse_question
from dycl_tvm.frontend.python.calls.comprehensions import taken
from dycl_tvm.frontend.python.calls.context_variables import change_variable, changes_variable
from dycl_tvm.frontend.python.calls.effects import about_callee, watching
from dycl_tvm.frontend.python.calls.growing_lists import GrowingLists, users_frame
from dycl_tvm.frontend.python.calls.iterators import ADOPTED, adopted
from dycl_tvm.frontend.python.calls.kept_lists import KeptList, KeptMethod
from dycl_tvm.frontend.python.calls.lifetimes import check_lifetime
from dycl_tvm.frontend.python.calls.list_uses import call_with_list, only_keeps
from dycl_tvm.frontend.python.calls.searches import search, searches, with_known_key
from dycl_tvm.frontend.python.calls.sums import handed
from dycl_tvm.frontend.python.calls.text_methods import make_text
from dycl_tvm.frontend.python.calls.torch_operators import forward_of, function_for, python_of
from dycl_tvm.frontend.python.calls.unseen import looked_at
from dycl_tvm.frontend.python.flow.choices import Chosen, over
from dycl_tvm.frontend.python.flow.exits import exits
from dycl_tvm.frontend.python.flow.iteration import ALONE, advancing
from dycl_tvm.frontend.python.flow.recursion import Recursions
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.source.as_it_is import AsItIs
from dycl_tvm.frontend.python.source.bytecode import has_source, objection
from dycl_tvm.frontend.python.source.ownership import code_of, is_library_class, users_function, with_code
from dycl_tvm.frontend.python.source.rewritten import rewritten
from dycl_tvm.frontend.trace.by_code import by_code
from dycl_tvm.frontend.trace.control_flow import ControlFlow
from dycl_tvm.frontend.trace.heap.compiled import module_of
from dycl_tvm.frontend.trace.heap.places import MUTABLE, Cell, space_of
from dycl_tvm.frontend.trace.heap.settings import SETTINGS
from dycl_tvm.frontend.trace.heap.visible import CACHED, NUMPY_FUNCTIONS
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.join.texts import Text, is_known, text_of
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.blame import attempt, judge
from dycl_tvm.frontend.trace.values.constants import constants
from dycl_tvm.frontend.trace.values.grown import Grown
from dycl_tvm.frontend.trace.values.recording import check_modes
from dycl_tvm.frontend.trace.values.tensors import StagedTensor
from dycl_tvm.hcfg.nodes import Origin

#: Callables that change none of their arguments, so that these need not be saved.
_PURE: frozenset[Any] = frozenset(
    [
        *(len, sum, zip, enumerate, isinstance, issubclass, min, max, sorted, any, all, tuple, list),
        *(dict, set, frozenset, str, repr, iter, id, hash, type, reversed, map, filter, int),
        *(float, bool, abs, round, range, getattr, hasattr, callable, print, format, divmod),
    ]
)
#: Only these are looked up: a user's own object may have a ``__hash__`` that does anything.
_PURE_KINDS = frozenset(map(type, _PURE))


def call(callee: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call anything from rewritten code."""
    return _call(callee, args, kwargs, False)


def tail_call(callee: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call where the result is returned as it is: from the outermost function the callee returns from the whole network."""
    frames = exits().frames
    return _call(callee, args, kwargs, bool(frames) and frames[-1].root)


def call_root(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the model itself."""
    return _call(model, args, kwargs, True)


def _call(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any], root: bool) -> Any:
    if type(callee) is Chosen:
        return over(callee, lambda item: _call(item, args, kwargs, False))
    if isinstance(callee, Poison):
        use(callee)
    check_lifetime(callee, args)
    if args:
        args = taken(callee, args, kwargs)
    substitute = substitutes.find(callee)
    if substitute is not None:
        try:
            return substitute(callee, args, kwargs)
        except Exception as error:
            judge(error, callee, args, kwargs)
            program().state.unread.doubt(error)
            raise
    written = python_of(callee, args, kwargs)
    if written is not None:
        return _call(written, args, kwargs, root)
    if isinstance(callee, functools.partial):
        return _call(callee.func, (*callee.args, *args), {**callee.keywords, **kwargs}, root)
    if isinstance(callee, torch.nn.Module):
        return _call_module(callee, args, kwargs, root)
    if isinstance(callee, types.MethodType):
        if isinstance(callee.__self__, torch.Tensor):
            return attempt(callee, *args, **kwargs)
        return _call(callee.__func__, (callee.__self__, *args), kwargs, root)
    if isinstance(callee, (types.FunctionType, AsItIs)):
        return _call_function(function_for(callee, args, kwargs), args, kwargs, root)
    if isinstance(callee, _SUBSCRIPTED) and getattr(callee, "_inst", True):
        return _instantiate_subscripted(callee, args, kwargs)
    if isinstance(callee, type):
        return _instantiate(callee, args, kwargs)
    if isinstance(callee, _BUILTIN_METHODS):
        if isinstance(callee, types.MethodWrapperType) and callee.__name__ == "__call__" and isinstance(callee.__self__, type):
            return _construct(callee.__self__, args, kwargs)
        owner = getattr(callee, "__self__", None)
        if callee.__name__ == "tolist" and type(owner) is Grown and not (args or kwargs):
            numbers = current().get(GrowingLists).of_numbers(owner, users_frame())
            if numbers is not None:
                return numbers
        if type(callee) is types.BuiltinFunctionType and type(callee.__self__) in _TENSORS and _are_inert(args, kwargs):
            return program().trampolines.watch(callee, args, kwargs)  # it changes tensors only, which the recorder sees
        if searches(callee, args, kwargs):
            return search(callee, args)
        args = with_known_key(callee, args)
        if changes_variable(callee):
            return change_variable(callee, args)
        if isinstance(getattr(callee, "__self__", None), CACHED) and callee.__name__ in ("cache_info", "cache_clear"):
            refuse_question(callee)
        note_method(callee, args, kwargs)
        if callee.__name__ in ("join", "format") and isinstance(getattr(callee, "__self__", None), (str, bytes)):
            return make_text(callee, args, kwargs, _native)
        return _native(callee, args, kwargs)
    if isinstance(callee, CACHED):
        return cached_call(callee, args, kwargs, call)
    method = getattr(type(callee), "__call__", None)  # noqa: B004  (the method itself is wanted)
    if isinstance(method, types.FunctionType) and users_function(method) is not None:
        return _call_function(method, (callee, *args), kwargs, root)
    return _native(callee, args, kwargs)


def _call_function(function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], root: bool) -> Any:
    code = code_of(function)
    if (code is _MODULE_CALL or code is _MODULE_CALL_IMPL) and args:
        return _call_module(args[0], args[1:], kwargs, root, own=False)
    if code is DISPATCH and len(args) == 1 and not kwargs:
        return dispatched(function, args[0])
    users = users_function(function)
    if users is None:
        made = _native(function, args, kwargs)
        if function is torch.nn.Module.__init__ and args:
            for table in ("_parameters", "_buffers", "_modules"):
                current().heap.born(args[0].__dict__[table])
        return made
    if users is not function:
        return _call_in_mode(function, args, kwargs, root)
    if not has_source(code):
        return _call_as_it_is(users, args, kwargs)
    made, session = converted(users), current()

    def run() -> Any:
        _touch_cells(users)  # within the scope that the call is joined in
        return session.get(Recursions).call(users, made, args, kwargs)

    session.budget.step()
    exits().offer_root(root and "_frame" in made.__code__.co_varnames)
    try:
        counters = counters_of(args, kwargs) if session.growing and not root and session.builder.block is not None else None
        result = tried_by_length(run, counters) if counters else run()
    except RecursionError as error:
        # a call takes more frames here than in eager mode, and both sides of a branch are run: it says nothing about the program
        if getattr(error, "__dycl_raised__", False):
            raise
        raise StagingLimitError(
            "calls nest too deeply here for staging",
            session.origin(),
            "give a recursion whose depth tensors decide a bound that Python knows, or write it as a loop",
        ) from None
    finally:
        exits().offer_root(False)
    return session.heap.born_generator(result, users) if isinstance(result, types.GeneratorType) else result


def _call_in_mode(function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], root: bool) -> Any:
    """Call a function that a context manager decorates, in PyTorch's way: ``@torch.no_grad()``, ``@torch.autocast("cpu")``."""
    held = inspect.getclosurevars(function).nonlocals
    current().journal.touch(SETTINGS)
    modes = exits().modes
    modes.append(SETTINGS.read())
    manager = held["ctx_factory"]() if "ctx_factory" in held else held["autocast_instance"]
    kind: Any = type(manager)
    try:
        if not is_library_class(kind) or inspect.isgeneratorfunction(function):
            return _native(function, args, kwargs)
        _call(kind.__enter__, (manager,), {}, False)
        try:
            return _call_function(held["func"], args, kwargs, root)
        finally:
            _call(kind.__exit__, (manager, None, None, None), {}, False)
    finally:
        modes.pop()


def _call_as_it_is(function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of the user's that has no source, if its bytecode shows that it does nothing that would have to be seen."""
    code = code_of(function)
    reason = objection(function, args, kwargs)
    if reason is not None:
        raise UnsupportedError(
            f"the source of {code.co_name}() cannot be found, and it {reason}",
            Origin(code.co_filename, code.co_firstlineno, code.co_name),
            "define the function in a file that is there (not by exec or eval, on stdin, or as .pyc alone)",
        )
    program().enter(function)
    return _native(with_code(function, looked_at(code)), args, kwargs)


_MODULE_CALL, _MODULE_CALL_IMPL = torch.nn.Module.__call__.__code__, torch.nn.Module._call_impl.__code__


def _touch_cells(function: types.FunctionType) -> None:
    """Save the variables of outer functions that a function declares nonlocal and may change."""
    if not function.__closure__:
        return
    code = code_of(function)
    for name, cell in zip(code.co_freevars, function.__closure__):
        if name in _stored_cells(code):
            current().journal.touch(Cell(cell))


@by_code
def _stored_cells(code: types.CodeType) -> frozenset[str]:
    return frozenset(i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_DEREF", "DELETE_DEREF"))


def _call_module(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], root: bool, own: bool = True) -> Any:
    kind = type(module)
    program().trampolines.reach(kind)
    own_call: Any = kind.__call__
    if own and own_call is not torch.nn.Module.__call__:
        return _call_function(own_call, (module, *args), kwargs, root)
    if torch.nn.modules.module._has_any_global_hook() or module._backward_hooks or module._backward_pre_hooks:
        return _native(own_call, (module, *args), kwargs)
    if module._forward_hooks or module._forward_pre_hooks:
        return _call_hooked(module, args, kwargs)
    return _call_forward(module, args, kwargs, root)


def _call_forward(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], root: bool) -> Any:
    forward = module.__dict__.get("forward")
    if forward is not None:
        return _call(forward, args, kwargs, root)
    kind: Any = type(module)
    forward = kind.forward
    if forward is torch.nn.Sequential.forward and kind.__iter__ is torch.nn.Sequential.__iter__ and len(args) == 1 and not kwargs:
        x = args[0]
        for child in list(module._modules.values()):
            x = _call(child, (x,), {}, False)
        return x
    written = vars(kind).get("forward") or next(vars(base)["forward"] for base in kind.__mro__ if "forward" in vars(base))
    if not isinstance(written, types.FunctionType):  # of no object, or of the class
        return _call(module.forward, args, kwargs, root)
    stands_for_it = forward_of(module, forward, args, kwargs)
    if stands_for_it is not None:
        return program().run_function(stands_for_it, (module, *args), kwargs)
    if users_function(forward) is not None:
        return _call_function(forward, (module, *args), kwargs, root)
    values = module.__dict__.values()
    if not _POISONS.isdisjoint(map(type, values)):
        use(next(value for value in values if isinstance(value, Poison)))  # the library's forward may ask whether it is None
    if isinstance(forward, types.FunctionType):
        return _native(forward, (module, *args), kwargs)
    return _native(module, args, kwargs)


_POISONS = frozenset((Poison, *Poison.__subclasses__()))


def _call_hooked(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module with forward hooks, as ``nn.Module.__call__`` does."""
    for key, hook in list(module._forward_pre_hooks.items()):
        if key in module._forward_pre_hooks_with_kwargs:
            given = _call(hook, (module, args, kwargs), {}, False)
            if isinstance(given, Poison):
                use(given)
            args, kwargs = (args, kwargs) if given is None else given
        else:
            given = _call(hook, (module, args), {}, False)
            if isinstance(given, Poison):
                use(given)
            args = args if given is None else given if isinstance(given, tuple) else (given,)
    result = _call_forward(module, args, kwargs, False)
    for key, hook in list(module._forward_hooks.items()):
        with_kwargs = key in module._forward_hooks_with_kwargs
        changed = _call(hook, (module, args, kwargs, result) if with_kwargs else (module, args, result), {}, False)
        if isinstance(changed, Poison):
            use(changed)
        result = result if changed is None else changed
    return result


_BUILTIN_METHODS = (types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType)


def _instantiate(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a class."""
    if cls is str and len(args) == 1 and not kwargs and not is_known(args[0]):
        return text_of(args[0], ord("s"))
    if cls is functools.partial and args and type(args[0]) is cls and not vars(args[0]):
        # Python makes one of two if the inner one has no attributes, and not even a dict for them, which looking there makes
        inner = args[0]
        args, kwargs = (inner.func, *inner.args, *args[1:]), {**inner.keywords, **kwargs}
    program().trampolines.reach(cls)
    own_call = type(cls).__call__
    if isinstance(own_call, types.FunctionType) and users_function(own_call) is not None:
        return _call_function(own_call, (cls, *args), kwargs, False)
    return _construct(cls, args, kwargs) if own_call is type.__call__ else _note_made(_native(cls, args, kwargs))


#: Classes that were given what stands for their type parameters: ``Box[int]``.
_SUBSCRIPTED = (types.GenericAlias, typing._GenericAlias)  # type: ignore[attr-defined]


def _instantiate_subscripted(alias: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a class as :mod:`typing` does: an object that can have attributes knows how its class was written."""
    made = _call(alias.__origin__, args, kwargs, False)
    if isinstance(made, Poison):
        use(made)
    if space_of(made) is not None:
        attributes.setattr(alias, made, "__orig_class__")
    return made


def _construct(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make an object of a class as ``type.__call__`` does."""
    new: Any = cls.__new__
    init: Any = cls.__init__  # type: ignore[misc]  # of the class that the user names
    made_by_user = users_function(new)
    plain = new is object.__new__
    if any(users_function(vars(base).get("__del__")) is not None for base in cls.__mro__):
        raise UnsupportedError(
            f"objects of {cls.__name__} have a __del__(), which Python runs at a time that is its own",
            current().origin(),
            "use a method or a with statement",
        )
    if made_by_user is None and not (plain and users_function(init) is not None):
        return _note_made(_native(cls, args, kwargs))
    made: Any = (
        current().heap.born(object.__new__(cls)) if made_by_user is None else _call_function(made_by_user, (cls, *args), kwargs, False)
    )
    if isinstance(made, Poison):
        use(made)
    if isinstance(made, cls) and init is not object.__init__:
        _call(init, (made, *args), kwargs, False)
    return made


def _note_made(made: Any) -> Any:
    return current().heap.born(made) if isinstance(made, (*MUTABLE, contextvars.ContextVar)) or type(made).__dictoffset__ else made


#: Modules whose functions give another result at every call, or do input and output.
_FORBIDDEN = {
    "random": "gives another result at every call",
    "secrets": "gives another result at every call",
    "uuid": "gives another result at every call",
    "numpy.random": "gives another result at every call",
    "time": "depends on the time of the call",
    "logging": "does output",
    "io": "does input or output",
    "_io": "does input or output",
    "pathlib": "works on files",
    "shutil": "works on files",
    "subprocess": "runs a program",
    "socket": "uses the network",
}


def _refuse_effects(callee: Any) -> None:
    owner = getattr(callee, "__self__", None)
    holder = owner if isinstance(owner, type) else type(owner)
    modules = [module_of(callee), "" if owner is None or isinstance(owner, types.ModuleType) else module_of(holder)]
    name = getattr(callee, "__qualname__", getattr(callee, "__name__", str(type(callee))))
    if (name.endswith(("now", "today", "utcnow")) and module_of(holder) == "datetime") or (name == "urandom" and "posix" in modules):
        _refuse_effect(name, "gives another result at every call")
    if modules[0] in _OF_THE_PROCESS and name.startswith(_SETTING):
        _refuse_effect(f"{modules[0]}.{name}", "changes a setting of the whole process")
    if modules[0] == "_thread" and name.startswith("start"):
        _refuse_effect(name, "starts a thread, and what that does cannot be seen")
    if name == "ABCMeta.register":
        _refuse_effect(name, "changes what isinstance() says in the whole process")
    if modules[0] == "threading" and isinstance(callee, types.FunctionType) and name.endswith(_WAITING):
        _refuse_effect(name, "may wait for another thread")
    for module in modules:
        what = _what_is_forbidden(module)
        if what is None or (module == "pathlib" and not name.split(".")[-1].startswith(_ON_FILES)):
            continue
        _refuse_effect(name, what)


#: Modules in C whose functions change what no object shows, by the beginnings of their names.
_OF_THE_PROCESS = frozenset(["sys", "gc", "atexit", "signal", "_signal", "faulthandler", "_locale", "posix", "nt", "_tracemalloc"])
_SETTING = (
    "set",
    "_set",
    "enable",
    "disable",
    "freeze",
    "unfreeze",
    "register",
    "unregister",
    "_clear",
    "clear",
    "signal",
    "put",
    "unset",
    "ch",
)
#: Methods of :mod:`threading` that may.
_WAITING = (".acquire", ".wait", ".wait_for", ".join", ".start", "Semaphore.__enter__")
_ON_FILES = ("read", "write", "open", "unlink", "mkdir", "touch")


@functools.lru_cache(maxsize=4096)
def _what_is_forbidden(module: str) -> str | None:
    """Return why functions of a module cannot be called; None if they can."""
    return next((what for name, what in _FORBIDDEN.items() if module == name or module.startswith(name + ".")), None)


def _refuse_effect(name: str, what: str) -> None:
    raise UnsupportedError(
        f"{name}() {what}: a compiled network cannot call it", current().origin(), "do it outside of the forward, and pass in what it gives"
    )


_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter, StagedTensor, Grown))
#: What native code may be given without a look: it holds nothing of the program's, and what changes it is seen.
_INERT = frozenset((int, float, bool, str, type(None), torch.dtype)) | _TENSORS


def _are_inert(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return _INERT.issuperset(map(type, args)) and _INERT.issuperset(map(type, kwargs.values()))


def _native(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call what is not rewritten. It must not see a poison, and may change the containers that it is given."""
    journal = current().journal
    journal.hold()
    try:
        if journal.held > 1:  # other code around it may have switched them off
            check_modes()
        result = _call_native(callee, args, kwargs)
    finally:
        journal.release()
    check_modes()
    return result


def _is_written(x: Any) -> bool:
    """Whether something is a tensor whose real memory does not hold what the program has written."""
    return isinstance(x, torch.Tensor) and not isinstance(x, StagedTensor) and constants().written_storage(x) is not None


def _call_native(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    session = current()
    args, kwargs = tuple(map(handed, args)), {name: handed(x) for name, x in kwargs.items()}
    about = about_callee(callee)
    if not about.allowed:
        _refuse_effects(callee)
        about.allowed = True
    if about.module == "torch._C" and type(callee) is types.BuiltinFunctionType and any(map(_is_written, args)):
        raise UnsupportedError(
            f"`torch._C.{callee.__name__}` is given a tensor of the model that calls change", session.origin(), "give it a copy: t.clone()"
        )
    if isinstance(callee, NUMPY_FUNCTIONS):
        substitutes.check_numpy(callee, args, kwargs)
    pure = type(callee) in _PURE_KINDS and callee in _PURE
    module = about.module
    for a in (*args, *kwargs.values()):
        if type(a) in _INERT or (issubclass(type(a), KeptList) and only_keeps(callee)):
            continue
        if isinstance(a, Poison):
            if type(a) is Text and _makes_exception(callee):
                continue
            use(a)
        if issubclass(type(a), KeptList):
            return call_with_list(callee, args, kwargs)
        advancing(a)
        program().trampolines.hand_over(a)
        if isinstance(a, types.FunctionType):
            _touch_cells(a)
        if callable(a) and substitutes.has_effects(a):
            _refuse_effect(getattr(a, "__name__", str(a)), "does what a compiled network cannot do in a library's hands")
        if isinstance(a, (list, tuple)) and any(issubclass(kind, Poison) for kind in set(map(type, a))):
            for item in a:
                if isinstance(item, Poison):
                    use(item)
        if isinstance(a, MUTABLE) and not pure and not module.startswith("torch"):
            session.heap.changing(a)
    if type(callee) is KeptMethod:
        return callee(*args, **kwargs)
    of_torch = module.startswith("torch") or (type(callee) is types.BuiltinFunctionType and type(callee.__self__) in _TENSORS)
    python = not module.startswith("torch.nn.modules.") and (isinstance(callee, types.FunctionType) or not (pure or of_torch))
    session.native_depth += python
    try:
        result = watching(program().trampolines.watch, callee, args, kwargs, pure, about)
    except Exception as error:
        program().state.unread.doubt(error)
        raise
    finally:
        session.native_depth -= python
    is_new = sys.getrefcount(result) <= ALONE
    if hasattr(type(result), "__next__"):
        return adopted(result) if is_new and type(result) in ADOPTED else session.heap.born(result)
    return session.heap.born(result) if is_new and _may_change(result) else result


def _may_change(x: Any) -> bool:
    """Whether the program may change what an object of which nobody else knows holds."""
    holds = isinstance(x, MUTABLE) or (space_of(x) is not None and not isinstance(x, (torch.Tensor, type)))
    return holds and not weakref.getweakrefcount(x)


def _makes_exception(callee: Any) -> bool:
    """Whether a callee is a class of exceptions, or the ``__init__`` of one."""
    if isinstance(callee, type):
        return issubclass(callee, BaseException)
    kind = getattr(callee, "__objclass__", None) or type(getattr(callee, "__self__", None))
    return getattr(callee, "__name__", "") == "__init__" and issubclass(kind, BaseException)


def converted(function: types.FunctionType) -> types.FunctionType:
    """Return the rewritten form of a function."""
    program().enter(function)
    return rewritten(function, program().operators)


def run_function(function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the rewritten form of a function."""
    return _call_function(function, args, kwargs, False)


def run_method(function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the rewritten form of a function that Python or a library calls."""
    session = current()
    depth, called = session.native_depth, session.called_depth
    if function.__name__ == "forward":
        session.native_depth = 0  # torch's own modules catch no exceptions
    else:
        session.called_depth += 1
    if args and isinstance(args[0], FunctionCtx) and not session.heap.birth(args[0]):
        session.heap.born(args[0])  # PyTorch makes it at each `apply`
    before = program().trampolines.passing
    try:
        result = _call_function(function, args, kwargs, False)
    except (ControlFlow, DyclError) as error:
        program().trampolines.passing = error
        raise
    finally:
        session.native_depth, session.called_depth = depth, called
    program().trampolines.passing = before
    if function.__name__ in _CHECKED:  # Python itself called it, and looks at the class of what it gets
        if isinstance(result, Poison):
            use(result)
        if scalars.is_symbolic(result):
            return scalars.known(result)
    return result


#: Special methods whose results Python itself takes if they are of some class only.
_CHECKED = frozenset(
    f"__{name}__"
    for name in (
        *("bool", "bytes", "complex", "contains", "dir", "float", "format", "fspath", "getstate", "hash", "index", "instancecheck", "int"),
        *("iter", "len", "length_hint", "reduce", "reduce_ex", "repr", "str", "subclasscheck"),
    )
)
