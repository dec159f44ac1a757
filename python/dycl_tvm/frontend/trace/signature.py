# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The inputs of a network: from example inputs to their structure, names and types, and back to arguments."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import torch

from dycl_tvm.errors import UsageError
from dycl_tvm.frontend.trace.values.storage import DTYPE_NAMES
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.runtime.structure import Structure, leaf_types, unflatten


class Inputs:
    """The inputs of one model.

    Attributes
    ----------
    structure : Structure
        ``{"dict": [[parameter, structure], ...]}`` in the order of the model's signature: an artefact's caller may give
        them by position or by name. ``*args`` is a tuple under its own name, which the entry ``varargs`` says, ``**kwargs`` a
        dict (``varkw``).
    names, types : list
        Of the leaves: ``x``, ``state[0]``.
    """

    def __init__(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        forward = model.forward if isinstance(model, torch.nn.Module) else model
        try:
            self._signature = inspect.signature(forward)
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(
                f"the example inputs do not fit {getattr(forward, '__qualname__', forward)}{inspect.signature(forward)}: {error}"
            ) from None
        self.names: list[str] = []
        self.types: list[TensorType] = []
        self._classes: dict[tuple[str, tuple[str, ...]], type] = {}
        self.structure: Structure = {"dict": [[name, self._describe(value, name)] for name, value in bound.arguments.items()]}
        entries = {inspect.Parameter.VAR_POSITIONAL: "varargs", inspect.Parameter.VAR_KEYWORD: "varkw"}
        for name in bound.arguments:
            if (kind := self._signature.parameters[name].kind) in entries:
                self.structure[entries[kind]] = name

    def _describe(self, x: Any, where: str) -> Structure:
        if hasattr(x, "shape") and hasattr(x, "dtype"):
            if x.dtype not in DTYPE_NAMES:
                raise UsageError(f"the example input `{where}` has the dtype {x.dtype}; supported are {', '.join(DTYPE_NAMES.values())}")
            if not all(isinstance(s, int) for s in x.shape):
                raise UsageError(f"the example input `{where}` has the symbolic shape {tuple(x.shape)}; give every dimension a number")
            self.names.append(where)
            self.types.append(TensorType(tuple(int(s) for s in x.shape), DTYPE_NAMES[x.dtype]))
            return {"leaf": len(self.names) - 1, "type": "tensor"}
        if x is None or isinstance(x, (bool, int, float, str)):
            return {"const": x}
        fields = record_fields(x)
        if fields is not None:
            self._classes[type(x).__name__, tuple(fields)] = type(x)
            return {
                "namedtuple": type(x).__name__,
                "fields": fields,
                "items": [self._describe(getattr(x, f), f"{where}.{f}") for f in fields],
            }
        if isinstance(x, (tuple, list)):
            kind = "tuple" if isinstance(x, tuple) else "list"
            return {kind: [self._describe(v, f"{where}[{i}]") for i, v in enumerate(x)]}
        if isinstance(x, dict):
            return {"dict": [[k, self._describe(v, f"{where}[{k!r}]")] for k, v in x.items()]}
        raise UsageError(
            f"the example input `{where}` is a {type(x).__name__}; "
            "give tensors, numbers, strings, None, and tuples, lists and dicts of them"
        )

    def build(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call with the given leaves."""
        assert len(leaf_types(self.structure)) == len(leaves)
        arguments = self._with_classes(unflatten(self.structure, lambda k, _: leaves[k]))
        bound = inspect.BoundArguments(self._signature, arguments)  # type: ignore[arg-type]
        return bound.args, bound.kwargs

    def _with_classes(self, x: Any) -> Any:
        """Give records the classes of the example inputs."""
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return self._classes[type(x).__name__, x._fields](**{f: self._with_classes(v) for f, v in zip(x._fields, x)})
        if isinstance(x, (tuple, list)):
            return type(x)(self._with_classes(v) for v in x)
        return {k: self._with_classes(v) for k, v in x.items()} if isinstance(x, dict) else x


def record_fields(x: Any) -> list[str] | None:
    """Return the field names of a named tuple or dataclass; None for anything else."""
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return list(x._fields)
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return [f.name for f in dataclasses.fields(x)]
    return None
