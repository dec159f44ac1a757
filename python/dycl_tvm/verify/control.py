# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The unedited program in eager against a graph, on paths that an oracle forces: no input has to be found that takes a path."""

from __future__ import annotations

import linecache
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dycl_tvm.errors import VerificationError
from dycl_tvm.hcfg import vectors
from dycl_tvm.hcfg.hostops import Number
from dycl_tvm.hcfg.nodes import HCFG, Block, Branch, HostOp, Switch
from dycl_tvm.verify.alike import alike
from dycl_tvm.verify.budget import Budget, BuildBudget
from dycl_tvm.verify.certificate import Control, Level
from dycl_tvm.verify.coverage_map import Covered
from dycl_tvm.verify.crossings import Crossing
from dycl_tvm.verify.inputs import like
from dycl_tvm.verify.oracle import Oracle, candidates, constants_of, mixes_kinds
from dycl_tvm.verify.runs import Call, Difference, Interpreted, Outcome, Program, Undecided, compare, resized, run_graph, same_numbers
from dycl_tvm.verify.time_told import TimeTold

#: Where the estimate is far off, the search ends after so many times its budget, in seconds of the processor.
_MOST_TIMES = 5.0
#: Runs after everything is covered.
_RANDOM_RUNS = {"default": 8, "full": 400}
#: What an operation takes beside its arithmetic, in seconds: under observation, and in the graph.
_OBSERVED, _INTERPRETED = 4.5e-5, 1.5e-5
_CALLS = 3
#: Passes compute ahead and fold, so their results round in other places.
_LOOSE = 3.0
#: How often another way to an edge is tried; how often with more calls.
_TRIES_OF_AN_EDGE, _TRIES_WITH_CALLS = 24, 4
_TRIES_TO_SHRINK = 40
_RUNS_FOR_PINNED = 12
#: So often vectors are chosen at random, on inputs that decide by themselves.
_RUNS_FOR_VECTORS = 10
_TRIES_TO_TELL_APART = 4
#: Loops with bounds up to this are run to the end, for so many bounds.
_MOST_TRIPS, _MOST_BOUNDS = 80, 3


@dataclass(frozen=True)
class Plan:
    """One run: which inputs, how many calls, which answers."""

    script: tuple[Number | None, ...] = ()
    policy: str = "natural"
    seed: int = 0
    inputs: int = 0
    calls: int = _CALLS
    patience: int = 0


@dataclass
class Run:
    """A plan that was carried out."""

    plan: Plan
    given: list[tuple[Any, Number]]
    eager: list[Outcome]
    built: list[Outcome]


#: What is said of a network that asks for the time.
_MADE_UP = "what clocks say was made up, alike for the model and the graph; what depends on it differs from call to call"


