# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Cost of dispatch: nanoseconds for one edge of the control flow graph and for one kernel call, beyond the kernel.

Loops of generated code are timed with an empty kernel in their bodies; differences between bodies give the cost of a part.

    python benchmarks/dispatch.py [--steps N]
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dycl_tvm import codegen
from dycl_tvm.compile.program import (
    CodeBlock,
    CondGoto,
    Goto,
    HostInstr,
    Instr,
    Kernel,
    KernelCall,
    KernelLibrary,
    Leave,
    Program,
    Reg,
    SetReg,
    Site,
    Slot,
)
from dycl_tvm.hcfg.types import INT, TensorType
from dycl_tvm.runtime import Module, load

_KERNEL = """
#include <tvm/ffi/c_api.h>
extern "C" int __tvm_ffi_empty(void*, const TVMFFIAny*, int32_t, TVMFFIAny*) { return 0; }
"""
_N, _I, _MORE, _M = Reg(0, "int"), Reg(1, "int"), Reg(2, "bool"), Reg(3, "int")
_SLOT = Slot(TensorType((16,), "float32"), "arena", 0, 0)


def _loop(name: str, bodies: Sequence[list[Instr]]) -> Program:
    """``for i in range(n)`` over blocks that follow each other; between two of them stands a branch on ``m``."""
    last = len(bodies) + 2
    blocks = [
        CodeBlock("entry", [SetReg(_I, 0)], Goto(1)),
        CodeBlock("head", [HostInstr("lt", _MORE, (_I, _N))], CondGoto(0, _MORE, Goto(2), Goto(last))),
    ]
    for k, body in enumerate(bodies):
        if k + 1 == len(bodies):
            blocks.append(CodeBlock("tail", [*body, HostInstr("add", _I, (_I, 1))], Goto(1)))
        else:
            # Nothing is known of m when the code is compiled: the branch stays.
            leave = HostInstr("eq", _MORE, (_M, k))
            blocks.append(CodeBlock(f"body{k}", [*body, leave], CondGoto(k + 1, _MORE, Goto(last), Goto(k + 3))))
    blocks.append(CodeBlock("end", [], Leave(0, (_I,))))
    leaves = [{"leaf": 0, "type": "int"}, {"leaf": 1, "type": "int"}]
    structure = {"tuple": [{"tuple": leaves}, {"dict": []}]}
    site = Site({"leaf": 0, "type": "int"}, [INT])
    return Program(name, structure, ["n", "m"], [_N, _M], blocks, [site], [Kernel("empty", "none")], [], ["int", "int", "bool", "int"], 64)


def _calls(first: int, count: int) -> list[Instr]:
    return [KernelCall(first + k, 0, (_SLOT, _SLOT, _SLOT), "empty") for k in range(count)]


def _build(program: Program, folder: Path) -> Module:
    machine = codegen.Machine(platform.machine(), "native", "", ())
    path = folder / f"{program.name}.so"
    codegen.link(program, KernelLibrary((), (("kernel.cc", _KERNEL),)), path, machine)
    codegen.save_params(program, path.with_suffix(".params"))
    return load(path, path.with_suffix(".params"))


def nanoseconds(module: Module, steps: int, repeats: int = 5) -> float:
    """Return the nanoseconds of one step of the loop: the best of some runs."""
    module(steps, -1)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter_ns()
        module(steps, -1)
        best = min(best, (time.perf_counter_ns() - start) / steps)
    return best


def measure(steps: int) -> dict[str, float]:
    """Return the nanoseconds of each part."""
    blocks = 32
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def time_of(program: Program) -> float:
            return nanoseconds(_build(program, folder), steps)

        empty = time_of(_loop("Empty", [[]]))
        branches = time_of(_loop("Branches", [[] for _ in range(blocks)]))
        stretch = time_of(_loop("Stretch", [_calls(0, blocks)]))
        single = time_of(_loop("Single", [_calls(k, 1) for k in range(blocks)]))
    return {
        "one turn of a loop (compare, add, two edges)": empty,
        "one compare and branch, path recorded": (branches - empty) / (blocks - 1),
        "one kernel call of a straight stretch": (stretch - empty) / blocks,
        "one kernel call alone in its block": (single - branches) / blocks,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=200_000, help="turns of the timed loops")
    results = measure(parser.parse_args().steps)
    print("ns     of (each with an empty kernel, where there is one)")
    for name, value in results.items():
        print(f"{value:5.1f}  {name}")


if __name__ == "__main__":
    main()
