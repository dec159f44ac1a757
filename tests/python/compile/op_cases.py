# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The table of operators that are compared with PyTorch: name, function, inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Case = tuple[str, Callable[..., object], list[Tensor]]

_generator = torch.Generator().manual_seed(7)


def f(*shape: int) -> Tensor:
    """Return random normal float32."""
    return torch.randn(shape, generator=_generator)


def i(*shape: int, lo: int = -9, hi: int = 10) -> Tensor:
    """Return random int64."""
    return torch.randint(lo, hi, shape, generator=_generator)


def b(*shape: int) -> Tensor:
    """Return random bools."""
    return torch.rand(shape, generator=_generator) > 0.5


NAN, INF = float("nan"), float("inf")
SPECIAL = torch.tensor([[NAN, 1.0, -INF, 2.0], [INF, -0.0, 3.0, -4.0], [0.5, NAN, NAN, 1.5], [2.5, -1.5, -2.5, 1e-6]])
SPECIAL_B = torch.tensor([[1.0, NAN, 2.0, -INF], [INF, 0.0, -3.0, -4.0], [NAN, 1.0, NAN, 7.0], [0.3, -0.7, 1.0, -1e-6]])
NONZERO = torch.tensor([1, -2, 3, -4, 5, -7, 9, -11])

POSITIVE_UNARY = ["sqrt", "rsqrt", "log", "log2", "log10", "log1p", "acosh"]
UNARY = [
    "abs", "neg", "exp", "sin", "cos", "tanh", "sigmoid", "erf", "floor", "ceil", "trunc", "round", "reciprocal", "square", "sign", "expm1",
    "sinh", "cosh", "asinh", "atan", "tan", "relu", "isnan", "isinf", "isfinite", "exp2", "erfc", "sinc", "logical_not", "frac",
]  # fmt: skip


