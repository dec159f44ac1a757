# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Reading unscheduled PrimFuncs: the tensor expressions that LegalizeOps made loop nests of, as expressions again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad, Var

from dycl_tvm.backends.tir_cpu.words.workload import Tensor

#: Nodes of one expression: inlining repeats what is read several times, and must end.
_MAX_NODES = 4000


@dataclass(frozen=True)
class Stage:
    """One loop nest: ``out[axes] = value``, or a reduction of ``value`` (which reads ``out[axes]``) from ``init``.

    Attributes
    ----------
    out : tvm.ir.Var
        The buffer written, at ``axes``.
    axes, reduced : tuple of Var
        Spatial axes, one a dimension of ``out``, and reduction axes.
    extents, windows : tuple of int
        Their extents.
    value : PrimExpr
    init : PrimExpr or None
        None if there are no reduction axes.
    """

    out: Any
    axes: tuple[Any, ...]
    extents: tuple[int, ...]
    reduced: tuple[Any, ...]
    windows: tuple[int, ...]
    value: Any
    init: Any | None


def read_stages(fn: tirx.PrimFunc) -> list[Stage] | None:
    """Return the loop nests of an unscheduled function in order, or None if it has anything but such nests with static extents."""
    nests = read_nests(fn)
    stages = None if nests is None else [read_stage(nest) for nest in nests]
    return None if stages is None or any(s is None for s in stages) else [s for s in stages if s is not None]


def read_nests(fn: tirx.PrimFunc) -> list[Any] | None:
    """Return the statements of an unscheduled function in order, or None if it is not one block around them."""
    root = fn.body
    if not hasattr(root, "block") or root.block.iter_vars or root.block.init is not None:
        return None
    body = root.block.body
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def read_stage(nest: Any, store: Any = None, init: Any = None) -> Stage | None:
    """Return a loop nest, or None if it is none; ``store`` and ``init`` stand for the block's own statements."""
    loops = []
    while isinstance(nest, tirx.For):
        if int(nest.kind) != 0 or not _is_number(nest.min, 0) or not isinstance(nest.extent, tirx.IntImm):
            return None
        loops.append(nest.loop_var)
        nest = nest.body
    if not hasattr(nest, "block") or not _is_number(nest.predicate, 1):
        return None
    block = nest.block
    store, init = store or block.body, init or block.init
    if not isinstance(store, tirx.BufferStore):
        return None
    if block.alloc_buffers or block.match_buffers:
        return None
    kinds: dict[int, list[Any]] = {0: [], 2: []}
    for axis, at in zip(block.iter_vars, nest.iter_values):
        extent = axis.dom.extent
        if int(axis.iter_type) not in kinds or not isinstance(extent, tirx.IntImm) or not _is_number(axis.dom.min, 0):
            return None
        if not (isinstance(at, Var) and any(at.same_as(v) for v in loops)) and not (_is_number(at, 0) and int(extent) == 1):
            return None
        kinds[int(axis.iter_type)].append((axis.var, int(extent)))
    spatial, reduced = kinds[0], kinds[2]
    if len(store.indices) != len(spatial) or not all(i.same_as(v) for i, (v, _) in zip(store.indices, spatial)):
        return None
    if tuple(int(s) for s in store.buffer.shape) != tuple(e for _, e in spatial) or (init is None) != (not reduced):
        return None
    if init is not None and not isinstance(init, tirx.BufferStore):
        return None
    return Stage(
        store.buffer,
        tuple(v for v, _ in spatial),
        tuple(e for _, e in spatial),
        tuple(v for v, _ in reduced),
        tuple(e for _, e in reduced),
        store.value,
        None if init is None else init.value,
    )


def _is_number(expr: Any, number: int) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == number


def tensor_of(buffer: Any) -> Tensor:
    """Return the type of a buffer with a static shape."""
    return Tensor(tuple(int(s) for s in buffer.shape), str(buffer.dtype))


def loads_of(expr: Any) -> list[Any]:
    """Return the loads in an expression, outer ones first."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (TensorLoad, lambda load: found.append(load)), order="pre")
    return found


def deciding_loads_of(expr: Any) -> list[Any]:
    """Return the loads in an expression that decide an address or are in a division of whole numbers, as what has a name may."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (TensorLoad, lambda load: found.extend(v for i in load.indices for v in loads_of(i))))
    for kind in (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod):
        tvm_ffi.structural_walk(expr, (kind, lambda e: found.extend([] if "float" in str(e.ty.dtype) else loads_of(e))))
    tvm_ffi.structural_walk(expr, (tirx.Let, lambda e: found.extend(loads_of(e.value))))
    return found


def uses(expr: Any, variables: Sequence[Any]) -> bool:
    """Whether an expression mentions one of the variables."""
    found = []
    tvm_ffi.structural_walk(expr, (Var, lambda v: found.append(v) if any(v.same_as(w) for w in variables) else None))
    return bool(found)


def size_of(expr: Any) -> int:
    """Return the number of nodes of an expression, repeated ones repeatedly."""
    count = 0

    def visit(_: Any) -> None:
        nonlocal count
        count += 1

    tvm_ffi.structural_walk(expr, visit)
    return count


