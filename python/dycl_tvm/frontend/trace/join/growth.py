# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What grows in a rolled loop: tensors by one dimension, and numbers, by the same amount in every trip.

At the header such a tensor is a buffer that holds the longest there will be, and its length follows from the number of trips that have
ended. How many trips there are at most is proved from the body (:mod:`.trips`): first no trip is assumed but the first, then as many as
the comparisons of lengths in the body ask for, until the body shows that the loop ends.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.trace.join.captured import Captured, NumberLeaf, TensorLeaf, differing_dimension
from dycl_tvm.frontend.trace.join.trips import Broken, most_trips
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.grown import Grown, number
from dycl_tvm.frontend.trace.values.grown_math import is_contiguous
from dycl_tvm.frontend.trace.values.layouts import marks_of
from dycl_tvm.frontend.trace.values.lengths import Counter, Length
from dycl_tvm.frontend.trace.values.storage import Stale, Storage, tensor_type
from dycl_tvm.frontend.trace.values.tensors import emit_one, peek, read
from dycl_tvm.hcfg.nodes import Block, Operand, Value
from dycl_tvm.hcfg.types import INT, TensorType

Path = tuple[Any, ...]
#: The path of the parameter that counts the trips.
COUNTER: Path = ("<trips that have ended>",)
#: How many assumptions on the number of trips are tried.
_MOST_ATTEMPTS = 12
aten = torch.ops.aten


def _around(t: Grown) -> tuple[object, ...]:
    """Return the type of a buffer, but for its extent along the dimension that grows."""
    return (t.buffer.dtype, *t.buffer.shape[: t.along], *t.buffer.shape[t.along + 1 :])


def _grows(x: Any) -> Length | int | None:
    """Return how a tensor grows along its one dimension of unknown length, or a number; None if that is not known."""
    if not isinstance(x, Grown):
        return scalars.length_of(x)
    return x.length if len(x.lengths) == 1 else None


def has_grown(before: Any, after: Any, depth: int = 8) -> bool:
    """Whether a tensor is longer along one dimension than it was, or one in a container.

    One with a length that is known only at run time, as the sizes of a caller are, is not asked how long it is: it is never rolled as one
    that grows (:meth:`Growth.notes`).
    """
    if isinstance(before, Grown) or isinstance(after, Grown):
        return False
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        here, there = tensor_type(before), tensor_type(after)
        longer = [m - n for n, m in zip(here.shape, there.shape) if n != m]
        return len(here.shape) == len(there.shape) and here.dtype == there.dtype and len(longer) == 1 and longer[0] > 0
    if type(before) is not type(after) or not issubclass(type(before), (tuple, list, dict)) or len(before) != len(after) or not depth:
        return False
    pairs = zip(*[c.values() if isinstance(c, dict) else c for c in (before, after)])
    return any(has_grown(a, b, depth - 1) for a, b in pairs)


