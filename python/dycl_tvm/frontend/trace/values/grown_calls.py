# Licensed under the Apache License, Version 2.0; see LICENSE.
"""PyTorch's functions on tensors that grow in a loop: their parts, shapes and lengths, and which function is computed how.

What is computed of their elements is in :mod:`.grown_math`. A function that is not here unrolls the loop.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import broadcast
from dycl_tvm.frontend.trace.values.arguments import leaves, map_leaves, map_tensors, tensors_of
from dycl_tvm.frontend.trace.values.data_errors import called
from dycl_tvm.frontend.trace.values.extents import (
    ADDITIONS,
    COMPARISONS,
    DIVISIONS,
    SUBTRACTIONS,
    compared_with_size,
    is_size,
    size_divided,
    sum_with_size,
)
from dycl_tvm.frontend.trace.values.grown import Grown, cut, rank_of
from dycl_tvm.frontend.trace.values.grown_bound import HANDLERS as BOUND
from dycl_tvm.frontend.trace.values.grown_composed import HANDLERS as COMPOSED
from dycl_tvm.frontend.trace.values.grown_composed import composed
from dycl_tvm.frontend.trace.values.grown_diagonals import HANDLERS as DIAGONALS
from dycl_tvm.frontend.trace.values.grown_diagonals import SIZED as MADE
from dycl_tvm.frontend.trace.values.grown_images import HANDLERS as IMAGES
from dycl_tvm.frontend.trace.values.grown_images import SIZED as GRIDS
from dycl_tvm.frontend.trace.values.grown_layers import HANDLERS as LAYERS
from dycl_tvm.frontend.trace.values.grown_layers import SIZED as DRAWS
from dycl_tvm.frontend.trace.values.grown_math import HANDLERS as MATH
from dycl_tvm.frontend.trace.values.grown_math import (
    Handler,
    buffer_of,
    dtype_of,
    elementwise,
    multiplied,
    refuse_call,
    takes,
)
from dycl_tvm.frontend.trace.values.grown_measures import HANDLERS as MEASURES
from dycl_tvm.frontend.trace.values.grown_memory import HANDLERS as MEMORY
from dycl_tvm.frontend.trace.values.grown_order import HANDLERS as ORDER
from dycl_tvm.frontend.trace.values.grown_order import repeat, topk
from dycl_tvm.frontend.trace.values.grown_parts import (
    assigned,
    indexed,
    iterated,
    narrowed,
    one_item,
    put_all,
    selected_by,
    to_list,
    unbind,
)
from dycl_tvm.frontend.trace.values.grown_places import HANDLERS as PLACES
from dycl_tvm.frontend.trace.values.grown_pooling import HANDLERS as POOLING
from dycl_tvm.frontend.trace.values.grown_pooling import SIZED as POOLS
from dycl_tvm.frontend.trace.values.grown_products import HANDLERS as PRODUCTS
from dycl_tvm.frontend.trace.values.grown_quantized import HANDLERS as QUANTIZED
from dycl_tvm.frontend.trace.values.grown_recurrent import HANDLERS as RECURRENT
from dycl_tvm.frontend.trace.values.grown_reshape import HANDLERS as RESHAPE
from dycl_tvm.frontend.trace.values.grown_reshape import SIZED as SHAPES
from dycl_tvm.frontend.trace.values.grown_resize import SIZED as RESIZE
from dycl_tvm.frontend.trace.values.grown_rows import HANDLERS as ROWS
from dycl_tvm.frontend.trace.values.grown_rules import body_of, by_position, functional_of, is_elementwise, named
from dycl_tvm.frontend.trace.values.grown_shapes import (
    arange,
    cat,
    expand,
    full,
    like,
    linspace,
    matrix_transpose,
    may_be_size,
    pad_plain,
    pad_sequence,
    permute,
    squeeze,
    stack,
    transpose,
    unsqueeze,
    with_parts,
)
from dycl_tvm.frontend.trace.values.grown_splits import chunk, parts
from dycl_tvm.frontend.trace.values.overlaps import check_overlap
from dycl_tvm.frontend.trace.values.picked import masked_scatter, masked_select, nonzero
from dycl_tvm.frontend.trace.values.storage import check_shape_undoable
from dycl_tvm.frontend.trace.values.vision import OPERATORS, substitute_of

_T = torch.Tensor
#: Names by which NumPy calls arguments, which PyTorch takes too.
_NUMPYS = {"axis": "dim", "keepdims": "keepdim", "axis0": "dim0", "axis1": "dim1"}


def takes_grown(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a tensor whose length is known only at run time is among arguments, or a size that is: none is of functions that are not
    in :data:`SIZED` as long as the session knows of no such tensor."""
    sized = func in SIZED
    given = leaves((args, kwargs))
    return any(isinstance(x, Grown) or (scalars.is_symbolic(x) and may_be_size(x, sized)) or (sized and is_size(x)) for x in given)