def _elementwise() -> list[Case]:
    cases: list[Case] = []
    for name in UNARY:
        cases.append((name, getattr(torch, name), [f(3, 17)]))
        cases.append((f"{name}_special", getattr(torch, name), [SPECIAL.clone()]))
    cases += [(name, getattr(torch, name), [f(3, 17).abs() + 1.01]) for name in POSITIVE_UNARY]
    cases += [(f"{n}_tiny", getattr(torch, n), [f(5, 7) * 1e-4]) for n in ("tanh", "log1p", "expm1", "sigmoid", "sinh")]
    cases += [(f"{n}_large", getattr(torch, n), [f(5, 7) * 50]) for n in ("tanh", "sigmoid", "erf")]
    cases += [(f"{n}_unit", getattr(torch, n), [torch.rand(5, 7, generator=_generator) * 1.8 - 0.9]) for n in ("asin", "acos", "atanh")]
    cases += [(f"{n}_int", getattr(torch, n), [i(4, 5)]) for n in ("abs", "neg", "sign", "exp", "sqrt", "floor", "relu", "isnan", "square")]
    for name in ("add", "sub", "mul", "div", "maximum", "minimum", "atan2", "eq", "ne", "lt", "le", "gt", "ge"):
        fn = getattr(torch, name)
        cases += [
            (f"{name}_ff", fn, [f(2, 3, 4), f(3, 1)]),
            (f"{name}_special", fn, [SPECIAL.clone(), SPECIAL_B.clone()]),
            (f"{name}_fi", fn, [f(3, 4), i(4)]),
            (f"{name}_ii", fn, [i(3, 4), i(3, 4)]),
            (f"{name}_rank0", fn, [i(3, 4), f()]),
        ]
    # the product may be fused with the subtraction behind it: never a whole number less for that
    cases.append(("floor_divide_product", lambda x: torch.div(x * 3, 0.7, rounding_mode="floor"), [f(11, 17)]))
    for name in ("fmod", "remainder", "floor_divide"):
        fn = getattr(torch, name)
        cases += [
            (f"{name}_ff", fn, [f(4, 8) * 10, f(8)]),
            (f"{name}_ii", fn, [i(6, 8, lo=-50, hi=50), NONZERO.clone()]),
            (f"{name}_scalar", lambda x, fn=fn: fn(x, 3), [i(20, lo=-20, hi=20)]),
            (f"{name}_neg_scalar", lambda x, fn=fn: fn(x, -3), [i(20, lo=-20, hi=20)]),
            (f"{name}_float_scalar", lambda x, fn=fn: fn(x, 0.7), [f(20) * 5]),
        ]
    for mode in ("floor", "trunc", None):
        cases.append((f"div_{mode}_ff", lambda x, y, m=mode: torch.div(x, y, rounding_mode=m), [f(4, 8) * 10, f(8)]))
        cases.append((f"div_{mode}_ii", lambda x, y, m=mode: torch.div(x, y, rounding_mode=m), [i(6, 8, lo=-50, hi=50), NONZERO.clone()]))
    cases += [
        ("add_scalar", lambda x: x + 2.5, [i(3, 4)]),
        ("add_alpha", lambda x, y: torch.add(x, y, alpha=3), [f(3, 4), f(3, 4)]),
        ("add_bool", lambda x, y: x + y, [b(3, 4), b(3, 4)]),
        ("mul_bool_float", lambda x, y: x * y, [b(3, 4), f(3, 4)]),
        ("rsub", lambda x: 1 - x, [f(3, 4)]),
        ("rsub_int", lambda x: 1.5 - x, [i(3, 4)]),
        ("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), [f(3, 4), f(3, 4), f(3, 4)]),
        ("lerp", lambda x, y: torch.lerp(x, y, 0.3), [f(3, 4), f(3, 4)]),
        ("pow2", lambda x: x**2, [f(3, 4)]),
        ("pow3_int", lambda x: x**3, [i(3, 4)]),
        ("pow_half", lambda x: x**0.5, [f(3, 4).abs()]),
        ("pow_neg", lambda x: x**-1.5, [f(3, 4).abs() + 0.1]),
        ("pow_tensor", torch.pow, [f(3, 4).abs() + 0.1, f(3, 4)]),
        ("pow_negative_base", lambda x: torch.pow(x, torch.tensor([2.0, 3.0, -1.0, 0.0])), [f(3, 4)]),
        ("pow_scalar_base", lambda x: 2.0**x, [f(3, 4)]),
        ("clamp", lambda x: torch.clamp(x, -0.5, 0.5), [f(3, 17)]),
        ("clamp_special", lambda x: torch.clamp(x, -0.5, 0.5), [SPECIAL.clone()]),
        ("clamp_min", lambda x: x.clamp(min=0), [SPECIAL.clone()]),
        ("clamp_max_int", lambda x: x.clamp(max=3), [i(3, 4)]),
        ("clamp_float_bound_int", lambda x: x.clamp(min=0.5), [i(3, 4)]),
        ("clamp_tensor", lambda x, lo, hi: torch.clamp(x, lo, hi), [f(3, 4), f(4) - 1, f(4) + 1]),
        ("where", torch.where, [b(3, 4), f(3, 4), f(4)]),
        ("where_scalar", lambda c, x: torch.where(c, x, 0.0), [b(3, 4), f(3, 4)]),
        ("where_mixed", torch.where, [b(3, 4), f(3, 4), i(3, 4)]),
        ("masked_fill", lambda x, m: x.masked_fill(m, -INF), [f(3, 4), b(3, 4)]),
        ("logical_and", torch.logical_and, [b(3, 4), i(3, 4, lo=-1, hi=2)]),
        ("logical_or_float", torch.logical_or, [f(3, 4), torch.zeros(3, 4)]),
        ("logical_xor", torch.logical_xor, [b(3, 4), b(3, 4)]),
        ("bitwise_and_int", lambda x, y: x & y, [i(3, 4), i(3, 4)]),
        ("bitwise_or_bool", lambda x, y: x | y, [b(3, 4), b(3, 4)]),
        ("bitwise_xor_int", lambda x: x ^ 5, [i(3, 4)]),
        ("invert_bool", lambda x: ~x, [b(3, 4)]),
        ("invert_int", lambda x: ~x, [i(3, 4)]),
        ("eq_bool", lambda x, y: x == y, [b(3, 4), b(3, 4)]),
        ("lt_bool", lambda x, y: x < y, [b(3, 4), b(3, 4)]),
        ("gt_scalar_int_float", lambda x: x > 0.5, [i(3, 4, lo=-1, hi=2)]),
        ("float_to_int", lambda x: x.to(torch.int64), [f(3, 17) * 4]),
        ("float_to_bool", lambda x: x.bool(), [torch.tensor([0.0, 0.3, -2.0, NAN])]),
        ("bool_to_float", lambda x: x.float(), [b(3, 4)]),
        ("int_to_float", lambda x: x.float(), [i(3, 4)]),
        ("to_double", lambda x: x.double() * 3, [f(3, 4)]),
        ("to_int32", lambda x: x.int(), [f(3, 4) * 9]),
        ("zeros_like", lambda x: torch.zeros_like(x) + x, [f(3, 4)]),
        ("full_like", lambda x: torch.full_like(x, 2.5) + x, [f(3, 4)]),
        ("arange", lambda x: x + torch.arange(4), [f(3, 4)]),
        ("arange_step", lambda x: x + torch.arange(1, 9, 2), [f(3, 4)]),
        ("arange_float", lambda x: x + torch.arange(0.5, 4.5), [f(3, 4)]),
        ("linspace", lambda x: x + torch.linspace(0, 1, 4), [f(3, 4)]),
        ("clone", lambda x: x.clone() + 1, [f(3, 4)]),
        ("rank0", lambda x, y: x * y + 1, [f(), f()]),
        ("nan_to_num", torch.nan_to_num, [SPECIAL.clone()]),
    ]  # fmt: skip
    for name in ("relu", "relu6", "silu", "gelu", "leaky_relu", "elu", "selu", "celu", "softplus", "hardsigmoid", "hardswish", "hardtanh", "mish",  # noqa: E501
                 "softsign", "logsigmoid", "tanhshrink", "hardshrink", "softshrink"):  # fmt: skip
        cases.append((f"F_{name}", getattr(F, name), [f(3, 17) * 4]))
    cases += [
        ("relu_nan", F.relu, [SPECIAL.clone()]),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), [f(3, 17) * 3]),
        ("prelu", lambda x, w: F.prelu(x, w), [f(2, 3, 5), f(3)]),
        ("glu", lambda x: F.glu(x, 1), [f(2, 6, 5)]),
    ]
    return cases


