# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Runs of a program for the check: what others hear of them."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from dycl_tvm.frontend.python import stage
from dycl_tvm.verify.budget import Budget
from dycl_tvm.verify.control import check_control

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
