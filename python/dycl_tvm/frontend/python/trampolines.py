# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The user's functions while a model is staged: whoever calls them, they run rewritten.

Python calls functions by itself (operators, properties, iteration, truth tests), and so do libraries (``map``, ``sorted``,
``nn.Sequential``, a hook, ``contextlib``). So the *code* of the user's functions is replaced while a model is staged by a
trampoline, which leads to the rewritten form. The function objects stay the same: identity, signature, defaults and attributes
are as ever. A thread that is not staging runs the code as it was written.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import gc
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from dycl_tvm.frontend.python.source.locate import is_library_file
from dycl_tvm.frontend.python.source.ownership import code_of, is_rewritten_class, replaced, users_function, with_code
from dycl_tvm.frontend.trace.control_flow import ControlFlow
from dycl_tvm.frontend.trace.heap.compiled import module_of
from dycl_tvm.frontend.trace.heap.reach import Reached, names_of
from dycl_tvm.frontend.trace.session import staging
from dycl_tvm.frontend.trace.values.blame import attempt, decided_flag, judge, wants_flags

Run = Callable[[types.FunctionType, tuple[Any, ...], dict[str, Any]], Any]
#: Run by whatever time Python destroys an object, so not part of the program.
_KEPT = frozenset({"__del__"})
_ATOMS = frozenset([str, int, float, bool, bytes, complex, type(None), type(...), types.CodeType, torch.dtype, torch.device, torch.Size])
_OPAQUE = (torch.Tensor, types.ModuleType, types.FrameType, types.TracebackType)
_CONTAINERS = frozenset([dict, list, tuple])
#: The files that do what rewritten code asks for.
_OPERATORS = tuple(str(Path(__file__).parent / name) for name in ("attributes.py", "calls", "flow", "operators.py", "trampolines.py"))
#: Below as many objects they are looked at one by one.
_FEW = 16
_PACKAGE = str(Path(__file__).parents[2]) + "/"
_PLACEHOLDER = "\0the entry of the trampoline"


