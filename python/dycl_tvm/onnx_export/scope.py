# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Nested ONNX graphs under construction: names, types, constants, and the bodies of ``If`` and ``Loop``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dycl_tvm.hcfg.types import ScalarType, TensorType, Type

#: Element types of ONNX by dtype name.
ELEMENT = {
    "float64": TensorProto.DOUBLE, "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16,
    "int64": TensorProto.INT64, "int32": TensorProto.INT32, "int16": TensorProto.INT16, "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8, "bool": TensorProto.BOOL,
}  # fmt: skip
#: The dtypes of host scalars; they are tensors of rank 0.
SCALAR_DTYPE = {"int": "int64", "float": "float64", "bool": "bool"}


def dtype_of(type_: Type) -> str:
    """Return the dtype that a value of an HCFG has in ONNX."""
    return SCALAR_DTYPE[type_.kind] if isinstance(type_, ScalarType) else type_.dtype


def shape_of(type_: Type) -> tuple[int, ...]:
    """Return the shape that a value of an HCFG has in ONNX."""
    return type_.shape if isinstance(type_, TensorType) else ()


class Scope:
    """One graph; a nested one sees the names of those around it.

    Attributes
    ----------
    nodes : list of NodeProto
    root : Scope
        The outermost one, which holds the initializers.
    depth : int
        Number of scopes around it.
    in_loop : bool
        Whether it is part of a loop's body.
    """

    def __init__(self, parent: Scope | None = None, is_loop: bool = False) -> None:
        self.parent = parent
        self.in_loop: bool = is_loop or (parent is not None and parent.in_loop)
        self.root: Scope = parent.root if parent is not None else self
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.nodes: list[onnx.NodeProto] = []
        self._own: set[str] = set()
        if parent is None:
            self.initializers: dict[str, TensorProto] = {}
            self.dtypes: dict[str, str] = {}
            self._taken: set[str] = set()
            self._counts: dict[str, int] = {}
            self._constants: dict[Any, str] = {}

    # -- names ---------------------------------------------------------------------------------------------------------
    def reserve(self, name: str, dtype: str) -> str:
        """Define a name as it is (inputs)."""
        assert name not in self.root._taken, name
        self.root._taken.add(name)
        return self._define(name, dtype)

    def fresh(self, hint: str, dtype: str) -> str:
        """Define a new name in this scope."""
        root, base = self.root, hint or "v"
        name = base
        while not name or name in root._taken:
            root._counts[base] = root._counts.get(base, 0) + 1
            name = f"{base}_{root._counts[base]}"
        root._taken.add(name)
        return self._define(name, dtype)

    def _define(self, name: str, dtype: str) -> str:
        self._own.add(name)
        self.root.dtypes[name] = dtype
        return name

    def sees(self, name: str) -> bool:
        """Tell whether a name is defined in this scope or in one around it."""
        return name in self._own or (self.parent is not None and self.parent.sees(name))

    # -- values ----------------------------------------------------------------------------------------------------------
    def constant(self, value: Any, dtype: str, hint: str = "const") -> str:
        """Return the name of an initializer for a NumPy array or number; equal small ones are one."""
        array = np.asarray(value, dtype=dtype)
        key = (dtype, array.shape, array.tobytes())
        root = self.root
        if key not in root._constants:
            name = root.fresh(hint, dtype)
            root.initializers[name] = numpy_helper.from_array(array, name)
            root._constants[key] = name
        return root._constants[key]

    def empty(self, dtype: str, rank: int = 1) -> str:
        """Return the name of a tensor without elements (a zero, if the rank is 0): the value of what a path does not give."""
        root = self.root
        key = ("empty", dtype, rank)
        if key not in root._constants:
            name = root.fresh(f"none_{dtype}", dtype)
            root.initializers[name] = helper.make_tensor(name, ELEMENT[dtype], (0,) * rank, [] if rank else [0])
            root._constants[key] = name
        return root._constants[key]

    def spare(self, type_: Type, full: bool) -> str:
        """Return a value for what a path does not give: of the type's shape if ``full``, else without elements."""
        dtype, shape = dtype_of(type_), shape_of(type_)
        if not full or not shape:
            return self.empty(dtype, len(shape))
        zero = helper.make_tensor("zero", ELEMENT[dtype], (1,), [0])
        return self.emit("ConstantOfShape", [self.constant(shape, "int64", "shape")], dtype, "none", value=zero)

    def emit(self, op: str, inputs: Sequence[str], dtype: str, hint: str = "", **attributes: Any) -> str:
        """Append a node with one output and return its name."""
        name = self.fresh(hint or op.lower(), dtype)
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def cast(self, name: str, dtype: str) -> str:
        """Return a value in another dtype."""
        if self.root.dtypes[name] == dtype:
            return name
        return self.emit("Cast", [name], dtype, "cast", to=ELEMENT[dtype])

    # -- bodies --------------------------------------------------------------------------------------------------------
    def body(self, name: str, outputs: Sequence[str], inputs: Sequence[str] = ()) -> onnx.GraphProto:
        """Close the scope: return its graph. What an output names must be made by a node of the graph itself, and once."""
        made = {o for node in self.nodes for o in node.output}
        used: set[str] = set()
        infos = []
        for output in outputs:
            if output not in made or output in used:
                output = self.emit("Identity", [output], self.root.dtypes[output], "pass")
            used.add(output)
            infos.append(helper.make_tensor_value_info(output, ELEMENT[self.root.dtypes[output]], None))
        # The first two inputs of a loop's body, which are all that has a shape that never changes, must say so.
        given = [helper.make_tensor_value_info(i, ELEMENT[self.root.dtypes[i]], () if k < 2 else None) for k, i in enumerate(inputs)]
        return helper.make_graph(self.nodes, name, given, infos)
