# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The control flow operators of ``torch.export`` as blocks and edges: branches, loops, and calls of graphs.

A handler gets the session, the function that records a graph, and the operator's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._higher_order_ops.associative_scan import generic_associative_scan

from dycl_tvm.frontend.exported.session import ExportedSession
from dycl_tvm.frontend.trace.control_flow import Dead
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import extent_at, fitted, is_same
from dycl_tvm.frontend.trace.values.extents import as_number, bounds_of
from dycl_tvm.frontend.trace.values.grown import Grown, OfTheRun, buffer_type, cut, rank_of
from dycl_tvm.frontend.trace.values.lengths import Counter, Length
from dycl_tvm.frontend.trace.values.recorder import truth_of
from dycl_tvm.frontend.trace.values.tensors import fresh, fresh_like, read
from dycl_tvm.hcfg.nodes import Block, Operand, Value, operand_type
from dycl_tvm.hcfg.types import INT, TensorType

Run = Callable[[ExportedSession, Any, Sequence[Any]], Any]

#: Loops of at most this many rounds are unrolled: their sub-DNNs become larger, and no index is computed at run time.
UNROLL_LIMIT = 8


# -- values on edges ---------------------------------------------------------------------------------------------------
def _operand(session: ExportedSession, x: Any) -> Operand:
    if isinstance(x, torch.Tensor):
        return read(x)
    if scalars.is_symbolic(x) or isinstance(x, (bool, int, float)):
        return scalars.operand_of(x)
    return session.refuse(f"a {type(x).__name__} passes through a control flow operator", "pass tensors and numbers")


def _wrapped(param: Value, like: Any) -> Any:
    """Return a parameter of a block as what it stands for on an edge."""
    if isinstance(like, Grown):
        return cut(fresh(param), like.lengths)
    return fresh(param) if isinstance(param.type, TensorType) else scalars.wrap(param)


def _check_alike(session: ExportedSession, a: Any, b: Any, what: str) -> None:
    """Refuse two values that no block parameter can stand for both of; ``what`` has room for their types."""
    lengths = [x.lengths if isinstance(x, Grown) else {} for x in (a, b)]
    same = lengths[0].keys() == lengths[1].keys() and all(is_same(n, lengths[1][d]) for d, n in lengths[0].items())
    types = [x.described() if isinstance(x, Grown) else f"a {operand_type(_operand(session, x))}" for x in (a, b)]
    if not same or types[0] != types[1]:
        session.refuse(what.format(*types), "keep its shape and type")


def _copies(xs: Sequence[Any]) -> list[Any]:
    """Return tensors that hold the same and share memory with nothing: a graph must not change what it captures."""
    return [_copy(x) if isinstance(x, torch.Tensor) else x for x in xs]


