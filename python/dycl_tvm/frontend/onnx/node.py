# Licensed under the Apache License, Version 2.0; see LICENSE.
"""One ONNX node as converters see it, and the registry of converters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from dycl_tvm.errors import UnsupportedError, UsageError
from dycl_tvm.frontend.onnx.values import NeedsValue, causes_of, is_runtime
from dycl_tvm.hcfg.nodes import Origin

Converter = Callable[..., Any]

#: Converters by operator; those of another domain than ONNX's own have it before a colon.
CONVERTERS: dict[str, Converter] = {}

_F = onnx.TensorProto
#: ONNX element types that PyTorch has.
DTYPES: dict[int, torch.dtype] = {
    _F.FLOAT: torch.float32, _F.DOUBLE: torch.float64, _F.FLOAT16: torch.float16, _F.BFLOAT16: torch.bfloat16,
    _F.INT64: torch.int64, _F.INT32: torch.int32, _F.INT16: torch.int16, _F.INT8: torch.int8, _F.UINT8: torch.uint8, _F.BOOL: torch.bool,
    _F.UINT16: torch.uint16, _F.UINT32: torch.uint32, _F.UINT64: torch.uint64,
    _F.FLOAT8E4M3FN: torch.float8_e4m3fn, _F.FLOAT8E5M2: torch.float8_e5m2,
    _F.FLOAT8E4M3FNUZ: torch.float8_e4m3fnuz, _F.FLOAT8E5M2FNUZ: torch.float8_e5m2fnuz,
}  # fmt: skip


def op(*names: str) -> Callable[[Converter], Converter]:
    """Register a converter: ``fn(node, *inputs)`` returns one datum, or a tuple of data for several outputs.

    It is ordinary PyTorch code; a left-out optional input is None.
    """

    def register(fn: Converter) -> Converter:
        for name in names:
            CONVERTERS[name] = fn
        return fn

    return register


class Node:
    """A node of an ONNX graph.

    Attributes
    ----------
    proto : onnx.NodeProto
    opset : int
        Version of the operator set of the node's domain.
    attributes : dict
        The node's attributes as Python values; tensors are ``torch.Tensor``.
    outputs : int
        Number of declared outputs; one that is left out counts.
    at_run_time : bool
        Whether sizes may be known only at run time.
    """

    at_run_time = False

    def __init__(self, proto: Any, opset: int, origin: Origin, outer: Mapping[str, Any] | None = None) -> None:
        self.proto, self.opset, self.origin = proto, opset, origin
        self.outputs = len(proto.output)
        self.protos: dict[str, Any] = {}
        for attribute in proto.attribute:
            if not attribute.ref_attr_name:
                self.protos[attribute.name] = attribute
            elif attribute.ref_attr_name in (outer or {}):
                # A reference in the body of a function to an attribute of its call.
                self.protos[attribute.name] = (outer or {})[attribute.ref_attr_name]
        self.attributes: dict[str, Any] = {name: attribute_value(a, origin) for name, a in self.protos.items()}

    @property
    def type(self) -> str:
        """The operator."""
        return str(self.proto.op_type)

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or what stands for it where it is left out."""
        return self.attributes.get(name, default)

    def wants(self, k: int) -> bool:
        """Whether output ``k`` is read by anybody."""
        return k < self.outputs and bool(self.proto.output[k])

    def fail(self, reason: str, suggestion: str = "") -> NoReturn:
        """Refuse the node."""
        raise UnsupportedError(f"{self.type}: {reason}", self.origin, suggestion)

    def static(self, t: torch.Tensor, what: str) -> torch.Tensor:
        """Return a tensor that must be known at build time.

        Raises
        ------
        NeedsValue
            If it is not.
        """
        if is_runtime(t):
            raise NeedsValue(f"{self.type}: {what} must be known when the network is built", self.origin, causes_of(t))
        return t

    def ints(self, t: torch.Tensor | None, what: str) -> list[int] | None:
        """Return the numbers in a tensor that must be known at build time; None if there is no tensor."""
        return None if t is None else [int(v) for v in self.static(t, what).reshape(-1).tolist()]

    def int(self, t: torch.Tensor, what: str) -> int:
        """Return the one number in a tensor that must be known at build time."""
        return int(self.static(t, what).reshape(-1)[0].item())

    def input_or_attr(self, t: torch.Tensor | None, name: str, default: Any = None) -> list[Any] | None:
        """Return a list of numbers that newer operator sets give as an input and older ones as an attribute."""
        if t is not None:
            return self.ints(t, f"the input {name}")
        found: list[Any] | None = self.attr(name, default)
        return found


def attribute_value(attribute: Any, origin: Origin) -> Any:
    """Return an attribute as a Python value; graphs and types stay as they are."""
    kind = onnx.AttributeProto.AttributeType.Name(attribute.type)
    if kind == "FLOAT":
        return float(attribute.f)
    if kind == "INT":
        return int(attribute.i)
    if kind == "STRING":
        return attribute.s.decode("utf-8", "replace")
    if kind == "TENSOR":
        return tensor_of(attribute.t, origin)
    if kind == "GRAPH":
        return attribute.g
    if kind == "FLOATS":
        return [float(v) for v in attribute.floats]
    if kind == "INTS":
        return [int(v) for v in attribute.ints]
    if kind == "STRINGS":
        return [v.decode("utf-8", "replace") for v in attribute.strings]
    if kind == "TENSORS":
        return [tensor_of(t, origin) for t in attribute.tensors]
    if kind == "TYPE_PROTO":
        return attribute.tp
    return attribute  # sparse tensors: the converter refuses them by name


def tensor_of(proto: Any, origin: Origin | None = None, base: str = "") -> torch.Tensor:
    """Return a tensor of an ONNX model."""
    dtype = DTYPES.get(proto.data_type)
    if dtype is None:
        name = onnx.TensorProto.DataType.Name(proto.data_type).lower()
        raise UnsupportedError(
            f"a tensor of {name} ({proto.name or 'without a name'})", origin, "use one of the numeric types of 8 bits or more"
        )
    try:
        return from_array(numpy_helper.to_array(proto, base), dtype)
    except (onnx.checker.ValidationError, OSError) as error:
        raise UsageError(f"the data of {proto.name or 'a tensor'!r} cannot be read: {error}") from error


def from_array(array: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a NumPy array as a tensor; ``dtype`` names the type of the ones that NumPy itself does not have."""
    array = np.asarray(array)
    shape = array.shape
    array = np.array(array, order="C", copy=True).reshape(shape)
    if dtype is None:
        dtype = getattr(torch, array.dtype.name)
    if array.dtype.name in _NUMPY_NAMES:
        return torch.from_numpy(array)
    integer = {1: np.uint8, 2: np.uint16}[array.dtype.itemsize]
    return torch.from_numpy(array.view(integer)).view(dtype)


_NUMPY_NAMES = frozenset(
    {"float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"}
)
