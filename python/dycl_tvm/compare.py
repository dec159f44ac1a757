# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Compares what an artefact returns with what eager returns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def difference(expected: Any, actual: Any, rtol: float = 1e-4, where: str = "output") -> str | None:
    """Return what is different between two results, or None if they agree.

    Structures, Python values (NumPy scalars count as such), shapes and integer tensors must be equal; floating-point
    tensors may differ by ``rtol`` of the greatest magnitude in the expected tensor (an element near zero among large
    ones has no digits of its own).

    Parameters
    ----------
    expected, actual
        Tensors of PyTorch or NumPy, numbers, None, str, and tuples, lists and dicts of them.
    rtol : float
        Bound on the relative error of tensors and floats.
    """
    expected, actual = _plain(expected), _plain(actual)
    if _is_tensor(expected) or _is_tensor(actual):
        if not (_is_tensor(expected) and _is_tensor(actual)):
            return f"{where}: expected {_kind(expected)}, got {_kind(actual)}"
        return _tensor_difference(_array(expected), _array(actual), rtol, where)
    if isinstance(expected, dict):
        if not isinstance(actual, dict) or list(expected) != list(actual):
            return f"{where}: expected a dict with the keys {list(expected)}, got {_kind(actual)}"
        return _first(difference(v, actual[k], rtol, f"{where}[{k!r}]") for k, v in expected.items())
    if isinstance(expected, (tuple, list)):
        same_kind = isinstance(actual, (tuple, list)) and isinstance(actual, tuple) == isinstance(expected, tuple)
        if not same_kind or len(actual) != len(expected):
            return f"{where}: expected {_kind(expected)}, got {_kind(actual)}"
        return _first(difference(e, a, rtol, f"{where}[{i}]") for i, (e, a) in enumerate(zip(expected, actual)))
    if isinstance(expected, float) and isinstance(actual, float):
        close = math.isclose(expected, actual, rel_tol=rtol) or (math.isnan(expected) and math.isnan(actual))
        return None if close else f"{where}: expected {expected!r}, got {actual!r}"
    if type(expected) is not type(actual) or expected != actual:
        return f"{where}: expected {expected!r}, got {actual!r}"
    return None


def relative_error(expected: Any, actual: Any) -> float:
    """Return the largest relative error over all tensors of two results that agree in structure."""
    if _is_tensor(expected):
        return _relative(_array(expected), _array(actual))
    if isinstance(expected, dict):
        return max((relative_error(v, actual[k]) for k, v in expected.items()), default=0.0)
    if isinstance(expected, (tuple, list)):
        return max((relative_error(e, a) for e, a in zip(expected, actual)), default=0.0)
    return 0.0


def _tensor_difference(expected: np.ndarray, actual: np.ndarray, rtol: float, where: str) -> str | None:
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return f"{where}: expected {expected.dtype}{list(expected.shape)}, got {actual.dtype}{list(actual.shape)}"
    if np.issubdtype(expected.dtype, np.complexfloating):
        parts = ((part(expected), part(actual)) for part in (np.real, np.imag))
        return _first(_tensor_difference(e, a, rtol, where) for e, a in parts)
    if not np.issubdtype(expected.dtype, np.floating):
        return (
            None if np.array_equal(expected, actual) else f"{where}: {int((expected != actual).sum())} of {expected.size} elements differ"
        )
    # Infinities and NaNs must stand at the same places.
    special = ~np.isfinite(expected) | ~np.isfinite(actual)
    if not np.array_equal(expected[special], actual[special], equal_nan=True):
        return f"{where}: infinities or NaNs differ"
    error = _relative(expected, actual)
    return None if error <= rtol else f"{where}: relative error {error:.2e} is over {rtol:.0e}"


def _relative(expected: np.ndarray, actual: np.ndarray) -> float:
    if np.issubdtype(expected.dtype, np.complexfloating):
        return max(_relative(expected.real, actual.real), _relative(expected.imag, actual.imag))
    finite = np.isfinite(expected) & np.isfinite(actual) if np.issubdtype(expected.dtype, np.floating) else np.ones(expected.shape, bool)
    if not finite.any():
        return 0.0
    exact, got = expected[finite].astype(np.float64), actual[finite].astype(np.float64)
    error = float(np.abs(exact - got).max())
    # A zero tensor: nothing to be relative to, so the error counts as it is.
    return error / (float(np.abs(exact).max()) or 1.0)


def _plain(value: Any) -> Any:
    # np.argmax and the like give NumPy scalars; they are the Python numbers that they equal.
    return value.item() if isinstance(value, np.generic) else value


def _first(found: Any) -> str | None:
    return next((f for f in found if f is not None), None)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (hasattr(value, "detach") and hasattr(value, "dtype"))


def _array(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    tensor = value.detach().cpu().resolve_conj().resolve_neg()
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    return np.asarray(tensor.numpy())


def _kind(value: Any) -> str:
    if _is_tensor(value):
        return f"a tensor {list(value.shape)}"
    if isinstance(value, (tuple, list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)
