# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Host scalars: numbers that are known only at run time.

They are subclasses of torch's ``SymInt``, ``SymFloat`` and ``SymBool``, so that torch's own argument parsers take them
wherever they take a number; every operator records a :class:`HostOp` with Python's semantics. Where Python insists
on a plain number (a truth test in code that was not rewritten, an index, a shape) the value itself notices, and the
session forks or refuses: no code can bake in a value by accident.
"""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current, staging
from dycl_tvm.frontend.trace.values.advances import Advance, note_step
from dycl_tvm.frontend.trace.values.bits import combined, shifted
from dycl_tvm.frontend.trace.values.complex_numbers import refuse_complex
from dycl_tvm.frontend.trace.values.deciding import FEW, known_length, one_of_few
from dycl_tvm.frontend.trace.values.forms import Form
from dycl_tvm.frontend.trace.values.intervals import bounds_after
from dycl_tvm.frontend.trace.values.lengths import Length, combine
from dycl_tvm.frontend.trace.values.mixed import Mixed, dtype_of, refuse_mixed
from dycl_tvm.frontend.trace.values.number_tests import answer_by_bounds, test_of
from dycl_tvm.frontend.trace.values.overflow import exponent_overflows_from, power_overflows_from
from dycl_tvm.frontend.trace.values.products import difference_of, note_product, note_quotient, note_sum
from dycl_tvm.frontend.trace.values.raising import check, expected
from dycl_tvm.hcfg.hostops import COMPARISONS
from dycl_tvm.hcfg.nodes import Operand, Value
from dycl_tvm.hcfg.types import BOOL, FLOAT, INT, ScalarType


class Node:
    """What torch's C++ code sees of a host scalar.

    Attributes
    ----------
    value : Value
        The scalar in the HCFG.
    decision : object or None
        The join that made it of plain numbers; re-running with that decision forked makes it plain again.
    bounds : (int, int) or None
        The least and the largest value that an int is known to have.
    mixed : Mixed or None
        What the number is in eager mode, if values decide its type.
    length : Length or None
        How it grows from trip to trip of a loop, if it does so steadily.
    base : (Value, int)
        A number, or what stands for it, and by how much this one is larger.
    form : Form or None
        Of which numbers it is a sum, if it is more than that.
    counted : object or None
        The loop from whose number of the trip it follows, if Python knows that: unrolled, it is a plain number.
    test : Test, NumberTest or None
        Which comparison it is, of lengths or of a number.
    """

    def __init__(self, value: Value, decision: Any = None, bounds: tuple[int, int] | None = None) -> None:
        self.value, self.decision, self.bounds = value, decision, bounds
        self.mixed: Mixed | None = None
        self.length: Length | None = None
        self.base: tuple[Any, int] = (value, 0)
        self.form: Form | None = None
        self.advance: Advance | None = None
        self.counted: Any = None
        self.test: Any = None

    @property
    def kind(self) -> str:
        """``int``, ``float`` or ``bool``."""
        assert isinstance(self.value.type, ScalarType)
        return self.value.type.kind

    def is_int(self) -> bool:
        return self.kind == "int"

    def is_float(self) -> bool:
        return self.kind == "float"

    def is_bool(self) -> bool:
        return self.kind == "bool"

    def is_nested_int(self) -> bool:
        return False

    is_constant = has_hint = is_nested_int

    def is_symbolic(self) -> bool:
        return True

    def maybe_as_int(self) -> None:
        return None

    def bool_(self) -> bool:
        return current().decisions.decide(truth_operand(wrap(self.value, self.decision)))

    def guard_bool(self, _file: str, _line: int) -> bool:
        return self.bool_()

    def expect_true(self, _file: str, _line: int) -> bool:
        return expected(self.value)

    def int_(self) -> int:
        return int(self._plain("an int"))

    def guard_int(self, _file: str, _line: int) -> int:
        return self.int_()

    def guard_float(self, _file: str, _line: int) -> float:
        return float(self._plain("a float"))

    def text(self) -> Any:
        """Refuse to be made a text; at build time there is none."""
        return self._plain("its text", "keep it a number; in a print that is kept, give it as an argument of its own: print(a, b)")

    def _plain(self, what: str, instead: str = "keep shapes static; index tensors with tensors, or choose among values with `if`") -> Any:
        if self.length is not None and (known := known_length(self.length, lambda: self.part(what, instead))) is not None:
            return known
        if self.counted is not None:
            current().decisions.unroll(self.counted, UnsupportedError(f"the number of a trip is needed as {what}", current().origin()))
        if self.is_int() and self.length is None:
            current().decisions.count_trips()
        return self.part(what, instead)

    def part(self, what: str, instead: str = "let Python know the number, or keep tensors there") -> Any:
        """Have the paths part on which the number differs."""
        session = current()
        if self.decision is not None:
            session.decisions.fork(self.decision, f"{what} is needed at build time")
        if what == "an int" and self.length is None and self.bounds is not None and self.bounds[1] - self.bounds[0] < FEW:
            return one_of_few(self.base, *self.bounds, lambda n: truth_operand(wrap(self.value) == n))
        raise UnsupportedError(
            f"a number that is known only at run time is used where Python needs {what} at build time (a shape, an index, a library call)",
            session.origin(),
            instead,
        )

    def str(self) -> str:
        return f"<{self.kind} known at run time>"

    _graph_repr = str


def _operand(x: Any) -> Operand | None:
    """Return the operand of a number, plain or not; None for anything else."""
    if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        node = x.node
        return node.value if isinstance(node, Node) else None
    if isinstance(x, (bool, int, float)):
        return x
    return None


def _kind(op: Operand) -> str:
    if isinstance(op, Value):
        assert isinstance(op.type, ScalarType)
        return op.type.kind
    return "bool" if isinstance(op, bool) else "int" if isinstance(op, int) else "float"


def emit(op: str, *args: Operand, type_: ScalarType, text: str | None = None) -> Any:
    """Record a host operation and wrap its result."""
    return wrap(current().builder.host_op(op, args, type_, text))


def as_float(op: Operand) -> Operand:
    """Convert an operand to float."""
    if not isinstance(op, Value):
        return float(op)
    return op if op.type == FLOAT else current().builder.host_op("to_float", (op,), FLOAT)


def as_int(op: Operand) -> Operand:
    """Convert a bool operand to int (ints stay)."""
    if not isinstance(op, Value):
        return int(op)
    return op if op.type == INT else current().builder.host_op("to_int", (op,), INT)


def _check_literal(op: Operand) -> Operand:
    if isinstance(op, int) and not isinstance(op, (bool, Value)) and not -(2**63) <= op < 2**63:
        raise UnsupportedError(
            "an int of more than 64 bits meets a number that is known only at run time", current().origin(), "stay within 64 bits"
        )
    return op


_ONE_AND_ZERO = ((1, 0), (1.0, 0.0))


def arithmetic(op: str, a: Operand, b: Operand) -> Any:
    """Record ``a op b`` with Python's promotion rules (bool to int to float)."""
    a, b = _check_literal(a), _check_literal(b)
    kinds = {_kind(a), _kind(b)}
    if op in COMPARISONS:
        if "float" not in kinds and (kinds != {"bool"} or op not in ("eq", "ne")):
            a, b = as_int(a), as_int(b)
        return emit(op, a, b, type_=BOOL)  # of an int and a float: exact, as Python's, not by a conversion of the int
    if op in ("truediv", "floordiv", "mod"):
        _guard(
            arithmetic("eq", b, 0) if isinstance(b, Value) else b == 0, ZeroDivisionError, _by_zero(op, *_ONE_AND_ZERO["float" in kinds])
        )
    if op == "truediv" and "float" not in kinds:
        return emit(op, as_int(a), as_int(b), type_=FLOAT)  # the quotient of two ints is rounded once
    if op == "truediv":
        return emit(op, as_float(a), as_float(b), type_=FLOAT)
    if op == "pow" and "float" not in kinds and not isinstance(b, Value) and b < 0:
        _guard_power(as_float(a), float(b))
        return emit(op, as_float(a), as_float(b), type_=FLOAT)
    if op == "pow" and "float" not in kinds:
        if isinstance(b, Value):
            raise UnsupportedError(
                "an int raised to a power that is known only at run time has no fixed type",
                current().origin(),
                "raise a float: float(a) ** b",
            )
        return emit(op, as_int(a), as_int(b), type_=INT)
    if op == "pow":
        _guard_power(as_float(a), as_float(b))
        return emit(op, as_float(a), as_float(b), type_=FLOAT)
    if "float" in kinds:
        return emit(op, as_float(a), as_float(b), type_=FLOAT)
    return emit(op, as_int(a), as_int(b), type_=INT)


