# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a function without source does, by its bytecode: whether it can run as it is on tensors without data.

Rewriting needs the source, which a lambda made by ``eval`` or a module that is only there as ``.pyc`` does not have. Truth tests and
numbers are safe without it, since the values themselves fork or refuse; what stores, changes an object, or asks what an object is
would not be seen. So what an instruction does must be known here, and so must be what is called; all else is an objection.
"""

from __future__ import annotations

import dis
import functools
import inspect
import linecache
import math
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from dycl_tvm.frontend.python.source.ownership import code_of, users_function

_NEUTRAL = frozenset(["RESUME", "NOP", "CACHE", "KW_NAMES", "EXTENDED_ARG", "COPY_FREE_VARS", "MAKE_CELL", "NOT_TAKEN", "PRECALL"])
_COMPUTING = (
    *("BINARY_", "UNARY_", "BUILD_TUPLE", "BUILD_LIST", "BUILD_MAP", "BUILD_CONST_KEY_MAP", "BUILD_SLICE"),
    *("COMPARE_OP", "LIST_TO_TUPLE"),
)
_JUMPS = (
    *("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"),
    *("JUMP_IF_", "JUMP_FORWARD", "TO_BOOL"),
)
_ASKING = frozenset(["callable", "getattr", "hasattr", "hash", "id", "isinstance", "issubclass", "type", "vars"])
_LOAD, _STORE = "load", "store"
#: What is done with local variables, one after another: Python 3.13 has instructions for two.
_LOCALS = {
    **dict.fromkeys(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"), (_LOAD,)),
    **dict.fromkeys(("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"), (_LOAD, _LOAD)),
    "STORE_FAST": (_STORE,),
    "STORE_FAST_LOAD_FAST": (_STORE, _LOAD),
    "STORE_FAST_STORE_FAST": (_STORE, _STORE),
}
_WORDS = {
    "IS_OP": "asks whether two names are one object (`is`)",
    "CONTAINS_OP": "asks whether an object is in another (`in`)",
    "IMPORT_NAME": "imports a module",
    "RAISE_VARARGS": "raises an exception",
    "YIELD_VALUE": "is a generator",
    "FOR_ITER": "has a loop",
    "JUMP_BACKWARD": "has a loop",
    "MAKE_FUNCTION": "makes a function",
    "LOAD_BUILD_CLASS": "makes a class",
}
#: Functions of Python's whose result depends on values alone, which the values themselves see to.
_OF_VALUES = frozenset([abs, bool, divmod, float, int, len, max, min, pow, range, round, sum, tuple])
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
#: Classes whose methods change the object.
_CHANGEABLE = (list, dict, set, bytearray, deque, types.GeneratorType, types.FunctionType, torch.nn.Module)
_OF_TENSORS = frozenset(name for name in dir(torch.Tensor) if not name.startswith("_")).difference(*map(dir, _CHANGEABLE))

#: What is known of an entry of the stack: made of tensors and numbers only; what makes such of such; a function of the user's; nothing.
_SEEN, _MAKER, _USERS, _UNSEEN = "seen", "maker", "users", "unseen"
#: What stands before a callee, or is its ``self``.
_GAP = "gap"


def has_source(code: types.CodeType) -> bool:
    """Whether the file of a function can be read."""
    return bool(linecache.getlines(code.co_filename))


def objection(function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return why a function cannot run as it is on arguments; None if it can."""
    code = code_of(function)
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return "is a generator"
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return None  # so it is in eager
    bound.apply_defaults()
    unseen = {name for name, x in bound.arguments.items() if not all(map(_is_leaf, x if isinstance(x, tuple) else (x,)))}
    known = -1
    while len(unseen) > known:
        known = len(unseen)
        found = next(_objections(function, unseen), None)
    return found


def only_stores_attributes(cls: type) -> bool:
    """Whether making an object of a class only stores what it is given in attributes, as that of a dataclass does."""
    init: Any = cls.__init__  # type: ignore[misc]  # of the class that is asked for
    plain = type(cls) is type and cls.__new__ is object.__new__ and cls.__setattr__ is object.__setattr__
    if not plain or not isinstance(init, types.FunctionType) or init.__closure__:
        return False
    for i in dis.get_instructions(code_of(init)):
        if i.opname == "STORE_ATTR":
            if hasattr(type(getattr(cls, i.argval, None)), "__set__") and not inspect.ismemberdescriptor(getattr(cls, i.argval)):
                return False
        elif i.opname not in _NEUTRAL and _STORE in _LOCALS.get(i.opname, (_STORE,)) and i.opname not in _CONSTANT_OR_END:
            return False
    return True


_CONSTANT_OR_END = ("LOAD_CONST", "RETURN_CONST", "RETURN_VALUE")


def _is_leaf(x: Any) -> bool:
    return isinstance(x, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, *_CONSTANTS))


