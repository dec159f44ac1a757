# Licensed under the Apache License, Version 2.0; see LICENSE.
"""GPU code compiled without a GPU: architectures, PTX versions, and what is refused."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from models import EarlyExit, example

import dycl_tvm
from dycl_tvm.codegen.cuda import compile_images, image_source, images, nvcc, nvrtc
from dycl_tvm.codegen.cuda.architectures import number_of, preferred_major, ptx_version
from dycl_tvm.codegen.cuda.embedded import embedded_cubins, embedded_ptx, image_faults
from dycl_tvm.codegen.cuda.images import bound_ptx, cubin_architecture
from dycl_tvm.compile.program import DeviceCode
from dycl_tvm.errors import BuildGateError, CompileError, TargetError

KERNEL = """
extern "C" __global__ void __launch_bounds__(32) twice(float* __restrict__ x) {
  x[blockIdx.x * 32 + threadIdx.x] *= 2.0f;
}
"""


def code(arch: str, source: str = KERNEL) -> DeviceCode:
    return DeviceCode("cuda", arch, (), 0, source)


@pytest.mark.parametrize(
    "arch, ptx, major",
    [
        ("sm_53", (6, 5), 11), ("sm_62", (6, 5), 11), ("sm_72", (6, 5), 11), ("sm_75", (6, 5), 12), ("sm_86", (7, 1), 12),
        ("sm_87", (7, 4), 11), ("sm_90", (7, 8), 12), ("sm_120", (8, 7), 12),
    ],
)  # fmt: skip
def test_images_are_of_the_architecture_and_of_ptx_that_its_drivers_take(arch: str, ptx: tuple[int, int], major: int) -> None:
    made = compile_images(code(arch))
    assert cubin_architecture(made.cubin) == number_of(arch)
    assert made.ptx_version == ptx == ptx_version(number_of(arch))
    assert f".version {ptx[0]}.{ptx[1]}\n.target {arch}\n".encode() in made.ptx
    assert made.compiler.startswith(f"NVRTC {major}.") and preferred_major(number_of(arch)) == major
    assert b"twice" in made.ptx and b"twice" in made.cubin


def test_the_compiler_leaves_the_locale_of_the_thread_alone() -> None:
    libc = ctypes.CDLL(None)
    libc.uselocale.argtypes, libc.uselocale.restype = [ctypes.c_void_p], ctypes.c_void_p
    before = libc.uselocale(None)
    for compiler in nvrtc.installed():
        compiler.compile(KERNEL, "k.cu", [f"--gpu-architecture=sm_{compiler.architectures[-1]}"])
        assert libc.uselocale(None) == before, f"NVRTC {compiler.version}: Python would read files in another encoding from now on"


def test_ptx_that_a_version_does_not_have_is_found() -> None:
    if nvcc.find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    source = KERNEL.replace("*= 2.0f", "= __reduce_add_sync(0xffffffff, threadIdx.x)")  # redux.sync is of PTX 7.0
    ptx, _ = next(c for c in nvrtc.installed() if 80 in c.architectures).compile(source, "k.cu", ["--gpu-architecture=sm_80"])
    nvcc.check_ptx(bound_ptx(ptx, (7, 0)), 80)
    with pytest.raises(CompileError, match=r"requires PTX ISA \.version 7\.0"):
        nvcc.check_ptx(bound_ptx(ptx, (6, 5)).replace(b"sm_80", b"sm_75"), 75)


@pytest.mark.parametrize(
    "arch, words",
    [("sm_90a", "leave the suffix out, 'sm_90'"), ("sm_99", "not a GPU architecture that is known here"), ("volta", "named like 'sm_72'")],
)
def test_other_architectures_are_refused(arch: str, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        compile_images(code(arch))


def test_without_a_compiler_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images.nvrtc, "find", lambda number, major: None)
    monkeypatch.setattr(images.nvcc, "find_nvcc", lambda number: None)
    with pytest.raises(CompileError, match=r"no CUDA compiler for sm_72.*pip install dycl-tvm\[cuda\].*nvidia-cuda-nvrtc-cu11"):
        compile_images(code("sm_72"))


def test_the_compiler_s_words_are_shown() -> None:
    with pytest.raises(CompileError, match=r"NVRTC 11\.8 could not compile kernels\.cu:\n(.|\n)*unknown_thing"):
        compile_images(code("sm_72", KERNEL.replace("2.0f", "unknown_thing")))


def test_a_cubin_of_another_architecture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = images.nvrtc.Nvrtc.compile

    def other(self: nvrtc.Nvrtc, source: str, name: str, options: list[str]) -> tuple[bytes, bytes]:
        wrong = [o.replace("sm_72", "sm_70") for o in options]
        return real(self, source, name, options)[0], real(self, source, name, wrong)[1]

    monkeypatch.setattr(images.nvrtc.Nvrtc, "compile", other)
    with pytest.raises(CompileError, match="made a cubin for sm_70, wanted sm_72"):
        compile_images(code("sm_72"))


def test_what_is_no_cubin_is_refused() -> None:
    with pytest.raises(CompileError, match="not a cubin"):
        cubin_architecture(b"\x7fELF" + bytes(100))


def test_headers_of_a_toolkit_are_refused() -> None:
    source = "#include <cuda_bf16.h>\n" + KERNEL
    with pytest.raises(CompileError, match=r"need the header cuda_bf16\.h"):
        compile_images(code("sm_72", source))


def test_an_artefact_holds_machine_code_and_ptx_and_no_source(tmp_path: Path) -> None:
    art = dycl_tvm.build(EarlyExit().eval(), example(), target="cuda -arch=sm_72", host="llvm")
    data = art.export_library(tmp_path / "model.so").read_bytes()
    device = art._lowered.program.device
    assert device is not None and "threadIdx" in device.source
    for word in (b"__global__", b"threadIdx", b"blockIdx", b"__launch_bounds__"):
        assert word not in data
    cubins = [m.start() for m in re.finditer(b"\x7fELF", data)][1:]
    assert [cubin_architecture(data[at:]) for at in cubins] == [72]
    assert b".version 6.5\n.target sm_72" in data
    again = dycl_tvm.build(EarlyExit().eval(), example(), target="cuda -arch=sm_72", host="llvm")
    assert again._lowered.program.device == replace(device)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, DeviceCode]:
    """A finished library, and the device code that it was made of."""
    art = dycl_tvm.build(EarlyExit().eval(), example(), target="cuda -arch=sm_72", host="llvm")
    device = art._lowered.program.device
    assert device is not None
    return art.export_library(tmp_path_factory.mktemp("finished") / "model.so").read_bytes(), device


def test_what_a_finished_library_holds(finished: tuple[bytes, DeviceCode]) -> None:
    data, device = finished
    launched = {launch.function for of_kernel in device.launches for launch in of_kernel}
    assert image_faults(data, device) == []
    (cubin,) = embedded_cubins(data)
    assert (cubin.architecture, cubin.kernels) == (72, launched)
    assert all(ptx.version <= (6, 5) and ptx.architecture <= 72 for ptx in embedded_ptx(data))
    assert launched in [ptx.kernels for ptx in embedded_ptx(data)]


HEAD = b".version 6.5\n.target sm_72"


def _cubin_of(data: bytes) -> int:
    """Where the cubin begins."""
    return next(m.start() for m in re.finditer(b"\x7fELF", data) if data[m.start() + 18 : m.start() + 20] == b"\xbe\x00")


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda data, at: data[: at + 48] + bytes([70]) + data[at + 49 :], ["it holds machine code for sm_70, the target is sm_72"]),
        (lambda data, at: data[:at] + b"none" + data[at + 4 :], ["no machine code for sm_72", "its machine code lacks the kernels"]),
        (lambda data, at: data[: at + 60] + b"\xff\xff" + data[at + 62 :], ["its machine code lacks the kernels"]),
        (lambda data, at: data.replace(HEAD, b".version 7.0\n.target sm_72"), ["PTX 7.0, but drivers of sm_72 may"]),
        (lambda data, at: data.replace(HEAD, b".version 6.5\n.target sm_75"), ["PTX for sm_75, the target is sm_72"]),
        (lambda data, at: data.replace(b".entry ", b".func  "), ["its PTX lacks the kernels"]),
        (lambda data, at: data + b'extern "C" __global__ void', ["it holds CUDA source"]),
    ],
)  # fmt: skip
def test_the_gate_reads_the_images_in_the_finished_library(
    damage: Callable[[bytes, int], bytes], words: list[str], finished: tuple[bytes, DeviceCode]
) -> None:
    data, device = finished
    faults = image_faults(damage(data, _cubin_of(data)), device)
    assert len(faults) == len(words), faults
    for fault, expected in zip(faults, words):
        assert expected in fault


def test_the_gate_is_in_the_way_of_libraries_for_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Images that are exchanged after they were checked do not get through."""
    art = dycl_tvm.build(EarlyExit().eval(), example(), target="cuda -arch=sm_72", host="llvm")
    device = art._lowered.program.device
    assert device is not None
    other = compile_images(replace(device, arch="sm_70"))
    sources = tuple((name, image_source(other) if name == "device.S" else text) for name, text in art._code.library.sources)
    monkeypatch.setattr(art, "_code", replace(art._code, library=replace(art._code.library, sources=sources)))
    with pytest.raises(BuildGateError, match="machine code for sm_70, the target is sm_72"):
        art.export_library(tmp_path / "model.so")
    assert not list(tmp_path.iterdir())
