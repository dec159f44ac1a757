# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Joining paths: making one state of the states that several paths come with.

A path's state is what its variables and the changed places of the heap hold, *captured* at its end: for tensors and
numbers the SSA operand, for containers their items. :class:`Join` makes one value of several: equal ones stay, tensors of one
type and numbers of one kind become block parameters, containers of one structure are joined item by item. What cannot be
joined becomes a :class:`Poison`, which costs nothing unless it is used; using it forks the site that made it.
"""

from __future__ import annotations

import types
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Union, cast

import torch

from dycl_tvm.frontend.trace.heap.journal import MISSING, MUTABLE, Attribute, Contents, Place
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, Stale, Storage, fresh_like, peek, storage_of, tensor_type
from dycl_tvm.hcfg.nodes import Block, Operand, Value
from dycl_tvm.hcfg.types import Type


class Poison:
    """What a variable holds after a join of values that cannot be one. Any use of it forks ``site``; see also :mod:`.parting`."""

    __slots__ = ("_parts", "_reason", "_site")

    def __init__(self, site: Any, reason: str, block: Block | None = None, parts: tuple[Part | None, ...] = ()) -> None:
        object.__setattr__(self, "_site", site)
        object.__setattr__(self, "_reason", reason)
        object.__setattr__(self, "_parts", (block, parts))

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Poison
        use(self)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Fork when a tensor function is given a poison."""
        for a in torch.utils._pytree.tree_leaves((args, kwargs or {})):
            if isinstance(a, Poison):
                use(a)


def is_unbound(poison: Poison) -> bool:
    """Whether the variable may not be set at all."""
    return "is set on one path only" in object.__getattribute__(poison, "_reason")


def parts_at(poison: Poison, block: Block) -> tuple[Part | None, ...]:
    """Return what a poison is on each of the paths that parted at a test and were joined in ``block``; nothing if it is another's."""
    site = object.__getattribute__(poison, "_site")
    made_in, parts = object.__getattribute__(poison, "_parts")
    return parts if made_in is block and not (site.is_loop or site.choice) else ()


def use(poison: Poison) -> Any:
    """Fork the site that made the poison."""
    current().fork(object.__getattribute__(poison, "_site"), object.__getattribute__(poison, "_reason"))


def _trap(self: Any, *_args: Any, **_kwargs: Any) -> Any:
    use(self)


for _name in [
    "add",
    "radd",
    "iadd",
    "sub",
    "rsub",
    "isub",
    "mul",
    "rmul",
    "imul",
    "truediv",
    "rtruediv",
    "floordiv",
    "rfloordiv",
    "mod",
    "rmod",
    "pow",
    "rpow",
    "matmul",
    "rmatmul",
    "neg",
    "pos",
    "abs",
    "invert",
    "and",
    "rand",
    "or",
    "ror",
    "xor",
    "rxor",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "bool",
    "int",
    "float",
    "index",
    "len",
    "iter",
    "next",
    "getitem",
    "setitem",
    "delitem",
    "contains",
    "call",
    "enter",
    "exit",
    "hash",
    "str",
    "repr",
    "format",
    "round",
    "trunc",
    "floor",
    "ceil",
    "setattr",
]:
    setattr(Poison, f"__{_name}__", _trap)


# -- captured values --------------------------------------------------------------------------------------------------
@dataclass
class Plain:
    """Any other object; joined only with itself or an equal immutable."""

    obj: Any


@dataclass
class TensorLeaf:
    """A tensor and the value that it holds."""

    obj: torch.Tensor
    value: Value


@dataclass
class NumberLeaf:
    """A number, plain or known at run time."""

    obj: Any
    operand: Operand


@dataclass
class Items:
    """A tuple, list, dict, set or deque with captured items (a dict's values; its keys are in ``keys``)."""

    obj: Any
    items: list[Captured]
    keys: tuple[Any, ...] = ()


Captured = Plain | TensorLeaf | NumberLeaf | Items
_IMMUTABLE = (str, bytes, type(None), torch.dtype, torch.device, torch.Size, range, type, types.BuiltinFunctionType, complex)


