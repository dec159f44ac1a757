# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Callables of PyTorch's that stand for Python functions: control flow operators, ``Variable``, scripted functions, operators in Python."""

from __future__ import annotations

import functools
import importlib
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._library import custom_ops
from torch.nn import functional as F
from torch.nn.utils import rnn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.calls.fast_paths import attention_of, encoder_layer_of
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.source import plain_attention, plain_sequences, plain_torch, plain_vision
from dycl_tvm.frontend.python.source.as_it_is import AsItIs
from dycl_tvm.frontend.python.source.ownership import users_function
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.arguments import leaves
from dycl_tvm.frontend.trace.values.numbers import is_symbolic
from dycl_tvm.hcfg.added import ADDED

_OTHERS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_SCRIPTED = (torch.jit.ScriptFunction, torch.jit.ScriptModule, torch._C.ScriptMethod)
#: The class of ``torch.FloatTensor`` and its like.
_TYPES = type(torch.FloatTensor)
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def _as(function: Any) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
    """Return the substitute that calls a function in Python, rewritten."""
    return lambda _callee, args, kwargs: program().run_function(function, args, kwargs)


def _member(module: str, name: str) -> Any:
    """Return a function of PyTorch's; some versions do not have it."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def _named(*found: tuple[str, str]) -> list[Any]:
    return [x for x in (_member(module, name) for module, name in found) if x is not None]


_CHECKS = [
    f"check{kind}" for kind in ("", "_index", "_value", "_type", "_not_implemented", "_tensor_all", "_is_size", "_with", "_tensor_all_with")
]
#: What is called in the place of functions.
TABLE: dict[Any, Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    **dict.fromkeys(_named(("torch", "cond"), ("torch._higher_order_ops.cond", "cond_op")), _as(plain_torch.cond)),
    **dict.fromkeys(_named(("torch", "switch"), ("torch._higher_order_ops.switch", "switch")), _as(plain_torch.switch)),
    **dict.fromkeys(_named(("torch", "while_loop"), ("torch._higher_order_ops.while_loop", "while_loop")), _as(plain_torch.while_loop)),
    **dict.fromkeys(_named(("torch", "scan"), ("torch._higher_order_ops.scan", "scan")), _as(plain_torch.scan)),
    **dict.fromkeys(_named(("torch._higher_order_ops.map", "map")), _as(plain_torch.map_rows)),
    torch.random.fork_rng: _as(plain_torch.fork_rng),
    torch.autograd.Variable: _as(plain_torch.variable),
    torch._assert: _as(plain_torch.check_assert),
    torch._assert_async: _as(plain_torch.check_async),
    **{
        getattr(rnn, name): _as(getattr(plain_sequences, name)) for name in ("pack_padded_sequence", "pack_sequence", "pad_packed_sequence")
    },
    **{getattr(torch, f"_{name}"): _as(getattr(plain_torch, name)) for name in _CHECKS if hasattr(torch, f"_{name}")},
}


_RECURRENT = (nn.LSTM.forward, nn.GRU.forward, nn.RNN.forward)


def forward_of(module: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the Python function that stands for the forward of a module of PyTorch's, given such arguments; None if it runs as it is."""
    if forward in _RECURRENT:
        given = args[0] if args else kwargs.get("input")
        return plain_sequences.recurrent if isinstance(given, rnn.PackedSequence) else None
    if forward is nn.TransformerEncoderLayer.forward:
        return encoder_layer_of(module, *args, **kwargs)  # type: ignore[arg-type]
    if forward is nn.MultiheadAttention.forward:
        return attention_of(module, *args, **kwargs)  # type: ignore[arg-type]
    if forward is nn.TransformerEncoder.forward and _makes_nested(module, *args, **kwargs):  # type: ignore[arg-type]
        return plain_sequences.encoder
    return None


def function_for(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the function to run where one is called, which may be the forward of a module of PyTorch's: ``super().forward(...)``."""
    if isinstance(callee, AsItIs):
        return callee.function
    is_of_module = bool(args) and isinstance(args[0], nn.Module)
    return (forward_of(args[0], callee, args[1:], kwargs) if is_of_module else None) or callee


def _makes_nested(
    net: nn.TransformerEncoder, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool | None = None
) -> bool:
    """Whether a call makes a nested tensor, if the mask's values allow it."""
    first = net.layers[0]
    asked = torch.backends.mha.get_fastpath_enabled() and getattr(net, "use_nested_tensor", False)
    if not asked or src_key_padding_mask is None or mask is not None or src.dim() != 3 or first.training or torch.is_autocast_enabled():
        return False
    if any(type(layer).forward is not nn.TransformerEncoderLayer.forward for layer in net.layers):
        return False
    return not (torch.is_grad_enabled() and any(p.requires_grad for p in (src, *first.parameters())))


def python_of(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """Return the Python function that a callable of PyTorch's was made of, or that stands for it given such arguments; None if none does.

    Raises
    ------
    UnsupportedError
        If it was, and is not known any more.
    """
    if isinstance(callee, _OTHERS):  # almost all callables are
        by_flag = callee is F.scaled_dot_product_attention and is_symbolic(args[5] if len(args) > 5 else kwargs.get("is_causal"))
        return plain_attention.by_flag if by_flag else None
    if type(callee) is _TYPES or callee is torch.Tensor:
        return _of_numbers(callee, args[0]) if len(args) == 1 and not kwargs else None
    if isinstance(callee, _SCRIPTED):
        found = getattr(callee, "_torchdynamo_inline", None)
        if found is None:
            raise UnsupportedError(
                f"a TorchScript {'module' if isinstance(callee, torch.jit.ScriptModule) else 'function'} has lost its Python source",
                current().origin(),
                "use what it was made of: the nn.Module that was given to torch.jit.script()",
            )
        return found  # type: ignore[no-any-return]
    if _is_added(callee):
        return None
    if isinstance(callee, _OPERATORS):
        name = callee._qualified_op_name if isinstance(callee, torch._ops.OpOverloadPacket) else callee._schema.name
        if name == "torchvision::nms":
            return plain_vision.nms
        found = custom_ops.OPDEFS.get(name)
        return None if found is None else _body(found)
    return _body(callee) if isinstance(callee, custom_ops.CustomOpDef) else None


def _of_numbers(kind: Any, data: Any) -> Callable[..., Any] | None:
    """Return what makes a tensor as ``torch.FloatTensor([[a, b]])`` does, if the run decides numbers in it; None of other arguments."""
    if type(data) not in (list, tuple) or not any(is_symbolic(x) or isinstance(x, torch.Tensor) for x in leaves(data)):
        return None
    return functools.partial(torch.tensor, dtype=torch.get_default_dtype() if kind is torch.Tensor else kind.dtype)


def _is_added(callee: Any) -> bool:
    """Whether a user has said what an operator becomes."""
    if not ADDED or not isinstance(callee, (*_OPERATORS, custom_ops.CustomOpDef)):
        return False
    name = str(
        callee.name() if isinstance(callee, torch._ops.OpOverload) else getattr(callee, "_qualified_op_name", "") or callee._qualname
    )
    return any(added.rpartition(".")[0] == name.partition(".")[0].replace("::", ".") for added in ADDED)


def _body(operator: custom_ops.CustomOpDef) -> types.FunctionType | None:
    """Return what runs on a CPU, if it is the user's."""
    found = operator._backend_fns.get("cpu", operator._init_fn)
    while users_function(found) is None and isinstance(found, types.FunctionType) and "fn" in found.__code__.co_freevars:
        found = inspect.getclosurevars(found).nonlocals["fn"]  # it is wrapped when it is registered
    return users_function(found)
