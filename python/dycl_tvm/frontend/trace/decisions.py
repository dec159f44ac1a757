# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which side of a branch a run takes: sites whose sides are explored in place, forks, and the runs that are still to be made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.clock import clock
from dycl_tvm.frontend.trace.control_flow import ForkRequired
from dycl_tvm.frontend.trace.limits import Limits
from dycl_tvm.frontend.trace.record import Builder, Event
from dycl_tvm.hcfg.nodes import Block, Operand, Origin, Value


@dataclass(eq=False)
class Site:
    """A place at which both sides of a decision were explored.

    ``index`` is its event number; ``target`` the site to fork so that this one's sides part for good: the earliest
    one that was still open around it, or itself.
    """

    index: int
    block: Block | None
    steps: int
    cond: Operand | None
    origin: Origin | None
    clock: int
    target: Any = None
    #: The site is a loop: "forking" it runs its first iterations unrolled.
    is_loop: bool = False
    unroll: int = 0
    #: The decision is a choice among objects; forked, it is made by one test an object.
    choice: bool = False


class Decisions:
    """The decisions of the run at hand, and the runs that forks asked for."""

    def __init__(self, builder: Builder, limits: Limits, origin: Callable[[], Origin | None]) -> None:
        self._builder, self._limits, self._origin = builder, limits, origin
        #: Sites one of whose sides waits to be joined with the path at hand.
        self.open_sites: list[Site] = []
        #: Paths that left by a jump, and wait to be joined at its target: (moment, site that they come from).
        self.waiting: list[tuple[int, Site]] = []
        #: Event numbers at which the rounds of the rolled loops around the place at hand began.
        self.rolling: list[int] = []
        #: The events with which the runs begin that are still to be made.
        self.pending: list[list[Event]] = []
        #: How often each decision was forked.
        self.forks: dict[Origin | None, int] = {}
        #: Why they fork.
        self.reasons: dict[Origin | None, str] = {}

    def begin_run(self) -> None:
        """Forget what belongs to the run before."""
        self.open_sites, self.rolling, self.waiting = [], [], []

    # -- tests that are decided ---------------------------------------------------------------------------------------------
    def decide(self, cond: Operand) -> bool:
        """Decide a truth test that cannot be explored in place: follow one side, and leave the other to another run."""
        if not isinstance(cond, Value):
            return bool(cond)
        known = self.decided()
        if known is not None:
            return known
        if self.open_sites:
            self.fork(self.open_sites[0].target, "a truth test stands where both sides cannot be explored in place")
        if self.rolling:
            self.refuse_in_loop("a truth test stands where both sides cannot be explored in place", self._origin())
        builder = self._builder
        origin = self._origin()
        self._count(origin, "a truth test stands where both sides cannot be explored in place")
        then, orelse = builder.part(builder.here(), cond, origin)
        self.pending.append([*builder.events, orelse])
        _, (_, block), undo = then
        builder.event(("decide",), lambda: (True, block), undo)
        builder.block = block
        return True

    def decided(self) -> bool | None:
        """Return the decision that this run was started with for the test at hand, if there is one."""
        event = self._builder.peek()
        if event is None or event[0] != ("decide",):
            return None
        choice, block = self._builder.event(("decide",), lambda: None)
        self._builder.block = block
        return bool(choice)

    # -- sites --------------------------------------------------------------------------------------------------------------
    def open_site(self, cond: Operand, choice: bool = False) -> Site:
        """Begin to explore all sides of a decision."""
        site = self._make_site(cond, choice)
        self.open_sites.append(site)
        return site

    def choice_site(self) -> Site:
        """Return a site for a choice that is not explored where it is made."""
        return self._make_site(None, True)

    def chosen_by_tests(self) -> bool:
        """Whether the choice at hand was forked."""
        event = self._builder.peek()
        if event is None or event[0] != ("choose",):
            return False
        self._builder.event(("choose",), lambda: None)
        return True

    def _make_site(self, cond: Operand | None, choice: bool) -> Site:
        index = self._builder.cursor
        block, steps = self._builder.mark()
        site: Site = self._builder.event(("explore",), lambda: Site(index, block, steps, cond, self._origin(), next(clock), choice=choice))
        site.target = self.open_sites[0].target if self.open_sites else site
        return site

    def close_site(self, site: Site) -> None:
        """Note that nothing waits any more to be joined with a side of the site."""
        if site in self.open_sites:
            self.open_sites.remove(site)
        self.waiting = [w for w in self.waiting if w[1] is not site]

    def wait(self, site: Site | None) -> None:
        """Note that the path at hand waits from now on: what is changed later must not show on it."""
        if site is not None:
            self.waiting.append((next(clock), site))

    def loop_site(self) -> Site:
        """Begin a loop that may be rolled."""
        index = self._builder.cursor
        site: Site = self._builder.event(("loop",), lambda: Site(index, None, 0, None, self._origin(), 0, is_loop=True))
        site.target, site.clock = site, next(clock)
        return site

    def checkpoint(self) -> Any:
        """Take down which sites are open (for a loop that may take back a round)."""
        return list(self.open_sites), list(self.rolling), list(self.waiting)

    def restore_checkpoint(self, saved: Any) -> None:
        """Forget the sites that were opened since :meth:`checkpoint`."""
        self.open_sites, self.rolling, self.waiting = list(saved[0]), list(saved[1]), list(saved[2])

    def end_rolled(self, saved: Any, loop: Site) -> None:
        """A rolled loop has ended: what parts at a site in its body from now on parts where the loop begins, or before."""
        self.rolling.pop()
        around = saved[0]
        for site in self.open_sites:
            if site not in around:
                site.target = around[0].target if around else loop

    # -- forks --------------------------------------------------------------------------------------------------------------
    def fork(self, site: Any, reason: str) -> None:
        """Re-run with the decision of ``site`` fixed. Does not return."""
        if not isinstance(site, Site):
            site.refuse(reason)
        if site.is_loop and not site.unroll:
            raise ForkRequired(site, reason, 1)
        if site.is_loop:
            raise UnsupportedError(
                f"{reason}; the loop's trip count is known only at run time, so its state must keep one type",
                self._origin() or site.origin,
                "give the variable a value of its final type and shape before the loop",
            )
        if self.rolling and site.index >= self.rolling[0]:
            self.refuse_in_loop(reason, site.origin)
        raise ForkRequired(site, reason)

    def follow(self, site: Site) -> bool:
        """Fork a site whose first side is being run, by going on with that side in this run; return whether that can be done.

        It can if nothing else waits, and nothing on the side was made for a join with the other.
        """
        if self.open_sites != [site] or self.rolling:
            return False
        other = self._builder.follow(site.index)
        if other is None:
            return False
        self._count(site.origin, "one of its sides raises an exception that is caught")
        self.pending.append([*self._builder.events[: site.index], other])
        self.close_site(site)
        return True

    def unroll(self, site: Site, reason: str) -> None:
        """Re-run with a loop unrolled up to the bound that the user gave: its state grows. Does not return."""
        if self._limits.loop_trips is None or site.unroll > 1:
            raise UnsupportedError(
                f"{reason} in a loop whose trip count is known only at run time",
                self._origin() or site.origin,
                "write into a tensor of fixed size, or give the loop a bound: build(..., max_loop_trips=N)",
            )
        raise ForkRequired(site, reason, self._limits.loop_trips)

    def refuse_in_loop(self, reason: str, origin: Origin | None) -> None:
        """Paths cannot part for good within a loop that will be a loop in the HCFG."""
        raise UnsupportedError(
            f"two paths through the body of a loop cannot be joined ({reason}), and the loop's trip count is known only at run time",
            origin,
            "leave variables and containers with the same type and length on all paths through the body, "
            "and keep break and return out of try and with",
        )

    def split(self, fork: ForkRequired) -> None:
        """Give each side of a site a run of its own from the site on."""
        site: Site = fork.site
        builder = self._builder
        self._count(site.origin, fork.reason)
        events, own = builder.events[: site.index], builder.events[site.index]
        builder.undo_to(site.index)
        self.pending = [w for w in self.pending if len(w) <= site.index or w[site.index] is not own]
        if site.is_loop:
            self.pending.append([*events, (("loop",), replace(site, unroll=fork.unroll), None)])
        elif site.choice:
            self.pending.append([*events, (("choose",), None, None)])
        else:
            assert site.block is not None and site.cond is not None
            then, orelse = builder.part(site.block, site.cond, site.origin)
            self.pending += [[*events, orelse], [*events, then]]

    def _count(self, origin: Origin | None, reason: str) -> None:
        self.forks[origin] = self.forks.get(origin, 0) + 1
        self.reasons[origin] = reason
