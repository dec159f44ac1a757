# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What has to be caught above ATen: methods that turn a tensor into a number, and what takes host scalars for indices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode

from dycl_tvm.errors import InternalError, UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.arrays import RunTimeArray, array_of, tensor_of
from dycl_tvm.frontend.trace.values.aten_functions import call_by_function
from dycl_tvm.frontend.trace.values.blame import judge, of_program
from dycl_tvm.frontend.trace.values.data_errors import called, refuse_if_caught
from dycl_tvm.frontend.trace.values.gpu_draws import call as call_on_gpu
from dycl_tvm.frontend.trace.values.gpu_draws import on_gpu
from dycl_tvm.frontend.trace.values.grown_calls import SIZED, call_on_grown, has_rule, takes_grown, with_known
from dycl_tvm.frontend.trace.values.grown_composed import composed, one_hot_of_classes
from dycl_tvm.frontend.trace.values.grown_order import bincount, repeat_interleave, unique, unique_consecutive
from dycl_tvm.frontend.trace.values.grown_rules import by_position
from dycl_tvm.frontend.trace.values.grown_splits import split
from dycl_tvm.frontend.trace.values.identity import change_role, is_joined, of_role, settle, settle_open_role
from dycl_tvm.frontend.trace.values.indexing import getitem, narrow, select, setitem
from dycl_tvm.frontend.trace.values.opaque import Address, Memory, is_set_to, offset_of
from dycl_tvm.frontend.trace.values.picked import masked_select, nonzero
from dycl_tvm.frontend.trace.values.random import gpu_dropout
from dycl_tvm.frontend.trace.values.recorder import dispatch, equal, item, to_tensor, truth_of, within
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, as_constant, storage_of
from dycl_tvm.frontend.trace.values.unsettled import attention, contiguous, reshape
from dycl_tvm.frontend.trace.values.vision import OPERATORS, substitute_of
from dycl_tvm.hcfg.nodes import Value

#: tolist() reads at most this many elements one by one.
TOLIST_LIMIT = 4096


