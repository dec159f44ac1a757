# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Special functions, computed in float64 by the methods of ATen. Those of Bessel and the polygammas have the coefficients of the Cephes
Math Library (S. L. Moshier, see NOTICE).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dycl_tvm.compile.decompose import decomposition

_I0_NEAR = (
    -4.41534164647933937950E-18, 3.33079451882223809783E-17, -2.43127984654795469359E-16, 1.71539128555513303061E-15,
    -1.16853328779934516808E-14, 7.67618549860493561688E-14, -4.85644678311192946090E-13, 2.95505266312963983461E-12,
    -1.72682629144155570723E-11, 9.67580903537323691224E-11, -5.18979560163526290666E-10, 2.65982372468238665035E-9,
    -1.30002500998624804212E-8, 6.04699502254191894932E-8, -2.67079385394061173391E-7, 1.11738753912010371815E-6,
    -4.41673835845875056359E-6, 1.64484480707288970893E-5, -5.75419501008210370398E-5, 1.88502885095841655729E-4,
    -5.76375574538582365885E-4, 1.63947561694133579842E-3, -4.32430999505057594430E-3, 1.05464603945949983183E-2,
    -2.37374148058994688156E-2, 4.93052842396707084878E-2, -9.49010970480476444210E-2, 1.71620901522208775349E-1,
    -3.04682672343198398683E-1, 6.76795274409476084995E-1,
)  # fmt: skip
_I0_FAR = (
    -7.23318048787475395456E-18, -4.83050448594418207126E-18, 4.46562142029675999901E-17, 3.46122286769746109310E-17,
    -2.82762398051658348494E-16, -3.42548561967721913462E-16, 1.77256013305652638360E-15, 3.81168066935262242075E-15,
    -9.55484669882830764870E-15, -4.15056934728722208663E-14, 1.54008621752140982691E-14, 3.85277838274214270114E-13,
    7.18012445138366623367E-13, -1.79417853150680611778E-12, -1.32158118404477131188E-11, -3.14991652796324136454E-11,
    1.18891471078464383424E-11, 4.94060238822496958910E-10, 3.39623202570838634515E-9, 2.26666899049817806459E-8,
    2.04891858946906374183E-7, 2.89137052083475648297E-6, 6.88975834691682398426E-5, 3.36911647825569408990E-3,
    8.04490411014108831608E-1,
)  # fmt: skip
_I1_NEAR = (
    2.77791411276104639959E-18, -2.11142121435816608115E-17, 1.55363195773620046921E-16, -1.10559694773538630805E-15,
    7.60068429473540693410E-15, -5.04218550472791168711E-14, 3.22379336594557470981E-13, -1.98397439776494371520E-12,
    1.17361862988909016308E-11, -6.66348972350202774223E-11, 3.62559028155211703701E-10, -1.88724975172282928790E-9,
    9.38153738649577178388E-9, -4.44505912879632808065E-8, 2.00329475355213526229E-7, -8.56872026469545474066E-7,
    3.47025130813767847674E-6, -1.32731636560394358279E-5, 4.78156510755005422638E-5, -1.61760815825896745588E-4,
    5.12285956168575772895E-4, -1.51357245063125314899E-3, 4.15642294431288815669E-3, -1.05640848946261981558E-2,
    2.47264490306265168283E-2, -5.29459812080949914269E-2, 1.02643658689847095384E-1, -1.76416518357834055153E-1,
    2.52587186443633654823E-1,
)  # fmt: skip
_I1_FAR = (
    7.51729631084210481353E-18, 4.41434832307170791151E-18, -4.65030536848935832153E-17, -3.20952592199342395980E-17,
    2.96262899764595013876E-16, 3.30820231092092828324E-16, -1.88035477551078244854E-15, -3.81440307243700780478E-15,
    1.04202769841288027642E-14, 4.27244001671195135429E-14, -2.10154184277266431302E-14, -4.08355111109219731823E-13,
    -7.19855177624590851209E-13, 2.03562854414708950722E-12, 1.41258074366137813316E-11, 3.25260358301548823856E-11,
    -1.89749581235054123450E-11, -5.58974346219658380687E-10, -3.83538038596423702205E-9, -2.63146884688951950684E-8,
    -2.51223623787020892529E-7, -3.88256480887769039346E-6, -1.10588938762623716291E-4, -9.76109749136146840777E-3,
    7.78576235018280120474E-1,
)  # fmt: skip
_K0_NEAR = (
    1.374465435613523e-16, 4.25981614279661e-14, 1.0349695257633842e-11, 1.904516377220209e-09, 2.5347910790261494e-07,
    2.286212103119452e-05, 0.001264615411446926, 0.0359799365153615, 0.3442898999246285, -0.5353273932339028,
)  # fmt: skip
_K0_FAR = (
    5.300433772686263e-18, -1.6475804301524212e-17, 5.2103915050390274e-17, -1.678231096805412e-16, 5.512055978524319e-16,
    -1.848593377343779e-15, 6.3400764774050706e-15, -2.2275133269916698e-14, 8.032890775363575e-14, -2.9800969231727303e-13,
    1.140340588208475e-12, -4.514597883373944e-12, 1.8559491149547177e-11, -7.957489244477107e-11, 3.577397281400301e-10,
    -1.69753450938906e-09, 8.574034017414225e-09, -4.660489897687948e-08, 2.766813639445015e-07, -1.8317555227191195e-06,
    1.39498137188765e-05, -0.00012849549581627802, 0.0015698838857300533, -0.0314481013119645, 2.4403030820659555,
)  # fmt: skip
_K1_NEAR = (
    -7.023863479386288e-18, -2.427449850519366e-15, -6.666901694199329e-13, -1.4114883926335278e-10, -2.213387630734726e-08,
    -2.4334061415659684e-06, -0.0001730288957513052, -0.006975723859639864, -0.12261118082265715, -0.3531559607765449, 1.5253002273389478,
)  # fmt: skip
_K1_FAR = (
    -5.756744483665017e-18, 1.7940508731475592e-17, -5.689462558442859e-17, 1.838093544366639e-16, -6.057047248373319e-16,
    2.038703165624334e-15, -7.019837090418314e-15, 2.4771544244813043e-14, -8.976705182324994e-14, 3.3484196660784293e-13,
    -1.2891739609510289e-12, 5.13963967348173e-12, -2.1299678384275683e-11, 9.218315187605006e-11, -4.1903547593418965e-10,
    2.015049755197033e-09, -1.0345762465678097e-08, 5.7410841254500495e-08, -3.5019606030878126e-07, 2.406484947837217e-06,
    -1.936197974166083e-05, 0.00019521551847135162, -0.002857816859622779, 0.10392373657681724, 2.7206261904844427,
)  # fmt: skip
_ZETA = (
    12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10, -2.950130727918164224e12,
    1.1646782814350067249e14, -4.5979787224074726105e15, 1.8152105401943546773e17, -7.1661652561756670113e18,
)  # fmt: skip
_DIGAMMA = (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)


