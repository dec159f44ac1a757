# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Element-wise functions over the whole exponent range and special values, against ATen in float64: vectors and scalar tails."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dycl_tvm

#: The largest error in units of the last place of a float32; below the least normal number in units of that.
BOUNDS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    **{n: (getattr(torch, n), 1.0) for n in ("exp", "log", "sin", "cos", "asin", "acos", "atan", "sqrt", "log1p", "log2", "exp2")},
    "erfinv": (torch.erfinv, 1.0), "digamma": (torch.digamma, 1.0), "lgamma": (torch.lgamma, 4.0), "i0e": (torch.special.i0e, 1.0),
    "copysign": (lambda x: torch.copysign(x + 1, x), 0.5), "angle": (torch.angle, 0.5),
    "reciprocal": (torch.reciprocal, 0.5),
    **{n: (getattr(torch.special, n), 1.0) for n in ("erfcx", "log_ndtr", "ndtri", "modified_bessel_k0")},
    "scaled k0": (torch.special.scaled_modified_bessel_k0, 1.0), "zeta": (lambda x: torch.special.zeta(3, x.abs()), 1.0),
    # eager has NaN of the least number
    "k1": (lambda x: torch.special.modified_bessel_k1(torch.where(x.abs() < 1e-40, 1.0, x)), 1.0),
    "scaled k1": (lambda x: torch.special.scaled_modified_bessel_k1(torch.where(x.abs() < 1e-40, 1.0, x)), 1.0),
    "chebyshev": (lambda x: torch.special.chebyshev_polynomial_t(torch.where(x.abs() < 1e7, x, 0.5), 5), 1.0),
    "frexp": (lambda x: torch.frexp(x)[0] + torch.frexp(x)[1].clamp(-20, 20), 1.0),
    **{n: (getattr(torch, n), 1.5) for n in ("expm1", "atanh", "acosh", "asinh", "sinh", "cosh", "rsqrt")},
    **{n: (getattr(torch, n), 2.6) for n in ("tan", "tanh", "erf", "erfc", "log10")},
    **{n: (getattr(torch, n), 0.0) for n in ("abs", "neg", "floor", "ceil", "trunc", "round", "sign", "frac", "relu")},
    "elu": (F.elu, 1.5), "selu": (F.selu, 2.0), "celu": (F.celu, 1.5), "softplus": (F.softplus, 2.0),
    "leaky_relu": (F.leaky_relu, 1.0),
    "logsigmoid": (F.logsigmoid, 2.0), "hardsigmoid": (F.hardsigmoid, 1.0), "hardswish": (F.hardswish, 2.0),
    "softshrink": (F.softshrink, 0.5),
    "x ** 0.5": (lambda x: x**0.5, 1.0), "x ** -0.5": (lambda x: x**-0.5, 1.5), "x ** 3": (lambda x: x**3, 1.5),
    "2 ** x": (lambda x: 2.0**x, 1.0),
    "x ** 1.5": (lambda x: x**1.5, 1.0), "square": (torch.square, 0.5),
    "clamp": (lambda x: x.clamp(-0.5, 2), 0.0),
    "half and back": (lambda x: x.half().to(x.dtype), 0.0), "bfloat16 and back": (lambda x: x.bfloat16().to(x.dtype), 0.0),
}  # fmt: skip


def _values() -> Tensor:
    draw = torch.Generator().manual_seed(0)
    powers = [
        math.ldexp(m, e) for e in range(-149, 128) for m in (1, 1 + 2**-23, 1.5, 2 - 2**-23, *(1 + torch.rand(2, generator=draw)).tolist())
    ]
    near = [*(k / 16 for k in range(330)), *(k * math.pi / 2 for k in range(20)), 88.72283, 88.7229, 87.33, 103.97, 103.98]
    finite = torch.tensor(powers + near, dtype=torch.float64).float()
    x = torch.cat([finite, -finite, torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan])])
    return torch.cat([x, x[: (3 - len(x)) % 8]])  # a length that no vector divides


X = _values()


def _all(x: Tensor) -> list[Tensor]:
    return [fn(x) for fn, _ in BOUNDS.values()]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("functions")
    artifact = dycl_tvm.build(_all, (X,))
    return dycl_tvm.load(artifact.export_library(folder / "m.so"), artifact.save_params(folder / "m.params"))(X)


@pytest.mark.parametrize("name", BOUNDS)
def test_function_is_exact_to_a_few_units(name: str, results: Any) -> None:
    fn, bound = BOUNDS[name]
    got, eager, exact = results[list(BOUNDS).index(name)], fn(X), fn(X.double())
    largest = torch.finfo(torch.float32).max
    assert torch.equal(got.isnan(), eager.isnan())
    # ATen's own vectors overflow too early in places, where its scalar tail does not
    infinite = exact.abs() > largest * (1 + 2**-24)
    assert bool((got.isinf() == (infinite | (eager.isinf() & got.isinf()))).all())
    finite = exact.isfinite() & got.isfinite() & (exact.abs() <= largest)
    unit = torch.ldexp(torch.ones_like(exact), torch.floor(torch.log2(exact.abs().clamp(2**-126, largest))).int() - 23)
    errors = torch.where(finite, (got.double() - exact).abs() / unit, torch.zeros_like(exact))
    worst = int(errors.argmax())
    assert errors[worst] <= max(bound, 0.5 if "half" not in name and bound else bound), f"{name}({X[worst]}) = {got[worst]}"


def _spread(x: Tensor) -> list[Tensor]:
    return [x.std(1), x.var(1), *torch.std_mean(x, 1), x.var(), torch.addmm(x, x * math.nan, x.t() @ x, alpha=0, beta=2)]


@pytest.mark.parametrize("scale", [1e30, 1.0, 1e-30])
@pytest.mark.parametrize("mean", [0.0, 1e6])
def test_spread_of_large_and_small_numbers(scale: float, mean: float, spread: Any) -> None:
    x = (torch.randn(7, 37, generator=torch.Generator().manual_seed(1)) + mean) * scale
    for got, want in zip(spread(x), _spread(x)):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=0, equal_nan=True)


@pytest.mark.parametrize("place", [0, 20, 36])
def test_spread_of_an_infinity(place: int, spread: Any) -> None:
    """Eager's mean beside a variance is infinite only if the infinity comes last."""
    x = torch.randn(7, 37, generator=torch.Generator().manual_seed(1))
    x[::2, place] = -math.inf
    for got, want in zip(spread(x), _spread(x)):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=0, equal_nan=True)


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("spread")
    artifact = dycl_tvm.build(_spread, (torch.randn(7, 37),))
    return dycl_tvm.load(artifact.export_library(folder / "m.so"), artifact.save_params(folder / "m.params"))
