# Licensed under the Apache License, Version 2.0; see LICENSE.
"""An ONNX model as a file or in memory: loading, versions, and what its inputs are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from dycl_tvm.errors import UsageError
from dycl_tvm.frontend.onnx.narrow import widened
from dycl_tvm.frontend.onnx.node import DTYPES
from dycl_tvm.frontend.onnx.values import DTYPE_NAMES
from dycl_tvm.hcfg.sizes import Dim

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
    return Model(widened(model, base), file or model.graph.name or "model", base, opsets, functions)


@dataclass
class Input:
    """An input of the graph.

    Attributes
    ----------
    name : str
    shape : tuple, list or None
        Of a tensor; of a sequence, a list of those of its items; None: an optional without an element.
    dtype : torch.dtype
    open : dict of int to Dim
        The dimensions of a tensor that each call decides; in ``shape`` they are at their largest.
    """

    name: str
    shape: Any
    dtype: Any
    open: dict[int, Dim] = field(default_factory=dict)


def inputs_of(
    model: Model, shapes: Shapes | None, fixed: Mapping[str, Any], dynamic_shapes: Mapping[str, Any] | None = None
) -> list[Input]:
    """Return the inputs that the artefact will have; weights and inputs of fixed value are none.

    Parameters
    ----------
    model : Model
    shapes : mapping, optional
        From the name of an input to its shape, or from the name of a symbolic dimension to its size.
    fixed : mapping
        The inputs whose values are fixed.
    dynamic_shapes : mapping, optional
        From the name of a symbolic dimension to a size that each call decides, or from that of an input to those of its dimensions.

    Raises
    ------
    UsageError
        If a dimension has no size, or a name in ``shapes``, ``dynamic_shapes`` or ``fixed`` is unknown.
    """
    graph, given = model.proto.graph, dict(shapes or {})
    weights = {i.name for i in graph.initializer}
    inputs = [i for i in graph.input if i.name not in weights]
    names = [i.name for i in inputs]
    dims = {d.dim_param for i in inputs for d in _dims(i.type) if d.dim_param}
    for option, of in (("input_shapes", given), ("dynamic_shapes", dynamic_shapes or {})):
        for name in of:
            if name not in names and name not in dims:
                known = f"inputs: {', '.join(names)}" + (f"; symbolic dimensions: {', '.join(sorted(dims))}" if dims else "")
                raise UsageError(f"{option} has {name!r}, which is neither an input nor a symbolic dimension of the model ({known})")
    for name in fixed:
        if name not in [i.name for i in graph.input]:
            raise UsageError(f"input_values has {name!r}, which is no input of the model; there are {', '.join(names)}")
    inputs = [i for i in inputs if i.name not in fixed]
    open_dims = _open(inputs, dynamic_shapes or {})
    return [_input(i, given, open_dims[i.name]) for i in inputs]


def left_open(model: Model, shapes: Shapes | None, fixed: Mapping[str, Any], most: int) -> dict[str, dict[int, Dim]]:
    """Return the dimensions of each input that neither the model nor ``shapes`` fix, as sizes up to ``most`` that each call decides.

    Parameters
    ----------
    model : Model
    shapes, fixed : mapping
        As those of :func:`inputs_of`.
    most : int
    """
    settled = {i.name for i in model.proto.graph.initializer} | set(fixed) | set(shapes or {})
    found = {
        i.name: {
            k: Dim(dim.dim_param or f"{i.name}_{k}", max=most)
            for k, dim in enumerate(i.type.tensor_type.shape.dim)
            if not dim.HasField("dim_value") and dim.dim_param not in settled
        }
        for i in model.proto.graph.input
        if i.name not in settled
    }
    return {name: dims for name, dims in found.items() if dims}


def _open(inputs: Sequence[Any], written: Mapping[str, Any]) -> dict[str, dict[int, Dim]]:
    """Return the dimensions of each input that each call decides; those of one symbol are equal."""
    found: dict[str, dict[int, Dim]] = {i.name: {} for i in inputs}
    symbols: dict[str, Any] = {name: size for name, size in written.items() if name not in found}
    for i in inputs:
        of, dims = written.get(i.name), _dims(i.type)
        if of is None:
            continue
        if i.type.WhichOneof("value") != "tensor_type" or not isinstance(of, (Mapping, tuple, list)):
            raise UsageError(f"dynamic_shapes[{i.name!r}] is {of!r}; {_HOW}")
        for k, size in of.items() if isinstance(of, Mapping) else enumerate(of):
            if type(k) is not int or (i.type.tensor_type.HasField("shape") and not -len(dims) <= k < len(dims)):
                raise UsageError(f"dynamic_shapes names dimension {k!r} of the input {i.name!r}, which has {len(dims)}")
            if size is not None:
                found[i.name][k % (len(dims) or k + 1)] = _size(i.name, size)
    for i in inputs:
        for k, dim in enumerate(_dims(i.type)):
            if dim.dim_param and k in found[i.name]:
                symbols.setdefault(dim.dim_param, found[i.name][k])
    for i in inputs:
        for k, dim in enumerate(_dims(i.type)):
            if dim.dim_param in symbols and k not in found[i.name]:
                found[i.name][k] = _size(dim.dim_param, symbols[dim.dim_param])
    return found


_HOW = (
    'give the bounds of a size by its symbol, dynamic_shapes={"batch": dycl_tvm.Dim("batch", max=64)}, '
    'or by input and dimension, dynamic_shapes={"x": {0: dycl_tvm.Dim("batch", max=64)}}'
)


def _size(name: str, written: Any) -> Dim:
    found = Dim.of(written)
    if found is None:
        raise UsageError(f"dynamic_shapes says {written!r} of {name!r}; {_HOW}")
    return found


def _dims(type_: Any) -> Sequence[Any]:
    kind = type_.WhichOneof("value")
    if kind == "tensor_type":
        dims: Sequence[Any] = type_.tensor_type.shape.dim
        return dims
    if kind in ("sequence_type", "optional_type"):
        return _dims(getattr(type_, kind).elem_type)
    return ()


def _input(info: Any, given: dict[str, Any], open_dims: dict[int, Dim]) -> Input:
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
        return Input(name, [_sizes(name, element, shape, given, open_dims) for shape in given[name]], _dtype(name, element))
    if kind != "tensor_type":
        raise UsageError(f"the input {name!r} is a {kind}; tensors, sequences and optionals are supported")
    return Input(name, _sizes(name, type_, given.get(name), given, open_dims), _dtype(name, type_), open_dims)


def _dtype(name: str, type_: Any) -> Any:
    found = DTYPES.get(type_.tensor_type.elem_type)
    if found not in DTYPE_NAMES:
        kind = onnx.TensorProto.DataType.Name(type_.tensor_type.elem_type).lower()
        raise UsageError(f"the input {name!r} has elements of {kind}; supported are {', '.join(DTYPE_NAMES.values())}")
    return found


def _sizes(name: str, type_: Any, shape: Any, given: dict[str, Any], open_dims: Mapping[int, Dim]) -> tuple[int, ...]:
    dims, ranked = type_.tensor_type.shape.dim, type_.tensor_type.HasField("shape")
    for k, dim in enumerate(dims):
        if k in open_dims and dim.HasField("dim_value"):
            raise UsageError(f"dynamic_shapes has dimension {k} of the input {name!r}, which is {dim.dim_value} in the model")
    if shape is not None:
        if not all(isinstance(s, int) and s >= 0 for s in shape):
            raise UsageError(f"input_shapes[{name!r}] is {shape!r}; give one size for each dimension")
        if ranked and len(shape) != len(dims):
            raise UsageError(f"input_shapes[{name!r}] has {len(shape)} dimensions, the model has {len(dims)}")
        for k, (size, dim) in enumerate(zip(shape, dims)):
            if dim.HasField("dim_value") and dim.dim_value != size:
                raise UsageError(f"input_shapes[{name!r}] has size {size} in dimension {k}, the model has {dim.dim_value}")
        return tuple(open_dims[k].largest if k in open_dims else size for k, size in enumerate(shape))
    if not ranked:
        raise UsageError(
            f"the input {name!r} has no shape in the model; shapes are fixed at build time: input_shapes={{{name!r}: (1, 3, 224, 224)}}"
        )
    sizes = []
    for k, dim in enumerate(dims):
        if k in open_dims:
            sizes.append(open_dims[k].largest)
        elif dim.HasField("dim_value"):
            sizes.append(int(dim.dim_value))
        elif isinstance(given.get(dim.dim_param), int) and given[dim.dim_param] >= 0:
            sizes.append(given[dim.dim_param])
        else:
            shown = ", ".join(str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims)
            example = ", ".join(str(d.dim_value) if d.HasField("dim_value") else "1" for d in dims) + ("," if len(dims) == 1 else "")
            by_name = f", or its symbol: input_shapes={{{dim.dim_param!r}: 1}}" if dim.dim_param else ""
            bound = f"{{{k}: dycl_tvm.Dim('N', max=8)}}" if not dim.dim_param else f"dycl_tvm.Dim({dim.dim_param!r}, max=8)"
            raise UsageError(
                f"dimension {k} of the input {name!r} ({shown}) has no size; "
                f"give the shape: input_shapes={{{name!r}: ({example})}}{by_name}; "
                f"or a bound, up to which each call decides: dynamic_shapes={{{dim.dim_param or name!r}: {bound}}}, "
                "or max_length=8 for all such dimensions"
            )
    return tuple(sizes)
