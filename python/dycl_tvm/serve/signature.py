# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a library takes and gives, in the protocol's terms: tensors with names, data types and shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dycl_tvm.errors import UsageError
from dycl_tvm.runtime.structure import Structure, cuts_of
from dycl_tvm.serve.datatypes import NAMES
from dycl_tvm.serve.failures import invalid
from dycl_tvm.serve.messages import Tensor

_NUMBERS = {"int": "INT64", "float": "FP64", "bool": "BOOL"}


@dataclass(frozen=True)
class Port:
    """An input or output as the metadata show it; -1 is a size that calls decide. A number of Python is a tensor of one element."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Input:
    """An input; ``largest`` is how long each dimension may be."""

    port: Port
    largest: tuple[int, ...]
    number: str  # the type of a number of Python; "" for a tensor

    def value(self, tensor: Tensor) -> Any:
        """Return what the runtime takes for a tensor of a request, or raise the error that says what is wrong with it."""
        name, want, shape = self.port.name, self.port, tensor.array.shape
        if tensor.datatype != want.datatype:
            raise invalid(f"input '{name}' has the datatype {want.datatype}, got {tensor.datatype}")
        if self.number:
            if shape not in ((), (1,)):
                raise invalid(f"input '{name}' is one number, of the shape [1], got {list(shape)}")
            return tensor.array.reshape(()).item()
        fits = len(shape) == len(want.shape) and all(
            n == m or (m == -1 and n <= most) for n, m, most in zip(shape, want.shape, self.largest)
        )
        if not fits:
            bound = f" with at most {list(self.largest)}" if -1 in want.shape else ""
            raise invalid(f"input '{name}' has the shape {list(want.shape)}{bound}, got {list(shape)}")
        return tensor.array


@dataclass(frozen=True)
class Output:
    """An output at one return site: a leaf of the result, or a constant in its structure."""

    port: Port
    leaf: int | None
    constant: np.ndarray[Any, Any] | None = None

    def tensor(self, leaves: Sequence[Any]) -> Tensor:
        """Return the tensor of a response."""
        if self.constant is not None:
            array = self.constant
        else:
            value = leaves[self.leaf]  # type: ignore[index]  # it is a leaf
            array = value if isinstance(value, np.ndarray) else np.array([value])
        return Tensor(self.port.name, self.port.datatype, array)


class Signature:
    """The inputs and, for each return site, the outputs of a library.

    Parameters
    ----------
    metadata : dict
        Of the library.

    Raises
    ------
    UsageError
        If an input or output has a type that the protocol has not.
    """

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.inputs = [_input(name, want) for name, want in zip(metadata["input_names"], metadata["inputs"])]
        self.sites = [list(_outputs(site["structure"], site["types"])) for site in metadata["sites"]]
        self.output_names = {output.port.name for site in self.sites for output in site}

    def ports(self) -> list[Port]:
        """Return the outputs of all return sites: those of one name are one, unless they differ in more than the lengths of dimensions."""
        merged: dict[tuple[str, str, int], Port] = {}
        for output in (output for site in self.sites for output in site):
            port = output.port
            before = merged.setdefault((port.name, port.datatype, len(port.shape)), port)
            shape = tuple(n if n == m else -1 for n, m in zip(before.shape, port.shape))
            merged[port.name, port.datatype, len(port.shape)] = Port(port.name, port.datatype, shape)
        return list(merged.values())

    def elements(self) -> int:
        """Return how many elements the inputs of one call may have."""
        return sum(math.prod(want.largest) for want in self.inputs)

    def leaves(self, tensors: dict[str, Tensor]) -> list[Any]:
        """Return the values of the inputs in their order, or raise the error that names the one that is missing or wrong."""
        names = [want.port.name for want in self.inputs]
        for name in tensors:
            if name not in names:
                raise invalid(f"there is no input '{name:.80}'; there are {', '.join(names) or 'none'}")
        for name in names:
            if name not in tensors:
                raise invalid(f"the input '{name}' is missing")
        return [want.value(tensors[want.port.name]) for want in self.inputs]

    def check_wanted(self, wanted: Sequence[str] | None) -> None:
        """Raise the error that names an output that no return site has."""
        for name in wanted or ():
            if name not in self.output_names:
                raise invalid(f"there is no output '{name:.80}'; there are {', '.join(sorted(self.output_names)) or 'none'}")

    def outputs(self, site: int, leaves: Sequence[Any], wanted: Sequence[str] | None) -> list[Tensor]:
        """Return the tensors of a result; of those that are wanted, the ones that this return site has."""
        return [output.tensor(leaves) for output in self.sites[site] if not wanted or output.port.name in wanted]


def _datatype(name: str, want: dict[str, Any]) -> str:
    found = _NUMBERS.get(want["type"]) if want["type"] != "tensor" else NAMES.get(want["dtype"])
    if found is None:
        raise UsageError(
            f"'{name}' is of the type {want.get('dtype', want['type'])}, for which the Open Inference Protocol has no data type"
        )
    return found


def _input(name: str, want: dict[str, Any]) -> Input:
    datatype = _datatype(name, want)
    if want["type"] != "tensor":
        return Input(Port(name, datatype, (1,)), (1,), want["type"])
    sized = want.get("sized", {})
    shape = tuple(-1 if str(d) in sized else n for d, n in enumerate(want["shape"]))
    return Input(Port(name, datatype, shape), tuple(want["shape"]), "")


def _outputs(structure: Structure, types: Sequence[dict[str, Any]]) -> Iterator[Output]:
    for name, node in _named(structure, "output"):
        if "leaf" in node:
            want = types[node["leaf"]]
            number = want["type"] != "tensor"
            cut = {along for along, _ in cuts_of(node)}
            shape = (1,) if number else tuple(-1 if d in cut else n for d, n in enumerate(want["shape"]))
            yield Output(Port(name, _datatype(name, want), shape), node["leaf"])
        elif node["const"] is not None:
            text = isinstance(node["const"], str)
            array = np.array([node["const"]], object if text else node.get("numpy"))
            datatype = "BYTES" if text else _datatype(name, {"type": "tensor", "dtype": array.dtype.name})
            yield Output(Port(name, datatype, (1,)), None, array)


def _named(node: Structure, where: str) -> Iterator[tuple[str, Structure]]:
    """Yield the leaves and constants of a structure with the expressions that read them from the result."""
    if "leaf" in node or "const" in node:
        yield where, node
        return
    if "rows" in node:  # a list whose items have one row each of some tensors: those tensors
        for name, item in _named(node["item"], f"{where}[*]"):
            if cuts_of(item):
                raise UsageError(f"'{name}' has another size in each item of a list, for which the Open Inference Protocol has no tensor")
            yield name, node["rows"][item["leaf"]] if "leaf" in item else item
    for i, item in enumerate([*node.get("tuple", ()), *node.get("list", ())]):
        yield from _named(item, f"{where}[{i}]")
    for key, item in node.get("dict", ()):
        yield from _named(item, f"{where}[{key!r}]")
    for field, item in zip(node.get("fields", ()), node.get("items", ())):
        yield from _named(item, f"{where}.{field}")
    for attribute, item in node.get("attributes", ()):
        yield from _named(item, f"{where}.{attribute}")
