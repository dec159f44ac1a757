# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What users may write in a forward to say how long a tensor is at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def bound(t: Tensor, dim: int, n: int) -> Tensor:
    """Return a tensor itself, of which is known from here on that a dimension is no longer than ``n``.

    Where data decide how long it is, an artefact makes room, and spends time, for no more than that.

    Parameters
    ----------
    t : Tensor
    dim, n : int

    Raises
    ------
    RuntimeError
        If it is longer, in eager PyTorch as in an artefact.
    """
    from torch.overrides import handle_torch_function, has_torch_function_unary

    if has_torch_function_unary(t):  # while the model is staged
        return handle_torch_function(bound, (t,), t, dim, n)  # type: ignore[no-any-return]
    if t.shape[dim] > n:
        raise RuntimeError(f"dimension {dim} is longer than its bound {n}")
    return t
