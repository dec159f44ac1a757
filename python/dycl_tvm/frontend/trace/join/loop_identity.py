# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which objects the names at the header of a rolled loop have in eager, and how tensors lie in memory: a part of the fixpoint.

At the header a tensor, list, dict or tuple is what it was before the loop, or what the body left: an older object, or one that the body of
an earlier trip has made. Of the latter it matters only whether two names have the same one.
"""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.frontend.trace.values.identity import Identity, identity_of, join_identities
from dycl_tvm.frontend.trace.values.layouts import layouts_of, marks_of, meta_with, strides_of, with_marks
from dycl_tvm.frontend.trace.values.roles import PLAIN, Role
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, fresh_like, storage_of
from dycl_tvm.hcfg.nodes import Value

Path = tuple[Any, ...]


class LoopIdentities:
    """What is known of the objects at a header; it grows from round to round.

    Parameters
    ----------
    clock : int
        When the loop began.
    decision : object
        The loop.
    """

    def __init__(self, clock: int, decision: Any) -> None:
        self._clock, self._decision = clock, decision
        #: What else an object may be than that before the loop, which is the other dict: older ones, and one for every name that may
        #: have the same object.
        self._more: dict[Path, dict[Identity, None]] = {}
        self._entry: dict[Path, frozenset[Identity]] = {}
        #: How tensors lie in memory beyond how those before the loop do, which is the other dict.
        self._strides: dict[Path, dict[tuple[int, ...], None]] = {}
        self._entry_strides: dict[Path, tuple[tuple[int, ...], ...]] = {}
        self._pairs: set[tuple[Path, Path]] = set()
        #: What the body makes beside tensors that are computed.
        self._roles: set[tuple[Path, Role]] = set()
        #: The names that have the objects made in the round at hand.
        self._holders: dict[Identity, Path] = {}
        #: Objects that are older than the loop, and those that the header has made.
        self._older: set[Identity] = set()
        self._made: set[Identity] = set()
        #: Objects of which nobody knows when they were made: seen in an earlier round, or in the round at hand for the first time.
        self._seen: set[Identity] = set()
        self._new: set[Identity] = set()
        self._confirming = -1

    def size(self) -> int:
        """Return how much is known."""
        return sum(map(len, self._more.values())) + sum(map(len, self._strides.values())) + len(self._older)

    def header_tensor(self, path: Path, entry: torch.Tensor, param: Value) -> StagedTensor:
        """Make the tensor at the header; ``entry`` is what it is before the loop."""
        known, strides = layouts_of(entry), strides_of(entry)
        self._entry_strides[path] = tuple(strides)
        others = [s for s in self._strides.get(path, ()) if s not in strides]
        decision = self._decision if others or known is None else known.decision
        made = fresh_like(meta_with(entry.shape, entry.dtype, [*strides, *others], decision), param)
        with_marks(made, *marks_of(entry))
        self.header_memory(path, entry, made)
        return made

    def header_memory(self, path: Path, entry: torch.Tensor, made: StagedTensor) -> None:
        """Note that a tensor and its memory stand for those that a name has at the header."""
        self.header_object(path, entry, made)
        join_identities(made.storage_, [storage_of(entry)], self._decision)

    def header_object(self, path: Path, entry: Any, made: Any) -> None:
        """Note that ``made`` stands for what a name has at the header."""
        if made is not entry:  # as the empty tuple is
            before = identity_of(entry)
            parts = self._entry[path] = frozenset(before.all_parts())
            self._older.update(parts)
            # what the body makes is no parameter, and is told apart from no other that it makes
            computed = [] if set(before.roles()) == {PLAIN} else [Identity()]
            self._made.update(computed)
            join_identities(made, [entry], self._decision, [*self._more.get(path, ()), *computed])
            self._made.add(identity_of(made))

    def begin(self) -> None:
        """Begin to compare with what the body left."""
        self._holders = {}
        self._seen |= self._new
        self._new = set()

    def note_strides(self, path: Path, back: torch.Tensor) -> None:
        """Note how a tensor lies in memory that the body left."""
        entry = self._entry_strides.get(path, ())
        self._strides.setdefault(path, {}).update(dict.fromkeys([s for s in strides_of(back) if s not in entry]))

    def note(self, path: Path, back: Any) -> None:
        """Note which object the body left."""
        for identity in identity_of(back).all_parts():
            if self._is_older(identity):
                if identity not in self._entry.get(path, ()):
                    self._more.setdefault(path, {})[identity] = None
                continue
            if not identity.parts and identity.role != PLAIN and (path, identity.role) not in self._roles:
                self._roles.add((path, identity.role))
                other_role = Identity(role=identity.role)
                self._older.add(other_role)
                self._more.setdefault(path, {})[other_role] = None
            other = self._holders.setdefault(identity, path)
            if other != path and (other, path) not in self._pairs:
                self._pairs.add((other, path))
                same = Identity()
                self._older.add(same)
                self._more.setdefault(other, {})[same] = None
                self._more.setdefault(path, {})[same] = None

    def _is_older(self, identity: Identity) -> bool:
        if identity.born > self._clock or identity in self._made:
            return False
        if identity.born == 0 and identity not in self._older:
            if identity not in self._seen:
                self._new.add(identity)
                return False
            self._older.add(identity)  # the body makes an object of its own each time it is run
        return True

    def is_settled(self) -> bool:
        """Whether every object is known to be older than the loop, or made in it; if not, the round must be run once more as it was."""
        confirmed, self._confirming = self._confirming == self.size(), self.size()
        return confirmed or not self._new
