# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators that move elements, choose among them, or are made of sums: they do to each part what they do to real tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.compile.complex.pair import COMPLEX, Pair, complex_operator, pair_of, parts_of

_MOVES = (
    *("alias.default", "alias_copy.default", "as_strided_copy.default", "cat.default", "clone.default", "constant_pad_nd.default"),
    *("copy.default", "cumsum.default", "detach.default", "diag_embed.default", "diagonal.default", "diagonal_copy.default"),
    *("diagonal_scatter.default", "expand.default", "expand_copy.default", "fill.Scalar", "fill.Tensor", "flip.default"),
    *("gather.default", "index.Tensor", "_unsafe_index.Tensor", "index_add.default", "index_copy.default", "index_put.default"),
    *("_unsafe_index_put.default", "index_fill.int_Scalar", "index_fill.int_Tensor", "index_select.default"),
    *("lift_fresh.default", "lift_fresh_copy.default", "masked_fill.Scalar", "masked_fill.Tensor", "masked_scatter.default"),
    *("permute.default", "permute_copy.default", "reflection_pad1d.default", "reflection_pad2d.default", "replication_pad1d.default"),
    *("replication_pad2d.default", "repeat.default", "reshape.default", "roll.default", "scatter.src", "scatter.value"),
    *("scatter_add.default", "select.int", "select_copy.int", "select_scatter.default", "slice.Tensor", "slice_copy.Tensor"),
    *(
        "slice_scatter.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "squeeze_copy.default",
        "squeeze_copy.dim",
        "squeeze_copy.dims",
    ),
    *("stack.default", "sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "t.default", "t_copy.default", "take.default"),
    *("trace.default", "transpose.int", "transpose_copy.int", "tril.default", "triu.default", "unfold.default", "unfold_copy.default"),
    *(
        "unfold_backward.default",
        "unsqueeze.default",
        "unsqueeze_copy.default",
        "view.default",
        "view_copy.default",
        "_unsafe_view.default",
    ),
    *(
        "where.self",
        "where.ScalarOther",
        "where.ScalarSelf",
        "where.Scalar",
        "rot90.default",
        "put.default",
        "col2im.default",
        "im2col.default",
    ),
)


#: Arguments that are values, and not masks, indices or sizes: real ones have an imaginary part of zero.
_VALUES = {"self", "tensors", "value", "src", "source", "other", "fill_value", "values", "grad_in"}


def _overload(name: str) -> Any:
    packet, _, which = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), which)


def _of_each(name: str) -> Callable[..., Any]:
    op = _overload(name)
    names = [a.name for a in op._schema.arguments]

    def part(given: Any, which: str) -> Any:
        if isinstance(given, (list, tuple)):
            return [part(g, which) for g in given]
        return getattr(pair_of(given), which)

    def apply(*args: Any, **kwargs: Any) -> Pair:
        kwargs.pop("dtype", None)  # the result is fitted to it
        made = []
        for which in ("re", "im"):
            one = [part(a, which) if names[k] in _VALUES else a for k, a in enumerate(args)]
            made.append(op(*one, **{k: part(v, which) if k in _VALUES else v for k, v in kwargs.items()}))
        return Pair(*made)

    return apply


COMPLEX.update({f"aten.{name}": _of_each(name) for name in _MOVES if hasattr(torch.ops.aten, name.partition(".")[0])})


def _parted(name: str) -> None:
    op = _overload(name)
    COMPLEX[f"aten.{name}"] = lambda x, *args: [Pair(re, im) for re, im in zip(op(x.re, *args), op(x.im, *args))]


for _name in (
    "split_copy.Tensor",
    "split_with_sizes_copy.default",
    "unbind_copy.int",
    "unsafe_split.Tensor",
    "unsafe_split_with_sizes.default",
):
    _parted(_name)


def _filled(name: str, number: Any) -> None:
    def like(x: Any, *rest: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
        base = x.re if isinstance(x, Pair) else x
        shape = rest[0] if name.startswith("new_") else base.shape
        value = pair_of(rest[-1] if number is None else number)
        if dtype is not None and not dtype.is_complex:
            return torch.full(shape, value.re, dtype=dtype)
        parts = torch.float64 if dtype == torch.complex128 else base.dtype if dtype is None else torch.float32
        return value.map(lambda v: torch.full(shape, v, dtype=parts))

    COMPLEX[f"aten.{name}.default"] = like


for _name, _number in (("zeros_like", 0), ("new_zeros", 0), ("ones_like", 1), ("new_ones", 1), ("full_like", None), ("new_full", None)):
    _filled(_name, _number)
for _name in ("empty_like", "new_empty"):
    _filled(_name, 0)


@complex_operator("scalar_tensor.default")
def _scalar_tensor(value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Pair:
    return _full([], value, dtype=dtype)


@complex_operator("full.default")
def _full(size: Any, value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Pair:
    parts = torch.get_default_dtype() if dtype is None else parts_of(dtype)
    return pair_of(value).map(lambda v: torch.full(size, v, dtype=parts))
