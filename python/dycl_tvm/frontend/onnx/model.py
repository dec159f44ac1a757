# Licensed under the Apache License, Version 2.0; see LICENSE.
"""An ONNX model as a file or in memory: loading, versions, and what its inputs are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from dycl_tvm.errors import UsageError
from dycl_tvm.frontend.onnx.node import DTYPES
from dycl_tvm.frontend.onnx.values import DTYPE_NAMES

#: Operator sets of ONNX's own domain that converters know.
OPSETS = (7, 28)

Shapes = Mapping[str, Any]


@dataclass
class Model:
    """A loaded model.

    Attributes
    ----------
    proto : onnx.ModelProto
    file : str
        Its file, or its name where it has none.
    base : str
        The folder of its external data.
    opsets : dict
        Version by domain.
    functions : dict
        The model's own functions by domain and name.
    """

    proto: Any
    file: str
    base: str
    opsets: dict[str, int]
    functions: dict[tuple[str, str], Any]


def load_model(model: Any) -> Model:
    """Load a model and check that its versions are known.

    Raises
    ------
    UsageError
        If it cannot be read, or is newer than this package.
    """
    file, base = "", ""
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        file, base = str(path), str(path.parent)
        try:
            # External data is read by need, when an initializer is.
            model = onnx.load(str(path), load_external_data=False)
        except FileNotFoundError:
            raise UsageError(f"there is no file {path}") from None
        except Exception as error:  # protobuf has no common base class for its errors
            raise UsageError(f"{path} is not an ONNX model: {error}") from error
    if not model.graph.node and not model.graph.output:
        raise UsageError(f"{file or 'the model'} has an empty graph")
    opsets = {("" if o.domain == "ai.onnx" else o.domain): int(o.version) for o in model.opset_import}
    version = opsets.setdefault("", OPSETS[1])
    if not OPSETS[0] <= version <= OPSETS[1]:
        raise UsageError(
            f"{file or 'the model'} uses operator set {version}; {OPSETS[0]} to {OPSETS[1]} are supported "
            "(onnx.version_converter changes it)"
        )
    functions = {(f.domain, f.name): f for f in model.functions}
    return Model(model, file or model.graph.name or "model", base, opsets, functions)


@dataclass
class Input:
    """An input of the graph.

    Attributes
    ----------
    name : str
    shape : tuple, list or None
        Of a tensor; of a sequence, a list of those of its items; None: an optional without an element.
    dtype : torch.dtype
    """

    name: str
    shape: Any
    dtype: Any


def inputs_of(model: Model, shapes: Shapes | None, fixed: Mapping[str, Any]) -> list[Input]:
    """Return the inputs that the artefact will have; weights and inputs of fixed value are none.

    Parameters
    ----------
    model : Model
    shapes : mapping, optional
        From the name of an input to its shape, or from the name of a symbolic dimension to its size.
    fixed : mapping
        The inputs whose values are fixed.

    Raises
    ------
    UsageError
        If a dimension has no size, or a name in ``shapes`` or ``fixed`` is unknown.
    """
    graph, given = model.proto.graph, dict(shapes or {})
    weights = {i.name for i in graph.initializer}
    inputs = [i for i in graph.input if i.name not in weights]
    names = [i.name for i in inputs]
    dims = {d.dim_param for i in inputs for d in _dims(i.type) if d.dim_param}
    for name in given:
        if name not in names and name not in dims:
            known = f"inputs: {', '.join(names)}" + (f"; symbolic dimensions: {', '.join(sorted(dims))}" if dims else "")
            raise UsageError(f"input_shapes has {name!r}, which is neither an input nor a symbolic dimension of the model ({known})")
    for name in fixed:
        if name not in [i.name for i in graph.input]:
            raise UsageError(f"input_values has {name!r}, which is no input of the model; there are {', '.join(names)}")
    return [_input(i, given) for i in inputs if i.name not in fixed]


def _dims(type_: Any) -> Sequence[Any]:
    kind = type_.WhichOneof("value")
    if kind == "tensor_type":
        dims: Sequence[Any] = type_.tensor_type.shape.dim
        return dims
    if kind in ("sequence_type", "optional_type"):
        return _dims(getattr(type_, kind).elem_type)
    return ()


def _input(info: Any, given: dict[str, Any]) -> Input:
    name, type_ = info.name, info.type
    kind = type_.WhichOneof("value")
    if kind == "optional_type":
        if name in given and given[name] is None:
            return Input(name, None, None)
        type_ = type_.optional_type.elem_type
        kind = type_.WhichOneof("value")
    if kind == "sequence_type":
        element = type_.sequence_type.elem_type
        if name not in given:
            raise UsageError(
                f"the input {name!r} is a sequence; say how long it is and of what shapes its items are: "
                f"input_shapes={{{name!r}: [(2, 3), (4, 3)]}}"
            )
        return Input(name, [_sizes(name, element, shape, given) for shape in given[name]], _dtype(name, element))
    if kind != "tensor_type":
        raise UsageError(f"the input {name!r} is a {kind}; tensors, sequences and optionals are supported")
    return Input(name, _sizes(name, type_, given.get(name), given), _dtype(name, type_))


def _dtype(name: str, type_: Any) -> Any:
    found = DTYPES.get(type_.tensor_type.elem_type)
    if found not in DTYPE_NAMES:
        kind = onnx.TensorProto.DataType.Name(type_.tensor_type.elem_type).lower()
        raise UsageError(f"the input {name!r} has elements of {kind}; supported are {', '.join(DTYPE_NAMES.values())}")
    return found


def _sizes(name: str, type_: Any, shape: Any, given: dict[str, Any]) -> tuple[int, ...]:
    dims, ranked = type_.tensor_type.shape.dim, type_.tensor_type.HasField("shape")
    if shape is not None:
        if not all(isinstance(s, int) and s >= 0 for s in shape):
            raise UsageError(f"input_shapes[{name!r}] is {shape!r}; give one size for each dimension")
        if ranked and len(shape) != len(dims):
            raise UsageError(f"input_shapes[{name!r}] has {len(shape)} dimensions, the model has {len(dims)}")
        for k, (size, dim) in enumerate(zip(shape, dims)):
            if dim.HasField("dim_value") and dim.dim_value != size:
                raise UsageError(f"input_shapes[{name!r}] has size {size} in dimension {k}, the model has {dim.dim_value}")
        return tuple(shape)
    if not ranked:
        raise UsageError(
            f"the input {name!r} has no shape in the model; shapes are fixed at build time: input_shapes={{{name!r}: (1, 3, 224, 224)}}"
        )
    sizes = []
    for k, dim in enumerate(dims):
        if dim.HasField("dim_value"):
            sizes.append(int(dim.dim_value))
        elif isinstance(given.get(dim.dim_param), int) and given[dim.dim_param] >= 0:
            sizes.append(given[dim.dim_param])
        else:
            shown = ", ".join(str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims)
            example = ", ".join(str(d.dim_value) if d.HasField("dim_value") else "1" for d in dims) + ("," if len(dims) == 1 else "")
            by_name = f", or its symbol: input_shapes={{{dim.dim_param!r}: 1}}" if dim.dim_param else ""
            raise UsageError(
                f"dimension {k} of the input {name!r} ({shown}) has no size, and shapes are fixed at build time; "
                f"give the shape: input_shapes={{{name!r}: ({example})}}{by_name}"
            )
    return tuple(sizes)
