# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What stands for objects of the program while it is staged, until a use of one, or a refusal, shows that it cannot."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, NoReturn, TypeVar

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.trace.control_flow import Again

Key = TypeVar("Key", bound=Hashable)
Known = TypeVar("Known")


class StandIns(Generic[Key, Known]):
    """The objects for which something stands, and those for which nothing does any more, by a key; with what is known of each."""

    def __init__(self) -> None:
        self.known: dict[Key, Known] = {}
        self.given_up: dict[Key, Known] = {}
        #: What showed first that something cannot stand for an object.
        self.refusal: UnsupportedError | None = None

    def used(self, key: Key, refusal: UnsupportedError | None = None) -> NoReturn:
        """Begin anew with an object itself, as it is used in a way that what stands for it does not know."""
        self._give_up(key, refusal)
        begin_anew()

    def refused(self, refusal: UnsupportedError) -> bool:
        """Let nothing stand for any object, as the program was refused; whether anything did."""
        found = list(self.known)
        for key in found:  # a refusal with a cause is of what stood for an object
            self._give_up(key, refusal if refusal.__cause__ is None else None)
        return bool(found)

    def _give_up(self, key: Key, refusal: UnsupportedError | None) -> None:
        self.given_up[key] = self.known.pop(key)
        self.refusal = self.refusal or refusal


def begin_anew() -> NoReturn:
    """Stage the program from its beginning, with what was found of its objects."""
    again: Any = Again()
    program().trampolines.passing = again  # a handler may swallow it
    raise again
