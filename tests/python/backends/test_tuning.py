# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tuning: candidates are measured once, and the choice is found again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import tvm
from torch import nn

import dycl_tvm
from dycl_tvm.backends.tir_cpu.database import Database
from dycl_tvm.backends.tir_cpu.machine import machine_of
from dycl_tvm.backends.tir_cpu.options import KernelOptions
from dycl_tvm.backends.tir_cpu.select import Selector
from dycl_tvm.backends.tir_cpu.workload import Conv2D, Dense, Plan, Tensor

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
MACHINE = machine_of(TARGET)
WORK = Conv2D(Tensor((1, 16, 8, 8), block=8), Tensor((1, 16, 8, 8), block=8), (3, 3), padding=(1, 1, 1, 1))


def test_a_measured_choice_is_kept_and_found(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    first = Selector(MACHINE, KernelOptions(tune=30.0, database=str(path)), TARGET)
    chosen = first.convolution(WORK)
    assert chosen is not None and first.measured == 1
    first.save()
    second = Selector(MACHINE, KernelOptions(tune=30.0, database=str(path)), TARGET)
    found = second.convolution(WORK)
    assert second.measured == 0 and found is not None
    assert (found[0].name, found[1].params) == (chosen[0].name, chosen[1].params)


def test_the_budget_ends_tuning(tmp_path: Path) -> None:
    selector = Selector(MACHINE, KernelOptions(tune=1e-6, database=str(tmp_path / "t.json")), TARGET)
    selector.convolution(WORK)
    selector.product(Dense(1, 1, 32, 64))
    assert selector.measured == 1, "one measurement is begun before the budget is spent"


def test_a_choice_in_the_file_is_obeyed(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    plans = [
        (f, p) for f in (Selector(MACHINE, KernelOptions(), TARGET).convolution(WORK),) if f for p in f[0].plans(WORK, MACHINE, "default")
    ]
    worst = max((p for _, p in plans), key=lambda p: p.seconds)
    database = Database(str(path))
    from dycl_tvm.backends.tir_cpu.database import key_of

    database.keep(key_of(WORK, MACHINE, "default"), worst, 1.0)
    database.save()
    found = Selector(MACHINE, KernelOptions(database=str(path)), TARGET).convolution(WORK)
    assert found is not None and found[1].params == worst.params


def test_files_of_two_builds_are_merged(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    a, b = Database(str(path)), Database(str(path))
    a.keep("one", Plan("direct", (("rows", 1),), 1.0), 1e-5)
    b.keep("two", Plan("direct", (("rows", 2),), 1.0), 2e-5)
    a.save()
    b.save()
    assert set(json.loads(path.read_text())["choices"]) == {"one", "two"}


def test_a_spoilt_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_text("{")
    with pytest.raises(dycl_tvm.UsageError, match=r"tuned\.json"):
        dycl_tvm.build(nn.ReLU(), (torch.randn(2),), tuning_file=path)


def test_tuning_for_another_machine_is_refused() -> None:
    with pytest.raises(dycl_tvm.DyclError):
        dycl_tvm.build(nn.ReLU(), (torch.randn(2),), target={"kind": "llvm", "mtriple": "aarch64-linux-gnu"}, tune=True)
