# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Runs of a program for the check: what others hear of them, and what memory holds in them that nobody wrote."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

import dycl_tvm
from dycl_tvm.errors import VerificationError
from dycl_tvm.frontend.python import stage
from dycl_tvm.verify.budget import Budget
from dycl_tvm.verify.control import check_control
from dycl_tvm.verify.snapshot import Snapshot

X = torch.tensor([[0.5, -1.0, 2.0], [0.25, -0.5, 1.0]])


def test_logs_nothing(tmp_path: Path) -> None:
    log, written = logging.getLogger("of a user"), tmp_path / "log"
    log.addHandler(logging.FileHandler(written))

    def model(x):
        log.warning("the sum is %s", x.sum())
        return x * 2 if x.sum() > 0 and log.isEnabledFor(logging.ERROR) else x

    found = check_control(model, stage(model, (X,)), (X,), {}, budget=Budget(1.0))
    assert found is not None and found.edges == found.edges_total and not written.read_text()
    model(X)
    assert written.read_text().startswith("the sum is")


def _rows_that_no_group_has(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.grouped_mm(x, torch.ones(3, 8, 4), offs=ends)


def _chosen_by_memory_that_nobody_wrote(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x + 1 if _rows_that_no_group_has(x, ends)[-1, 0] > 0 else x


@pytest.mark.parametrize("program", [_rows_that_no_group_has, _chosen_by_memory_that_nobody_wrote])
def test_what_memory_holds_that_nobody_wrote_is_no_difference(program) -> None:
    given = torch.ones(6, 8), torch.tensor([2, 3, 6], dtype=torch.int32)
    graph = stage(program, given)
    proved = check_control(program, graph, given, {})
    assert proved.inconclusive > 0 and "nobody has written" in proved.reason and proved.runs > 0
    assert torch.get_deterministic_debug_mode() == 0


def test_a_difference_beside_memory_that_nobody_wrote_is_found() -> None:
    given = torch.ones(6, 8), torch.tensor([2, 3, 6], dtype=torch.int32)
    graph = stage(lambda x, ends: _rows_that_no_group_has(x, ends) + 1, given)
    with pytest.raises(VerificationError, match="largest error"):
        check_control(_rows_that_no_group_has, graph, given, {})


def test_a_program_that_names_this_package_does_not_reach_all_of_it() -> None:
    def program(x):
        return dycl_tvm.bound(x[x > 0], 0, 3)

    assert len(Snapshot(program)._seen) < 50
