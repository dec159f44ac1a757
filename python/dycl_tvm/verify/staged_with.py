# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The options with which a model was staged, as they stand in its library: with them it gives the same graph again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

#: Options whose values are arrays by name.
_ARRAYS = "input_values"


def as_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, in the types of JSON."""
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    return {name: _arrays(value) if name == _ARRAYS else _plain(value) for name, value in given.items()}


def from_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what :func:`as_json` was given."""
    return {
        name: {key: np.array(v["values"], v["dtype"]).reshape(v["shape"]) for key, v in value.items()} if name == _ARRAYS else value
        for name, value in options.items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, (bool, str)) else float(value) if isinstance(value, float) else int(value)


def _arrays(values: Mapping[str, Any]) -> dict[str, Any]:
    arrays = {key: np.asarray(value) for key, value in values.items()}
    return {key: {"dtype": str(a.dtype), "shape": list(a.shape), "values": a.reshape(-1).tolist()} for key, a in arrays.items()}
