# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tuning: candidates are measured once, and the choice is found again."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import tvm
from torch import nn

import dycl_tvm
from dycl_tvm.backends.tir_cpu import database, tuning
from dycl_tvm.backends.tir_cpu.database import FORMAT, SHIPPED, Choice, Database, key_of
from dycl_tvm.backends.tir_cpu.options import FAMILIES, KernelOptions
from dycl_tvm.backends.tir_cpu.select import Selector
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D, Dense, DTypes, Tensor

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
    assert (found.name, found.plan.params) == (chosen.name, chosen.plan.params)


def test_the_budget_ends_tuning(tmp_path: Path) -> None:
    selector = Selector(MACHINE, KernelOptions(tune=1e-6, database=str(tmp_path / "t.json")), TARGET)
    selector.convolution(WORK)
    selector.product(Dense(1, 1, 32, 64))
    assert selector.measured == 1, "one measurement is begun before the budget is spent"


def test_a_choice_in_the_file_is_obeyed(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    asked = Selector(MACHINE, KernelOptions(), TARGET)
    asked.convolution(WORK)
    ((_, candidates),) = asked.workloads()
    worst = max(candidates, key=lambda c: c.plan.seconds)
    database = Database(str(path))
    database.keep(key_of(WORK, MACHINE, "default"), Choice(worst.name, worst.plan.params, 1.0))
    database.save()
    found = Selector(MACHINE, KernelOptions(database=str(path)), TARGET).convolution(WORK)
    assert found is not None and (found.name, found.plan.params) == (worst.name, worst.plan.params)


def test_a_plan_that_its_family_would_not_make_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    fresh = Selector(MACHINE, KernelOptions(database=str(path)), TARGET).convolution(WORK)
    assert fresh is not None
    old = Choice(fresh.name, (*fresh.plan.params, ("no_such_tile", 3)), 1e-9)
    database = Database(path)
    database.keep(key_of(WORK, MACHINE, "default"), old)
    database.save()
    found = Selector(MACHINE, KernelOptions(database=str(path)), TARGET)
    assert found.convolution(WORK) == fresh and found.found == 0


def test_a_choice_for_another_description_of_the_cpu_is_not_taken() -> None:
    heads = {key_of(WORK, m, "default") for m in (MACHINE, replace(MACHINE, l2=1 << 21), replace(MACHINE, cores=8))}
    assert len(heads) == 3


def test_a_choice_for_other_types_is_not_taken() -> None:
    works = [WORK, WORK.with_weights("bfloat16"), replace(WORK, x=replace(WORK.x, dtype="uint8"), weights="int8", accumulator="int32")]
    assert len({key_of(work, MACHINE, "default") for work in works}) == 3
    product = Dense(1, 2, 3, 4)
    assert key_of(product, MACHINE, "default") != key_of(replace(product, dtypes=DTypes(y="bfloat16")), MACHINE, "default")


def test_the_shipped_database_is_of_today() -> None:
    contents = json.loads(SHIPPED.read_text())
    assert contents["format"] == FORMAT, "a database of another format is ignored: run make tune-database"
    cpus = [machine_of(tvm.target.Target({"kind": "llvm", "mcpu": c})) for c in ("x86-64-v4", "x86-64-v3")]
    heads = tuple(key_of(WORK, m, "default", cold).split(" conv2d ")[0] for m in cpus for cold in (False, True))
    for key, entry in contents["choices"].items():
        assert key.startswith(heads), "of a CPU that is described in another way today"
        assert entry["family"] in FAMILIES and entry["params"]


def test_a_shipped_choice_is_used_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = nn.Conv2d(16, 16, 3, padding=1).eval().requires_grad_(False), torch.randn(1, 16, 8, 8)
    nowhere = tmp_path / "none.json"
    monkeypatch.setattr(database, "SHIPPED", nowhere)
    before = dycl_tvm.build(net, x, target=TARGET, tuning_file=nowhere)
    assert (before.report().measured, before.report().estimated) == (0, 1)
    estimated = Selector(MACHINE, KernelOptions(database=str(nowhere)), TARGET)
    estimated.convolution(WORK)
    ((_, candidates),) = estimated.workloads()
    other = next(c for c in candidates if c.family is not candidates[0].family)
    shipped = Database(tmp_path / "shipped.json")
    shipped.keep(key_of(WORK, MACHINE, "default"), Choice(other.name, other.plan.params, 1e-5))
    shipped.save()
    monkeypatch.setattr(database, "SHIPPED", shipped.path)
    after = dycl_tvm.build(net, x, target=TARGET, tuning_file=nowhere)
    assert (after.report().measured, after.report().estimated) == (1, 0) and "1 measured, 0 estimated" in str(after.report())
    assert after.report().families != before.report().families


def test_measurements_use_as_many_threads_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "5")
    threads = tvm.get_global_func("runtime.NumThreads")
    wanted = sorted({1, min(2, os.cpu_count() or 1)})
    assert [tuning._with_threads(n, lambda: [threads()]) for n in wanted] == [[n] for n in wanted]
    assert os.environ["TVM_NUM_THREADS"] == "5"


def test_files_of_two_builds_are_merged(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    a, b = Database(str(path)), Database(str(path))
    a.keep("one", Choice("direct", (("rows", 1),), 1e-5))
    b.keep("two", Choice("direct", (("rows", 2),), 2e-5))
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


@pytest.mark.parametrize("tune", [-1, math.nan, math.inf, "long"])
def test_a_budget_is_a_number_of_seconds(tune: Any) -> None:
    with pytest.raises(dycl_tvm.UsageError, match="seconds"):
        dycl_tvm.build(nn.ReLU(), (torch.randn(2),), tune=tune)


def test_tuning_among_some_families_is_refused() -> None:
    with pytest.raises(dycl_tvm.UsageError, match="disable_families"):
        dycl_tvm.build(nn.ReLU(), (torch.randn(2),), tune=1, disable_families=["winograd"])


def test_a_build_shows_its_tuning_and_keeps_it(tmp_path: Path) -> None:
    """What a user types: progress on the way, a file afterwards, and a second build that measures nothing."""
    net, x, path, lines = nn.Conv2d(5, 9, 3).eval(), (torch.randn(1, 5, 7, 7),), tmp_path / "new" / "mine.json", list[str]()
    report = dycl_tvm.build(net, x, target="native", tune=5, tuning_file=path, progress=lines.append).report()
    assert (report.measured, report.estimated) == (1, 0) and "1 measured" in str(report)
    assert any("tune 0 of 5" in line for line in lines)
    assert len(json.loads(path.read_text())["choices"]) == 1
    lines.clear()
    assert dycl_tvm.build(net, x, target="native", tune=5, tuning_file=path, progress=lines.append).report().measured == 1
    assert not any("tune" in line for line in lines)
