# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The header of a rolled loop: which leaves of the state are block parameters, found round by round.

Invariant at :meth:`Header.close` returning True: for every leaf of the state, either the header has a parameter
for it, or its value at the end of the body is the very value that the header began with.
"""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.clock import clock
from dycl_tvm.frontend.trace.heap.journal import MISSING, Contents, Place
from dycl_tvm.frontend.trace.join.captured import Captured, Items, NumberLeaf, Plain, TensorLeaf, capture, same_number, same_plain
from dycl_tvm.frontend.trace.join.join import describe
from dycl_tvm.frontend.trace.join.poison import Poison
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.storage import Stale, Storage, may_be_one, tensor_type
from dycl_tvm.frontend.trace.values.tensors import fresh_like, storage_of
from dycl_tvm.hcfg.nodes import Operand, Value

Path = tuple[Any, ...]


class _Aliases:
    """Why a tensor at the header cannot be read any more, in the place of a site: see :class:`.tensors.Stale`."""

    def __init__(self, site: Any) -> None:
        self.site = site

    def refuse(self, reason: str) -> None:
        """Take one more trip out of the loop, which may part the names; refuse if that was tried."""
        if not self.site.unroll:
            current().decisions.fork(self.site, reason)
        raise UnsupportedError(
            reason,
            current().origin() or self.site.origin,
            "copy the tensor where a variable is given another's: y = x.clone(); or compute a new one instead of changing it in place",
        )


class Header:
    """The loop header under construction.

    Parameters
    ----------
    entry : dict
        The loop's variables before its first iteration.
    site : object
        The loop, for messages.
    extra : dict, optional
        Hidden variables of the loop (the index of a counted loop).
    """

    def __init__(self, entry: dict[str, Any], site: Any, extra: dict[str, Any] | None = None) -> None:
        self.entry, self.site = entry, site
        self._clock = next(clock)
        self._extra_entry = dict(extra or {})
        self.extra: dict[str, Any] = {}
        self._general: dict[Path, None] = dict.fromkeys((name,) for name in self._extra_entry)
        self._poisoned: dict[Path, str] = {}
        self._places: dict[Any, tuple[Place, Any]] = {}
        self._params: dict[Path, Value] = {}
        self._args: list[Operand] = []
        self._state: dict[Any, Captured] = {}
        self._unset: set[str] = set()
        #: Which tensors at the header may be one with another there, or with one that is older than the loop.
        self._links: set[tuple[Path, Any]] = set()
        self._fresh: dict[Path, Storage] = {}
        self._homes: dict[Path, Storage] = {}

    def open(self, unset: set[str]) -> dict[str, Any]:
        """Begin a round: make the header block, lead the entry into it, and return the variables in it."""
        stage = current()
        self._params, self._args, self._unset, self._fresh, self._homes = {}, [], unset, {}, {}
        entry = {name: capture(value) for name, value in {**self.entry, **self._extra_entry}.items()}
        places = {key: (place, self._capture_place(place, contents)) for key, (place, contents) in self._places.items()}
        self.block = stage.builder.new_block("loop")
        env = {name: self._generalise((name,), c) for name, c in entry.items()}
        self._writes = [(place, self._generalise_place(key, place, c)) for key, (place, c) in places.items()]
        stage.builder.jump(self.block, list(self._args))
        stage.builder.block = self.block
        self.reopen()
        self._link(self._homes)
        for path, other in self._links:
            twin = self._fresh.get(other) if isinstance(other, tuple) else other
            if path in self._fresh and twin is not None:
                may_be_one(self._fresh[path], twin, _Aliases(self.site))
        self._state = {name: capture(value) for name, value in env.items()}
        for name in unset:
            env[name] = Poison(self.site, f"`{name}` is not set before the loop, and read in it before it is set")
        self.extra = {name: env.pop(name) for name in self._extra_entry}
        return env

    def reopen(self) -> None:
        """Set the changed places of the heap to what they hold at the header."""
        for place, contents in self._writes:
            current().journal.touch(place)
            place.write(contents)

    def close(self, env: dict[str, Any], changed: dict[Any, Place], before: dict[Any, Any]) -> bool:
        """Compare the state at the end of the body; jump back if the header is general enough."""
        stage = current()
        known = (len(self._general), len(self._poisoned), len(self._places), len(self._links))
        self._homes = {}
        found: dict[Path, Operand] = {}
        for name, value in env.items():
            if name in self._state:
                self._compare((name,), self._state[name], capture(value), found)
        for key, place in changed.items():
            if stage.heap.is_newer(place.owner, self._clock):
                continue
            if key not in self._places:
                self._places[key] = (place, before[key])
            self._compare_place(key, place, found)
        self._link(self._homes)
        if known != (len(self._general), len(self._poisoned), len(self._places), len(self._links)):
            return False
        stage.builder.jump(self.block, [found.get(path, param) for path, param in self._params.items()])
        return True

    def _link(self, homes: dict[Path, Storage]) -> None:
        """Note which variables lie in one memory, at the entry or at the end of the body, but are tensors of their own at the header."""
        first: dict[Storage, Path] = {}
        for path, storage in homes.items():
            if storage in first:
                self._links.add((first[storage], path))
            first.setdefault(storage, path)
            if storage.born <= self._clock:
                self._links.add((path, storage))

    # -- making the header's values -----------------------------------------------------------------------------------
    def _param(self, path: Path, type_: Any, operand: Operand) -> Value:
        param = self._params[path] = current().builder.add_param(self.block, type_, str(path[0]) if isinstance(path[0], str) else "")
        self._args.append(operand)
        return param

    def _generalise(self, path: Path, c: Captured) -> Any:
        if path in self._poisoned:
            return Poison(self.site, self._poisoned[path])
        if isinstance(c, TensorLeaf) and path in self._general:
            if isinstance(c.value, Stale):
                return Poison(self.site, _STALE)
            meta = torch.empty_strided(c.obj.shape, c.obj.stride(), dtype=c.obj.dtype, device="meta")
            made = fresh_like(meta, self._param(path, tensor_type(c.obj), c.value))
            self._fresh[path], self._homes[path] = made.storage_, storage_of(c.obj)
            return made
        if isinstance(c, NumberLeaf) and path in self._general:
            kind: Any = scalars._kind(c.operand)
            return scalars.wrap(self._param(path, scalars.ScalarType(kind), c.operand))
        if isinstance(c, Items) and any(p[: len(path)] == path for p in (*self._general, *self._poisoned)):
            items = [self._generalise((*path, i), item) for i, item in enumerate(c.items)]
            return rebuild(c, items)
        return c.obj

    def _capture_place(self, place: Place, contents: Any) -> Captured:
        if isinstance(place, Storage):
            return Plain(contents)
        if isinstance(place, Contents):
            pairs = isinstance(place.owner, dict)
            return Items(contents, [capture(v[1] if pairs else v) for v in contents], tuple(k for k, _ in contents) if pairs else ())
        return capture(contents)

    def _generalise_place(self, key: Any, place: Place, c: Captured) -> Any:
        if isinstance(place, Storage):
            value, version = c.obj
            if isinstance(value, Stale) or (key,) in self._poisoned:
                return Stale(value.type, _Aliases(self.site)), next(clock)
            if (key,) not in self._general:
                return value, version
            return self._param((key,), value.type, value), Storage(value).version
        if isinstance(place, Contents):
            assert isinstance(c, Items)
            items = [self._generalise((key, i), item) for i, item in enumerate(c.items)]
            return tuple(zip(c.keys, items)) if c.keys else tuple(items)
        return self._generalise((key,), c)

    # -- comparing ------------------------------------------------------------------------------------------------------
    def _compare(self, path: Path, header: Captured, back: Captured, found: dict[Path, Operand]) -> None:
        if isinstance(header.obj, Poison):
            return
        if isinstance(header, TensorLeaf) and isinstance(back, TensorLeaf) and tensor_type(header.obj) == tensor_type(back.obj):
            if path in self._general:
                found[path] = back.value
                self._homes[path] = storage_of(back.obj)
                if isinstance(back.value, Stale):
                    self._poisoned[path] = _STALE
            elif header.obj is not back.obj:  # what is changed in place is a place of the heap, seen through all its aliases
                self._general[path] = None
        elif mixed := scalars.mixed_of(back.obj):
            self._poisoned[path] = f"{_name(path)} is {mixed.types} after the loop's body, depending on values"
        elif (
            isinstance(header, NumberLeaf) and isinstance(back, NumberLeaf) and scalars._kind(header.operand) == scalars._kind(back.operand)
        ):
            if path in self._general:
                found[path] = back.operand
            elif not same_number(header, back):
                self._general[path] = None
        elif (
            isinstance(header, Items)
            and isinstance(back, Items)
            and type(header.obj) is type(back.obj)
            and header.keys == back.keys
            and len(header.items) == len(back.items)
        ):
            for i, (h, b) in enumerate(zip(header.items, back.items)):
                self._compare((*path, i), h, b, found)
        elif header.obj is not back.obj and not same_plain([header.obj, back.obj]):
            self._poisoned[path] = f"{_name(path)} is {describe(header)} before the loop's body and {describe(back)} after it"

    def _compare_place(self, key: Any, place: Place, found: dict[Path, Operand]) -> None:
        header = {p.key: c for p, c in self._writes}.get(key, self._places[key][1])
        now = place.read()
        if isinstance(place, Storage):
            if isinstance(now[0], Stale) or (key,) in self._poisoned:
                self._poisoned[(key,)] = _STALE
            elif (key,) in self._general:
                found[(key,)] = now[0]
            elif now[0] is not header[0]:
                self._general[(key,)] = None
            return
        h, b = self._capture_place(place, header), self._capture_place(place, now)
        if isinstance(place, Contents):
            assert isinstance(h, Items) and isinstance(b, Items)
            if len(h.items) != len(b.items) or h.keys != b.keys:
                current().decisions.unroll(self.site, f"a {type(place.owner).__name__} changes its length")
            for i, (x, y) in enumerate(zip(h.items, b.items)):
                self._compare((key, i), x, y, found)
        elif (h.obj is MISSING) != (b.obj is MISSING):
            self._poisoned[(key,)] = "an attribute is first set in the loop"
        else:
            self._compare((key,), h, b, found)


_STALE = "a tensor may have been changed in place under another name"


def rebuild(c: Items, items: list[Any]) -> Any:
    """Make a container like the captured one, with other items."""
    kind: Any = type(c.obj)
    if issubclass(kind, tuple):
        return kind(*items) if hasattr(kind, "_fields") else kind(items)
    return current().heap.born(dict(zip(c.keys, items)) if kind is dict else kind(items))


def _name(path: Path) -> str:
    return f"`{path[0]}`" if isinstance(path[0], str) else "an attribute"
