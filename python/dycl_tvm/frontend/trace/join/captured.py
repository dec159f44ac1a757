# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The state of a path at its end, taken down so that it can be joined with that of others.

A path's state is what its variables and the changed places of the heap hold: for tensors and numbers the SSA operand, for
containers their items.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union, cast

import torch

from dycl_tvm.frontend.trace.heap.keys import have_code
from dycl_tvm.frontend.trace.heap.places import MUTABLE, Contents, Place, attribute_of, exact
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.grown import Grown
from dycl_tvm.frontend.trace.values.layouts import marks_of
from dycl_tvm.frontend.trace.values.lengths import Affine, Counter, Learned, Length
from dycl_tvm.frontend.trace.values.storage import Stale, tensor_type
from dycl_tvm.frontend.trace.values.tensors import memory_of, peek
from dycl_tvm.hcfg.nodes import Block, Operand, Value


@dataclass
class Plain:
    """Any other object; joined only with itself or an equal immutable."""

    obj: Any


@dataclass
class TensorLeaf:
    """A tensor and the value that it holds; ``settled`` is what it is elsewhere, if its lengths are known on the path at hand."""

    obj: torch.Tensor
    value: Value
    settled: Grown | None = None


def differing_dimension(found: Sequence[TensorLeaf]) -> int | None:
    """Return the one dimension along which tensors of fixed shapes differ, if they are alike in all else, and can be read."""
    if any(isinstance(c.value, Stale) or any(marks_of(c.obj)) for c in found):
        return None
    types_ = [tensor_type(c.obj) for c in found]
    differing = [d for d, sizes in enumerate(zip(*[t.shape for t in types_])) if len(set(sizes)) > 1]
    return differing[0] if len(differing) == 1 and len({(t.dtype, len(t.shape)) for t in types_}) == 1 else None


@dataclass
class NumberLeaf:
    """A number, plain or known at run time."""

    obj: Any
    operand: Operand


@dataclass
class Items:
    """A tuple, list, dict, set or deque with captured items (a dict's values; its keys are in ``keys``).

    At the end of a call an object that the call has made, too: its attributes, by their names.
    """

    obj: Any
    items: list[Captured]
    keys: tuple[Any, ...] = ()


@dataclass
class Memory:
    """What the memory of tensors holds."""

    obj: Value


class OfKinds:
    """Base of what stands for a value of one of several kinds, of which the run tells which: see :mod:`.kinds`."""

    __slots__ = ()


@dataclass
class Alternatives:
    """Such a value: for each kind the flag that says whether it is of that one, and what it is then."""

    obj: Any
    kinds: list[tuple[Operand, Captured]]


Captured = Union[Plain, TensorLeaf, NumberLeaf, Items, Memory, Alternatives]
_IMMUTABLE = (str, bytes, type(None), torch.dtype, torch.device, torch.Size, range, type, types.BuiltinFunctionType, complex)


_AS_THEY_ARE: Mapping[Any, Any] = types.MappingProxyType({})


def capture(x: Any, held: Mapping[Any, Any] = _AS_THEY_ARE, _depth: int = 0) -> Captured:
    """Take down what a variable holds.

    ``held`` has the contents of containers, by the keys of their places, that held something else then than they do now.
    """
    if isinstance(x, Grown) and (part := x.settled()) is not x:
        return TensorLeaf(part, peek(part), x)
    if isinstance(x, torch.Tensor):
        return TensorLeaf(x, peek(x))
    if (isinstance(x, (bool, int, float)) and type(x) in (bool, int, float)) or scalars.is_symbolic(x):
        return NumberLeaf(x, scalars.operand_of(x))
    if isinstance(x, Value):
        return Memory(x)
    if _depth < 20:
        if isinstance(x, tuple) and not isinstance(x, torch.Size):
            return Items(x, [capture(i, held, _depth + 1) for i in x])
        if type(x) in (list, deque):
            return Items(x, [capture(i, held, _depth + 1) for i in held.get(_key(x), x)])
        if type(x) is dict and not have_code(x):  # no other dict can be made with its keys unless their code runs
            contents = held.get(_key(x), x.items())
            return Items(x, [capture(i, held, _depth + 1) for _, i in contents], tuple([k for k, _ in contents]))
        if isinstance(x, OfKinds):
            kinds = object.__getattribute__(x, "_kinds")
            return Alternatives(x, [(flag, capture(i, held, _depth + 1)) for flag, i in kinds])
    return Plain(x)


def _key(container: Any) -> Any:
    return Contents(container).key


#: What a value was on one path, without the user's objects: a tensor is its operand, a container its type, keys and items.
Form = Union[Value, NumberLeaf, Plain, tuple[type, tuple[Any, ...], list["Form"]]]


def form_of(c: Captured) -> Form | None:
    """Return what a captured value is; None if that cannot be told without its objects."""
    if isinstance(c, TensorLeaf):
        return None if isinstance(c.value, Stale) or isinstance(c.obj, Grown) else c.value
    if isinstance(c, Items):
        items = [form_of(i) for i in c.items]
        known = type(c.obj) in (tuple, list, dict) or hasattr(c.obj, "_fields")
        return (type(c.obj), c.keys, cast("list[Form]", items)) if known and all(i is not None for i in items) else None
    return c if isinstance(c, NumberLeaf) or (isinstance(c, Plain) and (c.obj is None or type(c.obj) is str)) else None


