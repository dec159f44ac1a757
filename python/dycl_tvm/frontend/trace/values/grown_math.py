# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What is computed of tensors whose lengths are known only at run time: on their buffers, so that the result has the part that matters.

What mixes elements along such a dimension (a sum, a softmax) masks what lies behind the length, and so does what could fail for what
lies there. Products are in :mod:`.grown_products`.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.trace.session import apart, current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.aligned import broadcast, is_same
from dycl_tvm.frontend.trace.values.arguments import leaves, map_tensors, tensors_of
from dycl_tvm.frontend.trace.values.extents import INTEGERS, Extent, as_number, as_size, bounds_of, is_size
from dycl_tvm.frontend.trace.values.grown import Grown, buffer_type, copied_or_itself, cut, grown, number, rank_of
from dycl_tvm.frontend.trace.values.grown_formats import suggested_order
from dycl_tvm.frontend.trace.values.grown_rules import named
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.layouts import meta_of, strides_of
from dycl_tvm.frontend.trace.values.lengths import Length, combine
from dycl_tvm.frontend.trace.values.numbers import is_symbolic
from dycl_tvm.frontend.trace.values.recorder import dispatch, to_tensor
from dycl_tvm.frontend.trace.values.storage import DTYPES
from dycl_tvm.frontend.trace.values.tensors import known_numbers

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
    return [as_size(n) if is_size(n) else _plain(n) for n in given]


def _plain(n: Any) -> Any:
    """Return a number of the run that can only be one as that, and a tensor of rank 0 that holds a known one as this one."""
    if isinstance(n, torch.Tensor):
        held = known_numbers(n) if not rank_of(n) and n.dtype in INTEGERS else None
        return n if held is None else held
    known = n.node.bounds if is_symbolic(n) and n.node.length is None else None
    return known[0] if known is not None and known[0] == known[1] else n


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
    if math.prod(shape[: max(t.lengths)]) <= 1 or not math.prod(shape):
        return whole
    lengths = [to_tensor(number(n), torch.int64) for n in t.lengths.values()]
    return _moved(torch.ops.dycl_moving.together.default, whole, shape, lengths, list(t.lengths))


def moved_apart(elements: torch.Tensor, sizes: Sequence[Extent]) -> torch.Tensor:
    """Return a buffer for some sizes with elements, a vector of them in their order, where those are that there are."""
    dims = [d for d, n in enumerate(sizes) if isinstance(n, Length)]
    lengths, rooms = [to_tensor(as_number(sizes[d]), torch.int64) for d in dims], [bounds_of(n)[1] for n in sizes]
    parts = [2] if elements.is_complex() else []
    return _moved(torch.ops.dycl_moving.apart.default, elements, rooms, lengths, dims, [*rooms, *parts])


def _moved(operator: Any, x: torch.Tensor, shape: Sequence[int], *args: Any) -> torch.Tensor:
    """Return what moving elements makes, in a shape; the parts of a complex number stay together."""
    if not x.is_complex():
        return dispatch(operator, (x, *args), {}).reshape(shape)  # type: ignore[no-any-return]
    parts = torch.view_as_real(x)
    parts = parts if operator is torch.ops.dycl_moving.together.default else parts.reshape(-1)
    return torch.view_as_complex(dispatch(operator, (parts, *args), {}).reshape([*shape, 2]))


def there_is(t: Grown) -> torch.Tensor:
    """Return which elements of a buffer there are: a mask that broadcasts to it."""
    return functools.reduce(operator.and_, [valid(n, t.buffer.shape[d], t.dim_(), d) for d, n in t.lengths.items()])


