# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors whose length along dimensions is known only at run time: a buffer of fixed shape, and how much of it there is along each.

A length grows from trip to trip of a loop, is a number of the run within bounds (a slice up to it, what a mask picks), or differs
between paths. What lies behind it in the buffer means nothing, and no result may depend on it. Most rules treat each such dimension by
itself; those that know one only ask for :attr:`Grown.along` and :attr:`Grown.length`, which refuse a tensor that has several. PyTorch asks
such a tensor for its sizes by operators of ATen, which are refused: so only what :mod:`.grown_calls` knows can be done with it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.clock import clock
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.arguments import tensors_of
from dycl_tvm.frontend.trace.values.identity import Identity, join_identities, share_identity
from dycl_tvm.frontend.trace.values.layouts import marks_of, meta_of, meta_with
from dycl_tvm.frontend.trace.values.lengths import Length
from dycl_tvm.frontend.trace.values.storage import DTYPES, Storage, may_be_one, tensor_type
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, ViewStep, fresh, peek, read
from dycl_tvm.hcfg.nodes import Value
from dycl_tvm.hcfg.types import INT, ITEM_BYTES, TensorType

INSTEAD = "keep the full tensor and mask it (torch.where), or select single items"


class OfTheRun:
    """What is asked, in the place of the loop in which a tensor grows, where a tensor must have a fixed shape.

    Of several decisions it comes last: those that can be forked may do.
    """

    index = math.inf

    def __init__(self) -> None:
        rolling = current().decisions.rolling
        self._around = rolling[-1].loop if rolling else None

    def refuse(self, reason: str, others: object = "") -> None:
        """Say that its shape depends on values; in a loop, which may know them if it is unrolled, unroll that."""
        refuse_here(self._around, reason)


def refuse_here(loop: Any, reason: str) -> None:
    """Refuse a shape that depends on values, or unroll the loop that is being rolled."""
    decisions = current().decisions
    refusal = UnsupportedError(reason, current().origin(), INSTEAD)
    if loop is not None and decisions.holds(loop):
        decisions.unroll(loop, refusal)
    raise refusal


