# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Host scalar operations of the generated C++ against Python, on grids with the edge cases."""

from __future__ import annotations

import itertools
import math
import struct
from pathlib import Path

import handmade
import pytest

from dycl_tvm.compile.program import CodeBlock, Fail, Goto, HostInstr, Leave, Program, Reg, Site, SwitchGoto
from dycl_tvm.errors import RunError
from dycl_tvm.hcfg.hostops import ARITY, evaluate, result_type
from dycl_tvm.hcfg.types import BOOL, FLOAT, INT, ScalarType
from dycl_tvm.runtime import Module

INTS = [0, 1, -1, 2, -2, 3, -7, 10, 63, 64, 2**31, 2**53 - 1, 2**53 + 1, -(2**53) - 1, 3037000500, 2**62, 2**63 - 1, -(2**63)]
FLOATS = [
    0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.0, -7.0, 0.1, 1e308, -1e308, 5e-324, 709.0, 710.0, 0.49999999999999994,
    4503599627370497.5, 2.0**53, 2.0**63, -(2.0**63), math.inf, -math.inf, math.nan,
]  # fmt: skip
GRID: dict[str, list] = {"int": INTS, "float": FLOATS, "bool": [False, True]}
TYPES = {"int": INT, "float": FLOAT, "bool": BOOL}
KINDS = ("int", "float", "bool")


def _cases() -> list[tuple[str, tuple[str, ...], str]]:
    """Every operation with every combination of kinds that the verifier allows."""
    found = []
    for op, arity in sorted(ARITY.items()):
        if op in ("item", "to_tensor"):
            continue
        for kinds in itertools.product(KINDS, repeat=arity):
            for result in KINDS:
                if result_type(op, [TYPES[k] for k in kinds], TYPES[result]) is None:
                    found.append((op, kinds, result))
    return found


CASES = _cases()


def _register(position: int, kind: str) -> Reg:
    return Reg(1 + 3 * position + KINDS.index(kind), kind)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Module:
    """One program with a case for each operation; its inputs are the case and three operands of every kind."""
    inputs = [Reg(0, "int"), *(_register(p, k) for p in range(3) for k in KINDS)]
    results = {kind: Reg(10 + i, kind) for i, kind in enumerate(KINDS)}  # type: ignore[arg-type]
    blocks = [CodeBlock("entry", [], SwitchGoto(0, inputs[0], tuple(Goto(1 + k) for k in range(len(CASES)))))]
    for k, (op, kinds, result) in enumerate(CASES):
        args = tuple(_register(p, kind) for p, kind in enumerate(kinds))
        instr = HostInstr(op, results[result], args, handmade.line(k))
        blocks.append(CodeBlock(f"{op}_{'_'.join(kinds)}", [instr], Leave(KINDS.index(result), (results[result],))))
    blocks.append(CodeBlock("unused", [], Fail("KeyError", "never")))
    program = Program(
        "HostOps", handmade.call_structure("int", *(KINDS * 3)), ["case", *(f"{k}{p}" for p in range(3) for k in KINDS)], inputs,
        blocks, [Site({"leaf": 0, "type": kind}, [ScalarType(kind)]) for kind in KINDS], [], [],  # type: ignore[arg-type]
        ["int", *(KINDS * 3), *KINDS], 0,
    )  # fmt: skip
    return handmade.build_and_load(program, tmp_path_factory.mktemp("host_ops"))


def _bits(value: float | int | bool) -> object:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    return value


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda k: f"{CASES[k][0]}-{'-'.join(CASES[k][1])}-{CASES[k][2]}")
def test_like_python(module: Module, case: int) -> None:
    op, kinds, result = CASES[case]
    grids = [GRID[kind] for kind in kinds]
    for values in itertools.product(*grids):
        if len(kinds) == 3 and values.count(values[1]) > 2:
            continue
        operands: dict[str, list] = {kind: [{"int": 0, "float": 0.0, "bool": False}[kind]] * 3 for kind in KINDS}
        for position, (kind, value) in enumerate(zip(kinds, values)):
            operands[kind][position] = value
        flat = [operands[kind][p] for p in range(3) for kind in KINDS]
        try:
            want: object = evaluate(op, values, TYPES[result])
        except (ArithmeticError, ValueError) as error:
            want = type(error).__name__
        try:
            got: object = module(case, *flat)
        except RunError as error:
            got = error.kind
        if isinstance(want, float) and isinstance(got, float) and (op in ("exp", "log", "sin", "cos", "tanh") or op == "pow"):
            # libm is allowed its last bit.
            assert got == want or math.isclose(got, want, rel_tol=1e-15) or (math.isnan(got) and math.isnan(want)), (op, values)
        else:
            assert type(got) is type(want), (op, values, got, want)
            assert _bits(got) == _bits(want), (op, values, got, want)  # type: ignore[arg-type]


def test_every_operation_is_there() -> None:
    assert {op for op, _, _ in CASES} == set(ARITY) - {"item", "to_tensor"}
    assert len(CASES) > 80


def test_error_names_the_line(module: Module, tmp_path: Path) -> None:
    case = next(k for k, (op, kinds, _) in enumerate(CASES) if op == "floordiv" and kinds == ("int", "int"))
    with pytest.raises(RunError, match=f'ZeroDivisionError: integer division or modulo by zero\n  File "model.py", line {case} in'):
        module(case, 1, 0.0, False, 0, 0.0, False, 0, 0.0, False)
    with pytest.raises(RunError, match="IndexError"):
        module(-1, 1, 0.0, False, 0, 0.0, False, 0, 0.0, False)