def filled(t: Grown, fill: Any, dims: Collection[int] | None = None) -> torch.Tensor:
    """Return the buffer of a tensor, with a number in the place of what there is not: of all lengths, or of those of some dimensions."""
    whole: torch.Tensor = t.padded()
    for d, length in t.lengths.items():
        whole = masked(whole, d, length, fill) if dims is None or d in dims else whole
    return whole


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
    if partial and any(n.bounds[0] < 1 for n in first.lengths.values()) and numbers and not first.is_floating():
        return refuse_call(func, first)
    agreed = broadcast(tensors)
    if agreed is None:
        return first.refuse(f"{getattr(func, '__name__', func).strip('_')}() of sizes that do not match, with")
    buffers, extents = agreed
    counts = [to_tensor(as_number(n), torch.int64) > 0 for n in extents.values() if bounds_of(n)[0] <= 0]
    some = functools.reduce(operator.and_, counts) if counts else None

    def buffer(t: torch.Tensor) -> torch.Tensor:
        whole = buffers.get(id(t), t)
        if not partial or t.dtype.is_floating_point or t.dtype.is_complex:
            return whole
        if not isinstance(t, Grown):  # where there are no elements nothing is divided by it
            return whole if some is None else torch.where(some, whole, torch.ones((), dtype=whole.dtype))
        for d in t.lengths:
            length = extents[t.dim_() - d]
            whole = masked(whole, d, length, 1) if isinstance(length, Length) else whole
        return whole

    result = func(*map_tensors(buffer, args), **map_tensors(buffer, kwargs))
    lengths = {result.dim() - from_end: n for from_end, n in extents.items() if isinstance(n, Length)}
    if not lengths:
        return result
    made: Grown = cut(result, lengths)  # type: ignore[assignment]  # it grows
    form = kwargs.get("memory_format")
    made.contiguous_ = form is torch.contiguous_format or (form is None and all(map(_is_in_order, tensors)))
    surely = made.contiguous_ and isinstance(tensors[0], Grown) and _is_of_shape(tensors[0], made)
    made.exact = tensors[0].exact if surely else 0  # type: ignore[attr-defined]  # it has lengths
    if first.gaps:  # a copy of one row keeps the strides that it has among others
        made.exact = min(made.exact, 1)
    if form is None and not made.contiguous_:
        made.order = _order_of(func, args, tensors, made)
    if first.below is not None and func in _ADDITIONS and not kwargs and type(args[1]) is int and args[1] >= 0:
        made.below = combine("add", first.below, args[1])  # type: ignore[assignment]  # a sum is a length
    return made


def _is_in_order(t: torch.Tensor) -> bool:
    """Whether each dimension surely lies in memory within those before it, whatever lies between its elements."""
    if isinstance(t, Grown):
        return t.order == tuple(range(t.dim_()))
    rows = [[n for n, size in zip(strides, t.shape) if size > 1 and n] for strides in strides_of(t)]
    return all(row == sorted(row, reverse=True) for row in rows)


def _is_of_shape(t: Grown, made: Grown) -> bool:
    alike = t.buffer.shape == made.buffer.shape and t.lengths.keys() == made.lengths.keys()
    return alike and all(is_same(n, made.lengths[d]) for d, n in t.lengths.items())


def _order_of(func: Any, args: tuple[Any, ...], tensors: list[torch.Tensor], made: Grown) -> tuple[int, ...] | None:
    """Return in which order the dimensions of a result lie in memory: as those of the operands, or of the first one."""
    whole = [t for t in tensors if list(buffer_type(t).shape) == list(made.buffer.shape)]
    for t in whole:  # one of a single element along a dimension has no place for it
        if isinstance(t, Grown) and any(not is_same(n, made.lengths.get(d)) for d, n in t.lengths.items()):
            return None
    if not whole or (len(tensors) > 1 and not (func in _IN_ORDER and args[0] is whole[0])):
        return None
    first = whole[0]
    return first.order if isinstance(first, Grown) else tuple(range(first.dim())) if is_contiguous(first) else None


#: What lays its result out as its first operand lies, if that is of the shape of the result.
_IN_ORDER = tuple(getattr(_T, f"{of}{name}{of}") for name in ("add", "sub", "mul") for of in ("", "__"))
_ADDITIONS = (_T.__add__, _T.add, torch.add)