class Trampolines:
    """Replaces the code of functions, and puts it back.

    Parameters
    ----------
    run : callable
        ``run(function, args, kwargs)`` calls the rewritten form of a function.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen: dict[int, Any] = {}
        self._entered: dict[tuple[int, int], types.CodeType] = {}
        self._mine: list[types.FunctionType] = []
        #: What steers staging, on its way through code that is not rewritten.
        self.passing: BaseException | None = None

    def add(self, function: types.FunctionType) -> None:
        """Replace the code of a function, if it is to run rewritten."""
        if id(function) in replaced or function.__name__ in _KEPT or users_function(function) is not function:
            return
        code = function.__code__
        made = _trampoline(code, _Entry(function, code, self._run))
        if made is not None:
            replaced[id(function)] = (function, code)
            self._mine.append(function)
            function.__code__ = made

    def reach(self, root: Any) -> None:
        """Replace the code of all functions that can be reached from an object."""
        todo, seen = [root], self._seen
        while todo:
            x = todo.pop()
            kind: Any = type(x)
            if id(x) in seen or _holds_nothing(kind):
                continue
            seen[id(x)] = x
            if kind is types.FunctionType:
                if not is_library_file(x.__code__.co_filename):
                    self.add(x)
                todo += [*_contents(x.__closure__), *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values(), *vars(x).values()]
            elif kind is types.GeneratorType:
                todo += x.gi_frame.f_locals.values() if x.gi_frame is not None else ()
            elif isinstance(x, type):
                for base in x.__mro__:
                    if base is x or id(base) not in seen:
                        seen[id(base)] = base
                        if is_rewritten_class(base):
                            todo += vars(base).values()
                            for method in vars(base).values():
                                if isinstance(method, types.FunctionType):
                                    self.add(method)
                todo.append(type(x))
            elif kind is types.BuiltinFunctionType and isinstance(x.__self__, type) and module_of(x.__self__).startswith("torch."):
                continue  # torch.add and its like belong to one class, which has a thousand of them
            elif not (kind is dict and "__builtins__" in x):
                todo.append(kind)
                held = gc.get_referents(x)
                todo += held if len(held) < _FEW else _that_hold(held)

    def reach_all(self, reached: Reached) -> None:
        """Replace the code of all functions that can be reached from the objects from which ``reached`` begins."""
        kinds, others = set[type](), [*reached.unopened]
        for _, x in reached.steps:
            kind = type(x)
            if kind in _CONTAINERS or issubclass(kind, torch.nn.Module):  # what it holds is among the others, but for its class
                self._seen[id(x)] = x
                kinds.add(kind)
            else:
                others.append(x)
        for x in (*kinds, *others):
            self.reach(x)

    def reach_names(self, function: types.FunctionType) -> None:
        """Replace the code of the functions that a function can name: its globals, and what of modules it names."""
        code = code_of(function)
        self.reach(function)
        key = (id(code), id(function.__globals__))
        if key in self._entered:
            return
        self._entered[key] = code
        space, names = function.__globals__, names_of(code)
        for name in names:
            value = space.get(name)
            if isinstance(value, types.ModuleType):
                for part in names:
                    found = vars(value).get(part)
                    if isinstance(found, (types.FunctionType, type)):
                        self.reach(found)
            elif value is not None:
                self.reach(value)

    def hand_over(self, x: Any) -> None:
        """Replace the code of the functions in what native code is given."""
        if type(x) in _ATOMS or isinstance(x, torch.Tensor):
            return
        if isinstance(x, types.FunctionType):
            self.add(x)
        elif isinstance(x, (list, tuple, dict)):
            for item in _that_hold(dict.values(x) if isinstance(x, dict) else x):
                if isinstance(item, types.FunctionType):
                    self.add(item)
                else:
                    self.reach(item)
        self.reach(x)

    def watch(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call what is not rewritten, and go on with what steers staging where that code swallowed it."""
        before, self.passing = self.passing, None
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            if isinstance(self.passing, ControlFlow):
                raise self.passing from None
            if not wants_flags(error, function):
                judge(error, function, args, kwargs)
                raise
            result = attempt(function, *map(decided_flag, args), **{name: decided_flag(x) for name, x in kwargs.items()})
        finally:
            passing, self.passing = self.passing, before
        if passing is not None:
            raise passing
        return result

    def restore(self) -> None:
        """Put everything back."""
        while self._mine:
            function = self._mine.pop()
            function.__code__ = replaced.pop(id(function))[1]
        self._seen.clear()
        self._entered.clear()


