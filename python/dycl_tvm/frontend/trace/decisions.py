# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which side of a branch a run takes: decisions whose sides are explored in place, forks, and the runs that are still to be made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from dycl_tvm.errors import DyclError, UnsupportedError
from dycl_tvm.frontend.trace.clock import clock
from dycl_tvm.frontend.trace.control_flow import ForkRequired, Restart, with_others
from dycl_tvm.frontend.trace.limits import MAX_TRIPS, Limits
from dycl_tvm.frontend.trace.record import Builder, Event
from dycl_tvm.hcfg.nodes import Block, Operand, Origin, Value

#: So many trips of a loop are unrolled if all are.
ALL_TRIPS = 2**62
#: If paths that leave an unrolled loop could not be joined so often, those that leave it later part at once.
_NOT_JOINED = 2


@dataclass(eq=False)
class Decision:
    """A decision both sides of which are explored.

    ``index`` is its event number; ``target`` the decision to fork so that this one's sides part for good: the earliest
    one that was still open around it, or itself.
    """

    index: int
    block: Block | None
    steps: int
    cond: Operand | None
    origin: Origin | None
    clock: int
    target: Any = None
    #: Whether sides of it are still to be joined where they end; else some of them wait at the target of a jump only, which has begun then.
    joins: bool = True
    bound_for: int = 0
    #: It is a loop: "forking" it runs its first iterations unrolled.
    is_loop: bool = False
    unroll: int = 0
    #: What is raised if the loop does not end by itself within the trips that are unrolled; None where the user gave the bound.
    refusal: UnsupportedError | None = None
    #: Whether tensors were let grow in the loop, or paths part in its trips; and whether that is left alone, because it did not do.
    tried: bool = False
    simply: bool = False
    #: Whether numbers that grow by as much in every trip are lengths: one was needed as a size.
    counts: bool = False
    #: Of a loop of which Python knows how many trips it makes: so many, from where it is rolled. Unrolled, it always ends by itself.
    most: int | None = None
    #: How many trips of such a loop are unrolled at first, because fewer did not do elsewhere.
    begins_with: int = 0
    #: Of a loop over a range whose end the run tells: so many trips it makes at most; None if they are too many for buffers.
    trips: int | None = None
    #: Whether a loop is rolled though Python knows its condition, because paths part in its trips; False if that did not do.
    alike: bool | None = None
    #: Whether the condition of such a loop is being computed: there, the number of a trip may decide a test.
    at_condition: bool = False
    #: Whether paths meet at the end of each trip though the trips are unrolled, because they part in several; False if that did not do.
    meets: bool | None = None
    #: How the tests were answered, at which paths parted for good in unrolled trips, by each path that has begun a trip of a number.
    ways: dict[int, set[tuple[bool, ...]]] = field(default_factory=dict)
    #: It is one trip of such a loop.
    trip_of: Decision | None = None
    #: It is a call of a function that calls itself: "unrolled" once, this call is made as it stands; more often, all are. With ``peeled``,
    #: the first was already.
    recursion: bool = False
    peeled: bool = False
    #: It is a choice among objects; forked, it is made by one test an object.
    choice: bool = False

    def begin_counted(self) -> int:
        """Return how many trips of a loop are unrolled of which Python knows how many it makes."""
        self.unroll = max(self.unroll, self.begins_with)
        return self.unroll

    @property
    def parts(self) -> bool:
        """Whether paths may part in the trips of a loop, and meet at the end of the trip."""
        return self.is_loop and not self.recursion and not self.simply

    @property
    def is_tried(self) -> bool:
        """Whether a loop is rolled that could be unrolled, or paths meet that could go on alone: nothing that fails for it is an error."""
        return self.is_loop and (self.most is not None or True in (self.alike, self.meets) or self.trip_of is not None)


