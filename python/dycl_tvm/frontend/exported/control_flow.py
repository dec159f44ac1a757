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
from dycl_tvm.frontend.trace.values.aligned import is_same
from dycl_tvm.frontend.trace.values.grown import Grown, cut
from dycl_tvm.frontend.trace.values.recorder import truth_of
from dycl_tvm.frontend.trace.values.storage import DTYPES
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
    args = [[_operand(session, side[k]) for k in differ] for side in (left, right)]
    for k in differ:
        _check_alike(session, left[k], right[k], f"result {k} is {{}} in one branch and {{}} in the other")
    join = builder.new_block("join")
    for block, given in zip((then, orelse), args):
        builder.block = block
        builder.jump(join, given)
    builder.block = join
    for k, a in zip(differ, args[0]):
        kept[k] = _wrapped(builder.add_param(join, operand_type(a)), left[k])
    return tuple(kept)


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


def _for(session: ExportedSession, start: int, stop: int, state: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """Run ``body(i, state)`` for i from start to stop: unrolled if that is short, as a loop if it is long."""
    if stop - start <= UNROLL_LIMIT:
        for i in range(start, stop):
            state = body(i, state)
        return state
    counter = session.builder.host_op("add", (start, 0), INT)

    def test(state: list[Any]) -> Operand:
        return scalars.operand_of(state[0] < stop)

    def rest(state: list[Any]) -> list[Any]:
        i = state[0]
        i.node.bounds = (start, stop - 1)
        return [i + 1, *body(i, state[1:])]

    return _loop(session, [scalars.wrap(counter), *state], test, rest)[1:]


def scan(session: ExportedSession, run: Run, graph: Any, init: Sequence[Any], xs: Sequence[Any], captured: Sequence[Any] = ()) -> Any:
    """``scan``: a state carried along dimension 0 of the inputs, and results stacked along dimension 0."""
    n = int(xs[0].shape[0]) if xs else 0
    if n == 0:
        session.refuse("a scan or map over no elements", "give inputs with at least one element in dimension 0")
    carried = len(init)

    def step(i: Any, carry: list[Any]) -> tuple[list[Any], list[Any]]:
        results = _isolated(session, run, graph, [*carry, *(x[i] for x in xs), *captured])
        return results[:carried], results[carried:]

    # The first round is recorded by itself: it tells what the results look like.
    carry, first = step(0, list(init))
    kept = [k for k, y in enumerate(first) if isinstance(y, torch.Tensor)]
    if n <= UNROLL_LIMIT:
        rows = [first]
        for i in range(1, n):
            carry, ys = step(i, carry)
            rows.append(ys)
        return (*carry, *(torch.stack([row[k] for row in rows]) if k in kept else y for k, y in enumerate(first)))
    stacked = []
    for k in kept:
        buffer = torch.zeros((n, *first[k].shape), dtype=DTYPES[str(first[k].dtype).removeprefix("torch.")])
        stacked.append(torch.cat([first[k].unsqueeze(0), buffer[1:]]))

    def body(i: Any, state: list[Any]) -> list[Any]:
        carry, ys = step(i, state[:carried])
        buffers = _copies(state[carried:])
        for buffer, k in zip(buffers, kept):
            buffer[i] = ys[k]
        return [*carry, *buffers]

    final = _for(session, 1, n, [*carry, *stacked], body)
    results = dict(zip(kept, final[carried:]))
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
