# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The protocol's data types, and their elements as bytes and as JSON."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dycl_tvm.serve.failures import invalid

#: The protocol's name of each dtype of the runtime. It has none for complex numbers.
NAMES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
}
#: How NumPy stores the elements: a BF16 as its bits.
STORAGE = {name: np.dtype("uint16" if dtype == "bfloat16" else dtype) for dtype, name in NAMES.items()}
_MAX_RANK = 32


def check_shape(where: str, shape: Any) -> tuple[int, ...]:
    """Return a shape that a client gave, or raise the error that says what is wrong with it."""
    if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) > _MAX_RANK:
        raise invalid(f"{where}: the shape must be a list of at most {_MAX_RANK} integers")
    for extent in shape:
        if type(extent) is not int or not 0 <= extent < 2**63:
            raise invalid(f"{where}: the shape must have integers that are not negative, got {extent!r:.40}")
    return tuple(shape)


def check_datatype(where: str, datatype: Any) -> str:
    """Return the name of a data type of inputs, or raise the error."""
    if not isinstance(datatype, str) or datatype not in STORAGE:
        raise invalid(f"{where}: the datatype {datatype!r:.40} is not one of {', '.join(STORAGE)}")
    return datatype


def from_bytes(where: str, datatype: str, shape: tuple[int, ...], data: bytes | memoryview) -> np.ndarray[Any, Any]:
    """Return the tensor whose elements are these bytes, little-endian and in the order of C, without a copy."""
    storage = STORAGE[datatype]
    if len(data) != math.prod(shape) * storage.itemsize:
        raise invalid(f"{where}: {datatype}{list(shape)} has {math.prod(shape) * storage.itemsize} bytes, got {len(data)}")
    if datatype == "BOOL":
        bits = np.frombuffer(data, np.uint8)
        if bits.size and bits.max() > 1:
            raise invalid(f"{where}: a byte of a BOOL is 0 or 1, got {bits.max()}")
    return np.frombuffer(data, storage).reshape(shape)


def from_items(where: str, datatype: str, shape: tuple[int, ...], items: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Return the tensor whose elements are these Python values, one after the other; none is rounded to an integer or wrapped around."""
    if len(items) != math.prod(shape):
        raise invalid(f"{where}: {datatype}{list(shape)} has {math.prod(shape)} elements, got {len(items)}")
    storage = STORAGE[datatype]
    kinds = set(map(type, items))
    wanted = {bool} if datatype == "BOOL" else {int} if "INT" in datatype else {int, float}
    if not kinds <= wanted:
        found = next(item for item in items if type(item) not in wanted)
        raise invalid(f"{where}: an element of {datatype} must be {' or '.join(sorted(t.__name__ for t in wanted))}, got {found!r:.40}")
    if "INT" in datatype:
        limits = np.iinfo(storage)
        if items and not (limits.min <= min(items) and max(items) <= limits.max):
            raise invalid(f"{where}: {datatype} has numbers from {limits.min} to {limits.max}, got {min(items)} to {max(items)}")
        return np.array(items, storage).reshape(shape)
    if datatype == "BOOL":
        return np.array(items, storage).reshape(shape)
    try:
        exact = np.array(items, np.float64)
    except OverflowError:
        raise invalid(f"{where}: a number is too large for {datatype}") from None
    with np.errstate(over="ignore"):
        rounded = _bfloat16_bits(exact.astype(np.float32)) if datatype == "BF16" else exact.astype(storage)
    if (np.isinf(as_numbers(datatype, rounded)) & ~np.isinf(exact)).any():
        raise invalid(f"{where}: a number is too large for {datatype}")
    return rounded.reshape(shape)


def from_nested(where: str, datatype: str, shape: tuple[int, ...], data: Any) -> np.ndarray[Any, Any]:
    """Return a tensor that JSON has as a list of its elements, or as lists in lists by its shape."""
    level = data if isinstance(data, list) else [data]
    if len(shape) > 1 and any(type(item) is list for item in level):
        for depth, extent in enumerate(shape):
            if depth:
                if not all(type(row) is list and len(row) == extent for row in level):
                    raise invalid(f"{where}: the lists of the data do not have the shape {list(shape)}")
                level = list(itertools.chain.from_iterable(level))
            elif len(level) != extent:
                raise invalid(f"{where}: the lists of the data do not have the shape {list(shape)}")
    return from_items(where, datatype, shape, level)


def to_bytes(datatype: str, array: np.ndarray[Any, Any]) -> bytes:
    """Return the elements as bytes; those of BYTES have their lengths before them."""
    if datatype == "BYTES":
        return b"".join(len(item).to_bytes(4, "little") + item for item in (text.encode() for text in array.flat))
    return array.tobytes()


def to_items(datatype: str, array: np.ndarray[Any, Any]) -> list[Any]:
    """Return the elements as Python values, for JSON."""
    return list(array.flat) if datatype == "BYTES" else as_numbers(datatype, array).reshape(-1).tolist()


def as_numbers(datatype: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array of the values: BF16 is widened, exactly."""
    return (array.astype(np.uint32) << 16).view(np.float32) if datatype == "BF16" else array


def _bfloat16_bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Round float32 to nearest, ties to even."""
    bits = array.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)
    return np.where(np.isnan(array), np.uint16(0x7FC0), rounded)
