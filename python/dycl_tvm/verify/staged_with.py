# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The options with which a model was staged, as they stand in its library: with them it gives the same graph again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dycl_tvm.hcfg.sizes import Dim

#: Options whose values are arrays by name.
_ARRAYS = "input_values"


#: Options in which sizes stand for dimensions.
_SIZES = "dynamic_shapes"


def as_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, in the types of JSON."""
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    kinds = {_ARRAYS: _arrays, _SIZES: _sizes}
    return {name: kinds.get(name, _plain)(value) for name, value in given.items()}


def from_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what :func:`as_json` was given."""
    kinds: dict[str, Any] = {_ARRAYS: _arrays_of, _SIZES: _sizes_of}
    return {name: kinds.get(name, lambda x: x)(value) for name, value in options.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, (bool, str)) else float(value) if isinstance(value, float) else int(value)


def _sizes(value: Any) -> Any:
    """Return what says of inputs which sizes they have; keys of dicts are names or numbers of dimensions."""
    if isinstance(value, Mapping):
        return {"dict": [[key, _sizes(v)] for key, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_sizes(v) for v in value]
    size = Dim.of(value)
    return value if size is None else {"size": [size.name, size.min, size.max, size.factor, size.constant]}


def _sizes_of(value: Any) -> Any:
    if isinstance(value, list):
        return [_sizes_of(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "dict" in value:
        return {key: _sizes_of(v) for key, v in value["dict"]}
    name, least, most, factor, constant = value["size"]
    return Dim(name, min=least, max=most) * factor + constant


def _arrays_of(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: np.array(v["values"], v["dtype"]).reshape(v["shape"]) for key, v in values.items()}


def _arrays(values: Mapping[str, Any]) -> dict[str, Any]:
    arrays = {key: np.asarray(value) for key, value in values.items()}
    return {key: {"dtype": str(a.dtype), "shape": list(a.shape), "values": a.reshape(-1).tolist()} for key, a in arrays.items()}
