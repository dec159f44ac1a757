# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Pieces of C++ text: literals, comments, tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dycl_tvm.codegen.shipped import shipped_path
from dycl_tvm.errors import CompileError
from dycl_tvm.hcfg.nodes import Origin

#: The enumerator of src/runtime/program.h for each dtype.
DTYPES = {
    "float64": "kFloat64", "float32": "kFloat32", "float16": "kFloat16", "bfloat16": "kBFloat16",
    "int64": "kInt64", "int32": "kInt32", "int16": "kInt16", "int8": "kInt8", "uint8": "kUInt8", "bool": "kBool",
    "complex64": "kComplex64", "complex128": "kComplex128",
}  # fmt: skip

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "?": "\\?"}


def string(text: str) -> str:
    """Return a C string literal, pure ASCII."""
    parts = []
    for byte in text.encode("utf-8", "surrogateescape"):
        char = chr(byte)
        if char in _ESCAPES:
            parts.append(_ESCAPES[char])
        else:
            # Octal escapes end after three digits; hexadecimal ones would swallow what follows.
            parts.append(char if 0x20 <= byte < 0x7F else f"\\{byte:03o}")
    return '"' + "".join(parts) + '"'


def int_literal(value: int) -> str:
    """Return an int64 literal."""
    if value == -(2**63):
        return "INT64_MIN"
    if not -(2**63) < value < 2**63:
        raise CompileError(f"the constant {value} does not fit a host int of 64 bits")
    return f"int64_t{{{value}}}"


def float_literal(value: float) -> str:
    """Return a double literal that reads back as exactly ``value``."""
    if math.isnan(value):
        return "double{NAN}"
    if math.isinf(value):
        return "double{INFINITY}" if value > 0 else "double{-INFINITY}"
    text = repr(value)
    if "." not in text and "e" not in text:
        text += ".0"
    return f"({text})" if text.startswith("-") else text


def comment(text: str) -> str:
    """Return ``text`` fit for a ``//`` comment: one line that does not go on into the next."""
    line = " ".join(text.split())
    return line + " ." if line.endswith("\\") else line


def place(origin: Origin | None) -> str:
    """Return the user's file, line and code for a comment; empty where unknown."""
    if origin is None:
        return ""
    code = f": {origin.code}" if origin.code else ""
    return comment(f"{shipped_path(origin.file)}:{origin.line}{code}")


def table(type_: str, name: str, rows: Sequence[str]) -> str:
    """Return the definition of a constant table of C structures, one row a line. An empty table is not defined."""
    if not rows:
        return ""
    return f"const {type_} {name}[] = {{\n" + "".join(f"    {row}\n" for row in rows) + "};\n"


def table_ref(name: str, count: int) -> str:
    """Return the initialiser of a ``Table`` over a table of :func:`table`."""
    return f"{{{name}, {count}}}" if count else "{nullptr, 0}"
