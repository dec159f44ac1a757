# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Every form in which users name a target."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
import tvm_ffi

from dycl_tvm.backends.tir_cpu.words.machine import for_compiler, machine_of
from dycl_tvm.codegen.machine import machine_of as host_machine
from dycl_tvm.compile import has_amx
from dycl_tvm.cpu_features import CPU_FEATURES, UNSEEN_FEATURES
from dycl_tvm.errors import TargetError, UsageError
from dycl_tvm.runtime.trailer import cpu_flags
from dycl_tvm.target import check_buildable, hint, known_tags, native_machine, resolve_target

#: What plain "llvm" means here.
BASELINE = "x86-64-v3" if native_machine() == "x86_64" and {"avx2", "fma", "bmi2", "f16c"} <= cpu_flags() else ""
ARM = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a78"}


@pytest.mark.parametrize(
    "target, kind, machine, mcpu, arch",
    [
        ("llvm", "llvm", native_machine(), BASELINE, ""),
        (tvm.target.Target("llvm"), "llvm", native_machine(), BASELINE, ""),
        ("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64", "llvm", "x86_64", "x86-64", ""),
        ("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell", "llvm", "x86_64", "haswell", ""),
        ("llvm --mtriple=x86_64-linux-gnu --mcpu skylake-avx512", "llvm", "x86_64", "skylake-avx512", ""),
        ("llvm -target=aarch64-linux-gnu -mcpu=cortex-a72", "llvm", "aarch64", "cortex-a72", ""),
        (ARM, "llvm", "aarch64", "cortex-a78", ""),
        ('{"kind": "llvm", "mtriple": "aarch64-linux-gnu"}', "llvm", "aarch64", "", ""),
        (tvm.target.Target(ARM), "llvm", "aarch64", "cortex-a78", ""),
        ("raspberry-pi/4b-aarch64", "llvm", "aarch64", "cortex-a72", ""),
        ("cuda -arch=sm_72", "cuda", "aarch64", "carmel", "sm_72"),
        ("cuda -arch=sm_62", "cuda", "aarch64", "cortex-a57", "sm_62"),
        ("cuda -arch=sm_90", "cuda", native_machine(), "", "sm_90"),
        ("cuda -arch=sm_87 -host='llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a78ae'", "cuda", "aarch64", "cortex-a78ae", "sm_87"),
        ({"kind": "cuda", "arch": "sm_72", "host": ARM}, "cuda", "aarch64", "cortex-a78", "sm_72"),
        ("nvidia/jetson-tx2", "cuda", "aarch64", "cortex-a57", "sm_62"),
        ({"tag": "nvidia/jetson-tx2"}, "cuda", "aarch64", "cortex-a57", "sm_62"),
        (tvm.target.Target("nvidia/jetson-tx2"), "cuda", "aarch64", "cortex-a57", "sm_62"),
        ("nvidia/jetson-agx-xavier", "cuda", "aarch64", "carmel", "sm_72"),
        ("nvidia/jetson-orin-nano", "cuda", "aarch64", "cortex-a78", "sm_87"),
    ],
)
def test_forms(target: Any, kind: str, machine: str, mcpu: str, arch: str) -> None:
    got = resolve_target(target)
    assert (got.kind, got.machine, got.mcpu, got.arch) == (kind, machine, mcpu, arch)
    assert got.target.kind.name == kind
    assert got.host.kind.name == "llvm"
    if kind == "llvm":
        assert got.target.host is None, "a CPU target with a host would split every kernel"
    else:
        assert str(got.target.host.attrs.get("mcpu", "")) == mcpu
        assert str(got.target.attrs["arch"]) == arch


def test_options_are_typed_by_the_kind() -> None:
    got = resolve_target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell -mattr=+avx2,+fma -num-cores=4 -fast-math=1").target
    assert list(got.attrs["mattr"]) == ["+avx2", "+fma"]
    assert got.attrs["num-cores"] == 4
    assert bool(got.attrs["fast-math"]) is True
    cuda = resolve_target("cuda -arch=sm_90 -max_threads_per_block=512 -libs=cudnn,cublas").target
    assert cuda.attrs["max_threads_per_block"] == 512
    assert list(cuda.attrs["libs"]) == ["cudnn", "cublas"]


def test_a_tag_with_options_keeps_the_rest_of_the_tag() -> None:
    got = resolve_target("nvidia/jetson-agx-xavier -max_threads_per_block=256")
    assert got.arch == "sm_72"
    assert got.target.attrs["max_threads_per_block"] == 256


def test_native_is_this_machine() -> None:
    got = resolve_target("native")
    assert got.mcpu
    assert got.is_native
    assert resolve_target("llvm -mcpu=native").mcpu == got.mcpu
    assert resolve_target("native -num-cores=2").target.attrs["num-cores"] == 2


