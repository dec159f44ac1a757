# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Whether two results are the same: structure, Python types, identity among the parts exactly; floating-point tensors up to rounding.

Both sides run ATen, so their tensors differ only where the same sum is taken in another order (a view that was made contiguous, a batch
norm that was folded). The bound is relative to the largest magnitude in the tensor, by the digits of its dtype.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import types
from typing import Any

import numpy as np
import torch

from dycl_tvm.verify.noise import numbers

#: Bounds on the error of a tensor relative to its largest finite magnitude, and that of a float.
TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}
_FLOAT = 1e-5


def difference(expected: Any, actual: Any, where: str = "the result", loose: float = 1.0) -> str | None:
    """Return what is different between what the program returned and what the graph returned, or None.

    A number of NumPy counts as the Python number that it equals, a dataclass as the record of its name and fields.
    """
    if isinstance(expected, np.generic):
        if isinstance(actual, np.generic) and type(actual) is not type(expected):
            return f"{where} is {expected!r} in eager, {actual!r} as built"
        expected = expected.item()
        actual = actual.item() if isinstance(actual, np.generic) else actual
    if type(expected) is np.ndarray and type(actual) is np.ndarray:
        expected, actual = torch.tensor(expected.copy()), torch.tensor(actual.copy())
    if isinstance(expected, torch.Tensor) or isinstance(actual, torch.Tensor):
        if not (isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor)):
            return f"{where} is {show(expected)} in eager, {show(actual)} as built"
        return _tensors(expected, actual, where, loose)
    fields = _fields(expected)
    if fields is not None:
        if type(expected).__name__ != type(actual).__name__ or _fields(actual) != fields:
            return f"{where} is a {type(expected).__name__} in eager, {show(actual)} as built"
        parts = ((getattr(expected, f), getattr(actual, f), f"{where}.{f}") for f in fields)
        return next((d for e, a, w in parts if (d := difference(e, a, w, loose)) is not None), None)
    if isinstance(expected, dict):
        if (
            not isinstance(actual, dict)
            or _bound(expected) is not _bound(actual)
            or [(type(k), k) for k in expected] != [(type(k), k) for k in actual]
        ):
            return f"{where} is a dict with the keys {list(expected)} in eager, {show(actual)} as built"
        return next((d for k in expected if (d := difference(expected[k], actual[k], f"{where}[{k!r}]", loose)) is not None), None)
    if isinstance(expected, (list, tuple, collections.deque)):
        if type(expected) is not type(actual) or len(expected) != len(actual) or _bound(expected) != _bound(actual):
            return f"{where} is a {type(expected).__name__} of {len(expected)} in eager, {show(actual)} as built"
        parts = ((e, a, f"{where}[{i}]") for i, (e, a) in enumerate(zip(expected, actual)))
        return next((d for e, a, w in parts if (d := difference(e, a, w, loose)) is not None), None)
    attributes = _attributes(expected)
    if attributes is not None:
        others = _attributes(actual)
        if type(expected).__name__ != type(actual).__name__ or others is None or list(attributes) != list(others):
            return f"{where} is a {type(expected).__name__} in eager, {show(actual)} as built"
        return next((d for k, e in attributes.items() if (d := difference(e, others[k], f"{where}.{k}", loose)) is not None), None)
    if type(expected) is float and type(actual) is float and _close(expected, actual, loose):
        return None
    if type(expected) is not type(actual) or expected != actual or isinstance(expected, float):
        return f"{where} is {expected!r} in eager, {show(actual)} as built"
    return None


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a result in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    fields = _fields(value)
    if fields is not None:
        return [t for f in fields for t in tensors_of(getattr(value, f))]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors_of(v)]
    attributes = _attributes(value)
    if attributes is not None:
        return [t for v in attributes.values() for t in tensors_of(v)]
    return [t for v in value for t in tensors_of(v)] if isinstance(value, (list, tuple, collections.deque)) else []


def close(expected: Any, actual: Any) -> bool:
    """Whether two numbers that were read from tensors of float32 or less are the same up to rounding."""
    if isinstance(expected, float) and isinstance(actual, float):
        return (
            expected == actual or (expected != expected and actual != actual) or math.isclose(expected, actual, rel_tol=1e-3, abs_tol=1e-4)
        )
    return bool(expected == actual)


def show(value: Any, most: int = 200) -> str:
    """Return a short text of a result."""
    text = " ".join(repr(value).split())
    return text if len(text) <= most else f"{text[:most]}..."


def _close(expected: float, actual: float, loose: float) -> bool:
    if expected != expected or actual != actual:
        return expected != expected and actual != actual
    if expected == actual == 0:
        return math.copysign(1, expected) == math.copysign(1, actual)
    return expected == actual or math.isclose(expected, actual, rel_tol=_FLOAT * loose, abs_tol=1e-6 * loose)


def _bound(x: Any) -> Any:
    """Return what a deque or a defaultdict is besides its items."""
    return x.maxlen if isinstance(x, collections.deque) else getattr(x, "default_factory", None)


def _fields(x: Any) -> list[str] | None:
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return list(x._fields)
    return [f.name for f in dataclasses.fields(x)] if dataclasses.is_dataclass(x) and not isinstance(x, type) else None


def _attributes(x: Any) -> dict[str, Any] | None:
    """Return what an object of a class written in Python holds; None for all others, and for constants: classes, members of enums."""
    if isinstance(x, (type, enum.Enum, list, tuple, str)) or type(x).__new__ not in (object.__new__, types.SimpleNamespace.__new__):
        return None
    space = getattr(x, "__dict__", None)
    return space if isinstance(space, dict) else None


def _tensors(expected: torch.Tensor, actual: torch.Tensor, where: str, loose: float) -> str | None:
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return f"{where} is {_type(expected)} in eager, {_type(actual)} as built"
    if expected.is_complex():
        return _tensors(numbers(expected), numbers(actual), where, loose)
    if torch.equal(expected, actual):
        return None
    if not expected.dtype.is_floating_point:
        wrong = expected != actual
        k = int(wrong.flatten().nonzero()[0])
        first = f"{expected.flatten()[k].item()} in eager, {actual.flatten()[k].item()} as built"
        return f"{where}: {int(wrong.sum())} of {expected.numel()} elements differ, the first is {first}"
    e, a = expected.double(), actual.double()
    special = ~(e.isfinite() & a.isfinite())
    if not torch.equal(e[special].nan_to_num(7.0), a[special].nan_to_num(7.0)) or not torch.equal(e[special].isnan(), a[special].isnan()):
        return f"{where}: infinities or NaNs differ: {show(expected)} in eager, {show(actual)} as built"
    finite = ~special
    if not finite.any():
        return None
    error = (e[finite] - a[finite]).abs().max().item()
    scale = e[finite].abs().max().item()
    if error <= TOLERANCE.get(expected.dtype, 1e-4) * loose * scale or error <= 1e-6 * loose:
        return None
    return f"{where}: the largest error is {error:.3g} among values up to {scale:.3g}: {show(expected)} in eager, {show(actual)} as built"


def _type(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
