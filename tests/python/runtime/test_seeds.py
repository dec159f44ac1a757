# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The generator of random numbers belongs to the session, and takes a seed from Python, C and TVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import tvm

import dycl_tvm
from dycl_tvm.errors import UsageError


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("seeds") / "net.so"
    art = dycl_tvm.build(lambda x: torch.rand(3) + torch.randn(3) + x, (torch.zeros(3),))
    art.export_library(path, embed_params=True)
    return path


def _eager(seed: int, calls: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.rand(3) + torch.randn(3) for _ in range(calls)]


def _same(module: Any, seed: int, calls: int = 3) -> None:
    x = torch.zeros(3)
    for want in _eager(seed, calls):
        torch.testing.assert_close(module(x), want, rtol=0, atol=1e-7)


def test_each_session_has_its_own_generator(library: Path) -> None:
    module = dycl_tvm.load(library)
    other = module.new_session()
    module.manual_seed(3)
    other.manual_seed(4)
    x = torch.zeros(3)
    pairs = [(module(x), other(x)) for _ in range(3)]
    for (a, b), want, wanted in zip(pairs, _eager(3, 3), _eager(4, 3)):
        torch.testing.assert_close(a, want, rtol=0, atol=1e-7)
        torch.testing.assert_close(b, wanted, rtol=0, atol=1e-7)


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1])
def test_seeds_of_64_bits(library: Path, seed: int) -> None:
    module = dycl_tvm.load(library)
    module(torch.zeros(3))
    module.manual_seed(seed)
    _same(module, seed)


def test_the_first_seed_is_that_of_a_new_generator(library: Path) -> None:
    module = dycl_tvm.load(library)
    seed = torch.Generator().initial_seed()
    _same(module, seed)
    module.reset_state()
    _same(module, seed)


def test_what_is_no_seed_is_refused(library: Path) -> None:
    module = dycl_tvm.load(library)
    for seed in (2**64, -(2**63) - 1, 1.5, "3"):
        with pytest.raises(UsageError, match="a seed"):
            module.manual_seed(seed)  # type: ignore[arg-type]


def test_a_seed_by_tvms_packed_functions(library: Path) -> None:
    module = tvm.runtime.load_module(str(library))
    session = module["create"]("")
    module["manual_seed"](session, 5)
    module["run"](session, tvm.runtime.tensor(torch.zeros(3).numpy()))
    torch.testing.assert_close(torch.from_numpy(module["output"](session, 0).numpy()), _eager(5, 1)[0], rtol=0, atol=1e-7)


def test_a_network_without_random_numbers_takes_any_seed(tmp_path: Path) -> None:
    dycl_tvm.build(lambda x: x + 1, (torch.zeros(3),)).export_library(tmp_path / "net.so", embed_params=True)
    module = dycl_tvm.load(tmp_path / "net.so")
    module.manual_seed(7)
    assert torch.equal(module(torch.zeros(3)), torch.ones(3))
