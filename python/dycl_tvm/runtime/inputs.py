# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The inputs of a call as C takes them, in structures that a session makes once.

Most calls give what the metadata say: positional tensors of the very dtype and shape, one element after the other. Of those only the
address is new. All else goes the long way, and ends in the same structures.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from dycl_tvm.errors import InputError
from dycl_tvm.runtime import capi
from dycl_tvm.runtime.classes import Classes
from dycl_tvm.runtime.structure import Structure, flatten, flatten_call, is_call
from dycl_tvm.runtime.tensors import InputTensor, address_of, extents, is_shape_of, is_torch, strides_of, type_text


class _Usual:
    """A tensor of the dtype and shape that an input is expected to have, in CPU memory; a call fills in where it lies."""

    def __init__(self, want: dict[str, Any]) -> None:
        self.want, self.shape, self.name = want, tuple(want["shape"]), want["dtype"]
        self.array_type = None if self.name == "bfloat16" else np.dtype(self.name)
        self.struct = self._made(0, self.shape)
        self.place = ctypes.addressof(self.struct)

    def _made(self, data: int, shape: tuple[int, ...]) -> capi.DLTensor:
        code, bits = capi.DL_DTYPES[self.name]
        return capi.DLTensor(data, capi.DL_CPU, 0, len(shape), code, bits, 1, extents(shape), extents(strides_of(shape)), 0)

    def given(self, leaf: Any) -> int | capi.DLTensor | None:
        """Return where the elements of a tensor lie, its structure if it is smaller, or None if it has to go the long way."""
        if type(leaf) is np.ndarray:
            if self.array_type is None or leaf.dtype != self.array_type or not leaf.flags.c_contiguous:
                return None
            data = address_of(leaf)
        else:
            torch = sys.modules.get("torch")
            if torch is None or type(leaf) is not torch.Tensor or leaf.layout is not torch.strided or not leaf.is_cpu:
                return None
            if leaf.dtype is not getattr(torch, self.name, None) or not leaf.is_contiguous() or leaf.is_conj() or leaf.is_neg():
                return None
            data = leaf.data_ptr()
        if leaf.shape == self.shape:
            return data
        return self._made(data, tuple(leaf.shape)) if is_shape_of(self.want, leaf.shape) else None


class Inputs:
    """What a session takes.

    Parameters
    ----------
    metadata : dict
        Of the library.
    classes : Classes
        Finds the classes of inputs.

    Attributes
    ----------
    positional : bool
        Whether as many positional inputs as there are leaves are the leaves, in their order.
    """

    def __init__(self, metadata: dict[str, Any], classes: Classes) -> None:
        self._structure: Structure = metadata["input_structure"]
        self._network, self._names, self._wanted, self._classes = metadata["name"], metadata["input_names"], metadata["inputs"], classes
        self.positional = _is_positional(self._structure, len(self._wanted))
        self._usual = [_Usual(want) if want["type"] == "tensor" else None for want in self._wanted]
        self.values = (capi.Value * max(len(self._wanted), 1))()
        self.count = len(self._wanted)

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """Return the values of a call's inputs, in the order of their numbers.

        Raises
        ------
        InputError
            If they are not of the structure that was built.
        """
        if self.positional and not kwargs and len(args) == self.count:
            return args
        try:
            if is_call(self._structure):
                pairs = flatten_call(self._structure, args, kwargs, self._names, self._classes)
            elif kwargs:
                raise TypeError(f"takes no inputs by name, got {', '.join(kwargs)}")
            else:
                pairs = flatten(self._structure, args, known=self._classes)
        except (TypeError, ValueError) as error:
            raise InputError(f"'{self._network}' {error}") from None
        return [leaf for _, leaf in pairs]

    def counted(self, leaves: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return leaves that were given one by one.

        Raises
        ------
        InputError
            If they are not as many as there are inputs.
        """
        if len(leaves) != self.count:
            raise InputError(f"'{self._network}' has {self.count} inputs ({', '.join(self._names)}), got {len(leaves)}")
        return leaves

    def prepared(self, k: int, leaf: Any) -> Any:
        """Return what :meth:`fill` takes for an input: where a usual tensor lies, another one's structure, or a number with its type.

        Raises
        ------
        InputError
            If it is of another type; the message names it.
        """
        usual = self._usual[k]
        try:
            given = None if usual is None else usual.given(leaf)
        except RuntimeError:  # a tensor that has no memory of its own
            given = None
        return self._unusual(k, leaf) if given is None else given

    def _unusual(self, k: int, leaf: Any) -> Any:
        name, want = self._names[k], self._wanted[k]
        if want["type"] == "tensor":
            if isinstance(leaf, (bool, int, float, str)) or leaf is None:
                raise InputError(f"input '{name}': expected a tensor {type_text(want)}, got a {type(leaf).__name__}")
            return InputTensor(name, leaf, want["dtype"])
        if isinstance(leaf, (bool, np.bool_)):
            return capi.BOOL, bool(leaf)
        if isinstance(leaf, (int, np.integer)):
            number = int(leaf)
            if not -(2**63) <= number < 2**63:
                raise InputError(f"input '{name}': {number} does not fit an int of 64 bits")
            return capi.INT, number
        if isinstance(leaf, (float, np.floating)):
            return capi.FLOAT, float(leaf)
        raise InputError(f"input '{name}': expected a Python {want['type']}, got a {type(leaf).__name__}")

    def fill(self, prepared: Sequence[Any]) -> None:
        """Fill the structures, which no other call may be using."""
        for value, usual, given in zip(self.values, self._usual, prepared):
            if type(given) is tuple:
                value.type, number = given
                if value.type == capi.FLOAT:
                    value.v_float = number
                else:
                    value.v_int = number
                continue
            value.type = capi.TENSOR
            if type(given) is int:
                usual.struct.data, value.address = given, usual.place  # type: ignore[union-attr]  # it is a tensor
            else:
                value.address = ctypes.addressof(given if type(given) is capi.DLTensor else given.struct)


def _is_positional(structure: Structure, count: int) -> bool:
    """Whether as many positional inputs as there are leaves are the leaves, in their order."""
    parts: list[Structure] = []
    if "dict" in structure:
        collected = structure.get("varargs") is not None or structure.get("varkw") is not None
        parts = [] if collected else [part for _, part in structure["dict"]]
    elif is_call(structure) and not structure["tuple"][1]["dict"]:
        parts = structure["tuple"][0]["tuple"]
    return bool(parts) and [part.get("leaf") for part in parts] == list(range(count))


def are_of_torch(leaves: Sequence[Any]) -> bool:
    """Whether one of the inputs is a torch tensor, so that the results are."""
    return any(map(is_torch, leaves))
