# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The structure of what a forward returns."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NoReturn, cast

import numpy as np
import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.signature import is_plain_object, name_of_constant, record_fields
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.arrays import ARRAY_TYPES, RunTimeArray
from dycl_tvm.frontend.trace.values.grown import Grown, number
from dycl_tvm.frontend.trace.values.grown_math import at_front
from dycl_tvm.frontend.trace.values.tensors import read
from dycl_tvm.hcfg.nodes import Operand, Origin, Value
from dycl_tvm.runtime.classes import LOADED, base_of, fields_of, full_name, name_of
from dycl_tvm.runtime.structure import Structure


class Leaves:
    """Numbers the leaves of a structure and keeps their operands."""

    def __init__(self) -> None:
        self.operands: list[Operand] = []

    def add(self, operand: Operand, kind: str) -> Structure:
        """Add a leaf and return its description."""
        self.operands.append(operand)
        return {"leaf": len(self.operands) - 1, "type": kind}


def structure_of(x: Any, leaves: Leaves, origin: Origin | None, view: Callable[[Any], Any] | None = None) -> Structure:
    """Describe a returned value; its tensors and run-time numbers become leaves. ``view`` may show each part as another.

    Raises
    ------
    UnsupportedError
        For types that have no description.
    """
    x = x if view is None else view(x)
    if isinstance(x, Poison):
        use(x)
    if isinstance(x, Grown):
        x = x.settled()
    if scalars.is_symbolic(x) and type(scalars.length_of(x)) is int:
        x = scalars.length_of(x)
    if isinstance(x, Grown):
        made = leaves.add(read(at_front(x)), "tensor")
        dims, lengths = list(x.lengths), [structure_of(number(n), leaves, origin) for n in x.lengths.values()]
        return {**made, "along": dims[0], "length": lengths[0]} if len(dims) == 1 else {**made, "along": dims, "length": lengths}
    if isinstance(x, torch.Tensor):
        return leaves.add(read(x), "tensor")
    if scalars.is_symbolic(x):
        scalars.refuse_mixed(scalars.mixed_of(x), "returned", origin)
        operand = scalars.operand_of(x)
        assert isinstance(operand, Value)
        return leaves.add(operand, scalars._kind(operand))
    if x is None or type(x) in (bool, int, float, str):
        return {"const": x}
    if type(x) is RunTimeArray:
        return {**leaves.add(read(x.tensor), "tensor"), "numpy": "number" if x.is_number else "array"}
    if type(x) is np.ndarray and x.dtype in ARRAY_TYPES:
        return {**leaves.add(read(torch.tensor(x.copy())), "tensor"), "numpy": "array"}
    if isinstance(x, np.generic) and isinstance(x.item(), (bool, int, float)):
        return {"const": x.item(), "numpy": x.dtype.name}

    named = name_of_constant(x)
    if named is not None:
        return {"const": x.__qualname__ if isinstance(x, type) else str(x), "name": named}

    def inner(item: Any) -> Structure:
        return structure_of(item, leaves, origin, view)

    fields = record_fields(x) or (fields_of(type(x)) if isinstance(x, tuple) else None)
    if fields is not None:
        described: Structure = {"namedtuple": type(x).__name__, "fields": [*fields], "items": [inner(getattr(x, f)) for f in fields]}
        if isinstance(x, (list, deque)):
            _refuse(x, origin)
        if not isinstance(x, tuple):
            described["keys"] = _keys_of(x, [*fields], origin) if isinstance(x, dict) else []
    elif isinstance(x, tuple):
        described = {"tuple": [inner(i) for i in tuple.__iter__(x)]}
    elif isinstance(x, list):
        described = {"list": [inner(i) for i in list.__iter__(x)]}
    elif isinstance(x, deque):
        described = {"list": [inner(i) for i in deque.__iter__(x)], "maxlen": x.maxlen}
    elif isinstance(x, dict):
        pairs = OrderedDict.items(x) if isinstance(x, OrderedDict) else dict.items(x)
        for key, _ in pairs:
            if key is not None and type(key) not in (str, int, bool, float):
                raise UnsupportedError(
                    f"a dict with a key of type {type(key).__name__} is returned", origin, "use strings or numbers as keys"
                )
        described = {"dict": [[k, inner(v)] for k, v in pairs]}
        if isinstance(x, defaultdict) and x.default_factory is not None:
            described["factory"] = _factory_of(x, origin)
    elif isinstance(x, (set, frozenset)):
        described = {"list": [inner(i) for i in _in_order(x, origin)]}
    elif is_plain_object(cast(Any, type(x))):
        described = {"object": type(x).__name__}
    else:
        _refuse(x, origin)
    if type(x) in (tuple, list, dict):
        return described
    return _with_class(x, described, inner, origin)


