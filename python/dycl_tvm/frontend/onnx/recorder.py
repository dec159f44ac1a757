# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The recorder: ONNX operators are written as PyTorch code, and every ATen operation of that code passes here.

An operation on constants is computed at once. So the shape arithmetic that exporters write (Shape, Gather, Concat, Reshape) is gone
before it is recorded. All others run on fake tensors for shape and dtype and become a step of the HCFG.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.onnx.values import DTYPE_NAMES, Cause, NeedsValue, Symbol, causes_of, is_runtime, symbol, tensor_type
from dycl_tvm.hcfg.nodes import Block, Constant, HostOp, Operand, Origin, TensorOp, Value
from dycl_tvm.hcfg.quantized import is_dequantize
from dycl_tvm.hcfg.types import BOOL, INT, ScalarType, TensorType

aten = torch.ops.aten

#: Operators whose result depends on a random state; a compiled network has none.
RANDOM = frozenset(
    {"rand", "randn", "randint", "bernoulli", "normal", "multinomial", "uniform", "native_dropout", "rand_like", "randn_like"}
)
#: A constant result larger than this (bytes) is computed at run time, unless it is no larger than four times its operands.
FOLD_BYTES = 16 << 20
#: Operators that only give their operand another name.
_SAME = frozenset({"alias", "detach", "lift_fresh", "positive"})