def _by_zero(op: str, left: float, right: float) -> str:
    """Return what this version of Python says of an operation that meets a zero."""
    try:
        getattr(operator, op)(left, right)
    except ZeroDivisionError as error:
        return str(error)
    raise AssertionError(op)


def _guard_power(base: Operand, exponent: Operand) -> None:
    """Zero has no negative power, and a power may be too large for a float."""
    if not current().may_be_caught():
        return
    negative = current().decisions.decide(truth_operand(arithmetic("lt", exponent, 0))) if isinstance(exponent, Value) else exponent < 0
    if negative:
        zero = arithmetic("eq", base, 0) if isinstance(base, Value) else base == 0
        _guard(zero, ZeroDivisionError, _by_zero("pow", 0.0, -1.0))
    if isinstance(base, Value) and isinstance(exponent, Value):
        raise UnsupportedError(
            "whether a power of two numbers known only at run time overflows, within a `try`",
            current().origin(),
            "compute the power outside of the `try`",
        )
    if isinstance(base, Value):
        fixed: Any = exponent
        bound = power_overflows_from(fixed) if math.isfinite(fixed) and fixed else None
        size, limit = emit("abs", base, type_=FLOAT).node.value, 0.0 if negative else math.inf
    else:
        bound = exponent_overflows_from(abs(base)) if math.isfinite(base) and abs(base) not in (0.0, 1.0) else None
        size, limit = exponent if abs(base) > 1 else emit("neg", exponent, type_=FLOAT).node.value, math.inf
    if bound is not None:
        _guard_overflow("lt" if limit == 0.0 else "ge", size, bound, limit, 34, "Numerical result out of range")


