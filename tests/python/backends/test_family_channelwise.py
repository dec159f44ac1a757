# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Channel-wise operators on packed tensors against PyTorch in float64.

Maxima and moved elements are exact; sums of n elements may be off by n * 2^-24 of the sum of their absolute values (here n <= 143 and
values below 5: 1e-5 of each element after division), bilinear weights are float32.
"""

from __future__ import annotations

import kernel_utils as ku
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from legalized import fused, prim_func, prim_funcs

from dycl_tvm.backends.tir_cpu.families.channelwise import kernel
from dycl_tvm.backends.tir_cpu.reading.channelwise_op import channelwise
from dycl_tvm.backends.tir_cpu.reading.expression import elementwise
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Epilogue, Tensor


def layout(tensor, block=8):
    packed = len(tensor.shape) > 2 and tensor.shape[1] > 1 and tensor.dtype == "float32"
    return Tensor(tensor.shape, tensor.dtype, block if packed else 1)


def run(fn, *args, op=None, target=ku.AVX2, epilogue=None, tile=0):
    """Return (result of the kernel, result in float64); ``args`` are the inputs of the one operator."""
    machine = ku.machine(target)
    op = channelwise(prim_func(fn, *args)) if op is None else op
    assert op is not None
    layouts = [layout(t, machine.lanes) for t in (*op.inputs, op.y)]
    extra, after = [], NOTHING
    want = fn(*(a.double() for a in args)).numpy()
    if epilogue is not None:
        bias = np.random.default_rng(1).standard_normal((1, op.y.shape[1], *[1] * (len(op.y.shape) - 2))).astype("float32")
        after, extra = epilogue(layouts[-1]), [ku.pack(bias, layouts[-1].block)]
        want = np.maximum(want + bias, 0)
    compiled = ku.Kernel(kernel(op, layouts, machine, after, tile), target)
    got = compiled([*(ku.pack(a.numpy(), t.block) for a, t in zip(args, layouts)), *extra], layouts[-1].physical)
    return ku.unpack(got, layouts[-1]), want


IMAGE = torch.randn(2, 20, 13, 11, generator=torch.Generator().manual_seed(0))
VOLUME = IMAGE[:1, :9, :12, :10].reshape(1, 9, 4, 6, 5)

OPERATORS = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max, dilated, ceil": lambda x: F.max_pool2d(x, 3, 2, 1, 2, ceil_mode=True),
    "average": lambda x: F.avg_pool2d(x, 2),
    "average without padding": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "average, long window": lambda x: F.avg_pool2d(x, (11, 9), 1, (5, 4)),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
    "global mean": lambda x: x.mean((2, 3)),
    "global mean, kept": lambda x: x.mean((2, 3), keepdim=True),
    "mean of rows": lambda x: x.mean(3),
    "sum of columns": lambda x: x.sum(2),
    "global max": lambda x: x.amax((2, 3)),
    "pad": lambda x: F.pad(x, (1, 2, 3, 0)),
    "pad, negative": lambda x: F.pad(x, (-1, 2, 3, -2), value=2.5),
    "reflect": lambda x: F.pad(x, (2, 1, 1, 1), mode="reflect"),
    "slice": lambda x: x[:, :, 1:-2],
    "flip": lambda x: x.flip(3),
    "relu": torch.relu,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    got, want = run(OPERATORS[name], IMAGE)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["max", "average without padding", "global mean", "pad"])
def test_with_epilogue(name):
    got, want = run(OPERATORS[name], IMAGE, epilogue=ku.relu_with_bias)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["max", "average without padding"])
def test_windows_are_tested_at_borders_only(name):
    op = channelwise(prim_func(OPERATORS[name], IMAGE))
    assert op is not None and op.reduction is not None and len(op.reduction.guard) == 4
    text = kernel(op, [layout(t) for t in (*op.inputs, op.y)], ku.machine()).script()
    inner = text.split("else:")[0]
    # one whether the row exists, one whether it is in the interior
    assert "if_then_else" not in text and inner.count("if ") <= 2 < text.count("if ")


def test_one_and_three_spatial_dimensions():
    for fn, x in ((lambda x: x.mean(2), IMAGE[:, :, 0].contiguous()), (lambda x: F.max_pool3d(x, 2, 2, 1), VOLUME)):
        got, want = run(fn, x)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("other", [(2, 20, 13, 11), (2, 20, 1, 1), (20, 1, 1), (2, 1, 13, 11), (11,), (1,)], ids=str)
def test_broadcast_operands(other):
    got, want = run(lambda x, y: x * y, IMAGE, torch.randn(other))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_resizing_reads_tables(mode):
    fn = prim_func(lambda x: F.interpolate(x, size=(17, 22), mode=mode), IMAGE)
    op = channelwise(fn)
    assert op is not None and len(op.inputs) > 1
    # the tables are constants of the module: found again by what they hold
    low = np.arange(17) * 13 // 17, np.arange(22) // 2
    if mode == "bilinear":
        return
    machine, layouts = ku.machine(), [layout(t) for t in (*op.inputs, op.y)]
    got = ku.Kernel(kernel(op, layouts, machine))([ku.pack(IMAGE.numpy(), 8), *(t.astype("int64") for t in low)], layouts[-1].physical)
    np.testing.assert_array_equal(ku.unpack(got, layouts[-1]), F.interpolate(IMAGE, size=(17, 22), mode=mode).numpy())


def test_nan_and_infinities_are_kept():
    x = IMAGE.clone()
    x[0, 3, 4, 4], x[1, 19, 0, 0], x[1, 2] = float("nan"), float("inf"), -float("inf")
    for name in ("max", "global max", "average", "relu"):
        got, want = run(OPERATORS[name], x)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


@given(st.data())
@settings(max_examples=8, deadline=None, derandomize=True)
def test_random_pooling(data):
    kernel_size = [data.draw(st.integers(1, 5)) for _ in "hw"]
    stride = [data.draw(st.integers(1, 3)) for _ in "hw"]
    padding = [data.draw(st.integers(0, k // 2)) for k in kernel_size]
    size = [data.draw(st.integers(k, 25)) for k in kernel_size]
    x = torch.randn(data.draw(st.integers(1, 2)), data.draw(st.integers(2, 17)), *size)
    pool = data.draw(st.sampled_from([F.max_pool2d, F.avg_pool2d]))
    ceil_mode = data.draw(st.booleans())
    got, want = run(lambda x: pool(x, kernel_size, stride, padding, ceil_mode=ceil_mode), x, tile=data.draw(st.integers(0, 9)))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.softmax(1),
        lambda x: x.sum(1),
        lambda x: x[:, 1:3],
        lambda x: x.flip(1),
        lambda x: torch.cat([x, x], 1),
        lambda x: x.transpose(1, 2).contiguous(),
        lambda x: F.max_pool2d(x, 2, return_indices=True)[1],
        lambda x: x > 0,
    ],
)
def test_refuses_what_mixes_channels(fn):
    assert all(channelwise(f) is None for f in prim_funcs(fn, IMAGE)[-1:])


def test_rows_of_the_batch():
    """What decides an address or divides whole numbers is read whole: nobody may have computed the rows behind."""
    images, rows, ones = torch.randn(4, 20, 5, 5), torch.randint(0, 4, (4,)), torch.randint(1, 4, (4, 1, 1, 1))

    def rows_of(fn, *args):
        """Return the rows by the type of an input; PyTorch's constants are inputs too."""
        op = channelwise(fused(fn, *args))
        return {t.dtype: rows for t, rows in zip(op.inputs, op.batch_rows) if t.shape}

    assert rows_of(lambda x, n: x * n, images, ones) == {"float32": (0,), "int64": (0,)}
    assert rows_of(lambda x, at: torch.index_select(x, 0, at), images, rows)["int64"] == ()
    assert rows_of(lambda x, n: x * torch.floor_divide(7, n), images, ones) == {"float32": (0,), "int64": ()}