class Recorder(TorchDispatchMode):
    """Records ATen operations into ``block``.

    Attributes
    ----------
    block : Block
        Gets the steps.
    origin : Origin or None
        The node under way.
    names : dict
        Names of constants, by the identity of their tensors.
    """

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block
        self.origin: Origin | None = None
        self.names: dict[Any, str] = {}
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._constants: dict[Any, tuple[torch.Tensor, Constant]] = {}
        self._folded: dict[Any, Any] = {}

    # -- values --------------------------------------------------------------------------------------------------------
    def wrap(self, value: Value, causes: frozenset[Cause]) -> torch.Tensor:
        """Return a run-time tensor that stands for a value."""
        assert isinstance(value.type, TensorType)
        with self._fake:
            fake = torch.empty(value.type.shape, dtype=getattr(torch, value.type.dtype))
        fake._dycl = Symbol(value, causes)  # type: ignore[attr-defined]
        return fake

    def operand(self, t: torch.Tensor) -> Value:
        """Return the value of a tensor; one known at build time becomes a constant."""
        if is_runtime(t):
            return symbol(t).value
        known = self._constants.get(_key(t))
        if known is None:
            constant = Constant(tensor_type(t, self.origin), t.detach().contiguous(), self.names.get(_key(t), ""))
            known = self._constants[_key(t)] = (t, constant)
        return known[1]

    # -- host scalars --------------------------------------------------------------------------------------------------
    def host(self, op: str, *args: Operand, type_: ScalarType) -> Value:
        """Record a host operation."""
        step = HostOp(op, args, Value(type_), self.origin)
        self.block.steps.append(step)
        return step.output

    def item(self, t: torch.Tensor, type_: ScalarType = INT) -> Operand:
        """Return the one element of a tensor as a host scalar; a plain number if the tensor is a constant."""
        if not is_runtime(t):
            return bool(t.item()) if type_ == BOOL else int(t.item())
        return self.host("item", symbol(t).value, type_=type_)

    def to_tensor(self, scalar: Operand, dtype: torch.dtype, causes: frozenset[Cause]) -> torch.Tensor:
        """Return a host scalar as a tensor of rank 0."""
        if not isinstance(scalar, Value):
            return torch.tensor(scalar, dtype=dtype)
        step = HostOp("to_tensor", (scalar,), Value(TensorType((), DTYPE_NAMES[dtype])), self.origin)
        self.block.steps.append(step)
        return self.wrap(step.output, causes)

    # -- tensor operations ---------------------------------------------------------------------------------------------
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute or record one operation."""
        kwargs = dict(kwargs or {})
        name = func._opname
        if name in RANDOM:
            raise UnsupportedError(
                f"{name} gives another result at every call, a compiled network cannot", self.origin, "make the random numbers an input"
            )
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [a for a in leaves if isinstance(a, torch.Tensor)]
        if not any(is_runtime(t) for t in tensors) and not is_dequantize(_name(func)):
            return self._constant(func, args, kwargs, leaves, tensors)
        if func is aten._local_scalar_dense.default:
            raise self.needs_value("a number that a shape or attribute follows from", *tensors)
        if name in _SAME:
            return args[0]
        if func._schema.is_mutable:
            raise AssertionError(f"{func} changes a tensor in place; converters are functional")
        return self._record(func, args, kwargs, tensors)

    def needs_value(self, what: str, *data: Any) -> NeedsValue:
        """Return the error that a value is known at run time only."""
        return NeedsValue(f"{what} is known only at run time", self.origin, causes_of(*data))

    def _constant(self, func: Any, args: Any, kwargs: Any, leaves: list[Any], tensors: list[torch.Tensor]) -> Any:
        if func._opname in _SAME and tensors:
            return tensors[0]
        if func._schema.is_mutable:
            return func(*args, **kwargs)
        key = (func, tuple(_key(a) if isinstance(a, torch.Tensor) else (type(a), repr(a)) for a in leaves))
        viewing = any(r.alias_info is not None for r in func._schema.returns)
        if tensors and key in self._folded and not viewing:
            return self._folded[key][0]
        result = func(*args, **kwargs)
        size = sum(t.nbytes for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor))
        if size > max(FOLD_BYTES, 4 * sum(t.nbytes for t in tensors)) and not viewing and self._recordable(result):
            return self._record(func, args, kwargs, tensors)
        if tensors:
            # The operands are kept with the result: an identity is only unique among objects that live.
            self._folded[key] = (result, tensors)
            if viewing:
                # PyTorch wants a new object for each view; that they are one is told by the key.
                for k, t in enumerate(pytree.tree_leaves(result)):
                    t._dycl_key = (*key, k)
            weight = next((self.names[_key(t)] for t in tensors if _key(t) in self.names), "")
            if weight and isinstance(result, torch.Tensor):
                self.names.setdefault(_key(result), weight)
        return result

    @staticmethod
    def _recordable(result: Any) -> bool:
        return all(t.dtype in DTYPE_NAMES for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor))

    def _record(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        try:
            with self._fake:
                result = func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            raise self.needs_value(f"the shape of the result of {func._opname}", *tensors) from None
        causes = causes_of(*tensors)
        outputs: list[Value | None] = []
        wrapped: list[Any] = []
        flat, spec = pytree.tree_flatten(result)
        for t in flat:
            if not isinstance(t, torch.Tensor):
                outputs.append(None)
                wrapped.append(t)
                continue
            value = Value(tensor_type(t, self.origin))
            outputs.append(value)
            if t.numel() == 0:
                # There is nothing to compute, and what follows from it may be known now.
                wrapped.append(torch.empty(tuple(t.shape), dtype=t.dtype))
                continue
            t._dycl = Symbol(value, causes)  # type: ignore[attr-defined]
            wrapped.append(t)
        if any(is_runtime(t) for t in wrapped):
            hargs, hkwargs = pytree.tree_map(lambda a: self.operand(a) if isinstance(a, torch.Tensor) else a, (args, kwargs))
            hkwargs = {k: v for k, v in hkwargs.items() if k not in ("device", "layout", "pin_memory", "memory_format")}
            self.block.steps.append(TensorOp(_name(func), tuple(hargs), hkwargs, tuple(outputs), self.origin))
        return pytree.tree_unflatten(wrapped, spec)


def _name(func: Any) -> str:
    # A value of the HCFG has no strides, so what is a view here may be none in the interpreter.
    if func in (aten.view.default, aten._unsafe_view.default):
        return "aten.reshape.default"
    return f"{func.namespace}.{func._opname}.{func._overloadname}"


def _key(t: torch.Tensor) -> Any:
    """Return what tells a constant from others."""
    return getattr(t, "_dycl_key", id(t))