class FunctionRecorder(TorchFunctionMode):
    """Replaces the functions of :data:`HANDLERS`; all others, and calls that those leave alone, go on to the recorder of operations."""

    def __init__(self) -> None:
        super().__init__()
        self._on_gpu = on_gpu()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one function of PyTorch."""
        session = current()
        try:
            if type(func) is OpOverload:
                made = call_by_function(func, tuple(args), kwargs or {}, has_rule)
                if made is not NotImplemented:
                    return made
            if (session.growing or func in SIZED) and takes_grown(func, args, kwargs or {}):
                args, kwargs = with_known(tuple(args), kwargs or {})
                made = call_on_grown(func, args, kwargs) if takes_grown(func, args, kwargs) else NotImplemented
                if made is not NotImplemented:
                    return made
            handler = HANDLERS.get(func)
            if handler is not None:
                given, named = by_position(func, tuple(args), kwargs or {})
                made = handler(*given, **named)
                if made is not NotImplemented:
                    return made
            function = (substitute_of(func) if isinstance(func, OPERATORS) else None) or func
            args, kwargs = tuple(args), kwargs or {}
            if self._on_gpu:
                run = functools.partial(call_on_gpu, function, _dropout, func, args, kwargs)
            else:
                run = functools.partial(function, *args, **kwargs)
            return called(func, args, kwargs, run) if session.handlers else run()
        except Exception as error:
            ours = judge(error, func, tuple(args), kwargs or {})
            if ours and isinstance(error, TypeError):  # PyTorch's operators would tell Python to ask the other operand
                raise InternalError("an operation on tensors was staged", error, session.origin()) from error
            raise


def _dropout(*args: Any, **kwargs: Any) -> torch.Tensor:
    return gpu_dropout(dispatch, *args, **kwargs)


def _bool(t: torch.Tensor) -> bool:
    cond = truth_of(t)
    return current().decisions.decide(cond) if isinstance(cond, Value) else bool(cond)


def _plain(what: str) -> Callable[[torch.Tensor], Any]:
    def method(t: torch.Tensor) -> Any:
        x = item(t)
        if scalars.is_symbolic(x):
            return x.node.int_() if what == "index" else {"int": int, "float": float}[what](x)
        return x.__index__() if what == "index" else {"int": int, "float": float}[what](x)

    return method


def _tolist(t: torch.Tensor) -> Any:
    constant = as_constant(t)
    if constant is not None:
        with plainly():
            return constant.data.tolist()
    if t.dim() == 0:
        return item(t)
    if t.numel() > TOLIST_LIMIT:
        raise UnsupportedError(
            f"tolist() of a tensor with {t.numel()} elements known only at run time", current().origin(), "work on the tensor"
        )
    return [_tolist(row) for row in t.unbind(0)]


def _numpy(t: torch.Tensor, *, force: bool = False) -> Any:
    constant = as_constant(t)
    if constant is None:
        return array_of(t.detach().resolve_conj().resolve_neg() if force else t)
    with plainly():
        made = constant.data.clone().numpy()
    storage_of(t).lent = True
    current().heap.lend(made)
    return made


def _refuse(what: str) -> Callable[..., Any]:
    def method(t: Any, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(
            f"{what} on a tensor that is known only at run time", current().origin(), "use torch functions; for a single number, .item()"
        )

    return method


def _format(t: torch.Tensor, spec: str) -> str:
    """``f"{t}"``: of a constant as in eager, where one of rank 0 is its number."""
    constant = as_constant(t) if isinstance(t, StagedTensor) else None
    if constant is None or t.requires_grad:
        return torch.Tensor.__format__(t, spec)
    with plainly():
        return format(constant.data, spec)


def _from_dlpack(x: Any) -> Any:
    return _refuse("an exchange by DLPack")(x) if isinstance(x, torch.Tensor) else torch.from_dlpack(x)


def _allclose(a: torch.Tensor, b: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    return item(torch.isclose(a, b, rtol, atol, equal_nan).all())


def _tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False) -> Any:
    """``torch.tensor`` of nested lists that may hold numbers and tensors known only at run time."""
    data = tensor_of(data)
    if isinstance(data, torch.Tensor):
        copy = data.detach().clone()
        return copy if dtype is None else copy.to(dtype)
    found: list[Any] = []
    _numbers(data, found)
    if not any(scalars.is_symbolic(x) or isinstance(x, StagedTensor) for x in found):
        return torch.tensor(data, dtype=dtype)
    whole = dtype is not None and not (dtype.is_floating_point or dtype.is_complex)
    if whole and any(isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex()) for x in found):  # of numbers it makes ints
        raise of_program(TypeError("only integer tensors of a single element can be converted to an index"))
    parts = [item(x) if isinstance(x, torch.Tensor) else x for x in found]
    kinds = {scalars._kind(scalars.operand_of(p)) for p in parts}
    own = torch.get_default_dtype() if "float" in kinds else torch.int64 if "int" in kinds else torch.bool
    flat = torch.stack([to_tensor(scalars.convert(p, "float") if "float" in kinds else p, dtype or own) for p in parts])
    return flat.reshape(_shape(data))


def _as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
    """``torch.as_tensor``: tensors stay, arrays keep their memory."""
    data = tensor_of(data)
    if isinstance(data, torch.Tensor):
        return data if dtype in (None, data.dtype) else data.to(dtype)
    return torch.as_tensor(data, dtype=dtype) if isinstance(data, np.ndarray) else _tensor(data, dtype=dtype)


def _requires_grad(t: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
    current().heap.changing_attribute(t, "requires_grad")
    change_role(t)
    return t.requires_grad_(requires_grad)


def _set_requires_grad(t: torch.Tensor, _requires_grad: bool) -> Any:
    change_role(t)
    return NotImplemented


def _of_gradients(name: str) -> Callable[[torch.Tensor], Any]:
    """Return what asks for an attribute that a parameter has, and what is computed has not."""

    def attribute(t: torch.Tensor) -> Any:
        settle_open_role(t, storage_of, f"`{name}`")
        return of_role(t, f"`{name}`", lambda role: getattr(role, name)) if is_joined(t) else NotImplemented

    return attribute


def _of_backward(name: str) -> Callable[[torch.Tensor], Any]:
    """Return what asks for an object of the gradients: of several tensors only None can be one."""

    def attribute(t: torch.Tensor) -> Any:
        settle_open_role(t, storage_of, f"`{name}`")
        if is_joined(t) and of_role(t, f"`{name}`", lambda role: role.has_grad or not role.is_leaf):
            settle(t, f"`{name}`")
        return NotImplemented

    return attribute


def _hook(register: Any) -> Callable[..., Any]:
    def method(t: torch.Tensor, *args: Any) -> Any:
        if not isinstance(t, StagedTensor):
            raise UnsupportedError("a hook of the gradients of a tensor that lives on", current().origin(), "register it before the build")
        current().heap.check_undoable(t, "a hook of the gradients of a tensor is registered in a branch")
        return register(t, *args)

    return method


def _new_tensor(t: torch.Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    return _tensor(data, dtype=dtype or t.dtype)


def _new(t: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``t.new(...)``: sizes, or what is in the tensor."""
    if kwargs or any(isinstance(a, torch.Tensor) for a in args):
        return NotImplemented
    if len(args) == 1 and isinstance(args[0], (list, tuple)) and not isinstance(args[0], torch.Size):
        return _tensor(args[0], dtype=t.dtype)
    with current().functions:  # a size may be a length
        return t.new_empty(*args if args else (0,))


