# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Joining paths: making one state of the states that several paths come with.

:class:`Join` makes one value of several: equal ones stay, tensors of one
type and numbers of one kind become block parameters, containers of one structure are joined item by item. What cannot be
joined becomes a :class:`.poison.Poison`, which costs nothing unless it is used; using it forks the decision that made it.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dycl_tvm.frontend.trace.heap.places import MUTABLE, Contents, Place, attribute_of
from dycl_tvm.frontend.trace.join.captured import (
    Alternatives,
    Captured,
    Items,
    Memory,
    NumberLeaf,
    PathState,
    PlaceState,
    Plain,
    TensorLeaf,
    capture_place,
    containers_in,
    form_of,
    memories_in,
    rebuild,
    same_number,
    same_plain,
    same_structure,
)
from dycl_tvm.frontend.trace.join.kinds import Groups, OneOf, Settled, are_one_kind, by_kind, is_older, placeholder, renewed
from dycl_tvm.frontend.trace.join.lengths_by_path import LengthsByPath
from dycl_tvm.frontend.trace.join.mismatch import Mismatches, Name, label_of, sides_of, sides_of_contents, verb_of
from dycl_tvm.frontend.trace.join.outgrown import outgrown
from dycl_tvm.frontend.trace.join.poison import Poison, Why, filled, may_be_unset, of_poison
from dycl_tvm.frontend.trace.join.undecided import are_truths, note_contents, undecided
from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.advances import one_advance
from dycl_tvm.frontend.trace.values.aligned import dims_of, extent_at
from dycl_tvm.frontend.trace.values.elements import elements
from dycl_tvm.frontend.trace.values.grown import Grown, buffer_type, is_alike, number, rank_of
from dycl_tvm.frontend.trace.values.grown_math import is_contiguous
from dycl_tvm.frontend.trace.values.identity import join_identities
from dycl_tvm.frontend.trace.values.layouts import join_layouts, marks_of
from dycl_tvm.frontend.trace.values.lengths import Counter, Length
from dycl_tvm.frontend.trace.values.storage import Stale, Storage, tensor_type
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, emit_one, fresh_like, storage_of
from dycl_tvm.hcfg.nodes import Block, Constant, Operand, Value
from dycl_tvm.hcfg.types import BOOL, INT, TensorType, Type


@dataclass
class Joined:
    """What a join has done: its block, the blocks that lead there with their arguments, and where the journal stood then."""

    block: Block
    before: list[Block]
    args: list[list[Operand]]
    touches: int


class LastJoin(OfOneRun):
    """The last join of the run at hand."""

    joined: Joined | None = None


