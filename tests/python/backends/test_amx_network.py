# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A dynamic network for a CPU with AMX: near eager on every path with one thread and two, and refused where there is none.

The artefact runs in a process that has the emulator from its start; nothing but the list of the CPU's flags is changed for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from amx_emulation import CPU, preload
from torch import Tensor, nn

import dycl_tvm
from dycl_tvm.errors import ArtifactError, UsageError
from dycl_tvm.runtime import trailer

EMULATED = "amx_tile" not in trailer.cpu_flags()

RUN = """
import ctypes, sys
import numpy as np
from dycl_tvm.runtime import load, trailer

library, given, out = sys.argv[1:]
real = trailer.cpu_flags()
needed = set(trailer.read_trailer(library)["target"]["cpu_flags"])
trailer.cpu_flags = lambda: real | needed
amx = ctypes.CDLL(None)
inputs, results = np.load(given), {}
for threads in (1, 2):
    model = load(library, num_threads=threads)
    for name, x in inputs.items():
        results[f"{name}-{threads}"] = np.array(model(x))
        results[f"path-{name}-{threads}"] = np.array(str(model.last_path))
        assert amx.amx_emulator_configured() == 0, "a thread has kept its tiles"
    results[f"threads-{threads}"] = np.array(amx.amx_emulator_threads())
results["permissions"] = np.array(amx.amx_emulator_permissions())
np.savez(out, **results)
"""


class Staged(nn.Module):
    """Convolutions and products of several rows; leaves after the first stage if the input is large."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.body, self.skip = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 1)
        self.tokens, self.early, self.late = nn.Linear(64, 40), nn.Linear(64, 10), nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Tensor:
        size = x.abs().mean()
        x = self.down(self.stem(x).relu()).relu()
        if size > 2:
            return self.early(x.flatten(2).transpose(1, 2)).mean(1)
        x = (self.body(x) + self.skip(x)).relu()
        return self.late(torch.tanh(self.tokens(x.flatten(2).transpose(1, 2)))).mean(1)


def build(tmp_path: Path, accuracy: Any) -> tuple[nn.Module, Any, Path]:
    torch.manual_seed(0)
    model, path = Staged().eval(), tmp_path / f"{accuracy}.so"
    artefact = dycl_tvm.build(model, (torch.randn(1, 3, 32, 32),), target="llvm -mcpu=sapphirerapids", accuracy=accuracy)
    artefact.export_library(path, embed_params=True)
    return model, artefact, path


def run_emulated(library: Path, tmp_path: Path) -> tuple[dict[str, Any], Any]:
    """Return inputs that leave early and late, and what a process returns for them that has the emulator from its start."""
    torch.manual_seed(1)
    inputs = {name: (scale * torch.randn(1, 3, 32, 32)).numpy() for name, scale in (("late", 1), ("early", 4))}
    np.savez(tmp_path / "in.npz", **inputs)
    package = str(Path(dycl_tvm.__file__).parents[1])
    environment = {**os.environ, "LD_PRELOAD": str(preload()), "PYTHONPATH": package}
    subprocess.run([sys.executable, "-c", RUN, library, tmp_path / "in.npz", tmp_path / "out.npz"], env=environment, check=True)
    found = np.load(tmp_path / "out.npz")
    assert found["path-early-1"] != found["path-late-1"]
    assert not EMULATED or (found["threads-1"] == 1 and found["threads-2"] > 1)
    assert found["permissions"] == 2  # once a load
    return inputs, found


@CPU
@pytest.mark.parametrize("accuracy, least, most", [("bf16", 1e-5, 2e-2), ("bf16x3", 0, 1e-5)])
def test_every_path_with_one_thread_and_two(accuracy: Any, least: float, most: float, tmp_path: Path) -> None:
    model, artefact, path = build(tmp_path, accuracy)
    assert "dycl_conv2d_amx_" in artefact.source() and "dycl_matmul_amx_" in artefact.source()
    flags = set(trailer.read_trailer(path)["target"]["cpu_flags"])
    assert {f for f in flags if f.startswith("amx")} == {"amx_bf16", "amx_tile"}
    inputs, found = run_emulated(path, tmp_path)
    for name, x in inputs.items():
        with torch.no_grad():
            expected = model(torch.from_numpy(x)).numpy()
        for threads in (1, 2):
            error = np.abs(found[f"{name}-{threads}"] - expected).max() / np.abs(expected).max()
            assert least < error < most
        np.testing.assert_array_equal(found[f"{name}-1"], found[f"{name}-2"])


@CPU
def test_eight_bits_are_those_of_other_cpus(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Staged().eval()
    quantised = dycl_tvm.quantize(model, [(scale * torch.randn(1, 3, 32, 32),) for scale in (1, 4) for _ in range(3)])
    tiles, vectors = (dycl_tvm.build(quantised, target=target) for target in ("llvm -mcpu=sapphirerapids", "llvm"))
    path = tmp_path / "int8.so"
    tiles.export_library(path, embed_params=True)
    assert "dycl_conv2d_amx_" in tiles.source() and "dycl_matmul_amx_" in tiles.source()
    flags = trailer.read_trailer(path)["target"]["cpu_flags"]
    assert [f for f in flags if f.startswith("amx")] == ["amx_int8", "amx_tile"]
    inputs, found = run_emulated(path, tmp_path)
    vectors.export_library(tmp_path / "vectors.so", embed_params=True)
    other = dycl_tvm.load(tmp_path / "vectors.so")
    for name, x in inputs.items():
        for threads in (1, 2):
            # the mean at the end is of floats, summed in another order
            np.testing.assert_allclose(found[f"{name}-{threads}"], other(x), rtol=1e-5, atol=1e-7)


@pytest.mark.skipif(not EMULATED, reason="this CPU has AMX")
def test_refused_where_there_is_no_amx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, path = build(tmp_path, "bf16")
    flags = set(trailer.read_trailer(path)["target"]["cpu_flags"])
    with pytest.raises(ArtifactError, match=r"with amx_bf16, amx_tile.*this CPU lacks"):
        dycl_tvm.load(path)
    # where the list of flags is wrong, the library itself asks Linux, and the CPU for the reason
    monkeypatch.setattr(trailer, "cpu_flags", lambda: flags)
    with pytest.raises(ArtifactError, match=r"'Staged' uses AMX \(amx_tile\), which this CPU lacks"):
        dycl_tvm.load(path)


def test_without_amx_kernels_nothing_asks_for_amx(tmp_path: Path) -> None:
    _, artefact, path = build(tmp_path, "default")
    assert "dycl_conv2d_amx_" not in artefact.source() and "false,  // kernels use AMX" in artefact.source()
    flags = trailer.read_trailer(path)["target"]["cpu_flags"]
    assert "avx512_bf16" in flags and not [f for f in flags if f.startswith("amx")]


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=cooperlake", {"kind": "llvm", "mcpu": "sapphirerapids", "mattr": ["-amx-bf16"]}])
def test_three_planes_without_amx_are_refused(target: Any) -> None:
    with pytest.raises(UsageError, match="accuracy='bf16x3' is for CPUs with AMX"):
        dycl_tvm.build(nn.Linear(4, 4), (torch.zeros(2, 4),), target=target, accuracy="bf16x3")
