# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs written by hand over kernels in C++, so that codegen and runtime are tested without the rest of the compiler."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch

from dycl_tvm import codegen
from dycl_tvm.compile.program import (
    CodeBlock,
    CondGoto,
    CopyTensor,
    Fail,
    Goto,
    HostInstr,
    Kernel,
    KernelCall,
    KernelLibrary,
    Leave,
    Program,
    ReadItem,
    Reg,
    SetReg,
    Site,
    Slot,
    StateHome,
    SwitchGoto,
    Weight,
    WriteItem,
)
from dycl_tvm.hcfg.nodes import Origin
from dycl_tvm.hcfg.types import BOOL, FLOAT, INT, TensorType
from dycl_tvm.runtime import Module, load

MACHINE = codegen.Machine(platform.machine(), f"{platform.machine()}-linux-gnu", "", ())
SYMBOLS = ("k_inc", "k_add", "k_twice", "k_barrier", "k_scratch", "k_fail", "k_fail_task", "k_wait")
KERNELS = [Kernel(symbol, "test") for symbol in SYMBOLS]
LIBRARY = KernelLibrary((), (("kernels.cc", (Path(__file__).parent / "handmade_kernels.cc").read_text()),))

F4 = TensorType((4,), "float32")


def line(number: int, code: str = "") -> Origin:
    """A line of a made-up model."""
    return Origin("model.py", number, "Model.forward", code)


def call(number: int, symbol: str, *args: Slot, sub_dnn: str = "") -> KernelCall:
    return KernelCall(number, SYMBOLS.index(symbol), args, sub_dnn or f"sub_{symbol}")


def arena(offset: int, type_: TensorType = F4) -> Slot:
    return Slot(type_, "arena", 0, offset)


def call_structure(*types: str) -> dict[str, Any]:
    return {"tuple": [{"tuple": [{"leaf": k, "type": t} for k, t in enumerate(types)]}, {"dict": []}]}


def leaves(*types: str) -> dict[str, Any]:
    return {"tuple": [{"leaf": k, "type": t} for k, t in enumerate(types)]}


def build(program: Program, folder: Path, embed: bool = False, name: str = "model") -> tuple[Path, Path]:
    """Write the library and the params file."""
    library, params = folder / f"{name}.so", folder / f"{name}.params"
    codegen.link(program, LIBRARY, library, MACHINE, embed_params=embed)
    codegen.save_params(program, params)
    return library, params


def build_and_load(program: Program, folder: Path) -> Module:
    return load(*build(program, folder))


X = Slot(F4, "input", 0)
FIRST = arena(0, TensorType((1,), "float32"))


def zoo_program() -> Program:
    """One of everything: a loop, a switch, state, an error, a kernel that fails.

    ``forward(x, n)`` adds 1 to ``x`` ``n`` times. Then by ``n``: 0 or more than 3 return (a sum with the weight, the state);
    1 counts the call in the state and returns the first element; 2 raises; 3 runs a kernel that fails.
    """
    n, i, more, first, calls, case = Reg(0, "int"), Reg(1, "int"), Reg(2, "bool"), Reg(3, "float"), Reg(4, "int"), Reg(5, "int")
    weight, seen = Slot(F4, "weight", 0), Slot(F4, "state", 0)
    a, b, c = arena(0), arena(64), arena(128)
    blocks = [
        CodeBlock("entry", [CopyTensor(a, X), SetReg(i, 0)], Goto(1), line(3, "i = 0")),
        CodeBlock("head", [HostInstr("lt", more, (i, n), line(4))], CondGoto(0, more, Goto(2), Goto(3), line(4, "while i < n:")), line(4)),
        CodeBlock(
            "body", [call(0, "k_inc", a, b), HostInstr("add", i, (i, 1), line(6))], Goto(1, (CopyTensor(a, b),)), line(5, "x = x + 1")
        ),
        CodeBlock(
            "exit",
            [HostInstr("min", case, (n, 4)), ReadItem(first, FIRST)],
            SwitchGoto(1, case, (Goto(4), Goto(5), Goto(6), Goto(7), Goto(4)), line(8, "return outputs[n]")),
            line(7),
        ),
        CodeBlock(
            "sum",
            [call(1, "k_add", a, weight, c), call(2, "k_twice", c, b), call(3, "k_scratch", b, c), call(4, "k_add", seen, X, b)],
            Leave(0, (c, calls, seen), ()),
            line(9),
        ),
        CodeBlock(
            "item",
            [HostInstr("add", calls, (calls, 1), line(10)), call(5, "k_inc", seen, b)],
            Leave(1, (first,), (CopyTensor(seen, b),)),
            line(10),
        ),
        CodeBlock("raise", [], Fail("KeyError", "two is not allowed", line(11, 'raise KeyError("two")'))),
        CodeBlock("broken", [call(6, "k_fail", a)], Leave(0, (a, 0, a))),
    ]
    return Program(
        name="Zoo",
        input_structure=call_structure("tensor", "int"),
        input_names=["x", "n"],
        inputs=[X, n],
        blocks=blocks,
        sites=[
            Site(
                {
                    "dict": [
                        ["y", {"leaf": 0, "type": "tensor"}],
                        ["rest", {"list": [{"leaf": 1, "type": "int"}, {"leaf": 2, "type": "tensor"}, {"const": None}]}],
                    ]
                },
                [F4, INT, F4],
                line(9, "return y"),
            ),
            Site({"leaf": 0, "type": "float"}, [FLOAT], line(10, "return x[0].item()")),
        ],  # fmt: skip
        kernels=KERNELS,
        weights=[Weight("bias", F4, torch.tensor([10.0, 20.0, 30.0, 40.0])), Weight("seen", F4, torch.zeros(4))],
        regs=["int", "int", "bool", "float", "int", "int"],
        arena_bytes=192,
        state=[StateHome("seen", seen, 1), StateHome("calls", calls, 100)],
    )


