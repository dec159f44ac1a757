# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The whole network as one ONNX model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import helper

from dycl_tvm._version import __version__
from dycl_tvm.hcfg.nodes import HCFG, Constant, Value
from dycl_tvm.onnx_export.guards import with_guards
from dycl_tvm.onnx_export.operators import OPSET
from dycl_tvm.onnx_export.outputs import Outputs
from dycl_tvm.onnx_export.scope import ELEMENT, Scope, dtype_of, shape_of
from dycl_tvm.onnx_export.sizes import buffer, extent, from_extents, input_shape, sized_dims
from dycl_tvm.onnx_export.structure import Structurer

#: The key of the description among the metadata of a model.
METADATA_KEY = "dycl_tvm"
#: Weights of more bytes go to a file of their own: a protobuf message ends at 2 GiB.
EXTERNAL_FROM = 1 << 30
#: Version 10 of the file format: ONNX 1.16, which run times of the last years read.
IR_VERSION = 10


def to_model(graph: HCFG) -> onnx.ModelProto:
    """Return a graph, after the passes, as an ONNX model.

    Raises
    ------
    UsageError
        If onnxscript is missing.
    UnsupportedError
        For what ONNX has no form for; it names the user's line.
    """
    guarded = with_guards(from_extents(graph))
    outputs = Outputs(guarded)
    scope = Scope()
    env: dict[Value, str] = {}
    params, dims = guarded.entry.params, sized_dims(graph)
    leaves, extents, variables = (
        params[: len(graph.input_names)],
        params[len(graph.input_names) :][: len(dims)],
        params[len(graph.input_names) + len(dims) :],
    )
    for name, param in zip([*graph.input_names, *outputs.state], [*leaves, *variables], strict=True):
        env[param] = scope.reserve(name, dtype_of(param.type))
    inputs = [
        *(helper.make_tensor_value_info(env[p], ELEMENT[dtype_of(p.type)], input_shape(graph, k)) for k, p in enumerate(leaves)),
        *(helper.make_tensor_value_info(env[p], ELEMENT[dtype_of(p.type)], shape_of(p.type)) for p in variables),
    ]
    for name, dtype, _ in outputs.infos():
        scope.reserve(name, dtype)
    for param, dim in zip(extents, dims):
        env[param] = extent(scope, dim, graph.input_names[dim.input])
    for k, param in enumerate(leaves):
        env[param] = buffer(scope, graph, k, env[param])
    constants: dict[Constant, str] = {}

    def constant(value: Constant) -> str:
        if value not in constants:
            name = constants[value] = scope.fresh(value.name or "constant", dtype_of(value.type))
            scope.initializers[name] = _tensor(value.data, name)
        return constants[value]

    results = outputs.cut(scope, Structurer(guarded, outputs.leave, outputs.types, constant).run(scope, env))
    # A state variable is an input with a default: its value before the first call.
    for name, var in zip(outputs.state, graph.state, strict=True):
        data = var.initial.data if isinstance(var.initial, Constant) else None
        scope.initializers[name] = (
            _tensor(data, name) if data is not None else helper.make_tensor(name, ELEMENT[dtype_of(var.type)], (), [var.initial])
        )
    for result, (name, _, _) in zip(results, outputs.infos(), strict=True):
        scope.nodes.append(helper.make_node("Identity", [result], [name]))
    infos = [helper.make_tensor_value_info(name, ELEMENT[dtype], shape) for name, dtype, shape in outputs.infos()]
    body = helper.make_graph(scope.nodes, graph.name, inputs, infos, list(scope.initializers.values()))
    model = helper.make_model(body, producer_name="dycl_tvm", producer_version=__version__, ir_version=IR_VERSION,
                              opset_imports=[helper.make_opsetid("", OPSET)])  # fmt: skip
    helper.set_model_props(model, {METADATA_KEY: json.dumps(outputs.description())})
    return model


def export_model(graph: HCFG, path: str | os.PathLike[str], *, external_data: bool | None = None) -> Path:
    """Write a graph, after the passes, as one ONNX model.

    Parameters
    ----------
    graph : HCFG
    path : path-like
        Usually ends in ``.onnx``.
    external_data : bool, optional
        Put the weights into a file of their own, ``<path>.data``; by default only if there is more than 1 GiB of them.
    """
    model = to_model(graph)
    out = Path(path)
    size = sum(len(t.raw_data) for t in model.graph.initializer)
    if external_data or (external_data is None and size > EXTERNAL_FROM):
        out.with_name(out.name + ".data").unlink(missing_ok=True)  # onnx appends to a file that is there
        onnx.save_model(
            model, str(out), save_as_external_data=True, all_tensors_to_one_file=True, location=out.name + ".data", size_threshold=1024
        )
    else:
        onnx.save_model(model, str(out))
    return out


def _tensor(data: Any, name: str) -> onnx.TensorProto:
    """Return a torch tensor as an ONNX tensor."""
    dtype = str(data.dtype).removeprefix("torch.")
    tensor = onnx.TensorProto(name=name, data_type=ELEMENT[dtype], dims=list(data.shape))
    tensor.raw_data = data.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b""
    return tensor
