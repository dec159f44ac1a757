# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What operators ask of the elements of their operands: places that there are, divisors that are not zero, floats within a range.

Where eager PyTorch raises an error an artefact does too: the pass ``element_checks`` puts the host operation ``check`` behind the question
whether an element is not as it must be. The questions are PyTorch operators of the namespace ``dycl_check``. Kernels that read or write at
places of a tensor are made for operators with demands only (:func:`has_demands`), so none of them goes unasked.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from dycl_tvm.hcfg.nodes import TensorOp, Value
from dycl_tvm.hcfg.types import TensorType

NAMESPACE = "dycl_check"
#: Whether an element of a tensor is less than ``low`` or more than ``high``, and not the one that is spared.
OUTSIDE = f"{NAMESPACE}.outside.default"
#: A tensor as it is, whose elements must be from ``low`` to ``high``: of what PyTorch looks at before its operators are called.
WITHIN = f"{NAMESPACE}.within.default"
#: Whether an element of a tensor is zero.
HAS_ZERO = f"{NAMESPACE}.has_zero.default"
#: Whether one element of a vector is not a number.
DIFFERS = f"{NAMESPACE}.differs.default"
#: Whether an element of a vector is less than the one before.
FALLS = f"{NAMESPACE}.falls.default"
#: Whether an element of a tensor of floats is less than ``low``, more than ``high`` or not a number.
BEYOND = f"{NAMESPACE}.beyond.default"
#: Whether an element of a tensor of floats is not a number.
HAS_NAN = f"{NAMESPACE}.has_nan.default"
#: Whether more elements of a mask are true than a number.
MORE = f"{NAMESPACE}.more.default"

_library = torch.library.Library(NAMESPACE, "DEF")
_library.define("outside(Tensor x, int low, int high, int? spared=None) -> Tensor")
_library.define("has_zero(Tensor x) -> Tensor")
_library.define("within(Tensor x, int low, int high, str message) -> Tensor")
_library.define("differs(Tensor x, int at, int number) -> Tensor")
_library.define("falls(Tensor x) -> Tensor")
_library.define("beyond(Tensor x, float low, float high) -> Tensor")
_library.define("has_nan(Tensor x) -> Tensor")
_library.define("more(Tensor mask, int count) -> Tensor")


def _outside(x: torch.Tensor, low: int, high: int, spared: int | None = None) -> torch.Tensor:
    x = x.to(torch.int64)
    beyond = (x < low) | (x > high)
    return (beyond if spared is None else beyond & (x != spared)).any()


def _within_bounds(x: torch.Tensor, low: int, high: int, message: str) -> torch.Tensor:
    if _outside(x, low, high):
        raise RuntimeError(message)
    return x.clone()


_library.impl("outside", _outside, "CompositeImplicitAutograd")
_library.impl("has_zero", lambda x: (x == 0).any(), "CompositeImplicitAutograd")
_library.impl("differs", lambda x, at, number: x[at] != number, "CompositeImplicitAutograd")
_library.impl("falls", lambda x: (x[1:] < x[:-1]).any(), "CompositeImplicitAutograd")
_library.impl("beyond", lambda x, low, high: ~((x >= low) & (x <= high)).all(), "CompositeImplicitAutograd")
_library.impl("has_nan", lambda x: torch.isnan(x).any(), "CompositeImplicitAutograd")
_library.impl("more", lambda mask, count: mask.sum() > count, "CompositeImplicitAutograd")
_library.impl("within", _within_bounds, "CPU")
_library.impl("within", lambda x, low, high, message: torch.empty_like(x), "Meta")


#: What is asked of a tensor: an operator of this module and its other arguments. The answer must be no.
Question = tuple[Any, ...]


class Demand(NamedTuple):
    """What an operator asks of a tensor, and what eager raises where the answer is yes."""

    value: Value
    question: Question
    kind: str
    message: str

    def asked(self, of: Value) -> tuple[Any, ...]:
        """Return the operator that tells whether the demand is not met, and its arguments."""
        return (self.question[0], of, *self.question[1:])


#: Questions whose answer hangs neither on the order of the elements nor on how often each stands there.
OF_ANY_ELEMENT = (OUTSIDE, HAS_ZERO, BEYOND, HAS_NAN)
#: Those that bounds of the elements answer.
OF_INTEGERS = (OUTSIDE, HAS_ZERO)


