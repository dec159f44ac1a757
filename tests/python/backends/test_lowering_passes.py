# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Indices keep their value on the way to machine code: programs of moved elements that TVM's own flattening of buffers reads wrongly.

Kernels check their arguments, and say little about it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import tvm
from torch import Tensor
from tvm import te

import dycl_tvm
from dycl_tvm.compile.pipeline import build_kernels
from dycl_tvm.compile.program import KernelLibrary
from dycl_tvm.errors import VerificationError
from dycl_tvm.runtime import Module
from dycl_tvm.verify.memory import CompiledKernels

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "roll, reshape": lambda x: x.reshape(4, 4, 4).roll((1, 1), (0, 1)).reshape(16, 4),
    "roll of three, reshape": lambda x: x.reshape(4, 4, 4).roll((1, 2, 3), (0, 1, 2)).reshape(8, 8),
    "roll, roll, flatten": lambda x: x.reshape(2, 2, 16).roll((1, 1), (0, 1)).roll((1, 1), (1, 2)).flatten(),
    "shifted windows": lambda x: x.reshape(8, 8).roll((-2, -2), (0, 1)).reshape(2, 4, 2, 4).permute(0, 2, 1, 3).reshape(4, 16),
    "repeat_interleave, add flip": lambda x: (y := x.repeat_interleave(2, 0)) + y.flip(0),
    "repeat_interleave, stack flip": lambda x: torch.stack([y := x.repeat_interleave(2, 0), y.flip(0)], 0).permute(1, 0),
    "repeat_interleave, rolls": lambda x: x.reshape(16, 4).repeat_interleave(2, 0).roll((4, -1), (1, 0)).roll((-2, 5), (1, 0)),
    "flip of a diagonal of views": lambda x: x.reshape(8, 8).diagonal(1).flip(0).repeat_interleave(3),
    "padded, every second": lambda x: torch.nn.functional.pad(x.reshape(8, 8), (1, 2))[:, ::2].reshape(12, 4).roll((1, 1), (0, 1)),
}


def _all(x: Tensor) -> list[Tensor]:
    return [program(x) for program in PROGRAMS.values()]


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Module:
    folder = tmp_path_factory.mktemp("indices")
    artifact = dycl_tvm.build(_all, (torch.arange(64.0),))
    return dycl_tvm.load(artifact.export_library(folder / "m.so"), artifact.save_params(folder / "m.params"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_element_is_where_eager_puts_it(name: str, module: Module) -> None:
    x = torch.randn(64)
    assert torch.equal(module(x)[list(PROGRAMS).index(name)], PROGRAMS[name](x))


def test_what_a_kernel_was_not_made_for_is_refused_in_few_words() -> None:
    x = te.placeholder((16,), "float32", "x")
    fn = te.create_prim_func([x, te.compute((16,), lambda i: x[i] + 1.0, "y")])
    built = build_kernels({"k": fn}, tvm.target.Target("llvm"))
    kernels = CompiledKernels(KernelLibrary(tuple(built.objects)))
    kernels.call("k", 0, [torch.ones(16), out := torch.zeros(16)])
    assert torch.equal(out, torch.full((16,), 2.0))
    for wrong in ([torch.ones(16)], [torch.ones(16), torch.zeros(8)], [torch.ones(16).int(), out], [torch.ones(16), torch.zeros(16, 1)]):
        with pytest.raises(VerificationError, match="the kernel k refuses its own arguments"):
            kernels.call("k", 0, wrong)
    assert all(code.count(b"arguments") <= 1 and b"Mismatched" not in code for _, code in built.objects)
