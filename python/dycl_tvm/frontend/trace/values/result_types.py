# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Shape, strides and dtype of what an operator returns, without its values.

PyTorch says this if the operator is run on the device ``meta``, but by functions in Python that import torch._dynamo and sympy when they
are first called. That takes longer than the staging of a network, so common operators do not go this way: those that are linear in the
size of their tensors are run on real memory, and for what is more expensive there are rules. All others, whatever is unusual, and all
errors are left to PyTorch.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dycl_tvm.frontend.trace.bounded import Bounded
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.arguments import map_leaves, map_tensors, opname, tensors_of

aten = torch.ops.aten

#: Operators are run on no more elements than this.
_ELEMENTS = 1 << 22

#: What indexes a dimension, one element each.
_POSITIONS = (torch.int32, torch.int64)

#: Operators that are as cheap as element-wise ones, and whose result's shape does not depend on values.
_CHEAP = frozenset(
    ["all", "amax", "amin", "any", "argmax", "argmin", "cumsum", "max", "mean", "min", "prod", "std", "sum", "var", "var_mean"]
    + [
        "_log_softmax",
        "_safe_softmax",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_softmax",
        "log_sigmoid_forward",
        "native_group_norm",
        "native_layer_norm",
    ]
    + ["_adaptive_avg_pool2d", "avg_pool2d", "max_pool2d_with_indices", "upsample_bilinear2d", "upsample_nearest2d"]
    + ["cat", "constant_pad_nd", "gather", "index", "sort", "stack", "topk", "tril", "triu"]
    + ["empty_like", "full_like", "new_full", "new_zeros", "ones_like", "zeros_like"]
)


#: What PyTorch's own operators give on the device ``meta``, by what :func:`~.arguments.key_of` tells of their arguments: it is the same in
#: every session, and nobody changes it.
RESULTS = Bounded[Any, Any](1 << 15)


def result_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the results of an operator on tensors of the device ``meta``, on that device."""
    rule = _RULES.get(func)
    known = rule(*args) if rule is not None and not kwargs else None
    if known is not None:
        return known
    try:
        if is_pointwise(func):
            shape = _common_shape(args, kwargs)
            if shape is not None:  # one element says as much as all
                result = _run(func, args, kwargs, lambda a: torch.ones((1,) * a.dim(), dtype=a.dtype))
                return map_tensors(lambda r: _empty(shape, r.dtype), result)
        if _is_cheap(func, args, kwargs):
            # indices must lie within what they index, divisors not be zero
            result = _run(func, args, kwargs, lambda a: _filled(a, 1 if is_pointwise(func) else 0))
            return map_tensors(lambda r: torch.empty_strided(r.shape, r.stride(), dtype=r.dtype, device="meta"), result)
    except (RuntimeError, IndexError):  # the message for the user is that of the device meta, or there is no kernel for the CPU
        pass
    return func(*args, **kwargs)


def is_pointwise(func: Any) -> bool:
    """Whether an operator gives one element for each of its operands'."""
    return torch.Tag.pointwise in func.tags or opname(func) == "rsub"


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], real: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Run an operator with real tensors in place of those on the device ``meta``."""

    def replaced(a: Any) -> Any:
        return real(a) if isinstance(a, torch.Tensor) else torch.device("cpu") if isinstance(a, torch.device) else a

    return func(*map_leaves(replaced, args), **map_leaves(replaced, kwargs))


def _filled(a: torch.Tensor, value: int) -> torch.Tensor:
    """Return a tensor of the strides of another one."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(a.shape, a.stride())) if a.numel() else 0
    return torch.full((extent,), value, dtype=a.dtype).as_strided(a.shape, a.stride())


def _empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device="meta")


