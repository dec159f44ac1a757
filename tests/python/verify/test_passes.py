# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The check of the graph after the passes against that before them."""

from __future__ import annotations

import torch

from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.nodes import HostOp
from dycl_tvm.passes import run_passes
from dycl_tvm.verify.passes import check_passes

X = torch.arange(6.0).reshape(2, 3) - 2


def test_a_number_that_passes_find_to_be_handed_on_is_made_a_tensor_again() -> None:
    """An index that was tested before is used as it is: it is neither wrapped round nor refused, so the column is chosen by the tensor."""

    def net(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        n = i.item()
        if n < 0 or n >= 3:
            raise ValueError("no such column")
        return x[:, n]

    args = (X, torch.tensor(0))
    before, after = stage(net, args), stage(net, args)
    run_passes(after)
    assert not any(isinstance(s, HostOp) and s.op == "to_tensor" for b in after.blocks for s in b.steps)
    for seed in range(3):
        assert check_passes(before, after, (args, {}), seed=seed).runs > 3


def test_the_forced_answer_of_a_decision_is_none_of_a_check() -> None:
    """Both are bools of which the truth is False, and passes may move questions."""
    rows = torch.randn(5, 2)

    def net(ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = rows[ids]
        if x.sum() > 100:
            y = y * 2
        return y + (12 // ids.clamp(min=1)).sum()

    args = (torch.tensor([1, 4]), X)
    before, after = stage(net, args), stage(net, args)
    run_passes(after)
    assert any(isinstance(s, HostOp) and s.op == "check" for b in after.blocks for s in b.steps)
    for seed in range(3):
        found = check_passes(before, after, (args, {}), seed=seed)
        assert found.edges == found.edges_total
