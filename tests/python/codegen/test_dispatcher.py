# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Generated dispatchers: control flow, state, errors, conversions, and the text itself."""

from __future__ import annotations

import math
from dataclasses import replace

import handmade
import numpy as np
import pytest
import torch

from dycl_tvm import codegen
from dycl_tvm.codegen import dispatcher
from dycl_tvm.codegen.text import comment, string
from dycl_tvm.compile.program import CodeBlock, CondGoto, Goto, HostInstr, KernelLibrary, Leave, Program, Reg, SetReg, Site, StateHome
from dycl_tvm.errors import CompileError, RunError
from dycl_tvm.hcfg.types import INT
from dycl_tvm.runtime import Module

BIAS = np.array([10, 20, 30, 40], "float32")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Module:
    return handmade.build_and_load(handmade.zoo_program(), tmp_path_factory.mktemp("zoo"))


@pytest.mark.parametrize("n", [0, 4, 9, 5000])
def test_loop(zoo: Module, n: int) -> None:
    zoo.reset_state()
    x = np.arange(4, dtype="float32")
    out = zoo(x, n)
    np.testing.assert_array_equal(out["y"], (x + n + BIAS) * 2)
    assert out["rest"][0] == 100
    assert out["rest"][2] is None
    assert zoo.kernels_run == {**({"k_inc": n} if n else {}), "k_add": 2, "k_twice": 1, "k_scratch": 1}
    assert zoo.sub_dnns_run.get("sub_k_inc", 0) == n
    path = zoo.last_path
    assert path.site == 0
    assert path.origin is not None
    assert path.origin.line == 9
    # n + 1 tests of the loop and one switch; long paths keep their end.
    assert len(path.branches) + path.omitted == n + 2
    assert [b.choice for b in path.branches[-2:]] == [False, min(n, 4)]
    assert str(path).endswith("return model.py:9: return y")
    assert path.omitted == max(0, n + 2 - 4096)


def test_state_lives_from_call_to_call(zoo: Module) -> None:
    zoo.reset_state()
    x = np.full(4, 5, "float32")
    for _ in range(3):
        assert zoo(x, 1) == 6.0
    out = zoo(x, 0)
    assert out["rest"][0] == 103
    np.testing.assert_array_equal(out["rest"][1], np.full(4, 3))
    other = zoo.new_session()
    assert other(x, 0)["rest"][0] == 100
    zoo.reset_state()
    assert zoo(x, 0)["rest"][0] == 100


def test_failed_runs_leave_the_session_usable(zoo: Module) -> None:
    zoo.reset_state()
    x = np.zeros(4, "float32")
    with pytest.raises(RunError, match='KeyError: two is not allowed\n  File "model.py", line 11') as raised:
        zoo(x, 2)
    assert raised.value.kind == "KeyError"
    assert zoo.last_path.site is None
    assert str(zoo.last_path).endswith("the run failed")
    with pytest.raises(RunError, match=r"ValueError: this kernel always fails\n  in kernel k_fail"):
        zoo(x, 3)
    assert zoo(x, 1) == 1.0
    assert zoo(x, 0)["rest"][0] == 101


def test_negative_index_is_an_index_error(zoo: Module) -> None:
    with pytest.raises(RunError, match="IndexError: index -3 is out of range for 5 items"):
        zoo(np.zeros(4, "float32"), -3)


def test_a_leaf_may_be_the_old_value_of_a_state_variable(tmp_path) -> None:
    """``old = self.n; self.n = n; return old``: a move keeps the old value, so leaves are read after the moves."""
    n, home, kept = Reg(0, "int"), Reg(1, "int"), Reg(2, "int")
    end = Leave(0, (kept, home), (SetReg(kept, home), SetReg(home, n)))
    program = Program(
        "Swap", handmade.call_structure("int"), ["n"], [n], [CodeBlock("entry", [], end)],
        [Site(handmade.leaves("int", "int"), [INT, INT])], [], [], ["int", "int", "int"], 0, [StateHome("n", home, -1)],
    )  # fmt: skip
    module = handmade.build_and_load(program, tmp_path)
    assert [module(k) for k in (7, 8, 9)] == [(-1, 7), (7, 8), (8, 9)]


def test_two_generations_are_equal() -> None:
    assert codegen.generate(handmade.zoo_program()) == codegen.generate(handmade.zoo_program())


def test_source_is_readable() -> None:
    source = codegen.generate(handmade.zoo_program())
    assert "CALLS(1, 4);" in source  # a straight stretch is one loop
    assert "b2_body:" in source
    assert "if (b2) {  // model.py:4: while i < n:" in source
    assert "return 1;  // model.py:10: return x[0].item()" in source


