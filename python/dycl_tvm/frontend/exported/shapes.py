# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Dynamic dimensions of an exported program: the values given for them, checked against what the program says about them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
import torch.utils._pytree as pytree

from dycl_tvm.errors import UsageError
from dycl_tvm.hcfg.sizes import InputSize


def specialised(
    forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any], input_shapes: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the example inputs with the shapes that ``input_shapes`` gives; ``forward`` has the signature of the program."""
    bound = inspect.signature(forward).bind(*args, **kwargs)
    left = dict(input_shapes)

    def leaf(path: Any, value: Any) -> Any:
        name = _name(path)
        if name not in left:
            return value
        if not isinstance(value, torch.Tensor):
            raise UsageError(f"input_shapes names {name!r}, which is a {type(value).__name__}, not a tensor")
        shape = tuple(left.pop(name))
        return value if shape == tuple(value.shape) else torch.zeros(shape, dtype=value.dtype)

    made = pytree.tree_map_with_path(leaf, dict(bound.arguments))
    if left:
        known = [_name(p) for p, _ in pytree.tree_flatten_with_path(dict(bound.arguments))[0]]
        raise UsageError(f"input_shapes names {', '.join(map(repr, left))}; the program has the inputs {', '.join(known)}")
    call = inspect.BoundArguments(bound.signature, made)
    return call.args, call.kwargs


def check_shapes(names: Sequence[str], metas: Sequence[Any], leaves: Sequence[Any], ranges: Mapping[Any, Any]) -> None:
    """Check inputs against the tensors and numbers that a program was exported for.

    Parameters
    ----------
    names : sequence of str
        Of the inputs, for messages.
    metas : sequence
        What the program knows of each input: a fake tensor, a symbolic or a plain number, None.
    leaves : sequence
        What is given for each.
    ranges : mapping
        From symbols to the ranges of their values.

    Raises
    ------
    UsageError
        Names the input, and says what was expected.
    """
    bound: dict[Any, tuple[int, str]] = {}
    derived: list[tuple[Any, int, str]] = []
    for name, meta, leaf in zip(names, metas, leaves):
        if isinstance(meta, torch.Tensor):
            if not isinstance(leaf, torch.Tensor) or leaf.dtype != meta.dtype or leaf.dim() != meta.dim():
                found = f"{leaf.dtype} of rank {leaf.dim()}" if isinstance(leaf, torch.Tensor) else f"a {type(leaf).__name__}"
                raise UsageError(f"the input {name} is a tensor of {meta.dtype} and rank {meta.dim()}, got {found}")
            for k, (want, got) in enumerate(zip(meta.shape, leaf.shape)):
                _bind(want, int(got), f"dimension {k} of the input {name}", bound, derived)
        elif isinstance(meta, torch.SymInt) and isinstance(leaf, int):
            _bind(meta, leaf, f"the input {name}", bound, derived)
    for expr, got, where in derived:
        if len(expr.free_symbols - set(bound)) == 1 and len(expr.free_symbols) == 1:  # no dimension is the size itself
            solved = sympy.solve(expr - got)
            if len(solved) != 1 or not solved[0].is_integer:
                raise UsageError(f"{where} must be {expr} of a whole number, got {got}")
            bound[next(iter(expr.free_symbols))] = (int(solved[0]), where)
    values = {symbol: value for symbol, (value, _) in bound.items()}
    for expr, got, where in derived:
        value = expr.subs(values)
        if value.free_symbols:
            continue
        if int(value) != got:
            raise UsageError(f"{where} must be {expr} = {value}, got {got}")
    for symbol, (got, where) in bound.items():
        allowed = ranges.get(symbol)
        if allowed is not None and not (allowed.lower <= got <= allowed.upper):
            raise UsageError(f"{where} may be {allowed.lower} to {allowed.upper} in this program, got {got}")


def check_sizes(
    sizes: Sequence[InputSize], names: Sequence[str], metas: Sequence[Any], leaves: Sequence[Any], ranges: Mapping[Any, Any]
) -> None:
    """Check that a program was exported for all sizes that the callers of its artefact may decide.

    Raises
    ------
    UsageError
        Names the input, and says what was expected.
    """
    numbers = {id(t): k for k, t in enumerate(t for t in leaves if isinstance(t, torch.Tensor))}
    for size in sizes:
        for n in {size.least, size.most, *range(size.least, size.most, max(1, (size.most - size.least) // 64))}:
            extents = {(d.input, d.dim): d.at(n) for d in size.dims}
            given = [
                torch.empty([extents.get((numbers[id(t)], d), e) for d, e in enumerate(t.shape)], dtype=t.dtype, device="meta")
                if isinstance(t, torch.Tensor)
                else t
                for t in leaves
            ]
            check_shapes(names, metas, given, ranges)


def _bind(want: Any, got: int, where: str, bound: dict[Any, tuple[int, str]], derived: list[tuple[Any, int, str]]) -> None:
    expr = want.node.expr if isinstance(want, torch.SymInt) else sympy.Integer(int(want))
    if expr.is_Symbol:
        known = bound.setdefault(expr, (got, where))
        if known[0] != got:
            raise UsageError(f"{where} must be that of {known[1]} ({known[0]}), got {got}")
    elif not expr.free_symbols:
        if int(expr) != got:
            raise UsageError(f"{where} was fixed to {expr} when the program was exported, got {got}; export it with that dimension dynamic")
    else:
        derived.append((expr, got, where))


def _name(path: Any) -> str:
    """Return the name of an input: the parameter of the forward, and the way to the leaf within it."""
    return str(path[0].key) + pytree.keystr(path[1:])
