# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Arithmetic of sizes, as exporters write it (Shape, Gather, Concat, Reshape), on numbers instead of tensors.

In a model some of whose sizes are known only at run time, a size is a number of the host. So an int64 tensor of rank 0 that follows from
sizes and constants is an int here, one of rank 1 a tuple of ints (of rank 2, as the padding of exporters is, a tuple of such), and of their
comparisons bools. What is known of a number (that it is
the length of an input, that it is twice another) stays known that way; in the memory of a tensor it would be lost.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch

from dycl_tvm.frontend.onnx.node import Node
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.extremes import extremum
from dycl_tvm.frontend.trace.values.grown import Grown
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, as_constant

#: A tensor of more elements is kept as one: nobody computes sizes of so many.
MOST = 64
#: Which inputs of an operator are sizes, axes and counts: they are asked for by ``Node.ints``, and may be numbers.
SIZES = {
    "Reshape": (1,), "Expand": (1,), "Slice": (1, 2, 3, 4), "Unsqueeze": (1,), "Squeeze": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2),
    "Tile": (1,), "Pad": (1, 3), "Split": (1,), "TopK": (1,), "OneHot": (1,), "CenterCropPad": (1,), "Trilu": (1,),
    "CumSum": (1,), "CumProd": (1,), "SequenceAt": (1,), "SequenceInsert": (2,), "SequenceErase": (1,), "Resize": (3,),
    **{f"Reduce{k}": (1,) for k in ("Sum", "Mean", "Prod", "Max", "Min", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")},
}  # fmt: skip

Rule = Callable[..., Any]


def is_number(x: Any) -> bool:
    """Whether a datum is numbers: an int or a bool, or a tuple of some."""
    return isinstance(x, (tuple, bool, int)) or scalars.is_symbolic(x)


def as_tensor(x: Any) -> Any:
    """Return a datum as what ONNX says it is: numbers become a tensor."""
    if not is_number(x):
        return x
    elements = _elements(x)
    return torch.tensor(x, dtype=torch.bool if elements and all(map(_is_bool, elements)) else torch.int64)


def _elements(x: Any) -> list[Any]:
    return [e for row in x for e in _elements(row)] if isinstance(x, tuple) else [x]


def _is_flat(x: Any) -> bool:
    return not isinstance(x, tuple) or not any(isinstance(e, tuple) for e in x)


def as_number(t: torch.Tensor) -> Any:
    """Return a constant as numbers if it may be one of a size; else itself."""
    if t.dtype not in (torch.int64, torch.bool) or t.dim() > 1 or t.numel() > MOST or (t.dtype == torch.bool and not t.numel()):
        return t
    return tuple(t.tolist()) if t.dim() else t.item()


def known(x: Any) -> Any:
    """Return a datum that is known while the model is staged, and small: numbers, or a tensor without a trace; else NotImplemented."""
    if x is None or is_number(x):
        return NotImplemented if any(map(scalars.is_symbolic, _elements(x))) else x
    if not isinstance(x, torch.Tensor) or isinstance(x, Grown):
        return NotImplemented
    constant = as_constant(x) if isinstance(x, StagedTensor) else None
    found = constant.data if constant is not None else x
    return found if not isinstance(found, StagedTensor) and found.numel() <= MOST else NotImplemented


def computed(node: Node, inputs: tuple[Any, ...]) -> Any:
    """Return what an operator gives for numbers; NotImplemented where it is one of tensors."""
    if node.type in ("Shape", "Size"):
        return _of_shape(node, *inputs)
    rule = RULES.get(node.type)
    if rule is None or not any(map(is_number, inputs)) or not all(x is None or is_number(x) for x in inputs):
        return NotImplemented
    if node.type not in MOVES and not all(map(_is_flat, inputs)):
        return NotImplemented
    return rule(node, *inputs)


def _is_bool(x: Any) -> bool:
    return isinstance(x, (bool, torch.SymBool))


def _of_shape(node: Node, x: Any) -> Any:
    shape = tuple(_array(x).shape if is_number(x) else x.shape)
    return math.prod(shape) if node.type == "Size" else shape[node.attr("start", 0) : node.attr("end")]


def _elementwise(fn: Callable[..., Any]) -> Rule:
    """Return the rule of a function of numbers: rank 0 broadcasts, and so does one element."""

    def rule(node: Node, *xs: Any) -> Any:
        rows = [x for x in xs if isinstance(x, tuple)]
        if not rows:
            return fn(*xs)
        count = max(map(len, rows)) if all(rows) else 0
        columns = [x * count if isinstance(x, tuple) and len(x) == 1 else x if isinstance(x, tuple) else (x,) * count for x in xs]
        found = [fn(*column) for column in zip(*columns, strict=True)]
        return NotImplemented if any(x is NotImplemented for x in found) else tuple(found)

    return rule


def _quotient(a: Any, b: Any) -> Any:
    """Divide as ONNX does, towards zero: of numbers that are not negative that is what Python does."""
    if not scalars.is_symbolic(a) and not scalars.is_symbolic(b):
        return int(a / b) if abs(a) < 2**52 and b else NotImplemented
    bounds = [scalars.bounds_of(x) for x in (a, b)]
    return a // b if all(x is not None and x[0] >= least for x, least in zip(bounds, (0, 1))) else NotImplemented


def _remainder(a: Any, b: Any) -> Any:
    bounds = scalars.bounds_of(b)
    return a % b if bounds is not None and bounds[0] > 0 else NotImplemented


def _mod(node: Node, a: Any, b: Any) -> Any:
    return NotImplemented if node.attr("fmod", 0) else _elementwise(_remainder)(node, a, b)


def _chosen(cond: Any, a: Any, b: Any) -> Any:
    return scalars.select(cond, a, b) if scalars.is_symbolic(cond) else a if cond else b


def _gather(node: Node, x: Any, at: Any) -> Any:
    known = at if isinstance(at, tuple) else (at,)
    if not isinstance(x, tuple) or any(map(scalars.is_symbolic, known)) or not all(-len(x) <= k < len(x) for k in known):
        return NotImplemented
    return tuple(x[k] for k in at) if isinstance(at, tuple) else x[at]


def _concat(node: Node, *xs: Any) -> Any:
    return sum(xs, ()) if all(isinstance(x, tuple) for x in xs) else NotImplemented


def _slice(node: Node, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> Any:
    given = [node.attr("starts"), node.attr("ends"), node.attr("axes"), None] if node.opset < 10 else [starts, ends, axes, steps]
    if any(scalars.is_symbolic(e) for g in given if g is not None for e in g) or not isinstance(x, tuple):
        return NotImplemented
    array = _array(x)
    first, last = given[:2]
    for start, end, axis, step in zip(first, last, given[2] or range(len(first)), given[3] or [1] * len(first)):
        size = array.shape[axis]
        least = -1 if step < 0 else 0  # ONNX clamps; Python's -1 would count from the end
        low, high = (min(max(n + size if n < 0 else n, least), size + least) for n in (start, end))
        array = array.take(range(low, high, step), axis)
    return _numbers(array)


def _transpose(node: Node, x: Any) -> Any:
    return _numbers(_array(x).transpose(node.attr("perm")))


def _array(x: Any) -> Any:
    """Return numbers as an array of Python's objects."""
    shape, row = [], x
    while isinstance(row, tuple):
        shape.append(len(row))
        row = row[0] if row else None
    array = np.empty(math.prod(shape), dtype=object)
    for k, e in enumerate(_elements(x)):
        array[k] = e
    return array.reshape(shape)


def _numbers(array: Any) -> Any:
    """Return what an array of objects holds as numbers; NotImplemented of one of a higher rank."""
    rows = array.tolist()
    return NotImplemented if array.ndim > 2 else rows if array.ndim == 0 else tuple(tuple(r) if array.ndim == 2 else r for r in rows)


def _unsqueeze(node: Node, x: Any, axes: Any = None) -> Any:
    return NotImplemented if isinstance(x, tuple) or len(node.input_or_attr(axes, "axes") or ()) != 1 else (x,)


def _squeeze(node: Node, x: Any, axes: Any = None) -> Any:
    return x[0] if isinstance(x, tuple) and len(x) == 1 else NotImplemented


def _reshape(node: Node, x: Any, shape: Any = None) -> Any:
    sizes = tuple(node.input_or_attr(shape, "shape") or ())
    if any(map(scalars.is_symbolic, sizes)) or 0 in sizes or len(sizes) > 2:
        return NotImplemented
    return _numbers(_array(x).reshape(sizes))


def _both(a: Any, b: Any) -> Any:
    known = [x for x in (a, b) if not scalars.is_symbolic(x)]
    return known[0] and (b if known[0] is a else a) if known else a & b


def _either(a: Any, b: Any) -> Any:
    known = [x for x in (a, b) if not scalars.is_symbolic(x)]
    return known[0] or (b if known[0] is a else a) if known else a | b


def _cast(node: Node, x: Any) -> Any:
    elements = x if isinstance(x, tuple) else (x,)
    if node.attr("to") != onnx.TensorProto.INT64:
        return NotImplemented
    found = tuple(scalars.convert(e, "int") if scalars.is_symbolic(e) and _is_bool(e) else int(e) if _is_bool(e) else e for e in elements)
    return found if isinstance(x, tuple) else found[0]


def _filled(node: Node, shape: Any) -> Any:
    value = node.attr("value", torch.zeros(1))
    if not isinstance(shape, tuple) or len(shape) != 1 or value.dtype != torch.int64:
        return NotImplemented
    count = shape[0]
    return (int(value.reshape(-1)[0]),) * count if not scalars.is_symbolic(count) and count <= MOST else NotImplemented


def _reduced(fn: Callable[[Any, Any], Any]) -> Rule:
    def rule(node: Node, x: Any, axes: Any = None) -> Any:
        if not isinstance(x, tuple) or not x or (not axes and node.attr("noop_with_empty_axes", 0)):
            return NotImplemented
        found = functools.reduce(fn, x)
        return (found,) if node.attr("keepdims", 1) else found

    return rule


def _range(node: Node, *given: Any) -> Any:
    start, limit, step = (x[0] if isinstance(x, tuple) else x for x in given)
    if not any(map(scalars.is_symbolic, (start, limit, step))):
        return torch.tensor(range(start, limit, step), dtype=torch.int64)
    return torch.arange(start, limit, dtype=torch.int64) if step == 1 else torch.arange(start, limit, step, dtype=torch.int64)


def _split(node: Node, x: Any, sizes: Any = None) -> Any:
    known = node.input_or_attr(sizes, "split")
    known = known if known is not None else [1] * len(x) if len(x) == node.outputs else None
    if known is None or any(map(scalars.is_symbolic, known)) or sum(known) != len(x):
        return NotImplemented
    return [x[sum(known[:k]) : sum(known[: k + 1])] for k in range(len(known))]


#: What only moves numbers, of any rank.
MOVES = frozenset({"Identity", "Slice", "Reshape", "Transpose"})
RULES: dict[str, Rule] = {
    "Add": _elementwise(operator.add),
    "Sub": _elementwise(operator.sub),
    "Mul": _elementwise(operator.mul),
    "Div": _elementwise(_quotient),
    "Mod": _mod,
    "Neg": _elementwise(operator.neg),
    "Max": _elementwise(lambda *xs: extremum(list(xs), largest=True)),
    "Min": _elementwise(lambda *xs: extremum(list(xs), largest=False)),
    "Equal": _elementwise(operator.eq),
    "Less": _elementwise(operator.lt),
    "Greater": _elementwise(operator.gt),
    "LessOrEqual": _elementwise(operator.le),
    "GreaterOrEqual": _elementwise(operator.ge),
    "Not": _elementwise(lambda x: scalars.logical_not(x) if scalars.is_symbolic(x) else not x),
    "And": _elementwise(_both),
    "Or": _elementwise(_either),
    "Xor": _elementwise(operator.ne),
    "Where": _elementwise(_chosen),
    "Identity": lambda node, x: x,
    "Cast": _cast,
    "Gather": _gather,
    "Concat": _concat,
    "Slice": _slice,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "ConstantOfShape": _filled,
    "ReduceProd": _reduced(operator.mul),
    "ReduceSum": _reduced(operator.add),
    "Range": _range,
    "Split": _split,
}
