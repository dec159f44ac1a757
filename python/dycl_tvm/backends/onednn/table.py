# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The pattern table: the longest chain of operators that is one primitive comes first."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Sequence
from typing import Any

import tvm
from tvm.relax.backend.utils import has_leaking_intermediate_variables
from tvm.relax.dpl import is_op, wildcard

from dycl_tvm.backends.onednn.library import find_library
from dycl_tvm.backends.onednn.steps import ELTWISE, parse
from dycl_tvm.backends.registry import Pattern

_ANCHORS = {"conv2d": "relax.nn.conv2d", "matmul": "relax.matmul"}


def patterns(target: tvm.target.Target) -> Sequence[Pattern]:
    """Return the patterns, or none if there is no library for this target: it is the one of the machine that builds."""
    if str(target.kind) != "llvm" or not str(target.attrs.get("mtriple", platform.machine())).startswith(platform.machine()):
        return []
    return _TABLE if find_library() is not None else []


def _check(context: Any) -> bool:
    return not has_leaking_intermediate_variables(context) and parse(context.matched_expr, context.matched_bindings) is not None


def _activations(x: Any) -> dict[str, Any]:
    found = {name.rpartition(".")[2]: is_op(name)(x) for name in ELTWISE}
    return {"silu": is_op("relax.multiply")(x, is_op("relax.sigmoid")(x)), **found}


def _table() -> list[Pattern]:
    found = []
    for anchor, residual, bias in itertools.product(_ANCHORS, ("residual_left", "residual_right", ""), ("bias", "")):
        names = [*_activations(wildcard()), ""]
        for activation in names:
            value = is_op(_ANCHORS[anchor])(wildcard(), wildcard())
            if bias:
                value = is_op("relax.add")(value, wildcard())
            if residual:
                value = is_op("relax.add")(*((wildcard(), value) if residual == "residual_left" else (value, wildcard())))
            if activation:
                value = _activations(value)[activation]
            found.append(Pattern("_".join(filter(None, (anchor, bias, residual, activation))), value, {}, _check))
    # stable: of two equally long ones the order above decides
    return sorted(found, key=lambda p: -p.name.replace("residual_", "residual").count("_") - p.name.count("silu"))


_TABLE = _table()