def straight_program(*symbols: str, type_: TensorType = F4) -> Program:
    """Unary kernels one after the other."""
    size = -(-type_.nbytes // 64) * 64
    x = Slot(type_, "input", 0)
    slots = [x, *(arena(size * (k % 2), type_) for k in range(len(symbols)))]
    calls = [call(k, symbol, slots[k], slots[k + 1]) for k, symbol in enumerate(symbols)]
    return Program(
        "Straight", call_structure("tensor"), ["x"], [x], [CodeBlock("entry", calls, Leave(0, (slots[-1],)))],
        [Site({"leaf": 0, "type": "tensor"}, [type_])], KERNELS, [], [], 2 * size,
    )  # fmt: skip


def exits_program(exits: int = 3) -> Program:
    """Early exits: each adds 1 to ``x`` and returns (x, its number) if the first element is more than ``limit``.

    Behind them all ``x`` is doubled, and the first element says which of two returns.
    """
    limit, first, over = Reg(0, "float"), Reg(1, "float"), Reg(2, "bool")
    regs: list[Any] = ["float"]
    blocks, values = [], [X, *(arena(64 * k) for k in range(exits + 1))]
    for k in range(exits):
        first, over = Reg(len(regs), "float"), Reg(len(regs) + 1, "bool")
        regs += ["float", "bool"]
        item = Slot(FIRST.type, "arena", 0, 64 * k)
        body = [call(k, "k_inc", values[k], values[k + 1]), ReadItem(first, item), HostInstr("gt", over, (first, limit), line(10 * k))]
        then, orelse = Goto(2 * k + 1), Goto(2 * k + 2)
        blocks.append(CodeBlock(f"part{k}", body, CondGoto(k, over, then, orelse, line(10 * k + 1, "if x[0] > limit:")), line(10 * k)))
        blocks.append(CodeBlock(f"exit{k}", [], Leave(0, (values[k + 1], k)), line(10 * k + 2)))
    first, over = Reg(len(regs), "float"), Reg(len(regs) + 1, "bool")
    regs += ["float", "bool"]
    last = [call(exits, "k_twice", values[-2], values[-1]), ReadItem(first, Slot(FIRST.type, "arena", 0, 64 * exits))]
    last.append(HostInstr("gt", over, (first, limit), line(98)))
    ends = Goto(len(blocks) + 1), Goto(len(blocks) + 2)
    blocks.append(CodeBlock("last", last, CondGoto(exits, over, *ends, line(99)), line(98)))
    blocks += [CodeBlock(name, [], Leave(0, (values[-1], number))) for name, number in (("high", 100), ("low", 200))]
    return Program(
        "Exits", call_structure("tensor", "float"), ["x", "limit"], [X, limit], blocks,
        [Site(leaves("tensor", "int"), [F4, INT], line(100, "return x"))], KERNELS, [], regs, 64 * (exits + 1),
    )  # fmt: skip


def convert_program(dtype: str) -> Program:
    """``forward(f, i, b)``: each scalar into a tensor of that dtype and back."""
    regs = [Reg(0, "float"), Reg(1, "int"), Reg(2, "bool"), Reg(3, "float"), Reg(4, "int"), Reg(5, "bool")]
    place = arena(0, TensorType((), dtype))
    blocks = []
    for k, name in enumerate(("float", "int", "bool")):
        more = Reg(6, "bool")
        end = Leave(k, (regs[3 + k], place))
        body = [WriteItem(place, regs[k]), ReadItem(regs[3 + k], place)]
        blocks.append(
            CodeBlock(f"test_{name}", [HostInstr("eq", more, (Reg(7, "int"), k))], CondGoto(k, more, Goto(2 * k + 1), Goto(2 * k + 2)))
        )
        blocks.append(CodeBlock(name, body, end))
    blocks.append(CodeBlock("none", [], Fail("ValueError", "no such case")))
    kinds = ["float", "int", "bool"]
    types = {"float": FLOAT, "int": INT, "bool": BOOL}
    return Program(
        "Convert", call_structure("float", "int", "bool", "int"), ["f", "i", "b", "case"], [*regs[:3], Reg(7, "int")], blocks,
        [Site(leaves(kind, "tensor"), [types[kind], place.type]) for kind in kinds], KERNELS, [], [*kinds, *kinds, "bool", "int"], 64,
    )  # fmt: skip
