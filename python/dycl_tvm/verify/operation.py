# Licensed under the Apache License, Version 2.0; see LICENSE.
"""One ATen operation of a sub-DNN, prepared to be run many times: in a wide type, or in the graph's own types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.hcfg.draws import is_draw
from dycl_tvm.hcfg.interpreter import in_rows, resolve
from dycl_tvm.hcfg.nodes import Constant, TensorOp, Value, map_operands

#: Operators that look at the bits of a number, which float64 does not share.
_BITS = frozenset(("aten.view.dtype", "aten.nextafter.default", "aten.frexp.Tensor", "aten.signbit.default"))
#: Operators whose result jumps with the least change of a number: PyTorch brings it to the type of the elements first.
_REMAINDERS = frozenset(f"aten.{name}.{kind}" for name in ("remainder", "fmod") for kind in ("Scalar", "Tensor", "Scalar_Tensor"))
_NO_VALUES = frozenset((int, float, bool, str, type(None), torch.dtype))


class Undefined(Exception):
    """PyTorch refuses the operands: there is no result to compare with."""


class Operation:
    """A tensor operation and what is asked of it in every run.

    Parameters
    ----------
    op : TensorOp
    wide : torch.dtype, optional
        In which type it computes; None: in the graph's own types.
    """

    def __init__(self, op: TensorOp, wide: torch.dtype | None) -> None:
        self.op, self._wide = op, wide
        self.outputs = op.outputs
        self._own = wide is None or op.op in _BITS or is_draw(op.op)  # other types are drawn from other bits
        args, kwargs = (op.args, op.kwargs) if self._own else (_with_type(op.args, wide), _with_type(op.kwargs, wide))
        if not self._own and op.op in _REMAINDERS:
            args = tuple(_as_elements(a, op.results()[0]) for a in args)
        self._args, self._kwargs = args, kwargs
        self._function = resolve(op.op)
        self._plain = not kwargs and all(isinstance(a, Value) or not _holds_values(a) for a in args)
        self._op_of_degree = op.op.startswith("aten.special_") and "polynomial" in op.op
        self._squares = op.op == "aten.linalg_matrix_exp.default"
        self._casts = op.op.startswith("aten._to_copy")
        #: The result that says of each matrix whether there are such factors.
        self._info = next((k for k, r in enumerate(self._function._schema.returns) if r.name == "info"), None)
        #: In its place once it has refused the wide type: a library's operator may know the types of the graph only.
        self._narrow: Operation | None = None

    def run(self, frame: dict[Value, Any], constants: dict[int, Any], change: Callable[[Any], Any] | None = None) -> list[Any]:
        """Return the results.

        Parameters
        ----------
        frame : dict
            Tensors of the values that are no constants: of the wide type if they are floating-point ones.
        constants : dict
            The constants that were made wide, by their ids; others are added.
        change : callable, optional
            Sees each operand first.

        Raises
        ------
        Undefined
            If PyTorch refuses the operands.
        """
        if self._narrow is not None:
            return self._narrow.run(frame, constants)

        def operand(value: Value) -> Any:
            if self._own:
                tensor = value.data if isinstance(value, Constant) else frame[value]
                return tensor.to(getattr(torch, value.type.dtype))  # type: ignore[union-attr]
            if isinstance(value, Constant):
                tensor = constants.get(id(value))
                if tensor is None:
                    tensor = constants[id(value)] = wide(value.data, self._wide)  # type: ignore[arg-type]
            else:
                tensor = frame[value]
            return tensor if change is None else change(tensor)

        if self._plain:
            args, kwargs = [operand(a) if isinstance(a, Value) else a for a in self._args], {}
        else:
            args, kwargs = map_operands(self._args, operand), map_operands(self._kwargs, operand)
        if self._op_of_degree and any(isinstance(a, torch.Tensor) and bool(a.isnan().any()) for a in args):
            raise Undefined(f"{self.op.op}: PyTorch gives of NaN what lies in memory")
        try:
            result = self._function(*in_rows(self.op.op, args), **kwargs)
        except (RuntimeError, IndexError, ValueError, NotImplementedError, AssertionError) as error:
            if self._own or self.op.op.startswith("aten."):
                raise Undefined(f"{self.op.op}: {error}") from None
            self._narrow = Operation(self.op, None)
            return self._narrow.run(frame, constants)
        found: list[Any] = []
        if isinstance(result, torch.Tensor):
            found.append(result)
        else:
            _flatten(result, found)
        if self._info is not None and bool(found[self._info].any()):
            raise Undefined(f"{self.op.op}: a matrix has no such factors")
        if self._squares and not bool(found[0].isfinite().all()):
            raise Undefined(f"{self.op.op}: a matrix is squared until infinities of both signs meet, how often is left open")
        if self._casts and _leaves_range(args[0], found[0]):
            raise Undefined(f"{self.op.op}: a number is outside of the range of the integers, and machines make of it what they like")
        return found


def wide(tensor: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return a tensor in a type, if it holds floating-point numbers; complex ones in the complex type."""
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.dtype != dtype and tensor.is_floating_point() else tensor


def _holds_values(node: Any) -> bool:
    if type(node) in _NO_VALUES:
        return False
    if isinstance(node, (list, tuple)):
        return any(_holds_values(n) for n in node)
    return isinstance(node, (Value, dict))


def _leaves_range(operand: torch.Tensor, made: torch.Tensor) -> bool:
    """Whether numbers became integers that cannot hold them; narrow ones get the last bits of an int32."""
    if not operand.is_floating_point() or made.is_floating_point() or made.dtype is torch.bool:
        return False
    info = torch.iinfo(torch.int64 if made.dtype is torch.int64 else torch.int32)
    return not bool(((operand > info.min - 1.0) & (operand < info.max + 1.0)).all())


def _with_type(node: Any, dtype: Any) -> Any:
    """Replace the floating-point types that an operator is asked for."""
    if isinstance(node, torch.dtype):
        return dtype if node.is_floating_point else dtype.to_complex() if node.is_complex else node
    if isinstance(node, (list, tuple)):
        return type(node)(_with_type(n, dtype) for n in node)
    if isinstance(node, dict):
        return {k: _with_type(v, dtype) for k, v in node.items()}
    return node


def _as_elements(node: Any, result: Value) -> Any:
    return float(torch.tensor(node, dtype=getattr(torch, result.type.dtype))) if type(node) is float else node  # type: ignore[union-attr]


def _flatten(result: Any, out: list[Any]) -> None:
    if isinstance(result, (list, tuple)):
        for r in result:
            _flatten(r, out)
    else:
        out.append(result)
