# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What the passes on quantised tensors share: which values are integers with a scale, and new steps in the place of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.hcfg.interpreter import tensor_type
from dycl_tvm.hcfg.nodes import HCFG, Constant, Origin, TensorOp, Value
from dycl_tvm.hcfg.quantized import ADD, BYTES, DECOMPOSED, DEQUANTIZE, SCALED
from dycl_tvm.hcfg.types import TensorType

#: Operations that give elements of their first operand at other places, and take no other tensor.
_MOVES = frozenset({
    "aten.reshape.default", "aten.view.default", "aten.flatten.using_ints", "aten.permute.default", "aten.transpose.int", "aten.t.default",
    "aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default", "aten.unsqueeze.default", "aten.slice.Tensor", "aten.select.int",
    "aten.expand.default", "aten.clone.default",
})  # fmt: skip
#: Those that PyTorch has for uint8, and not for int8.
_MOVES_OF_BYTES = frozenset({"aten.upsample_nearest2d.default", "aten.upsample_nearest2d.vec"})
#: Maxima of a window, whose first operand is what they read.
MAXIMA = frozenset({"aten.max_pool2d_with_indices.default", "aten.max_pool2d.default"})
#: Clamps, and the names of their ends.
CLAMPS: dict[str, tuple[str, str]] = {
    "aten.relu.default": ("", ""), "aten.hardtanh.default": ("min_val", "max_val"), "aten.clamp.default": ("min", "max"),
}  # fmt: skip
#: What is added to an int8 that is to be a uint8.
MIDDLE = 128


@dataclass(frozen=True)
class Integers:
    """A tensor of uint8 or int8, which stands for real numbers."""

    q: Value

    @property
    def type(self) -> TensorType:
        """The type of the integers."""
        assert isinstance(self.q.type, TensorType)
        return self.q.type


@dataclass(frozen=True)
class Scaled(Integers):
    """A tensor of real numbers as (q - zero) * scale."""

    scale: float
    zero: int

    @property
    def grid(self) -> tuple[float, int, str]:
        """Scale, zero point and type: tensors of one grid have the same number for the same integer."""
        return self.scale, self.zero, self.type.dtype


@dataclass(frozen=True)
class Dynamic(Integers):
    """A tensor of real numbers as (q - zero) * scale, whose scale and zero point each call chooses."""

    scale: Value
    zero: Value


class Known:
    """What is known of the values of a graph, and the constants that were made."""

    def __init__(self, graph: HCFG) -> None:
        self.made: dict[Value, TensorOp] = {
            v: step for block in graph.blocks for step in block.steps if isinstance(step, TensorOp) for v in step.results()
        }
        self._position = {v: k for k, v in enumerate(self.made)}
        # Unrolled loops and forks repeat layers: equal constants must come out as one.
        self.memo: dict[Any, Any] = {}

    def define(self, step: TensorOp) -> None:
        """Take note of a new step."""
        self.made.update(dict.fromkeys(step.results(), step))
        for value in step.results():
            self._position.setdefault(value, len(self._position))

    def maker(self, value: Any) -> TensorOp | None:
        """Return the step that makes a value."""
        return self.made.get(value) if isinstance(value, Value) else None

    def position(self, value: Any) -> int:
        """Return where the integers are made that a value is dequantised of, or else the value itself: later ones have larger numbers."""
        step = self.maker(value)
        source = step.args[0] if step is not None and has_one_scale(step.op) else value
        return self._position.get(source, -1)

    def activation(self, value: Any) -> Scaled | None:
        """Return a dequantised value of one scale as integers of 8 bits."""
        step = self.maker(value)
        if step is None or not has_one_scale(step.op):
            return None
        q, scale, zero = step.args[0], number(step.args[1]), number(step.args[2])
        if scale is None or zero is None or not 0 < scale < float("inf") or q.type.dtype not in ("uint8", "int8"):
            return None
        if isinstance(q, Constant) or not is_float32(value):
            return None
        return Scaled(q, float(torch.tensor(scale, dtype=torch.float32)), int(zero))

    def dynamic(self, value: Any) -> Dynamic | None:
        """Return a dequantised value as integers of 8 bits whose scale each call chooses, together with a zero point among them."""
        step = self.maker(value)
        if step is None or step.op != f"{DECOMPOSED}.dequantize_per_tensor.tensor" or not is_float32(value):
            return None
        q, scale, zero, low, high = step.args[:5]
        chosen = self.maker(zero)
        if chosen is None or chosen is not self.maker(scale) or not chosen.op.startswith(f"{DECOMPOSED}.choose_qparams"):
            return None
        if isinstance(q, Constant) or q.type.dtype not in ("uint8", "int8") or chosen.args[1:3] != (low, high):
            return None
        limits = torch.iinfo(getattr(torch, q.type.dtype))
        return Dynamic(q, scale, zero) if limits.min <= low <= high <= limits.max else None

    def number(self, value: float) -> Constant:
        """Return a float32 of rank 0."""
        return self.constant(("number", float(value).hex()), torch.tensor(value, dtype=torch.float32))

    def constant(self, key: Any, data: torch.Tensor, name: str = "") -> Constant:
        """Return the one constant of a key."""
        if key not in self.memo:
            data = data.contiguous()
            self.memo[key] = Constant(tensor_type(data), data, name)
        found: Constant = self.memo[key]
        return found


