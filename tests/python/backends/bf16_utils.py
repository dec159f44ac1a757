# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Checks of products and convolutions with factors in bfloat16 against float64, for the families that compute them.

Element by element |error| <= (2 u + u^2 + (k + 8) 2^-23) sum |x w| with u = 2^-8, and for random numbers at most 4e-3 of the
largest of a thousand sums of 100 products and more. For factors of three bfloat16 (2 k + 40) 2^-24 sum |x w|, and 2e-6.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import kernel_utils as ku
import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from kernel_utils import Kernel, pack, relu_with_bias, unpack, windows

from dycl_tvm.backends.tir_cpu.families.family import W
from dycl_tvm.backends.tir_cpu.options import Accuracy
from dycl_tvm.backends.tir_cpu.words.machine import Machine, machine_of
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D, Dense, Epilogue, Tensor

U = 2.0**-8

conv = functools.partial(ku.conv, lanes=16)


def array(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype="float32")


def check(
    actual: Any,
    product: Callable[[Any, Any], Any],
    x: Any,
    w: Any,
    k: int,
    accuracy: Accuracy = "bf16",
    finish: Callable[[Any], Any] = lambda sums: sums,
) -> None:
    """``product`` is the operator in float64, of sums of ``k`` products, ``finish`` the epilogue."""
    sums, magnitudes = product(x, w), product(np.abs(x), np.abs(w)) + 4
    error = np.abs(actual - finish(sums))
    bound, typical = (2 * U + U**2 + (k + 8) * 2.0**-23, 4e-3) if accuracy == "bf16" else ((2 * k + 40) * 2.0**-24, 2e-6)
    assert (error <= bound * magnitudes).all()
    if sums.size >= 1000 and k >= 100:  # few sums may all be small by cancellation, and the errors of few products all be large
        assert error.max() <= typical * np.abs(sums).max()
    if accuracy == "bf16":  # of the rounded factors the sums are as of float32
        assert (np.abs(actual - finish(product(_rounded(x), _rounded(w)))) <= (k + 8) * 2.0**-23 * magnitudes).all()


def typed(work: W, accuracy: Accuracy = "bf16") -> W:
    """Return a workload with factors of the types that an accuracy allows."""
    return work.with_weights({"bf16": "bfloat16", "bf16x3": "bfloat16x3"}[accuracy])


def matmul(x: Any, w: Any) -> Any:
    return x.astype("float64") @ w.astype("float64")


def _rounded(values: Any) -> Any:
    return torch.from_numpy(values).bfloat16().float().numpy()


