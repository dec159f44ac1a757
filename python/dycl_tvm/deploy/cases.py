# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Recorded calls: inputs and what the model gave for them in eager, in one ``.npz`` file without pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np

from dycl_tvm.errors import UsageError

_FORMAT = "dycl-cases-1"


@dataclass(frozen=True)
class Case:
    """One call. Tensors are NumPy arrays (bfloat16 as its bits, uint16)."""

    inputs: tuple[Any, ...]
    output: Any
    keywords: dict[str, Any] = field(default_factory=dict)


def record_cases(
    path: str | os.PathLike[str],
    model: Callable[..., Any],
    inputs: Iterable[Sequence[Any]],
    keywords: Iterable[Mapping[str, Any]] | None = None,
) -> int:
    """Run a model in eager and write its inputs and outputs. Random numbers begin with the seed of a new session.

    Parameters
    ----------
    path : path-like
        The ``.npz`` file to write.
    model : callable
        The model that was compiled.
    inputs : iterable of sequences
        The positional arguments of each call: tensors, numbers, and tuples, lists and dicts of them.
    keywords : iterable of dict, optional
        The keyword arguments of each call.

    Returns
    -------
    int
        The number of calls.
    """
    import torch

    arrays: dict[str, np.ndarray] = {}
    calls = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.set_rng_state(torch.Generator().get_state())
        for args, named in zip(inputs, keywords if keywords is not None else repeat({})):
            # Taken down first: a model may write to what it is given.
            call = {"inputs": _encode(tuple(args), arrays), "keywords": _encode(dict(named), arrays)}
            calls.append({**call, "output": _encode(model(*args, **named), arrays)})
    arrays["__cases__"] = np.array(json.dumps({"format": _FORMAT, "calls": calls}))
    with open(path, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return len(calls)


def read_cases(path: str | os.PathLike[str]) -> list[Case]:
    """Read recorded calls.

    Raises
    ------
    UsageError
        If the file is none of :func:`record_cases`.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            meta = json.loads(str(arrays["__cases__"]))
            if meta.get("format") != _FORMAT:
                raise UsageError(f"'{os.fspath(path)}' has recorded calls of another version: {meta.get('format')}")
            return [Case(*(_decode(call[part], arrays) for part in ("inputs", "output", "keywords"))) for call in meta["calls"]]
    except OSError as error:
        raise UsageError(f"cannot read the recorded calls '{os.fspath(path)}': {error.strerror or error}") from None
    except (KeyError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"'{os.fspath(path)}' holds no recorded calls (dycl-tvm compile --cases writes such files)") from None


def _encode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if hasattr(value, "detach"):
        import torch

        tensor = value.detach().cpu().contiguous()
        value = tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value.copy()
        return {"array": name}
    if isinstance(value, (tuple, list)):
        return {"tuple" if isinstance(value, tuple) else "list": [_encode(v, arrays) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[k, _encode(v, arrays)] for k, v in value.items()]}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise UsageError(f"a {type(value).__name__} cannot be recorded")


def _decode(node: Any, arrays: Any) -> Any:
    ((kind, value),) = node.items()
    if kind == "array":
        return arrays[value]
    if kind == "tuple":
        return tuple(_decode(v, arrays) for v in value)
    if kind == "list":
        return [_decode(v, arrays) for v in value]
    if kind == "dict":
        return {k: _decode(v, arrays) for k, v in value}
    return value
