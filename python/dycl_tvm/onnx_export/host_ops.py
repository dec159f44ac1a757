# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Host operations as ONNX nodes on tensors of rank 0: int is int64, float is float64. Semantics are Python's.

Errors are not seen to here, see :mod:`.guards`; an int that leaves 64 bits wraps round.
"""

from __future__ import annotations

from collections.abc import Callable

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.hostops import COMPARISONS
from dycl_tvm.hcfg.nodes import HostOp, Operand, operand_type
from dycl_tvm.hcfg.types import BOOL, FLOAT, ScalarType, TensorType
from dycl_tvm.onnx_export.scope import SCALAR_DTYPE, Scope, dtype_of

_COMPARE = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}
_SIMPLE = {"add": "Add", "sub": "Sub", "mul": "Mul", "truediv": "Div", "neg": "Neg", "abs": "Abs", "sqrt": "Sqrt", "exp": "Exp",
           "log": "Log",
           "sin": "Sin", "cos": "Cos", "tanh": "Tanh"}  # fmt: skip
_ROUND = {"floor": "Floor", "ceil": "Ceil", "round": "Round"}


def emit_host_op(scope: Scope, step: HostOp, read: Callable[[Operand], str]) -> str:
    """Append the nodes of one host operation; ``read`` names an operand."""
    op, out = step.op, step.output.type
    if op == "clock":
        raise UnsupportedError("a clock has no form in ONNX", step.origin, "export with split=True, or measure outside of the forward")
    if op == "print":
        raise UnsupportedError("print has no form in ONNX", step.origin, "build without keep_print, or export with split=True")
    if op == "round_to":
        raise UnsupportedError("round() to a number of digits has no form in ONNX", step.origin, "export with split=True")
    if op in ("push", "pop"):
        raise UnsupportedError(
            "a recursion whose depth is known only at run time has no form in ONNX", step.origin, "export with split=True"
        )
    args = [read(a) for a in step.args]
    if op == "item":
        type_ = operand_type(step.args[0])
        assert isinstance(type_, TensorType)
        if type_.shape:
            shape = scope.constant([], "int64", "scalar_shape")
            args = [scope.emit("Reshape", [args[0], shape], type_.dtype, "item")]
        return scope.cast(args[0], dtype_of(out))
    if op == "to_tensor":
        return scope.cast(args[0], dtype_of(out))
    kinds = [t.kind for t in map(operand_type, step.args) if isinstance(t, ScalarType)]
    if op in COMPARISONS:
        both = "bool" if set(kinds) == {"bool"} and op in ("eq", "ne") else "float64" if "float" in kinds else "int64"
        return _compare(scope, op, *(scope.cast(a, both) for a in args))
    if op in ("and", "or", "xor", "not"):
        return scope.emit(op.capitalize(), args, "bool", op)
    if op == "select":
        return _where(scope, *args)
    if op == "to_bool":
        return args[0] if kinds[0] == "bool" else _compare(scope, "ne", args[0], _number(scope, 0, SCALAR_DTYPE[kinds[0]]))
    if op in _ROUND and kinds[0] == "float":
        return scope.cast(scope.emit(_ROUND[op], args, "float64", op), "int64")
    assert isinstance(out, ScalarType)
    dtype = dtype_of(out)
    args = [scope.cast(a, dtype) for a in args]
    if op in ("to_int", "to_float", "trunc", *_ROUND):
        return args[0]
    if op in ("min", "max"):
        return _where(scope, _compare(scope, "lt" if op == "min" else "gt", args[1], args[0]), args[1], args[0])
    if op == "mod":
        return _modulus(scope, dtype, *args)[0]
    if op == "floordiv":
        return _modulus(scope, dtype, *args)[1]
    if op == "pow":
        return _power(scope, step, dtype, args)
    assert out != BOOL
    return scope.emit(_SIMPLE[op], args, dtype, op)


def _number(scope: Scope, value: float, dtype: str) -> str:
    return scope.constant(value, dtype)


def _compare(scope: Scope, op: str, a: str, b: str) -> str:
    if op == "ne":
        return scope.emit("Not", [scope.emit("Equal", [a, b], "bool", "eq")], "bool", "ne")
    return scope.emit(_COMPARE[op], [a, b], "bool", op)


def _where(scope: Scope, cond: str, a: str, b: str) -> str:
    dtype = scope.root.dtypes[a]
    if dtype != "bool":
        return scope.emit("Where", [cond, a, b], dtype, "select")
    left = scope.emit("And", [cond, a], "bool", "and")
    right = scope.emit("And", [scope.emit("Not", [cond], "bool", "not"), b], "bool", "and")
    return scope.emit("Or", [left, right], "bool", "select")


def _modulus(scope: Scope, dtype: str, a: str, b: str) -> tuple[str, str]:
    """Return ``a % b`` and ``a // b`` as Python computes them."""
    if dtype == "int64":
        # ONNX's integer Mod has the sign of the divisor, as Python's.
        mod = scope.emit("Mod", [a, b], dtype, "mod")
        return mod, scope.emit("Div", [scope.emit("Sub", [a, mod], dtype, "sub"), b], dtype, "floordiv")
    zero, one, half = (_number(scope, x, dtype) for x in (0.0, 1.0, 0.5))
    mod = scope.emit("Mod", [a, b], dtype, "fmod", fmod=1)
    quotient = scope.emit("Div", [scope.emit("Sub", [a, mod], dtype, "sub"), b], dtype, "div")
    signs = scope.emit("Xor", [_compare(scope, "lt", mod, zero), _compare(scope, "lt", b, zero)], "bool", "signs")
    wrong = scope.emit("And", [_compare(scope, "ne", mod, zero), signs], "bool", "wrong")
    mod = _where(scope, wrong, scope.emit("Add", [mod, b], dtype, "add"), mod)
    quotient = _where(scope, wrong, scope.emit("Sub", [quotient, one], dtype, "sub"), quotient)
    down = scope.emit("Floor", [quotient], dtype, "floor")
    rest = scope.emit("Sub", [quotient, down], dtype, "rest")
    return mod, _where(scope, _compare(scope, "gt", rest, half), scope.emit("Add", [down, one], dtype, "add"), down)


def _power(scope: Scope, step: HostOp, dtype: str, args: list[str]) -> str:
    exponent = step.args[1]
    if step.output.type == FLOAT or not isinstance(exponent, int) or exponent > 64:
        return scope.emit("Pow", args, dtype, "pow")
    # Pow of ints goes through floats in some run times: multiply instead.
    result, square = _number(scope, 1, dtype), args[0]
    while exponent:
        if exponent & 1:
            result = scope.emit("Mul", [result, square], dtype, "mul")
        exponent >>= 1
        if exponent:
            square = scope.emit("Mul", [square, square], dtype, "mul")
    return result
