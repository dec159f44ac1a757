# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kernels that draw random numbers give PyTorch's bit by bit, and leave the generator in PyTorch's state."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dycl_tvm.compile.program import KernelLibrary
from dycl_tvm.compile.templates import source_of, symbol_of
from dycl_tvm.errors import VerificationError
from dycl_tvm.hcfg.draws import NAMESPACE
from dycl_tvm.hcfg.known_draws import is_known
from dycl_tvm.verify.memory import CompiledKernels

draws = getattr(torch.ops, NAMESPACE)
FLOATS = ("float64", "float32", "float16", "bfloat16")
WHOLE = ("int64", "int32", "int16", "int8", "uint8", "bool")
SEEDS = (0, 1, 2**31, 2**40 + 3)
SIZES = (1, 2, 3, 15, 16, 17, 31, 32, 33, 1000, 1249)


def _cases() -> list[tuple[str, Any, tuple[Any, ...], str]]:
    """Return (symbol, operator, parameters, dtype) of draws of numbers of one distribution."""
    found = []
    for (name, op, params), dtype in itertools.product(
        (
            ("Uniform", draws.uniform, (0.0, 1.0)),
            ("Uniform", draws.uniform, (-3.3, 2.2)),
            ("Uniform", draws.uniform, (0.1, 0.1001)),
            ("Exponential", draws.exponential, (1.0,)),
            ("Exponential", draws.exponential, (2.5,)),
            ("Geometric", draws.geometric, (0.3,)),
            ("Cauchy", draws.cauchy, (0.3, 2.0)),
            ("LogNormal", draws.log_normal, (0.2, 0.3)),
            ("Bernoulli", draws.bernoulli, (0.3,)),
        ),
        FLOATS,
    ):
        found.append((symbol_of("draw", name, [dtype], params), op, (*params, getattr(torch, dtype)), dtype))
    for (mean, std), dtype in itertools.product(((0.0, 1.0), (-0.3, 2.7)), FLOATS):
        found.append((symbol_of("draw", "Normal", [dtype], [mean, std]), draws.normal, (mean, std, getattr(torch, dtype), False), dtype))
        found.append(
            (symbol_of("draw", "NormalOneByOne", [dtype], [mean, std]), draws.normal, (mean, std, getattr(torch, dtype), True), dtype)
        )
    for dtype in (*WHOLE, *FLOATS):
        high = 2 if dtype == "bool" else 100
        found.append((symbol_of("draw", "Integers", [dtype], [0, high]), draws.integers, (0, high, getattr(torch, dtype)), dtype))
        found.append((symbol_of("draw", "Bernoulli", [dtype], [0.7]), draws.bernoulli, (0.7, getattr(torch, dtype)), dtype))
    for low, high in ((-(1 << 63), 7), (-5, 1 << 40), (3, 3 + (1 << 28)), (3, 2 + (1 << 28))):
        found.append((symbol_of("draw", "Integers", ["int64"], [low, high - low]), draws.integers, (low, high, torch.int64), "int64"))
    return list({symbol: case for symbol, *_ in found for case in [next(c for c in found if c[0] == symbol)]}.values())


CASES = _cases()
PERMUTATIONS = {d: symbol_of("draw", "Permutation", [d]) for d in ("int64", "int32", "float32")}
NORMALS = {(d, one): symbol_of("draw", "NormalEach", [d], [one]) for d in FLOATS for one in (False, True)}
RATES = {("poisson", d): symbol_of("draw", "Poisson", [d]) for d in FLOATS}
RATES |= {("gamma", d): symbol_of("draw", "Gamma", [d]) for d in FLOATS[:2]}
EACH = {(d, p): symbol_of("draw", "BernoulliEach", [d, p]) for d in ("float32", "bool", "int64", "float16") for p in FLOATS}
MULTINOMIAL = {
    (d, r, c): symbol_of("draw", "WithReplacement", [d]) if r else symbol_of("draw", "WithoutReplacement", [d], [c])
    for d in ("float32", "float64")
    for r, c in ((True, False), (False, False), (False, True))
}


SOME = {(name, d): symbol_of("draw", name, [d], [0.0, 1.0]) for name in ("SomeUniform", "SomeNormal") for d in FLOATS}