def test_refuses_an_operand_whose_channels_lie_elsewhere():
    assert channelwise(prim_func(lambda x, y: x + y, IMAGE, torch.randn(20, 13, 11))) is None


# ---- expressions -----------------------------------------------------------------------------------------------------


def evaluated(fn, *args):
    """Return the result of an expression, computed by a kernel of the element-wise operator that it is put into."""
    found = elementwise(fn)
    assert found is not None
    copy = channelwise(prim_func(lambda x: x * 1, args[0]))
    machine, (x, y) = ku.machine(), (layout(Tensor(tuple(args[0].shape))), layout(found.out))
    operands = tuple(layout(t) for t in found.inputs[1:])
    after = Epilogue(operands, lambda value, loads: found.element([value, *loads]), found.key, found.operations)
    extra = [ku.pack(a.numpy().reshape(t.shape), t.block) for a, t in zip(args[1:], operands)]
    got = ku.Kernel(kernel(copy, [x, y], machine, after))([ku.pack(args[0].numpy(), 8), *extra], y.physical)
    return ku.unpack(got, y), found


def test_expressions_of_chains():
    y = torch.randn(20, 1, 1)
    got, found = evaluated(fused(lambda x, y: torch.sigmoid(F.relu6(x * y) + y) / 3, IMAGE, y), IMAGE, y)
    assert found.inputs[1].shape == (1, 20, 1, 1) and found.operations > 10
    want = torch.sigmoid(F.relu6(IMAGE.double() * y) + y) / 3
    np.testing.assert_allclose(got, want.numpy(), rtol=0, atol=1e-6)


def test_keys_tell_expressions_apart():
    y = torch.randn(2, 20, 13, 11)
    pairs = [
        (lambda x, y: x * x - y, lambda x, y: x - y * y),
        (lambda x, y: x + y * 0.1, lambda x, y: x + y * 0.1000001),
        (lambda x, y: torch.maximum(x, y), lambda x, y: torch.minimum(x, y)),
    ]
    keys = [elementwise(fused(f, IMAGE, y)).key for pair in pairs for f in pair]
    assert len(set(keys)) == len(keys)
    assert elementwise(fused(pairs[0][0], IMAGE, y)).key == keys[0]


@pytest.mark.parametrize("fn", [lambda x: x.flip(2), lambda x: x.sum(3), lambda x: x[:, :, 1:], lambda x: F.pad(x, (1, 1))])
def test_refuses_what_is_not_element_wise(fn):
    assert elementwise(prim_func(fn, IMAGE)) is None