@dataclass
class PlaceState:
    """What a place holds: its contents as they are, and flattened."""

    place: Place
    raw: Any
    structure: Any
    items: list[Captured]

    def is_as(self, before: PlaceState) -> bool:
        """Whether a place holds the very objects that it held; some (`C.__bases__`) make the tuple of them at each reading."""
        then, now = ([y for c in s.items for y in (c.obj if type(c.obj) is tuple else [c.obj])] for s in (before, self))
        return before.structure == self.structure and len(then) == len(now) and all(a is b for a, b in zip(then, now))


def capture_place(place: Place, raw: Any, held: Mapping[Any, Any] = _AS_THEY_ARE) -> PlaceState:
    """Take down what a place holds; ``held`` is that of :func:`capture`."""
    structure, items = place.flatten(raw)
    return PlaceState(place, raw, structure, [capture(item, held) for item in items])


def memories_in(found: list[Captured]) -> Iterator[Any]:
    """Yield the keys of the memory of the tensors among captured values, and in the containers among these."""
    for c in found:
        if isinstance(c, TensorLeaf):
            yield memory_of(c.obj)
        elif isinstance(c, (Items, Alternatives)):
            yield from memories_in(parts_of(c))


def containers_in(found: list[Captured]) -> Iterator[Any]:
    """Yield the keys of the contents of the containers among captured values that can be changed, and of those in these."""
    for c in found:
        if isinstance(c, Items):
            if isinstance(c.obj, MUTABLE):
                yield Contents(c.obj).key
            yield from containers_in(c.items)
        elif isinstance(c, Alternatives):
            yield from containers_in(parts_of(c))


def parts_of(c: Items | Alternatives) -> list[Captured]:
    """Return what a captured value is made of."""
    return c.items if isinstance(c, Items) else [one for _, one in c.kinds]


@dataclass
class PathState:
    """A path at its end: the block that it ends in, its variables, the places that it changed, and numbers of trips known there."""

    block: Block
    env: dict[str, Captured]
    value: Captured | None
    places: dict[Any, PlaceState]
    tokens: list[Any] = field(default_factory=list)
    settled: dict[Counter, int] = field(default_factory=dict)

    def unsettled(self, extent: Affine, among: list[Affine]) -> Affine:
        """Return which of some lengths a size of a tensor at the end of the path is, as far as is known there; itself if it is none."""
        same = (n for n in among if isinstance(n, Length) and n.counter in self.settled and n.at(self.settled[n.counter]) == extent)
        return extent if isinstance(extent, Length) else next(same, extent)


def capture_path(env: dict[str, Any], mark: int, value: Any = None, has_value: bool = False) -> PathState:
    """Take down the path that is being run; ``mark`` is where the journal stood at the beginning of what is joined."""
    session = current()
    captured = {k: capture(v) for k, v in env.items()}
    result = capture(value) if has_value else None
    places = {key: capture_place(place, place.read()) for key, place in session.journal.changes(mark).items()}
    return PathState(session.builder.here(), captured, result, places, settled=session.get(Learned).settled())


def adopt(path: PathState) -> tuple[dict[str, Any], Any]:
    """Go on with one path alone; return its variables and value."""
    session = current()
    session.builder.block = path.block
    for state in path.places.values():
        session.journal.touch(state.place)
        state.place.write(state.raw)
    return {k: c.obj for k, c in path.env.items()}, None if path.value is None else path.value.obj


def same_structure(a: Items, b: Items) -> bool:
    """Whether two containers can be joined item by item."""
    return (
        type(a.obj) is type(b.obj)
        and len(a.items) == len(b.items)
        and [exact(k) for k in a.keys] == [exact(k) for k in b.keys]
        and (not isinstance(a.obj, deque) or a.obj.maxlen == b.obj.maxlen)
    )


def rebuild(c: Items, items: list[Any]) -> Any:
    """Make a container, or object, like the captured one, with other items."""
    kind: Any = type(c.obj)
    if not is_container(c.obj):
        made: Any = current().heap.born(object.__new__(kind))
        for name, value in zip(c.keys, items):
            attribute_of(made, name).write(value)
        return made
    if issubclass(kind, tuple):
        return kind(*items) if hasattr(kind, "_fields") else kind(items)
    made = dict(zip(c.keys, items)) if kind is dict else deque(items, c.obj.maxlen) if kind is deque else kind(items)
    return current().heap.born(made)


def is_container(x: Any) -> bool:
    """Whether what was taken down item by item is one of Python's containers, and no object of the program's."""
    return isinstance(x, (tuple, *MUTABLE))


def same_number(a: NumberLeaf, b: NumberLeaf) -> bool:
    if isinstance(a.operand, Value) or isinstance(b.operand, Value):
        return a.operand is b.operand
    return type(a.operand) is type(b.operand) and repr(a.operand) == repr(b.operand)  # 0.0 is not -0.0, NaN is NaN


def is_immutable(x: Any) -> bool:
    """Whether an object cannot be changed, and is as good as any that is equal to it."""
    return issubclass(type(x), _IMMUTABLE)


def same_plain(objects: list[Any]) -> bool:
    first = objects[0]
    if is_immutable(first) and all(type(o) is type(first) for o in objects):
        return all(o == first for o in objects)
    if all(isinstance(o, types.MethodType) for o in objects):
        return all(o.__self__ is first.__self__ and o.__func__ is first.__func__ for o in objects)
    return False
