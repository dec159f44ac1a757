# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The entry of a procedure, and what it returns: each as the header of a loop, but that the caller goes on after the call.

What the caller gives is still the caller's then. So containers that stand for it must not be changed, and what is returned may be what
was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from dycl_tvm.frontend.trace.heap.places import MUTABLE, Contents, Place
from dycl_tvm.frontend.trace.join.captured import Captured, Items, TensorLeaf, capture, capture_place
from dycl_tvm.frontend.trace.join.fixpoint import Header, Path, _Aliases
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.procedures import GoBack
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.identity import identity_of, join_identities
from dycl_tvm.frontend.trace.values.storage import may_be_one
from dycl_tvm.frontend.trace.values.tensors import storage_of
from dycl_tvm.hcfg.nodes import Block, Operand, Value


class _End(Header):
    """One end of a procedure."""

    def _rebuilt(self, path: Path, c: Items, made: Any) -> Any:
        self._identities.header_object(path, c.obj, made)
        self._copies[id(made)] = made
        if not isinstance(made, tuple):
            self._guard(made, c.obj)
        return made

    def _guard(self, *containers: Any) -> None:
        """Refuse to change containers."""
        for x in containers:
            current().heap.guarded[id(x)] = _Aliases(self.decision)


class Entry(_End):
    """The entry of a procedure.

    Parameters
    ----------
    given : dict
        The arguments of the outermost call.
    hidden : dict
        What is counted beside them.
    """

    #: Ends the block at hand with a call.
    lead: Callable[[Block, list[Operand]], None]

    def __init__(self, given: dict[str, Any], hidden: dict[str, Any], decision: Any, since: int) -> None:
        super().__init__(given, decision, hidden, None, since)

    def begin_block(self) -> Block:
        return current().builder.new_block("recursion")

    def lead_in(self, args: list[Operand]) -> None:
        self.lead(self.block, args)

    def lead_back(self, args: list[Operand]) -> None:
        self.lead(self.block, args)

    def handed(self, given: dict[str, Any]) -> list[Any]:
        """Return the tensors and containers among the arguments of a call, and in the places that calls change."""
        found = [capture(value) for value in given.values()]
        for place, _ in self._places.values():
            found += capture_place(place, place.read()).items
        return [c.obj for x in found for _, c in _parts((), x) if isinstance(c, (TensorLeaf, Items))]

    def changes_memory(self, changed: dict[Any, Place]) -> bool:
        """Whether one of the tensors that stand for arguments is changed in place."""
        mine = {id(storage) for storage in self._fresh.values()}
        return any(id(place.owner) in mine for place in changed.values())

    def may_be_given(self, x: Any) -> bool:
        """Whether a tensor or container may be what stands for an argument, or lie in its memory."""
        if not identity_of(x).all_parts().isdisjoint(self._identities._made):
            return True
        if not isinstance(x, torch.Tensor):
            return False
        mine, storage = {identity_of(s) for s in self._fresh.values()}, storage_of(x)
        return any(not mine.isdisjoint(identity_of(s).all_parts()) for s in (storage, *storage._twins()))


class Results(_End):
    """What a procedure returns and leaves: parameters of the blocks behind its calls.

    Parameters
    ----------
    value : object
        What the paths return that do not call the procedure again.
    """

    def __init__(self, value: Any, entry: Entry, decision: Any, since: int) -> None:
        super().__init__({"<value>": value}, decision, None, None, since, since)
        self._of = entry
        self._made: list[Any] = []
        #: Whether what is returned or left may be what was given.
        self._hands_on = False
        for path, c in _parts(("<value>",), capture(value)):
            if isinstance(c.obj, Poison):
                use(c.obj)
            if isinstance(c, TensorLeaf) and len(path) == 1 and current().heap.is_newer(c.obj, since):
                self._general[path] = None
            if isinstance(c, Items) and isinstance(c.obj, MUTABLE):
                place = Contents(c.obj)
                self._held[place.key] = place.read()

    def after(self, block: Block, given: list[Any]) -> Any:
        """Go on behind a call: return what it returns. What it was given are tensors and containers."""
        self.block, self._made = block, []
        value = self.open(set())["<value>"]
        if self._hands_on:
            self._let_be_given(given)
        return value

    def begin_block(self) -> Block:
        return self.block

    def lead_in(self, args: list[Operand]) -> None:
        """The call leads there."""

    def lead_back(self, args: list[Operand]) -> None:
        current().builder.terminate(GoBack(self._of.block, args, current().origin()))

    def unchanged(self, path: Path, param: Value) -> Operand:
        current().decisions.unroll_recursion(self.decision, "what a function leaves depends on the path")
        return param

    def close(self, env: dict[str, Any], changed: dict[Any, Place], before: dict[Any, Any]) -> bool:
        found = [capture(value) for value in env.values()]
        for place in changed.values():
            if not current().heap.is_newer(place.owner, self._clock):
                found += capture_place(place, place.read()).items
        parts = [part for c in found for _, part in _parts((), c)]
        known = self._hands_on
        self._hands_on |= any(self._of.may_be_given(c.obj) for c in parts if isinstance(c, (TensorLeaf, Items)))
        return super().close(env, changed, before) and known == self._hands_on

    def _generalise(self, path: Path, c: Captured) -> Any:
        made = super()._generalise(path, c)
        if made is not c.obj and isinstance(made, (torch.Tensor, tuple, *MUTABLE)):
            self._made.append(made)
        return made

    def _let_be_given(self, parts: list[Any]) -> None:
        if any(isinstance(made, MUTABLE) for made in self._made):
            self._guard(*[x for x in (*parts, *self._made) if isinstance(x, MUTABLE)])
        for made in self._made:
            join_identities(made, parts, self.decision, [identity_of(made)])
        for storage in self._fresh.values():
            for x in parts:
                if isinstance(x, torch.Tensor):
                    may_be_one(storage, storage_of(x), _Aliases(self.decision))


def _parts(path: Path, c: Captured) -> Iterator[tuple[Path, Captured]]:
    """Yield a captured value and all that it holds."""
    yield path, c
    if isinstance(c, Items):
        for i, item in enumerate(c.items):
            yield from _parts((*path, i), item)
