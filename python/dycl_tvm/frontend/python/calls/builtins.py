# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is called in place of functions that cannot take a number or tensor known only at run time.

Every substitute does what the original does when all its arguments are plain.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import math
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import attributes
from dycl_tvm.frontend.python.calls import clocks, seeds, unrepeatable
from dycl_tvm.frontend.python.calls.comprehensions import extreme_by_key, is_counted_by_the_run, quantified_items
from dycl_tvm.frontend.python.calls.conversions import conversion, length, make_complex, number_in, plain
from dycl_tvm.frontend.python.calls.frames import TABLE as FRAMES
from dycl_tvm.frontend.python.calls.imports import import_by_call
from dycl_tvm.frontend.python.calls.iterator_calls import TABLE as ITERATORS
from dycl_tvm.frontend.python.calls.iterators import OwnIterator
from dycl_tvm.frontend.python.calls.kept_lists import KeptList
from dycl_tvm.frontend.python.calls.list_uses import extreme_of, quantified
from dycl_tvm.frontend.python.calls.messages import TABLE as MESSAGES
from dycl_tvm.frontend.python.calls.printing import substitute_print
from dycl_tvm.frontend.python.calls.progress import substitute_of as progress_bar
from dycl_tvm.frontend.python.calls.ranges import RunTimeRange
from dycl_tvm.frontend.python.calls.sums import TABLE as SUMS
from dycl_tvm.frontend.python.calls.torch_operators import TABLE as TORCH_OPERATORS
from dycl_tvm.frontend.python.flow.branches import bool_op, ifexp
from dycl_tvm.frontend.python.flow.choices import Chosen
from dycl_tvm.frontend.python.flow.iteration import advancing, iterate
from dycl_tvm.frontend.python.flow.names import is_name, named
from dycl_tvm.frontend.python.flow.truth import truth
from dycl_tvm.frontend.python.program import program, special_method
from dycl_tvm.frontend.python.source.ownership import code_of, with_code
from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.heap.places import MUTABLE, in_slots, space_of
from dycl_tvm.frontend.trace.join.poison import Poison, is_unbound, use
from dycl_tvm.frontend.trace.join.texts import Text, matching, text_of
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.arrays import RunTimeArray, tensor_of
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.extremes import extremum
from dycl_tvm.frontend.trace.values.identity import join_identities, of_role, settle
from dycl_tvm.frontend.trace.values.layouts import join_layouts
from dycl_tvm.frontend.trace.values.math_calls import MATH_FUNCTIONS, MATH_ROUNDING, math_call
from dycl_tvm.frontend.trace.values.opaque import ObjectId
from dycl_tvm.frontend.trace.values.storage import may_be_one
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, as_constant, fresh_like, read, storage_of
from dycl_tvm.hcfg.hostops import OF_CHOICE

Substitute = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def find(callee: Any) -> Substitute | None:
    """Return the substitute of a callable, if it has one."""
    if type(callee) not in _KINDS:
        return None
    found = TABLE.get(callee)
    if callee is torch.manual_seed:  # PyTorch's compiler puts another function there when it is imported
        return seeds.TABLE[torch.random.manual_seed]
    if found is None and isinstance(callee, types.BuiltinFunctionType):
        found = seeds.method_of(callee)
    if callee is torch.random.fork_rng:
        return seeds.forking()
    return found or unrepeatable.substitute_of(callee) or progress_bar(callee)


def has_effects(callee: Any) -> bool:
    """Whether a callable does input or output, or gives another result at every call."""
    return find(callee) in (substitute_print, _input, unrepeatable.draw, clocks.read, seeds.unbound)