class Grown(StagedTensor):
    """A tensor whose length along one dimension, or along several, is known only at run time.

    Attributes
    ----------
    buffer : TensorType
        Type of the buffer.
    lengths : dict
        How much there is of each such dimension, in the order of the dimensions.
    order : tuple of int or None
        Its dimensions from the outermost in memory to the innermost, as eager has them; None if they are not known.
    orders : tuple of tuple of int
        Where it is not known: those of which it is one, as different kernels of PyTorch's leave their results; without gaps.
    gaps : frozenset of int
        Before which places in that order there may be gaps, as in a part of a tensor. Without any it lies as one that was made anew.
    exact : int
        Whether it surely lies so at lengths of one and none too: PyTorch orders dimensions of one element otherwise in some results.
        2 if their strides too are those of a tensor that was made anew, which they are not of one that was in order before it was copied.
    below : Length, int or None
        What the elements, which are positions, are less than; they are not negative. None if that is not known.
    """

    buffer: TensorType
    lengths: dict[int, Length]
    order: tuple[int, ...] | None = None
    orders: tuple[tuple[int, ...], ...] = ()
    gaps: frozenset[int] = frozenset()
    exact: int = 0
    below: Length | int | None = None

    @staticmethod
    def __new__(cls, storage: Storage, chain: tuple[ViewStep, ...], value: Value, lengths: Mapping[int, Length]) -> Grown:  # type: ignore[override]
        """Wrap what is a buffer in a storage, by a chain of views."""
        type_ = value.type
        assert isinstance(type_, TensorType)
        assert lengths and all(length.bounds[0] <= type_.shape[d] for d, length in lengths.items())
        self: Grown = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, type_.shape, dtype=DTYPES[type_.dtype], device=torch.device("cpu"), dispatch_sizes_strides_policy="sizes"
        )
        self.storage_, self.chain, self.born = storage, chain, next(clock)
        self._cached = (storage.version, value)
        self.buffer, self.lengths = type_, dict(sorted(lengths.items()))
        if not storage.cut and getattr(self.decision, "is_loop", False):
            storage.growing = self.decision
        current().growing = True
        return self

    @property
    def along(self) -> int:
        """The one dimension whose length is known only at run time."""
        return self._only()[0]

    @property
    def length(self) -> Length:
        """How much there is of it."""
        return self._only()[1]

    def _only(self) -> tuple[int, Length]:
        if len(self.lengths) > 1:
            self.refuse("this is supported along one such dimension only, not of")
        return next(iter(self.lengths.items()))

    @property
    def decision(self) -> Any:
        """What is asked where the tensor must have a fixed shape: one of the decisions that its lengths depend on."""
        found = [length.counter.loop for length in self.lengths.values()]
        return next((d for d in found if not isinstance(d, OfTheRun)), found[0])

    @property
    def contiguous_(self) -> bool:
        """Whether it surely lies in memory as a tensor that was made anew does."""
        return self.order == tuple(range(len(self.buffer.shape))) and not self.gaps

    @contiguous_.setter
    def contiguous_(self, known: bool) -> None:
        self.order, self.gaps = (tuple(range(len(self.buffer.shape))) if known else None), frozenset()

    def is_joined(self, dims: Collection[int]) -> bool:
        """Whether dimensions surely lie in memory as one: other sizes that they are given are a view."""
        sizes = self.buffer.shape
        dims = [d for d in dims if d in self.lengths or sizes[d] != 1]
        if len(dims) < 2 or self.order is None:
            return len(dims) < 2
        first, last = self.order.index(dims[0]), self.order.index(dims[-1])
        between = [d for d in self.order[first : last + 1] if d in self.lengths or sizes[d] != 1]
        return between == dims and not any(first < place <= last for place in self.gaps)

    def held_type(self) -> TensorType:
        """Return the type of the buffer."""
        return self.buffer

    def padded(self) -> StagedTensor:
        """Return the buffer, as a tensor that lies in the same memory."""
        value = peek(self)
        meta = meta_of(self.buffer.shape, None, DTYPES[self.buffer.dtype])
        return StagedTensor(meta, self.storage_, self.chain, value)

    def unturned(self) -> tuple[StagedTensor, list[int]]:
        """Return the buffer as it was before its dimensions were last permuted, and their order since."""
        whole = self.padded()
        if not self.chain or self.chain[-1][0] is not torch.ops.aten.permute.default:
            return whole, list(range(self.dim_()))
        order = [d % self.dim_() for d in self.chain[-1][1][0]]
        shape = tuple(self.buffer.shape[order.index(d)] for d in range(self.dim_()))
        before = StagedTensor(meta_of(shape, None, whole.dtype), self.storage_, self.chain[:-1], whole._cached[1])
        before._cached = (-1, before._cached[1])  # the value is that of the storage, by the views that are left
        return before, order

    def become(self, view: Grown) -> None:
        """Let the tensor be the view that another object is, as ``squeeze_`` does.

        The sizes that PyTorch itself has of the object stay as they are: it asks staging for them.
        """
        self.chain, self._cached, self.buffer, self.lengths = view.chain, view._cached, view.buffer, view.lengths
        self.order, self.orders, self.gaps, self.exact, self.below = view.order, view.orders, view.gaps, view.exact, view.below

    def dim_(self) -> int:
        """Return the rank."""
        return len(self.buffer.shape)

    def is_floating(self) -> bool:
        """Whether the elements are floats."""
        return DTYPES[self.buffer.dtype].is_floating_point

    def element_bytes(self) -> int:
        """Return the size of an element."""
        return ITEM_BYTES[self.buffer.dtype]

    def settled(self) -> StagedTensor:
        """Return the tensor with plain sizes where the number of trips is known; itself if none is."""
        known = {d: size for d, length in self.lengths.items() if (size := length.settled) is not None}
        if not known:
            return self
        whole = part = self.padded()
        for d, size in known.items():
            part = part.narrow(d, 0, size)  # type: ignore[assignment]  # one of staging's
        left = {d: length for d, length in self.lengths.items() if d not in known}
        if left:
            return cut(part, left)  # type: ignore[return-value]  # one of staging's
        shape = tuple(part.shape)
        if self.contiguous_:
            made = StagedTensor(meta_of(shape, None, part.dtype), part.storage_, part.chain, peek(part))
        else:
            made = placed(self, part, whole, dict.fromkeys(known, True))
        share_identity(made, self)
        return made

    def sizes(self) -> tuple[Any, ...]:
        """Return the shape; a length that is known only at run time is a number of the run."""
        return tuple([number(self.lengths[d]) if d in self.lengths else n for d, n in enumerate(self.buffer.shape)])

    def described(self) -> str:
        """Say what kind of tensor it is, for messages."""
        names = dict(zip(self.lengths, "nmklij"))
        shape = ", ".join(names.get(d, str(n)) for d, n in enumerate(self.buffer.shape))
        if getattr(self.decision, "is_loop", False):
            return f"a tensor [{shape}] of {self.buffer.dtype} that grows from trip to trip of a loop"
        what = "length n is" if len(names) == 1 else f"lengths {', '.join(names.values())} are"
        most = ", ".join(str(length.bounds[1]) for length in self.lengths.values())
        return f"a tensor [{shape}] of {self.buffer.dtype} whose {what} known only at run time (at most {most})"

    def refuse(self, what: str) -> Any:
        """Say that something cannot be done with the tensor: what decides its length parts the paths, or its loop is unrolled."""
        current().decisions.fork(self.decision, f"{what} {self.described()}")


