# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Dimensions of inputs that the caller decides: from what users write (``{"ids": {1: T}}``) to sizes of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.errors import UsageError
from dycl_tvm.frontend.trace.values.grown import OfTheRun, cut
from dycl_tvm.frontend.trace.values.lengths import Counter, Length
from dycl_tvm.hcfg.nodes import Value
from dycl_tvm.hcfg.sizes import Dim, InputSize, SizedDim, Span
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.runtime.structure import Structure

_HOW = 'write dynamic_shapes={"x": {0: dycl_tvm.Dim("N", max=64)}}, by parameter and dimension'


@dataclass
class _Written:
    """A size as the user wrote it, and where."""

    least: int
    most: int
    dims: list[SizedDim]


class Dimensions:
    """The sizes of a model's inputs.

    Parameters
    ----------
    written : mapping or sequence
        By parameter (a dict by name, or in the order of the parameters); for each tensor a dict from dimensions to sizes, or a sequence
        with one for each dimension. None and the size of the example stand for fixed ones.
    structure : Structure
        Of the inputs.
    types : list of TensorType
        Of the example leaves.

    Attributes
    ----------
    sizes : list of InputSize
    """

    def __init__(self, written: Any, structure: Structure, types: Sequence[TensorType]) -> None:
        self._types = types
        self._found: dict[str, _Written] = {}
        parameters = structure["dict"]
        if isinstance(written, Mapping):
            unknown = [str(k) for k in written if k not in dict(parameters)]
            if unknown:
                raise UsageError(f"dynamic_shapes names {', '.join(unknown)}; the model is given {', '.join(n for n, _ in parameters)}")
            for name, of in parameters:
                self._visit(of, written.get(name), name)
        elif isinstance(written, (tuple, list)) and len(written) <= len(parameters):
            for (name, of), what in zip(parameters, written):
                self._visit(of, what, name)
        else:
            raise UsageError(f"dynamic_shapes is {written!r}; {_HOW}")
        self.sizes = [InputSize(name, w.least, w.most, tuple(w.dims)) for name, w in self._found.items()]

    def _visit(self, structure: Structure, written: Any, where: str) -> None:
        if written is None:
            return
        if "leaf" in structure:
            self._tensor(structure["leaf"], written, where)
            return
        children = [*structure.get("tuple", ()), *structure.get("list", ()), *structure.get("items", ())]
        named = [*structure.get("dict", ()), *structure.get("attributes", ())]
        if isinstance(written, Mapping) and (named or "fields" in structure):
            for key, child in named or zip(structure["fields"], children):
                self._visit(child, written.get(key), f"{where}[{key!r}]")
        elif isinstance(written, (tuple, list)) and len(written) == len(children):
            for k, child in enumerate(children):
                self._visit(child, written[k], f"{where}[{k}]")
        else:
            raise UsageError(f"dynamic_shapes says {written!r} of `{where}`, which is another structure; {_HOW}")

    def _tensor(self, leaf: int, written: Any, where: str) -> None:
        shape = self._types[leaf].shape
        if not isinstance(written, (Mapping, tuple, list)) or (not isinstance(written, Mapping) and len(written) != len(shape)):
            raise UsageError(f"dynamic_shapes says {written!r} of the tensor `{where}` of shape {list(shape)}; {_HOW}")
        for dim, size in written.items() if isinstance(written, Mapping) else enumerate(written):
            if type(dim) is not int or not -len(shape) <= dim < len(shape):
                raise UsageError(f"dynamic_shapes names dimension {dim!r} of `{where}`, whose shape is {list(shape)}")
            if size is None or size == shape[dim]:
                continue
            self._dim(leaf, dim % len(shape), size, where)

    def _dim(self, leaf: int, dim: int, size: Any, where: str) -> None:
        given = Dim.of(size)
        if given is None:
            raise UsageError(f"dynamic_shapes says {size!r} of dimension {dim} of `{where}`; {_HOW}")
        extent, least, most = self._types[leaf].shape[dim], given.min, given.max
        known = self._found.setdefault(given.name, _Written(least, most, []))
        if (known.least, known.most) != (least, most):
            raise UsageError(
                f"the size {given.name} has the bounds {least} to {most} in `{where}`, and {known.least} to {known.most} before"
            )
        n, rest = divmod(extent - given.constant, given.factor)
        if rest or not least <= n <= most or given.factor * least + given.constant < 0:
            raise UsageError(f"dimension {dim} of the example `{where}` is {extent}, which is no {given}")
        known.dims.append(SizedDim(leaf, dim, given.factor, given.constant))

    def bounded(self) -> list[TensorType]:
        """Return the types of the leaves at their largest."""
        shapes = [list(t.shape) for t in self._types]
        for size in self.sizes:
            for d in size.dims:
                shapes[d.input][d.dim] = d.at(size.most)
        return [TensorType(tuple(shape), t.dtype) for shape, t in zip(shapes, self._types)]


def at_size(
    tensors: list[torch.Tensor], sizes: Sequence[InputSize], values: Sequence[Value], known: Mapping[str, Span]
) -> list[torch.Tensor]:
    """Return the tensors that a run is given, where those whose size the caller decides are the front of their buffers.

    ``known`` has sizes that are within narrower bounds, which the buffers have.
    """
    made = list(tensors)
    lengths: dict[int, dict[int, Length]] = {}
    for size, value in zip(sizes, values, strict=True):
        least, most = known.get(size.name, (size.least, size.most))
        counter = Counter(value, most, OfTheRun(), first=least)
        for d in size.dims:
            if least != most:
                lengths.setdefault(d.input, {})[d.dim] = Length(counter, d.factor, d.constant)
    for k, of in lengths.items():
        made[k] = cut(made[k], of)
        made[k].contiguous_, made[k].exact = True, 2  # type: ignore[attr-defined]  # it has lengths; inputs are contiguous, or are copied
    return made
