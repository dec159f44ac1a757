# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What users hand to ``build``: checks of the model, and example inputs in every accepted form as tensors."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from dycl_tvm.errors import UsageError
from dycl_tvm.hcfg.sizes import Dim

_HOW_TO_GIVE = (
    "give example inputs of the shapes that the artefact will run on, as the model takes them: "
    "build(model, (torch.randn(1, 3, 32, 32),), target=...), with keyword arguments in example_kwargs={...}; "
    "instead of a tensor, dycl_tvm.TensorSpec((1, 3, 32, 32), 'float32') or torch.empty(..., device='meta') will do"
)

#: Modules that compute something else in training, and what makes them do so.
_TRAINING_DEPENDENT = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.dropout._DropoutNd,
    nn.modules.instancenorm._InstanceNorm,
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.RReLU,
)


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of an input, for those who have no example at hand.

    Parameters
    ----------
    shape : tuple of int, Dim or str
        A size that each call decides is a :class:`dycl_tvm.Dim`, or written as ``"T<=512"`` or ``"2<=T<=512"``.
    dtype : str or torch.dtype
        For example ``"float32"``.
    """

    shape: tuple[int | Dim | str, ...]
    dtype: Any = "float32"


def normalise(args: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword examples with every specification replaced by a CPU tensor.

    Accepted leaves: tensors (of any device, ``meta`` and fake ones too: only shape and dtype count for those), NumPy
    arrays, :class:`TensorSpec` and every other object with a ``shape`` and a ``dtype``; ints, floats and bools; None
    and str. Containers: tuples, lists, dicts, named tuples. A single leaf stands for a tuple of one.

    Raises
    ------
    UsageError
        If nothing is given, or something that is not an example.
    """
    if args is None and not kwargs:
        raise UsageError("no example inputs: " + _HOW_TO_GIVE)
    if args is None:
        args = ()
    if isinstance(args, Mapping):
        raise UsageError("example_inputs holds the positional arguments; give a dict of keyword arguments as example_kwargs")
    if _is_spec(args) or isinstance(args, (int, float, bool)):
        args = (args,)
    if not isinstance(args, (tuple, list)):
        raise UsageError(f"example_inputs is a {type(args).__name__}: " + _HOW_TO_GIVE)
    positional = tuple(_leaf(a, f"example_inputs[{i}]") for i, a in enumerate(args))
    named = {str(k): _leaf(v, f"example_kwargs[{k!r}]") for k, v in (kwargs or {}).items()}
    return positional, named


def written_sizes(args: Any, kwargs: Mapping[str, Any] | None) -> Any:
    """Return what ``dynamic_shapes`` would say of the sizes in specifications of inputs; None if there are none.

    Raises
    ------
    UsageError
        If positional and keyword arguments have some: those are named in ``dynamic_shapes``.
    """
    given = args if isinstance(args, (tuple, list)) else () if args is None else (args,)
    positional, named = [_sizes_in(a) for a in given], {str(k): _sizes_in(v) for k, v in (kwargs or {}).items()}
    by_position, by_name = any(s is not None for s in positional), any(s is not None for s in named.values())
    if by_position and by_name:
        raise UsageError("sizes stand in positional and in keyword examples: give them as dynamic_shapes, by the names of the parameters")
    return tuple(positional) if by_position else {k: s for k, s in named.items() if s is not None} if by_name else None


