# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What one call leaves behind on the model for the next: counters, hidden states, buffers.

Staging is repeated until the set of places is complete: the first time the model is taken as it is; a place of the model that
some path leaves changed becomes a state variable (its value at entry is then a parameter) if it keeps its type, and a
poison at entry if it does not, so that a forward which reads it before writing it is refused rather than given
the value that the model happened to have when it was built.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from dycl_tvm.errors import StateError, UnsupportedError
from dycl_tvm.frontend.python.holders import Holders
from dycl_tvm.frontend.python.kept_lengths import Kept, KeptLengths
from dycl_tvm.frontend.python.lives_on import LivesOn
from dycl_tvm.frontend.python.made_objects import opened
from dycl_tvm.frontend.python.state_decisions import KeptInput, NoDecision, TwoNames
from dycl_tvm.frontend.python.state_sharing import Path, Sharing
from dycl_tvm.frontend.python.variants import MOST_CONTENTS, ContentsVariants, Kinds, Layout, Variants, can_vary, sort_of
from dycl_tvm.frontend.trace.control_flow import Again, with_others
from dycl_tvm.frontend.trace.heap.places import MISSING, Contents, Place
from dycl_tvm.frontend.trace.heap.reach import Reached
from dycl_tvm.frontend.trace.heap.settings import CONTEXT, SETTINGS
from dycl_tvm.frontend.trace.join.captured import (
    Captured,
    Items,
    Memory,
    NumberLeaf,
    PlaceState,
    TensorLeaf,
    capture_place,
    rebuild,
    same_number,
    same_plain,
    same_structure,
)
from dycl_tvm.frontend.trace.join.mismatch import Name, between_calls, label_of, sides_of, sides_of_contents, verb_of
from dycl_tvm.frontend.trace.join.poison import Poison, Why, count_unset, filled, may_be_unset
from dycl_tvm.frontend.trace.session import Session, current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.constants import constants
from dycl_tvm.frontend.trace.values.grown import same_kind
from dycl_tvm.frontend.trace.values.identity import identity_of, mark_outside, the_role_of
from dycl_tvm.frontend.trace.values.roles import UNKNOWN
from dycl_tvm.frontend.trace.values.storage import Stale, Storage, may_be_one, tensor_type
from dycl_tvm.frontend.trace.values.tensors import fresh_like, storage_of
from dycl_tvm.hcfg.nodes import Constant, Operand, Origin, StateVar, Value

#: The path of the state variable that says of which kinds the places are.
_KINDS: Path = ("kinds",)
_FLAG = scalars.ScalarType("bool")
#: How the paths of those begin that are lengths.
_LENGTH = "length"
_MADE_ANEW = frozenset(["list", "dict", "set", "deque", "OrderedDict", "Counter"])


@dataclass
class _Leaf:
    """One state variable: a leaf of what a place holds."""

    name: str
    type: Any
    initial: Constant | int | float | bool


