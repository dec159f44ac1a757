# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``make gpu``: what it checks and prints, on the emulated GPU, and what it says without one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from emulation import Driver

import dycl_tvm

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_benchmark", SCRIPT)
    assert spec is not None and spec.loader is not None
    sys.path.insert(0, str(SCRIPT.parent))
    module = sys.modules["gpu_benchmark"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_network_is_checked_and_timed(script: ModuleType, gpu: Driver) -> None:
    gpu.configure(sm=87)
    assert script.gpu_architecture() == "sm_87"
    row = script.measure("act_rnn", "sm_87", 4, 1, gpu.load)
    assert not row.wrong and row.paths >= 2
    text = script.table([row], "sm_87")
    assert "| act_rnn" in text and "| right |" in text


def test_a_wrong_result_is_found(script: ModuleType, gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(artifact: object, folder: Path) -> object:
        module = gpu.load(artifact, folder)
        call = type(module).__call__
        monkeypatch.setattr(type(module), "__call__", lambda self, *a: torch.utils._pytree.tree_map(lambda t: t + 1, call(self, *a)))
        return module

    row = script.measure("act_rnn", "sm_72", 2, 1, broken)
    assert len(row.wrong) == 2
    assert "2 of 2 WRONG" in script.table([row], "sm_72")


def test_random_numbers_are_compared(script: ModuleType, gpu: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["gpu_draws"]
    monkeypatch.setattr(module, "_MANY", 9001)
    art = dycl_tvm.build(module.draws, (torch.linspace(0.01, 0.99, 640).reshape(16, 40),), target="cuda -arch=sm_72", host="llvm")
    monkeypatch.setattr(dycl_tvm, "build", lambda *_, **__: art)
    wrong, reference = script.check_draws("sm_72", tmp_path, gpu.load, calls=2)
    assert not wrong and reference == "what is known of PyTorch"
    monkeypatch.setattr(module, "resident_threads", lambda: 4096)
    assert any("many" in w for w in script.check_draws("sm_72", tmp_path, gpu.load, calls=1)[0])


def test_without_a_gpu_it_says_so_and_fails() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert "make gpu needs an NVIDIA GPU: there is no NVIDIA driver on this machine" in done.stderr
