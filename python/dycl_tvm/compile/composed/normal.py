# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Functions of the normal distribution, computed in float64. Coefficients are those of the Cephes Math Library (see NOTICE)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dycl_tvm.compile.composed.special import in_float64
from dycl_tvm.compile.decompose import decomposition

_P0 = (
    -59.96335010141079, 98.00107541859997, -56.67628574690703, 13.931260938727968, -1.2391658386738125,
)  # fmt: skip
_Q0 = (
    1.0, 1.9544885833814176, 4.676279128988815, 86.36024213908905, -225.46268785411937, 200.26021238006066, -82.03722561683334,
    15.90562251262117, -1.1833162112133,
)  # fmt: skip
_P1 = (
    4.0554489230596245, 31.525109459989388, 57.16281922464213, 44.08050738932008, 14.684956192885803, 2.1866330685079025,
    -0.1402560791713545, -0.03504246268278482, -0.0008574567851546854,
)  # fmt: skip
_Q1 = (
    1.0, 15.779988325646675, 45.39076351288792, 41.3172038254672, 15.04253856929075, 2.504649462083094, -0.14218292285478779,
    -0.03808064076915783, -0.0009332594808954574,
)  # fmt: skip
_P2 = (
    3.2377489177694603, 6.915228890689842, 3.9388102529247444, 1.3330346081580755, 0.20148538954917908, 0.012371663481782003,
    0.00030158155350823543, 2.6580697468673755e-06, 6.239745391849833e-09,
)  # fmt: skip
_Q2 = (
    1.0, 6.02427039364742, 3.6798356385616087, 1.3770209948908132, 0.21623699359449663, 0.013420400608854318, 0.00032801446468212774,
    2.8924786474538068e-06, 6.790194080099813e-09,
)  # fmt: skip
#: Where the asymptotic series of ``erfcx`` begins, and how many terms it has.
_FAR, _TERMS = 20.0, 9


def _erfcx(x: Tensor) -> Tensor:
    """Return exp(x^2) erfc(x): by these two, and where they leave the range of float64 by an asymptotic series."""
    near = x.clamp(max=_FAR)
    square = 0.5 / (x.clamp(min=_FAR) * x.clamp(min=_FAR))
    series = torch.ones_like(x)
    for k in range(_TERMS, 0, -1):
        series = 1 - (2 * k - 1) * square * series
    far = series / (x.clamp(min=_FAR) * math.sqrt(math.pi))
    return torch.where(x < _FAR, torch.exp(near * near) * torch.erfc(near), torch.where(x.isnan(), x, far))


@decomposition("special_erfcx.default")
@in_float64
def erfcx(x: Tensor) -> Tensor:
    return _erfcx(x)


@decomposition("special_log_ndtr.default")
@in_float64
def log_ndtr(x: Tensor) -> Tensor:
    t = x * math.sqrt(0.5)
    return torch.where(x < 1, torch.log(_erfcx(-t) / 2) - t * t, torch.log1p(-torch.erfc(t) / 2))


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    y = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y = y * x + c
    return y


@decomposition("special_ndtri.default")
@in_float64
def ndtri(p: Tensor) -> Tensor:
    upper = p > 1 - math.exp(-2)
    y = torch.where(upper, 1 - p, p)
    middle = y - 0.5
    square = middle * middle
    near = (middle + middle * (square * _polynomial(square, _P0) / _polynomial(square, _Q0))) * math.sqrt(2 * math.pi)
    x = torch.sqrt(-2 * torch.log(y))
    z = 1 / x
    tail = torch.where(x < 8, z * _polynomial(z, _P1) / _polynomial(z, _Q1), z * _polynomial(z, _P2) / _polynomial(z, _Q2))
    far = x - torch.log(x) / x - tail
    made = torch.where(y > math.exp(-2), near, torch.where(upper, far, -far))
    made = torch.where(p == 0, -math.inf, torch.where(p == 1, math.inf, made))
    return torch.where((p < 0) | (p > 1), math.nan, made)