def detached(func: Any, t: Grown) -> Any:
    """View the tensor itself."""
    made: Grown = cut(func(t.padded()), t.lengths)  # type: ignore[assignment]  # it has a length
    made.order, made.orders, made.gaps, made.exact, made.below = t.order, t.orders, t.gaps, t.exact, t.below
    return made


def converted(func: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Convert to a type, which the other arguments give; what has it already is itself the result."""
    if not isinstance(x, Grown):
        return func(x, *map(buffer_of, args), **{k: buffer_of(v) for k, v in kwargs.items()})
    t, form = x, kwargs.pop("memory_format", None) or torch.preserve_format
    if form not in (torch.preserve_format, torch.contiguous_format) or torch.memory_format in map(type, args):
        return refuse_call(func, t, args, kwargs)
    whole = t.padded()
    other = [a.padded() if isinstance(a, Grown) else a for a in args]
    result = func(whole, *other, **{k: v.padded() if isinstance(v, Grown) else v for k, v in kwargs.items()})
    if result is whole:  # PyTorch copies then what suggests another order, and nothing else that is not in order
        in_order = form is torch.preserve_format or suggested_order(t) == tuple(range(t.dim_()))
        return t if in_order else refuse_call(func, t)
    made: Grown = cut(result, t.lengths)  # type: ignore[assignment]  # it grows
    made.order = t.order if form is torch.preserve_format else tuple(range(t.dim_()))
    made.below = t.below if not made.is_floating() and made.element_bytes() >= 4 else None
    return made


def typed(func: Any, x: torch.Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """Convert to a type of elements; without one, PyTorch says which there is."""
    return converted(_T.to, x, dtype) if isinstance(dtype, torch.dtype) else refuse_call(func, x)


def as_tensor(func: Any, t: Grown, **asked: Any) -> Any:
    """Return the tensor itself, or what it is of another type."""
    return converted(_T.to, t, **{name: x for name, x in asked.items() if x is not None})


def contiguous(func: Any, t: Grown, memory_format: Any = torch.contiguous_format) -> Any:
    """Return the tensor itself if it lies in memory as it should."""
    if memory_format is not torch.contiguous_format:
        return refuse_call(func, t)
    return t if t.contiguous_ else copied_or_itself(t)


# -- what mixes elements -----------------------------------------------------------------------------------------------------
def dtype_of(t: torch.Tensor) -> torch.dtype:
    """Return the type of the elements."""
    return DTYPES[t.buffer.dtype] if isinstance(t, Grown) else t.dtype


def new(result: torch.Tensor, along: int, length: Length) -> Grown:
    """Return what there is along a dimension of a tensor that was made anew."""
    made = grown(result, along, length)
    assert isinstance(made, Grown)
    made.contiguous_ = True
    return made


def new_in(result: torch.Tensor, extents: Mapping[int, Extent], known: bool = True) -> torch.Tensor:
    """Return what there is along dimensions of a tensor that was made anew, as long as it should be where a length is a plain number.

    ``known`` is whether it is known to be contiguous.
    """
    lengths = {d: n for d, n in extents.items() if isinstance(n, Length)}
    if not lengths:
        return result
    made = cut(result, lengths)
    made.contiguous_ = known  # type: ignore[attr-defined]  # it grows
    return made


def as_exact_as(t: Grown, made: torch.Tensor) -> torch.Tensor:
    """Return what lies in order as surely as it is known how another tensor lies."""
    if isinstance(made, Grown):
        made.exact = t.exact if made.contiguous_ else 0
    return made


def left_of(t: Grown, dims: Collection[int], keepdim: bool = False) -> dict[int, Length]:
    """Return the lengths that are left of a tensor, by their dimensions, where some were reduced."""
    return {d if keepdim else d - sum(r < d for r in dims): n for d, n in t.lengths.items() if d not in dims}


def softmax(func: Any, t: Grown, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """Normalise exponentials: what lies behind the length has none."""
    if type(dim) is not int:
        return refuse_call(func, t, args)
    buffer: torch.Tensor = t.padded()
    if dim % t.dim_() in t.lengths:
        if not t.is_floating():
            return refuse_call(func, t)
        buffer = filled(t, -math.inf, [dim % t.dim_()])
    made: Grown = cut(func(buffer, dim, *args, **kwargs), t.lengths)  # type: ignore[assignment]  # it grows
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
            with current().functions:
                return func(as_row(t))
        if partial:
            for d in t.lengths:
                if d in dims:
                    check_not_empty(func, t, *([] if dim is None else [dim, keepdim]), along=d)
        buffer = filled(t, fill, dims)
        made = func(buffer, **typed) if dim is None else func(buffer, dim, keepdim, **typed)
        return new_in(made, left_of(t, dims, keepdim))

    return handler


def as_row(t: torch.Tensor) -> torch.Tensor:
    """Return all elements in their order, for a function that gives something new: the row is no view of what may be changed in place."""
    return t.clone().reshape(-1)


def takes(handler: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function is called as its handler knows it: with these arguments, of which ``t`` is a tensor that grows."""
    try:
        given = inspect.signature(handler).bind(*args, **kwargs).arguments
    except TypeError:
        return False
    return "t" not in given or isinstance(given["t"], Grown)


def check_not_empty(func: Any, t: Grown, *args: Any, least: int = 1, along: int | None = None) -> None:
    """Raise at run time what a function raises of no elements, or of fewer than so many, along a dimension."""
    along = t.along if along is None else along
    if t.lengths[along].bounds[0] >= least:
        return
    shape = [least - 1 if d == along else n for d, n in enumerate(t.buffer.shape)]
    try:
        with apart(), plainly():
            func(torch.empty(shape, dtype=t.padded().dtype), *args)
    except (RuntimeError, IndexError, ValueError) as error:
        require(number(t.lengths[along]) >= least, type(error)(str(error)))
        return
    refuse_call(func, t)


def _least(dtype: torch.dtype) -> Any:
    return None if dtype == torch.bool else -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _most(dtype: torch.dtype) -> Any:
    return None if dtype == torch.bool else math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def extreme(neutral: Callable[[torch.dtype], Any]) -> Handler:
    """Return how to take the largest or the least of all elements, or of two tensors element by element."""
    of_all = reduction(neutral, partial=True)

    def handler(func: Any, x: torch.Tensor, other: Any = None, keepdim: bool = False, dim: int | None = None) -> Any:
        if isinstance(other, torch.Tensor):
            return elementwise(func, x, other)
        dim = other if dim is None else dim
        if dim is None or not isinstance(x, Grown):
            return of_all(func, x)
        fill = neutral(dtype_of(x))
        if type(dim) is not int or fill is None:
            return refuse_call(func, x)
        along = dim % x.dim_()
        if along in x.lengths:
            check_not_empty(func, x, dim, keepdim, along=along)
        made = func(filled(x, fill, [along]), dim, keepdim)
        left = left_of(x, [along], keepdim)
        return type(made)([new_in(part, left) for part in made]) if left else made

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
    if not any(d in t.lengths for d in dims):
        return new_in(func(t.padded(), dim, keepdim, dtype=dtype), left_of(t, dims, keepdim))
    total = reduction(lambda dtype: 0)(torch.sum, t, dim, keepdim, dtype)
    made = buffer_of(total) / to_tensor(count_in(t, dims), of)
    return new_in(made, left_of(t, dims, keepdim))


def count_in(t: Grown, dims: Collection[int]) -> Any:
    """Return how many elements a tensor has in some of its dimensions."""
    others = math.prod(t.buffer.shape[d] for d in dims if d not in t.lengths)
    lengths = [n for d, n in t.lengths.items() if d in dims]
    return multiplied(lengths) * others if lengths else others


def multiplied(lengths: Iterable[Length]) -> Any:
    """Return the product of lengths, of which there is one at least, as a number of the run."""
    return functools.reduce(operator.mul, map(number, lengths))


def triangle(func: Any, t: Grown, diagonal: Any = 0) -> Any:
    """Return what lies on one side of a diagonal, which may follow from the length; zeros elsewhere."""
    if isinstance(diagonal, torch.Tensor) or t.dim_() < 2:
        return refuse_call(func, t)
    rows, columns = [torch.arange(n) for n in t.buffer.shape[-2:]]
    beyond, bound = columns - rows[:, None], to_tensor(diagonal, torch.int64)
    kept = beyond <= bound if func.__name__ == "tril" else beyond >= bound
    whole = t.padded()
    return new_in(torch.where(kept, whole, torch.zeros((), dtype=whole.dtype)), t.lengths)


def running(func: Any, t: Grown, dim: int, *, dtype: Any = None) -> Any:
    """Return running sums, products, extremes: what lies behind the length comes after all that there is."""
    made = func(t.padded(), dim, **({} if dtype is None else {"dtype": dtype}))
    parts = [cut(part, t.lengths) for part in ([made] if isinstance(made, torch.Tensor) else made)]
    for part in parts:
        part.contiguous_ = t.contiguous_  # type: ignore[attr-defined]  # it grows
    return parts[0] if isinstance(made, torch.Tensor) else type(made)(parts)


# -- layers, row by row ------------------------------------------------------------------------------------------------------
def layer_norm(func: Any, t: Grown, normalized_shape: Sequence[Any], weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
    """Normalise rows."""
    return by_rows(func, t, len(normalized_shape), normalized_shape, weight, bias, eps)


def rms_norm(func: Any, t: Grown, normalized_shape: Sequence[Any], weight: Any = None, eps: Any = None) -> Any:
    """Normalise rows."""
    return by_rows(func, t, len(normalized_shape), normalized_shape, weight, eps)


def by_rows(func: Any, t: Grown, mixed: int, *args: Any) -> Any:
    """Call a function that computes each row, of its last dimensions, by itself."""
    if any(isinstance(a, Grown) for a in tensors_of(args)) or max(t.lengths) >= t.dim_() - mixed:
        return refuse_call(func, t, args)
    whole, order = t.unturned()
    if order[-mixed:] != list(range(t.dim_()))[-mixed:]:
        made = new_in(func(t.padded(), *args), t.lengths)
        return as_exact_as(t, made) if t.contiguous_ else made
    return new_in(func(whole, *args).permute(order), t.lengths)  # rows are not put in another order for that


def embedding(
    func: Any, x: torch.Tensor, weight: torch.Tensor, padding_idx: int | None = None, max_norm: float | None = None, **gradients: Any
) -> Any:
    """Look rows up: what lies behind the length is no index."""
    if max_norm is not None:
        return refuse_call(func, x, weight)
    if isinstance(x, Grown) and not isinstance(weight, Grown):
        return new_in(func(filled(x, 0), weight, padding_idx, **gradients), x.lengths)
    with current().functions:
        return weight.index_select(0, x.reshape(-1)).reshape([*x.size(), weight.size(1)])


_ELEMENTWISE = """
add sub subtract mul multiply div divide true_divide floor_divide remainder fmod neg negative abs absolute exp exp2 expm1 log log2 log10
log1p sqrt rsqrt sigmoid tanh relu sin cos tan asin acos atan sinh cosh pow square reciprocal erf erfc clamp clamp_min clamp_max clip
eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_xor bitwise_not where masked_fill minimum
maximum lerp addcmul addcdiv hypot atan2 logaddexp frac sinc asinh acosh atanh fmin fmax
isnan isinf isfinite floor ceil round trunc sign nan_to_num clone
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
    **dict.fromkeys(named("detach", torch, _T), detached),
    **dict.fromkeys(named(_CONVERSIONS, _T), converted),
    _T.contiguous: contiguous,
    torch.as_tensor: as_tensor,
    _T.type: typed,
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
    F.dropout: dropout,
    F.layer_norm: layer_norm,
    F.rms_norm: rms_norm,
    F.embedding: embedding,
}
