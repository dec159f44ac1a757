# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Functions of :mod:`math` on numbers known only at run time."""

from __future__ import annotations

import math
from typing import Any

from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.overflow import exp_overflows_from
from dycl_tvm.hcfg.types import FLOAT

_MATH = {"sqrt": math.sqrt, "exp": math.exp, "log": math.log, "sin": math.sin, "cos": math.cos, "tanh": math.tanh}
MATH_FUNCTIONS: dict[Any, str] = {v: k for k, v in _MATH.items()}
MATH_ROUNDING: dict[Any, str] = {math.floor: "floor", math.ceil: "ceil", math.trunc: "trunc"}


def math_call(name: str, x: Any) -> Any:
    """``math.<name>(x)`` of a host scalar."""
    if name == "sqrt":
        scalars._guard(x < 0, ValueError, "math domain error")
    elif name == "log":
        scalars._guard(x <= 0, ValueError, "math domain error")
    elif name == "exp":
        scalars._guard_overflow("ge", scalars.as_float(scalars.operand_of(x)), exp_overflows_from(), math.inf, "math range error")
    elif name in ("sin", "cos"):
        scalars._guard(scalars._is_infinite(x.node.value) if x.node.kind == "float" else False, ValueError, "math domain error")
    return scalars.emit(name, scalars.as_float(scalars.operand_of(x)), type_=FLOAT)
