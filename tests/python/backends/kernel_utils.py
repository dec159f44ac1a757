# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Running single kernels on arrays, and packing arrays as workload.py says."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import strategies as st

from dycl_tvm.backends.lowering_passes import compile_kernels
from dycl_tvm.backends.tir_cpu.words.machine import Machine, machine_of
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D, Epilogue, Tensor
from dycl_tvm.codegen import machine as cpu
from dycl_tvm.codegen.machine import runs_here
from dycl_tvm.runtime.trailer import why_not_here

SSE = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v2"})
AVX2 = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
AVX512 = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v4"})
VNNI = tvm.target.Target({"kind": "llvm", "mcpu": "cascadelake"})
BF16 = tvm.target.Target({"kind": "llvm", "mcpu": "cooperlake"})


def needs(target: Any) -> Any:
    """Return the mark of a test that runs code for ``target``, which this CPU may be too old for."""
    return pytest.mark.skipif(not runs_here(target), reason=f"this CPU cannot run code for {target.attrs['mcpu']}")


def each(*targets: Any) -> list[Any]:
    """Return the targets as parameters of a test, skipped where this CPU cannot run them."""
    return [pytest.param(t, id=t.attrs["mcpu"], marks=needs(t)) for t in targets]


#: For tests that draw their targets.
WIDTHS = [t for t in (AVX2, AVX512) if runs_here(t)]


def machine(target: Any = AVX2) -> Machine:
    return machine_of(target)


@st.composite
def windows(draw: Any) -> tuple[tuple[int, ...], tuple[int, int], tuple[int, ...], int]:
    """Draw (size of the image, window, padding, dilation) of a convolution with at least one output."""
    kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    dilation = draw(st.integers(1, 2))
    padding = tuple(draw(st.integers(0, 3)) for _ in range(4))
    return tuple(draw(st.integers((kernel[k] - 1) * dilation + 1, 12)) for k in (0, 1)), kernel, padding, dilation


def pack(array: Any, block: int) -> Any:
    """(N, C, *spatial) -> (N, ceil(C / block), *spatial, block), zeros beyond C."""
    if block == 1:
        return np.ascontiguousarray(array)
    n, c, *spatial = array.shape
    blocks = -(-c // block)
    padded = np.zeros((n, blocks * block, *spatial), array.dtype)
    padded[:, :c] = array
    return np.ascontiguousarray(np.moveaxis(padded.reshape(n, blocks, block, *spatial), 2, -1))


def unpack(array: Any, tensor: Tensor) -> Any:
    """Return the logical array; the lanes beyond the last channel must be zero."""
    if tensor.block == 1:
        return array
    n, c = tensor.shape[:2]
    flat = np.moveaxis(array, -1, 2).reshape(n, -1, *tensor.shape[2:])
    assert not flat[:, c:].any(), "lanes beyond the last channel are not zero"
    return flat[:, :c]


def guarded(array: Any, at_end: bool) -> Any:
    """Return a copy that lies directly after, or before, memory that nobody may touch: reading beside it ends the process.

    Aligned to 64 bytes, so up to 63 bytes behind the end may be read unnoticed.
    """
    page = mmap.PAGESIZE
    inner = max(page, -(-array.nbytes // page) * page)
    memory = mmap.mmap(-1, inner + 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    for start in (address, address + page + inner):
        assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(page), 0) == 0
    offset = page + (inner - -(-array.nbytes // 64) * 64 if at_end else 0)
    copy = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
    copy[...] = array
    return copy


#: A number that is not zero, and multiplied some hundred times as slowly as others.
DENORMAL = 1e-40


def meets_denormals(call: Callable[[], object]) -> bool:
    """Whether this thread computes with a denormal number in a call: the CPU takes that down in its register of states, MXCSR."""
    libm, environment = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()
    assert libm.fegetenv(environment) == 0
    environment[7] &= ~2
    assert libm.fesetenv(environment) == 0
    call()
    assert libm.fegetenv(environment) == 0
    return bool(environment[7] & 2)


class Kernel:
    """A compiled kernel."""

    def __init__(self, fn: Any, target: Any = AVX2) -> None:
        self.module = tvm.runtime.Executable(compile_kernels({"main": fn.with_attr("global_symbol", "main")}, target))
        self.run = self.module["main"]
        self.target = target

    def __call__(self, arrays: Sequence[Any], out_shape: Sequence[int], dtype: str = "float32") -> Any:
        missing = why_not_here(cpu.machine_of(self.target).for_code(amx=False).describe())  # tiles: amx_emulation.py
        assert not missing, f"the kernel {missing}: mark the test with needs(target)"
        results = []
        for at_end in (False, True):
            # garbage in the output: a kernel must write all of it
            out = guarded(np.full(tuple(out_shape), np.nan if dtype.startswith("float") else 77, dtype), at_end)
            self.run(*(tvm.runtime.from_dlpack(guarded(np.asarray(a), at_end)) for a in arrays), tvm.runtime.from_dlpack(out))
            results.append(out.copy())
        np.testing.assert_array_equal(*results)
        return results[0]

    def clock(self, arrays: Sequence[Any], out_shape: Sequence[int], seconds: float = 0.05) -> Callable[[], float]:
        """Return a function that runs bursts of the kernel and returns the median seconds of a call."""
        tensors = [tvm.runtime.tensor(np.ascontiguousarray(a)) for a in arrays]
        out = tvm.runtime.empty(tuple(out_shape), "float32")

        def burst() -> float:
            times, end = [], time.perf_counter() + seconds
            while time.perf_counter() < end or len(times) < 3:
                start = time.perf_counter()
                self.run(*tensors, out)
                times.append(time.perf_counter() - start)
            return float(np.median(times))

        return burst


def conv(
    channels: tuple[int, int],
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: int | tuple[int, int] = 1,
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    batch: int = 1,
    plain: bool = False,
    lanes: int = 8,
) -> Conv2D:
    """Return a convolution whose images are packed; ``plain``: its input is not."""
    strides, dilations = (v if isinstance(v, tuple) else (v, v) for v in (stride, dilation))
    out = [(size[k] + padding[k] + padding[k + 2] - (kernel[k] - 1) * dilations[k] - 1) // strides[k] + 1 for k in (0, 1)]
    x = Tensor((batch, channels[0], *size), block=1 if plain else lanes)
    y = Tensor((batch, channels[1], *out), block=lanes)
    return Conv2D(x, y, kernel, strides, padding, dilations, groups)


def relu_with_bias(y: Tensor) -> Epilogue:
    """Return relu(value + bias of the channel)."""
    from tvm import tirx

    channel = 1 if len(y.shape) > 2 else len(y.shape) - 1
    shape = tuple(s if k == channel else 1 for k, s in enumerate(y.shape))
    return Epilogue(
        (Tensor(shape, y.dtype, y.block),),
        lambda value, loads: tirx.max(value + loads[0], tirx.const(0, y.dtype)),
        "bias+relu",
        2,
    )
