# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How many trips a rolled loop makes at most, from its body.

The body is run on what is known: the number of trips that have ended, constants, and what follows from these. Where a branch is not known,
both sides are taken. The first number of trips with which no path leads back to the header is the last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.arguments import map_leaves
from dycl_tvm.frontend.trace.values.folding import absorbed
from dycl_tvm.frontend.trace.values.layouts import meta_of
from dycl_tvm.frontend.trace.values.lengths import Counter
from dycl_tvm.frontend.trace.values.storage import DTYPES
from dycl_tvm.hcfg.hostops import NOT_PURE
from dycl_tvm.hcfg.interpreter import run_host_op
from dycl_tvm.hcfg.nodes import Block, Branch, Constant, Edge, HostOp, Operand, Switch, TensorOp, Value, edges_of
from dycl_tvm.hcfg.types import TensorType

#: Tensors of more elements are not followed.
_SMALL = 256
Known = dict[Value, Any]


class Broken(Exception):
    """A block is reached after more trips than it may be."""


def most_trips(header: Block, counter: Counter, entry: Sequence[Operand]) -> int | None:
    """Return how many trips end before the loop surely does, if they are no more than are assumed; else None.

    ``entry`` is what the parameters of the header are before the first trip.

    Raises
    ------
    Broken
        If what was claimed of the loop may not hold.
    """
    known = {p: x for p, a in zip(header.params, entry) if (x := _value(a, {})) is not None}
    order = _body_of(header)
    steps = _before_tests(order)
    claims: dict[int, int] = {}
    for block, trips in counter.claims:
        claims[id(block)] = min(trips, claims.get(id(block), trips))
    for trips in range(counter.last + 1):
        after = _run(order, steps, {**known, counter.value: trips}, {b for b, most in claims.items() if most < trips})
        if after is None:
            return trips
        known = after
    return None


def _body_of(header: Block) -> list[Block]:
    """Return the blocks that are reached from the header, each after those that lead to it but by the end of a loop."""
    order: list[Block] = []
    seen = {id(header)}
    stack = [(header, iter([e.target for e in edges_of(header.terminator)]))]
    while stack:
        block, rest = stack[-1]
        target = next((t for t in rest if id(t) not in seen), None)
        if target is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(id(target))
            stack.append((target, iter([e.target for e in edges_of(target.terminator)])))
    return order[::-1]


def _before_tests(order: list[Block]) -> list[list[Any]]:
    """Return the steps of each block that a test follows from, in this trip or a later one: the others do not matter."""
    sources: dict[Value, list[Operand]] = {}
    wanted: list[Operand] = []
    for block in order:
        for step in block.steps:
            sources.update({v: [*step.operands()] for v in step.results()})
        for edge in edges_of(block.terminator):
            for param, arg in zip(edge.target.params, edge.args):
                sources.setdefault(param, []).append(arg)
        end = block.terminator
        wanted += [end.cond] if isinstance(end, Branch) else [end.index] if isinstance(end, Switch) else []
    found = set[Operand]()
    while wanted:
        if isinstance(value := wanted.pop(), Value) and value not in found:
            found.add(value)
            wanted += sources.get(value, ())
    return [[step for step in block.steps if not found.isdisjoint(step.results())] for block in order]


def _run(order: list[Block], steps: list[list[Any]], at_header: Known, forbidden: set[int]) -> Known | None:
    """Run a trip; return what the parameters of the header are known to be after it, None if the header is not reached again."""
    header, position = order[0], {id(b): i for i, b in enumerate(order)}
    known = dict(at_header)
    arriving: dict[int, list[Known]] = {}
    inner = {id(e.target) for i, b in enumerate(order) for e in edges_of(b.terminator) if position[id(e.target)] <= i}
    back: list[Known] = []
    for i, block in enumerate(order):
        if i and id(block) not in arriving:
            continue
        if id(block) in forbidden:
            raise Broken
        if i and id(block) not in inner:  # of a loop within the body nothing is known
            known.update(_common(arriving[id(block)], block.params))
        for step in steps[i]:
            _step(step, known)
        for edge in _taken(block, known):
            args = {p: x for p, a in zip(edge.target.params, edge.args) if (x := _value(a, known)) is not None}
            if edge.target is header:
                back.append(args)
            else:
                arriving.setdefault(id(edge.target), []).append(args)
    return _common(back, header.params) if back else None


def _taken(block: Block, known: Known) -> list[Edge]:
    end = block.terminator
    if isinstance(end, Branch) and (cond := _value(end.cond, known)) is not None:
        return [end.then if cond else end.orelse]
    if isinstance(end, Switch) and (index := _value(end.index, known)) is not None:
        return [end.edges[index]]
    return edges_of(end)


def _common(found: list[Known], params: list[Value]) -> Known:
    first = found[0]
    return {p: first[p] for p in params if p in first and all(p in f and _same(f[p], first[p]) for f in found)}


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        with plainly():
            return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and a == b


def _value(x: Operand, known: Known) -> Any:
    if isinstance(x, Constant):
        return x.data if x.data.numel() <= _SMALL else None
    return known.get(x) if isinstance(x, Value) else x


def _step(step: Any, known: Known) -> None:
    """Compute a step whose operands are known, or one of which decides it."""
    operands = step.operands()
    if not any(v in known for v in operands):
        return
    values = [_value(v, known) for v in operands]
    if isinstance(step, HostOp):
        if all(v is not None for v in values) and step.op not in NOT_PURE:
            args = [_value(a, known) for a in step.args]
            with contextlib.suppress(ArithmeticError, ValueError), plainly():
                known[step.output] = run_host_op(step, args)
        return
    if not isinstance(step, TensorOp) or len(step.outputs) != 1 or step.outputs[0] is None:
        return
    type_ = step.outputs[0].type
    assert isinstance(type_, TensorType)
    if type_.numel > _SMALL:
        return
    op = _operator(step.op)
    if all(v is not None for v in values):
        args, kwargs = [map_leaves(lambda a: _value(a, known), x) for x in (step.args, step.kwargs)]
        with contextlib.suppress(ArithmeticError, ValueError, RuntimeError, IndexError), plainly():  # it raises at run time, if it is run
            known[step.outputs[0]] = op(*args, **kwargs)
        return
    found = [v if x is None else Constant(v.type, x) for v, x in zip(operands, values)]  # type: ignore[arg-type]  # tensors
    decided = absorbed(op, step.args, found, meta_of(type_.shape, None, DTYPES[type_.dtype]))
    if decided is not None:
        known[step.outputs[0]] = decided.data


def _operator(name: str) -> Any:
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)