class ModelState(LivesOn):
    """The state variables of a model, found while it is staged.

    Parameters
    ----------
    reached : Reached
        The objects that live on between calls.
    twin : callable
        Returns what stands for an object while the model is staged (an iterator stays where it is); most objects as they are.
    unread : Unread
        The containers that calls fill and that none reads; a layer above knows what stands for them.
    lists : KeptLists
        The lists of tensors that grow from call to call.
    """

    def __init__(self, reached: Reached, twin: Callable[[Any], Any], unread: Any, lists: Any) -> None:
        super().__init__(reached, twin)
        self.unread, self.lists = unread, lists
        self._holders = Holders(self._reachable)
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Know nothing of what calls leave."""
        self._places: dict[Any, Place] = {}
        #: What the places held before the first run: the poison or parameter of the entry stands for it later.
        self._raw: dict[Any, Any] = {}
        self._leaves: dict[Path, _Leaf] = {}
        self._poisoned: dict[Path, Why] = {}
        #: The names of paths that change, and what they held before the first call.
        self._first: dict[Path, tuple[str, Captured]] = {}
        #: The kinds of paths where these are told apart; the paths where they cannot be.
        self._variants: dict[Path, Variants] = {}
        self._inseparable: set[Path] = set()
        #: What sorts of values calls find and leave at the paths that were not told apart.
        self._sorts: dict[Path, tuple[Any, Any]] = {}
        #: Whether the end of the path at hand has found what the next round is staged with.
        self._again = False
        #: The kinds of contents of containers that calls leave with other items than they had.
        self._contents: dict[Any, ContentsVariants] = {}
        self._kinds = Kinds()
        #: Where these are told apart; the lengths of tensors, and what the path at hand leaves of them.
        self._with_kinds, self._lengths = set[Path](), KeptLengths()
        self._left_lengths: dict[Path, tuple[Kept, TensorLeaf, str]] = {}
        #: Of which kinds the path at hand leaves places; where the program first asked for one.
        self._left_kinds: dict[Path, int] = {}
        self._known_flags: dict[Path, bool] = {}
        self._asked: Origin | None = None
        self._differing = between_calls()
        #: The containers that a path leaves with other items than variables can keep, and their types.
        self._growing: dict[str, str] = {}
        self._entry: dict[Path, Operand] = {}
        self._sharing = Sharing(self._holders, self.lives_on)
        self._session: Session | None = None
        self._copied, self._guarded = set[Path](), set[Path]()
        self._other_roles = set[Path]()  # where calls leave a parameter for a tensor that is none, or the other way round
        self._made: dict[Path, Storage] = {}
        self._decision = NoDecision()

    def close(self) -> None:
        """Put the model's own objects back."""
        self._twins.put_back(lambda x: True)

    def begin_round(self) -> None:
        """Let something stand for the containers that may be unread, and for none that was found to be read; group the lengths."""
        lists = self.lists.begin_round()
        if lists or self.lists.begin_anew():
            self._begin_anew()
        self._leaves = {path: leaf for path, leaf in self._leaves.items() if path[0] != _LENGTH}
        for number, name, initial in self._lengths.begin_round([(p, self._leaves[p].name, one) for p, one in self._kept()]):
            self._leaves[(_LENGTH, number)] = _Leaf(name, scalars.ScalarType("int"), initial)
        self._twins.put_back(lambda x: (self.unread.is_read(x) or self.lists.is_given_up(x)) and not self.lists.stands_for(x))
        for x in self.unread.begin_round():
            try:
                self._twins.put(self._reachable.values(), {id(x): (x, self.unread.stand_in(x))})
            except UnsupportedError:
                self.unread.forget(x)
        for x, made, items in lists:
            try:
                self._twins.put(self._reachable.values(), {id(x): (x, made)})
            except UnsupportedError as refusal:
                self.lists.stand_ins.refused(refusal)
                return
            self._reach([(self._labels[id(x)], made), (self._labels[id(x)], items)])

    def _kept(self) -> list[tuple[Path, Kept]]:
        """Return the tensors whose lengths are state variables."""
        return [((*path, i), v.kept) for path, kinds in self._variants.items() for i, v in enumerate(kinds.known) if v.kept is not None]

    def is_complete(self, known: tuple[int, ...]) -> bool:
        """Whether a round has found nothing new since the size was ``known``, and no buffer is longer than it has to be."""
        if self.size != known:
            return False
        narrower = [(path, one) for path, one in self._kept() if one.narrow()]
        for path, one in narrower:
            self._leaves[path] = _Leaf(self._leaves[path].name, one.form.type, one.constant())
        return not narrower

    @property
    def left_out(self) -> list[str]:
        """The containers that are filled, and never read, and where that is."""
        return [f"`{self._labels[id(x)]}`, which calls fill and none reads{self.unread.place_of(x)}" for x in self.unread.containers]

    @property
    def variables(self) -> list[StateVar]:
        """The state variables, in the order of the entry's parameters."""
        return [StateVar(leaf.name, leaf.type, leaf.initial) for leaf in self._leaves.values()]

    @property
    def size(self) -> tuple[int, ...]:
        """Differs with everything found. It is no sum: what is known of one thing is forgotten where another is found."""
        return (
            *(len(self._places), len(self._leaves), len(self._poisoned), len(self._other_roles)),
            *self._sharing.size,
            count_unset(self._poisoned),
            self._kinds.found,
            self._lengths.found,
            *self._count_kinds(),
            *self.unread.size,
            *self.lists.size,
        )

    def _count_kinds(self) -> tuple[int, ...]:
        widened = sum([v.widened for v in self._variants.values()])
        return (widened, *[sum([len(v.known) for v in variants]) for variants in (self._variants.values(), self._contents.values())])

    # -- a run ------------------------------------------------------------------------------------------------------------
    def enter(self, params: list[Value]) -> None:
        """Give the places of the state what they hold at entry."""
        self._entry = dict(zip(self._leaves, params))
        if self._session is not current():  # all runs of one session begin alike
            self._session, self._copied, self._guarded = current(), set(self._sharing.replaced), set(self._sharing.shared)
            self._kinds.begin()
        for space, owner in self._spaces:
            current().heap.is_namespace(space, owner)
        self._lengths.begin_run()
        self._known_flags.clear()
        made = self._made = {}
        self._sharing.found = {}
        assert self._contents.keys() <= self._places.keys(), "contents of a place that is not written"
        if _KINDS in self._entry:
            self._kinds.enter(self._entry[_KINDS], self._asked)
        for key, place in self._places.items():
            if isinstance(place, Storage):
                assert place.real is not None
                place = self._places[key] = constants().storage(place.real)
            kind = self._kinds.at_entry((key,))
            state = self._contents[key].known[kind] if kind else capture_place(place, place.read(), self._raw)
            items = [self._at_entry((*_contents(key, kind), i), c, made) for i, c in enumerate(state.items)]
            current().journal.touch(place)
            place.write(filled(place, state.raw, items))
        for path, twin in self._sharing.links:
            other = made.get(twin) if isinstance(twin, tuple) else constants().storage(twin)
            if path in made and other is not None:
                may_be_one(made[path], other, self._decision)

    def meet(self, inputs: list[torch.Tensor]) -> None:
        """Note that what a call has kept of its inputs may be an input of the next."""
        for path in self._sharing.kept_inputs & self._made.keys():
            for t in inputs:
                may_be_one(self._made[path], storage_of(t), KeptInput(self._leaves[path].name))

    def _at_entry(self, path: Path, c: Captured, made: dict[Path, Storage]) -> Any:
        if isinstance(c, Memory):
            return Stale(c.obj.type, self._decision) if path in self._poisoned else self._entry.get(path, c.obj)
        if path in self._poisoned:
            return Poison(NoDecision(lambda: self._tell_apart(path)), self._poisoned[path])
        if path in self._variants:
            i = self._kinds.at_entry(path)
            variant = self._variants[path].known[i]
            if isinstance(variant.obj, Items):
                return self._at_entry((*path, i), variant.obj, made)
            if variant.kept is not None:
                return self._kept_at_entry((*path, i), variant.kept, made)
            return variant.obj if variant.type is None else self._value_at_entry((*path, i), variant.obj, made)
        if path in self._entry:
            leaf = self._leaves[path]
            if leaf.type == _FLAG and _KINDS in self._entry and (flag := self._kinds.flag_at_entry(path, bool(leaf.initial))) is not None:
                self._known_flags[path] = flag
                return flag
            value = self._value_at_entry(path, Layout.of(c.obj) if isinstance(c, TensorLeaf) else None, made)
            if isinstance(c, TensorLeaf):
                value.storage_.shared = storage_of(c.obj).shared
            return value
        if isinstance(c, Items) and any(p[: len(path)] == path for p in (*self._entry, *self._poisoned, *self._copied, *self._variants)):
            copy = rebuild(c, [self._at_entry((*path, i), item, made) for i, item in enumerate(c.items)])
            if path in self._guarded:
                for x in (copy, c.obj, *self._sharing.replaced.get(path, {}).values()):
                    current().heap.guarded[id(x)] = TwoNames()
                mark_outside(copy, "state")
                self._sharing.found[identity_of(copy)] = path
            return copy
        return c.obj

    def _value_at_entry(self, path: Path, layout: Layout | None, made: dict[Path, Storage]) -> Any:
        """Return the value of a state variable."""
        param = self._entry[path]
        if layout is None:
            return scalars.wrap(param)
        assert isinstance(param, Value)
        fresh = fresh_like(layout.meta(), param)
        mark_outside(fresh, "state", role=layout.role if path not in self._other_roles else UNKNOWN)
        made[path] = fresh.storage_
        return fresh

    def _kept_at_entry(self, path: Path, kept: Kept, made: dict[Path, Storage]) -> Any:
        """Return a tensor whose length is a state variable too."""
        buffer = self._entry[path]
        assert isinstance(buffer, Value)
        tensor = self._lengths.at_entry(path, kept, buffer, self._entry[_LENGTH, self._lengths.number_of(path)])
        mark_outside(tensor, "state")
        made[path] = tensor.storage_
        return tensor

    def _tell_apart(self, path: Path) -> bool:
        """Let the kinds of a path be told apart from the next round on; return whether they can."""
        if path in self._variants:
            return True  # Python asked once before, and did not pass on what that raised
        found, sort = [path], self._sorts.get(path)
        if current().limits.length is not None and sort is not None:  # the caches of many layers are one round of staging
            found = [p for p in self._sorts if p in self._poisoned and self._sorts[p] == sort]
        found = [p for p in found if p not in self._inseparable and can_vary(self._first[p][1], self.lives_on)]
        for one in found:
            self._tell_one_apart(one)
        return path in found

    def _tell_one_apart(self, path: Path) -> None:
        first = self._first[path][1]
        del self._poisoned[path]
        self._leaves = {p: leaf for p, leaf in self._leaves.items() if p[: len(path)] != path}
        self._variants[path] = Variants(first, self.lives_on)
        self._asked = self._asked or current().origin()
        if isinstance(first, TensorLeaf):
            self._sharing.links.add(((*path, 0), first.obj))
        if not isinstance(first, TensorLeaf) or current().limits.length is None:  # else others may be of one kind with it
            self._add_kinds(path)
        self._keep_variables(path)

    def _add_kinds(self, path: Path, name: str | None = None) -> None:
        """Have a variable say of which kind a place is, beside what it says of others."""
        if path in self._with_kinds:
            return
        self._with_kinds.add(path)
        name = self._first[path][0] if name is None else name
        self._kinds.forget()
        self._asked = self._asked or current().origin()
        before = f"{self._leaves[_KINDS].name}, " if _KINDS in self._leaves else "the kind of "
        self._leaves[_KINDS] = _Leaf(before + name, scalars.ScalarType("int"), 0)

    def _keep_variables(self, path: Path) -> None:
        """Give variables to the kinds of a path."""
        name = Name(f"`{self._first[path][0]}`")
        known = self._variants[path].known
        if any(v.kept is not None for v in known):  # other kinds may have gone
            self._leaves = {p: leaf for p, leaf in self._leaves.items() if p[: len(path)] != path}
            self._kinds.forget()
        if len(known) > 1:
            self._add_kinds(path)
        for i, variant in enumerate(known):
            at = (*path, i)
            if variant.kept is not None:
                self._leaves[at] = _Leaf(name.plain, variant.kept.form.type, variant.kept.constant())
            elif variant.type is not None:
                self._leaves.setdefault(at, _Leaf(name.plain, variant.type, variant.initial))
            elif i and isinstance(variant.obj, Items):
                self._keep_blank(at, variant.obj, name)

    def _keep_blank(self, path: Path, c: Captured, name: Name) -> None:
        """Give variables to what was not there before the first call; containers in it are made anew in each."""
        if isinstance(c, Items):
            if not isinstance(c.obj, tuple):
                self._sharing.replaced.setdefault(path, {})
            for i, item in enumerate(c.items):
                self._keep_blank((*path, i), item, name.item(label_of(c, i)))
        elif isinstance(c, TensorLeaf):
            self._leaves.setdefault(path, _Leaf(name.plain, tensor_type(c.obj), constants().of(c.obj)))

    def _keep_variant(self, path: Path, now: Captured, name: Name, found: dict[Path, Operand], left: dict[Path, Captured]) -> None:
        """Note of which kind a path leaves a place, and what it holds."""
        known = self.size
        which = self._variants[path].which(now)
        if which is None:
            del self._variants[path]
            self._kinds.forget()
            self._leaves = {p: leaf for p, leaf in self._leaves.items() if p[: len(path)] != path}
            self._inseparable.add(path)
            self._poisoned[path] = self._differing.add(name, sides_of([self._first[path][1], now]), unset=True)
            self._again = True
            return
        if self.size != known:
            self._keep_variables(path)
            self._again = True
            return
        self._left_kinds[path] = which
        contents, kind = (*path, which), self._variants[path].known[which]
        if isinstance(now, TensorLeaf) and kind.kept is not None:
            left[contents], self._left_lengths[contents] = now, (kind.kept, now, name.plain)
        elif isinstance(now, TensorLeaf):
            left[contents], found[contents] = now, now.value
        elif isinstance(now, NumberLeaf):
            found[contents] = now.operand
        elif isinstance(kind.obj, Items):
            self._compare(contents, kind.obj, now, name, found, left)

    def leave(self, mark: int) -> list[Operand]:
        """Return the state at the end of a path, and note what it leaves changed."""
        session = current()
        found: dict[Path, Operand] = {}
        left: dict[Path, Captured] = {}
        known_kinds, self._left_kinds, self._left_lengths, self._again = self._count_kinds(), {}, {}, False
        changes = session.journal.changes(mark)
        before = session.journal.before(mark)  # of these: what is asked from here on is no change of the program's
        first = ChainMap(self._raw, before)
        for key, place in changes.items():
            if place is CONTEXT:
                self.refuse_context(dict(before[key]), dict(place.read()))
                continue
            if (name := self.name_of_place(place)) is None:
                continue
            known = self.size
            self._compare_place(key, capture_place(place, first[key], first), name, found, left)
            if self.size != known and key not in self._places:
                self._places[key], self._raw[key] = place, before[key]
        if self._again:
            raise Again
        self._refuse_growing()
        if _KINDS in self._leaves:
            found[_KINDS] = self._kinds.leave(self._left_kinds)
            self._leave_flags(found)
        if self._count_kinds() != known_kinds:
            raise Again
        self.finalizers.check()
        changed = [(p, first[key]) for key, p in changes.items() if self.lives_on(p.owner)]
        self._sharing.note(left, changed, self._made, self._first)
        for where, operand in self._lengths.leave(self._left_lengths).items():
            found[where if isinstance(where, tuple) else (_LENGTH, where)] = operand
        return [found.get(path, self._entry.get(path, leaf.initial)) for path, leaf in self._leaves.items()]

    def _leave_flags(self, found: dict[Path, Operand]) -> None:
        """Note what the path at hand leaves of the flags, by what it leaves of other kinds."""
        for path, leaf in self._leaves.items():
            left = found.get(path, self._known_flags.get(path))
            if leaf.type == _FLAG and left is not None and left is not self._entry.get(path):
                self._kinds.leave_flag(int(found[_KINDS]), path, None if isinstance(left, Value) else bool(left))  # type: ignore[arg-type]

    def refuse_context(self, before: dict[Any, Any], now: dict[Any, Any]) -> None:
        """Refuse a path that leaves a context variable with another value."""
        heap = current().heap
        for variable, value in now.items():
            held = before[variable] if variable in before else CONTEXT.default_of(variable)
            if held is not value and not heap.is_newer(variable, heap.run_started):
                raise UnsupportedError(
                    f"the context variable `{variable.name}` is left with another value: the next call would find it",
                    current().origin(),
                    "reset it before the forward ends",
                )

    def is_changed(self, mark: int) -> bool:
        """Whether the path at hand has changed anything that lives on between calls."""
        session = current()
        before = session.journal.before(mark)
        changed = session.journal.changes(mark).items()
        places = [p for key, p in changed if p not in (SETTINGS, CONTEXT) or p.read() != before[key]]
        return any(self.name_of_place(place) is not None for place in places)

    def _compare_place(self, key: Any, initial: PlaceState, name: str, found: dict[Path, Operand], left: dict[Path, Captured]) -> None:
        place = initial.place
        now = capture_place(place, place.read())
        now.items = [opened(c, self.lives_on) for c in now.items]
        if not place.holds_anything and not now.is_as(initial):
            raise StateError(f"`{name}` is left with another value than it had", current().origin(), "set it before the model is built")
        kind: int | None = 0
        if isinstance(place, Contents) and initial.structure != now.structure and self.unread.try_one(place.owner):
            raise Again
        if isinstance(place, Contents) and initial.structure != now.structure and current().limits.length is not None:
            self._try_list(initial, now)
        if isinstance(place, Contents) and (key in self._contents or initial.structure != now.structure):
            kind = self._keep_contents(key, initial, now, name)
        if kind is None or (kind == 0 and initial.structure != now.structure):
            self._try_list(initial, now)
            self._differing.add(Name(f"`{name}`"), sides_of_contents([initial, now]), verb_of(place))
            self._growing.setdefault(name, type(place.owner).__name__)
            return
        if key in self._contents:
            self._left_kinds[key,] = kind
            initial = self._contents[key].known[kind]
        for i, (old, new, label) in enumerate(zip(initial.items, now.items, place.labels(initial.raw))):
            self._compare((*_contents(key, kind), i), old, new, Name(f"`{name}`").item(label), found, left)

    def _try_list(self, initial: PlaceState, now: PlaceState) -> None:
        if isinstance(initial.place, Contents) and self.lists.try_one(initial, now):
            raise Again

    def _keep_contents(self, key: Any, initial: PlaceState, now: PlaceState, name: str) -> int | None:
        """Return of which kind the contents of a container are at the end of a path; a new kind gets variables."""
        variants = self._contents.get(key) or ContentsVariants(initial, self.lives_on)
        known = len(variants.known)
        kind = variants.which(now)
        if kind is not None and key not in self._contents:
            self._contents[key] = variants
            self._add_kinds((key,), name)
        if len(variants.known) > known:
            for i, (c, label) in enumerate(zip(variants.known[known].items, now.place.labels(now.raw))):
                self._keep_blank((*_contents(key, known), i), c, Name(f"`{name}`").item(label))
        return kind

    def _refuse_growing(self) -> None:
        """Refuse containers that calls leave with other items than they had."""
        for name, kind in self._growing.items():
            raise StateError(
                with_others(
                    f"the {kind} `{name}` of the model is left with other contents than it had: every call would change it more",
                    self._differing,
                ),
                current().origin(),
                f"make it anew at the beginning of the forward{f' (`{name} = {kind}()`)' if kind in _MADE_ANEW else ''}, or bound it "
                f"(it may have {MOST_CONTENTS} lengths or sets of keys; a list of tensors of one shape, of numbers of one type or of "
                "tuples of these any up to max_length, "
                "build(..., max_length=1000)); tensors and numbers, and objects that hold these, are what calls can keep",
            )

    def _compare(
        self, path: Path, initial: Captured, now: Captured, name: Name, found: dict[Path, Operand], left: dict[Path, Captured]
    ) -> None:
        if path in self._variants:
            self._keep_variant(path, now, name, found, left)
            return
        self._first.setdefault(path, (name.plain, initial))
        if path in self._poisoned:
            if may_be_unset(now) and now.obj is not initial.obj:
                self._poisoned[path] = replace(self._poisoned[path], unset=True)
            return
        if isinstance(now.obj, Poison):  # one of the entry's too: it has come here from another place
            self._poisoned[path] = self._differing.add(name, sides_of([initial, now]), unset=may_be_unset(now))
            return
        if isinstance(initial, Memory) and isinstance(now, Memory):
            if isinstance(now.obj, Stale):
                self._poisoned[path] = Why(f"{name} may be changed under another name")
            elif path in self._leaves:
                found[path] = now.obj
            elif now.obj is not initial.obj:
                assert isinstance(initial.obj, Constant)
                self._leaves[path] = _Leaf(name.plain, initial.obj.type, initial.obj)
        elif isinstance(initial, TensorLeaf) and isinstance(now, TensorLeaf) and same_kind(initial.obj, now.obj):
            left[path] = now
            if the_role_of(initial.obj) != the_role_of(now.obj):
                self._other_roles.add(path)
            if initial.obj is not now.obj and storage_of(now.obj).shared:
                self._poisoned[path] = Why(f"{name} lies in the memory of a NumPy array after a call")
                self._inseparable.add(path)
            elif path in self._leaves:
                found[path] = now.value
                if isinstance(now.value, Stale):
                    self._poisoned[path] = Why(f"{name} may be changed under another name")
            elif initial.obj is not now.obj:
                constant = constants().of(initial.obj)
                self._leaves[path] = _Leaf(name.plain, constant.type, constant)
                self._sharing.links.add((path, initial.obj))
        elif (
            isinstance(initial, NumberLeaf) and isinstance(now, NumberLeaf) and scalars._kind(initial.operand) == scalars._kind(now.operand)
        ):
            if path in self._leaves:
                found[path] = now.operand
            elif not same_number(initial, now):
                assert not isinstance(initial.operand, Value)
                self._leaves[path] = _Leaf(name.plain, scalars.ScalarType(scalars._kind(now.operand)), initial.operand)  # type: ignore[arg-type]
        elif isinstance(initial, Items) and isinstance(now, Items) and same_structure(initial, now):
            if isinstance(now.obj, tuple) or initial.obj is not now.obj:
                left[path] = now
                if not isinstance(now.obj, tuple):
                    self._sharing.replaced.setdefault(path, {})
                for i, (a, b) in enumerate(zip(initial.items, now.items)):
                    self._compare((*path, i), a, b, name.item(label_of(initial, i)), found, left)
        elif initial.obj is not now.obj and not same_plain([initial.obj, now.obj]):
            self._poisoned[path] = self._differing.add(name, sides_of([initial, now]), unset=initial.obj is MISSING or now.obj is MISSING)
            self._sorts[path] = (sort_of(initial), sort_of(now))


def _contents(key: Any, kind: int) -> Path:
    """Return the path of what a place holds, if its contents are of some kind."""
    return (key, f"kind {kind}") if kind else (key,)