def _sizes_in(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        found = {d: Dim.of(n) for d, n in enumerate(value.shape) if isinstance(n, (Dim, str))}
        return found or None
    children = value if isinstance(value, (tuple, list)) else list(value.values()) if isinstance(value, dict) else ()
    found_below = [_sizes_in(v) for v in children]
    if all(s is None for s in found_below):
        return None
    return dict(zip(value, found_below)) if isinstance(value, dict) else found_below


def _is_spec(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (hasattr(value, "shape") and hasattr(value, "dtype"))


def _leaf(value: Any, where: str) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized:
            raise UsageError(f"{where} is sparse or quantised; dense tensors are supported")
        if value.is_conj() or value.is_neg():
            raise UsageError(
                f"{where} is the conjugate or the negative of what lies in its memory; give resolve_conj().resolve_neg() of it"
            )
        if type(value) is torch.Tensor and value.device.type == "cpu":
            return value
        return torch.zeros(_static_shape(value.shape, where), dtype=value.dtype)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value).copy())
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if _is_spec(value):
        return torch.zeros(_static_shape(value.shape, where), dtype=_torch_dtype(value.dtype, where))
    if isinstance(value, tuple):
        items = [_leaf(v, f"{where}[{i}]") for i, v in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_leaf(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, dict):
        return {k: _leaf(v, f"{where}[{k!r}]") for k, v in value.items()}
    # Dataclasses and objects of the user's own are the front end's to take apart or to refuse.
    return value


def _static_shape(shape: Any, where: str) -> tuple[int, ...]:
    dims = []
    for dim in shape:
        size = Dim.of(dim) if isinstance(dim, (Dim, str)) else None
        if size is not None:
            dims.append(size.largest)
            continue
        if not isinstance(dim, (int, np.integer)) or int(dim) < 0:
            raise UsageError(
                f"{where} has the dimension {dim!r}; shapes are fixed at build time, so give a number for each (build once for each shape)"
            )
        dims.append(int(dim))
    return tuple(dims)


def _torch_dtype(dtype: Any, where: str) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    name = str(dtype)
    found = getattr(torch, name.rsplit(".", 1)[-1], None)
    if not isinstance(found, torch.dtype):
        try:
            found = getattr(torch, np.dtype(dtype).name, None)
        except TypeError:
            found = None
    if not isinstance(found, torch.dtype):
        raise UsageError(f"{where} has the dtype {dtype!r}, which PyTorch does not have; say for example 'float32' or 'int64'")
    return found


def check_model(model: Any) -> None:
    """Refuse what is not a model, and models whose weights or mode would make a wrong artefact.

    Raises
    ------
    UsageError
        With what to do about it.
    """
    if isinstance(model, type):
        raise UsageError(f"model is the class {model.__qualname__}; give an instance of it: build({model.__qualname__}(...).eval(), ...)")
    if not callable(model):
        raise UsageError(f"model is a {type(model).__name__}; give an nn.Module, a bound method of one, or a function that calls some")
    if isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction)) and not hasattr(model, "_torchdynamo_inline"):
        raise UsageError("model is a TorchScript program, which has lost its Python source; give the nn.Module that it was made of")
    training: list[str] = []
    for root in modules_of(model):
        for name, module in root.named_modules():
            label = f"{name or 'the model'} ({type(module).__name__})"
            # where the model as a whole is in evaluation mode, a part of it is in training mode on purpose
            if root.training and module.training and _depends_on_training(module):
                training.append(label)
            for tensor_name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                if tensor.device.type != "cpu":
                    place = f"{name}.{tensor_name}".lstrip(".")
                    what = (
                        "has no values (device meta); load the weights first"
                        if tensor.is_meta
                        else f"is on {tensor.device}; call model.cpu() first"
                    )
                    raise UsageError(f"the weight {place} {what}")
    if training:
        shown = ", ".join(training[:3]) + (f" and {len(training) - 3} more" if len(training) > 3 else "")
        raise UsageError(
            f"the model is in training mode, in which {shown} would compute something else; call model.eval() before build"
            " (and then train() of parts that are to stay in training mode, such as dropout)"
        )


def is_exported_program(model: Any) -> bool:
    """Tell whether a model is what ``torch.export.export`` returns."""
    return isinstance(model, torch.export.ExportedProgram)


def modules_of(model: Any) -> Iterator[nn.Module]:
    """Yield the modules that a model is made of: itself, the owner of a bound method, what a function closes over."""
    seen: set[int] = set()
    for found in _reachable(model, depth=3):
        if isinstance(found, nn.Module) and id(found) not in seen:
            seen.add(id(found))
            yield found


def name_of(model: Any) -> str:
    """Return a name for the artefact, a C identifier."""
    if isinstance(model, functools.partial):
        return name_of(model.func)
    if isinstance(model, nn.Module):
        raw = type(model).__name__
    elif isinstance(model, types.MethodType):
        owner = type(model.__self__).__name__
        raw = owner if model.__name__ in ("forward", "__call__") else f"{owner}_{model.__name__}"
    else:
        raw = getattr(model, "__name__", type(model).__name__)
    return identifier(raw)


def identifier(text: str) -> str:
    """Return ``text`` as a C identifier."""
    made = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in text).strip("_") or "model"
    return f"m_{made}" if made[0].isdigit() else made


def _reachable(value: Any, depth: int) -> Iterator[Any]:
    if depth < 0:
        return
    yield value
    if isinstance(value, nn.Module):
        return
    if isinstance(value, functools.partial):
        for item in (value.func, *value.args, *value.keywords.values()):
            yield from _reachable(item, depth - 1)
    elif isinstance(value, types.MethodType):
        yield value.__self__
        yield from _reachable(value.__func__, depth - 1)
    elif isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            try:
                yield from _reachable(cell.cell_contents, depth - 1)
            except ValueError:  # a cell that is still empty
                continue
        for name in value.__code__.co_names:
            if name in value.__globals__ and not isinstance(value.__globals__[name], types.ModuleType):
                yield from _reachable(value.__globals__[name], depth - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _reachable(item, depth - 1)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _reachable(item, depth - 1)


def _depends_on_training(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
        return float(module.dropout) > 0
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        return module.track_running_stats
    if isinstance(module, _TRAINING_DEPENDENT):
        return True
    if type(module).__module__.startswith(("torch.nn.", "torch._dynamo.")):  # what `torch.compile` wraps is asked by itself
        return False
    # The user's own: does its code look at self.training?
    for cls in type(module).__mro__:
        if cls is nn.Module:
            break
        if any("training" in f.__code__.co_names for f in vars(cls).values() if isinstance(f, types.FunctionType)):
            return True
    return False