def follows_from(question: Question, low: float, high: float) -> bool:
    """Tell whether the answer is no for all tensors of integers between two bounds."""
    if question[0] == OUTSIDE:
        return bool(question[1] <= low and high <= question[2])
    return bool(question[0] == HAS_ZERO and (low > 0 or high < 0))


def answered_by(question: Question) -> int | None:
    """Return an element of which a whole tensor may be for the answer to be no; None if there is none, or for floats, which do no harm."""
    if question[0] == OUTSIDE:
        low, high = question[1:3]
        return min(max(low, 0), high) if low <= high else None
    return {HAS_ZERO: 1, MORE: 0, FALLS: 0}.get(question[0])


def _outside_of(low: int, high: int, spared: int | None = None) -> Question:
    return OUTSIDE, low, high, spared


_INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
#: How many places there are, from the operands of an operator by their position.
Extent = Callable[[Any], int]


def _along(args: tuple[Any, ...]) -> int:
    """The size of the first operand along the dimension that is the second."""
    shape = _shape(args[0])
    return shape[args[1]] if shape else 1


def _rows(args: tuple[Any, ...]) -> int:
    return _shape(args[0])[0]


def _elements(args: tuple[Any, ...]) -> int:
    return math.prod(_shape(args[0]))


class _Places(NamedTuple):
    """Which operand holds places, how many there are, whether they may count from the end, and what eager raises."""

    operand: int
    extent: Extent
    from_end: bool
    kind: str


_SCATTER = _Places(2, _along, False, "RuntimeError")
#: Operators that read or write at places which a tensor holds.
PLACES: dict[str, _Places] = {
    "aten.embedding.default": _Places(1, _rows, False, "IndexError"),
    "dycl_quantized.grouped_rows.default": _Places(4, _rows, False, "IndexError"),
    "aten.embedding_renorm.default": _Places(1, _rows, False, "IndexError"),
    "aten.embedding_dense_backward.default": _Places(1, lambda args: args[2], False, "IndexError"),
    "aten.max_unpool2d.default": _Places(1, lambda args: math.prod(args[2]), False, "RuntimeError"),
    "aten.max_unpool3d.default": _Places(1, lambda args: math.prod(args[2]), False, "RuntimeError"),
    "aten.searchsorted.Tensor": _Places(5, lambda args: _shape(args[0])[-1], False, "RuntimeError"),
    "aten.searchsorted.Scalar": _Places(5, lambda args: _shape(args[0])[-1], False, "RuntimeError"),
    "aten._embedding_bag.default": _Places(1, _rows, False, "RuntimeError"),
    "aten._embedding_bag_forward_only.default": _Places(1, _rows, False, "RuntimeError"),
    "aten.index_select.default": _Places(2, _along, False, "IndexError"),
    "aten.take.default": _Places(1, _elements, True, "IndexError"),
    "aten.put.default": _Places(1, _elements, True, "IndexError"),
    "aten.gather.default": _SCATTER,
    "aten.scatter.src": _SCATTER,
    "aten.scatter.value": _SCATTER,
    "aten.scatter.reduce": _SCATTER,
    "aten.scatter.value_reduce": _SCATTER,
    "aten.scatter_add.default": _SCATTER,
    "aten.scatter_reduce.two": _SCATTER,
    "aten.index_add.default": _SCATTER,
    "aten.index_copy.default": _Places(2, _along, False, "IndexError"),
    "aten.index_reduce.default": _Places(2, _along, False, "IndexError"),
    "aten.index_fill.int_Scalar": _Places(2, _along, True, "IndexError"),
    "aten.index_fill.int_Tensor": _Places(2, _along, True, "IndexError"),
}
#: Operators that take a list of places, one for each dimension, or None.
_LISTS = ("aten.index.Tensor", "aten._unsafe_index.Tensor", "aten.index_put.default", "aten._unsafe_index_put.default")
#: Losses of targets, and where they take scores, targets and what they ignore; classes are the last dimension but those of an image.
_LOSSES = {
    **dict.fromkeys(("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default"), (0, 1, 4)),
    **dict.fromkeys(("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default"), (1, 2, 5)),
}
#: Operators that divide, in the integers where their operands are integers.
_DIVISIONS = ("floor_divide", "remainder", "fmod", "div")