def capture(x: Any, _depth: int = 0) -> Captured:
    """Take down what a variable holds."""
    if isinstance(x, torch.Tensor):
        return TensorLeaf(x, peek(x))
    if (isinstance(x, (bool, int, float)) and type(x) in (bool, int, float)) or scalars.is_symbolic(x):
        return NumberLeaf(x, scalars.operand_of(x))
    if _depth < 20:
        if isinstance(x, tuple) and not isinstance(x, torch.Size):
            return Items(x, [capture(i, _depth + 1) for i in x])
        if type(x) in (list, deque):
            return Items(x, [capture(i, _depth + 1) for i in x])
        if type(x) is dict:
            return Items(x, [capture(i, _depth + 1) for i in x.values()], tuple(x))
    return Plain(x)


#: What a value was on one path, without the user's objects: a tensor is its operand, a container its type, keys and items.
Part = Union[Value, NumberLeaf, Plain, tuple[type, tuple[Any, ...], list["Part"]]]


def part_of(c: Captured) -> Part | None:
    """Return what a captured value is; None if that cannot be told without its objects."""
    if isinstance(c, TensorLeaf):
        return None if isinstance(c.value, Stale) else c.value
    if isinstance(c, Items):
        items = [part_of(i) for i in c.items]
        known = type(c.obj) in (tuple, list, dict) or hasattr(c.obj, "_fields")
        return (type(c.obj), c.keys, cast("list[Part]", items)) if known and all(i is not None for i in items) else None
    return c if isinstance(c, NumberLeaf) or c.obj is None or type(c.obj) is str else None


@dataclass
class PathState:
    """A path at its end: the block that it ends in, its variables, and the places that it changed.

    ``raw`` holds the contents of the changed places as they are, for the case that the path turns out to be the only one.
    """

    block: Block
    env: dict[str, Captured]
    value: Captured | None
    places: dict[Any, tuple[Place, Any, Captured | Value]]
    tokens: list[Any] = field(default_factory=list)


def capture_path(env: dict[str, Any], mark: int, value: Any = None, has_value: bool = False) -> PathState:
    """Take down the path that is being run; ``mark`` is where the journal stood at the beginning of what is joined."""
    stage = current()
    captured = {k: capture(v) for k, v in env.items()}
    result = capture(value) if has_value else None
    places: dict[Any, tuple[Place, Any, Captured | Value]] = {}
    for key, place in stage.journal.changes(mark).items():
        raw = place.read()
        if isinstance(place, Storage):
            places[key] = (place, raw, raw[0])
        elif isinstance(place, Contents):
            pairs = isinstance(place.owner, dict)
            items = [capture(v) for _, v in raw] if pairs else [capture(v) for v in raw]
            places[key] = (place, raw, Items(raw, items, tuple(k for k, _ in raw) if pairs else ()))
        else:
            places[key] = (place, raw, capture(raw))
    return PathState(stage.builder.here(), captured, result, places)


def adopt(path: PathState) -> tuple[dict[str, Any], Any]:
    """Go on with one path alone; return its variables and value."""
    stage = current()
    stage.builder.block = path.block
    for place, raw, _ in path.places.values():
        stage.journal.touch(place)
        place.write(raw)
    return {k: c.obj for k, c in path.env.items()}, None if path.value is None else path.value.obj


@dataclass
class Joined:
    """The last join of a run: its block, the blocks that lead there with their arguments, and where the journal stood then."""

    block: Block
    before: list[Block]
    args: list[list[Operand]]
    touches: int


