# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The truth of any value."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.frontend.python.program import special_method
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.recorder import truth_of


def truth(x: Any) -> Any:
    """Return the truth of a value: a bool, or an operand of type bool."""
    if isinstance(x, Poison):
        use(x)
    if isinstance(x, torch.Tensor):
        return truth_of(x)
    if scalars.is_symbolic(x):
        return scalars.truth_operand(x)
    for name in ("__bool__", "__len__"):
        method = special_method(x, name)
        if method is not None:
            return truth(method())
        if hasattr(type(x), name):
            break
    return bool(x)
