# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A model of any kind against what was staged of it, and that against what the passes made of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from dycl_tvm.errors import DyclError
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.verify.budget import Budget
from dycl_tvm.verify.by_inputs import check_by_inputs, example_call, exported_reference, onnx_reference
from dycl_tvm.verify.certificate import Control, Level
from dycl_tvm.verify.control import check_control
from dycl_tvm.verify.runs import Call


def check_model(
    model: Any,
    graph: HCFG,
    call: Call | None,
    *,
    level: Level = "default",
    seed: int = 0,
    input_values: Mapping[str, Any] | None = None,
    budget: Budget | None = None,
    device: str = "cpu",
) -> Control:
    """Compare a model with the graph that was staged of it.

    Parameters
    ----------
    model : Any
        As :func:`dycl_tvm.build` takes it.
    graph : HCFG
        Before the passes.
    call : (tuple, dict), optional
        Example inputs; by default random ones of the graph's types.
    input_values : dict, optional
        Inputs of an ONNX model that are fixed.
    budget : Budget, optional
        By default that of a build at this level.
    device : str
        As which machine the model draws random numbers, ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    VerificationError
        If they differ.
    """
    args, kwargs = call if call is not None else example_call(graph, seed)
    if isinstance(model, torch.export.ExportedProgram):
        return check_by_inputs(exported_reference(model), graph, (args, kwargs), level, seed)
    if callable(model):
        return check_control(model, graph, args, kwargs, level=level, seed=seed, budget=budget, device=device)
    try:
        reference = onnx_reference(model, dict(input_values) if input_values else None)
    except DyclError:
        raise
    except Exception as error:
        return Control(reason=f"no reference runs {os.path.basename(str(model))[:60]}: {type(error).__name__}")
    return check_by_inputs(reference, graph, (args, kwargs), level, seed)