def _numbers(data: Any, found: list[Any]) -> None:
    if isinstance(data, (list, tuple)):
        for d in data:
            _numbers(d, found)
    elif type(data) is RunTimeArray:
        raise UnsupportedError(
            "torch.tensor() of a list of NumPy's numbers that are known only at run time", current().origin(), "use torch.stack of tensors"
        )
    else:
        found.append(data)


def _shape(data: Any) -> list[int]:
    return [len(data), *_shape(data[0])] if isinstance(data, (list, tuple)) else []


def _data(t: torch.Tensor) -> torch.Tensor:
    return t.detach()


def _set_data(t: torch.Tensor, value: torch.Tensor) -> None:
    here, there = storage_of(t), storage_of(value)
    if here is there and (t.shape, t.stride(), t.storage_offset()) == (value.shape, value.stride(), value.storage_offset()):
        return  # as module.to(dtype) does where nothing is to be done
    raise UnsupportedError("an assignment to .data", current().origin(), "use copy_() under torch.no_grad(), or assign a new tensor")


def _deepcopy(t: torch.Tensor, memo: Any) -> torch.Tensor:
    return t.clone()


def _base(t: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor that a view was made of; None for what is no view."""
    settle(t, "the base")
    return t.base if isinstance(t, StagedTensor) else t._base


def _unknown(what: str) -> Callable[..., Any]:
    def method(t: torch.Tensor, *_args: Any, **_kwargs: Any) -> Any:
        raise UnsupportedError(f"{what} of a tensor", current().origin(), "compute on the tensor itself")

    return method


def _of_mask(picks: Callable[..., Any]) -> Callable[..., Any]:
    """Return what gives as many elements as a mask says, which is known at build time if the mask is."""

    def function(*args: Any, **kwargs: Any) -> Any:
        func = torch.nonzero if picks is nonzero else torch.masked_select
        mask = args[0] if picks is nonzero else args[1] if len(args) > 1 else kwargs.get("mask")
        known = not isinstance(mask, torch.Tensor) or mask.dim() == 0 or as_constant(mask) is not None or "out" in kwargs
        return NotImplemented if known else picks(func, *args, **kwargs)

    return function


def _of_elements(func: Any, made_by: Callable[..., Any]) -> Callable[..., Any]:
    """Return what has as many elements as those of a tensor say that is known only at run time."""

    def function(*args: Any, **kwargs: Any) -> Any:
        known = not args or not isinstance(args[0], torch.Tensor) or as_constant(args[0]) is not None
        return NotImplemented if known else made_by(func, *args, **kwargs)

    return function


def _repeat_interleave(func: Any) -> Callable[..., Any]:
    """Repeat each row as often as an element says that is known only at run time."""

    def function(*args: Any, **kwargs: Any) -> Any:
        repeats, alone = args[-1 if len(args) == 1 else 1], len(args) == 1
        found = isinstance(repeats, torch.Tensor) and as_constant(repeats) is None
        made = NotImplemented if alone or not (found or scalars.is_symbolic(repeats)) else repeat_interleave(func, *args, **kwargs)
        if made is not NotImplemented:
            return made
        size = None
        if kwargs.get("output_size") is None:
            size = _size_repeated(None if alone else args[0], repeats, args[2] if len(args) > 2 else kwargs.get("dim"))
        return NotImplemented if size is None else func(*args, **{**kwargs, "output_size": size})

    return function


def _cholesky(input: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """Stand for ``torch.cholesky``, which says only by an error that it failed: that of ``torch.linalg`` says it by a number."""
    refuse_if_caught(torch.cholesky, (input, upper), {})
    with current().functions:
        return torch.linalg.cholesky(input, upper=upper)


def _one_hot(t: torch.Tensor, num_classes: Any = -1) -> Any:
    if as_constant(t) is not None or not t.numel():
        return NotImplemented
    if type(num_classes) is not int or num_classes == -1:
        return composed(one_hot_of_classes)(None, t, num_classes)
    if num_classes < 1 or t.dtype != torch.int64:
        return NotImplemented
    refuse_if_caught(torch.nn.functional.one_hot, (t, num_classes), {})
    return torch.nn.functional.one_hot(within(t, 0, num_classes - 1, f"class values must be 0 to {num_classes - 1}"), num_classes)


def _size_repeated(x: Any, repeats: Any, dim: int | None) -> int | None:
    """Return how many rows there are after they were repeated, if a tensor says it that is known: PyTorch asks for it without memory."""
    constant = as_constant(repeats) if isinstance(repeats, torch.Tensor) else None
    if constant is None:
        return None
    with plainly():
        total = int(constant.data.sum())
    return total if x is None or repeats.numel() != 1 else total * (x.numel() if dim is None else x.shape[dim])


def _where(*args: Any, **kwargs: Any) -> Any:
    if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor) and args[0].dim() and as_constant(args[0]) is None:
        return nonzero(torch.nonzero, args[0], as_tuple=True)
    return NotImplemented


_T = torch.Tensor
HANDLERS: dict[Any, Callable[..., Any]] = {
    _T.__bool__: _bool,
    _T.is_nonzero: _bool,
    torch.is_nonzero: _bool,
    _T.item: item,
    _T.tolist: _tolist,
    _T.__int__: _plain("int"),
    _T.__float__: _plain("float"),
    _T.__index__: _plain("index"),
    _T.__getitem__: getitem,
    _T.__setitem__: setitem,
    _T.select: select,
    torch.select: select,
    _T.narrow: narrow,
    torch.narrow: narrow,
    _T.split: split,
    torch.split: split,
    torch.split_with_sizes: split,
    _T.split_with_sizes: split,
    _T.__format__: _format,
    _T.numpy: _numpy,
    _T.__array__: _refuse("a conversion to a NumPy array"),
    _T.__dlpack__: _refuse("an exchange by DLPack"),
    torch.from_dlpack: _from_dlpack,
    _T.__contains__: lambda t, x: item((t == x).any()),
    _T.contiguous: contiguous,
    _T.reshape: reshape,
    torch.reshape: reshape,
    torch.nn.functional.scaled_dot_product_attention: attention,
    _T.equal: equal,
    torch.equal: equal,
    _T.allclose: _allclose,
    torch.allclose: _allclose,
    _T.nonzero: _of_mask(nonzero),
    torch.nonzero: _of_mask(nonzero),
    torch.argwhere: _of_mask(nonzero),
    _T.argwhere: _of_mask(nonzero),
    torch.where: _where,
    **{func: _of_elements(func, unique) for func in (torch.unique, _T.unique)},
    **{func: _of_elements(func, unique_consecutive) for func in (torch.unique_consecutive, _T.unique_consecutive)},
    **{func: _of_elements(func, bincount) for func in (torch.bincount, _T.bincount)},
    **dict.fromkeys((torch.cholesky, _T.cholesky), _cholesky),
    _T.masked_select: _of_mask(masked_select),
    torch.masked_select: _of_mask(masked_select),
    torch.nn.functional.one_hot: _one_hot,
    torch.repeat_interleave: _repeat_interleave(torch.repeat_interleave),
    _T.repeat_interleave: _repeat_interleave(_T.repeat_interleave),
    torch.tensor: _tensor,
    torch.as_tensor: _as_tensor,
    _T.new_tensor: _new_tensor,
    _T.new: _new,  # type: ignore[attr-defined]
    _T.data.__get__: _data,  # type: ignore[attr-defined]
    _T.data.__set__: _set_data,  # type: ignore[attr-defined]
    _T.__deepcopy__: _deepcopy,
    # PyTorch before 2.11 has not both.
    **{getattr(_T, name): Address for name in ("data_ptr", "const_data_ptr") if hasattr(_T, name)},
    _T.storage_offset: offset_of,
    _T.untyped_storage: Memory,
    _T.is_set_to: is_set_to,
    _T._is_view: lambda t: _base(t) is not None,
    _T._base.__get__: _base,  # type: ignore[union-attr]
    _T._version.__get__: _unknown("the count of changes in place"),  # type: ignore[attr-defined]
    **dict.fromkeys((_T.is_inference, torch.is_inference), _unknown("whether inference mode made it")),
    _T.storage: _unknown("the typed storage"),
    _T.set_: _unknown("a change of the memory"),
    _T.requires_grad_: _requires_grad,
    _T.requires_grad.__set__: _set_requires_grad,  # type: ignore[attr-defined]
    **{getattr(_T, name).__get__: _of_gradients(name) for name in ("requires_grad", "is_leaf")},
    **{getattr(_T, name).__get__: _of_backward(name) for name in ("grad", "_grad", "grad_fn", "_grad_fn", "_backward_hooks")},
    _T.register_hook: _hook(_T.register_hook),
    _T.register_post_accumulate_grad_hook: _hook(_T.register_post_accumulate_grad_hook),
    _T.retain_grad: _hook(_T.retain_grad),
    _T.apply_: _unknown("a Python function for each element"),
    _T.map_: _unknown("a Python function for each element"),
    _T.map2_: _unknown("a Python function for each element"),  # type: ignore[attr-defined]
    _T.share_memory_: _unknown("a move of the memory"),
}