def has_demands(op: str) -> bool:
    """Tell whether an operator reads or writes at places that are asked for by :func:`demands`."""
    return op in PLACES or op in _LISTS or op in _LOSSES or op in _TARGETS or op in _PIVOTS or op == WITHIN


def asked(op: str, args: Sequence[Any]) -> list[Any]:
    """Return the operands of an operator whose elements :func:`demands` asks for; ``args`` are in the order of its schema."""
    if op in _LISTS:
        return list(args[1])
    at = PLACES[op].operand if op in PLACES else _LOSSES[op][1] if op in _LOSSES else 0 if op == WITHIN else 1
    return list(args[at : at + 1]) if has_demands(op) or divides(op) else []


def divides(op: str) -> bool:
    """Tell whether an operator divides: its second operand may not be zero, if both are integers."""
    _, name, *_ = op.split(".")
    return name in _DIVISIONS


#: Losses whose targets are places in the last dimension, and the least target.
_TARGETS = {"aten.multi_margin_loss.default": 0, "aten.multilabel_margin_loss_forward.default": -1}
#: Operators that take the exchanges of rows of a factorisation: numbers of rows, from 1.
_PIVOTS = ("aten.lu_unpack.default", "aten.linalg_lu_solve.default")
#: What says by a number other than zero that a factorisation of a matrix has failed.
_FAILURES = "aten._linalg_check_errors.default"
_OF_MATRICES = {"linalg.cholesky": "the input is not positive-definite", "linalg.eigh": "the algorithm failed to converge"}


_LIN_ALG_ERROR = torch.linalg.LinAlgError.__name__
#: What operators ask of floats: of which operand, by which question, the kind of the error and its message.
_OF_FLOATS: dict[str, list[tuple[int, Question, str, str]]] = {
    "aten.binary_cross_entropy.default": [
        (k, (BEYOND, 0.0, 1.0), "RuntimeError", f"all elements of {name} should be between 0 and 1")
        for k, name in enumerate(("input", "target"))
    ],
    "aten._linalg_svd.default": [(0, (HAS_NAN,), _LIN_ALG_ERROR, "linalg.svd: an element of the input matrix is not a number")],
    "aten.linalg_lstsq.default": [(0, (HAS_NAN,), "RuntimeError", "linalg.lstsq: an element of the input matrix is not a number")],
    "aten.linalg_pinv.atol_rtol_tensor": [(0, (HAS_NAN,), _LIN_ALG_ERROR, "linalg.svd: an element of the input matrix is not a number")],
}


def demands(step: TensorOp) -> Iterator[Demand]:
    """Yield what an operator asks of the elements of its operands."""
    _, name, *_ = step.op.split(".")
    special = step.op in _OF_FLOATS or step.op == _FAILURES or name == "masked_scatter"
    if not special and not has_demands(step.op) and not divides(step.op):
        return
    args = _bound(step)
    if step.op in _OF_FLOATS:
        yield from _of_floats(step, args)
        return
    if name == "masked_scatter":
        yield from _of_mask(step, *args)
        return
    if name in _BAGS:
        yield from _of_offsets(_elements(args[1:]), args[2], args[4], args[7])
    if step.op in PLACES:
        places = PLACES[step.op]
        kind = places.kind
        if name == "index_add" and (len(_shape(args[0])) < 2 or args[1] % len(_shape(args[0]))):
            kind = "IndexError"
        elif name == "index_select" and len(_shape(args[0])) > 1 and args[1] % len(_shape(args[0])) == 1:
            kind = "RuntimeError"  # of dimension 1 PyTorch selects by other code
        yield from _within(args[places.operand], places.extent(args), places.from_end, kind, name)
    elif step.op in _LISTS:
        for k, index in enumerate(args[1]):
            if index is not None:
                yield from _within(index, _shape(args[0])[k], True, "IndexError", name)
    elif step.op in _LOSSES:
        scores, targets, ignored = (args[k] for k in _LOSSES[step.op])
        shape = _shape(scores)
        classes = shape[1] if len(shape) > 1 else shape[0]
        yield Demand(targets, _outside_of(0, classes - 1, ignored), "IndexError", f"a target is out of bounds of {classes} classes")
    elif step.op == WITHIN:
        yield Demand(args[0], _outside_of(args[1], args[2]), "RuntimeError", args[3])
    elif step.op in _TARGETS:
        classes = _shape(args[0])[-1] if _shape(args[0]) else 1
        least = _TARGETS[step.op]
        yield Demand(args[1], _outside_of(least, classes - 1), "RuntimeError", f"a target is out of range of {classes} classes")
    elif step.op in _PIVOTS:
        rows = _shape(args[0])[-2]
        yield Demand(args[1], _outside_of(1, rows), "RuntimeError", f"an exchange of {name}() is not of a row of the matrix")
    elif step.op == _FAILURES:
        why = _OF_MATRICES.get(args[1].removeprefix("torch."), "the input matrix is singular")
        kind = "RuntimeError" if "lu_factor" in args[1] else _LIN_ALG_ERROR
        yield Demand(args[0], _outside_of(0, 0), kind, f"{args[1]}: {why}")
    elif isinstance(divisor := args[1], Value):
        made = step.outputs[0]
        if made is not None and made.type.dtype in _INTEGERS and made.type.numel:  # type: ignore[union-attr]  # a tensor
            yield Demand(divisor, (HAS_ZERO,), "RuntimeError", "ZeroDivisionError: an element of the divisor is zero")