class Checker:
    """Compares a program with a graph, run after run.

    Parameters
    ----------
    model : callable
        The user's, unedited.
    graph : HCFG
        What it was turned into.
    args, kwargs
        Example inputs.
    budget : Budget
        What all runs may take.
    as_data : set of int, optional
        Where the program is the graph before the passes: its steps that read a number for which passes may take the tensor.
    device : str
        As which machine the program draws random numbers.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        graph: HCFG,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        budget: Budget,
        *,
        as_data: set[int] | None = None,
        device: str = "cpu",
    ) -> None:
        decisions = sum(isinstance(b.terminator, (Branch, Switch)) for b in graph.blocks)
        self.program = Program(model, 400 + 3 * decisions, device)
        self.graph, self._as_data, self._passes = graph, as_data, as_data is not None
        #: Of a graph in the role of the program: which of its steps compute the same.
        self._alike = alike(model.graph) if isinstance(model, Interpreted) else {}
        self._args, self._kwargs = args, kwargs
        self._budget = budget
        self._constants, self._large = constants_of(graph), mixes_kinds(graph)
        self._prints = any(isinstance(s, HostOp) and s.op == "print" for b in graph.blocks for s in b.steps)
        self._time = TimeTold(graph)
        self.covered = Covered(graph)
        self.runs = self.calls = self.crossings = self.inconclusive = 0
        self.reasons: dict[str, None] = {}
        if self._time:
            self.reasons[_MADE_UP] = None
        self.pinned: dict[tuple[str, int, int], set[Number]] = {}
        self._reached: dict[Block, tuple[Run, int, int]] = {}
        self._tried: dict[tuple[Block, int], int] = {}

    def inputs(self, seed: int, calls: int) -> list[Call]:
        """Return the inputs of some calls: the examples first, then random ones."""
        if seed == 0:
            first = [(self._args, self._kwargs)]
        else:
            first = []
        generator = torch.Generator().manual_seed(seed)
        scale = (1.0, 1.0, 3.0, 10.0, 0.1)[seed % 5]
        while len(first) < calls:
            call = resized(self.graph, (self._args, self._kwargs), generator)
            first.append(like(call, generator, scale, seed % 4 == 3))
        return first

    def carry_out(self, plan: Plan) -> tuple[Run, Difference | None]:
        """Make one run in eager and in the graph."""
        oracle = Oracle(plan.script, plan.policy, plan.seed, self._constants, self._large, plan.patience)
        calls = self.inputs(plan.inputs, plan.calls)
        operations, work = self.program.operations, self.program.work
        try:
            with self._time.of(plan.seed, not self._passes):
                eager = self.program.run(calls, oracle, self.pinned)
        finally:
            operations, work = self.program.operations - operations, self.program.work - work
            self._budget.spend(operations * _OBSERVED + work)
        # Whether the graph asks for what no input has a part in (a loop's first trip) cannot be seen, nor which expression of a line
        # it asks for, nor whether a pass lets it ask once for what was computed twice: it agrees if it does in one of these ways.
        crossings, arrays = [o.crossings for o in eager], any(o.arrays for o in eager)
        ways = ((False, False, False), (True, False, False), (False, True, False), (False, False, True))
        for folded, columns, merged in ways[: 3 + self._passes]:
            if folded and all(c.free for asked in crossings for c in asked):
                continue
            with self._time.of(plan.seed, False):
                built = run_graph(self.graph, calls[: len(eager)], crossings, not self._passes, folded, columns, merged, arrays)
            self._budget.spend(operations * _INTERPRETED + work)
            found = compare(eager, built, _LOOSE if self._passes else 1.0, self._prints)
            if found is None:
                break
        return Run(plan, oracle.given, eager, built), found

    def check(self, plan: Plan) -> Run | None:
        """Make one run and count it.

        Raises
        ------
        VerificationError
            If the two differ.
        """
        try:
            run, found = self.carry_out(plan)
            while found is not None and self._pin(run, found):
                run, found = self.carry_out(replace(plan, script=tuple(a for c, a in run.given if c.site not in self.pinned)))
            if found is not None and self._as_data is not None:
                run, found = self._told_apart(plan, run, found)
            if found is not None:
                self._doubt_memory(run)
        except Undecided as reason:
            self.inconclusive += 1
            self.reasons[str(reason)] = None
            return None
        if found is not None:
            if found.soft and not self._again(run):
                self.inconclusive += 1
                self.reasons["a difference in digits that other inputs do not show"] = None
                return None
            raise VerificationError(self.explain(*self._shrink(run, found)))
        self.runs += 1
        self.calls += len(run.eager)
        base = 0
        for e, b in zip(run.eager, run.built):
            self.crossings += len(e.crossings)
            if b.answers is not None:
                self.covered.add(b.answers.edges)
                free = [0]
                seen: set[int] = set()
                for c in e.crossings:
                    if c.free and c.number not in seen:
                        seen.add(c.number)
                    free.append(len(seen))
                for block, _, used in b.answers.edges:
                    if block not in self._reached:
                        self._reached[block] = (run, base, base + free[min(used, len(free) - 1)])
                base += len(seen)
        return run

    def search(self, level: Level, seed: int) -> None:
        """Cover what can be covered, within the budget; the first run is always made."""
        spare = _RANDOM_RUNS[level]
        began = time.thread_time()
        budget = self._budget

        def enough() -> bool:
            if time.thread_time() - began > _MOST_TIMES * budget.seconds:
                self.reasons["runs took much longer than estimated, so fewer were made"] = None
                return True
            return not budget.allows(self._seconds_of_a_call())

        first = [
            Plan(inputs=0, calls=1),
            *([Plan(inputs=0, calls=2)] if not self._passes else ()),
            Plan(policy="yes", seed=seed + 1, inputs=1),
            Plan(policy="no", seed=seed + 1, inputs=2),
            *(Plan(policy=p, seed=seed, inputs=1, calls=1, patience=n) for n in self._bounds() for p in ("yes", "no")),
            *(Plan(policy="random", seed=seed + k, inputs=1 + k % 3) for k in range(1, 5)),
        ]
        for k, plan in enumerate(first):
            if k and enough():
                kinds = dict.fromkeys(p.policy for p in first[k:])
                self.reasons[f"a call is dear, so these kinds of runs were left out or shortened: {', '.join(kinds)}"] = None
                return
            self.check(replace(plan, calls=self._calls(plan.calls)))
            if plan.policy == "no" and not self.crossings and not self.covered.missing():  # there is one path
                if not enough():
                    self.check(Plan(inputs=3))
                return
        k = 10
        while not enough():
            k += 1
            wanted = self._towards_an_edge(seed + k)
            if wanted is not None:
                self.check(wanted)
                continue
            if spare == 0:
                return
            spare -= 1
            policy = ("random", "yes", "random", "no", "random", "natural")[k % 6]
            self.check(Plan(policy=policy, seed=seed + k, inputs=k % 7, calls=self._calls(_CALLS)))

    def _seconds_of_a_call(self) -> float:
        """Return what a call has taken so far, on both sides."""
        return self._budget.spent / max(1, self.calls)

    def _calls(self, wanted: int) -> int:
        """Return how many calls a run may have: fewer where a call is dear."""
        if not self.calls:
            return wanted
        return wanted if self._seconds_of_a_call() * wanted < self._budget.seconds / 8 else 1

    def _bounds(self) -> list[int]:
        """Return numbers of trips that lie beyond what the graph compares with: the bounds of its loops are among them."""
        bounds = sorted({int(c) + 2 for c in self._constants if type(c) is int and 3 < c <= _MOST_TRIPS}, reverse=True)
        return bounds[:_MOST_BOUNDS]

    def _towards_an_edge(self, seed: int) -> Plan | None:
        """Return a run like one that came to a decision, with another answer shortly before it."""
        for block, index in self.covered.missing():
            if block not in self._reached:
                continue
            tries = self._tried.get((block, index), 0)
            if tries >= _TRIES_OF_AN_EDGE:
                continue
            self._tried[block, index] = tries + 1
            run, _, used = self._reached[block]
            back, which = (0, tries) if tries < 12 else (1 + (tries - 12) // 4, (tries - 12) % 4)
            at = min(used, len(run.given)) - 1 - back
            if at < 0 and tries < _TRIES_WITH_CALLS:  # no answer leads there: it depends on what earlier calls have left
                return Plan((), ("random", "yes", "no")[tries % 3], seed, run.plan.inputs, self._calls(_CALLS * (2 + tries)))
            if at < 0:
                continue
            crossing, _ = run.given[at]
            pool = candidates(crossing, self._constants, self._large)
            if crossing.dtype == torch.bool:
                pool = [not run.given[at][1]]
            if which >= len(pool):
                continue
            script = (*(a for _, a in run.given[:at]), pool[which])
            return Plan(script, ("random", "yes", "no")[tries % 3], seed, run.plan.inputs, run.plan.calls)
        return None

    def _pin(self, run: Run, found: Difference) -> bool:
        """Pin what the graph did not ask for: it may compute by data what the program decides, such as the larger of two tensors.

        From then on the truth is the answer there; both answers must come up (:meth:`prove_pinned`).
        """
        if self._as_data is None:
            crossings = [c for b in run.built[: found.call + 1] if b.answers is not None for c in b.answers.unasked()]
        else:  # passes compute nothing by data but what is data before them, and may read a number once that is read twice
            asked = [c for e in run.eager[: found.call + 1] for c in e.crossings]
            data = {c.number for c in asked if c.site[2] in self._as_data}
            crossings = [c for c in asked if c.free and c.number in data]
        sites = [c.site for c in crossings]
        new = [s for s in sites if s not in self.pinned]
        for site in new:
            self.pinned[site] = set()
        return bool(new)

    def _told_apart(self, plan: Plan, run: Run, found: Difference) -> tuple[Run, Difference | None]:
        """Repeat a run in which one line read equal numbers and got different answers: passes may read them in another order, or once.

        They may also have found that what two lines read is computed alike.
        """

        def which(c: Crossing) -> tuple[Any, ...]:
            return self._alike[c.site[2]] if computed else tuple(c.lines[:1]), c.dtype, repr(c.real)

        for attempt in range(2 * _TRIES_TO_TELL_APART):
            computed = attempt >= _TRIES_TO_TELL_APART  # else by lines
            # What is pinned has the truth for its answer, so what equals it has that too.
            first = {which(c): c.real for e in run.eager for c in e.crossings if c.site in self.pinned}
            script = tuple(first.setdefault(which(c), a) for c, a in run.given)
            if script == tuple(a for _, a in run.given):
                if computed:
                    return run, found
                continue
            run, again = self.carry_out(replace(plan, script=script))
            if again is None:
                return run, None
            found = again
        raise Undecided("equal numbers of one line got different answers")

    def prove_pinned(self, seed: int) -> None:
        """Run on other inputs until what is never forced has had more than one answer by itself."""
        for k in range(_RUNS_FOR_PINNED):
            if all(len(seen) > 1 for seen in self.pinned.values()):
                return
            self.check(Plan(policy=("natural", "random", "yes", "no")[k % 4], seed=seed + k, inputs=20 + k))
        for (file, line, _), seen in self.pinned.items():
            if len(seen) < 2:
                self.reasons[f"{os.path.basename(file)}:{line}: what is decided there is computed by data, and had one outcome only"] = None

    def _doubt_memory(self, run: Run) -> None:
        """Repeat a run in eager where memory that nobody has written holds something else: what depends on it is the same in no program."""
        oracle = Oracle(tuple(a for _, a in run.given), run.plan.policy, run.plan.seed, self._constants, self._large, run.plan.patience)
        with self._time.of(run.plan.seed, not self._passes):
            filled = self.program.run(self.inputs(run.plan.inputs, run.plan.calls), oracle, self.pinned, filled=True)
        if not same_numbers(run.eager, filled):
            raise Undecided("the program gives, or decides by, memory that nobody has written")

    def _again(self, run: Run) -> bool:
        """Whether a difference in digits is there for other inputs too."""
        script = tuple(a for _, a in run.given)
        found = 0
        for k in range(1, 4):
            try:
                _, difference = self.carry_out(Plan(script, run.plan.policy, run.plan.seed, run.plan.inputs + k, run.plan.calls))
            except Undecided:
                continue
            found += difference is not None
        return found >= 2

    # -- what the user sees ------------------------------------------------------------------------------------------------
    def _shrink(self, run: Run, found: Difference) -> tuple[Run, Difference]:
        """Return a run with fewer calls, and with fewer answers that are not the truth, that differs still."""
        tries = _TRIES_TO_SHRINK

        def attempt(script: Sequence[Number | None], calls: int) -> bool:
            nonlocal run, found, tries
            tries -= 1
            try:
                other, difference = self.carry_out(Plan(tuple(script), "natural", 0, run.plan.inputs, calls))
            except Undecided:
                return False
            if difference is None or len(other.given) > len(run.given):
                return False
            run, found = other, difference
            return True

        attempt([a for _, a in run.given], found.call + 1)
        if not attempt([], found.call + 1):
            k = 0
            while k < len(run.given) and tries > 0:
                script = [a for _, a in run.given]
                crossing, answer = run.given[k]
                plain = fit_plain(crossing.dtype)
                simpler = [v for v in (plain, crossing.real) if repr(v) != repr(answer)]
                if repr(answer) == repr(plain) or not any(attempt([*script[:k], v, *script[k + 1 :]], found.call + 1) for v in simpler):
                    k += 1
        return run, found

    def explain(self, run: Run, found: Difference) -> str:
        """Return the message about a difference."""
        what = "what was built of {} does something else than the model" if not self._passes else "the passes change what {} does"
        eager, built = ("before", "after") if self._passes else ("eager", "as built")
        lines = [
            f"{what.format(self.graph.name)}: a defect of dycl_tvm. Nothing was written.",
            f"The smallest path found, by the numbers that tensors give to Python (call {found.call + 1} differs):",
        ]
        for k, outcome in enumerate(run.eager[: found.call + 1]):
            lines.append(f"  call {k + 1}" + ("" if outcome.crossings else ": no tensor decides anything"))
            for c in outcome.crossings[:40]:
                lines.append(f"    {_place(c.lines)} -> {c.answer!r}")
            if len(outcome.crossings) > 40:
                lines.append(f"    ... {len(outcome.crossings) - 40} more")
        lines.append(found.what)
        k = found.call
        lines.append(f"{eager}: {run.eager[k].text() if k < len(run.eager) else 'is not called any more'}")
        lines.append(f"{built}: {run.built[k].text() if k < len(run.built) else 'is not called any more'}")
        return "\n".join(lines)


def fit_plain(dtype: torch.dtype) -> Number:
    """Return the plainest answer of a dtype."""
    return False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0


def _place(lines: Sequence[tuple[str, int]]) -> str:
    if not lines:
        return "?"
    file, line = lines[0]
    return f"{os.path.basename(file)}:{line}: {linecache.getline(file, line).strip()}"


def check_control(
    model: Callable[..., Any],
    graph: HCFG,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    level: Level = "default",
    seed: int = 0,
    budget: Budget | None = None,
    device: str = "cpu",
) -> Control:
    """Check a staged graph against its program.

    Parameters
    ----------
    model : callable
        A module, method or function; it is run, and is as before afterwards.
    graph : HCFG
        As staged, before the passes.
    args, kwargs
        Example inputs.
    budget : Budget, optional
        By default that of a build at this level.
    device : str
        As which machine the program draws random numbers, ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    VerificationError
        If they differ: with the smallest path found and both results.
    """
    checker = Checker(model, graph, args, kwargs, budget or BuildBudget(level).for_control(), device=device)
    lost = checker.program.snapshot.lost
    if lost:
        return Control(reason=f"the model holds {sorted(lost)[0]}, whose state cannot be put back after a run")
    checker.search(level, seed)
    checker.prove_pinned(seed)
    if vectors.are_random():
        for k in range(_RUNS_FOR_VECTORS):
            checker.check(Plan(seed=seed + k, inputs=k, calls=1))
    pairs, pairs_total = checker.covered.pairs()
    return Control(
        method="forced",
        runs=checker.runs,
        calls=checker.calls,
        edges=int(checker.covered.taken.sum()),
        edges_total=len(checker.covered.taken),
        untaken=checker.covered.untaken(),
        pairs=pairs,
        pairs_total=pairs_total,
        trips=checker.covered.trip_counts(),
        crossings=checker.crossings,
        inconclusive=checker.inconclusive,
        reason="; ".join([*checker.reasons, *(f"a run has filled {what}, which is empty now" for what in sorted(lost))]),
    )