def _consumes(substitute: Substitute) -> Substitute:
    """Wrap a substitute whose first argument may be an iterator that it runs through."""

    def checked(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for a in args[:1]:
            advancing(a)
        return substitute(callee, args, kwargs)

    return checked


def _range(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if plain(args):
        return range(*args)
    bounds = [number_in(a) for a in args]
    if not any(scalars.is_symbolic(b) for b in bounds):
        return range(*[int(b) for b in bounds])
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (bounds[0], bounds[1], bounds[2] if len(bounds) > 2 else 1)
    return RunTimeRange(start, stop, step)


def _from_numpy(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return tensor_of(args[0]) if len(args) == 1 and type(args[0]) is RunTimeArray and not kwargs else callee(*args, **kwargs)


def _abs(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return abs(args[0])


def _extremum(largest: bool) -> Substitute:
    def substitute(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (found := extreme_of(callee, args, kwargs)) is not None:
            return found
        if kwargs.get("key") is not None and kwargs.keys() <= {"key", "default"}:
            items = args[0] if len(args) == 1 else args
            return extreme_by_key(callee, items, kwargs) if is_counted_by_the_run(items) else _extremum_by(callee, items, kwargs, largest)
        values = list(args[0]) if len(args) == 1 else list(args)
        if plain(tuple(values)) or not values:
            return callee(*args, **kwargs) if len(args) > 1 else callee(values, **kwargs)
        if not kwargs.keys() <= {"key", "default"}:
            return callee(*args, **kwargs)  # an error
        if len(values) == 1:
            return values[0]  # nothing is compared
        if any(isinstance(v, torch.Tensor) and v.numel() != 1 for v in values):
            raise of_program(RuntimeError("Boolean value of Tensor with more than one value is ambiguous"))
        if not any(isinstance(v, torch.Tensor) for v in values) and _mixed(values) is None:
            return extremum(values, largest)
        if current().decisions.chosen_by_tests():
            return _chosen_by_tests(values, largest)
        decision = current().decisions.choice()
        best = _chosen_in_place(values, largest, decision)
        return scalars.mark_mixed(best, _mixed(values, decision))

    return substitute


def _chosen_in_place(values: list[Any], largest: bool, decision: Any) -> Any:
    """Return the extreme of some values, which may be tensors of one element: what ``decision`` chooses."""
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if not tensors:
        return extremum(values, largest)
    best = values[0]
    for v in values[1:]:
        better = v > best if largest else v < best
        if _differ(v, best):
            best = ifexp(better, lambda v=v: v, lambda best=best: best)
        elif isinstance(v, torch.Tensor) and isinstance(best, torch.Tensor):
            best = torch.where(better, v, best)
        else:
            best = scalars.select(number_in(better), number_in(v, OF_CHOICE), number_in(best, OF_CHOICE))
    if isinstance(best, StagedTensor) and not any(best is v for v in values):  # it is one of them in eager, not a new one
        best = fresh_like(join_layouts(tensors, decision), read(best)) if len({v.shape for v in tensors}) == 1 else best
        join_identities(best, tensors, decision)
        join_identities(best.storage_, map(storage_of, tensors), decision)
        for v in tensors:
            may_be_one(storage_of(best), storage_of(v), decision)
    return best


def _chosen_by_tests(values: list[Any], largest: bool) -> Any:
    """Return the extreme of some values by truth tests: each path knows which one it is."""
    best = values[0]
    for v in values[1:]:
        if v > best if largest else v < best:
            best = v
    return best


def _extremum_by(callee: Any, items: Any, kwargs: dict[str, Any], largest: bool) -> Any:
    """Return the first of the items whose key is the largest, or the smallest. Its key is asked for before the next item is."""
    pairs = [(v, program().operators.call(kwargs["key"], v)) for v in iterate(items)]
    if not pairs or plain(tuple([v for v, _ in pairs])):
        keys = iter([key for _, key in pairs])
        return callee([v for v, _ in pairs], **{**kwargs, "key": lambda _: next(keys)})
    best = pairs[0]
    for found in pairs[1:]:
        best = ifexp(found[1] > best[1] if largest else found[1] < best[1], lambda found=found: found, lambda best=best: best)
    return best[0]


def _differ(a: Any, b: Any) -> bool:
    """Whether two values cannot stand for each other in an operation with a tensor."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return (a.dtype, a.shape) != (b.dtype, b.shape)
    if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
        return False
    tensor, number = (a, b) if isinstance(a, torch.Tensor) else (b, a)
    ints = scalars._kind(scalars.operand_of(number)) == "int" and tensor.dtype in (torch.int32, torch.int64)
    return tensor.dim() > 0 or not (ints or tensor.dtype == torch.float32)


def _mixed(values: list[Any], decision: Any = None) -> scalars.Mixed | None:
    """Return between which types values decide if one of ``values`` is chosen, by ``decision``; None if all have one type."""
    tensors = [isinstance(v, torch.Tensor) for v in values]
    known = [m for m in map(scalars.mixed_of, values) if m is not None]
    dtypes = frozenset().union(*map(scalars.dtypes_of, values))
    if any(tensors) or any(m.tensor for m in known):
        return None if all(tensors) else scalars.Mixed("a tensor or a number", dtypes, True, any(m.computed for m in known), decision)
    types = [f"{'an' if k == 'int' else 'a'} {k}" for k in sorted({scalars._kind(scalars.operand_of(v)) for v in values}, reverse=True)]
    return known[0] if known else scalars.Mixed(" or ".join(types), dtypes, decision=decision) if len(types) > 1 else None


def _quantifier(kind: str) -> Substitute:
    def substitute(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for found in (quantified(args[0], every=kind == "and"), quantified_items(args[0], every=kind == "and")):
            if found is not None:
                return found
        if not isinstance(args[0], (torch.Tensor, list, tuple, set, dict)):
            return callee(*args, **kwargs)  # a generator: its own tests fork
        items = list(args[0])
        if plain(tuple(items)):
            return callee(items)
        result = bool_op(kind, True, items[0], *[lambda x=x: x for x in items[1:]])
        return scalars.wrap(truth(result))

    return substitute


def _pow(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = (*args, *kwargs.values())
    if len(given) == 3 and any(map(scalars.is_symbolic, given)):
        why = "pow() of a number known only at run time with a modulus"
        raise UnsupportedError(why, current().origin(), "compute pow(a, b) % c, if pow(a, b) stays within 64 bits")
    return callee(*args, **kwargs)


def _round(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return round(*args, **kwargs)


def _repr(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``repr(x)``: what an object says of itself may have values in it that are known only at run time."""
    if len(args) == 1 and not kwargs and scalars.is_symbolic(args[0]):
        return text_of(args[0], ord("r"))
    method = special_method(args[0], "__repr__") if len(args) == 1 and not kwargs else None
    made = callee(*args, **kwargs) if method is None else method()
    return made if isinstance(made, (str, Text)) else callee(*args)  # which says what is wrong with it


def _python_type(number: Any, used: str) -> type:
    """Return the type that a host scalar has in eager mode; refuse the use if values decide it."""
    scalars.refuse_mixed(scalars.mixed_of(number), used)
    return {"int": int, "float": float, "bool": bool}[scalars._kind(scalars.operand_of(number))]


def _isinstance(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, classes = args
    if type(x) is Text:
        return isinstance("", classes)
    if isinstance(x, Poison):
        use(x)
    if scalars.is_symbolic(x):
        return issubclass(_python_type(x, "given to isinstance()"), classes)
    if isinstance(x, StagedTensor) and not issubclass(torch.Tensor, classes):
        with plainly():
            return of_role(x, "the class", lambda role: isinstance(role.like(x.dtype), classes))
    return isinstance(x, classes)


def _callable(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(args[0], Poison) and type(args[0]) is not Text:
        use(args[0])
    return callable(*args) and type(args[0]) is not Text


def _type(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1:
        return type(*args, **kwargs)
    x = args[0]
    if isinstance(x, Poison):
        use(x)
    return _stood_for(x, "given to type()") or (x.__class__ if issubclass(type(x), (OwnValue, OwnIterator, RunTimeRange)) else type(x))


def class_of(x: Any) -> Any:
    """Return ``x.__class__``."""
    if isinstance(x, Poison):
        use(x)
    return _stood_for(x, "asked for its __class__") or x.__class__


def _stood_for(x: Any, used: str) -> type | None:
    """Return the class that a value known at run time has in eager mode; None if it is its own."""
    if scalars.is_symbolic(x):
        return _python_type(x, used)
    return of_role(x, "the class", lambda role: role.cls) if isinstance(x, StagedTensor) else None


def _math(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if plain(args):
        return callee(*args)
    numbers = [number_in(a) for a in args]
    if not any(scalars.is_symbolic(n) for n in numbers):
        return callee(*numbers)
    if len(numbers) == 1 and callee in MATH_FUNCTIONS:
        return math_call(MATH_FUNCTIONS[callee], numbers[0])
    if len(numbers) == 1 and callee in MATH_ROUNDING:
        return getattr(numbers[0], f"__{MATH_ROUNDING[callee]}__")()
    if callee is math.isnan:
        return numbers[0] != numbers[0]
    if callee is math.isinf:
        return abs(numbers[0]) == math.inf
    if callee is math.isfinite:
        return abs(numbers[0]) < math.inf
    if callee is math.fabs:
        return abs(scalars.convert(numbers[0], "float"))
    raise UnsupportedError(
        f"math.{callee.__name__}() of a number known only at run time",
        current().origin(),
        "use the torch function of the same name on a tensor",
    )


def _arg_extremum(largest: bool) -> Substitute:
    """``np.argmax`` of a list of numbers: the first of the largest; a NaN counts as the largest (and as the smallest)."""

    def substitute(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values = _listed(args)
        if values is None or plain(tuple(values)) or kwargs or len(args) != 1:
            return _numpy(callee, args, kwargs)
        numbers = [number_in(v) for v in values]
        best, position = numbers[0], 0
        for i, x in enumerate(numbers[1:], 1):
            if not scalars.is_symbolic(x) and not scalars.is_symbolic(best):
                better: Any = (x > best if largest else x < best) or (x != x and best == best)
            else:
                closer = x > best if largest else x < best
                nan = _and(x != x, best == best)
                better = _or(closer, nan)
            best, position = scalars.select(better, x, best), scalars.select(better, i, position)
        return position

    return substitute


def _and(a: Any, b: Any) -> Any:
    return scalars.select(a, b, False)


def _or(a: Any, b: Any) -> Any:
    return scalars.select(a, True, b)


def _np_extremum(largest: bool) -> Substitute:
    def substitute(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values = _listed(args)
        if values is None or plain(tuple(values)) or kwargs or len(args) != 1:
            return _numpy(callee, args, kwargs)
        best = number_in(values[0])
        for v in values[1:]:
            x = number_in(v)
            closer = x > best if largest else x < best
            best = scalars.select(_or(closer, _and(x != x, best == best)), x, best)
        return best

    return substitute


def _listed(args: tuple[Any, ...]) -> list[Any] | None:
    """Return a list or tuple of numbers and one-element tensors; None for anything else."""
    if not args or not isinstance(args[0], (list, tuple)) or not args[0]:
        return None
    values = list(args[0])
    fine = all(
        isinstance(v, (bool, int, float)) or scalars.is_symbolic(v) or (isinstance(v, torch.Tensor) and v.dim() == 0) for v in values
    )
    return values if fine else None


def _array(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make an array of tensors, of which NumPy asks each for its own: ``np.asarray(t)`` is ``t.numpy()``, and ``np.array(t)`` a copy."""
    copies = callee not in _IN_MEMORY_OF and "copy" not in kwargs

    def of(t: torch.Tensor) -> Any:
        if callee is np.ascontiguousarray:
            t = (t if t.dim() else t[None]).contiguous()
        return t.clone().numpy() if copies else t.numpy()

    if callee in _ALIKE and len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
        made = of(args[0])
        if isinstance(made, RunTimeArray):
            return made
    args = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t if as_constant(t) is None else of(t), args)
    return _numpy(callee, args, kwargs)


_IN_MEMORY_OF = (np.asarray, np.asanyarray, np.ascontiguousarray)
#: What gives an array of the very elements of the one tensor that it is given.
_ALIKE = (np.array, *_IN_MEMORY_OF)


def _numpy(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    check_numpy(callee, args, kwargs)
    out = kwargs.get("out")
    for x in (*(out if isinstance(out, tuple) else (out,)), *(args[callee.nin :] if isinstance(callee, np.ufunc) else ())):
        current().heap.changing(x)
    return callee(*args, **kwargs)


def check_numpy(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse to call a function of NumPy's on what is known only at run time."""
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    if not plain(tuple(x for x in leaves if not isinstance(x, torch.Tensor) or isinstance(x, StagedTensor))):
        raise UnsupportedError(
            f"numpy's {callee.__name__}() is called on a value known only at run time",
            current().origin(),
            "use the torch function of the same name; for a single number, .item()",
        )


def _input(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise UnsupportedError(
        f"{callee.__name__}() in the forward: a compiled network does no input or output",
        current().origin(),
        "pass the data in as an input",
    )


def _iter(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 2 and has_effects(args[0]):
        raise UnsupportedError(f"iter() calls {args[0].__name__}() as it is", current().origin(), "call it in a loop of your own")
    return ITERATORS[iter](callee, args, kwargs)


def _setattr(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    obj, name, value = args
    attributes.setattr(value, obj, name)


def _list(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for a in args:
        if isinstance(a, Poison):
            use(a)
    if args and issubclass(type(args[0]), KeptList) and callee in (list, tuple):
        return program().state.lists.copied(args[0], callee)
    made = callee(*args, **kwargs)
    return current().heap.born(made) if isinstance(made, MUTABLE) else made


def _named_attribute(text: Text, callee: Any, obj: Any, *rest: Any) -> Any:
    """Return the part of a module that a text with a number known only at run time names."""
    plain = isinstance(obj, torch.nn.Module) and type(obj).__getattr__ is torch.nn.Module.__getattr__
    if callee is not getattr or len(rest) != 1 or not plain or type(obj).__getattribute__ is not object.__getattribute__:
        use(text)
    own = vars(obj)
    parts = [*own, *own["_modules"], *own["_parameters"], *own["_buffers"]]
    if matching(dir(type(obj)), text):  # it may be a property
        use(text)
    return named(parts, text, lambda name: _attributes(getattr, (obj, name), {}), AttributeError)


def _attributes(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``hasattr``, ``getattr``, ``vars`` and ``dir``: an attribute that is set on one path only must not be seen."""
    if len(args) > 1 and is_name(args[1]):
        return _named_attribute(args[1], callee, *args)
    if isinstance(args[0], Poison) and not isinstance(args[0], Chosen):
        use(args[0])
    if callee is getattr and len(args) > 1 and args[1] == "__code__":
        function = args[0].__func__ if isinstance(args[0], types.MethodType) else args[0]
        return code_of(function) if isinstance(function, types.FunctionType) else attributes.getattr(callee, *args)
    space = {} if isinstance(args[0], Poison) else {**(space_of(args[0]) or {}), **dict(in_slots(args[0]))}
    for value in space.values() if callee in (vars, dir) else [space.get(args[1])] if len(args) > 1 else []:
        if isinstance(value, Poison) and is_unbound(value):
            use(value)
    if (callee is getattr and len(args) > 1 and args[1] == "__dict__") or (callee is vars and args):
        space = callee(*args, **kwargs)
        return current().heap.is_namespace(space, args[0]) if type(space) is dict else space
    return attributes.getattr(callee, *args)


def _id(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``id`` and ``hash``: those of a tensor say which one it is, and no more."""
    if isinstance(args[0], Poison):
        use(args[0])
    settle(args[0], f"the {callee.__name__}")
    return ObjectId(args[0]) if isinstance(args[0], torch.Tensor) else callee(*args)


def _kind_of_function(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``inspect.isgeneratorfunction`` and its kind: while a model is staged the code of a function is not what was written."""
    asked = args[0] if args else next(iter(kwargs.values()))
    while isinstance(asked, (types.MethodType, functools.partial)):
        asked = asked.__func__ if isinstance(asked, types.MethodType) else asked.func
    if not isinstance(asked, types.FunctionType):
        return callee(*args, **kwargs)
    written = with_code(asked, code_of(asked))
    vars(written).update(vars(asked))
    return callee(written)


TABLE: dict[Any, Substitute] = {
    **ITERATORS,
    iter: _iter,
    **TORCH_OPERATORS,
    int: conversion("int"),
    float: conversion("float"),
    bool: conversion("bool"),
    complex: make_complex,
    range: _range,
    abs: _abs,
    min: _consumes(_extremum(False)),
    max: _consumes(_extremum(True)),
    any: _consumes(_quantifier("or")),
    all: _consumes(_quantifier("and")),
    **{callee: _consumes(substitute) for callee, substitute in SUMS.items()},
    pow: _pow,
    round: _round,
    repr: _repr,
    callable: _callable,
    isinstance: _isinstance,
    type: _type,
    len: length,
    id: _id,
    hash: _id,
    **dict.fromkeys((inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction), _kind_of_function),
    setattr: _setattr,
    hasattr: _attributes,
    getattr: _attributes,
    vars: _attributes,
    dir: _attributes,
    delattr: lambda callee, args, kwargs: attributes.delattr(*args),
    list: _consumes(_list),
    tuple: _consumes(_list),
    dict: _consumes(_list),
    set: _consumes(_list),
    print: substitute_print,
    **MESSAGES,
    **seeds.TABLE,
    input: _input,
    builtins.__import__: import_by_call,
    importlib.import_module: import_by_call,
    builtins.open: _input,
    np.argmax: _arg_extremum(True),
    np.argmin: _arg_extremum(False),
    np.max: _np_extremum(True),
    np.min: _np_extremum(False),
    np.amax: _np_extremum(True),
    np.amin: _np_extremum(False),
    **dict.fromkeys((np.array, np.asarray, np.asanyarray, np.ascontiguousarray, np.stack, np.concatenate, np.where, np.sort), _array),
    **dict.fromkeys(
        (
            np.sum,
            np.mean,
            np.exp,
            np.log,
            np.abs,
            np.sqrt,
            np.maximum,
            np.minimum,
            np.argsort,
        ),
        _numpy,
    ),
    **dict.fromkeys(
        (
            *MATH_FUNCTIONS,
            *MATH_ROUNDING,
            math.isnan,
            math.isinf,
            math.isfinite,
            math.fabs,
            math.log2,
            math.log10,
            math.pow,
            math.tan,
        ),
        _math,
    ),
    **clocks.TABLE,
    **FRAMES,
    torch.from_numpy: _from_numpy,
    torch.asarray: _from_numpy,
}
#: Only these are looked up: a user's own object may have a ``__hash__`` that does anything.
_KINDS = frozenset([*map(type, TABLE), types.MethodType])