class _Entry:
    """What a trampoline calls. It does not keep its function alive."""

    __slots__ = ("_code", "_function", "_library", "_run")

    def __init__(self, function: types.FunctionType, code: types.CodeType, run: Run) -> None:
        self._function, self._code, self._run = weakref.ref(function), code, run
        self._library = is_library_file(code.co_filename)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self._function()
        assert function is not None, "a function is called that is no more"
        profile: Any = sys.getprofile()
        watched = callable(profile)  # by Unseen: what is run here is known. Profilers in C cannot be put back
        if watched:
            sys.setprofile(None)
        try:
            if not _own.looking and staging() and self._of_the_program(sys._getframe(2).f_code) and not (self._library and _is_own(args)):
                return self._run(function, args, kwargs)
            if not _is_attribute_hook(self._code.co_name):
                return self._as_written(function, args, kwargs)
            before, _own.looking = _own.looking, True
            try:
                return self._as_written(function, args, kwargs)
            finally:
                _own.looking = before
        finally:
            if watched:
                sys.setprofile(profile)

    def _of_the_program(self, caller: types.CodeType) -> bool:
        """Whether a call is one of the user's program, not one that staging or PyTorch makes for itself."""
        caller_is = "operator" if caller in FOR_THE_PROGRAM else _kind_of_file(caller.co_filename)
        if self._library:
            return caller_is in ("user", "operator")
        if _is_attribute_hook(self._code.co_name):
            return caller_is in ("user", "library") or caller in FOR_THE_PROGRAM  # operators look at objects for themselves too
        return caller_is != "staging"

    def _as_written(self, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return with_code(function, self._code)(*args, **kwargs)


class _Own(threading.local):
    """What staging does for itself in a thread: whether it looks at an attribute of an object whose class has code for that."""

    looking = False


_own = _Own()
#: Code of staging that calls, or reads attributes, as the program asks for it.
FOR_THE_PROGRAM = frozenset([Trampolines.watch.__code__, attempt.__code__])


def _is_attribute_hook(name: str) -> bool:
    """Whether a function is run by any look at an object, ``isinstance`` too."""
    return name in ("__getattribute__", "__getattr__")


def _is_own(args: tuple[Any, ...]) -> bool:
    """Whether a method is one of a context manager that a generator of staging's own is."""
    manager: Any = args[0] if args else None
    kind = type(manager)
    return kind is contextlib._GeneratorContextManager and _kind_of_file(manager.gen.gi_code.co_filename) in ("staging", "operator")


@functools.cache
def _kind_of_file(filename: str) -> str:
    """Return whose a file is: the ``user``'s, a ``library``'s, of ``staging``, or an ``operator``'s (it does what the program asks for)."""
    if filename.startswith(_OPERATORS):
        return "operator"
    if filename == abc.__file__ or filename == "<frozen abc>":
        return "staging"  # isinstance()
    if is_library_file(filename):
        return "staging" if filename.startswith(_PACKAGE) else "library"
    return "user"


#: The flags that say that a function makes generators or coroutines: libraries ask for them. Python 3.10 acts on them, later ones do not.
_KINDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR if sys.version_info >= (3, 11) else 0


def is_trampoline(code: types.CodeType) -> bool:
    """Whether code leads to the rewritten form of a function."""
    return any(isinstance(c, _Entry) for c in code.co_consts)


def _trampoline(code: types.CodeType, entry: _Entry) -> types.CodeType | None:
    """Return code with the signature of ``code`` that calls ``entry`` with what it is given."""
    count = code.co_argcount + code.co_kwonlyargcount
    star, stars = bool(code.co_flags & 0x04), bool(code.co_flags & 0x08)
    template = _template(code.co_posonlyargcount, code.co_argcount, star, stars, code.co_varnames[: count + star + stars])
    if template is None:
        return None
    constants = tuple(entry if c == _PLACEHOLDER else c for c in template.co_consts)
    names = {"co_qualname": code.co_qualname} if hasattr(code, "co_qualname") else {}
    return template.replace(
        co_flags=template.co_flags | (code.co_flags & _KINDS),
        co_consts=constants,  # type: ignore[arg-type]
        co_name=code.co_name,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        co_freevars=code.co_freevars,
        **names,
    )


@functools.cache
def _template(only: int, count: int, star: bool, stars: bool, names: tuple[str, ...]) -> types.CodeType | None:
    """Compile a trampoline for a signature."""
    if not all(n.isidentifier() for n in names):
        return None
    keywords = names[count : len(names) - star - stars]
    rest = names[len(names) - star - stars :]
    declared, given = [*names[:only], *(["/"] if only else []), *names[only:count]], [*names[:count]]
    if star:
        declared.append(f"*{rest[0]}")
        given.append(f"*{rest[0]}")
    elif keywords:
        declared.append("*")
    declared += keywords
    given += [f"{n}={n}" for n in keywords]
    if stars:
        declared.append(f"**{rest[-1]}")
        given.append(f"**{rest[-1]}")
    text = f"def f({', '.join(declared)}):\n    __dycl_entry = {_PLACEHOLDER!r}\n    return __dycl_entry({', '.join(given)})"
    space: dict[str, Any] = {}
    exec(text, space)
    code: types.CodeType = space["f"].__code__
    return code


@functools.lru_cache(maxsize=4096)
def _holds_nothing(kind: type) -> bool:
    """Whether objects of a class hold no function of the user's."""
    return kind in _ATOMS or issubclass(kind, _OPAQUE) or _is_stagings(kind)


def _that_hold(items: Collection[Any]) -> Collection[Any]:
    """Return those of many objects, often numbers, that may hold a function of the user's."""
    kinds = {kind for kind in set(map(type, items)) if not _holds_nothing(kind)}
    return [item for item in items if type(item) in kinds] if kinds else ()


def _is_stagings(kind: type) -> bool:
    """Whether objects of a class belong to staging itself."""
    return module_of(kind).startswith("dycl_tvm.") and not module_of(kind).startswith("dycl_tvm.zoo")


def _contents(cells: tuple[types.CellType, ...] | None) -> list[Any]:
    found = []
    for cell in cells or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue
    return found