def _guard_overflow(beyond: str, x: Operand, bound: float | None, limit: float, *error: Any) -> None:
    """A function overflows beyond a bound, but not at the limit, where eager goes on with infinity."""
    found, finite = arithmetic(beyond, x, bound), arithmetic("ne", x, limit)  # type: ignore[arg-type]
    _guard(emit("and", found.node.value, finite.node.value, type_=BOOL), OverflowError, *error)


def _guard(failing: Any, error: type[Exception], *args: Any) -> None:
    """Where a handler of the user's may see the error of a host operation, test whether it occurs, and raise it."""
    if current().may_be_caught(error):
        cond = truth_operand(failing)
        check(cond, error(*args), wanted=False)


def _binary(op: str, swapped: bool) -> Any:
    def method(self: Any, other: Any) -> Any:
        right = _operand(other)
        if right is None:
            return refuse_complex() if isinstance(other, complex) else NotImplemented
        left: Operand = self.node.value
        affine = _affine(op, other, self) if swapped else _affine(op, self, other)
        if isinstance(affine, int):
            return affine
        loop = counted_by(self) and counted_by(other, counted_by(self))
        if op in COMPARISONS and (loop or self.node.length is None) and (known := _by_bounds(op, self, other)) is not None:
            return known
        result = arithmetic(op, right, left) if swapped else arithmetic(op, left, right)
        if is_symbolic(result):
            lengths = length_of(self), length_of(other)
            result.node.counted, result.node.test = loop, test_of(op, self.node, bounds_of(other), lengths)
        if is_symbolic(result) and result.node.kind == "int":
            first, second = (other, self) if swapped else (self, other)
            bounds = bounds_of(first), bounds_of(second)
            result.node.bounds = bounds_after(op, *bounds, second)
            if op == "mul" and affine is None and (type(other) is int or is_symbolic(other)):
                note_product(result, self, other)
            if op == "floordiv" and is_symbolic(other):
                note_quotient(result, first, second)
            note_step(result, op, first, second, *bounds)
            if affine is None and (plain := note_sum(result, op, first, second)) is not None:
                return plain
        if affine is not None:
            return grown(result, affine)
        mixed = self.node.mixed or mixed_of(other)
        return result if mixed is None else mark_mixed(result, _mixed_result(mixed, op, self, other))

    return method


def counted(x: Any, ends: tuple[int, int], loop: Any) -> Any:
    """Return the number of a trip of a loop that is rolled although Python knows it, and within which bounds it is."""
    made = wrap(operand_of(x), loop)
    made.node.bounds, made.node.counted, made.node.length = ends, loop, length_of(x)
    return made