class Join:
    """Makes one state of the states of several paths, and leads the paths into one block.

    Parameters
    ----------
    paths : list of PathState
        At least two.
    mark, clock : int
        Where the journal and the clock of births stood when the paths began.
    site : object
        What to fork if a value that could not be joined is used.
    """

    def __init__(self, paths: list[PathState], mark: int, clock: int, site: Any, name: str) -> None:
        self.stage = current()
        self.paths, self.clock, self.site = paths, clock, site
        self.block = self.stage.builder.new_block(name)
        self.args: list[list[Operand]] = [[] for _ in paths]
        self._params: dict[Any, Value] = {}
        self._memo: dict[Any, Any] = {}
        self._targets: dict[int, set[int]] = {}
        self._keep: list[Any] = []
        self._kept_objects: set[int] = set()

    def run(self) -> tuple[dict[str, Any], Any]:
        """Join; return the variables and the value. The journal has been rolled back to the beginning of the paths."""
        env = {name: self._variable(name) for name in self._names()}
        has_value = [p.value for p in self.paths if p.value is not None]
        value = self.unify(has_value, "the value returned") if has_value else None
        writes = [(place, contents) for place, contents in self._heap()]
        self.enter()
        for place, contents in writes:
            self.stage.journal.touch(place)
            place.write(contents)
        self._guard_aliases()
        self.stage.joined = Joined(self.block, [p.block for p in self.paths], self.args, self.stage.journal.touches)
        return env, value

    def enter(self) -> None:
        """Lead the paths into the joined block, and go on there."""
        for path, args in zip(self.paths, self.args):
            self.stage.builder.block = path.block
            self.stage.builder.jump(self.block, args)
        self.stage.builder.block = self.block

    def _names(self) -> list[str]:
        names: dict[str, None] = {}
        for path in self.paths:
            names.update(dict.fromkeys(path.env))
        return list(names)

    def _variable(self, name: str) -> Any:
        found = [p.env.get(name) for p in self.paths]
        if any(c is None for c in found):
            return Poison(self.site, f"`{name}` is set on one path only, and used later")
        return self.unify(found, f"`{name}`")  # type: ignore[arg-type]

    # -- values -----------------------------------------------------------------------------------------------------
    def operand(self, type_: Type, operands: list[Operand], name: str = "") -> Operand:
        """Return what all paths bring, or a parameter of the joined block."""
        first = operands[0]
        same = all(_same_number(NumberLeaf(None, o), NumberLeaf(None, first)) for o in operands)
        return first if same else self.phi(type_, operands, name)

    def phi(self, type_: Type, operands: list[Operand], name: str = "") -> Value:
        """Make a parameter of the joined block."""
        key = tuple((id(o) if isinstance(o, Value) else (type(o), repr(o))) for o in operands)
        param = self._params.get(key)
        if param is None:
            param = self._params[key] = self.stage.builder.add_param(self.block, type_, name if name.isidentifier() else "")
            for args, operand in zip(self.args, operands):
                args.append(operand)
            self._keep.append(operands)
        return param

    def unify(self, found: list[Captured], what: str) -> Any:
        """Make one value of one a path."""
        first = found[0]
        if isinstance(first, NumberLeaf):
            if all(isinstance(c, NumberLeaf) for c in found):
                return self._number(found, what)  # type: ignore[arg-type]
            return self._poison(found, what)
        if all(c.obj is first.obj for c in found):
            self._keep_object(first.obj)
            return first.obj
        if any(isinstance(c.obj, Poison) for c in found):
            return self._poison(found, what)
        if all(type(c) is type(first) for c in found):
            if isinstance(first, TensorLeaf):
                return self._tensor(found, what)  # type: ignore[arg-type]
            if isinstance(first, Items):
                return self._container(found, what)  # type: ignore[arg-type]
            if _same_plain([c.obj for c in found]):
                return first.obj
        return self._poison(found, what)

    def _poison(self, found: list[Captured], what: str) -> Poison:
        sites = [object.__getattribute__(c.obj, "_site") for c in found if isinstance(c.obj, Poison)]
        kinds = " or ".join(dict.fromkeys(_describe(c) for c in found))
        site = min([self.site, *sites], key=lambda s: s.index)
        return Poison(site, f"{what} is {kinds}, depending on the path", self.block, tuple([part_of(c) for c in found]))

    def _number(self, found: list[NumberLeaf], what: str) -> Any:
        first = found[0]
        if all(_same_number(c, first) for c in found):
            return first.obj
        kinds = {scalars._kind(c.operand) for c in found}
        if len(kinds) > 1 or any(scalars.mixed_of(c.obj) for c in found):
            return self._poison(found, what)  # type: ignore[arg-type]
        kind = kinds.pop()
        return scalars.wrap(self.phi(scalars.ScalarType(kind), [c.operand for c in found], what.strip("`")), self.site)  # type: ignore[arg-type]

    def _tensor(self, found: list[TensorLeaf], what: str) -> Any:
        first = found[0]
        types_ = {tensor_type(c.obj) for c in found}
        if len(types_) > 1 or any(isinstance(c.value, Stale) for c in found):
            return self._poison(found, what)  # type: ignore[arg-type]
        key = tuple(id(c.obj) for c in found)
        if key not in self._memo:
            same = all(c.value is first.value for c in found)
            value = first.value if same else self.phi(types_.pop(), [c.value for c in found], what.strip("`"))
            strides = {c.obj.stride() for c in found}
            meta = torch.empty_strided(first.obj.shape, first.obj.stride(), dtype=first.obj.dtype, device="meta")
            merged = fresh_like(meta if len(strides) == 1 else torch.empty_like(meta, memory_format=torch.contiguous_format), value)
            self._memo[key] = merged
            self._keep += [c.obj for c in found]
            for c in found:
                storage = storage_of(c.obj)
                merged.storage_.mergers.append((weakref.ref(storage), self.site))
                storage.mergers.append((weakref.ref(merged.storage_), self.site))
        return self._memo[key]

    def _container(self, found: list[Items], what: str) -> Any:
        first = found[0]
        if any(type(c.obj) is not type(first.obj) or len(c.items) != len(first.items) or c.keys != first.keys for c in found):
            return self._poison(found, what)  # type: ignore[arg-type]
        key = tuple(id(c.obj) for c in found)
        if key not in self._memo:
            items = [self.unify([c.items[i] for c in found], f"{what}[{i}]") for i in range(len(first.items))]
            kind: Any = type(first.obj)
            if issubclass(kind, tuple):
                merged = kind(*items) if hasattr(kind, "_fields") else kind(items)
            else:
                merged = self.stage.born(dict(zip(first.keys, items)) if kind is dict else kind(items))
                for c in found:
                    self._targets.setdefault(id(c.obj), set()).add(id(merged))
                    self._keep.append(c.obj)
            self._memo[key] = merged
        return self._memo[key]

    # -- the heap -----------------------------------------------------------------------------------------------------
    def _heap(self) -> list[tuple[Place, Any]]:
        """Join the places that exist on all paths.

        An object made since the paths began may exist on some of them only; it exists on all of them exactly if a joined
        value is that very object, which :meth:`_keep_object` notes.
        """
        places: dict[Any, Place] = {}
        for path in self.paths:
            places.update({k: p for k, (p, _, _) in path.places.items() if k not in places})
        writes: list[tuple[Place, Any]] = []
        while True:
            ready = [k for k, p in places.items() if not self.stage.is_newer(p.owner, self.clock) or id(p.owner) in self._kept_objects]
            if not ready:
                return writes
            for key in ready:
                place = places.pop(key)
                writes.append((place, self._joined(key, place)))

    def _keep_object(self, x: Any) -> None:
        """Note an object that all paths share, and what it holds if no path has changed that."""
        if isinstance(x, StagedTensor):
            self._kept_objects.add(id(x.storage_))
            return
        if x is None or id(x) in self._kept_objects or isinstance(x, (str, int, float, torch.Tensor, torch.nn.Module, type)):
            return
        if not isinstance(x, tuple) and not self.stage.is_newer(x, self.clock):
            return
        self._kept_objects.add(id(x))
        if isinstance(x, (*MUTABLE, tuple)):
            if not any(Contents(x).key in p.places for p in self.paths):
                for item in x.values() if isinstance(x, dict) else x:
                    self._keep_object(item)
        elif hasattr(x, "__dict__"):
            for name, item in vars(x).items():
                if not any(Attribute(x, name).key in p.places for p in self.paths):
                    self._keep_object(item)

    def _joined(self, key: Any, place: Place) -> Any:
        base = place.read()
        found = [p.places[key][2] if key in p.places else None for p in self.paths]
        if isinstance(place, Storage):
            values: list[Any] = [base[0] if f is None else f for f in found]
            stale = [v for v in values if isinstance(v, Stale)]
            if stale:
                return (stale[0], Storage(stale[0]).version)
            same = all(v is values[0] for v in values)
            return (values[0] if same else self.phi(values[0].type, values), Storage(values[0]).version)
        if isinstance(place, Contents):
            return self._contents(place, base, found)
        captured: list[Any] = [capture(base) if f is None else f for f in found]
        what = f"`{getattr(place, 'name', 'a variable of an outer function')}`"
        if any(c.obj is MISSING for c in captured) and not all(c.obj is MISSING for c in captured):
            return Poison(self.site, f"{what} is set on one path only, and used later")
        return self.unify(captured, what)

    def _contents(self, place: Contents, base: Any, found: list[Any]) -> Any:
        pairs = isinstance(place.owner, dict)
        captured: list[Any] = []
        for f in found:
            if f is None:
                items = [capture(v) for _, v in base] if pairs else [capture(v) for v in base]
                f = Items(base, items, tuple(k for k, _ in base) if pairs else ())
            captured.append(f)
        first = captured[0]
        what = f"a {type(place.owner).__name__}"
        if isinstance(place.owner, set):
            if all(set(c.obj) == set(first.obj) for c in captured):
                return first.obj
            self.stage.fork(self.site, f"{what} holds other items, depending on the path")
        if any(len(c.items) != len(first.items) or c.keys != first.keys for c in captured):
            lengths = " or ".join(dict.fromkeys(str(len(c.items)) for c in captured))
            self.stage.fork(self.site, f"{what} holds {lengths} items, depending on the path")
        items = [self.unify([c.items[i] for c in captured], f"{what}[{i}]") for i in range(len(first.items))]
        return tuple(zip(first.keys, items)) if pairs else tuple(items)

    def _guard_aliases(self) -> None:
        """A container that two names shared on one path only must not be changed later: that would have to show in both."""
        for source in self._keep:
            targets = self._targets.get(id(source), set()) if isinstance(source, (list, dict, deque)) else set()
            if targets and (len(targets) > 1 or not self.stage.is_newer(source, self.clock)):
                for t in (*targets, id(source)):
                    self.stage.guarded[t] = self.site


def _same_number(a: NumberLeaf, b: NumberLeaf) -> bool:
    if isinstance(a.operand, Value) or isinstance(b.operand, Value):
        return a.operand is b.operand
    return type(a.operand) is type(b.operand) and repr(a.operand) == repr(b.operand)  # 0.0 is not -0.0, NaN is NaN


def _same_plain(objects: list[Any]) -> bool:
    first = objects[0]
    if all(isinstance(o, _IMMUTABLE) and type(o) is type(first) for o in objects):
        return all(o == first for o in objects)
    if all(isinstance(o, types.MethodType) for o in objects):
        return all(o.__self__ is first.__self__ and o.__func__ is first.__func__ for o in objects)
    return False


def _describe(c: Captured) -> str:
    if isinstance(c, TensorLeaf):
        return f"a tensor {list(c.obj.shape)} of {str(c.obj.dtype).removeprefix('torch.')}"
    if isinstance(c, NumberLeaf):
        return f"a number ({scalars._kind(c.operand)})"
    if isinstance(c, Items):
        return f"a {type(c.obj).__name__} of {len(c.items)} items"
    if isinstance(c.obj, Poison):
        return "one of several values"
    return "None" if c.obj is None else f"a {type(c.obj).__name__}"
