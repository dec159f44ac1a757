# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Whose error it is: the program's only if eager raises it too; whatever else goes wrong while staging is a refusal.

An operation that fails on values known only at run time is tried in eager mode, on real tensors of the same metadata and on numbers of the
same type: what does not fail there in the same way, or not whatever the values are, is not the program's.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from dycl_tvm.errors import DyclError, StagingLimitError, UnsupportedError
from dycl_tvm.frontend.trace.heap.compiled import module_of
from dycl_tvm.frontend.trace.heap.reach import held_by, reach
from dycl_tvm.frontend.trace.modes import is_without_kernel, refusal
from dycl_tvm.frontend.trace.session import apart, current
from dycl_tvm.frontend.trace.unrecorded import plainly, same_random_numbers
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.result_types import is_pointwise
from dycl_tvm.frontend.trace.values.tensors import StagedTensor

Raised = TypeVar("Raised", bound=BaseException)
_PLAIN = (str, bytes, bool, int, float, complex, type(None), type(...), slice, range, torch.dtype, torch.device, torch.Size, type)
_BUILTIN = (types.BuiltinFunctionType, types.MethodWrapperType, types.MethodDescriptorType, types.WrapperDescriptorType, type)
#: How many objects are searched for such values.
_SEARCHED = 1 << 12
_NUMBERS: dict[str, Callable[[int], Any]] = {"int": int, "float": float, "bool": bool}


#: The classes of staging that stand for values of several classes, or for numbers.
_OWN_NAMES = re.compile(r"\b(Poison|Host(Int|Float|Bool)|KeptList|kept (list|tuple|deque))\b")
#: What PyTorch's allocator on CPUs says.
_NO_MEMORY = re.compile(r"DefaultCPUAllocator: (can't allocate|not enough) memory")
#: What PyTorch says before it looks at anything else.
_FLAGS = re.compile(r"must be bool, not HostBool|received an invalid combination of arguments - got .*HostBool")


def names_staging(error: Exception) -> bool:
    """Whether the text of an error is about a class of staging's: it met a value that is of another class in eager."""
    return isinstance(error, TypeError) and _OWN_NAMES.search(str(error)) is not None


def wants_flags(error: Exception, function: Any) -> bool:
    """Whether a compiled function of PyTorch's has refused a bool known only at run time, before it began: it may be given a plain one."""
    refused = isinstance(error, TypeError) and isinstance(function, _BUILTIN) and _FLAGS.search(str(error)) is not None
    return refused and (_is_torchs(function) or isinstance(getattr(function, "__self__", None), torch.Tensor))


def decided_flag(x: Any) -> Any:
    """Return an argument; of a bool known only at run time, what it is on the path at hand."""
    return bool(x) if isinstance(x, torch.SymBool) else x


def of_program(error: Raised) -> Raised:
    """Mark an error as one that eager raises too."""
    error.__dycl_judged__ = True  # type: ignore[attr-defined]
    return error


def is_of_program(error: BaseException) -> bool:
    """Whether an error was found to be one that eager raises too."""
    return getattr(error, "__dycl_judged__", False) or getattr(error, "__dycl_raised__", False)