def counted_by(x: Any, loop: Any = None) -> Any:
    """Return the loop from whose number of the trip a number follows, ``loop`` for plain ones; None if there is more to it."""
    return x.node.counted if is_symbolic(x) and loop in (None, x.node.counted) else None if is_symbolic(x) else loop


def _by_bounds(op: str, a: Any, b: Any) -> bool | None:
    """Return the answer of a comparison if it follows from the bounds of the numbers."""
    of_a, of_b = bounds_of(a), bounds_of(b)
    if (apart_by := difference_of(a, b)) is not None:
        of_a, of_b = apart_by, (0, 0)
    return answer_by_bounds(op, of_a, of_b)


def _affine(op: str, a: Any, b: Any) -> Length | int | None:
    """Return what is known of an operation on numbers of which one at least grows steadily in a loop."""
    of_a, of_b = length_of(a), length_of(b)
    if of_a is None or of_b is None or not (isinstance(of_a, Length) or isinstance(of_b, Length)):
        return None
    return combine(op, of_a, of_b)


def length_of(x: Any) -> Length | int | None:
    """Return how a number grows in a loop; itself, if it is a plain int."""
    if not is_symbolic(x):
        return x if type(x) is int else None
    length: Length | None = x.node.length
    return length if length is None or length.settled is None else length.settled


def grown(x: Any, length: Length) -> Any:
    """Note how a number grows in a loop, and return it."""
    x.node.length, x.node.bounds, x.node.decision = length, length.bounds, length.counter.loop
    return x


def _mixed_result(mixed: Mixed, op: str, *numbers: Any) -> Mixed | None:
    """Return what is mixed about the result of an operation on mixed numbers."""
    if mixed.tensor and op not in COMPARISONS:
        quotients = {torch.get_default_dtype()} if op == "truediv" else set()
        return replace(mixed, dtypes=frozenset(quotients).union(*map(dtypes_of, numbers)), computed=True)
    if mixed.tensor:
        for x in numbers:
            x_mixed = mixed_of(x)
            if x_mixed.computed if x_mixed else is_symbolic(x) or float(np.float32(x)) != x:
                refuse_mixed(mixed, "compared, of which a tensor's rounding could decide the result")
        return mixed
    floats = any(_kind(operand_of(x)) == "float" and not mixed_of(x) for x in numbers)
    return None if op in COMPARISONS or op == "truediv" or floats else mixed


def mixed_of(x: Any) -> Mixed | None:
    """Return between which types values decide in eager mode what a number is; None if its type is certain."""
    return x.node.mixed if is_symbolic(x) else None


def dtypes_of(x: Any) -> frozenset[torch.dtype]:
    """Return which types a number, or a tensor that is one, may have in an operation with a tensor."""
    if isinstance(x, torch.Tensor):
        return frozenset([x.dtype])
    mixed = mixed_of(x)
    return mixed.dtypes if mixed else frozenset([dtype_of(_kind(operand_of(x)))])


def mark_mixed(x: Any, mixed: Mixed | None) -> Any:
    """Note that values decide the type of a number, and return it."""
    if is_symbolic(x):
        x.node.mixed = mixed
    return x


def _refuse_computed(x: Any, used: str) -> None:
    mixed = mixed_of(x)
    if mixed is not None and mixed.computed:
        refuse_mixed(mixed, f"computed with, then {used}")


def _logical(op: str) -> Any:
    def method(self: Any, other: Any) -> Any:
        right = _operand(other)
        if right is None or _kind(right) != "bool" or self.node.kind != "bool":
            return _of_bits(op, self, other)
        made = emit(op, self.node.value, right, type_=BOOL)
        made.node.counted = counted_by(self) and counted_by(other, counted_by(self))
        return made

    return method


def _of_bits(op: str, a: Any, b: Any) -> Any:
    """Return a bit operation of two numbers, which Python has for ints and bools."""
    if _operand(a) is None or _operand(b) is None:
        return NotImplemented
    if any(mixed_of(x) or _kind(operand_of(x)) == "float" for x in (a, b)):
        raise UnsupportedError(f"the bit operation {op} on a number that may be a float", current().origin(), "convert it: int(x)")
    a, b = convert(a, "int"), convert(b, "int")
    if op in ("and", "or", "xor"):
        return combined(op, a, b)
    check(truth_operand(b < 0), ValueError("negative shift count"), wanted=False)
    return shifted(a, b, op == "lshift", lambda exponent: emit("pow", 2, operand_of(exponent), type_=INT))


