# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators of whose results PyTorch says nothing without their values: is the shape one of the values, or is the operator missing?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.errors import DataDependentShapeError, UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.tensors import op_name
from dycl_tvm.hcfg.added import ADDED

#: Operators without PyTorch's tag for what has a shape that depends on values.
UNTAGGED = frozenset(["aten._to_sparse", "aten._histogramdd_bin_edges", "aten.bincount", "aten.repeat_interleave"])


def _with_mask(x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


def _geqrf(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(a), a.new_empty((*a.shape[:-2], min(a.shape[-2:])))


def _lstsq(a: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """Return what the driver for CPUs gives: no residuals and no singular values, of which other drivers give as many as there are."""
    if driver not in (None, "gelsy"):
        return None
    is_row = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-1] if is_row else b.shape[:-2])
    found = a.new_empty((*batch, a.shape[-1], *(() if is_row else b.shape[-1:])))
    return found, a.new_empty(0), a.new_empty(a.shape[:-2], dtype=torch.int64), a.new_empty(0, dtype=a.dtype.to_real())


#: What operators without a kernel for the device ``meta`` give, where the compiler knows them.
_RESULTS: dict[str, Callable[..., Any]] = {
    f"aten.{name}": _with_mask
    for name in (
        "fake_quantize_per_tensor_affine_cachemask.default",
        "fake_quantize_per_channel_affine_cachemask.default",
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default",
    )
} | {"aten.geqrf.default": _geqrf, "aten.linalg_lstsq.default": _lstsq}


def added_result(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the results on the device ``meta`` of an operator, where not PyTorch says them, but a user or we; None for any other."""
    function = ADDED.get(op_name(func)) or _RESULTS.get(op_name(func))
    return None if function is None else function(*args, **kwargs)


def without_result(func: Any, not_implemented: bool) -> UnsupportedError:
    """Return the error for an operator whose result is unknown."""
    name = op_name(func)
    if not not_implemented or torch.Tag.dynamic_output_shape in func.tags or name.rpartition(".")[0] in UNTAGGED:
        return DataDependentShapeError(
            f"the shape of the result of {func._opname}() depends on the values of its input",
            current().origin(),
            "use a result of fixed shape: torch.where with a mask, topk, or a reduction over the mask",
        )
    fake = "" if name.startswith("aten.") else f", and the shape of its result with torch.library.register_fake({func.name()!r})"
    return UnsupportedError(
        f"the operator {name} is missing: neither dycl_tvm nor PyTorch knows the shape of its result",
        current().origin(),
        f"write it with other operators, or add it with dycl_tvm.register_operator({name!r}){fake} (docs/adding-an-operator.md)",
    )