def _in_order(x: set[Any] | frozenset[Any], origin: Origin | None) -> list[Any]:
    """Return what is in a set, in an order that is the same in every build."""
    items = list(set.__iter__(x) if isinstance(x, set) else frozenset.__iter__(x))
    if any(isinstance(i, torch.Tensor) or (len(items) > 1 and i is not None and type(i) not in (bool, int, float, str)) for i in items):
        _refuse(x, origin)
    return sorted(items, key=lambda i: (type(i).__name__, repr(i))) if len(items) > 1 else items


def _factory_of(x: defaultdict[Any, Any], origin: Origin | None) -> str:
    """Return the name of the class that makes what is missing."""
    made = name_of(x.default_factory) if isinstance(x.default_factory, type) else None
    if made is None:
        raise UnsupportedError(
            "a defaultdict is returned whose missing items a function makes",
            origin,
            "return dict(d), or a defaultdict of a class that can be found by its name, such as list or int",
        )
    return made


def _with_class(x: Any, described: Structure, inner: Callable[[Any], Structure], origin: Origin | None) -> Structure:
    """Add to a description the class of the object, and what other attributes it has."""
    name = name_of(type(x))
    if name is None and "namedtuple" in described and LOADED.find(full_name(type(x))) is None:
        described["class"] = full_name(type(x))  # who loads the artefact may give the class
    elif name is not None:
        described["class"] = name
    elif "namedtuple" not in described:
        _refuse(x, origin)
    base = base_of(type(x))
    if base not in ((object, tuple) if "namedtuple" in described else (object, tuple, list, dict)):
        described["base"] = full_name(base)
    space = object.__getattribute__(x, "__dict__") if "object" in described else getattr(x, "__dict__", {})
    others = {k: v for k, v in space.items() if k not in described.get("fields", ())}
    if others and name is None:
        raise UnsupportedError(
            f"a {type(x).__name__} with the attribute `{next(iter(others))}`, which is no field of it, is returned",
            origin,
            "define the class in a module, so that it can be found by its name",
        )
    if others:
        try:
            described["attributes"] = [[k, inner(v)] for k, v in others.items()]
        except RecursionError:
            raise UnsupportedError(
                f"a {type(x).__name__} that holds itself, by way of others, is returned", origin, "return what is needed of it"
            ) from None
    return described


def _keys_of(x: dict[Any, Any], fields: list[str], origin: Origin | None) -> list[str]:
    """Return which fields of a dataclass that is a dict too are its keys."""
    keys = list(OrderedDict.keys(x) if isinstance(x, OrderedDict) else dict.keys(x))
    if not all(k in fields and dict.__getitem__(x, k) is getattr(x, k) for k in keys):
        _refuse(x, origin)
    return keys


def _refuse(x: Any, origin: Origin | None) -> NoReturn:
    raise UnsupportedError(
        f"a {type(x).__name__} is returned",
        origin,
        "return tensors, numbers, strings, None, and tuples, lists, dicts and named tuples of them; sets of numbers and strings",
    )
