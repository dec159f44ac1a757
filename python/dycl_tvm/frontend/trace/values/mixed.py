# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Numbers whose type values decide in eager mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current


@dataclass(frozen=True)
class Mixed:
    """Between which types values decide in eager mode.

    Attributes
    ----------
    types : str
        Such as ``an int or a float``.
    dtypes : frozenset of torch.dtype
        Those that it may have in an operation with a tensor, as the tensor or the number that it is.
    tensor : bool
        Whether it may be a tensor (float32, or of ints), of rank 0.
    computed : bool
        Whether the number was computed from such a one: it has the precision of a Python number, where eager may have rounded a tensor.
    decision : Decision or None
        That of the choice, which a use forks for which the type matters: on each path it is known what was chosen.
    """

    types: str
    dtypes: frozenset[torch.dtype]
    tensor: bool = False
    computed: bool = False
    decision: Any = None


def dtype_of(kind: str) -> torch.dtype:
    """Return the type of a tensor that is made of a number alone."""
    return {"float": torch.get_default_dtype(), "int": torch.int64, "bool": torch.bool}[kind]


def refuse_mixed(mixed: Mixed | None, used: str, origin: Any = None) -> None:
    """Fork a choice whose number is used so that it matters what its type is, if values decide that; refuse the use where none can fork."""
    if mixed is not None:
        reason = f"what max() or min() gave is {used}; it is {mixed.types}, depending on values"
        if mixed.decision is not None and not current().decisions.is_rolled(mixed.decision):
            current().decisions.fork(mixed.decision, reason)
        raise UnsupportedError(
            reason,
            origin or current().origin(),
            "give max() and min() values of one type, such as max(t.item(), 0.0), or use torch.clamp(t, min=...)",
        )