@pytest.fixture(scope="module")
def kernels() -> CompiledKernels:
    symbols = [s for s, *_ in CASES] + [
        *SOME.values(),
        *PERMUTATIONS.values(),
        *EACH.values(),
        *MULTINOMIAL.values(),
        *NORMALS.values(),
        *RATES.values(),
        symbol_of("draw", "Seeded"),
    ]
    return CompiledKernels(KernelLibrary((), (("draws.cc", source_of(symbols)),), ()))


def _compare(
    kernels: CompiledKernels, symbol: str, op: Any, state: torch.Tensor, operands: list[torch.Tensor], rest: tuple[Any, ...]
) -> Any:
    """Run a kernel and PyTorch on one state; return the next."""
    want, after = op(state, *operands, *rest)
    if not is_known(op.__name__, want.dtype):
        pytest.skip(f"this PyTorch draws other numbers of {want.dtype}: staging refuses them")
    got, left = torch.zeros_like(want), torch.zeros_like(state)
    kernels.call(symbol, 0, [state, *operands, got, left])
    raw = [t.reshape(-1).view(torch.uint8) for t in (got, want)]
    assert torch.equal(*raw), f"{symbol}: {int((got != want).sum())} of {want.numel()} numbers differ"
    assert torch.equal(left, after), f"{symbol} leaves another state"
    return left


def _states() -> list[torch.Tensor]:
    return [torch.Generator().manual_seed(seed).get_state() for seed in SEEDS]


@pytest.mark.parametrize("case", CASES, ids=[c[0] for c in CASES])
def test_numbers_of_one_distribution(kernels: CompiledKernels, case: Any) -> None:
    symbol, op, params, _ = case
    for state in _states():
        for n in SIZES:
            if not (symbol.startswith("draw__Normal__") and n < 16):
                state = _compare(kernels, symbol, op, state, [], ((n,), *params))


def test_the_second_normal_number_is_kept_over_other_draws(kernels: CompiledKernels) -> None:
    by_symbol = {c[0]: c for c in CASES}
    names = [symbol_of("draw", "NormalOneByOne", ["float32"], [0.0, 1.0]), symbol_of("draw", "Uniform", ["float32"], [0.0, 1.0])]
    names.append(symbol_of("draw", "LogNormal", ["float64"], [0.2, 0.3]))
    for state in _states():
        for k in range(12):
            symbol, op, params, _ = by_symbol[names[k * k % 3]]
            state = _compare(kernels, symbol, op, state, [], ((1 + k % 4,), *params))


@pytest.mark.parametrize("name, dtype", SOME)
def test_as_many_numbers_as_a_tensor_says(kernels: CompiledKernels, name: str, dtype: str) -> None:
    """They are those of a draw of so many, and zeros are behind them."""
    kind, size = getattr(torch, dtype), 40
    for state, n in itertools.product(_states(), (*range(size + 1), -3, 2**60)):
        for scattered in (False, True):
            count, some = torch.tensor(n), max(0, min(n, size))
            operands = [count] if name == "SomeUniform" else [count, torch.tensor(scattered)]
            op = draws.uniform_some if name == "SomeUniform" else draws.normal_some
            _compare(kernels, SOME[name, dtype], op, state, operands, (size, 0.0, 1.0, kind))
            generator = torch.Generator()
            generator.set_state(state)
            want = torch.empty(some, 2, dtype=kind)[:, 0] if scattered else torch.empty(some, dtype=kind)
            want = want.uniform_(generator=generator) if name == "SomeUniform" else want.normal_(generator=generator)
            made, after = op(state, *operands, size, 0.0, 1.0, kind)
            assert torch.equal(made[:some], want) and not made[some:].any() and torch.equal(after, generator.get_state())


@pytest.mark.parametrize("dtype", PERMUTATIONS)
def test_permutations(kernels: CompiledKernels, dtype: str) -> None:
    for state in _states():
        for n in (1, 2, 17, 1000):
            want, after = draws.permutation(state, n, getattr(torch, dtype))
            got, left = torch.zeros_like(want), torch.zeros_like(state)
            kernels.call(PERMUTATIONS[dtype], 0, [state, got, left])
            assert torch.equal(got, want) and torch.equal(left, after)
            state = left