def _reductions() -> list[Case]:
    cases: list[Case] = []
    for name in ("sum", "mean", "amax", "amin", "prod", "argmax", "argmin", "logsumexp"):
        fn = getattr(torch, name)
        cases.append((f"{name}_dim", lambda x, fn=fn: fn(x, dim=1), [f(3, 7, 5)]))
        cases.append((f"{name}_keep", lambda x, fn=fn: fn(x, dim=-1, keepdim=True), [f(3, 7, 5)]))
    for name in ("sum", "mean", "max", "min", "prod", "argmax", "argmin"):
        cases.append((f"{name}_all", getattr(torch, name), [f(3, 7)]))
        cases.append((f"{name}_special", getattr(torch, name), [SPECIAL.clone()]))
    for name in ("sum", "max", "min", "prod", "argmax", "argmin"):
        cases.append((f"{name}_int", getattr(torch, name), [i(2, 6, lo=-3, hi=4)]))
    cases += [
        ("argmax_ties", lambda x: torch.argmax(x, 1), [torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [NAN, 1.0, NAN, 9.0], [-INF, -INF, -INF, -INF]])]),  # noqa: E501
        ("argmin_ties", lambda x: torch.argmin(x, 1), [torch.tensor([[1.0, 1.0, 3.0], [2.0, NAN, NAN], [INF, INF, INF]])]),
        ("argmax_rank0", torch.argmax, [f()]),
        ("max_dim", lambda x: torch.max(x, 1), [f(3, 9, 2)]),
        ("max_dim_special", lambda x: torch.max(x, 1), [SPECIAL.clone()]),
        ("min_dim_keep", lambda x: torch.min(x, 0, keepdim=True), [f(3, 9)]),
        ("max_dim_int", lambda x: torch.max(x, -1), [i(4, 5, lo=0, hi=3)]),
        ("max_values_only", lambda x: torch.max(x, 1).values, [f(3, 9)]),
        ("amax_dims", lambda x: torch.amax(x, (1, 2)), [SPECIAL.reshape(1, 4, 4).clone()]),
        ("sum_dims", lambda x: x.sum((1, 3)), [f(2, 3, 4, 5)]),
        ("sum_bool", torch.sum, [b(3, 7)]),
        ("mean_hw", lambda x: x.mean((2, 3)), [f(2, 5, 6, 7)]),
        ("sum_rank0", torch.sum, [f()]),
        ("var", lambda x: torch.var(x, 1), [f(3, 9)]),
        ("std_biased", lambda x: torch.std(x, 1, correction=0), [f(3, 9)]),
        ("norm", lambda x: torch.linalg.vector_norm(x, dim=1), [f(3, 9)]),
        ("any", lambda x: torch.any(x > 1), [f(3, 7)]),
        ("any_dim", lambda x: torch.any(x, 1), [b(3, 7)]),
        ("all", lambda x: torch.all(x < 5), [f(3, 7)]),
        ("all_dim", lambda x: torch.all(x, 1, keepdim=True), [b(9, 2)]),
        ("any_int", torch.any, [i(3, 4)]),
        ("softmax", lambda x: F.softmax(x, 1), [f(3, 9, 4)]),
        ("softmax_large", lambda x: F.softmax(x, -1), [f(3, 9) * 100]),
        ("softmax_special", lambda x: F.softmax(x, -1), [SPECIAL.clone()]),
        ("softmax_backward", lambda g, y: torch._softmax_backward_data(g, y, 1, torch.float32), [f(2, 3, 4), f(2, 3, 4) * 1e30 * 1e30]),
        ("log_softmax", lambda x: F.log_softmax(x, -1), [f(3, 9) * 10]),
        ("cumsum", lambda x: torch.cumsum(x, 1), [f(3, 9, 4)]),
        ("cumsum_int", lambda x: torch.cumsum(x, 0), [i(9, 4)]),
        ("cumsum_bool", lambda x: torch.cumsum(x, 0), [b(9, 4)]),
        ("cumprod", lambda x: torch.cumprod(x, -1), [f(3, 9)]),
        ("topk", lambda x: torch.topk(x, 3), [f(4, 11)]),
        ("topk_small", lambda x: torch.topk(x, 3, dim=0, largest=False), [f(11, 4)]),
        ("sort", lambda x: torch.sort(x, dim=-1), [f(4, 11)]),
        ("sort_desc_stable", lambda x: torch.sort(x, dim=1, descending=True, stable=True), [i(4, 11, lo=0, hi=4)]),
        ("sort_nan", lambda x: torch.sort(x, dim=1, stable=True), [SPECIAL.clone()]),
        ("argsort", lambda x: torch.argsort(x, dim=0, stable=True), [i(11, 2, lo=0, hi=4)]),
        ("entropy", lambda x: -(F.softmax(x, -1) * F.log_softmax(x, -1)).sum(-1), [f(1, 10)]),
        ("cosine", lambda x, y: F.cosine_similarity(x, y, dim=-1), [f(2, 8), f(2, 8)]),
    ]  # fmt: skip
    return cases


