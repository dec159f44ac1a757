# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A share of PyTorch's own samples of its operators: right, or refused with a typed error; `make opinfo` takes all of them."""

from __future__ import annotations

import zlib

import pytest
import torch
from chains import Chains, is_stable
from check import Outcome, compiled, convertible, staged
from samples import OPERATORS, UNDEFINED, samples
from several_sizes import WAYS, Sized, built, outcomes_of


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


#: Operators that are written in PyTorch (compile/composed).
COMPOSED = [
    *("median", "nanmedian", "kthvalue", "mode", "cummax", "cummin", "logcumsumexp", "searchsorted", "bucketize", "cdist", "addbmm"),
    *("masked_scatter", "put", "index_reduce.mean", "index_reduce.amin", "nonzero_static", "diagonal_scatter", "fmax", "fmin", "angle"),
    *("nn.functional.pdist", "nn.functional.bilinear", "nn.functional.embedding_bag", "nn.functional.adaptive_avg_pool3d"),
    *(
        "_upsample_bilinear2d_aa",
        "round.decimals_3",
        "grid_sampler_3d",
        "nextafter",
        "hypot",
        "signbit",
        "polygamma.polygamma_n_1",
        "block_diag",
        "roll",
        "nn.functional.pad.circular",
    ),
]


#: Those of linear algebra, and how far into their samples matrices are that have elements.
FACTORED = [
    *(
        "cholesky_solve",
        "lu",
        "lu_solve",
        "ormqr",
        "linalg.eigvalsh",
        "linalg.qr",
        "linalg.slogdet",
        "linalg.inv",
        "linalg.solve_triangular",
    ),
    *("linalg.solve_triangular", "linalg.pinv.hermitian", "linalg.svd", "linalg.eigh", "svd_lowrank", "matrix_exp"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_composed_operators_compiled(dtype: torch.dtype) -> None:
    chosen = [sample for name in COMPOSED for sample in samples(name, dtype, 1)]
    factored = [next(s for s in samples(n, dtype) if s.tensors[0].numel() > 8) for n in FACTORED] if dtype == torch.float32 else []
    ready = [sample for sample in chosen if convertible(sample).kind == "right"]
    assert len(ready) >= len(chosen) - 1  # int64 and a fraction as alpha
    assert not _bad(compiled([*ready, *factored]))


def test_factorisations_of_complex_matrices_compiled() -> None:
    factored = [next(s for s in samples(n, torch.complex64) if s.tensors[0].numel() > 8) for n in FACTORED]
    others = [s for n in ("float_power", "randn", "uniform", "normal.in_place") for s in samples(n, torch.complex64, 1)]
    assert all(o.kind == "right" for o in compiled([*factored, *others]))


def test_random_chains_of_operators_with_views_between() -> None:
    names = sorted(set(OPERATORS) - UNDEFINED)[3::23]
    chains = Chains(names)
    chosen = [chain for seed in range(4) if is_stable(chain := chains.chain(seed))]
    ready = [chain for chain in chosen if convertible(chain).kind == "right"]
    outcomes = [staged(chain) for chain in chosen] + compiled(ready)
    assert not _bad(outcomes)
    assert len(ready) >= 2


#: Operators whose samples are taken with sizes that are decided at run time: one in so many, spread by a hash of their names.
ONE_IN = 24


def _spread(share: int) -> list[str]:
    return [name for name in OPERATORS if name not in UNDEFINED and zlib.crc32(name.encode()) % ONE_IN == share]


@pytest.mark.parametrize("way", WAYS)
def test_sizes_of_the_run_staged(way: str) -> None:
    outcomes = [o for name in _spread(5) for _, _, o in outcomes_of(samples(name, torch.float32, 1), [way], 2)]
    assert not _bad(outcomes)
    assert sum(o.kind == "right" for o in outcomes) > 10


def test_sizes_of_the_run_compiled() -> None:
    found = [of for name in _spread(7)[::2] for of in outcomes_of(samples(name, torch.float32, 1), ["caller", "slice"], 1)]
    ready: list[tuple[Sized, str]] = [(case, way) for case, way, outcome in found if outcome.kind == "right"]
    outcomes = built(ready[:12])
    assert not _bad(outcomes)
    assert sum(o.kind == "right" for o in outcomes) > 6
