# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of tensors whose lengths are known only at run time, and attention, which is made of them.

Rows, columns and a batch are computed each by itself; what lies behind the length of a dimension that is summed over is masked.
"""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.trace.session import apart, current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import broadcast, equalized_buffers, extent_at, fitted, is_same
from dycl_tvm.frontend.trace.values.extents import Extent, as_number, bounds_of
from dycl_tvm.frontend.trace.values.grown import Grown, cut, number, rank_of
from dycl_tvm.frontend.trace.values.grown_math import Handler, buffer_of, by_rows, filled, is_contiguous, masked, new_in, refuse_call, valid
from dycl_tvm.frontend.trace.values.grown_rules import named
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.layouts import layouts_of
from dycl_tvm.frontend.trace.values.lengths import Length

_T = torch.Tensor


def _lengths(t: torch.Tensor) -> dict[int, Length]:
    """Return the lengths of a tensor that are known only at run time, by their dimensions from the end."""
    return {t.dim_() - d: n for d, n in t.lengths.items()} if isinstance(t, Grown) else {}


def matmul(func: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    """Multiply matrices, or batches of them."""
    if min(rank_of(a), rank_of(b)) < 1:
        return refuse_call(func, a, b)
    if rank_of(a) < 2 or rank_of(b) < 2:
        return _of_vectors(func, a, b)
    a, b = [t.clone(memory_format=torch.contiguous_format) if layouts_of(t) is not None else t for t in (a, b)]
    lengths: dict[int, Extent] = {}
    if any(from_end > 2 for t in (a, b) for from_end in _lengths(t)):
        agreed = _of_batch(func, a, b)
        if agreed is None:
            return refuse_call(func, a, b)
        a, b, lengths = agreed
    in_a, in_b = _lengths(a), _lengths(b)
    left, right = buffer_of(a), buffer_of(b)
    if 1 in in_a or 2 in in_b:
        (left, right), length = equalized_buffers([a, b], [rank_of(a) - 1, rank_of(b) - 2])
        if isinstance(length, Length):
            left, right = masked(left, left.dim() - 1, length, 0), masked(right, right.dim() - 2, length, 0)
    lengths |= {2: in_a[2]} if 2 in in_a else {}
    lengths |= {1: in_b[1]} if 1 in in_b else {}
    made = func(left, right)
    return new_in(made, {made.dim() - from_end: n for from_end, n in lengths.items()})


def _of_batch(func: Any, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[int, Extent]] | None:
    """Return matrices of a batch of a fixed size, and how many there are in each of its dimensions."""
    if func in (torch.bmm, _T.bmm):
        buffers, length = equalized_buffers([a, b], [0, 0])
        inner = [{d: n for d, n in t.lengths.items() if d} if isinstance(t, Grown) else {} for t in (a, b)]
        a, b = [cut(t, of) if of else t for t, of in zip(buffers, inner)]
        return a, b, {3: length}
    agreed = broadcast([a, b], beyond=2)
    return None if agreed is None else (agreed[0].get(id(a), a), agreed[0].get(id(b), b), agreed[1])


def _of_vectors(func: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    """Multiply where one is a vector: a row in front, a column behind."""
    with current().functions:
        row, column = rank_of(a) == 1, rank_of(b) == 1
        made = torch.matmul(a[None] if row else a, b[:, None] if column else b)
        made = made.squeeze(-1) if column else made
        return made.squeeze(-1 if column else -2) if row else made


def linear(func: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """Multiply rows by a matrix, of which the run may say how many rows or columns it has."""
    if isinstance(x, Grown) and rank_of(x) - 1 not in x.lengths and not isinstance(weight, Grown) and not isinstance(bias, Grown):
        return by_rows(func, x, 1, weight, bias)
    if rank_of(weight) != 2 or not (bias is None or is_same(extent_at(bias, 1), extent_at(weight, 2))):
        return refuse_call(func, x, weight, bias)
    with current().functions:
        made = torch.matmul(x, weight.mT)
        return made if bias is None else made + bias


def grouped(func: Any, a: torch.Tensor, b: torch.Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Multiply groups of rows by a matrix each: behind the last row there is no group."""
    if not isinstance(a, Grown) or not a.contiguous_ or list(a.lengths) != [0] or isinstance(b, Grown) or isinstance(offs, Grown):
        return refuse_call(func, a, b)
    made = func(a.padded(), b, offs=offs, bias=bias, out_dtype=out_dtype)
    return new_in(made, a.lengths, is_contiguous(made))