@pytest.mark.skipif(native_machine() != "x86_64", reason="AMX is of x86-64")
def test_native_has_the_amx_that_linux_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tvm_ffi.get_global_func
    cpu = {"target.llvm_get_system_cpu": lambda: "sapphirerapids"}
    monkeypatch.setattr(tvm_ffi, "get_global_func", lambda name, *rest: cpu.get(name) or real(name, *rest))
    for flags, amx in ((cpu_flags() - {"amx_bf16"}, False), (cpu_flags() | {"amx_bf16"}, True)):
        monkeypatch.setattr("dycl_tvm.target.cpu_flags", lambda flags=flags: flags)
        got = resolve_target("native")
        assert got.mcpu == "sapphirerapids" and has_amx(got.target) == amx


@pytest.mark.skipif(native_machine() != "x86_64", reason="the flags are those of x86-64")
@pytest.mark.parametrize("model", ["rocketlake", "x86-64", "sapphirerapids"])
@pytest.mark.parametrize(
    "hidden, shown", [({"avx512f", "avx512bw", "avx512_vnni"}, set()), (set(), {"avx512f", "avx512bw", "avx512_bf16"})]
)
def test_native_is_what_linux_shows(model: str, hidden: set[str], shown: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine may hide features of the CPU, or show the number of another model, and LLVM knows no model of tomorrow."""
    real = tvm_ffi.get_global_func
    monkeypatch.setattr(
        tvm_ffi, "get_global_func", lambda name, *rest: (lambda: model) if name == "target.llvm_get_system_cpu" else real(name, *rest)
    )
    flags = (cpu_flags() | {"avx2", "fma"} | shown) - hidden
    monkeypatch.setattr("dycl_tvm.target.cpu_flags", lambda: flags)
    needed = set(host_machine(resolve_target("native").target).cpu_flags)
    known = set(CPU_FEATURES["x86_64"].values())
    # LLVM switches off what needs a feature that is not there
    assert needed <= flags and shown <= needed and (hidden or needed == flags & known)


def test_what_is_said_of_the_features_of_this_cpu_holds() -> None:
    """It replaced what Linux shows, or was dropped."""
    feature = "avx2" if native_machine() == "x86_64" else "neon"
    plain = [str(f) for f in resolve_target("native").target.attrs.get("mattr", [])]
    asked: tuple[Any, ...] = (
        f"native -mattr=-{feature}", f"llvm -mcpu=native -mattr=-{feature}", {"kind": "llvm", "mcpu": "native", "mattr": [f"-{feature}"]}
    )  # fmt: skip
    for target in asked:
        assert list(map(str, resolve_target(target).target.attrs["mattr"])) == [*plain, f"-{feature}"]
    with pytest.raises(TargetError, match="'native' is this CPU, and -mcpu=haswell is another"):
        resolve_target("native -mcpu=haswell")
    other = "aarch64-linux-gnu" if native_machine() == "x86_64" else "x86_64-linux-gnu"
    with pytest.raises(TargetError, match=f"'native' is this CPU, of {native_machine()}, and {other} is another machine"):
        resolve_target(f"native -mtriple={other}")


def test_features_have_a_sign_and_are_known() -> None:
    """LLVM takes a name without a sign for one that is switched off, and passes over those that it does not know."""
    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids -mattr="
    with pytest.raises(TargetError, match="'amx-int8' has none"):
        resolve_target(target + "+avx2,amx-int8")
    with pytest.raises(TargetError, match="LLVM knows no feature 'nonsense' of x86_64"):
        resolve_target(target + "-nonsense")


@pytest.mark.parametrize("mcpu", ["diamondrapids", "arrowlake"])
def test_kernels_use_nothing_that_no_loader_can_ask_for(mcpu: str) -> None:
    """Linux shows no AVX10.2: code with it was taken for one that runs here, and ended the process."""
    target = resolve_target(f"llvm -mtriple=x86_64-linux-gnu -mcpu={mcpu}").target
    has = tvm_ffi.get_global_func("target.target_has_feature")
    assert any(has(feature, target) for feature in UNSEEN_FEATURES)
    compiled = for_compiler(target)
    assert not any(has(feature, compiled) for feature in UNSEEN_FEATURES)
    assert machine_of(compiled) == machine_of(target)


def test_instructions_that_compilers_use_by_themselves_are_asked_for() -> None:
    flags = {
        mcpu: host_machine(resolve_target(f"llvm -mtriple=x86_64-linux-gnu -mcpu={mcpu}").target).cpu_flags for mcpu in ("bdver4", "znver4")
    }
    assert {"xop", "fma4", "tbm", "sse4a"} <= set(flags["bdver4"]) and {"sse4a", "gfni"} <= set(flags["znver4"])


def test_host_given_apart() -> None:
    got = resolve_target("cuda -arch=sm_72", host="llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a78")
    assert (got.mcpu, got.arch) == ("cortex-a78", "sm_72")
    assert resolve_target("nvidia/jetson-tx2", host="llvm").machine == native_machine()
    with pytest.raises(TargetError, match="its own host"):
        resolve_target({"kind": "llvm", "mtriple": "x86_64-linux-gnu"}, host=ARM)
    with pytest.raises(TargetError, match="must be a CPU"):
        resolve_target("cuda -arch=sm_90", host="cuda -arch=sm_90")


def test_every_cpu_and_nvidia_tag_of_tvm_resolves() -> None:
    tags = [t for t in known_tags() if t.startswith(("nvidia/jetson", "nvidia/tegra", "raspberry-pi/", "aws/cpu"))]
    assert len(tags) > 10
    for tag in tags:
        got = resolve_target(tag)
        if "jetson" in tag:
            assert got.machine == "aarch64", tag


@pytest.mark.parametrize(
    "target, words",
    [
        ("nvidia/jetson-tx3", ["unknown target", "nvidia/jetson-tx2"]),
        ("jetson-agx-xavier", ["nvidia/jetson-agx-xavier"]),
        ("cudaa", ["'cuda'"]),
        ("", ["empty"]),
        ("cuda", ["architecture", "-arch=sm_72"]),
        ({"kind": "cuda"}, ["architecture"]),
        ("llvm -mcp=haswell", ["no option 'mcp'", "'mcpu'"]),
        ("llvm -mtriple=x86_64-linux-gnu -mcpu=haswel", ["no CPU 'haswel'", "'haswell'"]),
        ("llvm -num-cores=many", ["-num-cores", "integer", "'many'"]),
        ("llvm -fast-math=maybe", ["bool"]),
        ("llvm haswell", ["expected an option"]),
        ("llvm -mcpu", ["needs a value"]),
        ("llvm -mcpu='haswell", ["quotation"]),
        ("{kind: llvm}", ["JSON"]),
        ({"mcpu": "haswell"}, ["'kind'"]),
        ({"tag": "nvidia/jetson-tx9"}, ["unknown target tag"]),
        ({"kind": "llvm", "mcpux": 1}, ["'mcpux'", "'mcpu'"]),
        ({"kind": "lvm"}, ["'llvm'"]),
        (42, ["int"]),
    ],
)
def test_what_is_refused_says_what_to_write(target: Any, words: list[str]) -> None:
    with pytest.raises(TargetError) as caught:
        resolve_target(target)
    for word in words:
        assert word in str(caught.value)
    assert isinstance(caught.value, UsageError)


@pytest.mark.parametrize("target", ["opencl", "vulkan", "llvm -mtriple=riscv64-linux-gnu"])
def test_targets_that_cannot_be_built_are_refused_by_name(target: str) -> None:
    resolved = resolve_target(target)
    with pytest.raises(TargetError) as caught:
        check_buildable(resolved)
    assert repr(target) in str(caught.value)
    assert "yet" in str(caught.value)


@pytest.mark.parametrize(
    "target, glibc, mcpu",
    [
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a57 -glibc=2.27", "2.27", "cortex-a57"),
        ("llvm -glibc 2.31 -mtriple=aarch64-linux-gnu", "2.31", ""),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "carmel", "glibc": "2.35"}, "2.35", "carmel"),
        ('{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "glibc": "2.31"}', "2.31", ""),
        ({"kind": "cuda", "arch": "sm_72", "host": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "glibc": "2.31"}}, "2.31", ""),
        ("raspberry-pi/4b-aarch64", "", "cortex-a72"),
    ],
)
def test_glibc_of_the_board(target, glibc: str, mcpu: str) -> None:
    resolved = resolve_target(target)
    assert (resolved.glibc, resolved.machine, resolved.mcpu) == (glibc, "aarch64", mcpu)


def test_glibc_must_be_a_version() -> None:
    with pytest.raises(TargetError, match=r"a version such as 2\.27, got 'new'"):
        resolve_target("llvm -glibc=new")
    with pytest.raises(TargetError, match="no glibc 2.10 for aarch64, which began with 2.17"):
        resolve_target("llvm -mtriple=aarch64-linux-gnu -glibc=2.10")


def test_native_targets_and_other_machines_with_a_tool_chain_can_be_built() -> None:
    for target in ("llvm", "native", "raspberry-pi/4b-aarch64", "llvm -mtriple=aarch64-linux-gnu"):
        check_buildable(resolve_target(target))


@pytest.mark.parametrize(
    ("flags", "mcpu", "said"), [(("avx512f",), "x86-64-v3", True), ((), "x86-64-v3", False), (("avx512f",), "znver5", False)]
)
def test_a_report_says_which_vectors_of_this_cpu_are_not_used(
    flags: tuple[str, ...], mcpu: str, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dycl_tvm.target.cpu_flags", lambda: set(flags))
    assert ("native" in hint(f"llvm host=x86_64-linux-gnu mcpu={mcpu}")) == said