def _of_floats(step: TensorOp, args: tuple[Any, ...]) -> Iterator[Demand]:
    for k, question, kind, message in _OF_FLOATS[step.op]:
        of_eigenvalues = "pinv" in step.op and args[3]  # of a Hermitian matrix: they are not refused
        if isinstance(x := args[k], Value) and x.type.numel and not x.type.is_complex and not of_eigenvalues:  # type: ignore[union-attr]
            yield Demand(x, question, kind, message)


_BAGS = ("_embedding_bag", "_embedding_bag_forward_only")


def _of_offsets(count: int, offsets: Any, mode: int, with_last: bool) -> Iterator[Demand]:
    """Yield what is asked of the offsets of bags; eager takes them in any order if it looks for the largest elements (mode 2)."""
    if not isinstance(offsets, Value) or not offsets.type.numel:  # type: ignore[union-attr]  # a tensor
        return
    kind, of = "RuntimeError", "of embedding_bag()"
    yield Demand(offsets, (DIFFERS, 0, 0), kind, f"offsets[0] {of} is not 0")
    if with_last:
        yield Demand(offsets, (DIFFERS, -1, count), kind, f"offsets[-1] {of} is not {count}, the number of indices")
    yield Demand(offsets, _outside_of(0, count), kind, f"an offset {of} is out of range, which is 0 to {count}")
    if mode != 2 and _elements((offsets,)) > 1:
        yield Demand(offsets, (FALLS,), kind, f"an offset {of} is less than the one before")


def _of_mask(step: TensorOp, given: Value, mask: Value, source: Value) -> Iterator[Demand]:
    """Yield that there are elements enough for what is true in the mask."""
    made, ones, most = (_elements((x,)) for x in (step.outputs[0] or given, mask, source))
    if made and ones > (most := most * ones // made):
        message = "the source of masked_scatter() has less elements than are true in the mask"
        yield Demand(mask, (MORE, most), "RuntimeError", message)


def _within(index: Any, extent: int, from_end: bool, kind: str, name: str) -> Iterator[Demand]:
    if isinstance(index, Value) and isinstance(index.type, TensorType) and index.type.dtype in _INTEGERS and index.type.numel:
        least, most = -extent if from_end else 0, extent - 1
        message = f"an index of {name.strip('_')}() is out of range, which is {least} to {most}"
        yield Demand(index, _outside_of(least, most), kind, message)


def _bound(step: TensorOp) -> tuple[Any, ...]:
    """Return the arguments in the order of the operator's schema, those that are not given with their defaults."""
    formal = operator.attrgetter(step.op)(torch.ops)._schema.arguments
    return (*step.args, *(step.kwargs.get(a.name, a.default_value) for a in formal[len(step.args) :]))


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(x.type.shape)
