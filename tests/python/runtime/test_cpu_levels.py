# Licensed under the Apache License, Version 2.0; see LICENSE.
"""One library with code for several CPUs, of which it takes the best that runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from tvm import rpc

import dycl_tvm
from dycl_tvm.cli.main import main
from dycl_tvm.codegen import check_levels, machine_of, toolchain
from dycl_tvm.cpu_features import CPU_FEATURES
from dycl_tvm.deploy import RemoteModule
from dycl_tvm.errors import TargetError, UsageError
from dycl_tvm.runtime.params import read_params
from dycl_tvm.runtime.trailer import cpu_flags, levels_of, read_trailer, this_arch, why_not_here
from dycl_tvm.target import resolve_targets

pytestmark = pytest.mark.skipif(this_arch() != "x86_64", reason="one library has code for several CPUs of x86-64 only")

CPUS = ("x86-64-v3", "cascadelake", "alderlake")  # the last two have what the other lacks


class Exits(nn.Module):
    """A convolution, an exit, a product, and a count of the calls that were easy."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.early = nn.Conv2d(3, 32, 3, padding=1), nn.Linear(32, 4)
        self.body, self.late = nn.Linear(32, 96), nn.Linear(96, 4)
        self.easy = torch.zeros(1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.conv(x).relu().mean((2, 3))
        if h.sum() > 8:
            self.easy = self.easy + h.mean()
            return self.early(h), self.easy.clone()
        return self.late(self.body(h).relu()), self.easy.clone()


_MAIN = """
#include <dycl/module.h>
#include <cstdio>
int main(int, char** argv) {
  auto module = dycl::Module::Load(argv[1], argv[2]);
  if (module.ok()) module = dycl::Module::Load(argv[1], argv[2]);
  return std::puts(module.ok() ? module.value().Metadata().c_str() : module.status().message().c_str()) < 0;
}
"""
_INSIDE = """
#include <dycl/dycl.h>
#include <stdio.h>
int main(void) {
  DyclModel* model;
  return puts(dycl_model_create(NULL, &model) == DYCL_OK ? dycl_metadata() : dycl_last_error()) < 0;
}
"""
_ASK = """
#include <cstdio>
#include "cpu_levels.h"
namespace dycl {
bool AmxIsGranted() { return true; }
}
int main(int count, char** names) {
  for (int k = 1; k < count; ++k) {
    if (dycl::CpuHas(names[k], strlen(names[k]))) std::puts(names[k]);
  }
}
"""
# A stack for signals on which no tiles have room, so that Linux gives the process none.
_WITHOUT_TILES = """
import ctypes, sys
if sys.argv[3] == "without":
    memory = ctypes.create_string_buffer(4096)
    stack = (ctypes.c_void_p * 3)(ctypes.addressof(memory), 0, 4096)
    assert ctypes.CDLL(None).sigaltstack(stack, None) == 0
import dycl_tvm
print(dycl_tvm.load(*sys.argv[1:3]).metadata["target"]["mcpu"])
"""
INPUTS = (torch.linspace(0, 3, 192).reshape(1, 3, 8, 8), -torch.linspace(0, 1, 192).reshape(1, 3, 8, 8).sin())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    folder = tmp_path_factory.mktemp("levels")
    artifact = dycl_tvm.build(Exits().eval(), (INPUTS[0],), target=["llvm", *(f"llvm -mcpu={cpu}" for cpu in CPUS[1:])])
    return artifact.export_library(folder / "net.so"), artifact.save_params(folder / "net.params"), artifact


def _loaded(built: tuple[Path, Path, Any], folder: Path, cpu: str, monkeypatch: pytest.MonkeyPatch) -> dycl_tvm.Module:
    """Return the code for a CPU; the system's loader knows libraries by their names, and takes each once."""
    copy = folder / f"{cpu}.so"
    shutil.copy(built[0], copy)
    with monkeypatch.context() as patch:
        patch.setenv("DYCL_CPU", cpu)
        return dycl_tvm.load(copy, built[1])


def _runnable(library: Path) -> list[str]:
    return [str(level["target"]["mcpu"]) for level in levels_of(read_trailer(library)) if not why_not_here(level["target"])]


def test_each_level_is_the_model(built: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runnable = _runnable(built[0])
    assert runnable[0] == CPUS[0]
    for cpu in runnable:
        module, model = _loaded(built, tmp_path, cpu, monkeypatch), Exits().eval()
        assert module.metadata["target"]["mcpu"] == cpu
        paths = set()
        for x in (*INPUTS, *INPUTS):
            torch.testing.assert_close(module(x), model(x), rtol=1e-4, atol=1e-5)
            paths.add(module.last_path)
            assert set(module.kernels_run) <= {kernel["symbol"] for kernel in module.metadata["kernels"]}
            assert all(("_cpu" in kernel) == (cpu != CPUS[0]) for kernel in module.kernels_run if not kernel.startswith("moving"))
        assert len(paths) == 2


def test_the_best_that_runs_is_taken(built: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _loaded(built, tmp_path, "", monkeypatch).metadata["target"]["mcpu"] == _runnable(built[0])[-1]


def test_what_cannot_be_had_is_an_error(built: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is to take the results of one CPU's code for those of another's."""
    runnable, program = _runnable(built[0]), _compiled(tmp_path)
    for cpu, why in {"of no library": f"has code for {', '.join(CPUS)}", **dict.fromkeys(set(CPUS) - set(runnable), "this CPU")}.items():
        with pytest.raises(UsageError, match=f"DYCL_CPU is '{cpu}', .*{why}"):
            _loaded(built, tmp_path, cpu, monkeypatch)
        assert re.search(why, _of_main([program, *built[:2]], cpu))
    module = _loaded(built, tmp_path, runnable[0], monkeypatch)
    monkeypatch.setenv("DYCL_CPU", runnable[-1])
    with pytest.raises(UsageError, match=f"has been loaded with its code for {runnable[0]}") if len(runnable) > 1 else nullcontext():
        dycl_tvm.load(tmp_path / f"{runnable[0]}.so", built[1])
    module.unload()
    assert dycl_tvm.load(tmp_path / f"{runnable[0]}.so", built[1]).metadata["target"]["mcpu"] == runnable[-1]


def test_a_build_checks_each_level_whatever_its_process_asks_for(built: tuple[Path, Path, Any], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYCL_CPU", CPUS[0])
        again = built[2].export_library(tmp_path / "again.so")
    assert again.read_bytes() == built[0].read_bytes()


def test_a_cpu_is_asked_for_all_that_code_may_need(tmp_path: Path) -> None:
    text = (toolchain.runtime_sources().source / "cpu_levels.h").read_text()
    names = re.findall(r'^    \{"(\w+)", ', text, re.MULTILINE)
    assert set(CPU_FEATURES["x86_64"].values()) == set(names)
    (tmp_path / "ask.cc").write_text(_ASK)
    toolchain.find_compiler().run(
        ["-std=c++17", *toolchain.include_flags(), str(tmp_path / "ask.cc"), "-o", str(tmp_path / "ask")], "a program that asks"
    )
    done = subprocess.run([tmp_path / "ask", *names, "nothing"], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == set(names) & cpu_flags()


def test_a_profile_is_of_the_code_for_one_cpu(built: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = levels_of(read_trailer(built[0]))
    for cpu in _runnable(built[0]):
        module = _loaded(built, tmp_path, cpu, monkeypatch)
        with module.profile(every=1) as profile:
            module(INPUTS[0])
        assert [level["target"]["mcpu"] for level in levels if profile.is_of(level)] == [cpu]
        profile.save(str(tmp_path / "profile.json"))
        main(["inspect", str(built[0]), "--profile", str(tmp_path / "profile.json"), "-o", str(tmp_path / "net.html")])
        assert "1 times" in (tmp_path / "net.html").read_text()


def test_state_goes_from_one_to_another(built: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, of_state = Exits().eval(), b""
    for cpu in (*_runnable(built[0]), CPUS[0]):
        (tmp_path / str(len(of_state)) / cpu).mkdir(parents=True, exist_ok=True)
        module = _loaded(built, tmp_path / str(len(of_state)) / cpu, cpu, monkeypatch)
        if of_state:
            module.set_state(of_state)
        torch.testing.assert_close(module(INPUTS[0]), model(INPUTS[0]), rtol=1e-4, atol=1e-5)
        of_state = module.get_state()


def test_equal_weights_are_in_the_file_once(built: tuple[Path, Path, Any], tmp_path: Path) -> None:
    tensors = read_params(built[1]).tensors
    biases = [name for name, t in tensors.items() if "bias" in name and t.size == 96]
    assert len(biases) == 1
    alone = dycl_tvm.build(Exits().eval(), (INPUTS[0],), target="llvm", verify="off")
    least = read_params(alone.save_params(tmp_path / "alone.params")).tensors
    assert all((tensors[name] == t).all() for name, t in least.items()), "the first level has the names that it has alone"
    assert len(tensors) < 3 * len(least)
    report = built[2].report()
    assert [line.split(":")[0] for line in report.better] == list(CPUS[1:])
    assert "x86-64-v3,cascadelake,alderlake" in str(report)


def test_weights_inside_the_library(built: tuple[Path, Path, Any], tmp_path: Path) -> None:
    library, want = built[2].export_library(tmp_path / "whole.so", embed_params=True), Exits().eval()(INPUTS[1])
    torch.testing.assert_close(dycl_tvm.load(library)(INPUTS[1]), want, rtol=1e-4, atol=1e-5)
    remote = RemoteModule(rpc.LocalSession(), library)
    assert remote.metadata["target"]["mcpu"] == _runnable(library)[-1]
    torch.testing.assert_close(torch.from_numpy(remote(INPUTS[1].numpy())[0]), want[0], rtol=1e-4, atol=1e-5)


def _compiled(folder: Path) -> Path:
    """Return a program in C++ that says what a library says of itself, or why it cannot be loaded."""
    source = folder / "main.cc"
    source.write_text(_MAIN)
    units = [str(source), *map(str, toolchain.runtime_sources().host_units())]
    toolchain.find_compiler().run(
        ["-std=c++17", *toolchain.include_flags(), *units, "-o", str(folder / "main"), "-ldl", "-lpthread"], "main"
    )
    return folder / "main"


def _of_main(command: Sequence[Path], cpu: str) -> str:
    return subprocess.run(command, env={"DYCL_CPU": cpu}, capture_output=True, text=True, check=True).stdout


def test_from_cpp(built: tuple[Path, Path, Any], tmp_path: Path) -> None:
    program = _compiled(tmp_path)
    for cpu in _runnable(built[0]):
        assert json.loads(_of_main([program, *built[:2]], cpu))["target"]["mcpu"] == cpu


def test_inside_a_program(built: tuple[Path, Path, Any], tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(_INSIDE)
    archive = built[2].export_library(tmp_path / "net.a", embed_params=True)
    flags = [flag for flag in toolchain.include_flags() if not flag.startswith("-std=")]
    toolchain.find_compiler().run(
        ["-x", "c", *flags, str(tmp_path / "main.c"), "-x", "none", str(archive), "-o", str(tmp_path / "main"), "-ldl", "-lpthread"], "main"
    )
    for cpu in _runnable(built[0]):
        assert json.loads(_of_main([tmp_path / "main"], cpu))["target"]["mcpu"] == cpu
    assert "has code for" in _of_main([tmp_path / "main"], "of no library")


def test_tiles_are_taken_where_linux_gives_them(tmp_path: Path) -> None:
    targets, x = ["llvm", "llvm -mcpu=sapphirerapids"], torch.zeros(4, 300)
    artifact = dycl_tvm.build(nn.Linear(300, 512), (x,), target=targets, accuracy="bf16")
    files = [artifact.export_library(tmp_path / "net.so"), artifact.save_params(tmp_path / "net.params")]
    amx = levels_of(read_trailer(files[0]))[1]["target"]
    assert "amx_tile" in amx["cpu_flags"]
    for tiles, best in (("with", CPUS[0] if why_not_here(amx) else amx["mcpu"]), ("without", CPUS[0])):
        done = subprocess.run([sys.executable, "-c", _WITHOUT_TILES, *files, tiles], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == best


def test_portable() -> None:
    check_levels([machine_of(resolve_targets(t).target) for t in ("llvm -mcpu=x86-64", "llvm", "llvm -mcpu=skylake-avx512")])
    for text in ("portable -glibc=2.31", '["llvm -glibc=2.31", {"kind": "llvm", "mcpu": "cascadelake", "glibc": "2.31"}]'):
        resolved = resolve_targets(text)
        assert (resolved.mcpu, [str(t.attrs["mcpu"]) for t in resolved.better], resolved.glibc) == (CPUS[0], ["cascadelake"], "2.31")
        assert resolved.spec == text
    resolved = resolve_targets("portable -mtriple=aarch64-linux-gnu")
    assert (resolved.machine, resolved.mcpu, resolved.better) == ("aarch64", "", ())


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (["llvm", "cuda -arch=sm_72"], "one kind of machine"),
        (["llvm", "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72"], "one kind of machine"),
        (["llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a57", "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76"], "x86-64 only"),
        (["llvm -mcpu=cascadelake", "llvm -mcpu=haswell"], "lacks .*avx512bw"),
        (["llvm -mcpu=x86-64-v2", "llvm -mcpu=bdver4", "llvm -mcpu=cascadelake", "llvm -mcpu=bdver2"], "put the better CPU behind"),
        (["llvm -mcpu=bdver4", "llvm -mcpu=x86-64-v3"], "lacks fma4, sse4a, tbm, xop"),
        (["llvm -mcpu=haswell -mattr=-avx2", "llvm -mcpu=haswell"], "two are haswell"),
        (["llvm", "llvm -mattr=+avx512f"], "has none; write its -mcpu"),
        (["llvm -mattr=+avx2", "llvm -mcpu=cascadelake"], "has none; write its -mcpu"),
        (["portable", "llvm -mcpu=icelake-server"], "a target by itself"),
        ({"kind": "cuda", "arch": "sm_90", "host": "portable"}, "a target by itself"),
        ("portable -mcpu=haswell", "leave out -mcpu"),
        ('["llvm",', "like JSON"),
        (["llvm", "llvm -mcpu=skylake-avx512", "llvm -mcpu=haswell"], "put the better CPU behind"),
        (["llvm", "llvm"], "put the better CPU behind"),
        ([], "a list of CPUs"),
    ],
)
def test_targets_that_make_no_library(target: Any, why: str) -> None:
    with pytest.raises(TargetError, match=why):
        dycl_tvm.build(nn.Linear(2, 2), (torch.zeros(1, 2),), target=target)


def test_backends_are_for_one_cpu() -> None:
    with pytest.raises(UsageError, match="code for one CPU"):
        dycl_tvm.build(nn.Linear(2, 2), (torch.zeros(1, 2),), target="portable", enable_backends=["onednn"])
