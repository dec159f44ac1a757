# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The structure of what a forward returns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.signature import record_fields
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.tensors import read
from dycl_tvm.hcfg.nodes import Operand, Origin, Value
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
    if isinstance(x, torch.Tensor):
        return leaves.add(read(x), "tensor")
    if scalars.is_symbolic(x):
        scalars.refuse_mixed(scalars.mixed_of(x), "returned", origin)
        operand = scalars.operand_of(x)
        assert isinstance(operand, Value)
        return leaves.add(operand, scalars._kind(operand))
    if x is None or type(x) in (bool, int, float, str):
        return {"const": x}
    if isinstance(x, np.generic) and isinstance(x.item(), (bool, int, float)):
        return {"const": x.item()}
    fields = record_fields(x)
    if fields is not None:
        return {
            "namedtuple": type(x).__name__,
            "fields": fields,
            "items": [structure_of(getattr(x, f), leaves, origin, view) for f in fields],
        }
    if isinstance(x, tuple):
        return {"tuple": [structure_of(i, leaves, origin, view) for i in x]}
    if isinstance(x, list):
        return {"list": [structure_of(i, leaves, origin, view) for i in x]}
    if type(x) in (dict, OrderedDict):
        for key in x:
            if key is not None and type(key) not in (str, int, bool, float):
                raise UnsupportedError(
                    f"a dict with a key of type {type(key).__name__} is returned", origin, "use strings or numbers as keys"
                )
        return {"dict": [[k, structure_of(v, leaves, origin, view)] for k, v in x.items()]}
    raise UnsupportedError(
        f"a {type(x).__name__} is returned",
        origin,
        "return tensors, numbers, strings, None, and tuples, lists, dicts and named tuples of them",
    )
