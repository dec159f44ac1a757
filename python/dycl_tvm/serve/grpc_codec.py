# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Requests and responses as messages of protobuf."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dycl_tvm.serve.datatypes import check_datatype, check_shape, from_bytes, from_items, to_bytes
from dycl_tvm.serve.failures import invalid
from dycl_tvm.serve.grpc_messages import ModelInferResponse
from dycl_tvm.serve.messages import Parameter, Request, Response, Tensor

#: The field of InferTensorContents that has the elements of a data type; the others come as raw bytes only.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


def decode(message: Any) -> Request:
    """Read a ModelInferRequest.

    Raises
    ------
    RequestError
        If it makes no sense; the message says where.
    """
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise invalid(f"raw_input_contents has {len(raw)} entries for {len(message.inputs)} inputs")
    inputs: dict[str, Tensor] = {}
    for k, item in enumerate(message.inputs):
        where = f"input '{item.name:.80}'"
        if item.name in inputs:
            raise invalid(f"{where} is given twice")
        _refuse(item.parameters, where, "shared_memory_region")
        datatype, shape = check_datatype(where, item.datatype), check_shape(where, list(item.shape))
        if raw and item.HasField("contents"):
            raise invalid(f"{where} has contents although there are raw_input_contents")
        inputs[item.name] = Tensor(
            item.name, datatype, from_bytes(where, datatype, shape, raw[k]) if raw else _array(where, datatype, shape, item)
        )
    for output in message.outputs:
        _refuse(output.parameters, f"the output '{output.name:.80}'", "classification", "shared_memory_region")
    return Request(inputs, [output.name for output in message.outputs] or None, message.id, _parameters(message.parameters))


def encode(response: Response) -> Any:
    """Return a ModelInferResponse with its outputs as raw bytes."""
    message = ModelInferResponse(model_name=response.model, model_version=response.version, id=response.id)
    for name, value in response.parameters.items():
        field = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
        if isinstance(value, int) and value >= 2**63:
            field = "uint64_param"
        setattr(message.parameters[name], field, value)
    for tensor in response.outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.array.shape)
        message.raw_output_contents.append(to_bytes(tensor.datatype, tensor.array))
    return message


def _array(where: str, datatype: str, shape: tuple[int, ...], item: Any) -> np.ndarray[Any, Any]:
    if datatype not in _CONTENTS:
        raise invalid(f"{where}: {datatype} comes in raw_input_contents only")
    filled: Sequence[str] = [field.name for field, _ in item.contents.ListFields()]
    if any(name != _CONTENTS[datatype] for name in filled):
        raise invalid(f"{where}: the elements of {datatype} are in {_CONTENTS[datatype]}, got {', '.join(filled)}")
    values = getattr(item.contents, _CONTENTS[datatype])
    if datatype in ("FP32", "FP64", "INT64", "UINT64", "INT32", "UINT32") and len(values) == math.prod(shape):
        return np.array(values, {"FP32": "float32", "FP64": "float64"}.get(datatype, datatype.lower())).reshape(shape)
    return from_items(where, datatype, shape, list(values))


def _parameters(fields: Mapping[str, Any]) -> dict[str, Parameter]:
    found: dict[str, Parameter] = {}
    for name, value in fields.items():
        chosen = value.WhichOneof("parameter_choice")
        if chosen is None:
            raise invalid(f"the parameter {name:.80} has no value")
        found[name] = getattr(value, chosen)
    return found


def _refuse(parameters: Mapping[str, Any], where: str, *names: str) -> None:
    for name in names:
        if name in parameters:
            raise invalid(f"{where}: this server does not have the extension of the parameter {name}")
