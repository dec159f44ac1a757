# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is computed of tensors that grow in a loop: on their buffers, so that the result has the same part that matters.

What mixes elements along the dimension that grows (a sum, a softmax, a product) masks what lies behind the length; so does what could
fail for what lies there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.trace.session import apart, current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.aligned import broadcast, equalized, extent_at, fitted, is_same
from dycl_tvm.frontend.trace.values.arguments import leaves, map_tensors, tensors_of
from dycl_tvm.frontend.trace.values.extents import as_number, as_size, bounds_of, is_size
from dycl_tvm.frontend.trace.values.grown import Grown, copied_or_itself, grown, number, rank_of
from dycl_tvm.frontend.trace.values.grown_rules import named
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.layouts import layouts_of, meta_of, strides_of
from dycl_tvm.frontend.trace.values.lengths import Length, combine
from dycl_tvm.frontend.trace.values.numbers import is_symbolic
from dycl_tvm.frontend.trace.values.recorder import to_tensor
from dycl_tvm.frontend.trace.values.storage import DTYPES

_T = torch.Tensor
Handler = Callable[..., Any]


def refuse_call(func: Any, *tensors: Any) -> Any:
    """Say that a function is called in a way that is not known of tensors that grow."""
    found = next(t for t in tensors_of(tensors) if isinstance(t, Grown))
    return found.refuse(f"{getattr(func, '__name__', func).strip('_')}() is not supported with these arguments and")


def is_contiguous(t: torch.Tensor) -> bool:
    """Whether a tensor surely lies in memory as one that was made anew does."""
    if isinstance(t, Grown):
        return t.contiguous_
    return all(meta_of(tuple(t.shape), strides, t.dtype).is_contiguous() for strides in strides_of(t))


def flat(sizes: tuple[Any, ...]) -> list[Any]:
    """Return sizes or dimensions that were given one by one, or as one list."""
    given = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    return [as_size(n) if is_size(n) else n for n in given]


def masked(t: torch.Tensor, along: int, length: Length, fill: Any) -> torch.Tensor:
    """Return a buffer with a number in the place of what there is not."""
    return torch.where(valid(length, t.shape[along], t.dim(), along % t.dim()), t, torch.full((), fill, dtype=t.dtype))


def valid(length: Length, size: int, rank: int, along: int) -> torch.Tensor:
    """Return which elements of a buffer there are, along one dimension: a mask that broadcasts."""
    shape = [size if d == along else 1 for d in range(rank)]
    return torch.arange(size).reshape(shape) < to_tensor(number(length), torch.int64)


def at_front(t: Grown) -> torch.Tensor:
    """Return a tensor of the buffer's shape that begins with the elements that there are, in their order."""
    whole, shape = t.padded(), t.buffer.shape
    rows, size, behind = (math.prod(part) for part in (shape[: t.along], shape[t.along : t.along + 1], shape[t.along + 1 :]))
    if rows <= 1 or not behind:
        return whole
    length, place = to_tensor(number(t.length), torch.int64).clamp(min=1), torch.arange(rows * size)
    source = torch.div(place, length, rounding_mode="floor") * size + place % length
    return whole.reshape(rows * size, behind).index_select(0, source.clamp(0, rows * size - 1)).reshape(shape)


def _filled(t: Grown, fill: Any) -> torch.Tensor:
    return masked(t.padded(), t.along, t.length, fill)


def buffer_of(t: torch.Tensor) -> torch.Tensor:
    """Return the buffer of a tensor whose length is known only at run time; another tensor itself."""
    return t.padded() if isinstance(t, Grown) else t


