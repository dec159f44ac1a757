# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Random numbers of networks for GPUs: which functions of PyTorch draw there as they do on a CPU, and dropout, which does not.

ATen is recorded as it is on a CPU. A function that is composed of others may be composed otherwise on a GPU; so a draw counts only if
the program asked for this operator itself, or for a function of which it is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import OfOneRun, current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.generators import kind_in_force
from dycl_tvm.frontend.trace.values.layouts import layouts_of
from dycl_tvm.hcfg.draws import CPU

aten = torch.ops.aten
#: Functions that draw as they do on a CPU, and the operators by which they do.
_ALIKE: dict[Any, str] = {
    F.gumbel_softmax: "exponential_",
    **dict.fromkeys((F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout), "bernoulli_"),
    **dict.fromkeys((torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout), "bernoulli_"),
    **dict.fromkeys((F.dropout, torch.dropout_), "bernoulli_"),  # in place; the others are caught before
}
_MOST_BYTES = 1 << 31
#: What eager reads at once, in elements of float32.
_ALIGNED = 4


class _InFlight(OfOneRun):
    """The function of PyTorch that the program has called."""

    def __init__(self) -> None:
        self.function: Any = None


def on_gpu() -> bool:
    """Whether the network is for a GPU."""
    return kind_in_force() is not CPU


def refuse_on_gpu(what: str, instead: str) -> None:
    """Refuse what a GPU draws in a way that is not known here."""
    if on_gpu():
        raise UnsupportedError(f"{what}, on a GPU", current().origin(), instead)


def check_size(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse draws that PyTorch makes in parts."""
    if math.prod(shape) * dtype.itemsize >= _MOST_BYTES:
        refuse_on_gpu("a draw of 2**31 bytes or more", "draw several tensors")


def check_origin(operator: Any) -> None:
    """Refuse a draw that a composed function makes."""
    function = current().get(_InFlight).function
    name = getattr(function, "__name__", "an operator")
    if operator._opname in (name, _ALIKE.get(function)):
        return
    raise UnsupportedError(
        f"{name}() draws random numbers in a way of its own on a GPU",
        current().origin(),
        "use torch.bernoulli(), rand(), dropout() and their kind",
    )


def call(function: Callable[..., Any], dropout: Callable[..., Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of PyTorch in a network for a GPU; ``dropout`` draws that of a GPU, ``func`` is the name by which it was called."""
    flight = current().get(_InFlight)
    before, flight.function = flight.function, func
    try:
        if func in (F.dropout, torch.dropout) and _draws(*args, **kwargs):
            return dropout(*args, **kwargs)
        return function(*args, **kwargs)
    finally:
        flight.function = before


def _draws(x: Any, p: Any = 0.5, training: Any = True, inplace: Any = False, *, train: Any = True, **kwargs: Any) -> bool:
    """Whether a dropout is that of one kernel; all others are composed of operators."""
    if scalars.is_symbolic(p) or not isinstance(p, (int, float)):
        return True  # refused below
    return bool(isinstance(x, torch.Tensor) and training and train and not inplace and 0 < p < 1 and x.numel())


def keep_of(x: torch.Tensor, p: Any) -> tuple[float, float]:
    """Return the probability with which a dropout keeps an element, and the factor of what it keeps, as a GPU rounds it."""
    if scalars.is_symbolic(p) or not isinstance(p, (int, float)):
        refuse_on_gpu("dropout() with a probability known only at run time", "use torch.rand_like(x) < keep")
    if x.dtype != torch.float32:
        refuse_on_gpu(f"dropout() of {x.dtype}", "compute it in float32: F.dropout(x.float(), p, True).to(x.dtype)")
    if layouts_of(x) is not None:
        layouts_of(x).settle()  # type: ignore[union-attr]
    if not x.is_contiguous() or x.storage_offset() % _ALIGNED:
        refuse_on_gpu(
            "dropout() of a tensor that is not contiguous, or begins within another",
            "copy it before: x.clone(memory_format=torch.contiguous_format)",
        )
    keep = 1.0 - p
    return keep, float(np.float32(1.0 / float(np.float32(keep))))