def einsum(func: Any, equation: Any, *operands: Any) -> Any:
    """Multiply and sum by letters, of which some stand for dimensions whose lengths are known only at run time."""
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    tensors: list[torch.Tensor] = list(given)
    found = next(t for t in tensors if isinstance(t, Grown))
    written = _written_out(equation, list(map(rank_of, tensors))) if isinstance(equation, str) else None
    if written is None:
        return refuse_call(func, found)
    terms, output = written
    equation = f"{','.join(terms)}->{output}"
    lengths: dict[int, Extent] = {}
    wholes = [buffer_of(t) for t in tensors]
    for letter in dict.fromkeys(term[d] for term, t in zip(terms, tensors) if isinstance(t, Grown) for d in t.lengths):
        having = [k for k, term in enumerate(terms) if letter in term]
        if any(terms[k].count(letter) > 1 for k in having):
            return refuse_call(func, found)
        along = {k: terms[k].index(letter) for k in having}
        sizes = [extent_at(tensors[k], rank_of(tensors[k]) - along[k]) for k in having]
        if any(not is_same(n, sizes[0]) and min(bounds_of(n)[0], bounds_of(sizes[0])[0]) < 2 for n in sizes):  # type: ignore[arg-type]
            return refuse_call(func, found)  # one element is spread over the others
        _, length = equalized_buffers([tensors[k] for k in having], list(along.values()))
        for k in having:
            whole = fitted(wholes[k], along[k], bounds_of(length)[1])
            kept = letter in output or isinstance(length, int)
            wholes[k] = whole if kept else masked(whole, along[k], length, 0)  # type: ignore[arg-type]  # it is no int
        if letter in output:
            lengths[output.index(letter)] = length
    return new_in(func(equation, *wholes), lengths, _is_made_in_order(equation, terms, tensors))


