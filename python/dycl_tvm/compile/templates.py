# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kernels in C++: each is a call of a template of a header in ``src/runtime``.

So are draws of random numbers, and what the algorithms of the C++ library decide in PyTorch, too. The symbol of a kernel says which call
it is, so that equal calls share a kernel, and the source is written from the symbols alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

#: The backend that these kernels are said to have.
BACKEND = "C++"
#: The headers of the templates, and their namespaces, by the first word of a symbol.
_HEADERS = {"draw": ("draws.h", "dycl::random"), "order": ("order.h", "dycl::order"), "matrix": ("matrices.h", "dycl::matrices"),
            "moving": ("moving.h", "dycl::moving")}  # fmt: skip
#: Stands for the dtypes of a template that has none.
_ANY = "any"
#: The elements of tensors in C++, by dtype.
_TYPES = {
    "float64": "double", "float32": "float", "float16": "Half", "bfloat16": "BFloat16", "int64": "int64_t", "int32": "int32_t",
    "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
    "complex64": "std::complex<float>", "complex128": "std::complex<double>",
}  # fmt: skip


def symbol_of(kind: str, function: str, dtypes: Iterable[str] = (), params: Iterable[float | int | bool] = ()) -> str:
    """Return the symbol of the kernel that calls a template for some dtypes with some numbers; ``kind`` is that of its header."""
    return "__".join([kind, function, "_".join(dtypes) or _ANY, *map(_encoded, params)])


def called_by(symbol: str) -> tuple[str, str, list[float | int | bool]] | None:
    """Return the kind, the function and the numbers of a symbol; None for one of another kernel."""
    if not is_symbol(symbol):
        return None
    kind, function, _, *params = symbol.split("__")
    return kind, function, [_number(p) for p in params]


def is_symbol(symbol: str) -> bool:
    """Whether a kernel is such a call, by its symbol."""
    return symbol.partition("__")[0] in _HEADERS


def source_of(symbols: Iterable[str]) -> str:
    """Return the C++ of kernels."""
    symbols = list(symbols)
    headers = dict.fromkeys(_HEADERS[s.partition("__")[0]][0] for s in symbols)
    return "".join(f'#include "{h}"\n' for h in headers) + "\nusing namespace dycl;\n\n" + "\n".join(map(_kernel, symbols))


def _kernel(symbol: str) -> str:
    kind, function, dtypes, *params = symbol.split("__")
    types = ", ".join(_TYPES[d] for d in dtypes.split("_") if d != _ANY)
    call = f"{_HEADERS[kind][1]}::{function}{f'<{types}>' if types else ''}({', '.join(['args', *map(_decoded, params)])})"
    # weak: where a library has code for several CPUs their programs may call the same one
    head = f'extern "C" __attribute__((weak)) int __tvm_ffi_{symbol}(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*)'
    return f"{head} {{\n  return {call};\n}}\n"


def _encoded(number: float | int | bool) -> str:
    if isinstance(number, bool):
        return f"b{number:d}"
    if isinstance(number, int):
        return f"i{number % (1 << 64):x}"
    return f"f{struct.pack('>d', number).hex()}"


def _number(text: str) -> float | int | bool:
    if text[0] == "b":
        return text == "b1"
    if text[0] == "i":
        number = int(text[1:], 16)
        return number - (1 << 64) if number >> 63 else number
    (made,) = struct.unpack(">d", bytes.fromhex(text[1:]))
    return float(made)


def _decoded(text: str) -> str:
    if text[0] == "i":
        return f"static_cast<int64_t>(0x{text[1:]}ULL)"
    if text[0] == "f":
        (number,) = struct.unpack(">d", bytes.fromhex(text[1:]))
        return float(number).hex() if number - number == 0 else f"static_cast<double>({'-' * (number < 0)}INFINITY)"
    return "true" if text == "b1" else "false"
