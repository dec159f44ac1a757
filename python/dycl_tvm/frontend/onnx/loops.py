# Licensed under the Apache License, Version 2.0; see LICENSE.
"""One engine for Loop, Scan and SequenceMap.

A loop is *rolled* (a cycle in the HCFG, its state in block parameters) where every iteration carries the same types. Only what an iteration
changes is carried: the body is run on the assumption that it changes nothing, and again without the assumptions that were wrong.
Where a shape follows from the state or from the number of the iteration, where a sequence grows, or where branches give values of
several shapes, the loop is *unrolled*; that needs a bound. A way through the body that surely ends the loop (its condition is constantly
false there) leads straight out of it.

The length of a scan output, in this order:

1. trip count known and no condition that can end the loop early: that count;
2. the model declares a length: that one, and the artefact raises an error where a run gives another;
3. trip count known, with a condition: one way through the rest of the graph for each length that can come out, so the result is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.onnx.execute import Executor
from dycl_tvm.frontend.onnx.values import Datum, NeedsValue, Outcome, causes_of, is_runtime, leaves, rebuild, same, signature, tensor_type
from dycl_tvm.hcfg.nodes import Block, Branch, Edge, Jump, Operand, Switch, Value
from dycl_tvm.hcfg.types import BOOL, INT

#: Loops of at most this many iterations are unrolled.
UNROLL_BELOW = 2
#: No loop is unrolled further than this.
MAX_UNROLL = 1024
#: Exporters write "no bound" as the largest integer.
NO_BOUND = 1 << 31


@dataclass
class Loop:
    """A loop to run.

    Attributes
    ----------
    trip : int, tensor or None
        Number of iterations at most.
    cond : tensor or None
        Whether to begin.
    states : list
        The values that the first iteration gets.
    scans : int
        Number of values that each iteration adds to a scan output.
    body : callable
        ``body(number, cond, states)`` gives outcomes of ``[cond, *states, *scans]``.
    declared : list
        Length that the model declares, for each scan output.
    where : str
    stack : bool
        Scan outputs are stacked to tensors; False: they are lists.
    """

    trip: Any
    cond: Datum
    states: list[Datum]
    scans: int
    body: Callable[[torch.Tensor, torch.Tensor, list[Datum]], list[Outcome]]
    declared: list[int | None]
    where: str
    stack: bool = True

    @property
    def label(self) -> str:
        """What messages call the loop."""
        return f"the loop {self.where.rsplit('/', 1)[-1]!r}"


class NotRollable(Exception):
    """Iterations differ in more than values; the message says in what."""


def run_loop(ex: Executor, loop: Loop) -> list[Outcome]:
    """Run a loop; the outcomes hold the last states, then the scan outputs."""
    rec = ex.recorder
    if isinstance(loop.trip, torch.Tensor) and not is_runtime(loop.trip):
        loop.trip = int(loop.trip.reshape(-1)[0].item())
    if isinstance(loop.trip, int) and loop.trip >= NO_BOUND:
        loop.trip = None
    cond = torch.tensor(True) if loop.cond is None else loop.cond.reshape(())
    if not is_runtime(cond) and not bool(cond):
        loop.trip = 0
    known = loop.trip if isinstance(loop.trip, int) else None
    reason = "a shape follows from its state or from the number of the iteration"
    if ("loop", loop.where) not in ex.forced and loop.stack and (known is None or known > UNROLL_BELOW):
        before = rec.block
        try:
            return _Rolled(ex, loop, cond).run()
        except NotRollable as error:
            # Nothing that leads from here has been kept: the blocks of the attempt are not reached.
            reason, rec.block = str(error), before
    exact = _declared(loop) if known is None else None
    count = known if known is not None else exact
    if count is None:
        origin, trip = rec.origin, loop.trip
        what = f"{loop.label} must be unrolled, because {reason}; for that its trip count must be known when the network is built"
        if trip is None:
            raise UnsupportedError(what, origin, "give the loop a trip count; the condition may still end it early")
        raise NeedsValue(what, origin, causes_of(trip))
    if count > MAX_UNROLL:
        raise UnsupportedError(
            f"{loop.label} of {count} iterations cannot be rolled, because {reason}, and at most {MAX_UNROLL} are unrolled",
            rec.origin,
            "carry tensors of one shape from iteration to iteration",
        )
    return _unroll(ex, loop, cond, max(count, 0), exact is not None)


def _declared(loop: Loop) -> int | None:
    lengths = {n for n in loop.declared if n is not None}
    return lengths.pop() if len(lengths) == 1 else None


class _Rolled:
    def __init__(self, ex: Executor, loop: Loop, cond: torch.Tensor) -> None:
        self.ex, self.rec, self.loop = ex, ex.recorder, loop
        self.carried: list[Datum] = [cond, *loop.states]
        self.start = list(leaves(self.carried))
        self.shape = signature(self.carried)
        self.causes = causes_of(self.carried, loop.trip) | {("loop", loop.where)}

    def run(self) -> list[Outcome]:
        loop, rec, before = self.loop, self.rec, self.rec.block
        trip: Operand | None = rec.item(loop.trip) if isinstance(loop.trip, torch.Tensor) else loop.trip
        varying: set[int] = set()
        while True:
            header, params, inside, number, outcome, after, stops = self.body(varying)
            new = {k for k, (a, b) in enumerate(zip(inside, after)) if k not in varying and not same(a, b)}
            if not new:
                break
            varying |= new
        scans = outcome.values[len(self.carried) :]
        cond = inside[0]
        if trip is None and not is_runtime(cond) and not stops:
            raise UnsupportedError(
                "a loop without trip count whose condition is always true never ends", rec.origin, "give it a trip count"
            )
        length, exact, switch = self.length(trip, cond) if loop.scans else (0, False, False)
        entered: list[Operand] = [0, *(rec.operand(self.start[k]) for k in sorted(varying))]
        body, buffers, written = params["body"], [], []
        if exact:
            # Before the body: a run that is longer than declared must not write behind the end.
            body = self.guard(body, "lt", params["number"], length)
        rec.block = outcome.block
        for row in scans:
            if not isinstance(row, torch.Tensor):
                raise NotRollable("a scan output is not a tensor")
            zeros = torch.zeros((length, *row.shape), dtype=row.dtype)
            param = Value(tensor_type(zeros, rec.origin))
            header.params.append(param)
            entered.append(rec.operand(zeros))
            buffers.append(rec.wrap(param, self.causes | causes_of(row)) if zeros.numel() else zeros)
            made = torch.ops.aten.index_copy.default(buffers[-1], 0, number.reshape(1), row.unsqueeze(0)) if zeros.numel() else zeros
            written.append(made)
        if outcome.values:
            following = rec.host("add", params["number"], 1, type_=INT)
            back: list[Operand] = [following, *(rec.operand(after[k]) for k in sorted(varying)), *(rec.operand(t) for t in written)]
            rec.block.terminator = Jump(Edge(header, back))
        before.terminator = Jump(Edge(header, entered))
        rec.block = header
        goes: Operand | None = None if trip is None else rec.host("lt", params["number"], trip, type_=BOOL)
        if is_runtime(cond):
            holds = rec.item(cond, BOOL)
            goes = holds if goes is None else rec.host("and", goes, holds, type_=BOOL)
        leave = Block("loop.exit", origin=rec.origin)
        stopped = [Outcome(o.block, o.values[1 : len(self.carried)]) for o in stops]
        if goes is None:
            header.terminator = Jump(Edge(body))
            return self.ex.settle(stopped, f"{loop.where}.exit", self.causes)
        header.terminator = Branch(goes, Edge(body), Edge(leave), rec.origin)
        states = list(rebuild(self.carried, iter(inside))[1:])
        if exact:
            leave = self.guard_after(leave, params["number"], length)
        if switch:
            return self.by_length(leave, params["number"], states, buffers, length)
        return self.ex.settle([Outcome(leave, [*states, *buffers]), *stopped], f"{loop.where}.exit", self.causes)

    def body(
        self, varying: set[int]
    ) -> tuple[Block, dict[str, Any], list[torch.Tensor], torch.Tensor, Outcome, list[torch.Tensor], list[Outcome]]:
        """Run the body with some of the state in block parameters.

        The last results are the way that goes on (without values if there is none), what it carries, and the ways that lead out.
        """
        rec = self.rec
        header, body = Block("loop", origin=rec.origin), Block("loop.body", origin=rec.origin)
        number = Value(INT, "iteration")
        header.params = [number]
        inside: list[torch.Tensor] = []
        for k, t in enumerate(self.start):
            if k in varying:
                param = Value(tensor_type(t, rec.origin))
                header.params.append(param)
                inside.append(rec.wrap(param, self.causes) if t.numel() else t)
            else:
                inside.append(t)
        rec.block, origin = body, rec.origin
        as_tensor = rec.to_tensor(number, torch.int64, self.causes)
        cond, *states = rebuild(self.carried, iter(inside))
        outcomes = self.loop.body(as_tensor, cond, states)
        rec.origin = origin
        # The rows of scan outputs are counted at the header.
        stops = [o for o in outcomes if not self.loop.scans and not is_runtime(o.values[0]) and not bool(o.values[0])]
        going = self.ex.join([o for o in outcomes if not any(o is s for s in stops)], f"{self.loop.where}.body", self.causes)
        if not going:
            return header, {"body": body, "number": number}, inside, as_tensor, Outcome(body, []), inside, stops
        if len(going) != 1:
            raise NotRollable("its branches give values of different shapes")
        values = going[0].values
        values[0] = values[0].reshape(())
        after = values[: len(self.carried)]
        if signature(after) != self.shape:
            raise NotRollable("an iteration changes the shape, the type or the number of the values that it carries")
        return header, {"body": body, "number": number}, inside, as_tensor, going[0], list(leaves(after)), stops

    def length(self, trip: Operand | None, cond: torch.Tensor) -> tuple[int, bool, bool]:
        """Return the length of the scan outputs, whether to check it, and whether there is one way for each."""
        known = trip if isinstance(trip, int) else None
        if known is not None and not is_runtime(cond):
            return known, False, False
        declared = _declared(self.loop)
        if declared is not None:
            return declared, True, False
        if known is None:
            raise NeedsValue(
                f"the scan outputs of {self.loop.label} are as long as it has iterations, which nothing bounds when the network is built",
                self.rec.origin,
                causes_of(self.loop.trip) if isinstance(self.loop.trip, torch.Tensor) else frozenset(),
                "give the loop a constant trip count (the condition may still end it early), or declare the length in value_info",
            )
        if known > self.ex.max_paths:
            raise UnsupportedError(
                f"the scan outputs of {self.loop.label} have one of {known + 1} lengths, and at most {self.ex.max_paths} ways are followed",
                self.rec.origin,
                "raise max_paths, or write into a state tensor of fixed size instead",
            )
        return known, False, True

    def guard(self, body: Block, op: str, number: Value, length: int) -> Block:
        check, wrong = Block("loop.check", origin=self.rec.origin), Block("loop.wrong", origin=self.rec.origin)
        self.rec.block = check
        fits = self.rec.host(op, number, length, type_=BOOL)
        check.terminator = Branch(fits, Edge(body), Edge(wrong), self.rec.origin)
        self.ex.raise_(wrong, "ValueError", _wrong(self.loop, length))
        return check

    def guard_after(self, leave: Block, number: Value, length: int) -> Block:
        fine = Block("loop.done", origin=self.rec.origin)
        leave.terminator = Jump(Edge(self.guard(fine, "eq", number, length)))
        return fine

    def by_length(self, leave: Block, number: Value, states: list[Datum], buffers: list[torch.Tensor], length: int) -> list[Outcome]:
        rec = self.rec
        # A condition that holds at the start lets at least one iteration run.
        least = 0 if is_runtime(self.start[0]) else 1
        rec.block = leave
        index = rec.host("sub", number, least, type_=INT)
        outcomes = []
        for k in range(least, length + 1):
            rec.block = Block(f"loop.exit{k}", origin=rec.origin)
            outcomes.append(Outcome(rec.block, [*states, *(b.narrow(0, 0, k) for b in buffers)]))
        leave.terminator = Switch(index, [Edge(o.block) for o in outcomes], rec.origin)
        return outcomes


def _wrong(loop: Loop, length: int) -> str:
    return f"{loop.label} did not run the {length} iterations that the model declares for its scan outputs"


def _unroll(ex: Executor, loop: Loop, cond: torch.Tensor, count: int, exact: bool) -> list[Outcome]:
    rec = ex.recorder
    trip: Operand | None = rec.item(loop.trip) if isinstance(loop.trip, torch.Tensor) else None
    ways = [Outcome(rec.block, [cond, *loop.states, *([] for _ in range(loop.scans))])]
    first = 1 + len(loop.states)
    exits: list[Outcome] = []
    causes = causes_of(loop.trip, cond)
    for k in range(count + 1):
        following: list[Outcome] = []
        for way in ways:
            rec.block = way.block
            goes = _goes(ex, way.values[0], trip, k)
            causes |= causes_of(way.values[0])
            last = k == count
            if last and not exact:
                exits.append(way)
                continue
            if not isinstance(goes, Value):
                if bool(goes) is not last:
                    (exits if last else following).append(way)
                elif exact:
                    ex.raise_(way.block, "ValueError", _wrong(loop, count))
                else:
                    exits.append(way)
                continue
            on, off = Block(f"loop.step{k}", origin=rec.origin), Block(f"loop.exit{k}", origin=rec.origin)
            way.block.terminator = Branch(goes, Edge(on), Edge(off), rec.origin)
            if exact:
                ex.raise_(on if last else off, "ValueError", _wrong(loop, count))
            else:
                exits.append(Outcome(off, way.values))
            if last:
                exits.append(Outcome(off, way.values))
            else:
                following.append(Outcome(on, way.values))
        if k == count:
            break
        made: list[Outcome] = []
        for way in following:
            rec.block, origin = way.block, rec.origin
            for outcome in loop.body(torch.tensor(k), way.values[0], way.values[1:first]):
                rec.block = outcome.block
                head = [outcome.values[0].reshape(()), *outcome.values[1:first]]
                rows = [[*old, new] for old, new in zip(way.values[first:], outcome.values[first:])]
                made.append(Outcome(rec.block, [*head, *rows]))
            rec.origin = origin
        ways = ex.join(made, f"{loop.where}.step", causes)
        if not ways:
            break
    found = ex.join(exits, f"{loop.where}.exit", causes)
    return [_finished(ex, loop, outcome, first) for outcome in found]


def _goes(ex: Executor, cond: torch.Tensor, trip: Operand | None, k: int) -> Operand:
    """Return whether iteration ``k`` runs, the bound by a known count aside."""
    holds = ex.recorder.item(cond, BOOL)
    if trip is None or holds is False:
        return holds
    fits = ex.recorder.host("lt", k, trip, type_=BOOL)
    return fits if holds is True else ex.recorder.host("and", fits, holds, type_=BOOL)


def _finished(ex: Executor, loop: Loop, outcome: Outcome, first: int) -> Outcome:
    rec = ex.recorder
    states, rows = outcome.values[1:first], outcome.values[first:]
    if not loop.stack:
        return Outcome(outcome.block, [*states, *rows])
    if rows and not rows[0]:
        # No iteration ran; only the body tells the shapes of the elements. What it records here is thrown away.
        rec.block = Block("loop.probe", origin=rec.origin)
        probe = loop.body(torch.tensor(0), torch.tensor(True), states)[0].values[first:]
        return Outcome(outcome.block, [*states, *(torch.empty((0, *t.shape), dtype=t.dtype) for t in probe)])
    rec.block = outcome.block
    return Outcome(outcome.block, [*states, *(torch.stack(r, 0) for r in rows)])
