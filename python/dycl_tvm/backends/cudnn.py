# Licensed under the Apache License, Version 2.0; see LICENSE.
"""cuDNN: convolutions of two dimensions on a GPU, as calls of a library that the machine that runs has. Taken on request only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm.relax.backend.utils import has_leaking_intermediate_variables
from tvm.relax.dpl import is_op, wildcard

from dycl_tvm.backends.device_regions import MOST, call_of, common_dtype, is_half, match_of, shape_of
from dycl_tvm.backends.registry import Backend, Generated, Pattern, Region


def backend() -> Backend:
    """Return the backend ``cudnn``."""
    return Backend("cudnn", patterns, generate, on_request=True, on_device=True, merge=False)


def patterns(target: tvm.target.Target) -> Sequence[Pattern]:
    """Return the patterns, for GPUs: a convolution with a bias, and one without."""
    if str(target.kind.name) != "cuda":
        return []
    convolution, bias = is_op("relax.nn.conv2d")(wildcard(), wildcard()), wildcard()
    biased = is_op("relax.add")(convolution, bias)
    with_bias = {"convolution": convolution, "bias": bias}
    return [
        Pattern("conv2d_bias", biased, with_bias, _check),
        Pattern("conv2d", convolution, {"convolution": convolution}, _check),
    ]


def _check(context: Any) -> bool:
    found = context.annotated_expr
    if has_leaking_intermediate_variables(context):
        return False
    return supported(found["convolution"]) and ("bias" not in found or is_bias(found["bias"], found["convolution"]))


def supported(call: Any) -> bool:
    """Return whether a convolution is one call of the library: NCHW, padded alike on both sides, of one type."""
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout or attrs.data_layout))
    if layouts != ("NCHW", "OIHW", "NCHW") or common_dtype([*call.args, call]) is None:
        return False
    top, left, bottom, right = (int(p) for p in attrs.padding)
    return (top, left) == (bottom, right) and all(0 < math.prod(shape_of(t)) <= MOST for t in (*call.args, call))


def is_bias(bias: Any, call: Any) -> bool:
    """Return whether a summand has a number for each channel of a convolution, and the convolution's type."""
    shape, out = shape_of(bias), shape_of(call)
    return len(shape) <= 4 and [1] * (4 - len(shape)) + shape == [1, out[1], 1, 1] and common_dtype([bias, call]) is not None


def generate(regions: Sequence[Region], target: tvm.target.Target) -> Generated:
    """Write the call of each region."""
    parts = ['#include "cudnn_region.h"\n', *(_call(region) for region in regions)]
    return Generated(sources=(("cudnn_regions.cc", "\n".join(parts)),))


def _call(region: Region) -> str:
    match = match_of(region)
    convolution = match.calls[0]
    x, w = convolution.args
    bias = match.numbers[match.calls[1].args[1]] if len(match.calls) > 1 else -1
    attrs = convolution.attrs
    window = (attrs.strides, list(attrs.padding)[:2], attrs.dilation)
    numbers = ", ".join(
        [
            *(_braces(shape_of(t)) for t in (x, w, convolution)),
            *(_braces([int(v) for v in pair]) for pair in window),
            str(int(attrs.groups)),
            is_half(convolution),
            *map(str, (match.numbers[x], match.numbers[w], bias, match.output)),
        ]
    )
    return call_of(region, "cudnn::Convolution", numbers)


def _braces(numbers: Sequence[int]) -> str:
    return f"{{{', '.join(map(str, numbers))}}}"