def _counting(blocks: int) -> Program:
    """A chain of blocks that counts, jumps forward over one block, and goes around once more from its end to its middle."""
    i, again, even = Reg(0, "int"), Reg(1, "bool"), Reg(2, "bool")
    chain = []
    for k in range(blocks - 1):
        body = [HostInstr("add", i, (i, 1)), HostInstr("eq", even, (k % 2, 0))]
        chain.append(CodeBlock(f"block {k}", body, CondGoto(k, even, Goto(k + 1), Goto(min(k + 2, blocks - 1)))))
    last = CodeBlock(
        "last",
        [HostInstr("lt", again, (i, 2 * blocks))],
        CondGoto(blocks - 1, again, Goto(blocks // 2, (SetReg(i, i),)), Goto(blocks)),
    )
    end = CodeBlock("end", [], Leave(0, (i,)))
    return Program(
        "Counting", handmade.call_structure("int"), ["i"], [i], [*chain, last, end], [Site({"leaf": 0, "type": "int"}, [INT])],
        [], [], ["int", "bool", "bool"], 0,
    )  # fmt: skip


def test_parts_do_what_one_function_does(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _counting(300)
    assert "Part4(" in codegen.generate(program)
    parts = handmade.build_and_load(program, tmp_path)
    monkeypatch.setattr(dispatcher, "BLOCKS_PER_PART", 10_000)
    assert "Part" not in codegen.generate(program)
    whole = handmade.load(*handmade.build(program, tmp_path, name="whole"))
    for start in (0, 5, 599, 10_000, -7):
        assert parts(start) == whole(start)
        assert parts.last_path.key() == whole.last_path.key()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"])
def test_items(dtype: str, tmp_path) -> None:
    """A scalar that goes through a tensor is rounded as PyTorch rounds it."""
    module = handmade.build_and_load(handmade.convert_program(dtype), tmp_path)
    torch_dtype = getattr(torch, dtype)
    floats = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        0.1,
        1 / 3,
        2049.0,
        2051.0,
        65504.0,
        65519.9,
        65520.0,
        1e-7,
        6e-8,
        2.98e-8,
        1e5,
        3.4e38,
        3.5e38,
        1e-40,
        1e300,
    ]
    floats += [math.inf, -math.inf, math.nan, 100.0, 127.0]
    for value in floats:
        integral = "float" not in dtype and dtype != "bool"
        if integral and not (math.isfinite(value) and torch.iinfo(torch_dtype).min <= int(value) <= torch.iinfo(torch_dtype).max):
            with pytest.raises(RunError):
                module(value, 0, False, 0)
            continue
        want = torch.tensor(value, dtype=torch.float64).to(torch_dtype)
        got, tensor = module(value, 0, False, 0)
        assert math.isnan(got) if math.isnan(value) and dtype != "bool" else got == want.item(), (value, got, want)
        if not math.isnan(value):
            bits = want.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else want.numpy()
            assert tensor.tobytes() == bits.tobytes(), value
    for number in (0, 1, -1, 100, 2**40):
        if "int" in dtype and not torch.iinfo(torch_dtype).min <= number <= torch.iinfo(torch_dtype).max:
            with pytest.raises(RunError, match="OverflowError"):
                module(0.0, number, False, 1)
        elif dtype != "float16" or number < 65504:
            assert module(0.0, number, False, 1)[0] == int(torch.tensor(number).to(torch_dtype).item())
    assert module(0.0, 0, True, 2)[0] is True
    assert module(0.0, 0, False, 2)[0] is False


def test_compiler_errors_are_quoted(tmp_path) -> None:
    program = handmade.straight_program("k_inc")
    with pytest.raises(CompileError, match="this is no C"):
        codegen.link(program, KernelLibrary((), (("bad.cc", "this is no C"),)), tmp_path / "m.so", handmade.MACHINE)
    with pytest.raises(CompileError, match="__tvm_ffi_k_inc"):
        codegen.link(program, KernelLibrary(()), tmp_path / "m.so", handmade.MACHINE)
    assert not list(tmp_path.iterdir())


def test_numbers_must_be_dense() -> None:
    program = handmade.straight_program("k_inc")
    call = program.blocks[0].instrs[0]
    program.blocks[0].instrs[0] = replace(call, number=3)  # type: ignore[type-var]
    with pytest.raises(CompileError, match="internal"):
        codegen.generate(program)


def test_text() -> None:
    assert string('a"\\\n?\x01é') == '"a\\"\\\\\\n\\?\\001\\303\\251"'
    assert comment("x \\") == "x \\ ."
    assert comment("a\n  b") == "a b"