class Growth:
    """What grows in a loop, as far as it is known in the round at hand.

    Parameters
    ----------
    loop : object
        The decision of the loop.
    """

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        #: The dimension along which a tensor grows, and by how much; by how much a number does.
        self._tensors: dict[Path, tuple[int, int]] = {}
        self._numbers: dict[Path, int] = {}
        self._not_steady: set[Path] = set()
        #: The tensors that may lie in memory otherwise than contiguously.
        self._scattered: set[Path] = set()
        self._last, self._attempts = (loop.most or 1) - 1 if loop.trips is None else loop.trips, 0
        #: Whether the loop may end at its header, and then surely does when that is reached for the last time: that is claimed at first.
        self._tested, self._claimed, self._claims = False, False, True
        self._broken = False
        self._failed = loop.simply
        self.counter: Counter | None = None

    def size(self) -> tuple[int, ...]:
        """Return what changes with every round that found something."""
        return (
            len(self._tensors),
            len(self._numbers),
            len(self._not_steady),
            len(self._scattered),
            self._attempts,
            self._failed,
            self._claims,
            self._broken,
        )

    def open(self, param: Value) -> None:
        """Begin a round; ``param`` counts the trips."""
        proves = self._loop.trips is None and not self._broken
        self.counter, self._loop.tried = Counter(param, self._last, self._loop, proves=proves), True
        self._claimed = False

    @property
    def found(self) -> bool:
        """Whether a tensor grows, or a number that is needed as a size."""
        return bool(self._tensors or (self._loop.counts and self._numbers))

    def paths(self) -> set[Path]:
        """Return what grows."""
        return {*self._tensors, *self._numbers}

    # -- the header -----------------------------------------------------------------------------------------------------
    def tensor_at_header(self, path: Path, entry: TensorLeaf) -> tuple[TensorType, Value] | None:
        """Return the type of the buffer for a tensor that grows, and what it holds before the loop; None if it does not grow."""
        if path not in self._tensors:
            return None
        dim, step = self._tensors[path]
        type_ = tensor_type(entry.obj)
        rank, more = len(type_.shape), step * (self._last + (not self._tested or not self._claims or self._last == 0))
        buffer = TensorType(tuple(n + more * (d == dim) for d, n in enumerate(type_.shape)), type_.dtype)
        padding = [0, 0] * (rank - 1 - dim) + [0, more]
        return buffer, emit_one(aten.constant_pad_nd.default, (entry.value, padding, 0), buffer)

    def tensor(self, path: Path, entry: TensorLeaf, param: Value) -> Grown:
        """Make the tensor at the header."""
        made = Grown(Storage(param), (), param, {self._tensors[path][0]: self._length(path, entry)})
        made.contiguous_ = path not in self._scattered and is_contiguous(entry.obj)
        return made

    def _length(self, path: Path, entry: TensorLeaf) -> Length:
        dim, step = self._tensors[path]
        assert self.counter is not None
        return Length(self.counter, step, int(entry.obj.shape[dim]))

    def number_at_header(self, path: Path, entry: NumberLeaf, header: Block) -> Any:
        """Return a number that grows; None if it does not."""
        if path not in self._numbers or not isinstance(entry.operand, int) or self.counter is None:
            return None
        current().growing, builder = True, current().builder
        before, builder.block = builder.block, header  # it follows from the number of trips, which is known there
        made = number(Length(self.counter, self._numbers[path], entry.operand))
        builder.block = before
        if self._loop.is_tried and scalars.is_symbolic(made):
            made.node.counted = self._loop
        return made

    # -- the end of the body ----------------------------------------------------------------------------------------------
    def notes(self, path: Path, header: Captured, back: Captured) -> bool:
        """Note that a tensor or a number is longer after the body than before it; return whether it may grow steadily."""
        if self._failed or path in self._not_steady:
            return False
        if isinstance(header, TensorLeaf) and isinstance(back, TensorLeaf):
            if isinstance(header.obj, Grown) or isinstance(back.obj, Grown) or (along := differing_dimension([header, back])) is None:
                return False
            step = tensor_type(back.obj).shape[along] - tensor_type(header.obj).shape[along]
            if step > 0:
                self._tensors[path] = (along, step)
            return step > 0
        if (self._tensors or self._loop.counts) and isinstance(header, NumberLeaf) and isinstance(back, NumberLeaf):
            if type(header.operand) is int and type(back.operand) is int and header.operand != back.operand:
                self._numbers[path] = back.operand - header.operand
                return True
        return False

    def is_steady(self, path: Path, header: Captured, back: Captured) -> bool:
        """Whether what grew up to the header has grown by as much in the body."""
        x, y = header.obj, back.obj
        before, after = _grows(x), _grows(y)
        steady = isinstance(before, Length) and after == before.plus(before.factor) and type(header) is type(back)
        if isinstance(x, Grown) and isinstance(y, Grown) and isinstance(back, TensorLeaf):
            if x.contiguous_ and not y.contiguous_:
                self._scattered.add(path)
            steady = (
                steady
                and x.lengths.keys() == y.lengths.keys()
                and _around(x) == _around(y)
                and not (isinstance(back.value, Stale) or any(marks_of(y)))
            )
        if not steady:
            self._not_steady.add(path)
            self._tensors.pop(path, None)
            self._numbers.pop(path, None)
            if not self.found:
                self._numbers.clear()  # no parameter counts the trips any more
        return steady

    def fitted(self, header: Captured, back: Captured) -> Operand:
        """Return what a tensor or a number that has grown steadily gives the parameter of the header: a buffer of its size."""
        x, y = header.obj, back.obj
        assert isinstance(x, Grown) and isinstance(y, Grown)
        missing = x.buffer.shape[x.along] - y.buffer.shape[y.along]
        if not missing:
            return peek(y)
        whole, behind = y.padded(), [0, 0] * (x.dim_() - 1 - x.along)
        return read(whole.narrow(x.along, 0, x.buffer.shape[x.along]) if missing < 0 else F.pad(whole, [*behind, 0, missing]))

    def end_trip(self) -> None:
        """Forget what is known of the number of trips on the path at hand."""
        if self.counter is not None:
            self.counter.first, self.counter.last, self.counter.told = 0, self._last, False

    def begin_body(self, block: Block) -> None:
        """Claim that the body does not run when the header is reached for the last time; ``block`` is where it begins."""
        counter, self._tested, self._claimed = self.counter, True, True
        if counter is not None and self._claims and counter.last > 0:
            counter.claims.append((block, counter.last - 1))
            counter.last -= 1

    def settle(self) -> None:
        """Go on where the loop has ended, with all the trips that Python counts."""
        if self.counter is not None:
            self.counter.first = self.counter.last = self._loop.most - 1
            self.counter.told = True

    def next_trip(self) -> Operand:
        """Return the number of trips that have ended at the end of the body."""
        assert self.counter is not None
        return current().builder.host_op("add", (self.counter.value, 1), INT)

    @staticmethod
    def _proved(header: Block, counter: Counter, entry: list[Operand]) -> tuple[int | None, bool]:
        """Return how many trips end at most, if that is proved, and whether what was claimed of the loop may not hold.

        A path that repeats another one finds what that did: what comes behind the loop is there by then, and may lead back to it.
        """

        def prove() -> tuple[int | None, bool]:
            try:
                return most_trips(header, counter, entry), False
            except Broken:
                return None, True

        proved: tuple[int | None, bool] = current().builder.event(("trips",), prove)
        return proved

    def is_proved(self, header: Block, entry: list[Operand]) -> bool:
        """Whether the loop ends within the trips that were assumed; if not, more are assumed in the next round.

        ``entry`` is what the parameters of the header are before the loop.
        """
        counter = self.counter
        if not self.found or counter is None:
            return True
        self._attempts += 1
        if self._tested and self._claims and not self._claimed:
            self._claims = False  # the buffers at the header were made for it
            return False
        if self._loop.trips is not None:
            return True
        found, breaks = self._proved(header, counter, entry)
        if breaks:
            later = min((t for t in counter.thresholds if t >= counter.last), default=None)
            if later is not None and self._claims and self._attempts < _MOST_ATTEMPTS:
                self._last = later + 1  # what ends the loop may come only then
                return False
            self._broken = not (self._tested and self._claims)
            self._claims = False
            return False
        if found == counter.last:
            return True
        bound = current().limits.loop_trips
        more = sorted(
            {t for t in counter.thresholds if t > counter.last} | ({bound} if bound is not None and bound > counter.last else set())
        )
        if found is not None:
            self._last = found
        elif more and self._attempts < _MOST_ATTEMPTS:
            self._last = more[0] + 1  # what the body finds in that trip, the header may ask for in the next
        else:
            self._failed = True
            self._tensors.clear()
            self._numbers.clear()
        return False
