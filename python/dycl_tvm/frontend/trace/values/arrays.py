# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What ``tensor.numpy()`` gives of a tensor known at run time: the program takes it for an array, or for one of NumPy's numbers.

It can be indexed, gone over and turned into numbers, lists and tensors; what NumPy and PyTorch compute alike of it is computed as PyTorch
does. All else is refused: NumPy has types, casts and orders of summation of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.recorder import item

_TYPES = {
    torch.float64: np.float64,
    torch.float32: np.float32,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}
#: The dtypes of arrays that a tensor can hold.
ARRAY_TYPES = frozenset(map(np.dtype, _TYPES.values()))
#: Since NumPy 2 a number of Python's takes the type of the array, as in PyTorch.
_WEAK = int(np.__version__.split(".")[0]) >= 2


class RunTimeArray(OwnValue):
    """An array in the memory of a tensor, or one of NumPy's numbers: an element of such an array.

    Attributes
    ----------
    tensor : torch.Tensor
        What it holds.
    is_number : bool
        Whether it is a number.
    """

    __slots__ = ("is_number", "tensor")

    def __init__(self, tensor: torch.Tensor, is_number: bool = False) -> None:
        self.tensor, self.is_number = tensor, is_number

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # what isinstance() of code that runs as it is asks for
        return _TYPES[self.tensor.dtype] if self.is_number else np.ndarray

    @property
    def dtype(self) -> Any:
        return np.dtype(_TYPES[self.tensor.dtype])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        return self.tensor.dim()

    @property
    def size(self) -> int:
        return self.tensor.numel()

    def __len__(self) -> int:
        if not self.ndim:
            raise of_program(TypeError("len() of unsized object"))
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.ndim:
            raise of_program(TypeError("iteration over a 0-d array"))
        return iter([self[i] for i in range(len(self))])

    def __getitem__(self, index: Any) -> Any:
        entries = index if isinstance(index, tuple) else (index,)
        if self.is_number or not all(e is None or e is ... or isinstance(e, slice) or _is_place(e) for e in entries):
            self.refuse("an index that is no number and no slice")
        part = self.tensor[tuple([number_of(e) for e in entries])]
        return RunTimeArray(part, is_number=not part.dim() and all(map(_is_place, entries)))

    def tolist(self) -> Any:
        return self.tensor.tolist()

    def item(self, *index: Any) -> Any:
        if index or self.size != 1:
            self.refuse("item() of an array of several elements")
        return item(self.tensor)

    def copy(self) -> RunTimeArray:
        return RunTimeArray(self.tensor.clone(), self.is_number)

    def astype(self, dtype: Any) -> RunTimeArray:
        found = next((t for t, name in _TYPES.items() if np.dtype(dtype) == name), None)
        if found is None:
            self.refuse(f"astype({dtype})")
        return RunTimeArray(self.tensor.to(found, copy=True), self.is_number)

    def __bool__(self) -> bool:
        if self.size != 1:
            raise of_program(ValueError("The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()"))
        return bool(self.tensor)

    def refuse(self, what: str) -> NoReturn:
        """Refuse to use it in some way."""
        which = "a number of NumPy's" if self.is_number else "an array"
        raise UnsupportedError(
            f"{what} of {which} that is known only at run time",
            current().origin(),
            "work on the tensor with torch functions, or on numbers of Python's: float(a[0]), a.tolist()",
        )

    def __getattr__(self, name: str) -> Any:
        self.refuse(f"`{name}`")


