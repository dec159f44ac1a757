# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Host scalar operations: their types and their exact Python semantics, in one place.

The interpreter runs them, constant propagation folds them, the verifier checks their types, and the generated
dispatcher must agree with them.
"""

from __future__ import annotations

import math
import operator
import string
from collections.abc import Callable, Sequence

from dycl_tvm.hcfg.clocks import CLOCKS, type_of_clock
from dycl_tvm.hcfg.nodes import HostOp, Value, operand_type
from dycl_tvm.hcfg.types import BOOL, FLOAT, INT, ScalarType, TensorType, Type

Number = int | float | bool

#: What operations do beside giving a result: they stay where they stand, in order with each other, and run as often as there.
EFFECTS = frozenset({"print", "push", "pop", "check"})
#: Operations that do more than compute with their operands; a clock that nobody asks need not be read.
NOT_PURE = EFFECTS | {"clock"}

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

ARITHMETIC = frozenset({"add", "sub", "mul", "floordiv", "mod", "min", "max"})
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
LOGIC = frozenset({"and", "or", "xor"})
ROUNDING = frozenset({"floor", "ceil", "round", "trunc"})
MATH = frozenset({"sqrt", "exp", "log", "sin", "cos", "tanh"})
CONVERSIONS = frozenset({"to_int", "to_float", "to_bool"})

#: Number of operands of every host operation.
ARITY: dict[str, int] = {
    **dict.fromkeys(ARITHMETIC | COMPARISONS | LOGIC | {"truediv", "pow", "round_to"}, 2),
    **dict.fromkeys(ROUNDING | MATH | CONVERSIONS | {"neg", "abs", "not", "item", "to_tensor"}, 1),
    "select": 3,
}

_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "neg": operator.neg, "abs": abs, "min": min, "max": max,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "not": operator.not_, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "to_int": int, "to_float": float, "to_bool": bool,
    "floor": math.floor, "ceil": math.ceil, "round": round, "trunc": math.trunc,
    "round_to": lambda x, digits: round(x, max(digits, 0)),
    "sqrt": math.sqrt, "exp": math.exp, "log": math.log, "sin": math.sin, "cos": math.cos, "tanh": math.tanh,
}  # fmt: skip


def evaluate(op: str, args: Sequence[Number], result: ScalarType) -> Number:
    """Run one host operation on numbers (``item`` and ``to_tensor`` touch tensors and do not belong here).

    Parameters
    ----------
    op : str
        See :class:`dycl_tvm.hcfg.nodes.HostOp`.
    args : sequence of numbers
    result : ScalarType
        The declared type of the result; an int operation whose result is declared float gives the float.

    Raises
    ------
    ZeroDivisionError, ValueError, OverflowError
        Where Python raises them; OverflowError also when an int result leaves int64.
    """
    if op == "select":
        value = args[1] if args[0] else args[2]
    elif op == "pow":
        value = _power(args[0], args[1], result)
    else:
        value = _FUNCTIONS[op](*args)
    if result == INT:
        return checked_int(value)
    return float(value) if result == FLOAT else bool(value)


def checked_int(value: Number) -> int:
    """Return ``value`` as an int that fits int64.

    Raises
    ------
    OverflowError
        If it does not fit: host ints of an artefact are 64 bits wide.
    """
    value = int(value)
    if not INT64_MIN <= value <= INT64_MAX:
        raise OverflowError("a host int left the range of int64")
    return value


def result_type(op: str, args: Sequence[Type], declared: Type) -> str | None:
    """Check the types of a host operation.

    Returns
    -------
    str or None
        What is wrong, None if nothing is.
    """
    if op in ("push", "pop"):
        fits = len(args) == (op == "push") and (op == "pop" or declared == INT)
        return None if fits else f"{op} cannot take ({', '.join(map(str, args))}) and give {declared}"
    if op == "print":
        fits = declared == INT and all(isinstance(a, ScalarType) for a in args)
        return None if fits else f"print takes host scalars and gives an int, got ({', '.join(map(str, args))}) and {declared}"
    if op == "check":
        return None if list(args) == [BOOL] and declared == INT else f"check takes a bool and gives an int, not {declared}"
    if op == "clock":
        return None if not args and declared in (INT, FLOAT) else f"clock takes nothing and gives an int or a float, not {declared}"
    if op not in ARITY:
        return f"unknown host operation {op!r}"
    if len(args) != ARITY[op]:
        return f"{op} takes {ARITY[op]} operands, got {len(args)}"
    if op == "item":
        tensor = args[0]
        if not isinstance(tensor, TensorType) or tensor.numel != 1:
            return f"item takes a tensor of one element, got {tensor}"
        return None if isinstance(declared, ScalarType) else f"item gives a host scalar, not {declared}"
    kinds: list[str] = [a.kind for a in args if isinstance(a, ScalarType)]
    if len(kinds) != len(args):
        return f"{op} takes host scalars, got {', '.join(map(str, args))}"
    if op == "to_tensor":
        fits = isinstance(declared, TensorType) and declared.shape == ()
        return None if fits else f"to_tensor gives a tensor of rank 0, not {declared}"
    allowed = _allowed_results(op, kinds)
    if not allowed:
        return f"{op} cannot take ({', '.join(kinds)})"
    if declared not in allowed:
        return f"{op} of ({', '.join(kinds)}) gives {' or '.join(map(str, allowed))}, not {declared}"
    return None


#: The text of an ``item`` that is how long a tensor is.
OF_SHAPE = "of a shape"
#: The text of an ``item`` that a check of elements reads.
OF_CHECK = "of a check"
#: The text of an ``item`` of a tensor that ``max`` or ``min`` of tensors and numbers may choose.
OF_CHOICE = "of a choice"
#: Texts of an ``item`` that the program does not ask for: its answer is what the tensor holds, also where a run is forced.
UNASKED = (OF_SHAPE, OF_CHECK, OF_CHOICE)


def wrong_text(step: HostOp) -> str | None:
    """Return what is wrong with the template of a host operation, None if nothing is."""
    if step.op == "item" and step.text in UNASKED:
        return None
    if (step.op in ("print", "clock", "check")) != (step.text is not None):
        return "print has a template, clock a name and check an error, and no other operation has a text"
    if step.op == "check":
        return None if all(error_of(step.text or "")) else f"{step.text!r} is not the kind of an error and a message"
    if step.op == "clock":
        known = step.text in CLOCKS and type_of_clock(step.text) == step.output.type
        return None if known else f"there is no clock {step.text!r} that gives {step.output.type}"
    if step.text is None:
        return None
    try:
        holes = [name for _, name, _, _ in string.Formatter().parse(step.text) if name is not None]
    except ValueError as error:
        return f"the template {step.text!r}: {error}"
    return None if holes == [""] * len(step.args) else f"the template {step.text!r} does not fit {len(step.args)} operands"


def error_of(text: str) -> tuple[str, str]:
    """Return the kind of the error that a ``check`` raises, and its message."""
    kind, _, message = text.partition(": ")
    return kind, message


def must_run(step: HostOp) -> bool:
    """Tell whether the operation must run wherever it stood, even if nobody reads its result, in order with others of its kind."""
    return step.op in EFFECTS or raises_like_eager(step)


def raises_like_eager(step: HostOp) -> bool:
    """Tell whether the operation may raise an exception that the user's program raises too.

    Such an operation must run wherever it stood, even if nobody reads its result. An int that leaves int64 does not
    count: Python's ints do not overflow, so a removed overflow only comes closer to the original.
    """
    op, kinds = step.op, [operand_type(a) for a in step.args]
    if op == "check":
        return True
    if op in ("truediv", "floordiv", "mod"):
        divisor = step.args[1]
        return isinstance(divisor, Value) or divisor == 0
    if op == "item":
        # A float tensor read as an int: nan and infinity have no int.
        return step.output.type == INT and isinstance(kinds[0], TensorType) and "float" in kinds[0].dtype
    if op == "to_int" or op in ROUNDING:
        return kinds[0] == FLOAT
    return op in ("pow", "sqrt", "exp", "log", "sin", "cos")


def may_raise(step: HostOp) -> bool:
    """Tell whether the operation may raise at all, an int64 overflow included."""
    if raises_like_eager(step):
        return True
    if step.op == "to_tensor":
        # Narrow ints cannot hold every int64.
        return operand_type(step.args[0]) == INT and isinstance(step.output.type, TensorType) and step.output.type.dtype in _NARROW
    return step.output.type == INT and step.op in ("add", "sub", "mul", "floordiv", "neg", "abs")


#: What ends a call where Python would go on with a complex number, which a host scalar cannot be.
COMPLEX_POWER = "a power with a complex result"
_NARROW = frozenset({"int32", "int16", "int8", "uint8"})


def _power(base: Number, exponent: Number, result: ScalarType) -> Number:
    if result == INT:
        if exponent < 0:
            raise ValueError("a negative power of an int is not an int")
        if abs(base) > 1 and exponent > 64:
            # Not computed: the number could fill the memory.
            raise OverflowError("a host int left the range of int64")
        return base**exponent
    value = float(base) ** float(exponent)
    if isinstance(value, complex):
        raise ValueError(COMPLEX_POWER)
    return value


def _allowed_results(op: str, kinds: list[str]) -> tuple[ScalarType, ...]:
    """Return the types that the operation may give on scalars of these kinds; bools count as ints in arithmetic."""
    number = FLOAT if "float" in kinds else INT
    if op in ARITHMETIC or op in ("neg", "abs"):
        return (number,)
    if op == "pow":
        return (FLOAT,) if number == FLOAT else (INT, FLOAT)
    if op == "truediv" or op in MATH:
        return (FLOAT,)
    if op == "round_to":
        return (FLOAT,) if kinds == ["float", "int"] else ()
    if op in COMPARISONS or op == "to_bool":
        return (BOOL,)
    if op in LOGIC or op == "not":
        return (BOOL,) if set(kinds) == {"bool"} else ()
    if op == "select":
        return (ScalarType(kinds[1]),) if kinds[0] == "bool" and kinds[1] == kinds[2] else ()  # type: ignore[arg-type]  # a ScalarKind
    return (FLOAT,) if op == "to_float" else (INT,)
