# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators of ATen that a program calls by themselves, as the functions of PyTorch that call them.

What is known of tensors whose length is known only at run time is known of those functions. An exported program consists of operators.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch._ops import OpOverload

from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.arguments import leaves
from dycl_tvm.frontend.trace.values.grown import Grown
from dycl_tvm.frontend.trace.values.missing import UNTAGGED
from dycl_tvm.frontend.trace.values.tensors import op_name

_T = torch.Tensor
_BUILTIN = (type(torch.sum), type(_T.sum), type(_T.__add__))
#: Arguments that say where a result lies, and by which library it is computed: nothing that counts for an artefact.
_UNREAD = frozenset(("device", "layout", "pin_memory", "non_blocking", "memory_format", "cudnn_enable", "cudnn_enabled", "implicit"))
#: Names of arguments that the function has another name for.
_RENAMED = {"self": "input", "train": "training"}
#: Operators whose attribute of tensors has another name.
_ATTRIBUTES = {"numpy_T": "T", "matrix_H": "H"}
#: The end of a slice that has none.
_NO_END = 2**63 - 1


def call_by_function(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], known: Callable[[Any], bool]) -> Any:
    """Call an operator as the function that it is of; NotImplemented where it may be called itself, or no function is known.

    Parameters
    ----------
    func, args, kwargs : OpOverload, tuple, dict
    known : callable
        Whether there is a rule for a function on tensors of run-time length.
    """
    given = leaves((args, kwargs))
    if not any(isinstance(x, Grown) or scalars.is_symbolic(x) for x in given) and not _has_a_length(func, args):
        return NotImplemented
    function = _WRITTEN.get(func.overloadpacket)
    if function is None:
        function = _builtin_of(func, known)
    if function is None:
        return NotImplemented
    with current().functions:
        made = function(*args, **kwargs)
    # a function may give one of the results only
    return NotImplemented if isinstance(made, torch.Tensor) and len(func._schema.returns) != 1 else made