def _objections(function: types.FunctionType, unseen: set[str]) -> Iterator[str]:
    """Yield what objections there are, where some variables hold anything; variables that are found to do so too are added to them."""
    cells = dict(zip(code_of(function).co_freevars, function.__closure__ or ()))
    stack: list[Any] = []
    for i in dis.get_instructions(code_of(function)):
        op = i.opname
        if i.is_jump_target:
            stack = [_UNSEEN] * len(stack)  # what was loaded before may be another on another way
        if op in _NEUTRAL:
            continue
        net = dis.stack_effect(i.opcode, i.arg, jump=False)
        if op in ("LOAD_CONST", "RETURN_CONST", "LOAD_SMALL_INT"):
            stack += [_SEEN] * net
        elif op in _LOCALS:
            for done, name in zip(_LOCALS[op], i.argval if isinstance(i.argval, tuple) else (i.argval,)):
                if done is _LOAD:
                    stack.append(_UNSEEN if name in unseen else _SEEN)
                elif _pop(stack, 1)[0] not in (_SEEN, _MAKER):
                    unseen.add(name)
        elif op in ("ROT_TWO", "SWAP"):
            deep = i.arg or 2
            stack[:0] = [_UNSEEN] * (deep - len(stack))
            stack[-1], stack[-deep] = stack[-deep], stack[-1]
        elif op == "PUSH_NULL":
            stack.append(_GAP)
        elif op in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            known = _known(_found(function, cells, i.argval))
            if known is None:
                yield (
                    f"asks what an object is (`{i.argval}`)"
                    if i.argval in _ASKING
                    else f"uses `{i.argval}`, which cannot be followed there"
                )
            stack += [_GAP] * (net - 1) + [known]
        elif op in ("LOAD_ATTR", "LOAD_METHOD"):
            owner = _pop(stack, 1)[0]
            known = _known(getattr(owner, i.argval, None)) if isinstance(owner, types.ModuleType) else None
            if owner in (_SEEN, _MAKER) and i.argval in _OF_TENSORS:
                known = _MAKER
            if known is None:
                yield f"reads `.{i.argval}`, which cannot be followed there"
            stack += [_GAP] * net + [known]
        elif op.startswith("CALL") and op not in ("CALL_FUNCTION_EX", "CALL_INTRINSIC_1", "CALL_INTRINSIC_2"):
            taken = 1 - net if op != "CALL" else 2 + (i.arg or 0)  # Python 3.11 says of PRECALL that it takes the arguments
            popped = [x for x in _pop(stack, taken) if x is not _GAP]
            if not popped or popped[0] not in (_MAKER, _USERS):
                yield "calls what it is given"
            stack.append(_made_of(popped))
        elif (op.startswith(_COMPUTING) and not (op == "BINARY_OP" and "=" in i.argrepr)) or i.argrepr == "INTRINSIC_UNARY_POSITIVE":
            made = _made_of(_pop(stack, 1 - net))
            if made is _UNSEEN and op == "COMPARE_OP" and i.argval in ("==", "!="):
                yield "compares what may hold other objects by `==`"
            stack.append(made)
        elif op.startswith(_JUMPS) or op in ("POP_TOP", "RETURN_VALUE"):
            _pop(stack, -net)
        else:
            yield _WORDS.get(op, "asks whether something is None" if op.endswith(("IF_NONE", "IF_NOT_NONE")) else _in_words(op))


def _made_of(used: list[Any]) -> str:
    return _SEEN if all(x in (_SEEN, _MAKER) for x in used) else _UNSEEN


def _in_words(op: str) -> str:
    return "stores" if op.startswith(("STORE_", "DELETE_", "BINARY_OP", "INPLACE_")) else f"does what is not known here ({op})"


def _pop(stack: list[Any], count: int) -> list[Any]:
    """Take entries off."""
    if count <= 0:
        return []
    popped = stack[-count:]
    del stack[-count:]
    return [_UNSEEN] * (count - len(popped)) + popped


def _found(function: types.FunctionType, cells: dict[str, types.CellType], name: str) -> Any:
    if name in cells:
        return cells[name].cell_contents if cells[name] != types.CellType() else _found
    builtins = function.__globals__.get("__builtins__", {})
    space = builtins if isinstance(builtins, dict) else vars(builtins)
    return function.__globals__.get(name, space.get(name, _found))


def _known(x: Any) -> Any:
    """Return what an object that a name stands for is to those that use it: a module as it is; None if nothing is known of it."""
    if isinstance(x, (torch.Tensor, *_CONSTANTS)):
        return _SEEN
    if isinstance(x, types.ModuleType):
        return x if x is math or x.__name__.split(".")[0] == "torch" else None
    if isinstance(x, types.FunctionType) and x is not _found and users_function(x) is not None:
        return _USERS
    if type(x) not in (type, types.FunctionType, types.BuiltinFunctionType):
        return None  # a user's own object may have a `__hash__` that does anything
    if getattr(x, "__wrapped__", None) in _OF_VALUES:
        return _MAKER  # what stands for it while a model is staged
    return _MAKER if x in _OF_VALUES or x in _of_torch() or getattr(x, "__self__", None) is math else None


@functools.cache
def _of_torch() -> frozenset[Any]:
    """Return PyTorch's functions of tensors: they do what they do for tensors without data too."""
    return frozenset(torch.overrides.get_testing_overrides())
