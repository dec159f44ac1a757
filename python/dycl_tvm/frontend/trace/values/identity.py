# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which object a value of the staged program is in eager.

A join makes one object of several, so ``is``, ``id`` and ``hash`` of it would be answered for an object that eager does not have. Hence a
joined value remembers the identities that it may have, and asking for what depends on the path forks the join that made it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.clock import Dated
from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.values.roles import PLAIN, UNKNOWN, Role, role_of


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
    number : int
        Of an input: which one it is; -1 for others.
    role : Role
        Of a tensor: what it is beside its elements.
    """

    __slots__ = ("_roles", "born", "decision", "number", "outside", "parts", "role")

    def __init__(
        self,
        parts: Iterable[Identity] = (),
        decision: Any = None,
        born: int = 0,
        outside: str = "",
        number: int = -1,
        role: Role = PLAIN,
    ) -> None:
        self.parts, self.decision, self.born, self.outside, self.number = tuple(parts), decision, born, outside, number
        self.role = role
        #: What it may be, as long as no role is changed.
        self._roles: dict[Role, None] = {r: None for part in self.parts for r in part._roles} if self.parts else {role: None}

    def all_parts(self) -> set[Identity]:
        """Return the identity and all that it may be."""
        found, open_ = {self}, [self]
        while open_:
            for part in open_.pop().parts:
                if part not in found:
                    found.add(part)
                    open_.append(part)
        return found

    def roles(self) -> dict[Role, None]:
        """Return what the tensor may be beside its elements."""
        if not current().get(_ChangedRoles).any:
            return self._roles
        return dict.fromkeys([part.role for part in self.all_parts() if not part.parts])

    def settle(self, question: str) -> None:
        """Fork if the answer to a question depends on what it is."""
        if self.parts:
            current().decisions.fork(self.decision, f"{question} of one of several objects is asked for, depending on the path")


class Apart:
    """Which inputs must not be one for what was staged to be right, as pairs of their numbers.

    Attributes
    ----------
    memory : set
        These must have no memory in common: one of them is changed in place.
    objects : set
        These must not be one tensor: the program asks for that.
    homes : list of Identity
        The memory of each input, in the run at hand.
    """

    def __init__(self) -> None:
        self.memory: set[tuple[int, int]] = set()
        self.objects: set[tuple[int, int]] = set()
        self.homes: list[Identity] = []
        self._hashed: set[int] = set()

    def note_change(self, memory: Identity) -> None:
        """Note that memory is changed in place: no other input may lie there."""
        self.memory |= _pairs(memory.all_parts(), self.homes)

    def note_question(self, ones: Iterable[Identity], others: Iterable[Identity], objects: bool) -> None:
        """Note that some are taken for other tensors than others, or other memory."""
        (self.objects if objects else self.memory).update(_pairs(ones, others))

    def note_hash(self, identity: Identity) -> None:
        """Note that an input is looked for by its hash, among others."""
        if identity.number >= 0:
            self._hashed.add(identity.number)
            self.objects.update((a, b) for a in self._hashed for b in self._hashed if a < b)


def _pairs(ones: Iterable[Identity], others: Iterable[Identity]) -> set[tuple[int, int]]:
    numbers = [{i.number for i in identities if i.number >= 0} for identities in (ones, others)]
    return {(min(a, b), max(a, b)) for a in numbers[0] for b in numbers[1] if a != b}


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
        known = Identity(born=heap.birth(x), outside=outside, role=own_role(x))
        _set(x, known)
    return known


def join_identities(made: Any, found: Iterable[Any], decision: Any, more: Iterable[Identity] = ()) -> None:
    """Note that an object stands for one of several, on the paths of ``decision``."""
    parts = dict.fromkeys([*[identity_of(x) for x in found], *more])
    if decision is not None:
        identity = Identity(parts, decision, current().heap.birth(made))
        _set(made, identity)
        if isinstance(made, torch.Tensor):
            current().get(_OpenRole).note(identity)


def share_identity(made: Any, x: Any) -> None:
    """Note that an object stands for another one."""
    _set(made, identity_of(x))


def mark_outside(x: Any, where: str, number: int = -1, role: Role | None = None) -> None:
    """Note that an object comes from outside of the call: it is an ``input`` of a number, or of the ``state``."""
    _set(x, Identity(born=current().heap.birth(x), outside=where, number=number, role=own_role(x) if role is None else role))


def own_role(x: Any) -> Role:
    """Return the role of an object that stands for no other."""
    if not isinstance(x, torch.Tensor):
        return PLAIN
    if not isinstance(x, Carrier):
        return role_of(x)
    role = role_of(x, torch.Tensor)
    is_open = current().get(_OpenRole).may_require_grad and is_joined(x.storage_)  # type: ignore[attr-defined]  # all that stand for tensors
    return role._replace(requires_grad=None) if is_open else role


def roles_of(t: torch.Tensor) -> dict[Role, None]:
    """Return what a tensor may be beside its elements, depending on the path."""
    known = _known(t)
    return {own_role(t): None} if known is None or not (known.parts or known.outside == "state") else known.roles()


def is_joined(t: Any) -> bool:
    """Whether a tensor, or memory, stands for one of several, or for one that an earlier call has kept."""
    known = _known(t)
    return known is not None and bool(known.parts or known.outside == "state")


def change_role(t: torch.Tensor) -> None:
    """Note that what a tensor is changes: nothing is said of it where it is one of several."""
    settle(t, "what a tensor is, which is changed,")
    identity_of(t).role = UNKNOWN
    current().get(_ChangedRoles).any = True


class _ChangedRoles(OfOneRun):
    """Whether what some tensor is was changed in this run, so that what is joined of it has to be asked again."""

    any: bool = False


class _OpenRole(OfOneRun):
    """What is known, in a run, of joined tensors of which some are parameters: gradients of what follows from them are not known.

    The first join of tensors that are not all parameters, or all none; and whether there is a joined tensor that may be one.
    """

    decision: Any = None
    joined: int = 0
    may_require_grad: bool = False

    def note(self, joined: Identity) -> None:
        """Note a join."""
        found = {role.requires_grad for role in joined.roles()}
        self.may_require_grad = self.may_require_grad or found != {False}
        if self.decision is None and len(found) > 1:
            self.decision, self.joined = joined.decision, joined.born


def settle_open_role(t: torch.Tensor, memory_of: Callable[[torch.Tensor], Any], question: str) -> None:
    """Fork if the answer to a question of gradients may follow from what a joined tensor was.

    Without gradients it does so for views only: they are what lies in the memory of a joined tensor.
    """
    known = current().get(_OpenRole)
    if is_joined(t):
        return
    if torch.is_grad_enabled() and known.decision is not None and current().heap.is_newer(t, known.joined):
        current().decisions.fork(known.decision, f"{question} of what follows from one of several tensors is asked for")
    if known.may_require_grad and isinstance(t, Carrier):
        settle(memory_of(t), question)


def the_role_of(t: torch.Tensor) -> Role:
    """Return what a tensor is, if that is one in all cases."""
    roles = list(roles_of(t))
    return roles[0] if len(roles) == 1 else UNKNOWN


def of_role(t: torch.Tensor, question: str, answer: Callable[[Role], Any]) -> Any:
    """Answer a question about what a tensor is; fork if the answer depends on the path."""
    roles = roles_of(t)
    if UNKNOWN in roles:
        raise UnsupportedError(
            f"{question} of a tensor is asked for, which changes from call to call or in the forward", current().origin(), "pass a flag in"
        )
    answers = [answer(role) for role in roles]
    if answers[0] is None or any(a != answers[0] for a in answers):
        settle(t, question)
    return answers[0]


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
    for known, x in ((one, b), (other, a)):
        if known is not None and "state" in {i.outside for i in known.all_parts()} and not isinstance(x, torch.Tensor):
            _refuse_kept(x)
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
        _not_known("a tensor", "an input of this call, or another of the model's,")
    current().get(Apart).note_question(mine, others, isinstance(a, torch.Tensor))
    return False


def _refuse_kept(x: Any) -> None:
    """Refuse to say whether a container that an earlier call has left is another one, unless that was made in this call."""
    heap = current().heap
    if isinstance(x, (list, dict, deque, tuple)) and not heap.is_newer(x, heap.run_started):
        _not_known(f"a {type(x).__name__}", "another of the model's")


def _not_known(what: str, other: str) -> None:
    raise UnsupportedError(
        f"whether {what} that an earlier call has kept is {other} is not known",
        current().origin(),
        "compare contents (torch.equal), or pass a flag in",
    )


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