def _shapes() -> list[Case]:
    return [
        ("view", lambda x: x.view(4, -1) * 1, [f(2, 6, 2)]),
        ("view_only", lambda x: x.view(4, -1), [f(2, 6, 2)]),
        ("flatten", lambda x: torch.flatten(x, 1), [f(2, 3, 4)]),
        ("permute", lambda x: x.permute(2, 0, 1), [f(2, 3, 4)]),
        ("transpose", lambda x: x.transpose(-1, 0), [f(2, 3, 4)]),
        ("transpose_unit", lambda x: x.transpose(0, 1), [f(1, 5, 4)]),
        ("t", lambda x: x.t(), [f(2, 3)]),
        ("unsqueeze", lambda x: x.unsqueeze(1), [f(2, 3)]),
        ("squeeze", lambda x: x.squeeze(), [f(1, 3, 1)]),
        ("expand", lambda x: x.expand(4, 3, 5), [f(3, 1)]),
        ("expand_rank0", lambda x: x.expand(4), [f()]),
        ("repeat", lambda x: x.repeat(2, 1, 3), [f(2, 3)]),
        ("repeat_interleave", lambda x: x.repeat_interleave(3, dim=1), [f(2, 3)]),
        ("cat", lambda x, y: torch.cat([x, y], 1), [f(2, 3), f(2, 5)]),
        ("cat_dtypes", lambda x, y: torch.cat([x, y], -1), [f(2, 3), i(2, 5)]),
        ("cat_bool", lambda x, y: torch.cat([x, y]), [b(2, 3), b(1, 3)]),
        ("cat_many", lambda *x: torch.cat(x, 1), [f(1, k + 1, 2) for k in range(7)]),
        ("stack", lambda x, y: torch.stack([x, y], 1), [f(2, 3), f(2, 3)]),
        ("stack_rank0", lambda x, y: torch.stack([x, y]), [f(), f()]),
        ("split", lambda x: torch.split(x, 2, 1), [f(2, 5)]),
        ("split_sizes", lambda x: torch.split(x, [1, 4], 1), [f(2, 5)]),
        ("chunk", lambda x: torch.chunk(x, 4, 1), [f(2, 8)]),
        ("chunk_one", lambda x: torch.chunk(x, 4, 1)[2], [f(2, 8)]),
        ("unbind", lambda x: torch.unbind(x, 1), [f(2, 3, 4)]),
        ("slice", lambda x: x[:, 1:5:2], [f(2, 7)]),
        ("slice_negative", lambda x: x[:, -3:-1], [f(2, 7)]),
        ("select", lambda x: x[:, -2], [f(2, 7, 3)]),
        ("select_rank0", lambda x: x[3], [f(7)]),
        ("index_none", lambda x: x[:, None, ..., 0], [f(2, 7, 3)]),
        ("narrow", lambda x: x.narrow(1, 2, 3), [f(2, 7)]),
        ("pad", lambda x: F.pad(x, (1, 2, 0, 3), value=1.5), [f(2, 3, 4)]),
        ("pad_bool", lambda x: F.pad(x > 0, (1, 2), value=0.5), [f(2, 3)]),
        ("pad_negative", lambda x: F.pad(x, (-1, 2)), [f(2, 4)]),
        ("pad_reflect", lambda x: F.pad(x, (2, 1, 1, 2), mode="reflect"), [f(1, 2, 5, 6)]),
        ("pad_replicate", lambda x: F.pad(x, (2, 1, 1, 2), mode="replicate"), [f(1, 2, 5, 6)]),
        ("pad_circular", lambda x: F.pad(x, (2, 1), mode="circular"), [f(1, 2, 5)]),
        ("flip", lambda x: x.flip(0, 2), [f(2, 3, 4)]),
        ("roll", lambda x: torch.roll(x, (1, -2), (0, 1)), [f(3, 5)]),
        ("roll_flat", lambda x: torch.roll(x, 4), [f(3, 5)]),
        ("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), [f(1, 8, 3, 3)]),
        ("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), [f(1, 2, 4, 6)]),
        ("tril", lambda x: torch.tril(x, -1), [f(4, 5)]),
        ("triu_bool", lambda x: torch.triu(x, 1), [b(4, 4)]),
        ("diagonal", lambda x: torch.diagonal(x, 1), [f(4, 5)]),
        ("unfold", lambda x: x.unfold(1, 3, 2), [f(2, 9)]),
        ("movedim", lambda x: x.movedim(0, 2), [f(2, 3, 4)]),
        ("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij"), [f(3), f(4)]),
        ("channel_shuffle", lambda x: F.channel_shuffle(x, 2), [f(1, 6, 3, 3)]),
        ("eye", lambda x: x @ torch.eye(4), [f(3, 4)]),
    ]  # fmt: skip


def _indexing() -> list[Case]:
    return [
        ("embedding", F.embedding, [i(2, 5, lo=0, hi=9), f(9, 4)]),
        ("embedding_rank0", F.embedding, [i(lo=0, hi=9), f(9, 4)]),
        ("index_select", lambda x, j: torch.index_select(x, 1, j), [f(3, 6), i(4, lo=0, hi=6)]),
        ("index_select_rank0", lambda x, j: torch.index_select(x, 0, j), [f(3, 6), i(lo=0, hi=3)]),
        ("index_tensor", lambda x, j: x[j], [f(5, 6), i(2, 3, lo=-5, hi=5)]),
        ("index_two", lambda x, j, k: x[j, k], [f(5, 6, 2), i(3, lo=0, hi=5), i(3, lo=0, hi=6)]),
        ("index_apart", lambda x, j, k: x[j, :, k], [f(5, 6, 4), i(3, lo=0, hi=5), i(3, lo=0, hi=4)]),
        ("index_inner", lambda x, j: x[:, j], [f(5, 6, 4), i(3, lo=0, hi=6)]),
        ("index_rank0", lambda x, j: torch.ops.aten.index.Tensor(x, [j]), [f(5, 6), i(lo=0, hi=5)]),
        ("gather", lambda x, j: torch.gather(x, 1, j), [f(3, 6), i(3, 4, lo=0, hi=6)]),
        ("gather_smaller", lambda x, j: torch.gather(x, 0, j), [f(3, 6), i(2, 4, lo=0, hi=3)]),
        ("take_along", lambda x, j: torch.take_along_dim(x, j, 1), [f(3, 6), i(3, 1, lo=0, hi=6)]),
        ("scatter", lambda x, s: x.scatter(1, torch.tensor([[0, 2], [1, 3], [4, 0]]), s), [f(3, 6), f(3, 2)]),
        ("scatter_smaller", lambda x, s: x.scatter(0, torch.tensor([[0, 2]]), s), [f(3, 6), f(3, 4)]),
        ("scatter_value", lambda x, j: x.scatter(1, j, 7.0), [f(3, 6), i(3, 2, lo=0, hi=6)]),
        ("scatter_infinity", lambda x, j: x.scatter(1, j, float("-inf")), [f(3, 6), i(3, 2, lo=0, hi=6)]),
        ("scatter_add", lambda x, j, s: x.scatter_add(1, j, s), [f(3, 6), i(3, 5, lo=0, hi=6), f(3, 5)]),
        *(
            (f"scatter_{how}{kind}", lambda x, j, s, how=how: torch.scatter_reduce(x, 1, j, s, how), [x, i(3, 5, lo=0, hi=6), s])
            for how in ("sum", "prod", "amax", "amin")
            for kind, x, s in (("", f(3, 6), f(3, 5)), ("_int", i(3, 6), i(3, 5)), ("_special", SPECIAL.repeat(1, 2)[:3, :6], f(3, 5)))
        ),
        *(
            (f"scatter_{how}_apart{kind}", lambda x, j, s, h=how: x.scatter_reduce(1, j, s, h, include_self=False), [x, j, s])
            for how in ("sum", "mean", "prod", "amax", "amin")
            for kind, x, j, s in (("", f(3, 6), i(3, 5, lo=0, hi=6), f(3, 5)), ("_int", i(3, 6), i(3, 5, lo=0, hi=6), i(3, 5)))
        ),
        *(
            (f"scatter_mean{kind}", lambda x, j, s: torch.scatter_reduce(x, 1, j, s, "mean"), [x, i(3, 5, lo=0, hi=6), s])
            for kind, x, s in (("", f(3, 6), f(3, 5)), ("_int", i(3, 6), i(3, 5)))
        ),
        *(
            (f"power_{dtype}".replace("torch.", ""), torch.pow, [torch.tensor(base).to(dtype), torch.tensor(by).to(dtype)])
            for dtype, base, by in (
                (torch.int64, [[3, -2, 7, 1, -1, 0, -1, 2, 10]], [[39], [0], [5], [-3], [-2], [63], [1]]),
                (torch.int32, [3, -2, 7, 1, -1, -1, 5, 46340], [19, 31, 11, -9, -9, -8, -1, 2]),
                (torch.uint8, [3, 2, 255, 7, 0], [5, 7, 255, 200, 0]),
            )
        ),
        *(
            (f"{name}_{dtype}".replace("torch.", ""), fn, [torch.tensor([1, -5, 7, 100, -128, 3]).to(dtype), torch.tensor(by).to(dtype)])
            for name, fn in (("shift_left", torch.bitwise_left_shift), ("shift_right", torch.bitwise_right_shift))
            for dtype, by in ((torch.int64, [0, 1, 63, 64, 2, 62]), (torch.int32, [0, 1, 31, 32, 2, -1]), (torch.uint8, [0, 1, 7, 8, 2, 5]))
        ),
        *(
            (f"{fn.__name__}_of_a_number", lambda y, fn=fn: fn(5, y), [torch.tensor([0, 1, 3, 62, 7])])
            for fn in (torch.bitwise_left_shift, torch.bitwise_right_shift, torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor)
        ),
        ("gcd_uint8", torch.gcd, [torch.tensor([0, 12, 255, 128], dtype=torch.uint8), torch.tensor([5, 18, 85, 0], dtype=torch.uint8)]),
        ("neg_uint8", torch.neg, [torch.tensor([0, 1, 128, 255], dtype=torch.uint8)]),
        ("det", torch.linalg.det, [f(2, 3, 5, 5)]),
        ("det_swaps", torch.linalg.det, [torch.tensor([[0.0, 2, 1], [3, 0, 1], [0, 0, 4]])]),
        ("det_singular", torch.linalg.det, [torch.tensor([[[1.0, 2], [2, 4]], [[0, 3], [0, 5]], [[0, 0], [7, 1]]])]),
        ("fake_quantize", lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7), [f(3, 17)]),
        ("fake_quantize_special", lambda x: torch.fake_quantize_per_tensor_affine(x, 0.25, 0, -8, 7), [SPECIAL.clone()]),
        ("fake_quantize_tensors", lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z, 0, 255), [f(3, 9), torch.tensor(0.02), torch.tensor(128, dtype=torch.int32)]),  # noqa: E501
        ("fake_quantize_channels", lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, 0, 255), [f(3, 2, 5), torch.tensor([0.02, 0.1]), torch.tensor([128, 100], dtype=torch.int32)]),  # noqa: E501
        ("col2im", lambda x: F.fold(x, (5, 6), (2, 3), padding=1, stride=2), [f(2, 12, 9)]),
        ("im2col", lambda x: F.unfold(x, (2, 3), dilation=2, padding=1, stride=2), [f(2, 3, 7, 8)]),
        ("isnan_bfloat16", lambda x: torch.isnan(x.bfloat16()), [SPECIAL.clone()]),
        ("select_scatter", lambda x, s: torch.select_scatter(x, s, 1, -2), [f(3, 6), f(3)]),
        ("slice_scatter", lambda x, s: torch.slice_scatter(x, s, 1, 1, 6, 2), [f(3, 7), f(3, 3)]),
        ("index_put", lambda x, j, v: torch.index_put(x, (j,), v), [f(5, 4), torch.tensor([3, 0]), f(2, 4)]),
        ("index_put_two", lambda x, j, k, v: torch.index_put(x, (j, k), v), [f(5, 4), torch.tensor([3, 0]), torch.tensor([1, 1]), f(2)]),
        ("index_put_add", lambda x, j, v: torch.index_put(x, (j,), v, accumulate=True), [f(5, 4), torch.tensor([3, 3, 0]), f(3, 4)]),
        ("index_put_inside", lambda x, j, v: torch.ops.aten.index_put(x, [None, j], v, True), [f(5, 4, 3), torch.tensor([3, 3, 0]), f(3, 3)]),  # noqa: E501
        ("index_put_apart", lambda x, j, k, v: torch.ops.aten.index_put(x, [j, None, k], v), [f(5, 4, 3), torch.tensor([3, 0]), torch.tensor([[1], [2]]), f(2, 2, 4)]),  # noqa: E501
        ("index_put_mask", lambda x: torch.index_put(x, (x > 0,), torch.tensor(0.0)), [f(5, 4)]),
        ("index_copy", lambda x, j, s: x.index_copy(1, j, s), [f(3, 6), torch.tensor([4, 1]), f(3, 2)]),
        ("index_fill", lambda x, j: x.index_fill(1, j, -1.0), [f(3, 6), torch.tensor([4, 1])]),
        ("index_add", lambda x, j, s: x.index_add(0, j, s, alpha=2), [f(3, 6), torch.tensor([1, 1]), f(2, 6)]),
    ]  # fmt: skip