@dataclass
class Checker:
    """Runs kernels of one family of products and one of convolutions for a target."""

    products: Any
    convolutions: Any
    target: Any
    accuracy: Accuracy = "bf16"

    @property
    def machine(self) -> Machine:
        return machine_of(self.target)

    def typed(self, work: W) -> W:
        """Return a workload with factors of the types that are checked."""
        return typed(work, self.accuracy)

    def run_dense(
        self,
        work: Dense,
        plan: Any,
        x: Any,
        w: Any,
        epilogue: Epilogue | None = None,
        operands: tuple[Any, ...] = (),
        machine: Machine | None = None,
    ) -> Any:
        """Return the product by the kernel of a plan; ``machine`` is another one than the target's."""
        family, machine = self.products, machine or self.machine
        work = self.typed(work)
        packed = Kernel(family.pack(work, plan, machine))([w], family.packed(work, plan, machine).physical)
        kernel = Kernel(family.kernel(work, plan, machine, *([epilogue] if epilogue else [])), self.target)
        return kernel([x, packed, *operands], (work.batch, work.m, work.n))

    def check_dense(self, work: Dense, plan: Any) -> None:
        x, w, bias = array(work.batch, work.m, work.k), array(work.k, work.n), array(1, 1, work.n)
        y = self.run_dense(work, plan, x, w, _bias_relu(work), (bias,))
        check(y, matmul, x, w, work.k, self.accuracy, lambda sums: np.maximum(sums + bias, 0))

    def run_conv(self, work: Conv2D, plan: Any, x: Any, w: Any, epilogue: Epilogue | None = None, operands: tuple[Any, ...] = ()) -> Any:
        family, machine = self.convolutions, self.machine
        work = self.typed(work)
        packed = Kernel(family.pack(work, plan, machine))([w], family.packed(work, plan, machine).physical)
        kernel = Kernel(family.kernel(work, plan, machine, *([epilogue] if epilogue else [])), self.target)
        return unpack(kernel([pack(x, work.x.block), packed, *operands], work.y.physical), work.y)

    def check_conv(self, work: Conv2D, plan: Any) -> None:
        x, weights = array(*work.x.shape), array(*work.weight_shape)
        bias, other = array(work.y.shape[1]), array(*work.y.shape)
        plain = relu_with_bias(work.y)
        epilogue = Epilogue((*plain.operands, work.y), lambda v, loads: plain.element(v + loads[1], loads[:1]), "residual")
        ours = self.run_conv(work, plan, x, weights, epilogue, (pack(bias.reshape(1, -1, 1, 1), 16), pack(other, 16)))
        product = functools.partial(exact_conv, work)
        check(ours, product, x, weights, weights[0].size, self.accuracy, lambda s: np.maximum(s + bias.reshape(-1, 1, 1) + other, 0))

    def check_rounding(self) -> None:
        """Factors are rounded to the nearest bfloat16, ties to even, on both sides."""
        values = np.float32([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-16, -(1 + 2**-8), 3.0e38, 2.0**-100, 0.0])
        expected = torch.from_numpy(values).bfloat16().float().numpy()
        assert expected[1] == 1 and expected[2] == 1 + 2**-6 and expected[3] == 1 + 2**-7
        n = len(values)
        work = Dense(1, n, n, n)
        plan = self.products.plans(self.typed(work), self.machine)[0]
        one = np.eye(n, dtype="float32")
        np.testing.assert_array_equal(self.run_dense(work, plan, np.diag(values)[None], one)[0].diagonal(), expected)
        np.testing.assert_array_equal(self.run_dense(work, plan, one[None], np.diag(values))[0].diagonal(), expected)

    def check_nan_and_infinity(self) -> None:
        """They stay, and stay in their rows and columns."""
        work = Dense(1, 4, 5, 7)
        plan = self.products.plans(self.typed(work), self.machine)[0]
        x, w = array(1, 4, 7), np.abs(array(7, 5))
        # a NaN whose set bits would all be rounded away, or carried into the sign
        x[0, 1, 2], x[0, 2, 3], x[0, 3] = np.uint32(0x7F800001).view("float32"), np.inf, np.abs(x[0, 3])
        y = self.run_dense(work, plan, x, w)
        assert np.isfinite(y[0, 0]).all() and np.isnan(y[0, 1]).all() and np.isposinf(y[0, 2]).all()
        w[1, 1], w[2, 2], w[3, 3] = np.inf, np.uint32(0x7FFFFFFF).view("float32"), np.uint32(0x7F800001).view("float32")
        y = self.run_dense(work, plan, x, w)
        assert np.isfinite(y[0, 3, [0, 4]]).all() and np.isposinf(y[0, 3, 1]) and np.isnan(y[0, 3, 2:4]).all()


def exact_conv(work: Conv2D, x: Any, w: Any) -> Any:
    top, left, bottom, right = work.padding
    padded = F.pad(torch.from_numpy(x).double(), (left, right, top, bottom))
    return F.conv2d(padded, torch.from_numpy(w).double(), None, work.stride, 0, work.dilation, work.groups).numpy()


def _bias_relu(work: Dense) -> Epilogue:
    plain = relu_with_bias(Tensor((1, work.n)))
    return replace(plain, operands=(Tensor((1, 1, work.n)),))


ONES = (1, 1, 1, 1)
CASES = {
    "3x3": conv((16, 40), (9, 10), (3, 3), padding=ONES, batch=2),
    "channels_no_multiple": conv((20, 13), (7, 11), (3, 3), padding=ONES),
    "few_channels": conv((5, 16), (7, 6), (3, 3), padding=ONES),
    "stride_2": conv((16, 16), (11, 12), (3, 3), stride=2, padding=ONES),
    "asymmetric_padding": conv((8, 16), (6, 7), (3, 2), padding=(2, 0, 0, 1)),
    "dilation": conv((8, 8), (9, 9), (3, 3), padding=(3, 3, 3, 3), dilation=3),
    "pointwise": conv((24, 40), (5, 7), (1, 1), batch=2),
    "pointwise_stride": conv((16, 24), (7, 7), (1, 1), stride=2),
    "pointwise_stride_padding": conv((16, 24), (7, 8), (1, 1), stride=2, padding=(1, 3, 2, 0)),
    "one_position": conv((24, 40), (1, 1), (1, 1), batch=5),
    "mostly_padding": conv((16, 16), (1, 1), (3, 3), padding=ONES, batch=2),
    "no_tap_inside": conv((8, 8), (2, 2), (3, 3), padding=(4, 4, 4, 4)),
    "groups_of_blocks": conv((32, 96), (6, 6), (3, 3), padding=ONES, groups=2),
    "one_dimension": conv((8, 16), (1, 40), (1, 5), padding=(0, 2, 0, 2)),
}


@st.composite
def workloads(draw: Any) -> Conv2D:
    size, kernel, padding, dilation = draw(windows())
    channels = (draw(st.integers(1, 40)), draw(st.integers(1, 60)))
    return conv(channels, size, kernel, draw(st.integers(1, 3)), padding, dilation, 1, draw(st.integers(1, 2)))