def _has_a_length(func: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether how long a result is depends on the values."""
    if func.overloadpacket is torch.ops.aten.index:
        return any(isinstance(t, torch.Tensor) and t.dtype in (torch.bool, torch.uint8) for t in args[1])
    return torch.Tag.dynamic_output_shape in func.tags or op_name(func).rpartition(".")[0] in UNTAGGED


def _builtin_of(func: OpOverload, known: Callable[[Any], bool]) -> Callable[..., Any] | None:
    """Return what calls the function of PyTorch that has an operator's name: arguments have one order there, or one name."""
    name = func._schema.name.partition("::")[2]
    holders = (torch, _T, torch._C._nn, torch.special, torch.linalg)
    found = [getattr(h, n, None) for h in holders for n in (name, f"__{name.strip('_')}__")]
    for function in found:
        if isinstance(function, _BUILTIN) and known(function):
            return functools.partial(_by_order, func, function)
    attribute = getattr(_T, _ATTRIBUTES.get(name, name), None)
    if inspect.isgetsetdescriptor(attribute) and known(attribute.__get__):
        return attribute.__get__
    if name.endswith("_"):
        given = next((f for h in holders if isinstance(f := getattr(h, name[:-1], None), _BUILTIN) and known(f)), None)
        return None if given is None else functools.partial(_in_place, func, given)
    function = getattr(F, name, None)
    return functools.partial(_by_name, func, function) if function is not None and known(function) else None


def _by_order(func: OpOverload, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function that PyTorch generates from the operator's schema."""
    return function(*args, **{k: x for k, x in kwargs.items() if k not in _UNREAD})


def _in_place(func: OpOverload, function: Any, t: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function that gives anew what the operator leaves in the tensor."""
    return t.copy_(_by_order(func, function, t, *args, **kwargs))


def _by_name(func: OpOverload, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function in Python, whose arguments stand in an order of its own."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):  # it picks one of two by an argument, and has the operator's order
        return function(*args, **kwargs)
    named = {a.name: x for a, x in zip(func._schema.arguments, args)} | kwargs
    given = {_RENAMED.get(k, k): x for k, x in named.items() if k not in _UNREAD}
    if not set(given) <= set(parameters):
        return NotImplemented
    return function(given.pop("input"), **given)


class KeptForGradients(OwnValue):
    """A result that counts for gradients only, and is not computed: no operator takes it, and a program that returns it is refused."""


# -- operators without a function of their name, or with another order -------------------------------------------------------
def _slice(t: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    end = None if isinstance(end, int) and end >= _NO_END else end
    where = (*[slice(None)] * (dim % t.dim()), slice(start, end, step))
    return t[where]


def _index(t: Any, indices: Any) -> Any:
    return t[tuple(slice(None) if i is None else i for i in indices)]


def _embedding(weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: Any = False, sparse: bool = False) -> Any:
    return F.embedding(indices, weight)


def _clone(t: Any, *, memory_format: Any = None) -> Any:
    return (t.contiguous() if memory_format is torch.contiguous_format else t).clone()


def _copy(t: Any, source: Any, non_blocking: bool = False) -> Any:
    return source.to(t.dtype).expand(t.size()).clone()


def _of_all(func: Any) -> Callable[..., Any]:
    """Return a reduction for which no dimensions are all of them."""

    def reduced(t: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
        if isinstance(dim, (list, tuple)) and not dim:
            dim = None if not keepdim else list(range(t.dim()))
        return func(t, **kwargs) if dim is None else func(t, dim, keepdim, **kwargs)

    return reduced


def _convolution(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> Any:
    rank = len(stride)
    if transposed:
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
        return function(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return (F.conv1d, F.conv2d, F.conv3d)[rank - 1](x, weight, bias, stride, padding, dilation, groups)


def _batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    return F.batch_norm(x, mean, var, weight, bias, False, momentum, eps), KeptForGradients(), KeptForGradients()


def _layer_norm(t: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return F.layer_norm(t, shape, weight, bias, eps), KeptForGradients(), KeptForGradients()


def _group_norm(t: Any, weight: Any, bias: Any, rows: Any, channels: Any, size: Any, groups: int, eps: float) -> Any:
    return F.group_norm(t, groups, weight, bias, eps), KeptForGradients(), KeptForGradients()


def _norm_of_this_batch(t: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    """Normalise by the batch itself; of one row, which is what the exporter makes of an instance norm, each channel by itself."""
    if len(rest) != 3 or rest[0] is not True or type(t.shape[0]) is not int or t.shape[0] != 1:
        return NotImplemented
    return F.instance_norm(t, None, None, weight, bias, True, *rest[1:]), KeptForGradients(), KeptForGradients()


def _upsampled(mode: str, aligns: bool) -> Callable[..., Any]:
    """Return what resizes to sizes, or by factors: where an operator has both, it computes with factors that are not those of the sizes."""

    def upsampled(t: Any, size: Any, *rest: Any, **named: Any) -> Any:
        align = {"align_corners": rest[0]} if aligns and rest else {}
        factors = [f for f in (*rest[len(align) :], *named.values()) if f is not None]
        if (aligns and not align) or len(factors) + (size is not None) != 1 or (factors and not isinstance(factors[0], (tuple, list))):
            return NotImplemented
        return F.interpolate(t, None if size is None else list(size), list(factors[0]) if factors else None, mode, **align)

    return upsampled


def _with_places(func: Any) -> Callable[..., Any]:
    """Return the largest elements, beside which an operator gives their places."""
    return lambda *args: (func(*args), KeptForGradients())


def _spread(func: Any) -> Callable[..., Any]:
    """Return a variance or its root, whose correction an operator may have as a float."""

    def spread(t: Any, *args: Any, correction: Any = None, **kwargs: Any) -> Any:
        if correction is None:
            return func(t, *args, **kwargs)
        return func(t, *args, correction=int(correction) if correction == int(correction) else correction, **kwargs)

    return spread


def _to_copy(t: Any, *, dtype: Any = None, **_where: Any) -> Any:
    return t.clone() if dtype is None else t.to(dtype, copy=True)


def _to(t: Any, *how: Any, **named: Any) -> Any:
    given = [*how, *named.values()]
    found = [x if isinstance(x, torch.dtype) else x.dtype for x in given if isinstance(x, (torch.dtype, torch.Tensor))]
    flags = [x for x in how if type(x) is bool]  # non_blocking, copy
    return t.to(found[0] if found else t.dtype, copy=named.get("copy", flags[1] if len(flags) > 1 else False))


def _unique2(t: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
    made = torch.unique(t, sorted, return_inverse, return_counts)
    parts = iter(made if isinstance(made, tuple) else (made,))
    return tuple(next(parts) if there else None for there in (True, return_inverse, return_counts))


_aten = torch.ops.aten
_WRITTEN: dict[Any, Callable[..., Any]] = {
    _aten.slice: _slice,
    _aten.index: _index,
    _aten.embedding: _embedding,
    _aten.clone: _clone,
    _aten.copy: _copy,
    _aten.sum: _of_all(torch.sum),
    _aten.mean: _of_all(torch.mean),
    _aten.amax: _of_all(torch.amax),
    _aten.amin: _of_all(torch.amin),
    _aten.convolution: _convolution,
    _aten._native_batch_norm_legit_no_training: _batch_norm,
    _aten.max_pool2d_with_indices: _with_places(F.max_pool2d),
    _aten.max_pool3d_with_indices: _with_places(F.max_pool3d),
    **{getattr(_aten, f"adaptive_max_pool{n}d"): _with_places(getattr(F, f"adaptive_max_pool{n}d")) for n in (1, 2, 3)},
    _aten._adaptive_avg_pool2d: F.adaptive_avg_pool2d,
    _aten._adaptive_avg_pool3d: F.adaptive_avg_pool3d,
    _aten.native_layer_norm: _layer_norm,
    _aten.constant_pad_nd: lambda t, pad, value=0: F.pad(t, pad, "constant", value),
    _aten.native_group_norm: _group_norm,
    _aten._native_batch_norm_legit: _norm_of_this_batch,
    **{getattr(_aten, f"upsample_nearest{n}d"): _upsampled("nearest", False) for n in (1, 2, 3)},
    **{getattr(_aten, f"_upsample_nearest_exact{n}d"): _upsampled("nearest-exact", False) for n in (1, 2, 3)},
    **{getattr(_aten, f"upsample_{mode}{n}d"): _upsampled(mode, True) for mode, n in (("linear", 1), ("bilinear", 2), ("bicubic", 2))},
    _aten.upsample_trilinear3d: _upsampled("trilinear", True),
    _aten.var: _spread(torch.var),
    _aten.std: _spread(torch.std),
    _aten._to_copy: _to_copy,
    _aten.to: _to,
    _aten._unique2: _unique2,
    _aten.linalg_vector_norm: torch.linalg.vector_norm,
    _aten.split: torch.split,
    _aten.einsum: lambda equation, tensors, path=None: torch.einsum(equation, *tensors),
    _aten.sym_size: lambda t, dim=None: t.size() if dim is None else t.size(dim),
    _aten.sym_numel: lambda t: t.numel(),
    _aten.alias: lambda t: t,
    _aten._softmax: lambda t, dim, half_to_float: torch.softmax(t, dim),
    _aten._log_softmax: lambda t, dim, half_to_float: torch.log_softmax(t, dim),
    _aten._unsafe_view: lambda t, size: t.reshape(size),
}
