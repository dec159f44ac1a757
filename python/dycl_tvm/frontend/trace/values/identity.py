# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which object a value of the staged program is in eager.

A join makes one object of several, so ``is``, ``id`` and ``hash`` of it would be answered for an object that eager does not have. Hence a
joined value remembers the identities that it may have, and asking for what depends on the path forks the join that made it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.clock import Dated
from dycl_tvm.frontend.trace.session import OfOneRun, current


class Identity:
    """That of one object, or, with ``parts``, of one of several objects.

    Attributes
    ----------
    parts : tuple of Identity
        What it may be.
    decision : object
        What to fork so that it is known which.
    born : int
        When the object was made; 0 if that was before staging, or is not known.
    outside : str
        ``input``, ``state`` or ``model``, if the object comes from outside of the call: an input, or a tensor of the model, may be what
        an earlier call has kept.
    """

    __slots__ = ("born", "decision", "outside", "parts")

    def __init__(self, parts: Iterable[Identity] = (), decision: Any = None, born: int = 0, outside: str = "") -> None:
        self.parts, self.decision, self.born, self.outside = tuple(parts), decision, born, outside

    def all_parts(self) -> set[Identity]:
        """Return the identity and all that it may be."""
        found, open_ = {self}, [self]
        while open_:
            for part in open_.pop().parts:
                if part not in found:
                    found.add(part)
                    open_.append(part)
        return found

    def settle(self, question: str) -> None:
        """Fork if the answer to a question depends on what it is."""
        if self.parts:
            current().decisions.fork(self.decision, f"{question} of one of several objects is asked for, depending on the path")


class Carrier(Dated):
    """An object that knows its identity itself; that of others stands in a table, which keeps them alive."""

    __slots__ = ()


class Identities(OfOneRun):
    """What objects are in eager that do not know it themselves: the object and its identity, by id."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[Any, Identity]] = {}


def identity_of(x: Any) -> Identity:
    """Return the identity of an object."""
    known = _known(x)
    if known is None:
        heap = current().heap
        outside = "model" if isinstance(x, torch.Tensor) and not heap.is_newer(x, heap.run_started) else ""
        known = Identity(born=heap.birth(x), outside=outside)
        _set(x, known)
    return known


def join_identities(made: Any, found: Iterable[Any], decision: Any, more: Iterable[Identity] = ()) -> None:
    """Note that an object stands for one of several, on the paths of ``decision``."""
    parts = dict.fromkeys([*[identity_of(x) for x in found], *more])
    if decision is not None:
        _set(made, Identity(parts, decision, current().heap.birth(made)))


def mark_outside(x: Any, where: str) -> None:
    """Note that an object comes from outside of the call: it is an ``input``, or of the ``state``."""
    x.identity = Identity(born=x.born, outside=where)


def settle(x: Any, question: str) -> None:
    """Fork if the answer to a question about an object depends on which of several it is."""
    known = _known(x)
    if known is not None:
        known.settle(question)


def are_one(a: Any, b: Any) -> bool:
    """Answer ``a is b`` as eager does."""
    if a is b:
        return True
    one, other = _known(a), _known(b)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        one, other = one or identity_of(a), other or identity_of(b)
    if one is None or other is None:
        return False
    mine, others = one.all_parts(), other.all_parts()
    if not mine.isdisjoint(others):
        decisions = [i.decision for i in (one, other) if i.parts]
        if not decisions:
            return True
        current().decisions.fork(min(decisions, key=lambda s: s.index), "whether two names are one object depends on the path")
    sources = [{i.outside for i in identities if i.outside} for identities in (mine, others)]
    if ("state" in sources[0] and sources[1]) or ("state" in sources[1] and sources[0]):
        raise UnsupportedError(
            "whether a tensor that an earlier call has kept is an input of this call, or another of the model's, is not known",
            current().origin(),
            "compare contents (torch.equal), or pass a flag in",
        )
    return False


def _known(x: Any) -> Identity | None:
    if isinstance(x, Carrier):
        return x.identity  # type: ignore[attr-defined, no-any-return]  # a slot of one class, in the `__dict__` of the other
    known = current().get(Identities).known.get(id(x))
    return known[1] if known is not None and known[0] is x else None


def _set(x: Any, identity: Identity) -> None:
    if isinstance(x, Carrier):
        x.identity = identity  # type: ignore[attr-defined]
    else:
        current().get(Identities).known[id(x)] = (x, identity)
