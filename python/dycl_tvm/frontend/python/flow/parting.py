# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Paths that part again right after they were joined, to return each by itself.

A network that returns other shapes after other numbers of steps (a decoder that writes until its end token) joins its paths
behind its loop and has nothing left to do but to return. To fork each of its decisions would run the program twice a step, from
its beginning, and find nothing new: so here each path gets a return site of its own in the run at hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Any, cast

import torch

from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.trace.join.captured import Captured, Form, Items, NumberLeaf, PathState, Plain, TensorLeaf
from dycl_tvm.frontend.trace.join.join import Join, Joined, LastJoin
from dycl_tvm.frontend.trace.join.kinds import OneOf, kinds_of
from dycl_tvm.frontend.trace.join.mismatch import Name, between_paths
from dycl_tvm.frontend.trace.join.poison import Poison, forms_at
from dycl_tvm.frontend.trace.results import Leaves, structure_of
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.grown import Grown, cut
from dycl_tvm.frontend.trace.values.lengths import Length
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, fresh, read
from dycl_tvm.hcfg.nodes import Operand, Origin, Value

#: Shows a value of the joined path as it is on one of the paths.
View = Callable[[Any], Any]
#: So many ways may one path part into that returns values of several kinds.
_MOST_WAYS = 32


def part(value: Any, origin: Origin | None) -> Iterator[View]:
    """Part the paths that were joined last, if the value that they return could not be joined; go on on each, one after the other.

    They part here only if nothing happened since they were joined: no operation and no change of an object; and if nothing that
    lives on between calls is changed. The last ones stay together if their values can be joined, as they would if the decisions
    of those before them were forked. If nothing parts, nothing is yielded.

    Parameters
    ----------
    value, origin : object, Origin
        What is returned, and where.
    """
    session = current()
    mark, joined = session.heap.run_mark, session.get(LastJoin).joined
    if joined is None or session.builder.block is not joined.block or joined.block.steps or joined.touches != session.journal.touches:
        return
    poisons = _poisons(value, origin)
    forms = [forms_at(p, joined.block) for p in poisons]
    if not poisons or not all(forms) or session.decisions.opened or session.decisions.rolling or program().state.is_changed(mark):
        return
    paths = list(zip(*forms))
    if any(form is None for path in paths for form in path):
        return
    kinds = [[_kind(form) for form in path] for path in paths]
    alone = len(paths) - 1
    while alone and kinds[alone - 1] == kinds[-1]:
        alone -= 1
    alone += alone == len(paths) - 1
    for block, args, path in zip(joined.before[:alone], joined.args, paths):
        session.builder.resume(block)
        yield _view(poisons, [_captured(p).obj for p in path], joined, args)
    if alone == len(paths):
        return
    join = Join([PathState(block, {}, None, {}) for block in joined.before[alone:]], 0, None, joined.block.name, between_paths(()))
    args = [join.operand(p.type, list(column), p.name) for p, column in zip(joined.block.params, zip(*joined.args[alone:]))]
    objects = [join.unify([_captured(p) for p in column], Name("the value returned")) for column in zip(*paths[alone:])]
    for block in joined.before[alone:]:
        session.builder.resume(block)
    join.enter()
    yield _view(poisons, objects, joined, args)


def part_by_kind(value: Any, origin: Origin | None) -> Iterator[View]:
    """Part the path at hand by the kinds of the values that it returns, and go on on each way, one after the other.

    Nothing is joined with a path that leaves the network: so it may part wherever it is. If there is no such value, nothing is yielded.
    """
    found = list({id(x): x for x in _poisons(value, origin, OneOf)}.values())
    if found and math.prod(len(kinds_of(x)) for x in found) <= _MOST_WAYS:
        yield from _ways(found, {}, {})


def _ways(found: list[Any], known: dict[int, Any], answers: dict[int, bool]) -> Iterator[View]:
    if not found:
        yield lambda x: known.get(id(x), x)
        return
    builder, (x, *rest) = current().builder, found
    left = [(flag, one) for flag, one in kinds_of(x) if answers.get(id(flag)) is not False]
    while left:
        (flag, one), *left = left
        if not left or answers.get(id(flag)):
            yield from _ways(rest, {**known, id(x): one}, answers)
            return
        here, others = builder.new_block("kind"), builder.new_block("others")
        builder.branch(flag, here, others)
        builder.block = here
        yield from _ways(rest, {**known, id(x): one}, {**answers, id(flag): True, **{id(f): False for f, _ in left}})
        builder.block, answers = others, {**answers, id(flag): False}


def _poisons(value: Any, origin: Origin | None, kind: type[Poison] = Poison) -> list[Any]:
    """Return the poisons of a kind in a value; none if reading its tensors would record operations."""
    found: list[Any] = []
    stale: list[Any] = []

    def look(x: Any) -> Any:
        if type(x) in (Poison, OneOf):
            found.extend([x] if type(x) is kind else [])
            return None
        if isinstance(x, StagedTensor) and x.chain and x._cached[0] != x.storage_.version:
            stale.append(x)
        return None if isinstance(x, torch.Tensor) else x

    structure_of(value, Leaves(), origin, look)
    return [] if stale else found


def _kind(form: Form) -> Hashable:
    """Return what is equal for the forms of two paths exactly if they can be joined."""
    if isinstance(form, Value):
        return form.type
    if isinstance(form, NumberLeaf):
        return scalars._kind(form.operand) if scalars.mixed_of(form.obj) is None else id(form)
    if isinstance(form, Plain):
        return (form.obj,)
    kind, keys, items = form
    return (kind, keys, *[_kind(i) for i in items])


def _captured(form: Form) -> Captured:
    """Make a value of its form."""
    if isinstance(form, Value):
        return TensorLeaf(fresh(form), form)
    if isinstance(form, (NumberLeaf, Plain)):
        return form
    kind, keys, forms = form
    items = [_captured(p) for p in forms]
    objects = [i.obj for i in items]
    if kind is dict:
        return Items(dict(zip(keys, objects)), items, keys)
    return Items(kind(*objects) if hasattr(kind, "_fields") else kind(objects), items)


def _view(poisons: list[Poison], objects: list[Any], joined: Joined, args: list[Operand]) -> View:
    """Return the view of one path: what its poisons and the parameters of the joined block are there."""
    known = {id(p): x for p, x in zip(poisons, objects)}
    operands = {id(p): a for p, a in zip(joined.block.params, args)}

    def view(x: Any) -> Any:
        if id(x) in known:
            return known[id(x)]
        if isinstance(x, Grown):
            return _grown_view(x, operands)
        if isinstance(x, torch.Tensor):
            value = read(x)
            return fresh(cast(Value, operands[id(value)])) if id(value) in operands else x
        if scalars.is_symbolic(x):
            operand = scalars.operand_of(x)
            return scalars.wrap(operands[id(operand)]) if id(operand) in operands else x
        return x

    return view


def _grown_view(t: Grown, operands: dict[int, Operand]) -> torch.Tensor:
    """Return what a tensor with a length is on one path: its buffer and its length may be parameters of the joined block."""
    value = read(t)
    extents: dict[int, Length | int] = {}
    for d, own in t.lengths.items():
        counter, there = own.counter, operands.get(id(own.counter.value), own.counter.value)
        if isinstance(there, Value):
            extents[d] = replace(own, counter=counter if there is counter.value else replace(counter, value=there))
        else:
            extents[d] = own.at(int(there))
    return cut(fresh(cast(Value, operands.get(id(value), value))), extents)