@pytest.mark.parametrize("dtype, of", EACH)
def test_a_probability_for_each_element(kernels: CompiledKernels, dtype: str, of: str) -> None:
    for state in _states():
        for n in (1, 16, 1000):
            p = torch.rand(n).to(getattr(torch, of))
            p[0] = n % 2
            state = _compare(kernels, EACH[dtype, of], draws.bernoulli_each, state, [p], (getattr(torch, dtype),))
    with pytest.raises(VerificationError, match="refuses"):
        kernels.call(
            EACH[dtype, of],
            0,
            [state, torch.full((2,), 1.5, dtype=getattr(torch, of)), torch.zeros(2, dtype=getattr(torch, dtype)), state.clone()],
        )


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_mean_and_a_spread_for_each_element(kernels: CompiledKernels, dtype: str) -> None:
    kind = getattr(torch, dtype)
    for state, n, one_by_one in itertools.product(_states(), SIZES, (False, True)):
        mean, std = torch.randn(n).to(kind), torch.rand(n).to(kind)
        if n >= 16 or one_by_one:
            _compare(kernels, NORMALS[dtype, one_by_one], draws.normal_each, state, [mean, std], (one_by_one,))
    bad = [state, torch.zeros(2, dtype=kind), -torch.ones(2, dtype=kind), torch.zeros(2, dtype=kind), state.clone()]
    with pytest.raises(VerificationError, match="refuses"):
        kernels.call(NORMALS[dtype, True], 0, bad)


@pytest.mark.parametrize("name, dtype", RATES)
def test_a_rate_or_shape_for_each_element(kernels: CompiledKernels, name: str, dtype: str) -> None:
    for state in _states():
        for scale in (0.3, 1.0, 12.0, 300.0):
            params = (torch.rand(3000) * scale).to(getattr(torch, dtype))
            params[0] = 0
            state = _compare(kernels, RATES[name, dtype], getattr(draws, name), state, [params], ())


@pytest.mark.parametrize("dtype, replacement, by_columns", MULTINOMIAL)
def test_multinomial(kernels: CompiledKernels, dtype: str, replacement: bool, by_columns: bool) -> None:
    symbol = MULTINOMIAL[dtype, replacement, by_columns]
    for state in _states():
        for rows, n, count in ((1, 5, 5), (3, 7, 2), (4, 300, 3), (2, 50, 1), (1, 1000, 999)):
            if replacement and count == 1:
                continue
            weights = torch.rand(rows, n, dtype=getattr(torch, dtype))
            weights[:, 1] = 0 if count < n else weights[:, 1]
            state = _compare(kernels, symbol, draws.multinomial, state, [weights], (count, replacement, by_columns))
    for bad in (
        torch.tensor([[0.0, 0.0]]),
        torch.tensor([[-1.0, 2.0]]),
        torch.tensor([[float("nan"), 1.0]]),
        torch.tensor([[float("inf"), 1.0]]),
    ):
        with pytest.raises(VerificationError, match="refuses"):
            kernels.call(symbol, 0, [state, bad.to(getattr(torch, dtype)), torch.zeros(1, 2, dtype=torch.int64), state.clone()])


def test_seeds(kernels: CompiledKernels) -> None:
    for seed in (0, 1, -1, 2**40 + 1, -(2**63)):
        made = torch.zeros_like(_states()[0])
        kernels.call(symbol_of("draw", "Seeded"), 0, [torch.tensor(seed), made])
        assert torch.equal(made, draws.seeded(torch.tensor(seed)))


def _spoiled(change: Callable[[torch.Tensor], None]) -> torch.Tensor:
    state = torch.Generator().manual_seed(0).get_state()
    change(state)
    return state


@pytest.mark.parametrize(
    "state",
    [
        torch.zeros(5056, dtype=torch.uint8),
        torch.full((5056,), 255, dtype=torch.uint8),
        _spoiled(lambda s: s[8:12].fill_(0)),
        _spoiled(lambda s: s[16:24].fill_(255)),
    ],
)
def test_what_is_no_state_is_refused(kernels: CompiledKernels, state: torch.Tensor) -> None:
    with pytest.raises(VerificationError, match="refuses"):
        kernels.call(symbol_of("draw", "Uniform", ["float32"], [0.0, 1.0]), 0, [state, torch.zeros(3), state.clone()])