def _signed(op: str) -> Any:
    def method(self: Any) -> Any:
        value, type_ = (self.node.value, FLOAT) if self.node.kind == "float" else (as_int(self.node.value), INT)
        made = mark_mixed(emit(op, value, type_=type_), self.node.mixed)
        made.node.bounds = (self.node.bounds and op == "neg" and (-self.node.bounds[1], -self.node.bounds[0])) or None
        if made.node.bounds is None or made.node.kind != "int":
            return made
        if (affine := _affine("mul", self, -1)) is not None:
            return grown(made, affine)  # type: ignore[arg-type]  # it has a factor
        note_sum(made, "mul", self, -1)
        return made

    return method


def _rounding(op: str) -> Any:
    def method(self: Any, ndigits: Any = None) -> Any:
        if ndigits is not None and (type(ndigits) is not int or ndigits < 0):
            raise UnsupportedError(
                "round() of a number known only at run time, to a number of digits that is not one of Python's from 0",
                current().origin(),
                "round(x / 100) * 100",
            )
        if self.node.mixed and self.node.mixed.tensor:
            refuse_mixed(self.node.mixed, f"given to {op}()")
        if ndigits is not None and self.node.kind == "float":
            return emit("round_to", self.node.value, ndigits, type_=FLOAT)
        if self.node.kind != "float":
            return wrap(as_int(self.node.value), self.node.decision)
        _guard_rounding(self)
        return emit(op, self.node.value, type_=INT)

    return method


def _guard_rounding(x: Any) -> None:
    """Infinity and NaN have no int; other floats have one, if perhaps of more than 64 bits, which is an error at run time."""
    _guard(arithmetic("ne", x.node.value, x.node.value), ValueError, "cannot convert float NaN to integer")
    _guard(_is_infinite(x.node.value), OverflowError, "cannot convert float infinity to integer")


def _hash(self: Any) -> int:
    self.node._plain("a hashable number")
    raise AssertionError("unreachable")


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_METHODS: dict[str, Any] = {
    **{f"__{n}__": _binary(n, False) for n in (*_ARITHMETIC, *COMPARISONS)},
    **{f"__r{n}__": _binary(n, True) for n in _ARITHMETIC},
    **{f"__{r}{n}__": _logical(n) for n in ("and", "or", "xor") for r in ("", "r")},
    "__neg__": _signed("neg"),
    "__pos__": lambda self: wrap(as_int(self.node.value), self.node.decision) if self.node.kind == "bool" else self,
    "__abs__": _signed("abs"),
    "__round__": _rounding("round"),
    "__trunc__": _rounding("trunc"),
    "__floor__": _rounding("floor"),
    "__ceil__": _rounding("ceil"),
    "__hash__": _hash,
    "__bool__": lambda self: self.node.bool_(),
}
for _name in ("lshift", "rshift"):
    _METHODS[f"__{_name}__"] = lambda self, other, op=_name: _of_bits(op, self, other)
    _METHODS[f"__r{_name}__"] = lambda self, other, op=_name: _of_bits(op, other, self)