def attempt(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function that the program asked for; an error of it is judged."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        judge(error, function, args, kwargs)
        raise


def judge(error: Exception, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Mark an error of a call if eager raises it too; whether it is certain that eager does not."""
    if is_of_program(error) or isinstance(error, (DyclError, RecursionError)):  # a call takes more frames here than in eager mode
        return False
    if is_without_kernel(error):
        raise refusal() from error
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error))):
        raise StagingLimitError(  # a call makes tensors no longer than it needs, where staging makes room for the longest
            "staging needs more memory than there is",
            current().origin(),
            "bound what makes the tensor long, or say how long it may get: build(..., max_length=N)",
        ) from error
    if names_staging(error):
        raise UnsupportedError(
            f"a value that depends on the path is given to code that looks at its class ({error})",
            current().origin(),
            "give it a value that is known at build time: call it on each side of the `if`",
        ) from error
    if _wants_known_size(error):
        raise UnsupportedError(
            f"{getattr(function, '__name__', function)}() is given a size that is known only at run time",
            current().origin(),
            "keep its shapes and sizes static",
        ) from error
    owner = getattr(function, "__self__", None)
    bound = owner is not None and not isinstance(owner, types.ModuleType)
    leaves = torch.utils._pytree.tree_leaves((owner if bound else None, args, kwargs))
    tried = _is_torchs(function) and any(isinstance(x, torch.Tensor) for x in leaves)
    if not tried and not any(isinstance(x, StagedTensor) or scalars.is_symbolic(x) for x in leaves):
        plain = all(isinstance(x, (*_PLAIN, torch.Tensor)) for x in leaves)
        if plain or (isinstance(function, _BUILTIN) and not _hold_staged(leaves)):
            of_program(error)
    elif all(isinstance(x, (*_PLAIN, torch.Tensor)) or scalars.is_symbolic(x) for x in leaves):
        raised = [type(_raised(function, owner if bound else None, args, kwargs, value)) is type(error) for value in (0, 1)]
        if all(raised):
            of_program(error)
        return not any(raised)
    return False


def as_in_eager(error: TypeError, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception:
    """Return what eager raises where an operator has refused tensors without data: some of its checks ask an int for a bool."""
    raised = [_raised(operator, None, args, kwargs, value) for value in (0, 1)]
    return raised[0] if raised[0] is not None and type(raised[0]) is type(raised[1]) else error


#: Operators with numbers that they take, of those known only at run time the types, and with the types of their tensors.
_TAKE: set[Any] = set()


def check_types(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what an operator raises in eager for the types of its operands, whatever the elements are: ``x - True``, ``n ** -1``, floats as
    an index.

    On the device ``meta`` it takes them. Those known only at run time become tensors of rank 0 of the result's type, which it would take.
    """
    if not is_pointwise(operator) and not _takes_index(operator):
        return
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    types = [
        (x.dtype, x.dim(), x.numel() == 0)
        if isinstance(x, torch.Tensor)
        else scalars._kind(scalars.operand_of(x))
        if scalars.is_symbolic(x)
        else (type(x), x)
        for x in leaves
    ]
    key = (operator, *types)
    if key in _TAKE:
        return
    failed = _type_error(operator, args, kwargs, 0)
    if failed is not None and not isinstance(failed, NotImplementedError) and _type_error(operator, args, kwargs, 1) is not None:
        raise of_program(failed)
    _TAKE.add(key)


@functools.cache
def _takes_index(operator: Any) -> bool:
    """Whether an operator takes a tensor of positions along a dimension."""
    return any(argument.name == "index" and str(argument.type) == "Tensor" for argument in operator._schema.arguments)


def _type_error(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: int) -> Exception | None:
    """Return what an operator raises on tensors of one element, where the numbers known only at run time have a value."""

    named = [*zip([a.name for a in operator._schema.arguments], args), *kwargs.items()]
    positions = {id(x) for name, x in named if name == "index"}

    def stand_in(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            make = torch.zeros if id(x) in positions else torch.ones  # the first position is there
            return make([min(extent, 1) for extent in x.shape], dtype=x.dtype)
        return _stand_in(x, value)

    try:
        with apart(), plainly():
            args, kwargs = torch.utils._pytree.tree_map(stand_in, (args, kwargs))
            operator(*args, **kwargs)
    except Exception as error:
        return error.with_traceback(None)
    return None


def _wants_known_size(error: Exception) -> bool:
    """Whether PyTorch was given a number known only at run time where it takes those only that it knows itself."""
    if isinstance(error, AttributeError):
        return isinstance(error.obj, scalars.Node)
    return isinstance(error, RuntimeError) and "expected to contain only concrete integers" in str(error)


def _is_torchs(function: Any) -> bool:
    """Whether a function is one of PyTorch's: staging may do it in another way, so it is tried."""
    owner: Any = getattr(function, "__self__", None)
    if owner is None:  # a tensor is not asked for its truth: that would be a decision
        owner = getattr(function, "__objclass__", None)
    return any(module_of(x).startswith("torch") for x in (function, owner, type(owner)))


def _hold_staged(objects: list[Any]) -> bool:
    """Whether objects hold values known only at run time; if there are too many to tell, they may."""
    found = reach([("", x) for x in objects], lambda x: True, limit=_SEARCHED)
    held = (v for _, x in found for v in held_by(x))
    return not found.is_all or any(isinstance(v, StagedTensor) or scalars.is_symbolic(v) for v in held)


def _raised(function: Any, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: int) -> Exception | None:
    """Return what a call raises in eager mode, on tensors filled with a value."""
    try:
        with apart(), plainly(), same_random_numbers():
            owner, args, kwargs = torch.utils._pytree.tree_map(lambda x: _stand_in(x, value), (owner, args, kwargs))
            (function if owner is None else getattr(owner, function.__name__))(*args, **kwargs)
    except Exception as error:
        return error.with_traceback(None)
    return None


def _stand_in(x: Any, value: int) -> Any:
    if isinstance(x, torch.Tensor) and not isinstance(x, StagedTensor):
        return x.detach().clone()
    if isinstance(x, torch.Tensor):
        made = torch.full(tuple(x.shape), value, dtype=x.dtype)
        return made if x.is_contiguous() or 0 in x.stride() else torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(made)
    if isinstance(x, torch.Generator):
        return torch.Generator()
    return _NUMBERS[scalars._kind(scalars.operand_of(x))](value) if scalars.is_symbolic(x) else x