def array_of(t: torch.Tensor) -> RunTimeArray:
    """Return ``t.numpy()`` of a tensor that is known at run time."""
    if t.requires_grad:
        raise of_program(RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."))
    if t.dtype not in _TYPES or not current().arrays:
        of = f" of {t.dtype}" * (t.dtype not in _TYPES)
        raise UnsupportedError(
            f"numpy() on a tensor{of} that is known only at run time",
            current().origin(),
            "use torch functions; for a single number, .item()",
        )
    return RunTimeArray(t.detach())


def tensor_of(x: Any) -> Any:
    """Return the tensor in whose memory an array known at run time lies; anything else as it is."""
    return x.tensor.detach() if type(x) is RunTimeArray else x


def number_of(x: Any) -> Any:
    """Return the number of Python's that an array of no dimensions, or a number of NumPy's, stands for; anything else as it is."""
    if type(x) is not RunTimeArray:
        return x
    if x.ndim:
        x.refuse("the use as a number")
    return item(x.tensor)


def _is_place(entry: Any) -> bool:
    """Whether an entry of an index is a whole number."""
    if type(entry) is RunTimeArray:
        return entry.is_number and not entry.tensor.dtype.is_floating_point and entry.tensor.dtype != torch.bool
    return (isinstance(entry, int) and not isinstance(entry, bool)) or (scalars.is_symbolic(entry) and _kind(entry) == "int")


def _kind(number: Any) -> str:
    return str(scalars._kind(scalars.operand_of(number)))


def _comparable(array: RunTimeArray, other: Any) -> Any:
    """Return the other operand for PyTorch, if NumPy computes with it in the type of the array; None if it may not."""
    dtype = array.tensor.dtype
    if type(other) is RunTimeArray:
        return other.tensor if other.tensor.dtype == dtype else None
    if not _WEAK or not (type(other) in (int, float) or scalars.is_symbolic(other)):
        return None
    if dtype.is_floating_point:
        return other if _kind(other) in ("int", "float") else None
    if _kind(other) != "int":
        return None
    limits, bounds = torch.iinfo(dtype), scalars.bounds_of(other) if scalars.is_symbolic(other) else (other, other)
    if bounds is None:
        bounds = (-(1 << 63), (1 << 63) - 1)
    return other if limits.min <= bounds[0] and bounds[1] <= limits.max else None  # one that the type does not hold is an error


def _binary(name: str, function: Callable[[Any, Any], Any], reflected: bool) -> Callable[[Any, Any], Any]:
    def method(self: RunTimeArray, other: Any) -> Any:
        dtype = self.tensor.dtype
        given = _comparable(self, other)
        if given is None or dtype == torch.bool or (function is operator.truediv and not dtype.is_floating_point):
            self.refuse(f"the operator {name}")
        result = function(given, self.tensor) if reflected else function(self.tensor, given)
        return RunTimeArray(result, is_number=not result.dim())  # what NumPy computes of arrays without dimensions is a number

    return method


_COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_COMPUTED = {"add": "+", "sub": "-", "mul": "*", "truediv": "/"}
_REFUSED_OPERATORS = ("floordiv", "mod", "divmod", "pow", "lshift", "rshift", "and", "or", "xor", "matmul")
_REFUSED = (
    *("neg", "pos", "abs", "invert", "round", "trunc", "floor", "ceil", "complex", "contains", "setitem", "delitem", "array", "format"),
    *("array_ufunc", "array_function", "float", "int", "index", "str", "repr", "hash", "reversed", "reduce_ex", "copy", "deepcopy"),
    *(f"{side}{name}" for name in _REFUSED_OPERATORS for side in ("", "r", "i")),
)


def _refused(name: str) -> Callable[..., Any]:
    def method(self: RunTimeArray, *_args: Any, **_kwargs: Any) -> Any:
        self.refuse(f"__{name}__()")

    return method


def _changed(name: str, sign: str) -> Callable[[Any, Any], Any]:
    def method(self: RunTimeArray, other: Any) -> Any:
        if not self.is_number:
            self.refuse(f"`{sign}=`")
        return getattr(self, name)(other)

    return method


for _name, _sign in (_COMPARED | _COMPUTED).items():
    setattr(RunTimeArray, f"__{_name}__", _binary(_sign, getattr(operator, _name), reflected=False))
for _name, _sign in _COMPUTED.items():
    setattr(RunTimeArray, f"__r{_name}__", _binary(_sign, getattr(operator, _name), reflected=True))
    setattr(RunTimeArray, f"__i{_name}__", _changed(f"__{_name}__", _sign))
for _name in _REFUSED:
    setattr(RunTimeArray, f"__{_name}__", _refused(_name))