_METHODS["__invert__"] = lambda self: _of_bits("xor", self, -1)
_METHODS["__copy__"], _METHODS["__deepcopy__"] = lambda self: self, lambda self, _memo: self
_METHODS["__divmod__"] = lambda self, other: NotImplemented if _operand(other) is None else (self // other, self % other)
_METHODS["__rdivmod__"] = lambda self, other: NotImplemented if _operand(other) is None else (other // self, other % self)
_METHODS["__int__"], _METHODS["__float__"] = lambda self: self.node.int_(), lambda self: self.node.guard_float("", 0)
_METHODS["__repr__"] = lambda self: self.node.text() if staging() else self.node.str()
_METHODS["__format__"] = lambda self, _spec: self.node.text()


def _refuse_method(name: str) -> Any:
    def method(self: Any, *_args: Any, **_kwargs: Any) -> Any:
        raise UnsupportedError(f"{name} of a number that is known only at run time", current().origin(), "use arithmetic and comparisons")

    return method


#: What Python's numbers have and torch's symbolic ones have otherwise, or not.
for _name in ("as_integer_ratio", "bit_length", "bit_count", "to_bytes", "hex"):
    _METHODS.setdefault(_name, _refuse_method(_name))
_METHODS["conjugate"], _METHODS["real"] = lambda self: +self, property(lambda self: +self)
_METHODS["is_integer"], _METHODS["imag"] = lambda self: self % 1 == 0, property(lambda self: 0.0 if self.node.kind == "float" else 0)

HostInt: type = type("HostInt", (torch.SymInt,), {**_METHODS, "numerator": _METHODS["real"], "denominator": property(lambda self: 1)})
HostFloat: type = type("HostFloat", (torch.SymFloat,), dict(_METHODS))
HostBool: type = type("HostBool", (torch.SymBool,), {k: v for k, v in _METHODS.items() if k != "__index__"})
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_WRAPPERS = {"int": HostInt, "float": HostFloat, "bool": HostBool}


def wrap(operand: Operand, decision: Any = None) -> Any:
    """Give an operand the form that the user's program sees: a plain number, or a host scalar."""
    if not isinstance(operand, Value):
        return operand
    assert isinstance(operand.type, ScalarType)
    return _WRAPPERS[operand.type.kind](Node(operand, decision))


def is_symbolic(x: Any) -> bool:
    """Whether ``x`` is a host scalar."""
    return isinstance(x, SYMBOLIC)


def known(x: Any) -> Any:
    """Return a number that Python needs now: the paths part on which it differs."""
    return x.node.part("an int") if x.node.kind == "int" else {"float": float, "bool": bool}[x.node.kind](x)


def operand_of(x: Any) -> Operand:
    """Return the operand of a number, plain or not."""
    op = _operand(x)
    assert op is not None, x
    return op


def truth_operand(x: Any) -> Operand:
    """Return the truth of a number as a bool operand."""
    _refuse_computed(x, "tested")
    if (loop := counted_by(x)) is not None and not loop.at_condition:
        current().decisions.fork(loop, "the number of a trip decides a test")
    op = operand_of(x)
    if not isinstance(op, Value):
        return bool(op)
    if op.type == BOOL:
        return op
    zero: Operand = 0.0 if op.type == FLOAT else 0
    return current().builder.host_op("ne", (op, zero), BOOL)


def logical_not(x: Any) -> Any:
    """``not x`` of a number."""
    op = truth_operand(x)
    return emit("not", op, type_=BOOL) if isinstance(op, Value) else not op


def convert(x: Any, kind: str) -> Any:
    """``int(x)``, ``float(x)`` or ``bool(x)`` of a number."""
    _refuse_computed(x, f"given to {kind}()")
    op = operand_of(x)
    if not isinstance(op, Value):
        return {"int": int, "float": float, "bool": bool}[kind](op)
    if _kind(op) == kind:
        return wrap(op, x.node.decision) if x.node.mixed else x
    if kind == "bool":
        return wrap(truth_operand(x))
    if kind == "int" and _kind(op) == "float":
        _guard_rounding(x)
    made = emit(f"to_{kind}", op, type_=INT if kind == "int" else FLOAT)
    if kind == "int":
        made.node.bounds = bounds_of(x)
    return made


def _is_infinite(op: Value) -> Any:
    return arithmetic("eq", emit("abs", op, type_=FLOAT).node.value, math.inf)


def select(cond: Any, a: Any, b: Any) -> Any:
    """``a if cond else b`` of numbers of one kind, both evaluated."""
    oc, oa, ob = operand_of(cond), operand_of(a), operand_of(b)
    if not isinstance(oc, Value):
        return a if oc else b
    if _kind(oa) != _kind(ob):
        oa, ob = as_float(oa), as_float(ob)
    chosen = emit("select", oc, oa, ob, type_=ScalarType(_kind(oa)))  # type: ignore[arg-type]  # the kinds are those of ScalarType
    ba, bb = bounds_of(a), bounds_of(b)
    if ba is not None and bb is not None:
        chosen.node.bounds = (min(ba[0], bb[0]), max(ba[1], bb[1]))
    return chosen


def bounds_of(x: Any) -> tuple[int, int] | None:
    """Return the least and the largest value that an int is known to have, or a bool, which is an int."""
    if is_symbolic(x):
        return (0, 1) if x.node.kind == "bool" else x.node.bounds
    return (x, x) if isinstance(x, int) else None
