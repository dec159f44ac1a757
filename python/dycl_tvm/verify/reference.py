# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a sub-DNN must give: ATen in float64, operator by operator, each result rounded to its type; and how far a kernel may be from it.

The bound comes from Monte Carlo arithmetic (D. S. Parker, 1997; M. Frechtling and P. Leong, 2015): the same operators run again on operands
and with results that are disturbed at random by several units of roundoff, wherever an operator rounds at all. How far these samples lie
from the undisturbed result shows what rounding errors can do to it: cancellation, division by small numbers and long chains widen the
bound, copies and exact arithmetic leave none. An integer or a bool is decided where all samples agree.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dycl_tvm.hcfg.draws import is_draw
from dycl_tvm.hcfg.interpreter import resolve
from dycl_tvm.hcfg.nodes import Constant, SubDNN, TensorOp, Value
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.verify.noise import noise, numbers, scaled
from dycl_tvm.verify.operation import Operation, wide

#: Unit roundoff by dtype.
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "complex64": 2.0**-24, "complex128": 2.0**-53}
#: The type to which a build may round the factors of products, by its accuracy.
_FACTORS = {"bf16": "bfloat16", "fp16": "float16"}
#: Of images between operators, where a build may store them in another type than the graph's.
STORED_UNIT = {"bf16": 2.0**-8}
#: Operators with products of factors.
_PRODUCTS = frozenset(
    "aten." + name + ".default"
    for name in (
        "convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "matmul",
        "linear", "dot", "vdot", "inner", "einsum", "bilinear", "_convolution", "tensordot", "chain_matmul", "scaled_dot_product_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
) | frozenset(("aten.conv_transpose2d.input", "aten.conv_transpose3d.input", "aten.lstm.input", "aten.gru.input", "aten.conv1d.padding",
    "aten.conv2d.padding"))  # fmt: skip
#: Disturbances in units of roundoff: of one element-wise operation, and for each sum of k terms that many times its square root.
_ELEMENT, _SUM = 32.0, 8.0
#: Seconds for preparing an operator, and for running it on few elements; for a multiplication of a product, and for an element touched.
_PREPARED, _OPERATOR = 1.5e-5, 4e-5
_PRODUCT = {torch.float64: 2e-10, torch.float32: 7e-11}
_TOUCHED = {torch.float64: 3e-9, torch.float32: 1.5e-9}
#: Elements of which the usual deviation in a tensor is estimated.
_SAMPLE = 4096


@dataclass
class Expected:
    """Results of a sub-DNN and what is known of their errors.

    Attributes
    ----------
    results : list of Tensor
        In float64 where they are floating-point numbers.
    samples : list of list
        The same of each disturbed run.
    types : list of TensorType
    exact : bool
        Whether every bit counts: random numbers are what they are.
    """

    results: list[Any]
    samples: list[list[Any]]
    types: list[TensorType]
    exact: bool = False


class Reference:
    """Runs a sub-DNN on tensors.

    Parameters
    ----------
    sub : SubDNN
    accuracy : str
        What the build allows, see :func:`dycl_tvm.build`.
    wide : torch.dtype
        In which type it computes. float32 is for what would take too long: then the disturbances stand for its own errors too.
    """

    def __init__(self, sub: SubDNN, accuracy: str, wide: torch.dtype = torch.float64) -> None:
        self.sub = sub
        self.wide = wide
        self.factors = _FACTORS.get(accuracy)
        #: Whether each result element comes from single elements of the operands: then any magnitude may be tried.
        self.element_wise = all(torch.Tag.pointwise in resolve(op.op).tags or op.op in _MOVES for op in sub.ops)
        self._terms = [_terms(op) for op in sub.ops]
        self._amounts = [self._amount(op, terms) for op, terms in zip(sub.ops, self._terms)]
        self._operations = [Operation(op, wide) for op in sub.ops]
        self._stored_unit = STORED_UNIT.get(accuracy, 0.0)

    def expect(self, args: Sequence[torch.Tensor], samples: int, seed: int) -> Expected:
        """Return the results, with ``samples`` disturbed runs.

        Raises
        ------
        Undefined
            If PyTorch refuses the operands.
        """
        generator = torch.Generator().manual_seed(seed)
        args = [wide(a, self.wide) for a in args]
        constants: dict[int, Any] = {}
        with _computing_in(self.wide):
            results, rounding = self._run(args, constants, None, [])
            disturbed = [self._run(args, constants, generator, rounding)[0] for _ in range(samples)]
        types = [v.type for v in self.sub.results]
        exact = any(is_draw(op.op) for op in self.sub.ops)
        return Expected(results, disturbed, types, exact)  # type: ignore[arg-type]  # results of sub-DNNs are tensors

    @functools.cached_property
    def _in_own_types(self) -> list[Operation]:
        return [Operation(op, None) for op in self.sub.ops]

    def in_own_types(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the results of PyTorch's eager mode, in the types of the graph."""
        frame: dict[Value, Any] = dict(zip(self.sub.params, args))
        with torch.no_grad():
            for operation in self._in_own_types:
                for value, result in zip(operation.outputs, operation.run(frame, {})):
                    if value is not None:
                        frame[value] = result
        return [frame[v] for v in self.sub.results]

    def fused(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the results if no intermediate one overflows: a product that is added at once is not rounded before."""
        with _computing_in(self.wide):
            results, _ = self._run([wide(a, self.wide) for a in args], {}, None, [], overflows=False)
        return [_rounded(r, v.type) for r, v in zip(results, self.sub.results)]  # type: ignore[arg-type]  # they are tensors

    def _run(
        self,
        args: Sequence[torch.Tensor],
        constants: dict[int, Any],
        generator: torch.Generator | None,
        rounding: list[bool],
        overflows: bool = True,
    ) -> tuple[list[Any], list[bool]]:
        """Run the operators; ``rounding`` says which of them round, and is found out by the run without noise."""
        frame: dict[Value, Any] = dict(zip(self.sub.params, args))
        found: list[bool] = []
        for k, operation in enumerate(self._operations):
            op, amount = operation.op, self._amounts[k]
            ties = op.op in _TIES
            disturbs = generator is not None and (rounding[k] or ties)
            change = functools.partial(_disturbed, generator=generator, amount=amount, apart=ties) if disturbs and self._terms[k] else None
            raw = operation.run(frame, constants, change)
            rounds = generator is None and self._rounds_factors(op, frame)
            for value, result in zip(op.outputs, raw):
                if value is None or result is None:
                    continue
                assert isinstance(value.type, TensorType)
                exact = wide(result, self.wide)
                if change and ties and not value.type.dtype.startswith(("float", "bfloat")):
                    exact = exact.round()  # whole numbers that were set apart
                if op.op in _MOVES:  # every element is one of an operand's, and those are of their types
                    frame[value] = exact
                elif generator is None:
                    held = _rounded(exact, value.type)
                    frame[value] = held if overflows or not held.is_floating_point() else torch.where(held.isinf(), exact, held)
                    rounds = rounds or self._rounds(op, exact, frame[value])
                else:
                    frame[value] = _rounded(_disturbed(exact, generator, amount) if disturbs else exact, value.type)
                if generator is not None and self._may_be_stored(value):
                    frame[value] = _disturbed(frame[value], generator, 2 * self._stored_unit)
            found.append(rounds)
        return [frame[v] for v in self.sub.results], found

    def _may_be_stored(self, value: Value) -> bool:
        """Whether the value lies in memory with fewer bits than its type has."""
        type_ = value.type
        image = isinstance(type_, TensorType) and type_.dtype == "float32" and len(type_.shape) > 2
        return image and self._stored_unit > 0 and value not in self.sub.results

    def _rounds(self, op: TensorOp, exact: torch.Tensor, rounded: torch.Tensor) -> bool:
        if not (exact.is_floating_point() or exact.is_complex()) or is_draw(op.op):
            return False
        exact, rounded = numbers(exact), numbers(rounded)
        if self.wide == torch.float64 and UNIT[op.results()[0].type.dtype] > UNIT["float64"]:  # type: ignore[union-attr]
            return not torch.equal(exact, rounded) and not torch.equal(exact.nan_to_num(), rounded.nan_to_num())
        return True

    def _rounds_factors(self, op: TensorOp, frame: Mapping[Value, Any]) -> bool:
        """Whether a build may round the factors of an operator: what it gives may look exact, as attention to one key does."""
        if self.factors is None or op.op not in _PRODUCTS:
            return False
        operands = [v.data if isinstance(v, Constant) else frame.get(v) for v in op.operands()]
        factors = [numbers(x) for x in operands if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())]
        return any(not torch.equal(x, x.to(getattr(torch, self.factors)).to(x.dtype)) for x in factors)

    def _amount(self, op: TensorOp, terms: int) -> float:
        """Return how much an operator's numbers are disturbed, relative to themselves."""
        types = [v.type for v in (*op.operands(), *op.results()) if isinstance(v.type, TensorType)]
        unit = max((UNIT.get(t.dtype, 0.0) for t in types), default=0.0)  # the coarsest type that it touches
        amount = unit * (_ELEMENT + _SUM * math.sqrt(terms))
        return max(amount, 4 * UNIT[self.factors]) if op.op in _PRODUCTS and self.factors else amount


#: Operators that put equal numbers in an order which nobody has promised.
_TIES = frozenset(
    (
        *(f"aten.{n}" for n in ("topk.default", "sort.default", "argsort.default", "kthvalue.default", "median.dim", "mode.default")),
        "dycl_order.topk.default",
    )
)
#: Operators that only move numbers.
_MOVES = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "reshape.default", "permute.default", "transpose.int", "t.default", "unsqueeze.default",
        "squeeze.dim", "squeeze.default", "squeeze.dims", "expand.default", "slice.Tensor", "select.int", "cat.default",
        "stack.default", "flatten.using_ints", "_unsafe_view.default", "split.Tensor", "split_with_sizes.default",
        "chunk.default", "unbind.int", "flip.default", "roll.default", "repeat.default",
        "clone.default", "alias.default", "detach.default", "narrow.default", "expand_as.default", "contiguous.default",
        "movedim.intlist", "unflatten.int", "view_as_real.default", "view_as_complex.default", "_conj.default", "_neg_view.default",
    )
)  # fmt: skip


@contextmanager
def _computing_in(dtype: torch.dtype) -> Iterator[None]:
    """Compute without gradients, and in one type wherever an operator is free to choose."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_default_dtype(before)


def _rounded(tensor: torch.Tensor, type_: TensorType) -> torch.Tensor:
    """Return a result rounded to its type, in the type in which it came if both are floating-point ones."""
    rounded = tensor.to(getattr(torch, type_.dtype))
    return rounded.to(tensor.dtype) if tensor.is_complex() else wide(rounded, tensor.dtype) if tensor.is_floating_point() else rounded


def _disturbed(tensor: Any, generator: torch.Generator | None, amount: float, apart: bool = False) -> Any:
    """Return a tensor whose elements are changed a little, relative to themselves; with ``apart`` so that no two are equal."""
    if isinstance(tensor, torch.Tensor) and tensor.is_complex():
        return torch.view_as_complex(_disturbed(numbers(tensor), generator, amount, apart).contiguous())
    if generator is None or not isinstance(tensor, torch.Tensor) or not (apart or tensor.is_floating_point()):
        return tensor
    if not tensor.is_floating_point():
        tensor = tensor.double()
        return tensor + noise(tensor.shape, lambda count: torch.empty(count, dtype=tensor.dtype).uniform_(-0.25, 0.25, generator=generator))

    def factors(count: int, about: float = 0.0) -> torch.Tensor:
        return torch.empty(count, dtype=tensor.dtype).uniform_(about - amount, about + amount, generator=generator)

    if not apart:
        return scaled(tensor, lambda count: factors(count, 1.0))
    largest = tensor.abs().nan_to_num(0, 0, 0).max() if tensor.numel() else 0.0
    if not bool(tensor.isfinite().all()):  # infinities, and NaN which sorts above them, are equal too
        beyond = (1 + torch.rand(tensor.shape, generator=generator).to(tensor.dtype)) * (1 + 2 * largest)
        tensor = torch.where(tensor.isinf(), tensor.sign() * beyond, torch.where(tensor.isnan(), 4 * beyond, tensor))
    return tensor + noise(tensor.shape, factors) * (tensor.abs() + largest).nan_to_num(0, 0, 0)


def _terms(op: TensorOp) -> int:
    """Return how many terms the sums of an operator have; 0 for those that have none."""
    if torch.Tag.pointwise in resolve(op.op).tags or op.op in _MOVES:
        return 0
    shapes = [v.type.shape for v in op.operands() if isinstance(v.type, TensorType)]
    if not shapes:
        return 0
    if op.op in _PRODUCTS and len(shapes) > 1:
        first, second = math.prod(shapes[0]), math.prod(shapes[1])
        out = max((v.type.numel for v in op.results() if isinstance(v.type, TensorType)), default=1)
        if "conv" in op.op:
            return max(1, second // max(1, shapes[1][0]))
        return max(1, math.isqrt(first * second // max(1, out)) if out else 1)
    return max(1, max((max(s, default=1) for s in shapes), default=1))


@dataclass
class Deviation:
    """The worst element of a comparison: its error in units of its bound, and what stands there."""

    error: float
    text: str


def compare(
    expected: Expected,
    got: Sequence[torch.Tensor | None],
    others: Sequence[Sequence[torch.Tensor]] = (),
    cut: Sequence[tuple[slice | torch.Tensor, ...]] = (),
) -> Deviation:
    """Return the worst element of all results; an error over 1.0 is a difference.

    Parameters
    ----------
    expected : Expected
    got : sequence of Tensor
        What the kernels gave; None for what they need not give, such as a result without elements.
    others : sequence of sequence of Tensor, optional
        Results of other ways to compute, such as PyTorch in the graph's own types: an element that agrees with one of them is right too.
        They differ where numbers overflow.
    cut : sequence of tuple, optional
        The index of what is looked at of each result; all of it where it is empty.
    """
    worst = Deviation(0.0, "")
    for k, (want, type_, have) in enumerate(zip(expected.results, expected.types, got)):
        if have is None:
            continue
        part = cut[k] if cut else ()
        want, have, samples = numbers(want)[part], numbers(have)[part], [numbers(s[k])[part] for s in expected.samples]
        found = torch.where(wide(have) == want, 0.0, math.inf) if expected.exact else _ratios(want, samples, have, type_)
        for other in others if not expected.exact and bool((found > 1).any()) else ():
            exact = wide(numbers(other[k]))[part]
            same = (exact - wide(have)).abs() <= 1e-5 * exact.abs() if have.is_floating_point() else exact == have
            same |= (exact == wide(have)) | (exact.isnan() & have.isnan() if have.is_floating_point() else False)
            found = torch.where(same, torch.zeros(()), found)
        if found.numel() == 0:
            continue
        at = int(found.argmax())
        error = float(found.reshape(-1)[at])
        if error > worst.error:
            index = tuple(int(i) for i in np.unravel_index(at, have.shape))  # PyTorch's imports sympy
            wrong = int((found > 1).sum())
            text = f"result {k}{list(index)} is {have.reshape(-1)[at].item()!r}, ATen in float64 gives {want.reshape(-1)[at].item()!r}"
            worst = Deviation(error, text + (f"; {wrong} of {found.numel()} elements differ" if wrong else ""))
    return worst


def _ratios(want: torch.Tensor, samples: Sequence[torch.Tensor], have: torch.Tensor, type_: TensorType) -> torch.Tensor:
    """Return the error of each element in units of its bound."""
    if have.numel() == 0:
        return torch.zeros(have.shape)
    if not have.is_floating_point():
        decided = torch.ones(want.shape, dtype=torch.bool)
        for sample in samples:
            decided &= sample == want
        return torch.where((have != want) & decided, math.inf, 0.0)
    got, want, samples = have.double(), want.double(), [s.double() for s in samples]
    stack = torch.stack([want, *samples])
    finite = torch.isfinite(stack).all(0)
    deviation = (stack[1:] - want).abs().amax(0) if samples else torch.zeros_like(want)
    deviation = torch.where(finite, deviation, 0.0)
    bound = 2 * deviation + 2 * _usual(deviation) + 4 * UNIT[type_.dtype] * want.abs() + torch.finfo(getattr(torch, type_.parts.dtype)).tiny
    error = (got - want).abs() / bound
    # NaN and infinities stand where they stand, unless a disturbance already moves them.
    same_class = (got.isnan() & want.isnan()) | (got == want)
    undecided = ~finite & torch.isfinite(stack).any(0) | (stack.isnan().any(0) & ~stack.isnan().all(0))
    error = torch.where(finite & torch.isfinite(got), error, torch.where(same_class | undecided, 0.0, math.inf))
    return torch.where(same_class, 0.0, error)


def _usual(deviation: torch.Tensor) -> torch.Tensor:
    """Return the deviation that nine of ten stay below of those elements that deviate.

    What lies behind a size of the run is zero however its operands are disturbed, and may be most of a tensor.
    """
    flat = deviation.reshape(-1)
    step = max(1, flat.numel() // _SAMPLE)
    some = flat[::step][:_SAMPLE]
    deviating = some[some > 0]
    return torch.quantile(deviating, 0.9) if deviating.numel() else torch.zeros((), dtype=flat.dtype)


def has_products(sub: SubDNN) -> bool:
    """Whether a sub-DNN multiplies matrices or convolves."""
    return any(op.op in _PRODUCTS for op in sub.ops)


def has_complex(sub: SubDNN) -> bool:
    """Whether a sub-DNN computes with complex numbers: PyTorch's own infinities differ there by where an element lies in memory."""
    return any(isinstance(v.type, TensorType) and v.type.is_complex for op in sub.ops for v in (*op.operands(), *op.results()))


def spreads_infinities(sub: SubDNN) -> bool:
    """Whether a sub-DNN convolves, resizes with a filter, eliminates or attends.

    The algorithms for these carry infinities and NaNs to different neighbours.
    """
    return eliminates(sub) or any(word in op.op for op in sub.ops for word in ("conv", "attention", "_aa."))


def eliminates(sub: SubDNN) -> bool:
    """Whether a sub-DNN factors matrices."""
    return any(word in op.op for op in sub.ops for word in ("linalg", "cholesky", "triangular", "ormqr"))


@dataclass(frozen=True)
class Work:
    """What running a sub-DNN takes: multiplications of its products, elements that its operators touch, operators."""

    products: float
    elements: float
    operators: int

    def seconds(self, runs: int, dtype: torch.dtype) -> float:
        """Return about how long some runs in a type take, all but the first disturbed. It is the same on every machine."""
        return self.operators * (_PREPARED + runs * _OPERATOR) + runs * (self.products * _PRODUCT[dtype] + self.elements * _TOUCHED[dtype])


def work_of(sub: SubDNN) -> Work:
    """Return the work of one run."""
    products = elements = 0.0
    for op in sub.ops:
        out = sum(v.type.numel for v in op.results() if isinstance(v.type, TensorType))
        terms = _terms(op)
        elements += out if op.op not in _MOVES else 0
        if terms:  # its operands are disturbed
            elements += sum(v.type.numel for v in op.operands() if isinstance(v.type, TensorType))
        products += out * terms if op.op in _PRODUCTS else 0
    return Work(products, elements, len(sub.ops))


def reads_indices(sub: SubDNN) -> bool:
    """Whether a sub-DNN takes positions from tensors: wrong ones may lead out of its memory, so PyTorch is asked first."""
    return any(
        torch.Tag.pointwise not in resolve(op.op).tags
        and op.op not in _MOVES
        and any(isinstance(v.type, TensorType) and v.type.dtype.startswith(("int", "uint")) for v in op.operands())
        for op in sub.ops
    )
