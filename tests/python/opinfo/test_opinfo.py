# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A share of PyTorch's own samples of its operators: right, or refused with a typed error; `make opinfo` takes all of them."""

from __future__ import annotations

import pytest
import torch
from chains import Chains, is_stable
from check import Outcome, compiled, convertible, staged
from samples import OPERATORS, UNDEFINED, samples


def _bad(outcomes: list[Outcome]) -> list[Outcome]:
    return [o for o in outcomes if o.kind in ("wrong", "crashed")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_an_operator_is_staged_as_eager_runs_it_or_refused(dtype: torch.dtype) -> None:
    outcomes = [staged(sample) for name in list(OPERATORS)[::5] for sample in samples(name, dtype, 1)]
    assert not _bad(outcomes)
    assert sum(o.kind == "right" for o in outcomes) > 40


def test_operators_compiled_singly() -> None:
    chosen = [sample for name in list(OPERATORS)[::18] for sample in samples(name, torch.float32, 1)]
    ready = [sample for sample in chosen if convertible(sample).kind == "right"]
    outcomes = [convertible(sample) for sample in chosen] + compiled(ready)
    assert not _bad(outcomes)
    assert len(ready) > 12


def test_random_chains_of_operators_with_views_between() -> None:
    names = sorted(set(OPERATORS) - UNDEFINED)[3::23]
    chains = Chains(names)
    chosen = [chain for seed in range(6) if is_stable(chain := chains.chain(seed))]
    ready = [chain for chain in chosen if convertible(chain).kind == "right"]
    outcomes = [staged(chain) for chain in chosen] + compiled(ready)
    assert not _bad(outcomes)
    assert len(ready) >= 2
