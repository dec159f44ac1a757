# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The unscheduled PrimFuncs that PyTorch code becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import tvm
from hcfg_utils import host_target, record
from tvm import relax

from dycl_tvm.compile.importer import import_sub_dnns
from dycl_tvm.compile.legalize import LEGALIZE


def prim_funcs(fn: Callable[..., Any], *args: torch.Tensor) -> list[Any]:
    """Return the PrimFuncs of the operators that ``fn`` runs."""
    mod = import_sub_dnns([record(fn, args)[0]])
    with host_target(), tvm.transform.PassContext(opt_level=3):
        mod = tvm.transform.Sequential([relax.transform.DeadCodeElimination(), relax.transform.LegalizeOps(LEGALIZE)])(mod)
    return [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]


def prim_func(fn: Callable[..., Any], *args: torch.Tensor) -> Any:
    """Return the PrimFunc of the one operator that ``fn`` runs."""
    (only,) = prim_funcs(fn, *args)
    return only


def fused(fn: Callable[..., Any], *args: torch.Tensor) -> Any:
    """Return the PrimFunc of all operators that ``fn`` runs, fused to one."""
    mod = import_sub_dnns([record(fn, args)[0]])
    steps = [
        relax.transform.LegalizeOps(LEGALIZE), relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps(),
        relax.transform.FuseTIR(), relax.transform.DeadCodeElimination(),
    ]  # fmt: skip
    with host_target(), tvm.transform.PassContext(opt_level=3):
        mod = tvm.transform.Sequential(steps)(mod)
    (only,) = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    return only
