# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Break an operator into operators that have a converter, by functions in PyTorch: ours, or PyTorch's own decompositions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dycl_tvm.compile.complex import COMPLEX, Pair
from dycl_tvm.compile.ops.context import TORCH_DTYPES
from dycl_tvm.compile.registry import registers
from dycl_tvm.hcfg.nodes import Value, map_operands
from dycl_tvm.hcfg.types import PARTS, TensorType

#: Operators that are computed by others, by name (``aten.add.Tensor``): functions in PyTorch that are traced, without branches on values.
DECOMPOSITIONS: dict[str, Callable[..., Any]] = {}
#: Registers what ATen overloads are made of; the function takes the arguments of the schema.
decomposition = registers(DECOMPOSITIONS)


def overload(name: str) -> Any:
    """Return the torch operator of a name such as ``aten.add.Tensor``.

    Raises
    ------
    AttributeError
        If this version of PyTorch has none.
    """
    namespace, packet, which = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), which)


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Return what is registered, of the operators that this version of PyTorch has: releases add some and take others away."""
    found = {}
    for name, function in DECOMPOSITIONS.items():
        try:
            found[overload(name)] = function
        except AttributeError:
            continue
    return found


def name_of(op: Any) -> str:
    """Return the name of a torch operator as HCFGs write it."""
    return str(op)


class Decomposer:
    """Traces single operators; results are kept by operator and arguments.

    Parameters
    ----------
    known : collection of str
        The operators that need no decomposition.
    """

    def __init__(self, known: Collection[str]) -> None:
        self._table: Any = {op: fn for op, fn in decomposition_table.items() if name_of(op) not in known}
        own = _decompositions()
        self._table |= own
        every: Any = {**decomposition_table, **own}
        #: For what has complex tensors: whether an operator is known depends on what it is given.
        self._complex_table = {op: _unless_known(op, fn, known) for op, fn in every.items()}
        self._kept: dict[Any, torch.fx.GraphModule] = {}

    def trace(self, op: str, args: Any, kwargs: Any, operands: list[Value], in_pairs: bool = False) -> torch.fx.GraphModule:
        """Return a graph of simpler operators; its placeholders are ``operands``, its output the flat results.

        With ``in_pairs`` a complex operand is two, its parts, and a complex result a tuple of two, as the operator's function has them.
        """
        number = {id(v): k for k, v in enumerate(operands)}
        key = (
            op,
            repr(map_operands(args, lambda v: _Slot(number[id(v)], v.type))),
            repr(map_operands(kwargs, lambda v: _Slot(number[id(v)], v.type))),
            in_pairs,
        )
        if key not in self._kept:
            self._kept[key] = self._trace(op, args, kwargs, operands, number, in_pairs)
        return self._kept[key]

    def _trace(
        self, op: str, args: Any, kwargs: Any, operands: list[Value], number: dict[int, int], in_pairs: bool
    ) -> torch.fx.GraphModule:
        target = COMPLEX[op] if in_pairs else DECOMPOSITIONS.get(op) or overload(op)

        def run(*flat: Any) -> list[Any]:
            rest = iter(flat)
            tensors = [Pair(next(rest), next(rest)) if in_pairs and v.type.is_complex else next(rest) for v in operands]  # type: ignore[union-attr]
            result = target(*map_operands(args, lambda v: tensors[number[id(v)]]), **map_operands(kwargs, lambda v: tensors[number[id(v)]]))
            results = list(result) if isinstance(result, (tuple, list)) else [result]
            return [(r.re, r.im) if isinstance(r, Pair) else r for r in results]

        with warnings.catch_warnings(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            warnings.simplefilter("ignore")
            fakes = []
            for v in operands:
                assert isinstance(v.type, TensorType)
                dtype = PARTS[v.type.dtype] if in_pairs and v.type.is_complex else v.type.dtype
                fakes += [torch.empty(v.type.shape, dtype=TORCH_DTYPES[dtype]) for _ in range(1 + (dtype != v.type.dtype))]
            del mode
            is_complex = not in_pairs and any(f.is_complex() for f in fakes)
            table = self._complex_table if is_complex else self._table
            graph: torch.fx.GraphModule = make_fx(run, decomposition_table=table, _allow_non_fake_inputs=True)(*fakes)
        return graph


def _unless_known(op: Any, fn: Callable[..., Any], known: Collection[str]) -> Callable[..., Any]:
    """Return a decomposition that leaves an operator as it is where it needs none."""
    name = name_of(op)

    def decompose(*args: Any, **kwargs: Any) -> Any:
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        is_complex = any(_is_complex(x) for x in leaves)
        return NotImplemented if name in (COMPLEX if is_complex else known) else fn(*args, **kwargs)

    return decompose


def _is_complex(x: Any) -> bool:
    return x.is_complex() if isinstance(x, torch.Tensor) else isinstance(x, torch.dtype) and x.is_complex


class _Slot:
    """Stands for an operand in the key under which a trace is kept."""

    def __init__(self, number: int, type_: Any) -> None:
        self.number, self.type = number, type_

    def __repr__(self) -> str:
        return f"%{self.number}:{self.type}"
