# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is known of ATen's operators that a program runs: what they write, what their results may hold, what they take."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.verify.elements import Bounds, result

#: Multiplications and additions, and elements, of which an operator computes so many in a second; they only have to be of the right order.
PRODUCTS_PER_SECOND, ELEMENTS_PER_SECOND = 3e10, 1e9
#: What a convolution takes however small it is.
_CONVOLUTION = 2e-4
#: Operators that use nothing of a tensor but its shape and type.
_SHAPE_ONLY = frozenset(
    {"zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided"}
)
#: Operators whose result numbers places along a dimension: which output, and which argument says the dimension.
_PLACES = {"argmax": 0, "argmin": 0, "max": 1, "min": 1, "topk": 1, "sort": 1, "argsort": 0}
#: Operators that count, of bools and of anything.
_COUNTS = ("sum", "count_nonzero")
#: Operators of integers and bools of which one operand may decide the result: by which element.
_DECIDED_BY = {"bitwise_and": 0, "logical_and": 0, "mul": 0, "bitwise_or": -1, "logical_or": 1}
#: Arguments that operators change although their schemas do not say so.
_UNDECLARED = dict.fromkeys(("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), ("running_mean", "running_var"))
#: Operators that give several parts of their first argument.
_SPLITS = ("unbind", "split", "split_with_sizes")


class Operator:
    """An overload of an operator.

    Attributes
    ----------
    name : str
        Without the underscore of an operator in place.
    mutable : bool
        Whether its schema says that it writes to an argument.
    writes : bool
        Whether it does.
    view : bool
        Whether a result lies in the memory of an argument.
    decided_by : int or None
        An element of an integer operand that says what the result is, whatever the other operand holds.
    shape_only, random : bool
        Whether it uses nothing of a tensor but shape and type; whether it draws random numbers.
    """

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.name = func._opname.rstrip("_")
        self.overload = func._overloadname
        self.mutable: bool = schema.is_mutable
        self.view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        undeclared = _UNDECLARED.get(func._opname, ())
        self._written = [
            (k, a.name)
            for k, a in enumerate(schema.arguments)
            if (a.alias_info is not None and a.alias_info.is_write) or a.name in undeclared
        ]
        self.writes = self.mutable or func._opname in _UNDECLARED
        self.shape_only = self.name in _SHAPE_ONLY
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.decided_by = _DECIDED_BY.get(self.name)
        self._terms = _TERMS.get(self.name)

    def written(self, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """Return the tensors to which a call writes."""
        found: list[torch.Tensor] = []
        for k, name in self._written:
            tensors_in(args[k] if k < len(args) else kwargs.get(name), found)
        return found

    def bounds(self, args: Any, kwargs: Any, k: int, of: Callable[[Any], Bounds | None], dtype: torch.dtype) -> Bounds | None:
        """Return bounds of the elements of the ``k``-th integer result that hold whatever the inputs are.

        ``of`` gives those of an argument.
        """
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is None:
            return result(self, args, kwargs, of, dtype) if k == 0 else None
        name = self.name
        if _PLACES.get(name) == k and (k == 1 or name in ("argmax", "argmin", "argsort")) and (len(args) > 1 or name.startswith("arg")):
            dim = args[1] if len(args) > 1 and name != "topk" else (args[2] if len(args) > 2 else -1)
            if name in ("argmax", "argmin") and (len(args) < 2 or dim is None):
                return 0, first.numel() - 1
            dim = dim if isinstance(dim, int) and not isinstance(dim, bool) else -1
            return 0, (first.shape[dim] if first.dim() else 1) - 1
        if name == "nonzero":
            return 0, max(*first.shape, 1) - 1
        known = of(first)
        if name in _COUNTS and k == 0:
            dims = args[1] if len(args) > 1 and args[1] is not None else []
            sizes = [first.shape[d] for d in ([dims] if isinstance(dims, int) else dims)] if first.dim() else []
            count = math.prod(sizes) if sizes else first.numel()
            return (0, count) if name != "sum" else None if known is None else (min(known[0], 0) * count, max(known[1], 0) * count)
        return result(self, args, kwargs, of, dtype) if k == 0 or name in _SPLITS else None

    def seconds(self, args: Any, result: Any) -> float:
        """Return an estimate of what its arithmetic takes: the same on every machine."""
        if not isinstance(result, torch.Tensor):
            result = result[0] if isinstance(result, (tuple, list)) and result and isinstance(result[0], torch.Tensor) else None
            if result is None:
                return 0.0
        count = result.numel()
        if self._terms is None:
            return count / ELEMENTS_PER_SECOND
        return count * self._terms(args) / PRODUCTS_PER_SECOND + (_CONVOLUTION if self._terms is _of_convolution else 0.0)


@functools.cache
def operator_of(func: Any) -> Operator:
    """Return what is known of an overload."""
    return Operator(func)


def tensors_in(node: Any, found: list[torch.Tensor]) -> None:
    """Collect the tensors of an argument or a result."""
    if isinstance(node, torch.Tensor):
        found.append(node)
    elif isinstance(node, (list, tuple)):
        for item in node:
            tensors_in(item, found)
    elif isinstance(node, dict):
        for item in node.values():
            tensors_in(item, found)


def _of_convolution(args: Any) -> float:
    weight = args[1]
    return float(weight[0].numel()) if not (len(args) > 6 and args[6]) else float(weight.numel()) / max(1, weight.shape[1])


#: How many terms the sums of products have.
_TERMS: dict[str, Callable[[Any], float]] = {
    "mm": lambda args: args[0].shape[-1],
    "bmm": lambda args: args[0].shape[-1],
    "addmm": lambda args: args[1].shape[-1],
    "baddbmm": lambda args: args[1].shape[-1],
    "mv": lambda args: args[0].shape[-1],
    "convolution": _of_convolution,
    "_convolution": _of_convolution,
    "_scaled_dot_product_flash_attention_for_cpu": lambda args: 2 * args[1].shape[-2],
}