def _networks() -> list[Case]:
    conv = F.conv2d
    cases: list[Case] = [
        ("conv2d", lambda x, w, c: conv(x, w, c, padding=1), [f(1, 3, 9, 9), f(8, 3, 3, 3), f(8)]),
        ("conv2d_stride", lambda x, w: conv(x, w, stride=2, padding=1), [f(2, 16, 15, 17), f(24, 16, 3, 3)]),
        ("conv2d_dilation", lambda x, w: conv(x, w, dilation=2), [f(1, 4, 11, 11), f(6, 4, 3, 3)]),
        ("conv2d_groups", lambda x, w: conv(x, w, groups=4, padding=1), [f(1, 16, 8, 8), f(32, 4, 3, 3)]),
        ("conv2d_depthwise", lambda x, w: conv(x, w, groups=16, padding=1), [f(1, 16, 8, 8), f(16, 1, 3, 3)]),
        ("conv2d_depthwise_s2", lambda x, w: conv(x, w, groups=16, padding=1, stride=2), [f(1, 16, 9, 9), f(16, 1, 3, 3)]),
        ("conv2d_multiplier", lambda x, w: conv(x, w, groups=4, padding=1), [f(1, 4, 8, 8), f(8, 1, 3, 3)]),
        ("conv2d_1x1", lambda x, w: conv(x, w), [f(1, 32, 8, 8), f(64, 32, 1, 1)]),
        ("conv2d_1x1_s2", lambda x, w: conv(x, w, stride=2), [f(1, 32, 8, 8), f(64, 32, 1, 1)]),
        ("conv2d_rect", lambda x, w: conv(x, w, padding=(2, 0), stride=(1, 2)), [f(1, 3, 10, 12), f(5, 3, 5, 1)]),
        ("conv2d_to_point", lambda x, w, c: conv(x, w, c), [f(1, 64, 4, 4), f(10, 64, 4, 4), f(10)]),
        ("conv2d_big", lambda x, w, c, r: F.relu(conv(x, w, c, padding=1) + r), [f(1, 64, 16, 16), f(64, 64, 3, 3) / 24, f(64), f(1, 64, 16, 16)]),  # noqa: E501
        ("conv2d_small_map", lambda x, w, c: F.relu(conv(x, w, c, padding=1)), [f(1, 128, 4, 4), f(128, 128, 3, 3) / 30, f(128)]),
        ("conv2d_7x7", lambda x, w, c: F.relu(conv(x, w, c, padding=3, stride=2)), [f(1, 3, 56, 56), f(16, 3, 7, 7) / 12, f(16)]),
        ("conv2d_odd", lambda x, w: conv(x, w, padding=1), [f(1, 7, 13, 37), f(11, 7, 3, 3)]),
        ("conv1d", lambda x, w, c: F.conv1d(x, w, c, padding=2, stride=2), [f(1, 4, 19), f(6, 4, 5), f(6)]),
        ("conv3d", lambda x, w: F.conv3d(x, w, padding=1), [f(1, 2, 5, 6, 7), f(3, 2, 3, 3, 3)]),
        ("conv3d_stride", lambda x, w, c: F.conv3d(x, w, c, stride=(2, 1, 2), padding=(2, 0, 1), dilation=(2, 1, 1)), [f(2, 3, 6, 5, 5), f(4, 3, 3, 2, 3), f(4)]),  # noqa: E501
        ("conv3d_groups", lambda x, w: F.conv3d(x, w, groups=2, padding=(0, 1, 1)), [f(1, 4, 4, 5, 5), f(6, 2, 2, 3, 3)]),
        ("conv3d_1x1x1", lambda x, w, c: F.conv3d(x, w, c), [f(2, 3, 4, 5, 6), f(7, 3, 1, 1, 1), f(7)]),
        ("conv3d_columns", lambda x, w: F.conv3d(x, w, stride=(1, 1, 2), padding=(0, 0, 1)), [f(1, 3, 4, 5, 6), f(5, 3, 1, 1, 3)]),
        ("conv3d_depths", lambda x, w: F.conv3d(x, w, padding=(1, 0, 0)), [f(1, 3, 4, 5, 6), f(5, 3, 3, 1, 1)]),
        ("conv2d_unbatched", lambda x, w: conv(x, w, padding=1), [f(3, 6, 6), f(4, 3, 3, 3)]),
        ("conv_transpose2d", lambda x, w, c: F.conv_transpose2d(x, w, c, stride=2, padding=1, output_padding=1), [f(1, 6, 5, 7), f(6, 4, 3, 3), f(4)]),  # noqa: E501
        ("conv_transpose2d_groups", lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=2, dilation=2), [f(1, 6, 5, 4), f(6, 2, 3, 3)]),
        ("conv_transpose1d", lambda x, w: F.conv_transpose1d(x, w, stride=3), [f(1, 3, 6), f(3, 5, 4)]),
        ("conv_transpose1d_short", lambda x, w: F.conv_transpose1d(x, w, stride=4, output_padding=2), [f(1, 3, 6), f(3, 5, 2)]),
        ("conv_transpose1d_far", lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=4, dilation=9), [f(2, 2, 1), f(2, 3, 2)]),
        ("conv_transpose2d_whole", lambda x, w, c: F.relu(F.conv_transpose2d(x, w, c, stride=2, padding=1)), [f(1, 6, 5, 7), f(6, 4, 4, 4), f(4)]),  # noqa: E501
        ("conv_transpose2d_same", lambda x, w: F.conv_transpose2d(x, w, padding=1, groups=3), [f(2, 6, 5, 4), f(6, 2, 3, 3)]),
        ("conv_transpose2d_cut", lambda x, w: F.conv_transpose2d(x, w, stride=(1, 2), padding=(3, 2)), [f(1, 2, 7, 6), f(2, 3, 2, 2)]),
        ("conv_transpose2d_dilated", lambda x, w: F.conv_transpose2d(x, w, stride=(4, 3), dilation=(6, 2), padding=(1, 2)), [f(1, 2, 3, 4), f(2, 3, 5, 4)]),  # noqa: E501
        ("conv_transpose2d_infinity", lambda x, w: F.conv_transpose2d(x, w, stride=2), [SPECIAL.reshape(1, 1, 4, 4), f(1, 3, 3, 3)]),
        ("conv_transpose3d", lambda x, w: F.conv_transpose3d(x, w, stride=(2, 1, 3), padding=(0, 1, 1)), [f(1, 2, 3, 4, 2), f(2, 3, 3, 3, 3)]),  # noqa: E501
        ("max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), [f(1, 3, 9, 9)]),
        ("max_pool2d_ceil", lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), [f(1, 3, 10, 10)]),
        ("max_pool2d_dilation", lambda x: F.max_pool2d(x, 3, 1, 1, dilation=2), [f(1, 3, 10, 10)]),
        ("max_pool2d_nan", lambda x: F.max_pool2d(x, 2), [SPECIAL.reshape(1, 1, 4, 4).clone()]),
        ("max_pool2d_indices", lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), [f(1, 3, 9, 9)]),
        ("max_pool1d", lambda x: F.max_pool1d(x, 3, 2), [f(1, 3, 9)]),
        ("avg_pool2d", lambda x: F.avg_pool2d(x, 2), [f(1, 3, 8, 8)]),
        ("avg_pool2d_pad", lambda x: F.avg_pool2d(x, 3, 2, 1), [f(1, 3, 9, 9)]),
        ("avg_pool2d_nopad", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), [f(1, 3, 9, 9)]),
        ("avg_pool2d_ceil", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), [f(1, 3, 10, 10)]),
        ("avg_pool2d_ceil_nopad", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), [f(1, 3, 10, 10)]),
        ("avg_pool2d_divisor", lambda x: F.avg_pool2d(x, 3, 2, divisor_override=5), [f(1, 3, 9, 9)]),
        ("avg_pool1d", lambda x: F.avg_pool1d(x, 3, 2, 1), [f(1, 3, 9)]),
        ("adaptive_avg_1", lambda x: F.adaptive_avg_pool2d(x, 1), [f(2, 3, 7, 5)]),
        ("adaptive_avg_even", lambda x: F.adaptive_avg_pool2d(x, 4), [f(1, 3, 8, 8)]),
        ("adaptive_avg_odd", lambda x: F.adaptive_avg_pool2d(x, (3, 4)), [f(1, 3, 7, 10)]),
        ("adaptive_avg_up", lambda x: F.adaptive_avg_pool2d(x, (14, 14)), [f(1, 2, 8, 8)]),
        ("adaptive_max_1", lambda x: F.adaptive_max_pool2d(x, 1), [f(2, 3, 7, 5)]),
        ("adaptive_max_odd", lambda x: F.adaptive_max_pool2d(x, (3, 4)), [f(1, 3, 7, 10)]),
        ("adaptive_max_indices", lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True), [f(1, 3, 7, 10)]),
        ("batch_norm", lambda x, m, v, w, c: F.batch_norm(x, m, v.abs() + 0.1, w, c), [f(2, 5, 4, 4), f(5), f(5), f(5), f(5)]),
        ("batch_norm_plain", lambda x, m, v: F.batch_norm(x, m, v.abs() + 0.1), [f(2, 5, 4), f(5), f(5)]),
        ("layer_norm", lambda x, w, c: F.layer_norm(x, (6,), w, c), [f(2, 5, 6), f(6), f(6)]),
        ("layer_norm_two", lambda x: F.layer_norm(x, (5, 6)), [f(2, 5, 6)]),
        ("group_norm", lambda x, w, c: F.group_norm(x, 3, w, c), [f(2, 6, 4, 4), f(6), f(6)]),
        ("instance_norm", lambda x: F.instance_norm(x), [f(2, 3, 5, 5)]),
        ("rms_norm", lambda x, w: F.rms_norm(x, (6,), w), [f(2, 6), f(6)]),
        ("mm", torch.mm, [f(5, 7), f(7, 3)]),
        ("mm_big", torch.mm, [f(48, 64), f(64, 80)]),
        ("matvec", torch.mv, [f(5, 7), f(7)]),
        ("dot", torch.dot, [f(7), f(7)]),
        ("mm_int", torch.mm, [i(5, 7), i(7, 3)]),
        ("bmm", torch.bmm, [f(2, 5, 7), f(2, 7, 3)]),
        ("matmul_broadcast", torch.matmul, [f(2, 1, 5, 7), f(3, 7, 4)]),
        ("linear", F.linear, [f(1, 64), f(10, 64), f(10)]),
        ("linear_wide", F.linear, [f(1, 300), f(150, 300), f(150)]),
        ("linear_3d", F.linear, [f(2, 5, 8), f(4, 8), f(4)]),
        ("addmm_scaled", lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2), [f(3), f(5, 7), f(7, 3)]),
        ("einsum_bmm", lambda x, y: torch.einsum("bij,bjk->bik", x, y), [f(2, 3, 4), f(2, 4, 5)]),
        ("einsum_attention", lambda x, y: torch.einsum("bhqd,bhkd->bhqk", x, y), [f(1, 2, 3, 4), f(1, 2, 5, 4)]),
        ("einsum_outer", lambda x, y: torch.einsum("i,j->ij", x, y), [f(3), f(4)]),
        ("outer", torch.outer, [f(3), f(4)]),
        ("sdpa", lambda q, k, v: F.scaled_dot_product_attention(q, k, v), [f(1, 2, 5, 8), f(1, 2, 7, 8), f(1, 2, 7, 8)]),
        ("sdpa_causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [f(1, 2, 6, 8), f(1, 2, 6, 8), f(1, 2, 6, 8)]),  # noqa: E501
        ("sdpa_mask", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), [f(1, 2, 5, 8), f(1, 2, 5, 8), f(1, 2, 5, 8), f(5, 5)]),  # noqa: E501
        ("nearest", lambda x: F.interpolate(x, scale_factor=2), [f(1, 3, 4, 5)]),
        ("nearest_size", lambda x: F.interpolate(x, size=(7, 3)), [f(1, 3, 4, 5)]),
        ("nearest_exact", lambda x: F.interpolate(x, size=(7, 3), mode="nearest-exact"), [f(1, 3, 4, 5)]),
        ("bilinear", lambda x: F.interpolate(x, size=(7, 9), mode="bilinear"), [f(1, 3, 4, 5)]),
        ("bilinear_aligned", lambda x: F.interpolate(x, size=(7, 9), mode="bilinear", align_corners=True), [f(1, 3, 4, 5)]),
        ("bilinear_down", lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"), [f(1, 3, 8, 9)]),
        ("bicubic", lambda x: F.interpolate(x, size=(7, 9), mode="bicubic"), [f(1, 3, 4, 5)]),
        ("linear1d", lambda x: F.interpolate(x, size=9, mode="linear"), [f(1, 3, 4)]),
    ]  # fmt: skip
    lstm, gru = torch.nn.LSTMCell(6, 5), torch.nn.GRUCell(6, 5)
    full = torch.nn.LSTM(6, 5, num_layers=2).eval()
    mha = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    cases += [
        ("lstm_cell", lambda x, h, c: lstm(x, (h, c)), [f(1, 6), f(1, 5), f(1, 5)]),
        ("gru_cell", gru, [f(1, 6), f(1, 5)]),
        ("lstm", lambda x: full(x)[0], [f(3, 1, 6)]),
        ("mha", lambda x: mha(x, x, x, need_weights=True), [f(1, 5, 8)]),
        ("transformer_layer", lambda x: layer(x), [f(1, 5, 8)]),
    ]
    return cases


