# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Lists that the forward makes, and that a loop of run-time length makes longer: something stands for them from their making on.

That is what stands for lists that calls make longer (:mod:`.kept_lists`): a tensor has the items as its rows, and grows in the loop like
any other. Which lists these are is found out at the end of a loop's body; then staging begins anew. A list is known by the place in
the program where it is made.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.calls.by_length import Attempt
from dycl_tvm.frontend.python.calls.kept_lists import Items, items_of, stand_in
from dycl_tvm.frontend.python.calls.kept_rows import Form, common, form_of, number_form
from dycl_tvm.frontend.python.calls.stand_ins import StandIns, begin_anew
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.trace.control_flow import Again
from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.values.grown import Grown, OfTheRun, cut
from dycl_tvm.frontend.trace.values.lengths import Counter, Length
from dycl_tvm.hcfg.types import INT

#: Where a list is made: the code, and the instruction in it.
Place = tuple[str, int, str, int, str]


@dataclass
class _Known:
    """What is known of the lists of a place; ``varies``: whether their lengths are numbers of the run from the beginning."""

    form: Form
    varies: bool = False
    #: How often the form was made one for other items too.
    widened: int = 0


#: So often is room made for other items: each time staging begins anew.
_MOST_WIDENINGS = 4


class _Made(OfOneRun):
    """Where the lists of a run were made; the heap keeps them alive."""

    def __init__(self) -> None:
        self.places: dict[int, Place] = {}


class GrowingLists:
    """The lists of a program for which something stands, until a use shows that it cannot."""

    def __init__(self) -> None:
        self.stand_ins = StandIns[Place, _Known]()

    def made(self, x: list[Any], frame: FrameType, of: str = "") -> Any:
        """Return a list that code makes just now, or what stands for it; ``of``: which one of those that one call makes."""
        place = _place_of(frame, of)
        heap, known = current().heap, self.stand_ins.known.get(place)
        if known is None:
            current().get(_Made).places[id(x)] = place
            return heap.born(x)
        items = heap.born(Items(known.form, _no_rows(known), None))
        items.differs = None if known.varies else lambda: self._vary(place)
        items.widen = self._widen(place) if known.widened < _MOST_WIDENINGS else None
        found = heap.born(stand_in(list, items, lambda: self._used(place)))
        found.extend(x)
        return found

    def collected(self, made: list[Any], frame: FrameType, of: str, collect: Callable[[Any], Any]) -> Any:
        """Return the list that ``collect`` makes longer, as :meth:`made` gives it of an empty one that nothing else has.

        So what is found of it is no reason to begin anew: that part of the program is forgotten, and made again with what is known by then.
        """
        place = _place_of(frame, of)
        while True:
            known, attempt = copy.copy(self.stand_ins.known.get(place)), Attempt()
            try:
                return attempt.run(lambda: collect(self.made(made, frame, of)))
            except Again:
                if self.stand_ins.known.get(place) in (None, known) or not (attempt.is_first and attempt.can_be_taken_back):
                    raise
                attempt.forget()
                program().trampolines.passing = None
                made.clear()

    def of_numbers(self, t: torch.Tensor, frame: FrameType) -> Any:
        """Return what stands for ``t.tolist()``, of as many numbers as the run says; None where that is given by other means.

        Rows of which Python knows how many there are are a plain list of such.
        """
        place = _place_of(frame, "tolist")
        if type(t) is not Grown or len(t.lengths) > 1 or t.length.settled is not None or t.is_complex():
            return None
        if place in self.stand_ins.given_up or t.along != t.dim_() - 1:
            return None
        if t.dim_() > 1:
            return current().heap.born([self.of_numbers(row, frame) for row in t.unbind(0)])
        kind = "bool" if t.dtype == torch.bool else "float" if t.dtype.is_floating_point else "int"
        form = number_form(kind)
        self.stand_ins.known[place] = _Known(form)
        items = current().heap.born(Items(form, {form.name: t.to(form.dtype, copy=True)}, None))
        return current().heap.born(stand_in(list, items, lambda: self._used(place)))

    def outgrown(self, x: Any, items: Sequence[Any], by_path: bool) -> None:
        """Let something stand for a list from now on that a loop leaves with more items than it had, if anything can."""
        form = common([form_of(i) for i in items]) if items else None
        if form is not None:
            self._stand_in(x, _Known(form, by_path))

    def extended(self, x: Any, other: Any) -> None:
        """Let something stand for a list from now on that another makes longer by as many items as the run says, if anything can."""
        form = items_of(other).form
        form = common([form, *map(form_of, x)])
        if form is not None and isinstance(items_of(other).rows[0], Grown):
            self._stand_in(x, _Known(form))

    def _stand_in(self, x: Any, known: _Known) -> None:
        place = current().get(_Made).places.get(id(x)) if type(x) is list else None
        if place is not None and place not in self.stand_ins.given_up:
            self.stand_ins.known[place] = known
            begin_anew()

    def explained(self, refusal: UnsupportedError) -> UnsupportedError:
        """Return a refusal of the program with the lists themselves, and why nothing stands for them."""
        first = self.stand_ins.refusal
        if first is None or first.origin is None:
            return refusal
        where = f'  File "{first.origin.file}", line {first.origin.line}: {first.origin.code}\n    {first.reason.splitlines()[0]}'
        reason = f"{refusal.reason}\nNo tensor can have the items of the list as its rows, because of\n{where}"
        return type(refusal)(reason, refusal.origin, refusal.suggestion)

    def _widen(self, place: Place) -> Callable[[Form], None]:
        def widen(form: Form) -> None:
            known = self.stand_ins.known[place]
            known.form, known.widened = form, known.widened + 1
            begin_anew()

        return widen

    def _vary(self, place: Place) -> None:
        self.stand_ins.known[place].varies = True
        begin_anew()

    def _used(self, place: Place) -> NoReturn:
        self.stand_ins.used(place, UnsupportedError("this cannot be done with such rows", current().origin()))


def _place_of(frame: FrameType, of: str) -> Place:
    code = frame.f_code
    return code.co_filename, code.co_firstlineno, code.co_name, frame.f_lasti, of


def users_frame() -> FrameType:
    """Return the frame of the program's code that calls what staging stands for."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").startswith("dycl_tvm.frontend.") and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _no_rows(known: _Known) -> dict[str, torch.Tensor]:
    """Return the tensors that have the items of an empty list as their rows."""
    if not known.varies:
        return {leaf.name: torch.zeros((0, *leaf.shape), dtype=leaf.dtype) for leaf in known.form.leaves}
    none = Length(Counter(current().builder.host_op("add", (0, 0), INT), 1, OfTheRun()), 1, 0)
    return {leaf.name: cut(torch.zeros((1, *leaf.shape), dtype=leaf.dtype), {0: none}) for leaf in known.form.leaves}