def _copy(t: torch.Tensor) -> torch.Tensor:
    if isinstance(t, Grown):
        return cut(fresh(read(t)), t.lengths)
    return fresh_like(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta"), read(t))


def _isolated(session: ExportedSession, run: Run, graph: Any, args: Sequence[Any]) -> list[Any]:
    """Record a graph on copies of its arguments, and refuse one that changes them."""
    given = _copies(args)
    before = [read(x) if isinstance(x, torch.Tensor) else None for x in given]
    results = pytree.tree_leaves(run(session, graph, given), is_leaf=lambda x: x is None)
    for x, value in zip(given, before):
        if isinstance(x, torch.Tensor) and read(x) is not value:
            session.refuse("a branch or body changes a captured tensor in place", "return the new value from the branch")
    return results


# -- cond --------------------------------------------------------------------------------------------------------------
def cond(session: ExportedSession, run: Run, pred: Any, true_graph: Any, false_graph: Any, operands: Sequence[Any] = ()) -> Any:
    """``torch.cond``: a branch and a join."""
    truth = truth_of(pred)
    if not isinstance(truth, Value):
        return tuple(_isolated(session, run, true_graph if truth else false_graph, operands))
    builder = session.builder
    sides: list[tuple[Block, list[Any]]] = []
    blocks = builder.new_block("then"), builder.new_block("else")
    builder.branch(truth, *blocks)
    for block, graph in zip(blocks, (true_graph, false_graph)):
        builder.block = block
        try:
            results = _isolated(session, run, graph, operands)
        except Dead:
            continue
        sides.append((builder.here(), results))
    if not sides:
        raise Dead
    if len(sides) == 1:
        builder.block = sides[0][0]
        return tuple(sides[0][1])
    (then, left), (orelse, right) = sides
    if len(left) != len(right):
        session.refuse("the two branches give different numbers of results", "give the same structure on both sides")
    kept = [a if _same(a, b) else None for a, b in zip(left, right)]
    differ = [k for k, (a, b) in enumerate(zip(left, right)) if not _same(a, b)]
    join = _Join(session, (then, orelse))
    made = {k: join.either(left[k], right[k], f"result {k} is {{}} in one branch and {{}} in the other") for k in differ}
    join.enter()
    return tuple(made[k]() if k in made else x for k, x in enumerate(kept))


class _Join:
    """The block in which both sides of a branch meet."""

    def __init__(self, session: ExportedSession, ends: tuple[Block, Block]) -> None:
        self._session, self._ends = session, ends
        self._block = session.builder.new_block("join")
        self._given: tuple[list[Operand], list[Operand]] = [], []

    def enter(self) -> None:
        """Go on behind both sides."""
        builder = self._session.builder
        for block, given in zip(self._ends, self._given):
            builder.block = block
            builder.jump(self._block, given)
        builder.block = self._block

    def either(self, a: Any, b: Any, what: str) -> Callable[[], Any]:
        """Return what makes, behind both sides, the value that stands for one of each; ``what`` is said of two that none stands for."""
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and rank_of(a) == rank_of(b):
            extents = [(extent_at(a, rank_of(a) - d), extent_at(b, rank_of(b) - d)) for d in range(rank_of(a))]
            if any(isinstance(n, Length) or n != m for n, m in extents) and buffer_type(a).dtype == buffer_type(b).dtype:
                return self._open(a, b, extents)
        _check_alike(self._session, a, b, what)
        value = self._param(_operand(self._session, a), _operand(self._session, b))
        return lambda: _wrapped(value, a)

    def _open(self, a: torch.Tensor, b: torch.Tensor, extents: list[tuple[Any, Any]]) -> Callable[[], Any]:
        """Join tensors of which some have lengths of the run, or which are not equally long: a length that differs is a parameter too."""
        shape = tuple(map(max, zip(buffer_type(a).shape, buffer_type(b).shape)))
        value = self._param(*self._on_both(lambda t: read(_filled(t, shape)), a, b))
        lengths = {}
        for d, (n, m) in enumerate(extents):
            if n != m:
                count = self._param(*self._on_both(lambda extent: scalars.operand_of(as_number(extent)), n, m))
                ends = *bounds_of(n), *bounds_of(m)
                lengths[d] = Length(Counter(count, max(ends), OfTheRun(), first=min(ends)), 1, 0)
            elif isinstance(n, Length):
                lengths[d] = n
        return lambda: cut(fresh(value), lengths)

    def _param(self, a: Operand, b: Operand) -> Value:
        for given, x in zip(self._given, (a, b)):
            given.append(x)
        return self._session.builder.add_param(self._block, operand_type(a))

    def _on_both(self, record: Callable[[Any], Operand], a: Any, b: Any) -> list[Operand]:
        """Record something at the end of both sides."""
        made, builder = [], self._session.builder
        for block, x in zip(self._ends, (a, b)):
            builder.block = block
            made.append(record(x))
        return made


def _filled(t: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return the buffer of a tensor, or itself, with as much behind it as it needs to have a shape."""
    whole = t.padded() if isinstance(t, Grown) else t
    for d, size in enumerate(shape):
        whole = fitted(whole, d, size)
    return whole


def switch(session: ExportedSession, run: Run, index: Any, graphs: Sequence[Any], operands: Sequence[Any] = ()) -> Any:
    """``torch.switch``, of PyTorch 2.14: a chain of branches. What the user calls clamps the index; the operator itself refuses others."""
    chosen = index.item() if isinstance(index, torch.Tensor) else index
    for holds in (chosen >= 0, chosen < len(graphs)):
        session.check(scalars.truth_operand(holds), "AssertionError", f"switch index out of range for {len(graphs)} branches")

    def run_left(session: ExportedSession, left: Sequence[Any], args: Sequence[Any]) -> Any:
        if len(left) == 1:
            return run(session, left[0], args)
        return cond(session, run_left, chosen == len(graphs) - len(left), left[:1], left[1:], args)

    return tuple(_isolated(session, run_left, graphs, operands))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return False
    return a is b or (type(a) is type(b) and not scalars.is_symbolic(a) and bool(a == b))


# -- loops -------------------------------------------------------------------------------------------------------------
def while_loop(
    session: ExportedSession, run: Run, cond_graph: Any, body_graph: Any, carried: Sequence[Any], captured: Sequence[Any] = ()
) -> Any:
    """``while_loop``: a header whose parameters are the carried values."""
    return tuple(
        _loop(
            session,
            list(carried),
            lambda state: truth_of(_isolated(session, run, cond_graph, [*state, *captured])[0]),
            lambda state: _isolated(session, run, body_graph, [*state, *captured]),
        )
    )


def _loop(
    session: ExportedSession, initial: list[Any], test: Callable[[list[Any]], Operand], body: Callable[[list[Any]], list[Any]]
) -> list[Any]:
    builder = session.builder
    header, inside, after = (builder.new_block(n) for n in ("loop", "body", "after"))
    first = [_operand(session, x) for x in initial]
    builder.jump(header, first)
    builder.block = header
    state = [_wrapped(builder.add_param(header, operand_type(x)), like) for x, like in zip(first, initial)]
    builder.branch(test(state), inside, after)
    builder.block = inside
    try:
        new = body(state)
        for k, (before, after_it) in enumerate(zip(initial, new, strict=True)):
            _check_alike(session, before, after_it, f"the value {k} that the loop carries is {{}} before and {{}} after its body")
        builder.jump(header, [_operand(session, x) for x in new])
    except Dead:
        pass
    builder.block = after
    return state


def _for(
    session: ExportedSession, start: int, stop: Any, most: int, state: list[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Run ``body(i, state)`` for i from start to stop, which is no more than ``most``, as a loop."""
    counter = session.builder.host_op("add", (start, 0), INT)

    def test(state: list[Any]) -> Operand:
        return scalars.operand_of(state[0] < stop)

    def rest(state: list[Any]) -> list[Any]:
        i = state[0]
        i.node.bounds = (start, most - 1)
        return [i + 1, *body(i, state[1:])]

    return _loop(session, [scalars.wrap(counter), *state], test, rest)[1:]


def _row(x: torch.Tensor, i: Any) -> torch.Tensor:
    """Return element ``i`` along dimension 0, of which there is one."""
    if not isinstance(x, Grown):
        return x[i]
    return cut(x.padded()[i], {d - 1: n for d, n in x.lengths.items() if d})


def scan(session: ExportedSession, run: Run, graph: Any, init: Sequence[Any], xs: Sequence[Any], captured: Sequence[Any] = ()) -> Any:
    """``scan``: a state carried along dimension 0 of the inputs, and results stacked along dimension 0."""
    n: Any = extent_at(xs[0], rank_of(xs[0])) if xs else 0
    least, most = bounds_of(n)
    if most == 0:
        session.refuse("a scan or map over no elements", "give inputs with at least one element in dimension 0")
    if least == 0:
        session.check(scalars.truth_operand(as_number(n) > 0), "RuntimeError", "a scan or map over no elements")
    carried = len(init)

    def step(i: Any, carry: list[Any]) -> tuple[list[Any], list[Any]]:
        results = _isolated(session, run, graph, [*carry, *(_row(x, i) for x in xs), *captured])
        return results[:carried], results[carried:]

    # The first round is recorded by itself: it tells what the results look like.
    carry, first = step(0, list(init))
    kept = [k for k, y in enumerate(first) if isinstance(y, torch.Tensor)]
    if isinstance(n, int) and n <= UNROLL_LIMIT:
        rows = [first]
        for i in range(1, n):
            carry, ys = step(i, carry)
            rows.append(ys)
        return (*carry, *(torch.stack([row[k] for row in rows]) if k in kept else y for k, y in enumerate(first)))
    stacked = []
    for k in kept:
        row = _filled(first[k], buffer_type(first[k]).shape)
        stacked.append(torch.cat([row.unsqueeze(0), torch.zeros((most - 1, *row.shape), dtype=row.dtype)]))

    def body(i: Any, state: list[Any]) -> list[Any]:
        carry, ys = step(i, state[:carried])
        buffers = _copies(state[carried:])
        for buffer, k in zip(buffers, kept):
            _check_alike(session, first[k], ys[k], f"result {k} is {{}} in the first round and {{}} in another")
            buffer[i] = _filled(ys[k], buffer.shape[1:])
        return [*carry, *buffers]

    final = _for(session, 1, as_number(n), most, [*carry, *stacked], body)
    results = {}
    for k, made in zip(kept, final[carried:]):
        lengths = {d + 1: length for d, length in first[k].lengths.items()} if isinstance(first[k], Grown) else {}
        results[k] = cut(made, {0: n, **lengths} if isinstance(n, Length) else lengths)
    return (*final[:carried], *(results.get(k) for k in range(len(first))))


def map_(session: ExportedSession, run: Run, graph: Any, xs: Sequence[Any], captured: Sequence[Any] = ()) -> Any:
    """``map``: the same for every element along dimension 0."""
    return scan(session, run, graph, (), xs, captured)


def associative_scan(session: ExportedSession, run: Run, graph: Any, xs: Sequence[Any], captured: Sequence[Any] = ()) -> Any:
    """``associative_scan``: PyTorch's own scheme of pairs, so that even rounding is that of eager."""

    def combine(*args: Any) -> Any:
        return _isolated(session, run, graph, args)

    return tuple(generic_associative_scan(combine, list(xs), 0, tuple(captured)))


# -- calls of graphs ---------------------------------------------------------------------------------------------------
def _inline(skip: int) -> Callable[..., Any]:
    """Return a handler that runs a graph on the arguments after it; ``skip`` arguments stand between."""

    def handler(session: ExportedSession, run: Run, graph: Any, *args: Any, **_: Any) -> Any:
        return run(session, graph, args[skip:])

    return handler


def _under_grad_mode(session: ExportedSession, run: Run, _enabled: bool, graph: Any, *args: Any) -> Any:
    return run(session, graph, args)


def _under_autocast(session: ExportedSession, run: Run, device: str, dtype: Any, enabled: bool, cache: Any, graph: Any, *args: Any) -> Any:
    with torch.autocast(device, dtype, enabled, cache):
        return run(session, graph, args)


def _hints(session: ExportedSession, run: Run, graph: Any, args: Sequence[Any], kwargs: dict[str, Any], *_: Any, **__: Any) -> Any:
    return run(session, graph, [*args, *kwargs.values()])


def _strict(session: ExportedSession, run: Run, graph: Any, operands: Sequence[Any]) -> Any:
    return run(session, graph, operands)


HANDLERS: dict[str, Callable[..., Any]] = {
    "cond": cond,
    "switch": switch,
    "while_loop": while_loop,
    "map_impl": map_,
    "scan": scan,
    "associative_scan": associative_scan,
    "invoke_subgraph": _inline(1),
    "tag_activation_checkpoint": _inline(0),
    "invoke_quant_packed": _inline(0),
    "wrap_with_set_grad_enabled": _under_grad_mode,
    "wrap_with_autocast": _under_autocast,
    "hints_wrapper": _hints,
    "strict_mode": _strict,
}