class Facts:
    """What is known on the path at hand, because it has passed a test: the answers to conditions, and what numbers of the run are."""

    def __init__(self) -> None:
        self.answers: dict[Value, bool] = {}
        self.numbers: dict[Any, int] = {}

    def clear(self) -> None:
        """Forget all: another path begins."""
        self.answers.clear()
        self.numbers.clear()


@dataclass(frozen=True)
class Round:
    """One run of the body of a rolled loop, which began at an event and at a moment; ``facts`` hold to the end of a path through it."""

    began: int
    loop: Decision
    moment: int = 0
    facts: Facts = field(default_factory=Facts)


#: What to write where the calls of a recursion make something longer.
_IN_A_TENSOR = (
    "write into a tensor that is large enough, at the number of the node or at a number that counts: "
    "self.states[self.n] = h; self.n += 1 (with self.states = x.new_zeros(most, size), self.n = 0 before the first call), and read "
    "self.states[: self.n] after it"
)


class Decisions:
    """The decisions of the run at hand, and the runs that forks asked for."""

    def __init__(self, builder: Builder, limits: Limits, origin: Callable[[], Origin | None]) -> None:
        self._builder, self._limits, self._origin = builder, limits, origin
        #: Decisions one of whose sides waits to be joined with the path at hand.
        self.opened: list[Decision] = []
        #: Paths that left by a jump, and wait to be joined at its target: (moment, decision that they come from).
        self.waiting: list[tuple[int, Decision]] = []
        #: The rounds of the rolled loops around the place at hand.
        self.rolling: list[Round] = []
        #: The rounds that were recorded, each with the number of the event after it: what stands there cannot part any more.
        self.rolled: list[tuple[Round, int]] = []
        #: The events with which the runs begin that are still to be made.
        self.pending: list[list[Event]] = []
        #: How often each decision was forked, and why the last time.
        self.forks: dict[Origin | None, int] = {}
        self.causes: dict[Origin | None, ForkRequired] = {}
        #: How many runs only tried what need not be: they are no paths.
        self.tries = 0
        #: How often a decision at a place was explored in place first, and forked because its sides had not been joined.
        self._not_joined: dict[Origin | None, int] = {}
        #: How many trips are unrolled of loops of which Python knows how many they make.
        self._unrolled: dict[Origin | None, int] = {}
        #: Which loops were found to be rolled better, or not to be, whatever Python knows of their conditions.
        self._alike: dict[Origin | None, bool] = {}
        #: In the trips of which unrolled loops paths meet, and of which they do not.
        self._meets: dict[Origin | None, bool] = {}
        #: What is known to the end of the run at hand.
        self._facts = Facts()

    def begin_run(self) -> None:
        """Forget what belongs to the run before."""
        self.opened, self.rolling, self.rolled, self.waiting = [], [], [], []
        self._facts = Facts()

    def learn(self, before: Decisions) -> None:
        """Take over which loops were found to be rolled better, when the program is staged from its beginning once more."""
        self._alike.update({origin: True for origin, alike in before._alike.items() if alike})

    # -- tests that are decided ---------------------------------------------------------------------------------------------
    def decide(self, cond: Operand, origin: Origin | None = None) -> bool:
        """Decide a truth test that cannot be explored in place: follow one side, and leave the other to another run.

        ``origin`` is that of the code at hand unless it is given.
        """
        if not isinstance(cond, Value):
            return bool(cond)
        known = self.answer(cond)
        if known is not None:
            return known
        reason, origin = "a truth test stands where both sides cannot be explored in place", origin or self._origin()
        if self.parts_in_trip():
            self.fork(self._parting(cond, origin).target, reason)
        if self.opened:
            self.fork(self.opened[0].target, reason)
        if self.rolling:
            self.part_in_loop(reason, self._origin())
        builder = self._builder
        self._count(origin)
        then, orelse = builder.part(builder.here(), cond, origin)
        self.pending.append([*builder.events, orelse])
        _, (_, block), undo = then
        builder.event(("decide",), lambda: (True, block), undo)
        builder.block = block
        return self._note(cond, True)

    def answer(self, cond: Value) -> bool | None:
        """Return the answer to a test, if this run was started with it, or has passed a test of the same number."""
        known = next((facts.answers[cond] for facts in self._known() if cond in facts.answers), None)
        return self.decided(cond) if known is None else known

    def is_one_of_several(self) -> bool:
        """Whether other calls take other paths than the one at hand."""
        return bool(self.opened or self.rolling or self.waiting or self._facts.answers or self._facts.numbers)

    def is_answered_for_good(self, cond: Value) -> bool:
        """Whether the answer to a test is known to the end of the run."""
        return cond in self._facts.answers

    def number(self, what: Any) -> int | None:
        """Return what a number of the run is on the path at hand, if that was decided; ``what`` stands for the number."""
        return next((facts.numbers[what] for facts in self._known() if what in facts.numbers), None)

    def note_number(self, what: Any, number: int) -> None:
        """Note what a number of the run is, as tests have decided that it is no other."""
        self._known()[-1].numbers[what] = number

    def _known(self) -> list[Facts]:
        """Return what is known on the path at hand: to the end of the run, and to the end of each trip of a rolled loop around it."""
        return [self._facts, *[trip.facts for trip in self.rolling]]

    def _note(self, cond: Operand, answer: bool) -> bool:
        others = not self.parts_in_trip() and (self.opened or self.rolling or self.waiting)  # joined with a path of another answer
        if not others and isinstance(cond, Value):
            self._known()[-1].answers[cond] = answer
        return answer

    def parts_in_trip(self) -> bool:
        """Whether paths may part in the trip at hand, and meet at its end."""
        return bool(self.rolling) and self.rolling[-1].loop.parts

    def decided(self, cond: Operand) -> bool | None:
        """Return the decision that this run was started with for the test at hand, if there is one."""
        event = self._builder.peek()
        if event is None or event[0] != ("decide",):
            return None
        choice, block = self._builder.event(("decide",), lambda: None)
        self._builder.block = block
        return self._note(cond, bool(choice))

    def decide_exit(self, cond: Operand) -> bool | None:
        """Decide whether an unrolled loop goes on, if that is decided already, or paths that left it before could not be joined.

        To explore such a test in place would be a run to the end of the program for each trip, only to find that out again.
        """
        decided = self.decided(cond)
        if decided is not None or self.opened or self.rolling or self._not_joined.get(self._origin(), 0) < _NOT_JOINED:
            return decided
        return self.decide(cond)

    # -- decisions that are explored in place -------------------------------------------------------------------------------------
    def open(self, cond: Operand, choice: bool = False) -> Decision:
        """Begin to explore all sides of a decision."""
        decision = self._make(cond, choice)
        decision.joins, decision.bound_for = True, 0
        self.opened.append(decision)
        return decision

    def of_kind(self, flag: Value, origin: Origin | None = None) -> bool | Decision:
        """Return whether a flag of a value of several kinds holds, if this run was started with that; else what parts the paths here.

        In a trip of a rolled loop they part to the end of the trip, whatever is open around the loop, and whatever waits behind it.
        """
        known = self.answer(flag)
        return self._parting(flag, origin) if known is None else known

    def _parting(self, cond: Value, origin: Origin | None) -> Decision:
        """Return what parts the paths at the place at hand by a condition."""
        decision = self._make(cond, False)
        decision.origin = origin or decision.origin
        if self.parts_in_trip():
            trip = self.rolling[-1]
            inside = [d for d in self.opened if d.index >= trip.began and (d.joins or d.bound_for > trip.moment)]
            decision.target = inside[0].target if inside else decision
        return decision

    def is_rolled(self, decision: Any) -> bool:
        """Whether a decision is in the body of a loop that is recorded as one, or that loop: paths cannot part there any more.

        A path that repeats another one up to where they part has the answers of that one: its loops may have ended since.
        """

        def answer() -> bool:
            return any(r.loop is decision or r.began <= decision.index < end for r, end in self.rolled)

        return bool(self._builder.event(("is rolled",), answer))

    def choice(self) -> Decision:
        """Return a decision for a choice that is not explored where it is made."""
        return self._make(None, True)

    def chosen_by_tests(self) -> bool:
        """Whether the choice at hand was forked."""
        event = self._builder.peek()
        if event is None or event[0] != ("choose",):
            return False
        self._builder.event(("choose",), lambda: None)
        return True

    def _make(self, cond: Operand | None, choice: bool) -> Decision:
        index = self._builder.cursor
        block, steps = self._builder.mark()
        decision: Decision = self._builder.event(
            ("explore",), lambda: Decision(index, block, steps, cond, self._origin(), next(clock), choice=choice)
        )
        decision.target = self.opened[0].target if self.opened else decision
        return decision

    def close(self, decision: Decision) -> None:
        """Note that nothing waits any more to be joined with a side of the decision."""
        if decision in self.opened:
            self.opened.remove(decision)
        self.waiting = [w for w in self.waiting if w[1] is not decision]

    def holds(self, decision: Any) -> bool:
        """Whether a decision is one of the run at hand: what was noted of one that was taken back, or of another run, is no more."""
        if not isinstance(decision, Decision):
            return True  # what stands in the place of one
        events = self._builder.events
        return decision.index < len(events) and events[decision.index][1] is decision

    def wait(self, decision: Decision | None) -> None:
        """Note that the path at hand waits from now on: what is changed later must not show on it."""
        if decision is not None:
            self.waiting.append((next(clock), decision))

    def loop(self) -> Decision:
        """Begin a loop that may be rolled."""
        index = self._builder.cursor

        def make() -> Decision:
            origin = self._origin()
            alike, begins_with = self._alike.get(origin), self._unrolled.get(origin, 0)
            unroll = begins_with if alike else 0
            meets = self._meets.get(origin)
            return Decision(index, None, 0, None, origin, 0, is_loop=True, unroll=unroll, begins_with=begins_with, alike=alike, meets=meets)

        decision: Decision = self._builder.event(("loop",), make)
        decision.target, decision.clock = decision, next(clock)
        decision.counts = False  # a path that repeats another one finds that out where that did
        return decision

    def trip(self, loop: Decision) -> Decision:
        """Begin an unrolled trip of a loop, in which paths may part, and meet at its end."""
        index = self._builder.cursor
        trip: Decision = self._builder.event(("trip",), lambda: Decision(index, None, 0, None, loop.origin, 0, is_loop=True, trip_of=loop))
        trip.target, trip.clock = trip, next(clock)
        return trip

    def checkpoint(self) -> Any:
        """Take down which decisions are open (for a loop that may take back a round)."""
        return list(self.opened), list(self.rolling), list(self.waiting), list(self.rolled)

    def restore_checkpoint(self, saved: Any) -> None:
        """Forget the decisions that were opened since :meth:`checkpoint`."""
        self.opened, self.rolling, self.waiting, self.rolled = [list(s) for s in saved]

    def end_rolled(self, saved: Any, loop: Decision) -> None:
        """A rolled loop has ended: what parts at a decision in its body from now on parts where the loop begins, or before."""
        self.rolled.append((self.rolling.pop(), self._builder.cursor))
        around = saved[0]
        for decision in self.opened:
            if decision not in around:
                decision.target = around[0].target if around else loop

    def split_counted(self, error: DyclError) -> bool:
        """Split the last loop of this run that is rolled though it need not be, if there is one: an error may be due to that."""
        rolled = [result for key, result, _ in self._builder.events if key == ("loop",) and result.is_tried]
        if rolled:
            self.split(self._rolled_less(rolled[-1], str(error)))
        return bool(rolled)

    def _rolled_less(self, decision: Decision, reason: str) -> ForkRequired:
        """Return what takes the first trip out of a loop that is rolled though it need not be, unrolls it, or parts its paths for good."""
        loop = decision.trip_of or decision
        if loop.meets:
            return ForkRequired(loop, reason, loop.unroll, meets=False)
        if not decision.alike:
            return ForkRequired(decision, reason, ALL_TRIPS)
        return ForkRequired(decision, reason, alike=False) if decision.unroll else ForkRequired(decision, reason, 1)

    def roll_at_once(self, loop: Decision) -> None:
        """Re-run with a loop rolled from its first trip on, if that was not tried: what a trip makes code of is made again by each."""
        if loop.alike is None and loop.unroll <= 1:
            raise ForkRequired(loop, "the trips of a loop are tried as one", loop.unroll, alike=True)

    def meet_in_trips(self, loop: Decision) -> None:
        """Re-run with paths that meet at the end of each trip of an unrolled loop, if that was not tried: they double the code else."""
        if loop.meets is None and not self.rolling:
            raise ForkRequired(loop, "paths part in several trips of a loop", loop.unroll, meets=True)

    # -- forks --------------------------------------------------------------------------------------------------------------
    def fork(self, decision: Any, reason: str, others: object = "") -> None:
        """Re-run with ``decision`` fixed. Does not return.

        Parameters
        ----------
        decision : Decision
            Or what stands in the place of one that cannot be forked, and refuses.
        reason : str
        others : object
            Its text lists what else would have to be forked here; it is made only for an error.
        """
        if not isinstance(decision, Decision):
            decision.refuse(reason, others)
        decision = min((r.loop for r, end in self.rolled if r.began <= decision.index < end), key=lambda d: d.index, default=decision)
        if decision.recursion:
            self.unroll_recursion(decision, reason, others)
        if decision.is_loop and (decision.meets or decision.trip_of is not None):
            raise self._rolled_less(decision, reason)
        if decision.is_loop and not decision.unroll:
            raise ForkRequired(decision, reason, 1, others)
        if decision.is_loop:
            sentence = f"{reason}; the loop's trip count is known only at run time, so its state must keep one type"
            refusal = UnsupportedError(
                with_others(sentence, others),
                self._origin() or decision.origin,
                "give the variable a value of its final type and shape before the loop, or give the loop a bound: "
                "build(..., max_loop_trips=N)",
            )
            self.unroll(decision, refusal)
        raise ForkRequired(decision, reason, others=others)

    def refuse_in_loop(self, fork: ForkRequired, loop: Decision) -> None:
        """A decision in the body of a rolled loop could not be forked there: if no loop around it can do so, unroll."""
        decision = fork.decision
        if decision.is_loop or self.rolling[0].loop is not loop or decision.index < self.rolling[0].began:
            return
        self.part_in_loop(fork.args[0], decision.origin, fork.others)

    def follow(self, decision: Decision) -> bool:
        """Fork a decision whose first side is being run, by going on with that side in this run; return whether that can be done.

        It can if nothing else waits, and nothing on the side was made for a join with the other.
        """
        if self.opened != [decision] or self.rolling:
            return False
        other = self._builder.follow(decision.index)
        if other is None:
            return False
        self._count(decision.origin)
        self.pending.append([*self._builder.events[: decision.index], other])
        self.close(decision)
        if decision.cond is not None:
            self._note(decision.cond, True)
        return True

    def count_trips(self) -> None:
        """Begin the innermost loop that is being rolled again, with the numbers that grow in it as lengths: one is needed as a size."""
        loop = self.rolling[-1].loop if self.rolling else None
        if loop is not None and not (loop.counts or loop.simply or loop.recursion or loop.trip_of is not None):
            loop.counts = True
            raise Restart(loop)

    def unroll(self, decision: Decision, refusal: DyclError) -> None:
        """Re-run with a loop unrolled, because its trips cannot be one. Does not return.

        It is unrolled up to the bound that the user gave; without one it has to end by itself, or is refused.
        """
        if decision.is_tried:
            raise self._rolled_less(decision, str(refusal))
        if decision.unroll > 1:
            raise decision.refusal or refusal
        if decision.tried and not decision.simply:
            raise ForkRequired(decision, str(refusal), simply=True)
        bound = self._limits.loop_trips
        raise ForkRequired(decision, str(refusal), bound or MAX_TRIPS, refusal=refusal if bound is None else None)

    def unroll_recursion(self, decision: Decision, reason: str, others: object = "", instead: str = "") -> None:
        """Re-run with the first call of a recursion made as it stands, or all: they cannot be one procedure. Does not return."""
        refusal = UnsupportedError(
            with_others(f"{reason}, and the depth of the recursion is known only at run time", others),
            self._origin() or decision.origin,
            instead or "let all calls give, leave and return values of the same types and shapes, or write the recursion as a loop",
        )
        raise ForkRequired(decision, str(refusal), MAX_TRIPS if decision.peeled else 1, refusal=refusal)

    def unroll_grown(self, decision: Decision, reason: str, others: object) -> None:
        """Re-run with a loop unrolled, because its state grows. Does not return."""
        if decision.recursion:
            self.unroll_recursion(decision, reason, others, _IN_A_TENSOR)
        longest = "" if self._limits.length is not None else "how long what grows may get, build(..., max_length=N), or "
        refusal = UnsupportedError(
            with_others(f"{reason}, and the loop's trip count is known only at run time", others),
            self._origin() or decision.origin,
            f"write into a tensor of fixed size, or say {longest}how many trips the loop makes, build(..., max_loop_trips=N)",
        )
        self.unroll(decision, refusal)

    def part_in_loop(self, reason: str, origin: Origin | None, others: object = "", loop: Decision | None = None) -> None:
        """Paths cannot part for good within a loop that will be a loop in the HCFG: it is unrolled. Does not return."""
        if (loop or self.rolling[0].loop).recursion:
            self.unroll_recursion(loop or self.rolling[0].loop, f"two paths through the function cannot be joined ({reason})", others)
        sentence = f"two paths through the body of a loop cannot be joined ({reason}), and the loop's trip count is known only at run time"
        refusal = UnsupportedError(
            with_others(sentence, others),
            origin,
            "leave variables and containers with the same type and length on all paths through the body, "
            "keep break and return out of try and with, or give the loop a bound: build(..., max_loop_trips=N)",
        )
        self.unroll(loop or self.rolling[0].loop, refusal)

    def split(self, fork: ForkRequired) -> None:
        """Give each side of a decision a run of its own from the decision on."""
        decision: Decision = fork.decision
        builder = self._builder
        self._count(decision.origin)
        self.causes[decision.origin] = fork
        self.tries += decision.is_loop and bool(fork.alike or fork.meets or decision.is_tried)
        events, own = builder.events[: decision.index], builder.events[decision.index]
        builder.undo_to(decision.index)
        self.pending = [w for w in self.pending if len(w) <= decision.index or w[decision.index] is not own]
        if decision.is_loop:
            alike = decision.alike if fork.alike is None else fork.alike
            if alike is not None:
                self._alike[decision.origin] = alike
            meets = decision.meets if fork.meets is None else fork.meets
            if meets is not None:
                self._meets[decision.origin] = meets
            if decision.is_tried and fork.meets is None:
                self._unrolled[decision.origin] = fork.unroll
            simply = decision.simply or fork.simply
            again = replace(
                decision, unroll=fork.unroll, refusal=fork.refusal, tried=False, simply=simply, most=None, alike=alike, meets=meets
            )
            self.pending.append([*events, (("loop",), again, None)])
        elif decision.choice:
            self.pending.append([*events, (("choose",), None, None)])
        else:
            assert decision.block is not None and decision.cond is not None
            self._not_joined[decision.origin] = self._not_joined.get(decision.origin, 0) + 1
            then, orelse = builder.part(decision.block, decision.cond, decision.origin)
            self.pending += [[*events, orelse], [*events, then]]

    def _count(self, origin: Origin | None) -> None:
        self.forks[origin] = self.forks.get(origin, 0) + 1