def _common_shape(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Size | None:
    """Return the shape of all tensors, None if they differ in it or lie in memory in another way than row by row."""
    tensors = tensors_of(args, kwargs)
    if not tensors or any(t.shape != tensors[0].shape or not is_plain(t) for t in tensors) or kwargs.get("memory_format") is not None:
        return None
    return tensors[0].shape


def is_plain(t: torch.Tensor) -> bool:
    """Whether a tensor lies in memory row by row, and in no other way that PyTorch could see in it too."""
    if t.dim() in (4, 5) and t.is_contiguous(memory_format=torch.channels_last if t.dim() == 4 else torch.channels_last_3d):
        return t.is_contiguous() and math.prod(t.shape[2:]) == 1
    return t.is_contiguous()


def _is_cheap(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if opname(func) == "arange":
        begin, end, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
        return step != 0 and abs((end - begin) / step) <= _ELEMENTS
    if not (is_pointwise(func) or opname(func) in _CHEAP):
        return False
    tensors = tensors_of(args, kwargs)
    if opname(func) == "index":  # a mask's values decide on the shape; with positions the result may be as large as the product
        return all(a.dtype in _POSITIONS for a in tensors[1:]) and math.prod(a.numel() for a in tensors) <= _ELEMENTS
    if torch.Tag.dynamic_output_shape in func.tags:
        return False
    shapes = [reversed(a.shape) for a in tensors]
    # of operands that are broadcast the largest size counts
    return bool(shapes) and math.prod(map(max, itertools.zip_longest(*shapes, fillvalue=1))) <= _ELEMENTS


# -- rules: None where they do not apply ---------------------------------------------------------------------------------


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    if a.dtype != b.dtype or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        return None
    return _empty((*a.shape[:-1], b.shape[-1]), a.dtype)


def _mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    return _product(a, b) if a.dim() == b.dim() == 2 else None


def _bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    return _product(a, b) if a.dim() == b.dim() == 3 else None


def _addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    result = _mm(a, b)
    return result if result is not None and bias.dtype == a.dtype and bias.shape == result.shape[1:] else None


def _convolution(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    _: list[int],
    groups: int,
) -> torch.Tensor | None:
    spatial = x.dim() - 2
    usual = spatial >= 1 and w.dim() == x.dim() and not transposed and x.dtype == w.dtype and is_plain(x) and w.is_contiguous()
    if not usual or x.shape[1] != w.shape[1] * groups or w.shape[0] % groups or (bias is not None and bias.shape != w.shape[:1]):
        return None
    strides, paddings, dilations = (list(v) * spatial if len(v) == 1 else list(v) for v in (stride, padding, dilation))
    if not len(strides) == len(paddings) == len(dilations) == spatial:
        return None
    size = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(x.shape[2:], w.shape[2:], strides, paddings, dilations, strict=True)
    ]
    if min(size) < 1 or x.numel() == 0 or (math.prod(x.shape[2:]) == 1 < math.prod(size)):
        return None
    return _empty((x.shape[0], w.shape[0], *size), x.dtype)


def _batch_norm(x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    tables, training = [t for t in rest[:4] if t is not None], rest[4]
    if (
        (training and rest[2] is not None)
        or not is_plain(x)
        or x.dim() < 2
        or any(t.dtype != x.dtype or t.shape != x.shape[1:2] for t in tables)
    ):
        return None
    # as on a CPU, whatever the kernel for tensors without data says: statistics in training only, and of the input's dtype
    count = x.shape[1:2] if training else (0,)
    return _empty(x.shape, x.dtype), _empty(count, x.dtype), _empty(count, x.dtype)


def _batch_norm_without_statistics(x: torch.Tensor, weight: Any, bias: Any, training: bool, *_: Any) -> Any:
    return _batch_norm(x, weight, bias, None, None, training)


def _index_select(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor | None:
    usual = -x.dim() <= dim < x.dim() and index.dim() == 1 and index.dtype in _POSITIONS
    if not usual or x.shape[dim] == 0:
        return None
    shape = list(x.shape)
    shape[dim] = index.shape[0]
    return _empty(shape, x.dtype)


def _embedding(table: torch.Tensor, index: torch.Tensor, *_: Any) -> torch.Tensor | None:
    usual = table.dim() == 2 and index.dtype in _POSITIONS and is_plain(index)
    return _empty((*index.shape, table.shape[1]), table.dtype) if usual else None


_RULES: dict[Any, Callable[..., Any]] = {
    aten.mm.default: _mm,
    aten.bmm.default: _bmm,
    aten.addmm.default: _addmm,
    aten.convolution.default: _convolution,
    aten.embedding.default: _embedding,
    aten.index_select.default: _index_select,
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit.no_stats: _batch_norm_without_statistics,
}


#: What a number of several types is refused as.
DECIDES = "an operand that decides the type of a tensor"


def scalar_dtype(x: Any, tensors: list[torch.Tensor]) -> torch.dtype:
    """Return the dtype in which a number takes part in an operation with tensors (PyTorch's promotion of wrapped numbers)."""
    kind = scalars._kind(scalars.operand_of(x))
    mixed, own = scalars.mixed_of(x), scalars.dtype_of(kind)
    rank = {"bool": 0, "int": 1, "float": 2}
    for t in tensors:
        if t.dtype.is_complex:  # a real number stays one
            return t.dtype.to_real()
        theirs = "float" if t.dtype.is_floating_point else "bool" if t.dtype == torch.bool else "int"
        if rank[theirs] >= rank[kind]:
            if mixed and not t.dim() and any(torch.promote_types(t.dtype, d) != t.dtype for d in mixed.dtypes):
                scalars.refuse_mixed(mixed, DECIDES)  # beside others a tensor of rank 0 counts no more than a number
            return t.dtype
    if mixed and mixed.dtypes != {own}:
        scalars.refuse_mixed(mixed, DECIDES)
    return own


#: By operator: its number that multiplies an operand, and the operand. Products of matrices are not among them: with a factor of zero they
#: leave NaN out.
FACTORS = {
    "add": ("alpha", "other"),
    "sub": ("alpha", "other"),
    "addcmul": ("value", "tensor1"),
    "addcdiv": ("value", "tensor1"),
    "addr": ("alpha", "vec1"),
}


def type_of_product(factor: Any, tensors: list[torch.Tensor]) -> torch.dtype | None:
    """Return in which type an operator of :data:`FACTORS` multiplies by a number of the run; None where that is not certain."""
    result = functools.reduce(torch.promote_types, [t.dtype for t in tensors])
    kinds = ("int",) if result in (torch.int32, torch.int64) else ("int", "float") if result in (torch.float32, torch.float64) else ()
    certain = all(t.dtype == result for t in tensors) or any(t.dim() > 0 and t.dtype == result for t in tensors)
    return result if certain and scalars.mixed_of(factor) is None and scalars._kind(scalars.operand_of(factor)) in kinds else None
