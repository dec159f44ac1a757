# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Inputs of an artefact from files and random numbers, outputs as lines and files. Needs NumPy only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dycl_tvm.errors import UsageError
from dycl_tvm.runtime.structure import unflatten_call
from dycl_tvm.runtime.tensors import is_shape_of, type_text
from dycl_tvm.runtime.writing import replacing

#: NumPy has no bfloat16: artefacts take and give its bits.
_STORAGE = {"bfloat16": "uint16"}


def make_inputs(metadata: dict[str, Any], given: Sequence[str], seed: int, int_high: int) -> list[Any]:
    """Return the leaves of one call: what ``given`` names, random numbers for the rest.

    Parameters
    ----------
    metadata : dict
        Of the artefact.
    given : sequence of str
        ``FILE``, ``NAME=FILE`` or ``NAME=NUMBER``; without a name they are taken in order; an ``.npz`` names its arrays itself.
    seed : int
        Of the random numbers.
    int_high : int
        Random integers are under this bound.

    Raises
    ------
    UsageError
        If something does not fit.
    """
    names, types = list(metadata["input_names"]), metadata["inputs"]
    values: dict[str, Any] = {}
    for text in given:
        name, source = _split(text, names)
        if name is None and source.endswith(".npz"):
            with _open(source) as arrays:
                for key in arrays.files:
                    _set(values, key, arrays[key], names)
            continue
        if name is None:
            free = [n for n in names if n not in values]
            if not free:
                raise UsageError(f"input {text!r} is one too many; the network takes {', '.join(names) or 'none'}")
            name = free[0]
        _set(values, name, _read(source, types[names.index(name)], name), names)
    generator = np.random.default_rng(seed)
    # Every leaf draws, given or not: giving one input must not change the others.
    drawn = [_random(leaf, generator, int_high) for leaf in types]
    return [values.get(name, value) for name, value in zip(names, drawn)]


def read_leaves(metadata: dict[str, Any], source: str) -> list[Any]:
    """Return all leaves of one call from one file: an ``.npz`` by their names, or an ``.npy`` where there is one input.

    Raises
    ------
    UsageError
        If the file does not hold them.
    """
    names, types = list(metadata["input_names"]), metadata["inputs"]
    if source.endswith(".npy") and len(names) == 1:
        return [_checked(_open(source), types[0], names[0], source)]
    if not source.endswith(".npz"):
        other = ", or an .npy file" if len(names) == 1 else ""
        raise UsageError(f"{source!r} must be an .npz file with {', '.join(names) or 'no arrays'}{other}")
    with _open(source) as arrays:
        missing = [n for n in names if n not in arrays.files]
        if missing:
            raise UsageError(f"{source!r} holds no array {missing[0]!r}; the network takes {', '.join(names)}")
        return [_checked(arrays[n], leaf, n, source) for n, leaf in zip(names, types)]


def _checked(array: Any, leaf: dict[str, Any], name: str, source: str) -> Any:
    if leaf["type"] != "tensor":
        if array.ndim:
            raise UsageError(f"{source!r}: input {name!r} is a Python {leaf['type']}, got an array of shape {list(array.shape)}")
        return array.item()
    want = _STORAGE.get(leaf["dtype"], leaf["dtype"])
    if not is_shape_of(leaf, array.shape) or str(array.dtype) != want:
        raise UsageError(f"{source!r}: input {name!r} is {type_text(leaf)}, got {array.dtype}{list(array.shape)}")
    return array


def as_call(metadata: dict[str, Any], leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of a call with these leaves."""
    return unflatten_call(metadata["input_structure"], leaves)


def leaves_of(value: Any, where: str = "output") -> Iterator[tuple[str, Any]]:
    """Yield the name and value of every leaf of a result."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves_of(item, f"{where}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from leaves_of(item, f"{where}[{i}]")
    else:
        yield where, value


def describe_leaf(value: Any, shown: int = 6) -> str:
    """Return one line about a leaf of a result."""
    if not isinstance(value, np.ndarray):
        return repr(value)
    head = " ".join(f"{v:.5g}" if np.issubdtype(value.dtype, np.floating) else str(v) for v in value.reshape(-1)[:shown])
    return f"{value.dtype}{list(value.shape)}  {head}" + (" ..." if value.size > shown else "")


def _split(text: str, names: list[str]) -> tuple[str | None, str]:
    name, equals, source = text.partition("=")
    return (name, source) if equals and name in names else (None, text)


def _set(values: dict[str, Any], name: str, value: Any, names: list[str]) -> None:
    if name not in names:
        raise UsageError(f"the network has no input {name!r}; it takes {', '.join(names) or 'none'}")
    if name in values:
        raise UsageError(f"input {name!r} is given twice")
    values[name] = value


def _read(source: str, leaf: dict[str, Any], name: str) -> Any:
    if leaf["type"] != "tensor":
        words: dict[str, Any] = {"true": True, "false": False}
        try:
            return words[source.lower()] if leaf["type"] == "bool" else (int(source) if leaf["type"] == "int" else float(source))
        except (KeyError, ValueError):
            raise UsageError(f"input {name!r} is of type {leaf['type']}, got {source!r}") from None
    if source.endswith(".npy"):
        return _open(source)
    if source.endswith(".bin"):
        try:
            flat = np.fromfile(source, dtype=_STORAGE.get(leaf["dtype"], leaf["dtype"]))
        except OSError as err:
            raise UsageError(f"cannot read {source!r}: {err.strerror}") from None
        if flat.size != int(np.prod(leaf["shape"])):
            raise UsageError(f"{source!r} holds {flat.nbytes} bytes; input {name!r} is {type_text(leaf)}")
        return flat.reshape(leaf["shape"])
    raise UsageError(f"input {source!r} must be a .npy, .npz or .bin file")


def _open(source: str) -> Any:
    try:
        return np.load(source, allow_pickle=False)
    except OSError as err:
        raise UsageError(f"cannot read {source!r}: {err.strerror or err}") from None
    except ValueError as err:
        raise UsageError(f"{source!r} is not a plain array: {err}") from None


def _random(leaf: dict[str, Any], generator: np.random.Generator, int_high: int) -> Any:
    if leaf["type"] == "int":
        return int(generator.integers(0, int_high))
    if leaf["type"] == "float":
        return float(generator.standard_normal())
    if leaf["type"] == "bool":
        return bool(generator.integers(0, 2))
    dtype, shape = leaf["dtype"], leaf["shape"]
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if dtype.startswith(("int", "uint")):
        return generator.integers(0, min(int_high, int(np.iinfo(dtype).max) + 1), shape).astype(dtype)
    if dtype == "bfloat16":
        # The upper half of a float32 is the truncated bfloat16.
        return (generator.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return generator.standard_normal(shape).astype(dtype)


def save_outputs(path: str, result: Any) -> None:
    """Write all tensors and numbers of a result to an ``.npz`` file, by their names.

    Raises
    ------
    UsageError
        If the file's ending is another.
    """
    if Path(path).suffix != ".npz":
        raise UsageError(f"outputs are written as .npz, got {path!r}")
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in leaves_of(result) if value is not None}
    with replacing(path) as file:
        np.savez(file, **arrays)