# -- element by element ------------------------------------------------------------------------------------------------------
def elementwise(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute element by element: what has no such dimension, or one of a single element, broadcasts along it."""
    tensors = tensors_of(args, kwargs)
    first = next(t for t in tensors if isinstance(t, Grown))
    if kwargs.get("out") is not None:
        return refuse_call(func, first)
    partial = func in _PARTIAL
    numbers = [x for x in leaves((args, kwargs)) if is_symbolic(x) or (type(x) in (int, bool) and x == 0)]
    if partial and first.length.bounds[0] < 1 and numbers and not first.is_floating():
        return refuse_call(func, first)
    agreed = broadcast(tensors)
    if agreed is None:
        return first.refuse(f"{getattr(func, '__name__', func).strip('_')}() would have two dimensions of unknown length, with")
    buffers, from_end, length = agreed
    some = None if bounds_of(length)[0] > 0 else to_tensor(as_number(length), torch.int64) > 0

    def buffer(t: torch.Tensor) -> torch.Tensor:
        whole = buffers.get(id(t), t)
        if not partial or t.dtype.is_floating_point or t.dtype.is_complex:
            return whole
        if not isinstance(t, Grown):  # where there are no elements nothing is divided by it
            return whole if some is None else torch.where(some, whole, torch.ones((), dtype=whole.dtype))
        return masked(whole, t.along, length, 1) if isinstance(length, Length) else whole

    result = func(*map_tensors(buffer, args), **map_tensors(buffer, kwargs))
    if isinstance(length, int):
        return result
    made: Grown = grown(result, result.dim() - from_end, length)  # type: ignore[assignment]  # it grows
    form = kwargs.get("memory_format")
    leads = args and args[0] is first and first.contiguous_ and list(buffer(first).shape) == list(result.shape)  # PyTorch lays out as it
    made.contiguous_ = form is torch.contiguous_format or (form is None and (leads or all(map(is_contiguous, tensors))))
    if first.below is not None and func in _ADDITIONS and not kwargs and type(args[1]) is int and args[1] >= 0:
        made.below = combine("add", first.below, args[1])  # type: ignore[assignment]  # a sum is a length
    return made


_ADDITIONS = (_T.__add__, _T.add, torch.add)


def converted(func: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Convert to a type, which the other arguments give; what has it already is itself the result."""
    if not isinstance(x, Grown):
        return func(x, *map(buffer_of, args), **{k: buffer_of(v) for k, v in kwargs.items()})
    t = x
    if "memory_format" in kwargs or torch.memory_format in map(type, args):
        return refuse_call(func, t, args, kwargs)
    whole = t.padded()
    other = [a.padded() if isinstance(a, Grown) else a for a in args]
    result = func(whole, *other, **{k: v.padded() if isinstance(v, Grown) else v for k, v in kwargs.items()})
    if result is whole:
        return t
    made: Grown = grown(result, t.along, t.length)  # type: ignore[assignment]  # it grows
    made.contiguous_, made.below = t.contiguous_, t.below if not made.is_floating() and made.element_bytes() >= 4 else None
    return made


def contiguous(func: Any, t: Grown, memory_format: Any = torch.contiguous_format) -> Any:
    """Return the tensor itself if it lies in memory as it should."""
    if memory_format is not torch.contiguous_format:
        return refuse_call(func, t)
    return t if t.contiguous_ else copied_or_itself(t)


# -- what mixes elements -----------------------------------------------------------------------------------------------------
def dtype_of(t: torch.Tensor) -> torch.dtype:
    """Return the type of the elements."""
    return DTYPES[t.buffer.dtype] if isinstance(t, Grown) else t.dtype


def matmul(func: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    """Multiply matrices of which one grows, or both along the dimension that is summed over."""
    if min(rank_of(a), rank_of(b)) < 1:
        return refuse_call(func, a, b)
    if rank_of(a) < 2 or rank_of(b) < 2:
        return _of_vectors(func, a, b)
    a, b = [t.clone(memory_format=torch.contiguous_format) if layouts_of(t) is not None else t for t in (a, b)]
    rank = max(rank_of(a), rank_of(b))
    if min(t.dim_() - t.along for t in (a, b) if isinstance(t, Grown)) > 2:
        return _of_batch(func, a, b)
    in_a = a.along - a.dim_() if isinstance(a, Grown) else None
    in_b = b.along - b.dim_() if isinstance(b, Grown) else None
    if in_a == -1 or in_b == -2:
        if in_a not in (-1, None) or in_b not in (-2, None):
            return refuse_call(func, a, b)
        (left, right), length = equalized([a, b], [rank_of(a) - 1, rank_of(b) - 2])
        if isinstance(length, int):
            return func(left, right)
        return func(masked(left, left.dim() - 1, length, 0), masked(right, right.dim() - 2, length, 0))
    if in_a is not None and in_b is not None:
        return refuse_call(func, a, b)
    if isinstance(a, Grown) and in_a == -2:
        return new(func(a.padded(), b), rank - 2, a.length)
    if isinstance(b, Grown) and in_b == -1:
        return new(func(a, b.padded()), rank - 1, b.length)
    return refuse_call(func, a, b)


def _of_batch(func: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    """Multiply matrices of which there are so many, each by itself."""
    if func in (torch.bmm, _T.bmm):
        (left, right), length = equalized([a, b], [0, 0])
        from_end = 3
    else:
        agreed = broadcast([a, b])
        if agreed is None:
            return refuse_call(func, a, b)
        buffers, from_end, length = agreed
        left, right = [buffers.get(id(t), t) for t in (a, b)]
    made = func(left, right)
    return new(made, made.dim() - from_end, length) if isinstance(length, Length) else made


def _of_vectors(func: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    """Multiply where one is a vector: a row in front, a column behind."""
    with current().functions:
        row, column = rank_of(a) == 1, rank_of(b) == 1
        made = torch.matmul(a[None] if row else a, b[:, None] if column else b)
        made = made.squeeze(-1) if column else made
        return made.squeeze(-1 if column else -2) if row else made


def einsum(func: Any, equation: Any, *operands: Any) -> Any:
    """Multiply and sum by letters, of which one stands for the dimension whose length is known only at run time."""
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    tensors: list[torch.Tensor] = list(given)
    found = next(t for t in tensors if isinstance(t, Grown))
    inputs, arrow, output = equation.replace(" ", "").partition("->") if isinstance(equation, str) else ("", "", "")
    terms = inputs.split(",")
    if not arrow or "." in equation or any(len(term) != rank_of(t) for term, t in zip(terms, tensors)) or len(terms) != len(tensors):
        return refuse_call(func, found)
    letter = next(term[t.along] for term, t in zip(terms, tensors) if isinstance(t, Grown))
    having = [k for k, term in enumerate(terms) if letter in term]
    along = {k: terms[k].index(letter) for k in having}
    others = any(isinstance(t, Grown) and t.along != along.get(k) for k, t in enumerate(tensors))
    if others or any(terms[k].count(letter) > 1 for k in having):
        return refuse_call(func, found)
    sizes = [extent_at(tensors[k], rank_of(tensors[k]) - along[k]) for k in having]
    if any(not is_same(n, sizes[0]) and min(bounds_of(n)[0], bounds_of(sizes[0])[0]) < 2 for n in sizes):  # type: ignore[arg-type]
        return refuse_call(func, found)  # one element is spread over the others
    buffers, length = equalized([tensors[k] for k in having], list(along.values()))
    for k, buffer in zip(having, buffers):
        kept = letter in output or isinstance(length, int)
        tensors[k] = buffer if kept else masked(buffer, along[k], length, 0)  # type: ignore[arg-type]  # it is no int
    result = func(equation, *tensors)
    return new(result, output.index(letter), length) if letter in output and isinstance(length, Length) else result


def new(result: torch.Tensor, along: int, length: Length) -> Grown:
    """Return what grows of a tensor that was made anew."""
    made = grown(result, along, length)
    assert isinstance(made, Grown)
    made.contiguous_ = True
    return made


def softmax(func: Any, t: Grown, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """Normalise exponentials: what lies behind the length has none."""
    if type(dim) is not int:
        return refuse_call(func, t, args)
    buffer: torch.Tensor = t.padded()
    if dim % t.dim_() == t.along:
        if not t.is_floating():
            return refuse_call(func, t)
        buffer = _filled(t, -math.inf)
    made: Grown = grown(func(buffer, dim, *args, **kwargs), t.along, t.length)  # type: ignore[assignment]  # it grows
    made.contiguous_ = t.contiguous_
    return made


def reduction(neutral: Callable[[torch.dtype], Any], partial: bool = False, indices: bool = False) -> Handler:
    """Return how to reduce with an operation of which one number is neutral; ``partial`` is one that is not defined of no elements."""

    def handler(func: Any, t: Grown, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
        dims = list(range(t.dim_())) if dim is None else [d % t.dim_() for d in flat((dim,)) if type(d) is int]
        typed = {} if dtype is None else {"dtype": dtype}
        fill = neutral(t.padded().dtype)
        if not dims or fill is None or (indices and dim is not None and len(dims) > 1) or (dim is None and keepdim):
            return refuse_call(func, t)
        if indices and dim is None and t.dim_() > 1:
            return refuse_call(func, t)
        if t.along in dims:
            if partial:
                check_not_empty(func, t, *([] if dim is None else [dim, keepdim]))
            buffer = _filled(t, fill)
            return func(buffer, **typed) if dim is None else func(buffer, dim, keepdim, **typed)
        along = t.along if keepdim else t.along - sum(d < t.along for d in dims)
        return new(func(t.padded(), dim, keepdim, **typed), along, t.length)

    return handler


def check_not_empty(func: Any, t: Grown, *args: Any, least: int = 1) -> None:
    """Raise at run time what a function raises of no elements, or of fewer than so many."""
    if t.length.bounds[0] >= least:
        return
    shape = [least - 1 if d == t.along else n for d, n in enumerate(t.buffer.shape)]
    try:
        with apart(), plainly():
            func(torch.empty(shape, dtype=t.padded().dtype), *args)
    except (RuntimeError, IndexError, ValueError) as error:
        require(number(t.length) >= least, type(error)(str(error)))
        return
    refuse_call(func, t)


def _least(dtype: torch.dtype) -> Any:
    return None if dtype == torch.bool else -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _most(dtype: torch.dtype) -> Any:
    return None if dtype == torch.bool else math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def extreme(neutral: Callable[[torch.dtype], Any]) -> Handler:
    """Return how to take the largest or the least of all elements, or of two tensors element by element."""
    of_all = reduction(neutral, partial=True)

    def handler(func: Any, t: torch.Tensor, other: Any = None, keepdim: bool = False, dim: int | None = None) -> Any:
        if isinstance(other, torch.Tensor):
            return elementwise(func, t, other)
        dim = other if dim is None else dim
        if dim is None or not isinstance(t, Grown):
            return of_all(func, t)
        fill = neutral(dtype_of(t))
        if type(dim) is not int or fill is None:
            return refuse_call(func, t)
        if dim % t.dim_() == t.along:
            check_not_empty(func, t, dim, keepdim)
            return func(_filled(t, fill), dim, keepdim)
        made = func(t.padded(), dim, keepdim)
        along = t.along if keepdim else t.along - (dim % t.dim_() < t.along)
        return type(made)([new(part, along, t.length) for part in made])

    return handler


def dropout(func: Any, t: Grown, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Return the tensor itself where nothing is dropped."""
    return t if training is False and 0 <= p <= 1 else refuse_call(func, t)


def mean(func: Any, t: Grown, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Return the mean: along the dimension that grows it is the sum by the length."""
    dims = list(range(t.dim_())) if dim is None else [d % t.dim_() for d in flat((dim,)) if type(d) is int]
    of = t.padded().dtype if dtype is None else dtype
    if not dims or of not in (torch.float32, torch.float64) or not t.is_floating() or (dim is None and keepdim):
        return refuse_call(func, t)
    total = reduction(lambda dtype: 0)(torch.sum, t, dim, keepdim, dtype)
    count: Any = math.prod(t.buffer.shape[d] for d in dims if d != t.along)
    if t.along in dims:
        count = to_tensor(number(t.length) * count, of)
        return total / count
    result = func(t.padded(), dim, keepdim, dtype=dtype)
    return new(result, total.along, t.length)


def triangle(func: Any, t: Grown, diagonal: Any = 0) -> Any:
    """Return what lies on one side of a diagonal, which may follow from the length; zeros elsewhere."""
    if isinstance(diagonal, torch.Tensor) or t.dim_() < 2:
        return refuse_call(func, t)
    rows, columns = [torch.arange(n) for n in t.buffer.shape[-2:]]
    beyond, bound = columns - rows[:, None], to_tensor(diagonal, torch.int64)
    kept = beyond <= bound if func.__name__ == "tril" else beyond >= bound
    whole = t.padded()
    return new(torch.where(kept, whole, torch.zeros((), dtype=whole.dtype)), t.along, t.length)


def running(func: Any, t: Grown, dim: int, *, dtype: Any = None) -> Any:
    """Return running sums, products, extremes: what lies behind the length comes after all that there is."""
    made = func(t.padded(), dim, **({} if dtype is None else {"dtype": dtype}))
    parts = [grown(part, t.along, t.length) for part in ([made] if isinstance(made, torch.Tensor) else made)]
    for part in parts:
        part.contiguous_ = t.contiguous_  # type: ignore[attr-defined]  # it grows
    return parts[0] if isinstance(made, torch.Tensor) else type(made)(parts)


def attention(
    func: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **kwargs: Any,
) -> Any:
    """Attention over keys and values that grow: those that there are not are masked. Queries are rows by themselves, and so is a batch."""
    tensors = [query, key, value, *([] if attn_mask is None else [attn_mask])]
    if dropout_p:
        return refuse_call(func, *tensors)
    if min(t.dim_() - t.along for t in tensors if isinstance(t, Grown)) > 2:
        return _attention_of_rows(func, tensors, is_causal, kwargs)
    if isinstance(query, Grown) and query.along == query.dim_() - 2 and not any(isinstance(t, Grown) for t in (key, value, attn_mask)):
        if is_causal or (attn_mask is not None and (attn_mask.dim() < 2 or attn_mask.shape[-2] != 1)):
            return refuse_call(func, query, key, value)
        return grown(func(_filled(query, 0), key, value, attn_mask, dropout_p, **kwargs), query.along, query.length)
    if not (isinstance(key, Grown) and isinstance(value, Grown)) or (isinstance(query, Grown) and query.along != query.dim_() - 2):
        return refuse_call(func, query, key, value, attn_mask)
    if key.along != key.dim_() - 2 or value.along != value.dim_() - 2:
        return refuse_call(func, query, key, value)
    if key.length.bounds[0] < 1 and key.buffer.shape[:-2] != buffer_of(query).shape[:-2]:
        _check_spread(func, query, key, value, is_causal, kwargs)
    if is_causal and (attn_mask is not None or not isinstance(query, Grown) or not is_same(query.length, key.length)):
        return refuse_call(func, query, key, value)
    if isinstance(query, Grown) and attn_mask is not None and rank_of(attn_mask) > 1 and extent_at(attn_mask, 2) != 1:
        return refuse_call(func, query, key, value, attn_mask)
    rows: torch.Tensor = _filled(query, 0) if isinstance(query, Grown) else query
    wholes, length = equalized([key, value], [key.along, value.along])
    assert isinstance(length, Length)
    keys, values = [masked(t, t.dim() - 2, length, 0) for t in wholes]
    size = int(keys.shape[-2])
    mask = valid(length, size, 2, 1)
    if isinstance(attn_mask, Grown):
        if attn_mask.along != attn_mask.dim_() - 1 or not is_same(attn_mask.length, key.length):
            return refuse_call(func, key)
        given: torch.Tensor = attn_mask.padded()
        given = fitted(given, given.dim() - 1, size)
        mask = mask & given if given.dtype == torch.bool else torch.where(mask, given, torch.full((), -math.inf, dtype=given.dtype))
    elif attn_mask is not None:
        if attn_mask.dim() < 1 or attn_mask.shape[-1] != 1:
            return refuse_call(func, key)
        mask = (
            mask & attn_mask
            if attn_mask.dtype == torch.bool
            else torch.where(mask, attn_mask, torch.full((), -math.inf, dtype=attn_mask.dtype))
        )
    else:
        mask = mask.expand(rows.shape[-2], size)
    if is_causal:
        mask = mask & (torch.arange(size) <= torch.arange(int(rows.shape[-2]))[:, None])
    made = func(rows, keys, values, mask, dropout_p, False, **kwargs)
    return grown(made, query.along, query.length) if isinstance(query, Grown) else made


def _check_spread(func: Any, query: torch.Tensor, key: Grown, value: Grown, is_causal: Any, kwargs: dict[str, Any]) -> None:
    """Raise at run time what PyTorch raises of no keys that are spread over a batch, or over more heads."""
    shapes = [[0 if isinstance(t, Grown) and d == t.along else n for d, n in enumerate(buffer_of(t).shape)] for t in (query, key, value)]
    try:
        with apart(), plainly():
            func(*map(torch.zeros, shapes), is_causal=is_causal, **kwargs)
    except (RuntimeError, IndexError, ValueError) as error:
        require(number(key.length) >= 1, type(error)(str(error)))


def _attention_of_rows(func: Any, given: list[torch.Tensor], is_causal: Any, kwargs: dict[str, Any]) -> Any:
    """Attention of a batch, or of heads, of which there are so many: each is computed by itself."""
    agreed = broadcast(given)
    grouped = kwargs.get("enable_gqa") and agreed is not None and agreed[1] == 3  # heads are repeated
    if agreed is None or grouped:
        return refuse_call(func, *given)
    buffers, from_end, length = agreed
    query, key, value, *mask = [buffers.get(id(t), t) for t in given]
    made = func(query, key, value, mask[0] if mask else None, 0.0, is_causal, **kwargs)
    return grown(made, made.dim() - from_end, length)


# -- layers, row by row ------------------------------------------------------------------------------------------------------
def linear(func: Any, t: Grown, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """Multiply rows by a matrix."""
    return _rows(func, t, 1, weight, bias)


def layer_norm(func: Any, t: Grown, normalized_shape: Sequence[Any], weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
    """Normalise rows."""
    return _rows(func, t, len(normalized_shape), normalized_shape, weight, bias, eps)


def rms_norm(func: Any, t: Grown, normalized_shape: Sequence[Any], weight: Any = None, eps: Any = None) -> Any:
    """Normalise rows."""
    return _rows(func, t, len(normalized_shape), normalized_shape, weight, eps)


def _rows(func: Any, t: Grown, mixed: int, *args: Any) -> Any:
    if any(isinstance(a, Grown) for a in tensors_of(args)) or t.along >= t.dim_() - mixed:
        return refuse_call(func, t, args)
    return new(func(t.padded(), *args), t.along, t.length)


def embedding(
    func: Any, x: torch.Tensor, weight: torch.Tensor, padding_idx: int | None = None, max_norm: float | None = None, **gradients: Any
) -> Any:
    """Look rows up: what lies behind the length is no index."""
    if max_norm is not None:
        return refuse_call(func, x, weight)
    if isinstance(x, Grown) and not isinstance(weight, Grown):
        return new(func(_filled(x, 0), weight, padding_idx, **gradients), x.along, x.length)
    with current().functions:
        return weight.index_select(0, x.reshape(-1)).reshape([*x.size(), weight.size(1)])


_ELEMENTWISE = """
add sub subtract mul multiply div divide true_divide floor_divide remainder fmod neg negative abs absolute exp exp2 expm1 log log2 log10
log1p sqrt rsqrt sigmoid tanh relu sin cos tan asin acos atan sinh cosh pow square reciprocal erf erfc clamp clamp_min clamp_max clip
eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_xor bitwise_not where masked_fill minimum
maximum lerp addcmul addcdiv hypot atan2 logaddexp frac sinc asinh acosh atanh fmin fmax
isnan isinf isfinite floor ceil round trunc sign nan_to_num clone detach
"""
_OPERATORS = """
add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod neg pow rpow eq ne lt le gt ge and rand or ror xor rxor invert abs
"""
_PARTIAL = frozenset(
    [
        *named("div divide true_divide floor_divide remainder fmod pow", torch, _T),
        *named("__truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __pow__ __rpow__", _T),
    ]
)
_ACTIVATIONS = """
relu gelu silu elu leaky_relu softplus mish hardtanh relu6 selu celu hardswish hardsigmoid logsigmoid softsign tanhshrink hardshrink
softshrink threshold
"""
_CONVERSIONS = "to float double half bfloat16 long int short bool type_as"
HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys([*named(_ELEMENTWISE, torch, _T), *named(" ".join(f"__{n}__" for n in _OPERATORS.split()), _T)], elementwise),
    **dict.fromkeys(named(_ACTIVATIONS, F), elementwise),
    **dict.fromkeys(named(_CONVERSIONS, _T), converted),
    _T.contiguous: contiguous,
    **dict.fromkeys([torch.matmul, _T.matmul, _T.__matmul__, torch.bmm, _T.bmm], matmul),
    **dict.fromkeys([torch.softmax, _T.softmax, F.softmax, torch.log_softmax, _T.log_softmax, F.log_softmax], softmax),
    **dict.fromkeys([torch.sum, _T.sum], reduction(lambda dtype: 0)),
    **dict.fromkeys([torch.all, _T.all], reduction(lambda dtype: True)),
    **dict.fromkeys([torch.any, _T.any], reduction(lambda dtype: False)),
    **dict.fromkeys([torch.max, _T.max], extreme(_least)),
    **dict.fromkeys([torch.min, _T.min], extreme(_most)),
    **dict.fromkeys([torch.amax, _T.amax], reduction(_least, partial=True)),
    **dict.fromkeys([torch.amin, _T.amin], reduction(_most, partial=True)),
    **dict.fromkeys([torch.argmax, _T.argmax], reduction(_least, partial=True, indices=True)),
    **dict.fromkeys([torch.argmin, _T.argmin], reduction(_most, partial=True, indices=True)),
    **dict.fromkeys([torch.mean, _T.mean], mean),
    **dict.fromkeys(named("cumsum cumprod cummax cummin logcumsumexp", torch, _T), running),
    **dict.fromkeys([torch.tril, _T.tril, torch.triu, _T.triu], triangle),
    torch.einsum: einsum,
    F.scaled_dot_product_attention: attention,
    F.dropout: dropout,
    F.linear: linear,
    F.layer_norm: layer_norm,
    F.rms_norm: rms_norm,
    F.embedding: embedding,
}