class Steps:
    """New steps in the place of one."""

    def __init__(self, origin: Origin | None) -> None:
        self.steps: list[TensorOp] = []
        self._origin = origin

    def add(
        self, op: str, args: tuple[Any, ...], like: Any, dtype: str, out: Value | None = None, kwargs: dict[str, Any] | None = None
    ) -> Value:
        """Add an operation whose result has the shape of ``like``."""
        out = out or Value(TensorType(like.shape, dtype))
        self.steps.append(TensorOp(op, args, dict(kwargs or {}), (out,), self._origin))
        return out

    def as_uint8(self, x: Integers) -> Value:
        """Return the integers of a tensor, moved to the middle if they have signs."""
        return x.q if x.type.dtype == "uint8" else self.add(BYTES, (x.q,), x.q.type, "uint8")

    def dequantised(self, q: Value, of: Scaled, known: Known, out: Value) -> list[TensorOp]:
        """Add the dequantisation of integers that lie on the grid of a tensor; return all steps."""
        self.add(DEQUANTIZE, (q, known.number(of.scale), known.number(of.zero)), out.type, "float32", out)
        return self.steps


def has_one_scale(op: str) -> bool:
    """Whether an operation dequantises all elements by one scale."""
    return op == DEQUANTIZE or op.startswith(f"{DECOMPOSED}.dequantize_per_tensor.")


def moves(op: str, dtype: str) -> bool:
    """Whether an operation gives elements of its first operand at other places, and takes no other tensor, for such integers too."""
    return op in _MOVES or (dtype == "uint8" and op in _MOVES_OF_BYTES)


def is_never_nan(value: Any, made: dict[Value, TensorOp]) -> bool:
    """Whether a float32 tensor has no NaN, whatever the inputs are."""
    while isinstance(value, Value):
        step = made.get(value)
        if step is None:
            return False
        if step.op == SCALED:
            return is_finite(step.args[1])
        if step.op == DEQUANTIZE:
            return is_finite(step.args[1:])
        if step.op == "aten.cat.default":
            return all(is_never_nan(part, made) for part in step.args[0])
        if moves(step.op, "uint8"):
            value = step.args[0]
            continue
        # of infinities too these make numbers, if all but their first argument are finite
        if step.op == ADD:
            if not is_finite(step.args[2:]):
                return False
            value = step.args[0]
            continue
        known = step.op in CLAMPS or step.op in MAXIMA or (step.op == "aten.add.Tensor" and isinstance(step.args[1], Constant))
        if not known or not all(is_finite(a) for a in (*step.args[1:], *step.kwargs.values())):
            return False
        value = step.args[0]
    return False


def is_finite(argument: Any) -> bool:
    """Whether an argument is one or more numbers that float32 has, or none at all."""
    if isinstance(argument, Constant):
        return bool(torch.isfinite(argument.data).all())
    if isinstance(argument, (list, tuple)):
        return all(is_finite(a) for a in argument)
    return argument is None or (isinstance(argument, (bool, int, float)) and abs(argument) < 3e38)


def number(operand: Any) -> float | int | None:
    """Return the number that an operand is, or that a constant of one element holds."""
    if isinstance(operand, Constant) and operand.data.numel() == 1:
        return operand.data.item()  # type: ignore[no-any-return]
    return operand if isinstance(operand, (int, float)) else None


def is_float32(value: Any) -> bool:
    """Whether an operand is a tensor of float32."""
    return isinstance(value, Value) and isinstance(value.type, TensorType) and value.type.dtype == "float32"


def pair(value: Any, default: Any = None) -> list[int]:
    """Return a number for each of two dimensions."""
    if value is None or (isinstance(value, (list, tuple)) and not value):
        value = default
    values = [value] * 2 if isinstance(value, int) else [int(v) for v in value]
    return values * 2 if len(values) == 1 else values