def placed(t: Grown, part: StagedTensor, whole: torch.Tensor, dims: Mapping[int, bool]) -> StagedTensor:
    """Return a part of fixed shape that lies in memory as one does of a tensor whose lengths are not known.

    ``dims`` are the dimensions of the buffer ``whole`` whose lengths those are, and whether the part has them too.
    """
    shape, around = tuple(part.shape), [n + (d in dims) for d, n in enumerate(whole.shape)]
    dense, strides = (list(meta_of(tuple(n), None, part.dtype).stride()) for n in (shape, around))
    strides = [n for d, n in enumerate(strides) if dims.get(d, True)]
    turned = meta_of(shape[::-1], None, part.dtype).stride()[::-1]
    found = [tuple(dense), tuple(strides), *([] if t.contiguous_ else [turned, tuple(2 * n for n in dense)])]
    return StagedTensor(meta_with(shape, part.dtype, found, t.decision), part.storage_, part.chain, peek(part))


def copied_or_itself(t: StagedTensor) -> StagedTensor:
    """Return what is a tensor itself, or a copy, by how it lies in memory: once one is changed in place, the other cannot be read."""
    value = read(t)
    if isinstance(t, Grown):
        decision = t.decision
        made: StagedTensor = Grown(Storage(value), (), value, t.lengths)
        made.contiguous_, made.below, made.exact = True, t.below, 1  # type: ignore[attr-defined]  # it is one that grows
    else:
        assert t.layouts is not None
        made, decision = fresh(value), t.layouts.decision
    may_be_one(made.storage_, t.storage_, decision)
    join_identities(made, [t], decision, [Identity(born=current().heap.birth(made))])
    return made


def rank_of(t: torch.Tensor) -> int:
    """Return the rank."""
    return t.dim_() if isinstance(t, Grown) else t.dim()


def number(length: Length) -> Any:
    """Return a length as a number of the run, or as a plain one if it is known."""
    if length.settled is not None:
        return length.settled
    builder, value = current().builder, length.counter.value
    if length.factor != 1:
        value = builder.host_op("mul", (value, length.factor), INT)
    if length.constant:
        value = builder.host_op("add", (value, length.constant), INT)
    return scalars.grown(scalars.wrap(value), length)


def buffer_type(t: torch.Tensor) -> TensorType:
    """Return the type of a tensor, or of the buffer of one that grows."""
    return t.buffer if isinstance(t, Grown) else tensor_type(t)


def same_kind(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have one shape, dtype, and marks: then one may stand for both. A length of the run is no shape."""
    if isinstance(a, Grown) or isinstance(b, Grown):
        return False
    return a.shape == b.shape and a.dtype == b.dtype and marks_of(a) == marks_of(b)


def is_alike(t: torch.Tensor, other: torch.Tensor, dims: Collection[int]) -> bool:
    """Whether a tensor differs from another at most by how long it is along some dimensions."""
    own, type_ = buffer_type(t), buffer_type(other)
    rest = [[n for d, n in enumerate(shape) if d not in dims] for shape in (own.shape, type_.shape)]
    return own.dtype == type_.dtype and len(own.shape) == len(type_.shape) and rest[0] == rest[1]


def grown(t: torch.Tensor, along: int, length: Length | int) -> torch.Tensor:
    """Return the part of a buffer, a tensor of fixed shape, that there is along a dimension."""
    return cut(t, {along % t.dim(): length})


def cut(t: torch.Tensor, extents: Mapping[int, Length | int]) -> torch.Tensor:
    """Return the part of a buffer, a tensor of fixed shape, that there is along dimensions."""
    for d, n in extents.items():
        t = t.narrow(d, 0, n) if isinstance(n, int) else t
    assert isinstance(t, StagedTensor) and not isinstance(t, Grown)
    lengths = {d: n for d, n in extents.items() if isinstance(n, Length)}
    if not lengths:
        return t
    made = Grown(t.storage_, t.chain, peek(t), lengths)
    # what is at the front of such a tensor is one too
    made.contiguous_ = list(lengths) == [0] and t.layouts is None and t.is_contiguous()
    return made


def refuse_grown(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse an operation of ATen on tensors that grow: it would see their buffers."""
    for t in tensors_of(args, kwargs):
        if isinstance(t, Grown):
            t.refuse(f"{func._opname}() of")


def refuse_lengths(values: list[Any], used: str) -> None:
    """Unroll the loop in which a number grows that is needed while staging, or find out in which it does."""
    if any(scalars.is_symbolic(x) and x.node.is_int() and x.node.length is None for x in values):
        current().decisions.count_trips()
    for x in values:
        if scalars.is_symbolic(x) and x.node.length is not None:
            loop = x.node.length.counter.loop
            grows = getattr(loop, "is_loop", False)
            what = "a number that grows from trip to trip of a loop" if grows else "a length known only at run time"
            current().decisions.fork(loop, f"{what} is used as {used}")
