# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which variables of a loop are of several kinds at its header: a part of the fixpoint. See :mod:`.kinds`.

A kind is known by a *blank*: the value with zeros in the place of what is known at run time only, so that it outlives the round in which it
was found. The flags of several variables are one parameter as long as every trip leaves them alike.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from dycl_tvm.frontend.trace.join.captured import Captured, Items, NumberLeaf, TensorLeaf, capture, rebuild
from dycl_tvm.frontend.trace.join.kinds import alternatives, are_few, are_one_kind, is_kind, is_older, placeholder
from dycl_tvm.frontend.trace.values.grown import Grown
from dycl_tvm.frontend.trace.values.storage import tensor_type
from dycl_tvm.frontend.trace.values.tensors import fresh_like
from dycl_tvm.hcfg.nodes import Constant, Operand, Value

Path = tuple[Any, ...]


class HeaderKinds:
    """What is known of the kinds; it grows from round to round.

    Parameters
    ----------
    since : int
        The moment at which the round began: what was made later is made by the body.
    """

    def __init__(self, since: int) -> None:
        self._since = since
        #: The blanks of the kinds of each variable.
        self.blanks: dict[Path, list[Captured]] = {}
        #: Flags that some trip leaves apart are of several classes.
        self._classes: dict[Path, int] = {}
        self._size = 0

    def size(self) -> int:
        """Return how much is known."""
        return self._size

    def begin(self, path: Path, header: Captured, back: Captured) -> bool:
        """Let a variable be of several kinds, if what it is at the header and what the body leaves are of few; return whether it is."""
        self.blanks[path] = []
        if self.note(path, header) and self.note(path, back):
            return True
        del self.blanks[path]
        return False

    def note(self, path: Path, c: Captured) -> bool:
        """Note the kinds that a variable is of; return whether the variable can be of them."""
        known = self.blanks[path]
        for _, one in alternatives(c):
            if not is_kind(one) or _has_length(one):
                return False
            if not any(are_one_kind(blank, one) for blank in known):
                known.append(_blank(one, self._since))
                self._size += 1
        return are_few(known)

    def split(self, path: Path, c: Captured) -> list[tuple[Operand, Captured | None]]:
        """Return for each kind of a variable whether a value is of it, and what it is then; all its kinds are known."""
        found: list[tuple[Operand, Captured | None]] = []
        for blank in self.blanks[path]:
            found.append(next(((flag, one) for flag, one in alternatives(c) if are_one_kind(blank, one)), (False, None)))
        return found

    def class_of(self, flag: Path, entry: Operand) -> Hashable:
        """Return what is equal for flags that one parameter may stand for; ``entry`` is what the flag is before the loop.

        Those of two kinds of one variable never are alike.
        """
        return self._classes.get(flag, 0), flag[-1], _key(entry)

    def note_flags(self, entries: dict[Path, Operand], found: dict[Path, Operand]) -> None:
        """Tell flags apart that a trip does not leave alike."""
        first: dict[Hashable, Operand] = {}
        apart: dict[Hashable, int] = {}
        for flag, entry in entries.items():
            if flag not in found:
                continue
            known = self.class_of(flag, entry)
            if _key(first.setdefault(known, found[flag])) != _key(found[flag]):
                key = known, _key(found[flag])
                if key not in apart:
                    self._size += 1
                    apart[key] = self._size
                self._classes[flag] = apart[key]


def _key(operand: Operand) -> Hashable:
    return id(operand) if isinstance(operand, Value) else operand


def _has_length(c: Captured) -> bool:
    """Whether a tensor in a value has a length of the run."""
    return isinstance(c.obj, Grown) or (isinstance(c, Items) and any(map(_has_length, c.items)))


def _blank(c: Captured, since: int) -> Captured:
    """Return the blank of a kind."""
    if is_older(c, since):
        return c
    if isinstance(c, TensorLeaf) and not isinstance(c.value, Constant):
        return capture(fresh_like(c.obj, placeholder(tensor_type(c.obj))))  # type: ignore[arg-type]  # a constant
    if isinstance(c, NumberLeaf) and isinstance(c.operand, Value):
        return capture(placeholder(c.operand.type))
    if isinstance(c, Items):
        return capture(rebuild(c, [_blank(item, since).obj for item in c.items]))
    return c
