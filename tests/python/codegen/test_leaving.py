# Licensed under the Apache License, Version 2.0; see LICENSE.
"""At which branches a run may leave early: what is not known to hang on data alone is left alone."""

from __future__ import annotations

import dataclasses

import handmade
from handmade import CodeBlock, CondGoto, Fail, Goto, HostInstr, Program, ReadItem, Reg, SetReg, Slot, StateHome

from dycl_tvm import codegen
from dycl_tvm.codegen.leaving import leaving_sides
from dycl_tvm.codegen.metadata import metadata_of
from dycl_tvm.compile.program import DeviceCode
from dycl_tvm.hcfg.types import TensorType


def _first(program: Program) -> tuple[CodeBlock, CondGoto]:
    block = program.blocks[0]
    assert isinstance(block.end, CondGoto)
    return block, block.end


def test_exits_on_data_are_found_and_printed() -> None:
    program = handmade.exits_program()
    # Both sides of the last branch return: neither of them is early.
    assert leaving_sides(program) == {0: 1, 1: 1, 2: 1}
    source = codegen.generate(program)
    assert source.count("DECIDE_OR_LEAVE(") == source.count("leave1:") + 2 == 3
    assert "DECIDE(3, 0)" in source
    told = metadata_of(program, handmade.MACHINE, "", False)["decisions"]
    assert [d.get("leaves") for d in told] == [1, 1, 1, None]


def test_the_side_of_false_may_be_the_one_that_leaves() -> None:
    program = handmade.exits_program()
    block, end = _first(program)
    not_over = Reg(len(program.regs), "bool")
    program.regs.append("bool")
    block.instrs.append(HostInstr("not", not_over, (end.cond,)))
    block.end = dataclasses.replace(end, cond=not_over, then=end.orelse, orelse=end.then)
    assert leaving_sides(program) == {0: 0, 1: 1, 2: 1}


def test_an_integer_in_the_condition_forbids_it() -> None:
    for dtype in ("int64", "uint8"):  # a counter, a length, an index
        program = handmade.exits_program()
        block, _ = _first(program)
        number, slot = Reg(len(program.regs), "int"), Slot(TensorType((1,), dtype), "arena", 0, 0)
        program.regs.append("int")
        block.instrs[1:] = [ReadItem(number, slot), HostInstr("gt", Reg(2, "bool"), (number, 3))]
        assert leaving_sides(program) == {1: 1, 2: 1}
    rounded = handmade.exits_program()
    block, _ = _first(rounded)
    number = Reg(len(rounded.regs), "int")
    rounded.regs.append("int")
    block.instrs[2:] = [HostInstr("int", number, (Reg(1, "float"),)), HostInstr("gt", Reg(2, "bool"), (number, 3))]
    assert leaving_sides(rounded) == {1: 1, 2: 1}


def test_a_truth_that_is_joined_or_kept_or_given_forbids_it() -> None:
    joined = handmade.exits_program()
    joined.blocks[0].instrs.append(SetReg(Reg(2, "bool"), False))  # as a flag that says which values there are
    assert leaving_sides(joined) == {1: 1, 2: 1}
    moved = handmade.exits_program()
    moved.blocks[4].end = Goto(0, (SetReg(Reg(1, "float"), 0.5),))  # by an edge into a loop
    assert 0 not in leaving_sides(moved)
    for make in ("kept", "given"):
        program = handmade.exits_program()
        block, end = _first(program)
        flag = Reg(len(program.regs), "bool")
        program.regs.append("bool")
        block.end = dataclasses.replace(end, cond=flag)
        if make == "kept":
            program.state.append(StateHome("flag", flag, True))
        assert leaving_sides(program) == {1: 1, 2: 1}
    kept = handmade.exits_program()
    kept.state.append(StateHome("limit", Reg(0, "float"), 1.0))
    assert leaving_sides(kept) == {}


def test_a_side_on_which_the_host_may_raise_does_not_leave() -> None:
    def with_op(op: str, divisor: float | Reg) -> dict[int, int]:
        """As in `if limit != 0: return 2 / limit`: what the condition says is what the side relies on."""
        program = handmade.exits_program()
        program.regs.append("float")
        args = (Reg(0, "float"),) if op == "log" else (2.0, divisor)
        program.blocks[1].instrs.append(HostInstr(op, Reg(len(program.regs) - 1, "float"), args))
        return leaving_sides(program)

    assert with_op("truediv", Reg(0, "float")) == with_op("log", 0.0) == {1: 1, 2: 1}
    assert with_op("truediv", 4.0) == with_op("mul", Reg(0, "float")) == {0: 1, 1: 1, 2: 1}


def test_long_computations_take_no_time() -> None:
    program = handmade.exits_program()
    block, end = _first(program)
    number = Reg(0, "float")
    for _ in range(3000):  # deeper than Python calls, and of more ways than can be gone
        product = Reg(len(program.regs), "float")
        program.regs.append("float")
        block.instrs.append(HostInstr("mul", product, (number, number)))
        number = product
    program.regs.append("bool")
    over = Reg(len(program.regs) - 1, "bool")
    block.instrs.append(HostInstr("gt", over, (number, 1.0)))
    block.end = dataclasses.replace(end, cond=over)
    assert leaving_sides(program) == {0: 1, 1: 1, 2: 1}
    program.state.append(StateHome("limit", Reg(0, "float"), 1.0))
    assert 0 not in leaving_sides(program)


def test_the_other_side_must_go_on_to_a_decision() -> None:
    raising = handmade.exits_program(1)
    raising.blocks[2] = CodeBlock("raise", [], Fail("ValueError", "no"))
    assert leaving_sides(raising) == {}
    endless = handmade.exits_program(1)
    endless.blocks[2] = CodeBlock("again", [], Goto(2))
    assert leaving_sides(endless) == {}


def test_none_on_a_device() -> None:
    program = handmade.exits_program()
    program.device = DeviceCode("cuda", "sm_72", (), 0, "")
    assert leaving_sides(program) == {}
