# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Dynamic dimensions of an exported program: the values given for them, checked against what the program says about them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import sympy  # type: ignore[import-untyped]
import torch
import torch.utils._pytree as pytree

from dycl_tvm.errors import UsageError
from dycl_tvm.hcfg.sizes import Dim, InputSize


def specialised(
    forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any], input_shapes: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the example inputs with the shapes that ``input_shapes`` gives; ``forward`` has the signature of the program."""
    left = dict(input_shapes)
    known: list[str] = []

    def leaf(name: str, value: Any) -> Any:
        known.append(name)
        if name not in left:
            return value
        if not isinstance(value, torch.Tensor):
            raise UsageError(f"input_shapes names {name!r}, which is a {type(value).__name__}, not a tensor")
        shape = tuple(left.pop(name))
        return value if shape == tuple(value.shape) else torch.zeros(shape, dtype=value.dtype)

    made = by_parameter(forward, args, kwargs, leaf)
    if left:
        raise UsageError(f"input_shapes names {', '.join(map(repr, left))}; the program has the inputs {', '.join(known)}")
    call = inspect.BoundArguments(inspect.signature(forward), cast(Any, made))
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
            known = f"{allowed.lower} to {allowed.upper}" if allowed.upper < _LARGEST else f"{allowed.lower} or more"
            raise UsageError(
                f"{where} may be {known} in this program, got {got}; give sizes that it was exported for, or export it for more"
            )


def symbols_of(meta: Any) -> set[Any]:
    """Return the symbols of the sizes of an input, of which ``meta`` is what the program knows."""
    shape: Sequence[Any] = meta.shape if isinstance(meta, torch.Tensor) else ()
    return {s for n in shape if isinstance(n, torch.SymInt) for s in n.node.expr.free_symbols}


def open_dimensions(
    name: str, meta: Any, ranges: Mapping[Any, Any], settled: Collection[Any] | None, max_length: int | None
) -> dict[int, Dim] | None:
    """Return the dimensions of an input that a program leaves open, as sizes up to the bounds that it has; None if there are none.

    Parameters
    ----------
    name : str
        That of the forward's parameter, and the way to the leaf within it.
    meta
        What the program knows of the input.
    ranges : mapping
        From symbols to the ranges of their values.
    settled : collection, optional
        Symbols that have their value in the example. None: so has each that has no largest one.
    max_length : int, optional
        The largest size of those that have none.

    Raises
    ------
    UsageError
        If a dimension has no largest size; says where to give one.
    """
    if not isinstance(meta, torch.Tensor):
        return None
    found = {k: _open(n, f"dimension {k} of the input {name}", ranges, settled, max_length) for k, n in enumerate(meta.shape)}
    return {k: size for k, size in found.items() if size is not None} or None


def _open(n: Any, where: str, ranges: Mapping[Any, Any], settled: Collection[Any] | None, max_length: int | None) -> Dim | None:
    expr = n.node.expr if isinstance(n, torch.SymInt) else None
    if expr is None or len(expr.free_symbols) != 1:
        return None
    (symbol,) = expr.free_symbols
    factor, constant = expr.coeff(symbol, 1), expr.coeff(symbol, 0)
    if expr != factor * symbol + constant or not factor.is_integer or factor < 1 or symbol not in ranges or symbol in (settled or ()):
        return None
    least, most, size = int(ranges[symbol].lower), ranges[symbol].upper, _written_name(symbol, n.node.shape_env)
    if most > _LARGEST:
        if settled is None:
            return None
        if max_length is None:
            raise UsageError(
                f"{where} has no largest size, for which memory is planned: give one in the export (torch.export.Dim({size!r}, max=512)), "
                f"as dynamic_shapes (dycl_tvm.Dim({size!r}, min={least}, max=512)), or for all of them as max_length=512; "
                "or fix it by input_shapes"
            )
        most = (max_length - constant) // factor
    return Dim(size, min=least, max=int(most)) * int(factor) + int(constant)


#: A larger bound is none: the exporter writes those of its integers where there is none.
_LARGEST = 1 << 40


def _written_name(symbol: Any, environment: Any) -> str:
    """Return the name that the user gave to a size in the export; that of the symbol if it is not known, as of a program from a file."""
    shown = getattr(environment, "source_name_to_debug_name", {})
    for source in getattr(environment, "var_to_sources", {}).get(symbol, ()):
        name = shown.get(source.name, getattr(source, "source_name", ""))
        if name.isidentifier():
            return str(name)
    return str(symbol)


def by_parameter(forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fill: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return ``fill(name, leaf)`` of every leaf, nested as the inputs are, by the forward's parameters."""
    bound = inspect.signature(forward).bind(*args, **kwargs)
    return cast(dict[str, Any], pytree.tree_map_with_path(lambda path, leaf: fill(_name(path), leaf), dict(bound.arguments)))


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
