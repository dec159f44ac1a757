# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The header of a rolled loop: which leaves of the state are block parameters, found round by round.

Invariant at :meth:`Header.close` returning True: for every leaf of the state, either the header has a parameter
for it, or its value at the end of the body is the very value that the header began with.
"""

from __future__ import annotations

from collections import ChainMap, deque
from dataclasses import dataclass
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.clock import clock
from dycl_tvm.frontend.trace.heap.places import Place
from dycl_tvm.frontend.trace.join.captured import (
    Alternatives,
    Captured,
    Items,
    Memory,
    NumberLeaf,
    PlaceState,
    TensorLeaf,
    capture,
    capture_place,
    rebuild,
    same_number,
    same_plain,
    same_structure,
)
from dycl_tvm.frontend.trace.join.growth import COUNTER, Growth
from dycl_tvm.frontend.trace.join.header_kinds import HeaderKinds
from dycl_tvm.frontend.trace.join.kinds import OneOf, Settled
from dycl_tvm.frontend.trace.join.loop_identity import LoopIdentities
from dycl_tvm.frontend.trace.join.mismatch import Name, between_trips, label_of, sides_of, sides_of_contents, verb_of
from dycl_tvm.frontend.trace.join.outgrown import outgrown
from dycl_tvm.frontend.trace.join.poison import Poison, Why, count_unset, filled, may_be_unset
from dycl_tvm.frontend.trace.join.varied import VariedState, one_for_both
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.advances import Advance, advance_of, bounds_in_trips, trips_of
from dycl_tvm.frontend.trace.values.elements import elements
from dycl_tvm.frontend.trace.values.grown import Grown, buffer_type
from dycl_tvm.frontend.trace.values.intervals import Bounds
from dycl_tvm.frontend.trace.values.number_tests import of_others
from dycl_tvm.frontend.trace.values.storage import Stale, Storage, may_be_one
from dycl_tvm.frontend.trace.values.tensors import storage_of
from dycl_tvm.hcfg.nodes import Block, Operand, Value
from dycl_tvm.hcfg.types import BOOL, INT

Path = tuple[Any, ...]


class _Aliases:
    """Why a tensor at the header cannot be read any more, in the place of a decision: see :class:`.tensors.Stale`."""

    def __init__(self, decision: Any) -> None:
        self.decision = decision

    def refuse(self, reason: str, others: object = "") -> None:
        """Take one trip out of the loop, which may part the names; if that was tried, all."""
        decisions = current().decisions
        if not self.decision.unroll:
            decisions.fork(self.decision, reason)
        refusal = UnsupportedError(
            reason,
            current().origin() or self.decision.origin,
            "copy the tensor where a variable is given another's: y = x.clone(); or compute a new one instead of changing it in place",
        )
        decisions.unroll(self.decision, refusal)


class Header:
    """The loop header under construction.

    Parameters
    ----------
    entry : dict
        The loop's variables before its first iteration.
    decision : object
        The loop, for messages.
    extra : dict, optional
        Hidden variables of the loop (the index of a counted loop).
    around : dict, optional
        All variables of the function before the loop.
    since : int
        The moment at which the loop statement began: iterations that were taken out of it come after.
    moment : int, optional
        What was made later is made by the body; now, unless it is given.
    """

    def __init__(
        self,
        entry: dict[str, Any],
        decision: Any,
        extra: dict[str, Any] | None = None,
        around: dict[str, Any] | None = None,
        since: int = 0,
        moment: int | None = None,
    ) -> None:
        self.entry, self.decision = entry, decision
        self._around, self.since = around or entry, since
        #: Containers at the header that are copies of those before the loop; where those at the end of the body are shared.
        self._copies: dict[int, Any] = {}
        self._backs: dict[int, list[Path]] = {}
        self._shared: set[Path] = set()
        #: Where the body leaves another container than the header had, and what it leaves there that may be older than the loop.
        self._renamed: dict[Path, dict[int, Any]] = {}
        self._clock = next(clock) if moment is None else moment
        #: What containers of the entry held that have been changed since.
        self._held: dict[Any, Any] = {}
        self._extra_entry = dict(extra or {})
        self.extra: dict[str, Any] = {}
        self._general: dict[Path, None] = dict.fromkeys((name,) for name in self._extra_entry)
        #: Whether Python could count the trips of the loop; and which numbers follow from more than how many there were.
        self._is_counted = getattr(decision, "is_tried", False)
        self._told: set[Path] = set()
        self._poisoned: dict[Path, Why] = {}
        self._differing = between_trips(decision)
        #: The first container that the body leaves with other items than it had.
        self._growing: Why | None = None
        self._places: dict[Any, tuple[Place, Any]] = {}
        #: What they hold at the header of this round.
        self._headers: dict[Any, PlaceState] = {}
        self._params: dict[Path, Value] = {}
        self._args: list[Operand] = []
        self._state: dict[Any, Captured] = {}
        self._unset: set[str] = set()
        #: Which tensors at the header may be one with another there, or with one that is older than the loop.
        self._links: set[tuple[Path, Any]] = set()
        #: Ints of the header, and what they are before the loop; what they are at the end of the body.
        self._ints: dict[Path, tuple[Any, Any]] = {}
        self._ints_back: dict[Path, Any] = {}
        self._fresh: dict[Path, Storage] = {}
        self._homes: dict[Path, Storage] = {}
        self._identities = LoopIdentities(self._clock, decision)
        self._growth = Growth(decision)
        self._varied = VariedState(decision)
        self._kinds = HeaderKinds(self._clock)
        #: By the paths of flags of kinds: what they are before the loop; and the parameters that stand for some that are alike.
        self._flags: dict[Path, Operand] = {}
        self._flag_params: dict[Any, Value] = {}
        self._of_kinds: list[OneOf] = []
        #: Why variables may have to be of several kinds; and those for which the first trip is taken out of the loop where they are used.
        self._whys: dict[Path, Why] = {}
        self._taken_out: set[Path] = set()

    def anew(self) -> Header:
        """Return the header of which nothing is known yet."""
        return Header(self.entry, self.decision, self._extra_entry, self._around, self.since)

    def open(self, unset: set[str]) -> dict[str, Any]:
        """Begin a round: make the header block, lead the entry into it, and return the variables in it."""
        session = current()
        self._params, self._args, self._unset, self._fresh, self._homes = {}, [], unset, {}, {}
        self._copies, self._flags, self._flag_params, self._of_kinds = {}, {}, {}, []
        self._ints, self._ints_back = {}, {}
        entry = {name: capture(value, self._held) for name, value in {**self.entry, **self._extra_entry}.items()}
        places = [capture_place(place, raw) for place, raw in self._places.values()]
        self.block = self.begin_block()
        if self._growth.found:
            self._growth.open(self._param(COUNTER, INT, 0))
        env = {name: self._generalise((name,), c) for name, c in entry.items()}
        self._items = [self._generalise_items(state) for state in places]
        self._writes = [(state.place, filled(state.place, state.raw, items)) for state, items in zip(places, self._items)]
        self.lead_in(list(self._args))
        session.builder.block = self.block
        self.reopen()
        self._link(self._homes)
        for path, other in self._links:
            twin = self._fresh.get(other) if isinstance(other, tuple) else other
            if path in self._fresh and twin is not None:
                may_be_one(self._fresh[path], twin, _Aliases(self.decision))
        self._state = {name: capture(value) for name, value in env.items()}
        self._headers = {place.key: capture_place(place, contents) for place, contents in self._writes}
        for name in unset:
            env[name] = Poison(
                self.decision, Why(f"`{name}` is not set before the loop, and read in it before it is set", is_="not set", unset=True)
            )
        self.extra = {name: env.pop(name) for name in self._extra_entry}
        return env

    # -- the edges of the graph -----------------------------------------------------------------------------------------
    def begin_block(self) -> Block:
        """Return the block whose parameters are made."""
        return current().builder.new_block("loop")

    def lead_in(self, args: list[Operand]) -> None:
        """End the block at hand where the entry is left, with the arguments for the parameters."""
        current().builder.jump(self.block, args)

    def lead_back(self, args: list[Operand]) -> None:
        """End the block at hand where the header comes again."""
        current().builder.jump(self.block, args)
        elements().enter(self.block.params, [self._args, args])
        for path, after in self._ints_back.items():
            (made, before), ends = self._ints[path], self._ends_of_trip(path, after)
            made.node.bounds, trip = bounds_in_trips(*ends), ends[-1]
            of_entry = advance_of(before)
            if of_entry is not None and (trip.rises or trip.falls):
                made.node.advance = of_entry.plus(0 if trip.rises else None, 0 if trip.falls else None)

    def _ends_of_trip(self, path: Path, after: Any) -> tuple[Bounds | None, Bounds | None, Advance]:
        """Return the bounds of an int before the loop and after a trip, and by how much the trip makes it larger."""
        (made, before), found = self._ints[path], advance_of(after)
        trip = found if found is not None and found.root is made.node.value else Advance(made.node.value, None, None)
        return scalars.bounds_of(before), scalars.bounds_of(after), trip

    def unchanged(self, path: Path, param: Value) -> Operand:
        """Return what a parameter is that was found nowhere."""
        return param

    def end_trip(self) -> None:
        """Forget what is known of the number of trips on the path at hand."""
        self._growth.end_trip()

    def begin_body(self, told: Any = None) -> Any:
        """Note that the body begins here, behind a test that may have ended the loop; return what it tells of more than the trips."""
        self._growth.begin_body(current().builder.here())
        return of_others(told, self._growth.counter)

    def settle(self) -> None:
        """Go on where the loop has ended, with all the trips that Python counts."""
        self._growth.settle()

    def reopen(self) -> None:
        """Set the changed places of the heap to what they hold at the header."""
        for place, contents in self._writes:
            current().journal.touch(place)
            place.write(contents)

    def settle_kinds(self, env: dict[str, Any]) -> dict[str, Any]:
        """Return the variables at the header, and set the places, as they are on the path through the body that begins now."""
        settled = Settled(self._of_kinds, self.decision.origin)
        for (place, contents), items in zip(self._writes, self._items):
            if settled.changes(items):
                place.write(filled(place, contents, list(map(settled, items))))
        return {name: settled(x) for name, x in env.items()}

    def close(self, env: dict[str, Any], changed: dict[Any, Place], before: dict[Any, Any]) -> bool:
        """Compare the state at the end of the body; jump back if the header is general enough."""
        session = current()
        known = self._known()
        self._identities.begin()
        self._homes, self._backs = {}, {}
        found: dict[Path, Operand] = {}
        for name, value in env.items():
            if name in self._state:
                self._compare((name,), Name(f"`{name}`"), self._state[name], capture(value), found)
        for key, place in changed.items():
            if session.heap.is_newer(place.owner, self._clock):
                continue
            if key not in self._places:
                self._places[key] = (place, before[key])
                held = ChainMap({k: header.raw for k, header in self._headers.items()}, before)
                self._compare_place(key, capture_place(place, before[key], held), found)
            elif key in self._headers:
                self._compare_place(key, self._headers[key], found)
        if self._growing is not None:
            session.decisions.unroll_grown(self.decision, self._growing.reason, self._differing)
        self._link(self._homes)
        self._shared.update(
            path for paths in self._backs.values() if len(paths) > 1 and any(p in self._renamed for p in paths) for path in paths
        )
        self._kinds.note_flags(self._flags, found)
        self._varied.end_round()
        if known != self._known() or not self._identities.is_settled():
            return False
        if self._growth.found:
            found[COUNTER] = self._growth.next_trip()
        self.lead_back([found[path] if path in found else self.unchanged(path, param) for path, param in self._params.items()])
        return self._growth.is_proved(self.block, self._args)

    def _known(self) -> tuple[int, ...]:
        """Return what only grows from round to round."""
        sets: tuple[Any, ...] = (self._general, self._poisoned, self._places, self._links, self._shared, self._renamed, self._told)
        return (
            *[len(s) for s in sets],
            count_unset(self._poisoned),
            self._identities.size(),
            self._kinds.size(),
            *self._growth.size(),
            *self._varied.size(),
        )

    def _link(self, homes: dict[Path, Storage]) -> None:
        """Note which variables lie in one memory, at the entry or at the end of the body, but are tensors of their own at the header."""
        # of each storage, the first variable in memory that may be one with it, and what of that memory is older than the loop
        known: dict[Storage, tuple[Path, list[Storage]]] = {}
        for path, home in homes.items():
            if home not in known:
                memory = home.joined_with()
                known |= dict.fromkeys(memory, (path, [storage for storage in memory if storage.born <= self._clock]))
            first, older = known[home]
            if first != path:
                self._links.add((first, path))
            self._links.update((path, storage) for storage in older)

    # -- making the header's values -----------------------------------------------------------------------------------
    def _param(self, path: Path, type_: Any, operand: Operand) -> Value:
        param = self._params[path] = current().builder.add_param(self.block, type_, str(path[0]) if isinstance(path[0], str) else "")
        self._args.append(operand)
        return param

    def _generalise(self, path: Path, c: Captured) -> Any:
        if isinstance(c, Memory):
            if isinstance(c.obj, Stale) or path in self._poisoned:
                return Stale(c.obj.type, _Aliases(self.decision))
            return self._param(path, c.obj.type, c.obj) if path in self._general else c.obj
        if path in self._poisoned:
            return Poison(self.decision, self._poisoned[path])
        if path in self._kinds.blanks:
            return self._one_of(path, c)
        if isinstance(c, TensorLeaf) and (buffer := self._growth.tensor_at_header(path, c)) is not None:
            grown = self._growth.tensor(path, c, self._param(path, *buffer))
            self._identities.header_memory(path, c.obj, grown)
            self._fresh[path], self._homes[path] = grown.storage_, storage_of(c.obj)
            return grown
        if isinstance(c, TensorLeaf) and path in self._varied.forms:
            form = self._varied.forms[path]
            varied = form.tensor(
                self._param(path, form.type, form.buffer(c)), self._param((*path, _LENGTH), INT, form.length(c)), self.decision
            )
            self._identities.header_memory(path, c.obj, varied)
            self._fresh[path], self._homes[path] = varied.storage_, storage_of(c.obj)
            return varied
        if isinstance(c, NumberLeaf) and (number := self._growth.number_at_header(path, c, self.block)) is not None:
            return number
        if isinstance(c, TensorLeaf) and path in self._general:
            if isinstance(c.value, Stale):
                return Poison(self.decision, Why(_STALE))
            param = self._param(path, buffer_type(c.obj), c.value)
            if isinstance(c.obj, Grown):
                made: Any = Grown(Storage(param), (), param, c.obj.lengths)
                self._identities.header_memory(path, c.obj, made)
            else:
                made = self._identities.header_tensor(path, c.obj, param)
            self._fresh[path], self._homes[path] = made.storage_, storage_of(c.obj)
            return made
        if isinstance(c, NumberLeaf) and path in self._general:
            kind: Any = scalars._kind(c.operand)
            made = scalars.wrap(self._param(path, scalars.ScalarType(kind), c.operand))
            if kind == "int":
                self._ints[path] = (made, c.obj)
            if self._is_counted and path not in self._told and not isinstance(c.operand, Value):
                made.node.counted = self.decision
            return made
        if isinstance(c, Items) and any(
            p[: len(path)] == path for p in (*self._general, *self._poisoned, *self._renamed, *self._growth.paths(), *self._varied.forms)
        ):
            items = [self._generalise((*path, i), item) for i, item in enumerate(c.items)]
            return self._rebuilt(path, c, rebuild(c, items))
        if path in self._shared:
            current().heap.guarded[id(c.obj)] = _Aliases(self.decision)
        return c.obj

    def _one_of(self, path: Path, c: Captured) -> Any:
        """Return a variable that is of several kinds."""
        kinds: list[tuple[Operand, Any]] = []
        for i, (flag, one) in enumerate(self._kinds.split(path, c)):
            where = (*path, _Kind(i))
            self._flags[where] = flag
            alike = self._kinds.class_of(where, flag)
            if alike not in self._flag_params:
                self._flag_params[alike] = self._param(where, BOOL, flag)
            kinds.append((self._flag_params[alike], self._generalise((*where, "value"), one or self._kinds.blanks[path][i])))
        made = OneOf(self.decision, self._whys[path], kinds)
        if path not in self._taken_out:
            self._of_kinds.append(made)
        return made

    def _rebuilt(self, path: Path, c: Items, made: Any) -> Any:
        """Guard a container that stands for one that something else may hold too: a change of it would have to show there."""
        self._identities.header_object(path, c.obj, made)
        self._copies[id(made)] = made
        if isinstance(made, tuple):
            return made
        older = list(self._renamed.get(path, {}).values())
        if path in self._shared or older or not self._is_alone(c.obj):
            for x in (made, c.obj, *older):
                current().heap.guarded[id(x)] = _Aliases(self.decision)
        return made

    def _is_alone(self, x: Any) -> bool:
        """Whether nothing but one variable of the loop holds a container."""
        heap = current().heap
        if not heap.is_newer(x, self.since):
            return False
        count = _mentions([*self._around.values(), *(place.read() for place in heap.journal.changes(heap.run_mark).values())], x)
        return count <= 1 and not heap.is_held_by_newer(x, self.since)

    def _generalise_items(self, state: PlaceState) -> list[Any]:
        return [self._generalise((state.place.key, i), c) for i, c in enumerate(state.items)]

    # -- comparing ------------------------------------------------------------------------------------------------------
    def _compare(self, path: Path, name: Name, header: Captured, back: Captured, found: dict[Path, Operand]) -> None:
        if path in self._kinds.blanks:
            self._compare_kinds(path, name, header, back, found)
            return
        if isinstance(header.obj, Poison) and not isinstance(header, Alternatives):
            if may_be_unset(back) and not may_be_unset(header):
                self._poisoned[path] = self._differing.add(name, sides_of([header, back]), unset=True)
            return
        if isinstance(header, Memory):
            if isinstance(back.obj, Stale) or path in self._poisoned:
                self._poisoned[path] = Why(_STALE)
            elif path in self._general:
                found[path] = back.obj  # type: ignore[assignment]  # memory, as at the header
            elif back.obj is not header.obj:
                self._general[path] = None
            return
        if isinstance(header, Items) and isinstance(back, Items) and same_structure(header, back):
            self._compare_objects(path, header, back)
            if header.obj is back.obj and not isinstance(header.obj, tuple) and id(header.obj) not in self._copies:
                return  # what it holds are places of the heap, which are seen through all its names
        if path in self._growth.paths():
            if self._growth.is_steady(path, header, back):
                if isinstance(back, TensorLeaf):
                    found[path] = self._growth.fitted(header, back)
                    self._identities.note(path, back.obj)
                    self._homes[path] = storage_of(back.obj)
            return
        if not _is_in_kind(path) and self._growth.notes(path, header, back):
            return
        if path in self._varied.forms:
            self._compare_varied(path, name, header, back, found)
            return
        if header.obj is not back.obj and self._varied.notes(path, [header, back]):
            return
        if may_be_unset(header) != may_be_unset(back):
            self._poisoned[path] = self._differing.add(name, sides_of([header, back]), unset=True)
            return
        if isinstance(header, TensorLeaf) and isinstance(back, TensorLeaf) and one_for_both(header.obj, back.obj):
            if path in self._general:
                found[path] = back.value
                self._identities.note(path, back.obj)
                if not isinstance(back.obj, Grown):
                    self._identities.note_strides(path, back.obj)
                self._homes[path] = storage_of(back.obj)
                if isinstance(back.value, Stale):
                    self._poisoned[path] = Why(_STALE)
            elif header.obj is not back.obj:  # what is changed in place is a place of the heap, seen through all its aliases
                self._general[path] = None
        elif scalars.mixed_of(back.obj):
            self._poisoned[path] = self._differing.add(name, sides_of([header, back]))
        elif (
            isinstance(header, NumberLeaf) and isinstance(back, NumberLeaf) and scalars._kind(header.operand) == scalars._kind(back.operand)
        ):
            if path in self._general:
                found[path] = back.operand
                if path in self._ints:
                    self._ints_back[path] = back.obj
                    self._varied.count(trips_of(*self._ends_of_trip(path, back.obj)))
                if self._is_counted and isinstance(back.operand, Value):
                    self._compare_counted(path, name, back)
            elif not same_number(header, back):
                self._general[path] = None
        elif isinstance(header, Items) and isinstance(back, Items) and same_structure(header, back):
            for i, (h, b) in enumerate(zip(header.items, back.items)):
                self._compare((*path, i), name.item(label_of(header, i)), h, b, found)
        elif header.obj is not back.obj and not same_plain([header.obj, back.obj]):
            self._whys[path] = self._differing.add(name, sides_of([header, back]))
            if not self._is_of_kinds(path, header, back):
                self._poisoned[path] = self._whys[path]

    def _is_of_kinds(self, path: Path, header: Captured, back: Captured) -> bool:
        """Whether a variable may be of several kinds at the header. If the first trip surely changes which, that is better taken out."""
        is_variable = len(path) == 1 + (path[0] in self._places)
        if not (is_variable and self.decision.parts and self._kinds.begin(path, header, back)):
            return False
        if not self.decision.unroll and not isinstance(header, Alternatives) and not isinstance(back, Alternatives):
            self._taken_out.add(path)
        return True

    def _compare_kinds(self, path: Path, name: Name, header: Captured, back: Captured, found: dict[Path, Operand]) -> None:
        """Compare a variable that is of several kinds with what the body leaves."""
        if not self._kinds.note(path, back):
            del self._kinds.blanks[path]
            self._poisoned[path] = self._differing.add(name, sides_of([header, back]), unset=may_be_unset(back))
            return
        if isinstance(back, Alternatives):
            self._taken_out.discard(path)
        for i, ((_, before), (flag, after)) in enumerate(zip(self._kinds.split(path, header), self._kinds.split(path, back))):
            where = (*path, _Kind(i))
            found[where] = flag
            if before is not None and after is not None:
                self._compare((*where, "value"), name, before, after, found)

    def _compare_counted(self, path: Path, name: Name, back: NumberLeaf) -> None:
        """Compare a number that Python would know if the loop were unrolled: there it may be of any size, and at run time not."""
        if scalars.counted_by(back.obj) is not self.decision:
            self._told.add(path)
        elif _may_leave_64_bits(back.obj, self._params[path]):
            refusal = UnsupportedError(f"{name.plain} may leave 64 bits in a loop that is rolled", current().origin())
            current().decisions.unroll(self.decision, refusal)

    def _compare_varied(self, path: Path, name: Name, header: Captured, back: Captured, found: dict[Path, Operand]) -> None:
        """Compare a tensor whose length is a number of the run with what the body leaves."""
        holds = self._varied.holds(path, back)
        if holds is False or not isinstance(back, TensorLeaf):
            del self._varied.forms[path]
            self._poisoned[path] = self._differing.add(name, sides_of([header, back]))
        elif holds:
            form = self._varied.forms[path]
            length_path = (*path, _LENGTH)
            self._varied.limit(path, back)
            found[path], found[length_path] = form.buffer(back), form.length(back)
            self._identities.note(path, back.obj)
            self._homes[path] = storage_of(back.obj)

    def _compare_objects(self, path: Path, header: Items, back: Items) -> None:
        """Compare which containers a name has."""
        if not isinstance(back.obj, tuple):
            self._backs.setdefault(id(back.obj), []).append(path)
        if header.obj is not back.obj:
            older = self._renamed.setdefault(path, {})
            if not isinstance(back.obj, tuple) and id(back.obj) not in self._copies and not current().heap.is_newer(back.obj, self._clock):
                older[id(back.obj)] = back.obj
        if header.obj is not back.obj or id(header.obj) in self._copies:
            self._identities.note(path, back.obj)

    def _compare_place(self, key: Any, header: PlaceState, found: dict[Path, Operand]) -> None:
        place = header.place
        back = capture_place(place, place.read())
        if header.structure != back.structure:
            outgrown(place.owner, [c.obj for c in back.items])
            why = self._differing.add(Name(place), sides_of_contents([header, back]), verb_of(place))
            self._growing = self._growing or why
            return
        for i, (h, b, label) in enumerate(zip(header.items, back.items, place.labels(header.raw))):
            self._compare((key, i), Name(place).item(label), h, b, found)


@dataclass(frozen=True)
class _Kind:
    """In a path: one of the kinds of a variable."""

    number: int


def _is_in_kind(path: Path) -> bool:
    """Whether something is there if a variable is of one kind: how it changes from trip to trip tells nothing."""
    return any(isinstance(part, _Kind) for part in path)


#: The end of the path of a parameter that is how long a tensor is.
_LENGTH = "<length>"
_STALE = "a tensor may have been changed in place under another name"


def _may_leave_64_bits(x: Any, before: Value) -> bool:
    """Whether an int grows by more than a constant from ``before``, and nothing bounds it."""
    return bool(x.node.is_int()) and x.node.base[0] is not before and x.node.bounds is None


def _mentions(values: list[Any], x: Any) -> int:
    """Return how often containers hold ``x``, or are it."""
    count, todo, seen = 0, list(values), set()
    while todo:
        v = todo.pop()
        count += v is x
        if issubclass(type(v), (tuple, list, deque, dict)) and v is not x and id(v) not in seen:  # what stands for a list holds no objects
            seen.add(id(v))
            todo.extend(v.values() if isinstance(v, dict) else v)
    return count
