# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Requests and responses of the Open Inference Protocol, as HTTP and gRPC have them in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: A value of a request's or response's parameters.
Parameter = bool | int | float | str


@dataclass(frozen=True)
class Tensor:
    """A tensor on its way; ``array`` has the elements as ``datatype`` stores them (BF16: its bits), BYTES as an array of objects."""

    name: str
    datatype: str
    array: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Request:
    """An inference request. ``outputs`` are the names that are wanted; None: all."""

    inputs: Mapping[str, Tensor]
    outputs: Sequence[str] | None = None
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True)
class Response:
    """The answer to a request."""

    model: str
    version: str
    outputs: Sequence[Tensor]
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
