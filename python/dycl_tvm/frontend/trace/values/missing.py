# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Operators of whose results PyTorch says nothing without their values: is the shape one of the values, or is the operator missing?"""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.errors import DataDependentShapeError, UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.tensors import op_name
from dycl_tvm.hcfg.added import ADDED

#: Operators without PyTorch's tag for what has a shape that depends on values.
_UNTAGGED = frozenset(["aten._to_sparse", "aten._histogramdd_bin_edges", "aten.bincount", "aten.repeat_interleave"])


def _with_mask(x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


#: What operators without a kernel for the device ``meta`` give, where the compiler knows them.
_RESULTS = {
    f"aten.{name}": _with_mask
    for name in (
        "fake_quantize_per_tensor_affine_cachemask.default",
        "fake_quantize_per_channel_affine_cachemask.default",
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default",
    )
}


def added_result(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the results on the device ``meta`` of an operator, where not PyTorch says them, but a user or we; None for any other."""
    function = ADDED.get(op_name(func)) or _RESULTS.get(op_name(func))
    return None if function is None else function(*args, **kwargs)


def without_result(func: Any, not_implemented: bool) -> UnsupportedError:
    """Return the error for an operator whose result is unknown."""
    name = op_name(func)
    if not not_implemented or torch.Tag.dynamic_output_shape in func.tags or name.rpartition(".")[0] in _UNTAGGED:
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