def _written_out(equation: str, ranks: Sequence[int]) -> tuple[list[str], str] | None:
    """Return the letters of operands and of the result, with some for an ellipsis; None for what PyTorch does not read so."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(ranks) or any(term.count("...") > 1 for term in (*terms, output)):
        return None
    left = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks)]
    if any(n < 0 or (n and "..." not in term) for term, n in zip(terms, left)):
        return None
    letters = [c for c in string.ascii_letters if c not in equation]
    most = max(left)
    if not arrow:
        own = inputs.replace(",", "").replace(".", "")
        output = "..." + "".join(sorted(c for c in own if own.count(c) == 1))
    if most > len(letters):
        return None
    terms = [term.replace("...", "".join(letters[most - n : most])) for term, n in zip(terms, left)]
    return terms, output.replace("...", "".join(letters[:most]))


def _is_made_in_order(equation: str, terms: list[str], tensors: list[torch.Tensor]) -> bool:
    """Whether PyTorch leaves what it multiplies by letters in order, also at lengths of one: that is tried with few elements."""
    orders = [t.order if isinstance(t, Grown) else tuple(range(t.dim())) if is_contiguous(t) else None for t in tensors]
    if len(tensors) > 2 or None in orders:  # in which order several are multiplied follows from their sizes
        return False
    least: dict[str, int] = {}
    for term, t in zip(terms, tensors):
        least |= {c: min(bounds_of(extent_at(t, rank_of(t) - d))[0], least.get(c, 2)) for d, c in enumerate(term)}  # type: ignore[arg-type]
    for more in itertools.product(*[(1, 2 + k) if n < 2 else (2 + k,) for k, n in enumerate(least.values())]):
        size = dict(zip(least, more))
        with apart(), plainly():
            few = []
            for term, order in zip(terms, orders):
                made = torch.zeros([size[term[d]] for d in order])  # type: ignore[union-attr]  # none is None
                few.append(made.permute([order.index(d) for d in range(len(term))]))  # type: ignore[union-attr]
            if not torch.einsum(equation, *few).is_contiguous():
                return False
    return True


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
    """Attention over keys and values: those that there are not are masked. Queries are rows by themselves, and so is a batch."""
    tensors = [query, key, value, *([] if attn_mask is None else [attn_mask])]
    if dropout_p:
        return refuse_call(func, *tensors)
    if attn_mask is not None and (scalars.is_symbolic(is_causal) or is_causal):
        require(scalars.select(is_causal, False, True), RuntimeError("Explicit attn_mask should not be set when is_causal=True"))
        is_causal = False
    if not any(from_end > 2 for t in tensors for from_end in _lengths(t)):
        return _attention(func, query, key, value, attn_mask, is_causal, kwargs)
    agreed = broadcast(tensors, beyond=2)
    if agreed is None or (kwargs.get("enable_gqa") and 3 in agreed[1]):  # heads are repeated
        return refuse_call(func, *tensors)
    buffers, extents = agreed
    query, key, value, *mask = [buffers.get(id(t), t) for t in tensors]
    if any(isinstance(t, Grown) for t in (query, key, value, *mask)):
        made = _attention(func, query, key, value, mask[0] if mask else None, is_causal, kwargs)
    else:
        made = func(query, key, value, mask[0] if mask else None, 0.0, is_causal, **kwargs)
    lengths = {rank_of(made) - from_end: n for from_end, n in extents.items() if isinstance(n, Length)}
    result = cut(buffer_of(made), lengths | (made.lengths if isinstance(made, Grown) else {}))
    if isinstance(result, Grown) and result.dim_() == 4:
        result.orders = ((0, 1, 2, 3), (0, 2, 1, 3))  # PyTorch has kernels of both kinds
    return result


def _attention(
    func: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    kwargs: dict[str, Any],
) -> Any:
    """Attention of a batch of fixed size, whose queries, or keys, have a length."""
    rows, columns, of_values = [_lengths(t) for t in (query, key, value)]
    if any(set(n) - {2} for n in (rows, columns, of_values)) or set(columns) != set(of_values):
        return refuse_call(func, query, key, value, mask)
    if columns and columns[2].bounds[0] < 1 and buffer_of(key).shape[:-2] != buffer_of(query).shape[:-2]:
        _check_spread(func, query, key, value, is_causal, kwargs)
    if is_causal and (not rows or not columns or not is_same(rows[2], columns[2])):
        return refuse_call(func, query, key, value, mask)
    if mask is not None and not (_is_aligned(mask, 2, rows.get(2)) and _is_aligned(mask, 1, columns.get(2))):
        mask = _spread_to(func, mask, [extent_at(query, 2), extent_at(key, 2)])  # type: ignore[list-item]  # both have two dimensions
    given: torch.Tensor = filled(query, 0) if isinstance(query, Grown) else query
    whole = None if mask is None else buffer_of(mask)
    if mask is not None and whole is not None and 2 in _lengths(mask):
        whole = fitted(whole, whole.dim() - 2, int(given.shape[-2]))
    if not columns:
        made = func(given, key, value, whole, 0.0, False, **kwargs)
        return cut(made, {query.dim_() - 2: rows[2]}) if isinstance(query, Grown) else made
    wholes, length = equalized_buffers([key, value], [rank_of(key) - 2, rank_of(value) - 2])
    assert isinstance(length, Length)
    keys, values = [masked(t, t.dim() - 2, length, 0) for t in wholes]
    size = int(keys.shape[-2])
    there = valid(length, size, 2, 1)
    if mask is None or whole is None:
        there = there.expand(given.shape[-2], size)
    else:
        whole = fitted(whole, whole.dim() - 1, size) if 1 in _lengths(mask) else whole
        there = there & whole if whole.dtype == torch.bool else torch.where(there, whole, torch.full((), -math.inf, dtype=whole.dtype))
    if is_causal:
        there = there & (torch.arange(size) <= torch.arange(int(given.shape[-2]))[:, None])
    made = func(given, keys, values, there, 0.0, False, **kwargs)
    return cut(made, {query.dim_() - 2: rows[2]}) if isinstance(query, Grown) else made


def _spread_to(func: Any, mask: torch.Tensor, sizes: list[Extent]) -> torch.Tensor:
    """Return a mask that is as large as queries and keys are, or has one element for all; another is an error at run time."""
    like = new_in(torch.zeros([bounds_of(n)[1] for n in sizes], dtype=torch.bool), dict(enumerate(sizes)))
    agreed = broadcast([mask, like])
    if agreed is None:
        return refuse_call(func, mask, like)  # type: ignore[no-any-return]
    whole, lengths = agreed[0].get(id(mask), mask), {}
    for from_end, own in zip((2, 1), sizes):
        found = agreed[1].get(from_end, own)
        if not is_same(found, own):
            require(as_number(found) == as_number(own), RuntimeError("the mask of an attention must be as large as queries and keys are"))
        if rank_of(mask) >= from_end and extent_at(mask, from_end) != 1:
            lengths[whole.dim() - from_end] = own
    return new_in(whole, lengths)


def _is_aligned(mask: torch.Tensor, from_end: int, length: Length | None) -> bool:
    """Whether a mask has one element for all of a dimension, or one for each: where the dimension is as long as its buffer, any fits."""
    size = extent_at(mask, from_end)
    if length is None:
        return not isinstance(size, Length)
    return size in (None, 1) if not isinstance(size, Length) else is_same(size, length)


def _check_spread(func: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: Any, kwargs: dict[str, Any]) -> None:
    """Raise at run time what PyTorch raises of no keys that are spread over a batch, or over more heads."""
    shapes = [[0 if isinstance(t, Grown) and d in t.lengths else n for d, n in enumerate(buffer_of(t).shape)] for t in (query, key, value)]
    try:
        with apart(), plainly():
            func(*map(torch.zeros, shapes), is_causal=is_causal, **kwargs)
    except (RuntimeError, IndexError, ValueError) as error:
        require(number(_lengths(key)[2]) >= 1, type(error)(str(error)))


HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys([torch.matmul, _T.matmul, _T.__matmul__, torch.bmm, _T.bmm], matmul),
    F.linear: linear,
    torch.einsum: einsum,
    **dict.fromkeys(named("_grouped_mm", torch), grouped),
    F.scaled_dot_product_attention: attention,
}
