# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The same library in a TVM process: packed functions, errors as exceptions, and kernels that TVM compiled."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import handmade
import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import tirx as T
from zoo_calls import SUM, X

from dycl_tvm import codegen
from dycl_tvm.codegen import toolchain
from dycl_tvm.codegen.link import RESERVED_SYMBOLS
from dycl_tvm.compile.program import CodeBlock, Kernel, KernelCall, KernelLibrary, Leave, Program, Site, Slot, Weight
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.runtime import load


def test_packed_functions(files: tuple[Path, Path]) -> None:
    module = tvm.runtime.load_module(str(files[0]))
    session = module["create"](str(files[1]))
    x = tvm.runtime.tensor(X)
    assert module["abi_version"]() == 1
    assert json.loads(module["metadata"]())["name"] == "Zoo"
    assert module["run"](session, x, 0) == 0
    assert module["num_outputs"](session) == 3
    kept = module["output"](session, 0)
    np.testing.assert_array_equal(kept.numpy(), SUM)
    assert module["output"](session, 1) == 100
    target = tvm.runtime.empty((4,), "float32")
    module["copy_output"](session, 0, target)
    np.testing.assert_array_equal(target.numpy(), SUM)
    # Of a model for the CPU that is a copy in CPU memory, so clients need not tell them apart.
    there = module["to_device"](session, x)
    assert there.device == x.device
    assert module["run"](session, there, 0) == 0
    np.testing.assert_array_equal(module["output"](session, 0).numpy(), SUM)
    with pytest.raises(ValueError, match="to_device: argument 1 must be a tensor"):
        module["to_device"](session, 3)
    assert module["path"](session).endswith("return model.py:9: return y\n")
    assert module["kernel_runs"](session, 1) == 2
    module["set_num_threads"](session, 2)
    assert module["run"](session, x, 1) == 1
    assert module["output"](session, 0) == 1.0
    module["reset_state"](session)
    assert module["run"](session, x, 4) == 0
    assert module["output"](session, 1) == 100
    np.testing.assert_array_equal(kept.numpy(), SUM)  # a copy
    module["destroy"](session)
    with pytest.raises(ValueError, match="not a session"):
        module["run"](session, x, 0)


def test_errors_are_exceptions(files: tuple[Path, Path]) -> None:
    module = tvm.runtime.load_module(str(files[0]))
    with pytest.raises(RuntimeError, match="cannot open"):
        module["create"]("/nowhere.params")
    session = module["create"](str(files[1]))
    x = tvm.runtime.tensor(X)
    with pytest.raises(ValueError, match=r"input 'x': expected float32\[4\], got float32\[5\]"):
        module["run"](session, tvm.runtime.tensor(np.zeros(5, "float32")), 0)
    with pytest.raises(ValueError, match="takes 2 inputs, got 1"):
        module["run"](session, x)
    with pytest.raises(KeyError, match="two is not allowed"):
        module["run"](session, x, 2)
    with pytest.raises(ValueError, match="this kernel always fails"):
        module["run"](session, x, 3)
    with pytest.raises(ValueError, match="argument 1 must be a tensor or a number"):
        module["run"](session, "text", 0)
    with pytest.raises(ValueError, match="argument 0, an int, is missing"):
        module["run"]()
    with pytest.raises(ValueError, match="no run has succeeded"):
        module["output"](session, 0)
    assert module["run"](session, x, 0) == 0
    with pytest.raises(ValueError, match="output 7 was asked for, the run gave 3"):
        module["output"](session, 7)
    with pytest.raises(ValueError, match="another type or size"):
        module["copy_output"](session, 0, tvm.runtime.empty((5,), "float32"))


@I.ir_module
class _Kernels:
    @T.prim_func(s_tir=True)
    def matmul_parallel(A: T.Buffer((64, 128), "float32"), B: T.Buffer((128, 32), "float32"), C: T.Buffer((64, 32), "float32")):  # noqa: N805
        for i in T.parallel(64):
            for j, k in T.grid(32, 128):
                with T.sblock("mm"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        C[vi, vj] = T.float32(0)
                    C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]

    @T.prim_func(s_tir=True)
    def scratch(A: T.Buffer((64, 32), "float32"), C: T.Buffer((64, 32), "float32")):  # noqa: N805
        W = T.sblock_alloc_buffer((64, 32), "float32")
        for i, j in T.grid(64, 32):
            with T.sblock("w"):
                vi, vj = T.axis.remap("SS", [i, j])
                W[vi, vj] = T.exp(A[vi, vj])
        for i, j in T.grid(64, 32):
            with T.sblock("c"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = W[vi, vj] * T.tanh(W[63 - vi, vj])

    @T.prim_func(s_tir=True)
    def above(A: T.Buffer((64, 32), "float32"), C: T.Buffer((64, 32), "bool")):  # noqa: N805
        for i, j in T.grid(64, 32):
            with T.sblock("c"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj] > T.float32(0.5)


@pytest.mark.parametrize("threads", [1, 3])
def test_kernels_compiled_by_tvm(tmp_path: Path, threads: int) -> None:
    import torch

    target = tvm.target.Target("llvm")
    tvm.compile(_Kernels, target=target).mod.write_to_file(str(tmp_path / "k.o"))
    a, b, c, d = (TensorType(s, t) for s, t in (((64, 128), "float32"), ((128, 32), "float32"), ((64, 32), "float32"), ((64, 32), "bool")))
    x, w = Slot(a, "input", 0), Slot(b, "weight", 0)
    y, z, m = Slot(c, "arena", 0, 0), Slot(c, "arena", 0, 8192), Slot(d, "arena", 0, 0)
    weight = torch.randn(128, 32) / 16
    calls = [KernelCall(0, 0, (x, w, y), "s"), KernelCall(1, 1, (y, z), "s"), KernelCall(2, 2, (z, m), "s")]
    program = Program(
        "Tvm", handmade.call_structure("tensor"), ["x"], [x], [CodeBlock("entry", calls, Leave(0, (z, m)))],
        [Site(handmade.leaves("tensor", "tensor"), [c, d])], [Kernel(s, "tir") for s in ("matmul_parallel", "scratch", "above")],
        [Weight("w", b, weight)], [], 16384,
    )  # fmt: skip
    library = KernelLibrary((("k.o", (tmp_path / "k.o").read_bytes()),))
    codegen.link(program, library, tmp_path / "m.so", target)
    codegen.save_params(program, tmp_path / "m.params")
    module = load(tmp_path / "m.so", tmp_path / "m.params", num_threads=threads)
    image = torch.randn(64, 128)
    e = torch.exp(image @ weight)
    want = e * torch.tanh(e.flip(0))
    got, mask = module(image)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert torch.equal(mask, got > 0.5)
    hosted = tvm.runtime.load_module(str(tmp_path / "m.so"))
    session = hosted["create"](str(tmp_path / "m.params"))
    hosted["run"](session, tvm.runtime.tensor(image.numpy()))
    np.testing.assert_array_equal(hosted["output"](session, 0).numpy(), got.numpy())


def test_every_packed_function_is_exported_and_its_name_reserved(files: tuple[Path, Path]) -> None:
    source = toolchain.runtime_sources().source / "packed.cc"
    names = set(re.findall(r"^PACKED\((\w+), ", source.read_text(), re.M))
    assert len(names) > 15
    listing = subprocess.run(["nm", "-D", "--defined-only", str(files[0])], capture_output=True, text=True, check=True).stdout
    assert {name.removeprefix("__tvm_ffi_") for name in listing.split() if name.startswith("__tvm_ffi_")} == names
    assert names == RESERVED_SYMBOLS