class Join:
    """Makes one state of the states of several paths, and leads the paths into one block.

    Parameters
    ----------
    paths : list of PathState
        At least two.
    clock : int
        When the paths began.
    decision : object
        What to fork if a value that could not be joined is used.
    differing : Mismatches
        Takes down what cannot be joined.
    of_loop : bool
        Whether they leave a rolled loop.
    """

    def __init__(self, paths: list[PathState], clock: int, decision: Any, name: str, differing: Mismatches, of_loop: bool = False) -> None:
        self.session = current()
        self._differing, self._of_loop = differing, of_loop
        #: The first container that holds other items on one path than on another: the paths cannot go on as one.
        self._apart: Why | None = None
        self.paths, self.clock, self.decision = paths, clock, decision
        self.block = self.session.builder.new_block(name)
        self.args: list[list[Operand]] = [[] for _ in paths]
        self._params: dict[Any, Value] = {}
        self._memo: dict[Any, Any] = {}
        self._targets: dict[int, set[int]] = {}
        #: By the parameter that is a length: what tensors have it.
        self._counters: dict[Value, Counter] = {}
        self._lengths: dict[tuple[Any, ...], Value] = {}
        self._keep: list[Any] = []
        self._undecided: list[Poison] = []
        self._kept_objects: set[int] = set()
        #: Which paths bring what is being joined: all, or those on which a value is of one kind; and values of several kinds.
        self._among: Sequence[int] = range(len(paths))
        self._of_kinds: list[OneOf] = []
        #: In how many containers the value is that is being joined.
        self._depth = 0

    def run(self) -> tuple[dict[str, Any], Any]:
        """Join; return the variables and the value. The journal has been rolled back to the beginning of the paths."""
        env = {name: self._variable(name) for name in self._names()}
        has_value = [p.value for p in self.paths if p.value is not None]
        value = self.unify(has_value, Name("the value returned")) if has_value else None
        writes = self._heap()
        if self._apart is not None:
            self.session.decisions.fork(self.decision, self._apart.reason, self._differing)
        self.enter()
        settled = self._settled()
        for place, raw, items in writes:
            self.session.journal.touch(place)
            place.write(filled(place, raw, list(map(settled, items))))
        self._guard_aliases()
        for poison in self._undecided:
            note_contents(poison)
        self.session.get(LastJoin).joined = Joined(self.block, [p.block for p in self.paths], self.args, self.session.journal.touches)
        return {name: settled(x) for name, x in env.items()}, settled(value)

    def enter(self) -> None:
        """Lead the paths into the joined block, and go on there."""
        for path, args in zip(self.paths, self.args):
            self.session.builder.block = path.block
            self.session.builder.jump(self.block, args)
        self.session.builder.block = self.block
        elements().enter(self.block.params, self.args)

    def _settled(self) -> Callable[[Any], Any]:
        """Return what shows a value as it is on the path that goes on, of the kinds that the run at hand was started with."""
        settled = Settled(self._of_kinds, getattr(self.decision, "origin", None))
        told = settled.told([(param, [args[i] for args in self.args]) for i, param in enumerate(self.block.params)])

        def of_path(x: Any) -> Any:
            return told.get(id(scalars.operand_of(x)), x) if told and scalars.is_symbolic(x) else settled(x)

        return of_path

    def _names(self) -> list[str]:
        names: dict[str, None] = {}
        for path in self.paths:
            names.update(dict.fromkeys(path.env))
        return list(names)

    def _variable(self, name: str) -> Any:
        found = [p.env.get(name) for p in self.paths]
        if any(c is None for c in found):
            return Poison(self.decision, self._differing.add(Name(f"`{name}`"), sides_of(found), unset=True))
        return self.unify(found, Name(f"`{name}`"))  # type: ignore[arg-type]

    # -- values -----------------------------------------------------------------------------------------------------
    def operand(self, type_: Type, operands: list[Operand], name: str = "") -> Operand:
        """Return what all paths bring, or a parameter of the joined block."""
        first = operands[0]
        same = all(same_number(NumberLeaf(None, o), NumberLeaf(None, first)) for o in operands)
        return first if same and self._is_everywhere(first) else self.phi(type_, operands, name)

    def _is_everywhere(self, operand: Operand) -> bool:
        """Whether what all paths at hand bring is there on all paths."""
        return len(self._among) == len(self.paths) or not isinstance(operand, Value) or isinstance(operand, Constant)

    def phi(self, type_: Type, operands: list[Operand], name: str = "") -> Value:
        """Make a parameter of the joined block of what the paths at hand bring; the others bring what is of no use."""
        if len(self._among) < len(self.paths):
            brought = dict(zip(self._among, operands))
            operands = [brought[i] if i in brought else placeholder(type_) for i in range(len(self.paths))]
        key = tuple((id(o) if isinstance(o, Value) else (type(o), repr(o))) for o in operands)
        param = self._params.get(key)
        if param is None:
            param = self._params[key] = self.session.builder.add_param(self.block, type_, name)
            for args, operand in zip(self.args, operands):
                args.append(operand)
            self._keep.append(operands)
        return param

    def unify(self, found: list[Captured], what: Name) -> Any:
        """Make one value of one a path."""
        first = found[0]
        if isinstance(first, Memory):
            return self._memory([c.obj for c in found])  # type: ignore[misc]  # all are
        if isinstance(first, NumberLeaf) and all(isinstance(c, NumberLeaf) for c in found):
            return self._number(found, what)  # type: ignore[arg-type]
        if all(c.obj is first.obj for c in found) and (self._is_whole(first) or is_older(first, self.clock)):
            self._keep_object(first.obj)
            return self._renewed(first.obj)
        if any(map(may_be_unset, found)):
            return Poison(self._decision_of(found), self._differing.add(what, sides_of(found), unset=True))
        if isinstance(first, (NumberLeaf, Alternatives)) or any(isinstance(c.obj, Poison) for c in found):
            return self._poison(found, what)
        if all(type(c) is type(first) for c in found):
            if isinstance(first, TensorLeaf):
                return self._tensor(found, what)  # type: ignore[arg-type]
            if isinstance(first, Items):
                return self._container(found, what)  # type: ignore[arg-type]
            if same_plain([c.obj for c in found]):
                return self._equal(found)
        return self._poison(found, what)

    def _is_whole(self, c: Captured) -> bool:
        """Whether all that a value consists of is there on all paths."""
        return len(self._among) == len(self.paths) or isinstance(c, Plain)

    def _renewed(self, x: Any) -> Any:
        made = x if self._depth else renewed(x)
        if made is not x:
            self._of_kinds.append(made)
        return made

    def _decision_of(self, found: list[Captured]) -> Any:
        """Return the first decision at which paths parted that now meet."""
        poisons = [c.obj for c in found if isinstance(c.obj, Poison)]
        for poison in poisons:
            self._differing.parted_before(of_poison(poison).others)
        return min([self.decision, *[object.__getattribute__(p, "_decision") for p in poisons]], key=lambda d: d.index)

    def _poison(self, found: list[Captured], what: Name) -> Poison:
        why = self._differing.add(what, sides_of(found))
        poison = Poison(self._decision_of(found), why, self.block, tuple([form_of(c) for c in found]))
        groups = None if are_truths(found) else self._kinds(found)
        if groups is not None:
            return self._one_of(groups, what, why)
        made = undecided(poison, found, self.operand)
        if made is not poison:
            self._undecided.append(made)
        return made

    def _kinds(self, found: Sequence[Captured]) -> Groups | None:
        """Return what values are kind by kind, where paths cannot part at the decision behind which they met, or would ever again.

        So it is in loops, and behind them. What a container holds is not told apart by itself.
        """
        rolling = self.session.decisions.rolling
        in_loop = rolling or self._of_loop or any(isinstance(c, Alternatives) for c in found)
        if self._depth or not in_loop or (rolling and not rolling[-1].loop.parts):
            return None
        return by_kind(found)

    def _one_of(self, groups: Groups, what: Name, why: Why) -> OneOf:
        kinds: list[tuple[Operand, Any]] = []
        for group in groups:
            flags: list[Operand] = [False] * len(self.paths)
            for path, flag, _ in group:
                flags[path] = flag
            flag = self.operand(BOOL, flags)
            self._among = [path for path, _, _ in group]
            value = self.unify([c for _, _, c in group], what)
            self._among = range(len(self.paths))
            kinds.append((flag, value))
        made = OneOf(self.decision, why, kinds)
        self._of_kinds.append(made)
        return made

    def _number(self, found: list[NumberLeaf], what: Name) -> Any:
        first = found[0]
        if all(same_number(c, first) for c in found) and self._is_everywhere(first.operand):
            return self._equal(found)
        kinds = {scalars._kind(c.operand) for c in found}
        if len(kinds) > 1 or any(scalars.mixed_of(c.obj) for c in found):
            return self._poison(found, what)  # type: ignore[arg-type]
        kind = kinds.pop()
        lengths = {scalars.length_of(c.obj) for c in found}
        made = scalars.wrap(self.phi(scalars.ScalarType(kind), [c.operand for c in found], what.variable), self.decision)  # type: ignore[arg-type]
        made.node.advance = one_advance([c.obj for c in found]) if kind == "int" else None
        if len(lengths) == 1 and isinstance(length := lengths.pop(), Length):
            return scalars.grown(made, length)
        bounds = [scalars.bounds_of(c.obj) for c in found]
        if kind == "int" and None not in bounds:
            made.node.bounds = min(b[0] for b in bounds), max(b[1] for b in bounds)  # type: ignore[index]  # none is None
        return made

    def _equal(self, found: list[Any]) -> Any:
        """Return one of several equal objects that cannot be changed; only their identity tells them apart."""
        first = found[0].obj
        if not scalars.is_symbolic(first) and any(c.obj is not first for c in found):
            join_identities(first, [c.obj for c in found], self.decision)
        return first

    def _tensor(self, found: list[TensorLeaf], what: Name) -> Any:
        with torch._C.DisableTorchFunction():  # staging itself looks at the tensors
            return self._join_tensors(found, what)

    def _join_tensors(self, found: list[TensorLeaf], what: Name) -> Any:
        first = found[0]
        if any(isinstance(c.obj, Grown) for c in found):
            return self._join_grown(found, what, dims_of([c.obj for c in found]))
        types_ = {tensor_type(c.obj) for c in found}
        if len(types_) > 1 or len({marks_of(c.obj) for c in found}) > 1 or any(isinstance(c.value, Stale) for c in found):
            along = self.session.get(LengthsByPath).dimension(found, getattr(self.decision, "origin", None))
            return self._poison(found, what) if along is None else self._join_grown(found, what, [along])  # type: ignore[arg-type]
        key = (tuple(self._among), *[id(c.obj) for c in found])
        if key not in self._memo:
            same = all(c.value is first.value for c in found) and self._is_everywhere(first.value)
            value = first.value if same else self.phi(types_.pop(), [c.value for c in found], what.variable)
            merged = self._memo[key] = fresh_like(join_layouts([c.obj for c in found], self.decision), value)
            join_identities(merged, [c.obj for c in found], self.decision)
            join_identities(merged.storage_, [storage_of(c.obj) for c in found], self.decision)
            self._keep += [c.obj for c in found]
            merged.storage_.sources = [storage_of(c.obj) for c in found]
            merged.storage_.shared = any(storage_of(c.obj).shared for c in found)
            self._merge_memory(merged.storage_, found)
        return self._memo[key]

    def _join_grown(self, found: list[TensorLeaf], what: Name, dims: list[int]) -> Any:
        """Join tensors that have several lengths along some dimensions, or lengths of the run; where these differ, that is a parameter."""
        first = found[0].obj
        if any(isinstance(c.value, Stale) or any(marks_of(c.obj)) or not is_alike(c.obj, first, dims) for c in found):
            return self._poison(found, what)  # type: ignore[arg-type]
        key = (tuple(self._among), *[id(c.obj) for c in found])
        if key not in self._memo:
            buffers = [buffer_type(c.obj) for c in found]
            whole = TensorType(tuple(map(max, zip(*[b.shape for b in buffers]))), buffers[0].dtype)
            same = all(c.value is found[0].value for c in found) and self._is_everywhere(found[0].value)
            values: list[Operand] = [self._padded(path, c.value, b, whole) for path, c, b in zip(self._at_hand(), found, buffers)]
            value = found[0].value if same else self.phi(whole, values, what.variable)
            merged = self._memo[key] = Grown(Storage(value), (), value, {d: self._length(found, d) for d in dims})
            merged.contiguous_ = all(is_contiguous(c.obj) for c in found)
            join_identities(merged, [c.obj for c in found], self.decision)
            join_identities(merged.storage_, [storage_of(c.obj) for c in found], self.decision)
            self._keep += [c.obj for c in found]
            merged.storage_.sources = [storage_of(c.obj) for c in found]
            merged.storage_.shared = any(storage_of(c.obj).shared for c in found)
            self._merge_memory(merged.storage_, found)
        return self._memo[key]

    def _padded(self, path: PathState, value: Value, buffer: TensorType, whole: TensorType) -> Value:
        """Return a buffer that is as long as that of another path."""
        if buffer == whole:
            return value
        padding = [n for a, b in zip(reversed(buffer.shape), reversed(whole.shape)) for n in (0, b - a)]
        return self._on(path, lambda: emit_one(torch.ops.aten.constant_pad_nd.default, (value, padding, 0), whole))

    def _length(self, found: list[TensorLeaf], along: int) -> Length:
        lengths: list[Any] = [extent_at(c.obj, rank_of(c.obj) - along) for c in found]
        one = {
            c.settled.lengths.get(along, n) if c.settled is not None else path.unsettled(n, lengths)
            for c, n, path in zip(found, lengths, self._at_hand())
        }
        if len(one) == 1 and isinstance(length := one.pop(), Length) and len(self._among) == len(self.paths):
            return length
        key = (tuple(self._among), *[n.origin if isinstance(n, Length) else n for n in lengths])
        if key not in self._lengths:  # tensors that are as long as each other on each path are so behind the join
            made = [n if isinstance(n, int) else self._on(path, partial(self._operand, n)) for path, n in zip(self._at_hand(), lengths)]
            self._lengths[key] = self.phi(INT, made)
        value = self._lengths[key]
        if value not in self._counters:
            ends = [n.bounds if isinstance(n, Length) else (n, n) for n in lengths]
            self._counters[value] = Counter(value, max(e[1] for e in ends), self.decision, first=min(e[0] for e in ends))
        return Length(self._counters[value], 1, 0)

    def _at_hand(self) -> list[PathState]:
        return [self.paths[i] for i in self._among]

    def _operand(self, length: Length) -> Operand:
        return scalars.operand_of(number(length))

    def _on(self, path: PathState, record: Callable[[], Any]) -> Any:
        """Record something at the end of a path."""
        builder = self.session.builder
        before, builder.block = builder.block, path.block
        made = record()
        builder.block = before
        return made

    def _merge_memory(self, merged: Storage, found: list[TensorLeaf]) -> None:
        """Let the memory of a joined tensor, and of those that it may be, know of each other."""
        for c in found:
            storage = storage_of(c.obj)
            merged.mergers.append((weakref.ref(storage), self.decision))
            storage.mergers.append((weakref.ref(merged), self.decision))

    def _container(self, found: list[Items], what: Name) -> Any:
        first = found[0]
        if not all(same_structure(first, c) for c in found):
            return self._poison(found, what)  # type: ignore[arg-type]
        if isinstance(first.obj, tuple) and (groups := self._kinds(found)) is not None:
            return self._one_of(groups, what, self._note_items(found, what))
        key = (tuple(self._among), *[id(c.obj) for c in found])
        if key not in self._memo:
            self._depth += 1
            items = [self.unify([c.items[i] for c in found], what.item(label_of(first, i))) for i in range(len(first.items))]
            self._depth -= 1
            merged = rebuild(first, items)
            if not isinstance(merged, tuple):
                for c in found:
                    self._targets.setdefault(id(c.obj), set()).add(id(merged))
                    self._keep.append(c.obj)
            join_identities(merged, [c.obj for c in found], self.decision)
            self._memo[key] = merged
        return self._memo[key]

    def _note_items(self, found: list[Items], what: Name) -> Why:
        """Take down which items of tuples differ; return what is to be said of the first."""
        whys: list[Why] = []
        for i, first in enumerate(found[0].items):
            items, name = [c.items[i] for c in found], what.item(label_of(found[0], i))
            if all(are_one_kind(first, c) for c in items):
                continue
            if isinstance(first, Items) and all(isinstance(c, Items) and same_structure(first, c) for c in items):
                whys.append(self._note_items(items, name))  # type: ignore[arg-type]  # all are
            else:
                whys.append(self._differing.add(name, sides_of(items)))
        return whys[0]

    # -- the heap -----------------------------------------------------------------------------------------------------
    def _heap(self) -> list[tuple[Place, Any, list[Any]]]:
        """Join the places that exist on all paths.

        An object made since the paths began may exist on some of them only; it exists on all of them exactly if a joined
        value is that very object, which :meth:`_keep_object` notes.
        """
        places: dict[Any, Place] = {}
        for path in self.paths:
            places.update({k: state.place for k, state in path.places.items() if k not in places})
        writes: list[tuple[Place, Any, list[Any]]] = []
        while True:
            ready = [
                k for k, p in places.items() if not self.session.heap.is_newer(p.owner, self.clock) or id(p.owner) in self._kept_objects
            ]
            if not ready:
                return writes
            for key in ready:
                place = places.pop(key)
                writes.append((place, *self._joined(key, place)))

    def _keep_object(self, x: Any) -> None:
        """Note an object that all paths share, and what it holds if no path has changed that."""
        if isinstance(x, StagedTensor):
            self._kept_objects.add(id(x.storage_))
            return
        if x is None or id(x) in self._kept_objects or isinstance(x, (str, int, float, torch.Tensor, torch.nn.Module, type)):
            return
        if not isinstance(x, tuple) and not self.session.heap.is_newer(x, self.clock):
            return
        self._kept_objects.add(id(x))
        if isinstance(x, (*MUTABLE, tuple)):
            if not any(Contents(x).key in p.places for p in self.paths):
                for item in x.values() if isinstance(x, dict) else x:
                    self._keep_object(item)
        elif hasattr(x, "__dict__"):
            for name, item in vars(x).items():
                if not any(attribute_of(x, name).key in p.places for p in self.paths):
                    self._keep_object(item)

    def _memory(self, values: list[Value]) -> Value:
        stale = next((v for v in values if isinstance(v, Stale)), None)
        if stale is not None:
            return stale
        return values[0] if all(v is values[0] for v in values) else self.phi(values[0].type, list(values))

    def _joined(self, key: Any, place: Place) -> tuple[Any, list[Any]]:
        """Return contents of a place, and its items after the join: a path that has not changed it brings what it held before."""
        base = capture_place(place, place.read())
        containers = set(containers_in(base.items))
        found = [path.places[key] if key in path.places else self._unchanged(path, base, containers) for path in self.paths]
        first = found[0]
        if any(state.structure != first.structure for state in found):
            outgrown(place.owner, max([[c.obj for c in state.items] for state in found], key=len), by_path=True)
            why = self._differing.add(Name(place), sides_of_contents(found), verb_of(place))
            self._apart = self._apart or why
            return None, []
        labels = place.labels(first.raw)
        items = [self.unify([state.items[i] for state in found], Name(place).item(label)) for i, label in enumerate(labels)]
        return first.raw, items

    def _unchanged(self, path: PathState, base: PlaceState, containers: set[Any]) -> PlaceState:
        """Return what a place holds on a path that has not changed it: the containers and tensors there may hold something else."""
        held: dict[Any, Any] = {}
        if not containers.isdisjoint(path.places):
            held = {k: state.raw for k, state in path.places.items() if isinstance(state.place, Contents)}
            base = capture_place(base.place, base.raw, held)
        left = [path.places[m] for m in set(memories_in(base.items)) if m in path.places]
        if not left:
            return base
        builder = self.session.builder
        before, builder.block = builder.block, path.block
        now = [(state.place, state.place.read()) for state in left]
        for state in left:
            state.place.write(state.raw)
        found = capture_place(base.place, base.raw, held)
        for memory, contents in now:
            memory.write(contents)
        builder.block = before
        return found

    def _guard_aliases(self) -> None:
        """A container that two names shared on one path only must not be changed later: that would have to show in both."""
        for source in self._keep:
            targets = self._targets.get(id(source), set()) if isinstance(source, (list, dict, deque)) else set()
            if targets and (len(targets) > 1 or not self.session.heap.is_newer(source, self.clock)):
                for t in (*targets, id(source)):
                    self.session.heap.guarded[t] = self.decision