def with_known(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return arguments, with plain shapes and numbers where the length is known at the place at hand."""
    if not any(map(_is_settled, leaves((args, kwargs)))):
        return args, kwargs
    return map_leaves(_settled, args), map_leaves(_settled, kwargs)


def call_on_grown(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of PyTorch on tensors that grow, or with lengths as sizes; NotImplemented if it is a call like any other."""
    found = [t for t in tensors_of(args, kwargs) if isinstance(t, Grown)]
    handler = HANDLERS.get(func) or _rule_of(func) if found else SIZED.get(func) or _OF_SIZES.get(func)
    if handler is not None and handler is not elementwise:
        args, kwargs = by_position(func, args, {_NUMPYS.get(name, name): x for name, x in kwargs.items()})
        handler = handler if takes(handler, (func, *args), kwargs) else None
    if handler is not None:
        run = functools.partial(handler, func, *args, **kwargs)
        if (func in MATH or func in ORDER or func in PLACES or is_elementwise(func)) and current().handlers:
            return called(func, map_tensors(buffer_of, args), map_tensors(buffer_of, kwargs), run)
        return run()
    return found[0].refuse(f"{getattr(func, '__name__', func)}() is not supported of") if found else NotImplemented


def has_rule(func: Any) -> bool:
    """Whether it is known what a function does with tensors whose length is known only at run time."""
    return func in HANDLERS or func in SIZED or _rule_of(func) is not None


def _rule_of(func: Any) -> Handler | None:
    """Return how to call a function that has no handler of its own, as PyTorch says what it is; None if that is not known."""
    if is_elementwise(func):
        return elementwise
    if functional_of(func) is not None:
        return _in_place
    body = substitute_of(func) if isinstance(func, OPERATORS) else body_of(func)
    return None if body is None else composed(body)


def _in_place(func: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Change a tensor to what another function gives anew."""
    check_overlap(x, (args, kwargs), itself=is_elementwise(functional_of(func)))
    made = call_on_grown(functional_of(func), (x, *args), kwargs)
    if not isinstance(made, torch.Tensor) or not torch.can_cast(dtype_of(made), dtype_of(x)):
        return refuse_call(func, x, args, kwargs)
    return _copied(func, x, made)


def _turned(func: Any, t: Grown, *args: Any, **kwargs: Any) -> Any:
    """Change the shape of a tensor in place: it becomes the view that another function gives."""
    view = call_on_grown(getattr(_T, func.__name__[:-1]), (t, *args), kwargs)
    if not isinstance(view, Grown) or view.storage_ is not t.storage_ or t.settled() is not t:
        return refuse_call(func, t, args, kwargs)
    check_shape_undoable(t.storage_)
    t.become(view)
    return t


def _copied(func: Any, x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    """Change all that there is of a tensor to what is in another."""
    check_overlap(x, source)
    if isinstance(x, Grown):
        return put_all(func, x, source)
    if not isinstance(source, Grown):
        return x.copy_(source)
    agreed = broadcast([x, source])
    if agreed is None or rank_of(source) > x.dim() or any(n != x.shape[-from_end] for from_end, n in agreed[1].items()):
        return refuse_call(func, source)
    return x.copy_(agreed[0][id(source)])


def _filled_with(func: Any, t: Grown, value: Any = 0) -> Any:
    return put_all(func, t, cut(torch.full_like(t.padded(), value), t.lengths))


def _is_settled(x: Any) -> bool:
    length = x.node.length if scalars.is_symbolic(x) else None
    return any(n.settled is not None for n in (x.lengths.values() if isinstance(x, Grown) else () if length is None else (length,)))


def _settled(x: Any) -> Any:
    """Return what has a plain shape, or is a plain number, where the number of trips is known."""
    return x if not _is_settled(x) else x.settled() if isinstance(x, Grown) else x.node.length.settled


# -- questions ------------------------------------------------------------------------------------------------------------
def _size(func: Any, t: Grown, dim: int | None = None) -> Any:
    sizes = t.sizes()
    return torch.Size(sizes) if dim is None else sizes[dim]


def _where(func: Any, *args: Any, **kwargs: Any) -> Any:
    if len(args) == 1 and not kwargs:
        return nonzero(torch.nonzero, args[0], as_tuple=True)
    return elementwise(func, *args, **kwargs) if len(args) + len(kwargs) > 2 else refuse_call(func, *args)


def _numel(func: Any, t: Grown) -> Any:
    return math.prod(n for d, n in enumerate(t.buffer.shape) if d not in t.lengths) * multiplied(t.lengths.values())


def _of_buffer(func: Any, t: Grown, *args: Any, **kwargs: Any) -> Any:
    return func(t.padded(), *args, **kwargs)


def _of_type(func: Any, t: Grown, *args: Any, **kwargs: Any) -> Any:
    """Call what asks a tensor for its type alone."""
    with current().functions:
        return func(t.padded(), *args, **kwargs)


_PROPERTIES = ("dtype", "device", "layout", "requires_grad", "is_cuda", "is_sparse", "is_quantized", "is_nested", "is_meta", "ndim")


HANDLERS: dict[Any, Handler] = {
    **MATH,
    **ORDER,
    **PLACES,
    **COMPOSED,
    **DIAGONALS,
    **MEMORY,
    **MEASURES,
    **PRODUCTS,
    **RESHAPE,
    **LAYERS,
    **IMAGES,
    **POOLING,
    **ROWS,
    **RECURRENT,
    **QUANTIZED,
    **BOUND,
    **dict.fromkeys([getattr(_T, name).__get__ for name in _PROPERTIES], _of_buffer),
    **dict.fromkeys(named("dim ndimension is_floating_point is_complex element_size get_device", _T), _of_buffer),
    **dict.fromkeys([torch.is_floating_point, torch.is_complex], _of_buffer),
    **dict.fromkeys([_T.new_tensor, _T.new], _of_type),  # type: ignore[attr-defined]
    _T.shape.__get__: _size,  # type: ignore[attr-defined]
    _T.size: _size,
    _T.__len__: lambda func, t: _size(func, t, 0),
    **dict.fromkeys([_T.numel, _T.nelement, torch.numel], _numel),
    _T.__getitem__: indexed,
    _T.__setitem__: assigned,
    **dict.fromkeys([torch.where, _T.where], _where),
    **dict.fromkeys([_T.nonzero, torch.nonzero], nonzero),
    torch.argwhere: nonzero,
    **dict.fromkeys([_T.masked_select, torch.masked_select], masked_select),
    **dict.fromkeys([_T.masked_scatter, torch.masked_scatter], masked_scatter),
    **dict.fromkeys([torch.cat, torch.concat, torch.concatenate], cat),
    torch.stack: stack,
    torch._C._nn.pad_sequence: pad_sequence,
    **dict.fromkeys([_T.unbind, torch.unbind], unbind),
    **dict.fromkeys([_T.squeeze, torch.squeeze], squeeze),
    **dict.fromkeys(named("squeeze_ unsqueeze_ transpose_ swapaxes_ swapdims_ t_", _T), _turned),
    _T.item: one_item,
    **dict.fromkeys(named("split split_with_sizes unsafe_split unsafe_split_with_sizes", _T, torch), parts),
    **dict.fromkeys(named("chunk unsafe_chunk", _T, torch), chunk),
    _T.copy_: _copied,
    **dict.fromkeys([_T.fill_, _T.zero_], _filled_with),
    _T.__iter__: iterated,
    _T.tolist: to_list,
    **dict.fromkeys(named("transpose swapaxes swapdims", _T, torch), transpose),
    **dict.fromkeys([_T.mT.__get__, _T.mH.__get__, _T.adjoint, torch.adjoint], transpose),  # type: ignore[attr-defined]
    **dict.fromkeys([_T.t, torch.t, _T.T.__get__, _T.H.__get__], matrix_transpose),  # type: ignore[attr-defined]
    **dict.fromkeys(named("select", _T, torch), selected_by),
    **dict.fromkeys(named("narrow", _T, torch), narrowed),
    **dict.fromkeys([torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like], like),
    **dict.fromkeys([_T.permute, torch.permute], permute),
    **dict.fromkeys([torch.view_as_complex, torch.view_as_real], with_parts),
    **dict.fromkeys([_T.unsqueeze, torch.unsqueeze], unsqueeze),
    **dict.fromkeys([_T.expand, _T.broadcast_to, torch.broadcast_to], expand),
    **dict.fromkeys([_T.new_ones, _T.new_zeros, _T.new_full, _T.new_empty], full),
}
#: Functions that take sizes, of tensors that do not grow.
SIZED: dict[Any, Handler] = {
    **DRAWS,
    **MADE,
    **POOLS,
    **GRIDS,
    **RESIZE,
    **SHAPES,
    torch.arange: arange,
    torch.linspace: linspace,
    **dict.fromkeys([torch.topk, _T.topk], topk),
    **dict.fromkeys([torch.ones, torch.zeros, torch.full, torch.empty, _T.new_ones, _T.new_zeros, _T.new_full, _T.new_empty], full),
    **dict.fromkeys([_T.expand, _T.broadcast_to], expand),
    **dict.fromkeys([F.pad, torch._C._nn.pad], pad_plain),
    **dict.fromkeys([_T.repeat, torch.tile, _T.tile], repeat),
}
#: Functions of lengths and of tensors of rank 0 that may be computed of lengths.
_OF_SIZES: dict[Any, Handler] = {
    **dict.fromkeys([*ADDITIONS, *SUBTRACTIONS], sum_with_size),
    **dict.fromkeys(DIVISIONS, size_divided),
    **dict.fromkeys(COMPARISONS, compared_with_size),
}
