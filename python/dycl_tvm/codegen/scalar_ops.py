# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Host scalar instructions as C++ statements. The semantics are in ``src/runtime/host_ops.h`` and ``host_print.h``."""

from __future__ import annotations

import string as templates
from collections.abc import Callable

from dycl_tvm.codegen.text import DTYPES, float_literal, int_literal, string
from dycl_tvm.compile.program import HostInstr, Reg, Scalar
from dycl_tvm.errors import CompileError
from dycl_tvm.hcfg.hostops import error_of

C_TYPES = {"int": "int64_t", "float": "double", "bool": "bool"}

_CHECKED = {"add": "Add", "sub": "Sub", "mul": "Mul", "floordiv": "FloorDiv", "mod": "Mod", "neg": "Neg", "abs": "Abs"}
_FLOAT_PLAIN = {"add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "neg": "-{}", "abs": "std::fabs({})"}
_COMPARE = {"eq": "Eq", "ne": "Ne", "lt": "Lt", "le": "Le", "gt": "Gt", "ge": "Ge"}
_LOGIC = {"not": "!{}", "and": "{} && {}", "or": "{} || {}", "xor": "{} != {}"}
_ROUND = {"floor": "Floor", "ceil": "Ceil", "round": "Round", "trunc": "Trunc", "to_int": "ToInt"}
_MATH = {"sqrt": "Sqrt", "exp": "Exp", "log": "Log", "sin": "Sin", "cos": "Cos", "tanh": "Tanh"}
_INT_DTYPES = frozenset({"int64", "int32", "int16", "int8", "uint8"})


def kind_of(value: Scalar) -> str:
    """Return ``int``, ``float`` or ``bool``."""
    if isinstance(value, Reg):
        return value.kind
    if isinstance(value, bool):
        return "bool"
    return "int" if isinstance(value, int) else "float"


def register(reg: Reg) -> str:
    """Return the name of a register's variable."""
    return f"{reg.kind[0]}{reg.index}"


def scalar(value: Scalar) -> str:
    """Return a scalar in its own kind."""
    if isinstance(value, Reg):
        return register(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return int_literal(value) if isinstance(value, int) else float_literal(value)


def number(value: Scalar) -> str:
    """Return a scalar as an int or a float: in arithmetic a bool is an int."""
    if isinstance(value, bool):
        return int_literal(int(value))
    return f"int64_t{{{register(value)}}}" if isinstance(value, Reg) and value.kind == "bool" else scalar(value)


def as_float(value: Scalar) -> str:
    """Return a scalar as a float."""
    if not isinstance(value, Reg):
        return float_literal(float(value))
    return register(value) if value.kind == "float" else f"static_cast<double>({register(value)})"


_CLOCKS = {
    "time": "CLOCK_REALTIME",
    "perf_counter": "CLOCK_MONOTONIC",
    "monotonic": "CLOCK_MONOTONIC",
    "process_time": "CLOCK_PROCESS_CPUTIME_ID",
    "thread_time": "CLOCK_THREAD_CPUTIME_ID",
}


def as_bool(value: Scalar) -> str:
    """Return the truth of a scalar."""
    return scalar(value) if kind_of(value) == "bool" else f"{scalar(value)} != 0"


def assign(dst: Reg, src: Scalar) -> str:
    """Return ``dst = src`` for a source of the same kind (or one that Python would widen)."""
    convert: dict[str, Callable[[Scalar], str]] = {"int": number, "float": as_float, "bool": as_bool}
    return f"{register(dst)} = {convert[dst.kind](src)};"


def read_item(dst: Reg, dtype: str, tensor: int, reader: str = "ReadItem") -> str:
    """Return the statement that reads the one element of a tensor (or what ``reader`` finds under a number)."""
    read = f"{reader}<DType::{DTYPES[dtype]}>(f, {tensor})"
    if dst.kind == "int" and dtype not in _INT_DTYPES and dtype != "bool":
        return f"TRY(ops::ToInt({read}, &{register(dst)}), kNone);"
    if dst.kind == "float" and dtype in _INT_DTYPES:
        read = f"static_cast<double>({read})"
    return f"{register(dst)} = {read}{' != 0' if dst.kind == 'bool' and dtype != 'bool' else ''};"


def write_item(dtype: str, tensor: int, src: Scalar) -> str:
    """Return the statement that writes a scalar into a tensor of one element."""
    return f"TRY(WriteItem<DType::{DTYPES[dtype]}>(f, {tensor}, {scalar(src)}), kNone);"


def host_instr(instr: HostInstr, origin: str) -> str:
    """Return the statement of a host operation.

    Parameters
    ----------
    instr : HostInstr
    origin : str
        Row of the origin, for errors.
    """
    op, args, dst = instr.op, instr.args, register(instr.dst)
    is_float = any(kind_of(a) == "float" for a in args)

    def checked(function: str, *values: str) -> str:
        return f"TRY(ops::{function}({', '.join(values)}, &{dst}), {origin});"

    if op in _CHECKED:
        if instr.dst.kind == "float":
            floats = [as_float(a) for a in args]
            return f"{dst} = {_FLOAT_PLAIN[op].format(*floats)};" if op in _FLOAT_PLAIN else checked(_CHECKED[op], *floats)
        return checked(_CHECKED[op], *map(number, args))
    if op == "round_to":
        return f"{dst} = ops::RoundTo({', '.join(map(scalar, args))});"
    if op == "truediv":
        return checked("TrueDiv", *map(as_float if is_float else number, args))
    if op == "pow":
        return checked("Pow", *map(number if instr.dst.kind == "int" else as_float, args))
    if op in ("min", "max"):
        return f"{dst} = ops::{op.capitalize()}<{C_TYPES[instr.dst.kind]}>({', '.join(map(number, args))});"
    if op in _COMPARE:
        return f"{dst} = ops::{_COMPARE[op]}({', '.join(map(number, args))});"
    if op in _LOGIC:
        return f"{dst} = {_LOGIC[op].format(*map(scalar, args))};"
    if op == "select":
        convert = {"int": number, "float": as_float, "bool": scalar}[instr.dst.kind]
        return f"{dst} = {scalar(args[0])} ? {convert(args[1])} : {convert(args[2])};"
    if op in _ROUND:
        return checked(_ROUND[op], scalar(args[0])) if is_float else f"{dst} = {number(args[0])};"
    if op in _MATH:
        return checked(_MATH[op], as_float(args[0]))
    if op == "to_float":
        return f"{dst} = {as_float(args[0])};"
    if op == "to_bool":
        return f"{dst} = {as_bool(args[0])};"
    if op == "print":
        return _print(instr)
    if op == "check":
        kind, message = error_of(instr.text or "")
        return f"if ({scalar(args[0])}) return FailRaise({string(kind)}, {string(message)}, {origin});"
    if op == "clock":
        name = instr.text or ""
        return f"{dst} = ops::{'ClockNs' if name.endswith('_ns') else 'Clock'}({_CLOCKS[name.removesuffix('_ns')]});"
    raise CompileError(f"internal: the host operation {op!r} has no C++ form")


def _print(instr: HostInstr) -> str:
    """Return the statement that writes the pieces of a template and the operands between them."""
    assert instr.text is not None
    parts = []
    rest = iter(instr.args)
    for literal, hole, _, _ in templates.Formatter().parse(instr.text):
        if literal:
            parts.append(f".Text({string(literal)}, {len(literal.encode('utf-8', 'surrogateescape'))})")
        if hole is not None:
            value = next(rest)
            parts.append(f".{kind_of(value).capitalize()}({scalar(value)})")
    return f"{register(instr.dst)} = ops::Printer(){''.join(parts)}.Done();"