#: What makes the simplification of what is below it longer.
_CHOICES = (tirx.Select, tirx.Min, tirx.Max, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


@dataclass(frozen=True)
class Complexity:
    """How long TVM's simplification of an expression takes.

    Attributes
    ----------
    nodes : int
        Nodes, repeated ones repeatedly.
    whole : int
        Those of whole numbers that no conversion parts from the result, without indices.
    apart : int
        The most of the others that no conversion parts.
    choices : int
        The deepest choice within another: what is below it is simplified again under each of its conditions. A quotient or remainder of
        whole numbers counts as one.
    """

    nodes: int = 1
    whole: int = 0
    apart: int = 0
    choices: int = 0

    def is_too_long(self) -> bool:
        """Whether an expression is better computed in two parts.

        Measured with TVM 0.27 near these bounds: one simplification takes 0.2 to 0.4 microseconds times the product below, about 2 where it
        reasons about whole numbers, and more with quotients and remainders. So nodes alone have a bound, too.
        """
        conditions, whole = 3**self.choices, max(self.whole, self.apart)
        return self.nodes > _MAX_NODES or self.nodes * conditions > 200_000 or whole > 100 or whole * conditions > 5_000


def complexity_of(expr: Any, behind: Callable[[Any], Complexity | None] = lambda _: None) -> Complexity:
    """Return the complexity of an expression; ``behind`` says what is to be written in place of loads from a buffer, None if nothing is."""
    nodes, whole, apart, deepest = 0, 0, 0, 0

    def visit(e: Any) -> None:
        nonlocal nodes, whole
        nodes, whole = nodes + 1, whole + _is_whole(e)

    def add(part: Complexity, joined: bool) -> None:
        nonlocal nodes, whole, apart, deepest
        nodes, apart, deepest = nodes + part.nodes, max(apart, part.apart), max(deepest, part.choices)
        if joined:
            whole += part.whole
        else:
            apart = max(apart, part.whole)

    def load(e: Any) -> Any:
        nonlocal nodes
        nodes += size_of(e) - 1
        add(behind(e.source) or Complexity(1, _is_whole(e)), _is_whole(e))
        return tvm_ffi.WalkResult.SKIP

    def choice(e: Any) -> Any:
        visit(e)
        deeper = isinstance(e, (tirx.Select, tirx.Min, tirx.Max)) or _is_whole(e)
        for part in (e.condition, e.true_value, e.false_value) if isinstance(e, tirx.Select) else (e.a, e.b):
            inner = complexity_of(part, behind)
            add(replace(inner, choices=inner.choices + deeper), True)
        return tvm_ffi.WalkResult.SKIP

    def cast(e: Any) -> Any:
        visit(e)
        add(complexity_of(e.value, behind), _is_whole(e) == _is_whole(e.value))
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(expr, [(_CHOICES, choice), (tirx.Cast, cast), (TensorLoad, load), (object, visit)], order="pre")
    return Complexity(nodes, whole, apart, deepest)


def _is_whole(e: Any) -> bool:
    """Whether an expression is a whole number."""
    return "int" in str(getattr(getattr(e, "ty", None), "dtype", ""))


def substitute(expr: Any, variables: Sequence[Any], values: Sequence[Any]) -> Any:
    """Replace variables, and simplify nothing: the rules of floating point stay those that were written."""

    def put(v: Any) -> Any:
        return next((value for w, value in zip(variables, values) if v.same_as(w)), v)

    return tvm_ffi.structural_map(expr, (Var, put))


def replace_loads(expr: Any, put: Any) -> Any:
    """Replace each load by ``put(load)``; indices are replaced first."""
    return tvm_ffi.structural_map(expr, (TensorLoad, put))


def inlined(stages: Sequence[Stage]) -> list[Stage] | None:
    """Inline every stage without reduction into its readers; return the reductions and the last stage, None if that explodes."""
    kept: list[Stage] = []
    copies: list[Stage] = []

    for stage in stages:

        def put(load: Any) -> Any:
            copy = next((c for c in copies if load.source.same_as(c.out)), None)
            return load if copy is None else substitute(copy.value, copy.axes, load.indices)

        # no variable for what is read several times: TVM reasons about comparisons of variables as if none could be NaN
        value = replace_loads(stage.value, put)
        if size_of(value) > _MAX_NODES:
            return None
        stage = replace(stage, value=value)
        (kept if stage.reduced or stage.out.same_as(stages[-1].out) else copies).append(stage)
    return kept


def transposes(fn: tirx.PrimFunc) -> bool:
    """Whether a function only exchanges the last two dimensions of its input."""
    stages = read_stages(fn)
    if stages is None or len(stages) != 1 or stages[0].reduced or len(stages[0].axes) < 2:
        return False
    value, axes = stages[0].value, list(stages[0].axes)
    wanted = [*axes[:-2], axes[-1], axes[-2]]
    return isinstance(value, TensorLoad) and len(value.indices) == len(axes) and all(i.same_as(a) for i, a in zip(value.indices, wanted))
