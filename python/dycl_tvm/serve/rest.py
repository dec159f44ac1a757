# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Requests and responses as the bodies of HTTP: JSON, with tensors behind it where the client wants the binary extension."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dycl_tvm.serve.datatypes import check_datatype, check_shape, from_bytes, from_nested, to_bytes, to_items
from dycl_tvm.serve.failures import invalid
from dycl_tvm.serve.messages import Parameter, Request, Response, Tensor

#: Tells of each output, by its name, whether its elements are wanted as bytes.
AsBytes = Callable[[str], bool]


def decode(body: bytes, json_length: str | None) -> tuple[Request, AsBytes]:
    """Read a request.

    Parameters
    ----------
    body : bytes
    json_length : str, optional
        The header Inference-Header-Content-Length: how much of the body is JSON. Left out: all.

    Raises
    ------
    RequestError
        If it is no request of the protocol; the message says where.
    """
    if json_length is None:
        head, rest = memoryview(body), memoryview(b"")
    else:
        if not re.fullmatch("[0-9]{1,18}", json_length) or int(json_length) > len(body):
            raise invalid(f"Inference-Header-Content-Length is {json_length!r:.40}, but the body has {len(body)} bytes")
        head, rest = memoryview(body)[: int(json_length)], memoryview(body)[int(json_length) :]
    try:
        document = json.loads(bytes(head))
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is not JSON: {error!s:.200}") from None
    if not isinstance(document, dict):
        raise invalid("the body must be a JSON object")
    inputs: dict[str, Tensor] = {}
    for item in _objects(document, "inputs", required=True):
        name = _name(item, "an input")
        if name in inputs:
            raise invalid(f"the input '{name}' is given twice")
        array, rest = _array(item, name, rest)
        inputs[name] = Tensor(name, item["datatype"], array)
    if len(rest):
        raise invalid(f"{len(rest)} bytes follow that belong to no input")
    parameters = _parameters(document, "the request")
    default = _flag(parameters, "binary_data_output", False)
    wanted = {_name(item, "an output"): _parameters(item, "an output") for item in _objects(document, "outputs")}
    for name, asked in wanted.items():
        _refuse(asked, f"the output '{name:.80}'", "classification", "shared_memory_region")
    as_bytes = {name: _flag(asked, "binary_data", default) for name, asked in wanted.items()}
    identity = document.get("id", "")
    if not isinstance(identity, str):
        raise invalid("the id must be a string")
    return Request(inputs, list(wanted) or None, identity, parameters), lambda name: as_bytes.get(name, default)


def encode(response: Response, as_bytes: AsBytes) -> tuple[bytes, int | None]:
    """Return the body of a response, and how much of it is JSON if that is not all."""
    tail: list[bytes] = []
    outputs = []
    for tensor in response.outputs:
        shown: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.array.shape)}
        if as_bytes(tensor.name):
            tail.append(to_bytes(tensor.datatype, tensor.array))
            shown["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            shown["data"] = to_items(tensor.datatype, tensor.array)
        outputs.append(shown)
    document = {"model_name": response.model, "model_version": response.version, "parameters": response.parameters, "outputs": outputs}
    if response.id:
        document["id"] = response.id
    head = json.dumps(document, separators=(",", ":")).encode()
    return (b"".join([head, *tail]), len(head)) if tail else (head, None)


def _array(item: dict[str, Any], name: str, rest: memoryview) -> tuple[np.ndarray[Any, Any], memoryview]:
    """Return the tensor of an input, and what is left of the bytes behind the JSON."""
    where = f"input '{name:.80}'"
    datatype, shape = check_datatype(where, item.get("datatype")), check_shape(where, item.get("shape"))
    parameters = _parameters(item, where)
    _refuse(parameters, where, "shared_memory_region")
    size = parameters.get("binary_data_size")
    if size is None:
        if "data" not in item:
            raise invalid(f"{where}: there is neither data nor binary_data_size")
        return from_nested(where, datatype, shape, item["data"]), rest
    if "data" in item:
        raise invalid(f"{where}: there is both data and binary_data_size")
    if type(size) is not int or not 0 <= size <= len(rest):
        raise invalid(f"{where}: binary_data_size is {size!r:.40}, but {len(rest)} bytes are left behind the JSON")
    return from_bytes(where, datatype, shape, rest[:size]), rest[size:]


def _objects(document: dict[str, Any], key: str, required: bool = False) -> list[dict[str, Any]]:
    items = document.get(key, None if required else [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise invalid(f"'{key}' must be a list of objects")
    return items


def _name(item: dict[str, Any], what: str) -> str:
    name = item.get("name")
    if not isinstance(name, str):
        raise invalid(f"{what} has no name")
    return name


def _parameters(item: dict[str, Any], where: str) -> dict[str, Parameter]:
    parameters = item.get("parameters", {})
    if not isinstance(parameters, dict) or not all(isinstance(value, (bool, int, float, str)) for value in parameters.values()):
        raise invalid(f"{where}: the parameters must be an object of booleans, numbers and strings")
    return parameters


def _flag(parameters: Mapping[str, Parameter], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise invalid(f"the parameter {name} must be true or false, got {value!r:.40}")
    return value


def _refuse(parameters: Mapping[str, Parameter], where: str, *names: str) -> None:
    for name in names:
        if name in parameters:
            raise invalid(f"{where}: this server does not have the extension of the parameter {name}")