def _rare() -> list[Case]:
    S = torch.special
    degrees = i(3, 7, lo=-2, hi=14)
    shifted = [("chebyshev", "t"), ("chebyshev", "u"), ("chebyshev", "v"), ("chebyshev", "w")]
    polynomials = [f"{s}{kind}_polynomial_{name}" for s in ("", "shifted_") for kind, name in shifted]
    table = f(6, 4) * 3
    return [
        *((n, lambda x, d, n=n: (getattr(S, n)(x, d), getattr(S, n)(x, 3)), [f(3, 7), degrees.float()]) for n in polynomials),
        ("zeta", lambda x, q: (S.zeta(x, q), S.zeta(4, q), S.zeta(x, 2.5)), [f(3, 7).abs() + 1, f(3, 7)]),
        *(
            (n, lambda x, d, n=n: (getattr(S, n)(x, d), getattr(S, n)(x, 3)), [f(3, 7), degrees.float()])
            for n in ("hermite_polynomial_h", "hermite_polynomial_he")
        ),
        ("gcd", torch.gcd, [i(4, 5, lo=-200, hi=200) * 6, i(5, lo=-200, hi=200) * 10]),
        ("lcm", torch.lcm, [i(4, 5, lo=-50, hi=50), i(5, lo=-50, hi=50)]),
        ("gcd_large", torch.gcd, [torch.tensor([7540113804746346429, 2**62, 0, 0]), torch.tensor([4660046610375530309, 2**40, -5, 0])]),
        ("frexp", torch.frexp, [torch.cat([f(40) * 10.0 ** i(40, lo=-30, hi=30), torch.tensor([0.0, 1.0, 0.5, -8.0, 1e-40, INF])])]),
        *(
            (f"scatter_reduce_bool_{how}", lambda x, j, y, how=how: x.scatter_reduce(0, j, y, how), [b(4, 3), i(5, 3, lo=0, hi=4), b(5, 3)])
            for how in ("sum", "prod", "amax", "amin")
        ),
        ("avg_pool2d_int", lambda x: F.avg_pool2d(x, 3, 2, padding=1, count_include_pad=False), [i(1, 2, 7, 8)]),
        ("embedding_max_norm", lambda t, j: F.embedding(j, t.clone(), max_norm=1.5), [table, i(2, 3, lo=0, hi=6)]),
        *(
            (
                f"segment_{how}",
                lambda x, n, how=how: torch.segment_reduce(x, how, lengths=n, unsafe=True),
                [f(9, 2), torch.tensor([3, 0, 4, 2])],
            )
            for how in ("sum", "mean", "max", "min", "prod")
        ),
        *(
            (
                f"bags_{mode}",
                lambda t, j, o, mode=mode: F.embedding_bag(j, t, o, mode=mode, padding_idx=3),
                [table, i(7, lo=0, hi=6), torch.tensor([0, 3, 3])],
            )
            for mode in ("sum", "mean", "max")
        ),
        (
            "bags_max_of_what_is_no_number",
            lambda t, j, o: F.embedding_bag(j, t, o, mode="max", padding_idx=3),
            [SPECIAL.clone(), torch.tensor([0, 1, 2, 1, 0, 2, 3, 0]), torch.tensor([0, 3, 3, 6])],
        ),
        (
            "bags_of_halves_with_large_products",
            lambda t, j, w: F.embedding_bag(j, t, mode="sum", per_sample_weights=w),
            [f(4, 3).half() * 4e4, torch.tensor([[0, 1], [2, 3]]), torch.tensor([[3.0, 2.0], [-2.0, 3.0]]).half()],
        ),
        ("cdist_of_what_is_no_number", lambda x, y: torch.cdist(x, y, p=INF), [SPECIAL, SPECIAL_B]),
        ("remainder_by_a_number", lambda x: (x % 0.3, torch.fmod(x, 0.3)), [f(40) * 1e6]),
        (
            "fake_quantize_of_constants",
            lambda x: (
                torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255),
                torch.fake_quantize_per_channel_affine(x, torch.tensor([0.1, 0.2]), torch.zeros(2, dtype=torch.int32), 0, -8, 7),
            ),
            [f(2, 9) * 3],
        ),
    ]


CASES: list[Case] = [*_elementwise(), *_reductions(), *_shapes(), *_indexing(), *_networks(), *_rare()]