def in_float64(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compute in float64; whole numbers give the default type."""

    @functools.wraps(function)
    def wide(*args: Any, **kwargs: Any) -> Tensor:
        kinds = [a.dtype for a in args if isinstance(a, Tensor)]
        dtype = functools.reduce(torch.promote_types, kinds)
        made = function(*(a.to(torch.float64) if isinstance(a, Tensor) else a for a in args), **kwargs)
        return made.to(dtype if dtype.is_floating_point else torch.get_default_dtype())

    return wide


def as_tensors(*numbers: Tensor | float) -> tuple[Tensor, ...]:
    """Return tensors of float64 of what may be numbers of Python."""
    return tuple(a if isinstance(a, Tensor) else torch.full((), float(a), dtype=torch.float64) for a in numbers)


def _chebyshev(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    a, b, c = torch.full_like(x, coefficients[0]), torch.zeros_like(x), torch.zeros_like(x)
    for k in coefficients[1:]:
        a, b, c = x * a - b + k, a, b
    return 0.5 * (a - c)


def _scaled_i0(x: Tensor) -> Tensor:
    """Return exp(-x) I0(x), x not below 0."""
    return torch.where(x <= 8, _chebyshev(x / 2 - 2, _I0_NEAR), _chebyshev(32 / x - 2, _I0_FAR) / x.sqrt())


def _scaled_i1(x: Tensor) -> Tensor:
    """Return exp(-x) I1(x), x not below 0."""
    return torch.where(x <= 8, _chebyshev(x / 2 - 2, _I1_NEAR) * x, _chebyshev(32 / x - 2, _I1_FAR) / x.sqrt())


@decomposition("i0.default", "special_modified_bessel_i0.default")
@in_float64
def i0(x: Tensor) -> Tensor:
    return x.abs().exp() * _scaled_i0(x.abs())


@decomposition("special_i0e.default")
@in_float64
def i0e(x: Tensor) -> Tensor:
    return _scaled_i0(x.abs())


@decomposition("special_i1.default", "special_modified_bessel_i1.default")
@in_float64
def i1(x: Tensor) -> Tensor:
    size = x.abs().exp() * _scaled_i1(x.abs())
    return torch.where(x < 0, -size, size)


@decomposition("special_i1e.default")
@in_float64
def i1e(x: Tensor) -> Tensor:
    size = _scaled_i1(x.abs())
    return torch.where(x < 0, -size, size)


def _scaled_k0(x: Tensor) -> Tensor:
    """Return exp(x) K0(x)."""
    near = x.clamp(max=2.0)
    close = (_chebyshev(near * near - 2, _K0_NEAR) - torch.log(near / 2) * _scaled_i0(near) * near.exp()) * near.exp()
    return _defined_over_zero(x, torch.where(x <= 2, close, _chebyshev(8 / x - 2, _K0_FAR) / x.sqrt()))


def _scaled_k1(x: Tensor) -> Tensor:
    """Return exp(x) K1(x)."""
    near = x.clamp(max=2.0)
    close = (torch.log(near / 2) * _scaled_i1(near) * near.exp() + _chebyshev(near * near - 2, _K1_NEAR) / near) * near.exp()
    return _defined_over_zero(x, torch.where(x <= 2, close, _chebyshev(8 / x - 2, _K1_FAR) / x.sqrt()))


def _defined_over_zero(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x == 0, math.inf, torch.where(x < 0, math.nan, y))


for _name, _scaled in (("k0", _scaled_k0), ("k1", _scaled_k1)):
    decomposition(f"special_scaled_modified_bessel_{_name}.default")(in_float64(_scaled))
    decomposition(f"special_modified_bessel_{_name}.default")(in_float64(lambda x, f=_scaled: f(x) * torch.exp(-x)))  # type: ignore[misc]


def _zeta(x: Tensor, q: Tensor) -> Tensor:
    """Return the Hurwitz zeta function for q over 0: ten terms, and the formula of Euler and Maclaurin for the rest."""
    total, a, last = torch.pow(q, -x), q, q
    for _ in range(9):
        a = a + 1
        last = torch.pow(a, -x)
        total = total + last
    rest = last * a / (x - 1) - 0.5 * last
    factor, power = torch.ones_like(rest), last
    for k, divisor in enumerate(_ZETA):
        factor, power = factor * (x + 2 * k), power / a
        rest = rest + factor * power / divisor
        factor, power = factor * (x + 2 * k + 1), power / a
    return torch.where(last < 1e-17 * total, total, total + rest)


@decomposition("special_zeta.default", "special_zeta.other_scalar", "special_zeta.self_scalar")
@in_float64
def zeta(x: Tensor | float, q: Tensor | float) -> Tensor:
    x, q = as_tensors(x, q)
    inside = q - torch.floor(q)
    sign = torch.where(torch.remainder(x, 2) == 1, -1.0, 1.0).to(torch.float64)
    # the terms below 0 are those above 0 of another argument
    below = (_zeta(x, inside) + sign * _zeta(x, 1 - inside)) - sign * _zeta(x, 1 - q)
    made = torch.where(q > 0, _zeta(x, q), below)
    made = torch.where((q <= 0) & (x != torch.floor(x)), math.nan, made)
    made = torch.where((q <= 0) & ((q == torch.floor(q)) | (x == math.inf)), math.inf, made)
    return torch.where(x < 1, math.nan, torch.where(x == 1, math.inf, made))


@decomposition("erfinv.default")
@in_float64
def erfinv(y: Tensor) -> Tensor:
    """Return a rational approximation, with two steps of Newton's method."""
    z = y * y
    near = y * (((-0.140543331 * z + 0.914624893) * z - 1.645349621) * z + 0.886226899)
    near = near / ((((0.012229801 * z - 0.329097515) * z + 1.442710462) * z - 2.118377725) * z + 1)
    z = torch.sqrt(-torch.log((1 - y.abs()) / 2))
    far = (((1.641345311 * z + 3.429567803) * z - 1.624906493) * z - 1.970840454) / ((1.637067800 * z + 3.543889200) * z + 1)
    x = torch.where(y.abs() <= 0.7, near, torch.where(y < 0, -far, far))
    for _ in range(2):
        x = x - (torch.erf(x) - y) / ((2 / math.sqrt(math.pi)) * torch.exp(-x * x))
    x = torch.where(y.abs() == 1, y * math.inf, x)
    return torch.where(y.abs() > 1, math.nan, x)


def _digamma(x: Tensor) -> Tensor:
    """Return the digamma function of numbers over 0."""
    result = torch.zeros_like(x)
    for _ in range(10):
        small = x < 10
        result = torch.where(small, result - 1 / x, result)
        x = torch.where(small, x + 1, x)
    z = 1 / (x * x)
    y = torch.zeros_like(x)
    for k in _DIGAMMA:
        y = y * z + k
    return result + x.log() - 0.5 / x - torch.where(x < 1e17, y * z, 0.0)


@decomposition("digamma.default")
@in_float64
def digamma(x: Tensor) -> Tensor:
    below = _digamma(1 - x) - math.pi / torch.tan(math.pi * (x - x.trunc()))
    below = torch.where(x == x.trunc(), math.nan, below)
    made = torch.where(x < 0, below, _digamma(x))
    return torch.where(x == 0, torch.where(torch.signbit(x), math.inf, -math.inf), made)


@decomposition("polygamma.default")
def polygamma(n: int, x: Tensor) -> Tensor:
    if n > 1:
        raise NotImplementedError("polygamma of an order over 1")
    return _trigamma(x) if n else digamma(x)


@in_float64
def _trigamma(x: Tensor) -> Tensor:
    below = x < 0.5
    a, result = torch.where(below, 1 - x, x), torch.zeros_like(x)
    for _ in range(6):
        result = result + 1 / (a * a)
        a = a + 1
    z = 1 / (a * a)
    result = result + (1 + 1 / (2 * a) + z * (1 / 6 - z * (1 / 30 - z / 42))) / a
    sine = torch.sin(math.pi * x)
    return torch.where(below, math.pi**2 / (sine * sine) - result, result)


@decomposition("mvlgamma.default")
def mvlgamma(x: Tensor, p: int) -> Tensor:
    return _mvlgamma(x, p)


@in_float64
def _mvlgamma(x: Tensor, p: int) -> Tensor:
    made = torch.full_like(x, p * (p - 1) / 4 * math.log(math.pi))
    for k in range(p):
        made = made + torch.lgamma(x - k / 2)
    return made


@decomposition("special_spherical_bessel_j0.default")
@in_float64
def spherical_bessel_j0(x: Tensor) -> Tensor:
    return torch.where(x.isinf(), 0.0, torch.where(x == 0, 1.0, torch.sin(x) / x))
