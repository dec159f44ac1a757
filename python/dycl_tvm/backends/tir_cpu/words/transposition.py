# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Square blocks of a matrix transposed in registers, as a function in LLVM IR: TVM's own expressions gather such vectors lane by lane."""

from __future__ import annotations

import functools
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T


def transpose_block(source: Any, at: Any, stride: int, target: Any, to: Any, target_stride: int, lanes: int) -> None:
    """Emit target[to + i * target_stride + j] = source[at + j * stride + i] for i, j < lanes.

    ``source`` and ``target`` are buffers of words of 32 bits, the target of one dimension. The function needs :func:`with_transposition`.
    """
    call = tirx.call_extern(
        "int32",
        _name(lanes),
        tirx.address_of(source[at if isinstance(at, tuple) else (at,)]),
        tirx.const(stride, "int64"),
        tirx.address_of(target[to]),
        tirx.const(target_stride, "int64"),
    )
    T.evaluate(call)


def with_transposition(fn: Any, lanes: int) -> Any:
    """Return a PrimFunc with the definition of the function that :func:`transpose_block` calls."""
    return fn.with_body(tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", tvm.ir.StringImm(_definition(lanes)), fn.body))


def _name(lanes: int) -> str:
    return f"dycl_transpose_{lanes}"


@functools.cache
def _definition(lanes: int) -> str:
    """Return the function: row i and column j change places bit by bit, one bit of both numbers a stage."""
    vector = f"<{lanes} x float>"
    lines = ["entry:"]
    rows = [f"%r{k}" for k in range(lanes)]
    for k, row in enumerate(rows):
        lines += [f"  %o{k} = mul i64 %stride, {k}", f"  %p{k} = getelementptr float, ptr %source, i64 %o{k}"]
        lines.append(f"  {row} = load {vector}, ptr %p{k}, align 4")
    half = lanes // 2
    while half:
        for k in range(lanes):
            if k & half:
                continue
            pair = rows[k], rows[k + half]
            low = [j if not j & half else lanes + j - half for j in range(lanes)]
            for place, lane in ((k, low), (k + half, [j + half for j in low])):
                name = f"%s{half}_{place}"
                mask = ", ".join(f"i32 {j}" for j in lane)
                lines.append(f"  {name} = shufflevector {vector} {pair[0]}, {vector} {pair[1]}, <{lanes} x i32> <{mask}>")
                rows[place] = name
        half //= 2
    for k, row in enumerate(rows):
        lines += [f"  %t{k} = mul i64 %to, {k}", f"  %q{k} = getelementptr float, ptr %target, i64 %t{k}"]
        lines.append(f"  store {vector} {row}, ptr %q{k}, align 4")
    arguments = "ptr %source, i64 %stride, ptr %target, i64 %to"
    return f"define i32 @{_name(lanes)}({arguments}) alwaysinline nounwind {{\n" + "\n".join(lines) + "\n  ret i32 0\n}\n"
