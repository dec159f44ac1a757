# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Functions of tensors with several run-time lengths that look at places, split, repeat, count, or ask for the memory.

What lies behind a size in a buffer is NaN here, or a number that is no index.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from differential import check
from torch import nn

import dycl_tvm
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.sizes import Dim

B, T = Dim("B", max=4), Dim("T", max=6)
#: The bounds, after the largest a smaller one, and sizes in between.
SIZES = [(2, 3), (4, 6), (1, 1), (3, 5), (1, 6), (4, 1), (2, 2)]
H, W = Dim("H", min=3, max=9), Dim("W", min=3, max=8)
IMAGES = [(5, 6), (9, 8), (3, 3), (3, 8), (9, 4), (8, 7), (4, 5)]


def sequences(b, t):
    return torch.randn(b, t, 8)


def ids(b, t):
    return torch.randint(0, 5, (b, t))


def places(x, i):
    t = x.shape[1]
    at = (i % t)[..., None]
    put = x.scatter(1, at, 1.0), x.scatter(2, i[..., None], 2.0), torch.zeros_like(x).scatter_add(1, at.expand_as(x), x)
    rows = torch.tensor([0]), torch.tensor([0, 3])
    filled = (
        x.index_fill(1, rows[0], -1.0),
        x.index_fill(2, rows[1], 5.0),
        x.index_add(1, rows[0], x[:, -1:]),
        x.index_copy(2, rows[1], x[..., :2]),
    )
    few = torch.zeros(5, t, 8).scatter_add(0, i[..., None].expand_as(x), x)
    return (
        put,
        filled,
        few,
        F.one_hot(i, 5),
        F.one_hot(i.clamp(0, 4)),
        x.roll(t // 2, 1),
        x.roll((x.shape[0] // 2, -t), (0, 1)),
        x.quantile(0.3, 1),
    )


def counted(x, i):
    buckets = torch.bucketize(x @ x.mT, torch.linspace(-2, 2, 7)), torch.searchsorted(torch.arange(-4, 5), i), torch.isin(i, i[0])
    found = torch.unique(i), torch.unique(i, return_inverse=True, return_counts=True), torch.unique_consecutive(i, return_inverse=True)
    return buckets, found, torch.histc(x, 5, -1, 1)


def losses(x, i):
    logits, weight = x[..., :5].transpose(1, 2), torch.arange(1.0, 6.0)
    each = F.cross_entropy(logits, i, reduction="none"), F.nll_loss(logits.log_softmax(1), i, weight, reduction="sum")
    return F.cross_entropy(logits, i), *each, F.cross_entropy(logits, i, weight, label_smoothing=0.1, ignore_index=1)


def split_up(x, i):
    b, t = x.shape[:2]
    twice = torch.cat([x, x + 1], 1)
    first, second = twice.chunk(2, 1)
    left, right = twice.split(t, 1)
    halves = x.split([t // 2, t - t // 2], 1)
    return (
        first * second.sigmoid(),
        left - right,
        halves,
        torch.cat(halves, 1),
        x.split(2, 1),
        x.chunk(3, 1)[0],
        i.chunk(2, 0),
        F.glu(twice, 1),
        b,
    )


def repeated(x, i):
    b, t = x.shape[:2]
    row = torch.arange(t)
    made = row.repeat(b), row.repeat(b, 1), row[None].repeat(b, 1) + i, torch.tile(row, (b, 2)), torch.ones(1, 1, 8).repeat(b, t, 1)
    return made, x[:, None].repeat(1, t, 1, 1), x.repeat_interleave(b, 1), torch.arange(b).repeat_interleave(t), i.repeat_interleave(2)


def diagonals(x, i):
    b, t = x.shape[:2]
    scores = x @ x.mT
    made = torch.eye(t), torch.eye(b, t), torch.diag_embed(i), torch.diag(i[0]), i.clone().fill_diagonal_(9)
    return scores.diagonal(dim1=1, dim2=2), x.diagonal(1, 0, 1), x.unflatten(2, (2, 4)).diagonal(0, 2, 3), scores[0].trace(), made


def in_memory(x, i):
    turned = x.transpose(1, 2)
    if not turned.is_contiguous():
        turned = turned.contiguous()
    b, t, strides = *x.shape[:2], x.stride()
    windows = x.as_strided((b, t // 2, 2, 8), (strides[0], 2 * strides[1], strides[1], 1))
    some = x.is_contiguous(), i.t().is_contiguous(), (x + 1).stride(0), x.view(b * t, 8).stride()
    return windows, x.as_strided((b, 4), (strides[0], 2)), some, turned


def attended(x, i):
    q = x.view(*i.shape, 2, 4).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2).view(-1, 8), F.prelu(x.mT, torch.linspace(0, 1, 8))


FUNCTIONS = [places, counted, losses, split_up, repeated, diagonals, in_memory, attended]


@pytest.mark.usefixtures("nothing_behind_the_sizes")
@pytest.mark.parametrize("program", FUNCTIONS, ids=lambda f: f.__name__)
def test_right(program):
    torch.manual_seed(0)
    check(program, [(sequences(*s), ids(*s)) for s in SIZES], dynamic_shapes={"x": {0: B, 1: T}, "i": {0: B, 1: T}})


@pytest.mark.usefixtures("nothing_behind_the_sizes")
def test_halves_are_known_to_be_alike():
    """The halves of what was put together ask nothing at run time."""
    graph = stage(lambda x: torch.mul(*torch.cat([x, -x], 1).chunk(2, 1)), (sequences(4, 6),), dynamic_shapes={"x": {0: B, 1: T}})
    assert sum(block.steps != [] for block in graph.blocks) == 1


def by_name(x):
    b, t, _ = x.shape
    shapes = x.view(size=(b, t, 2, 4)), torch.reshape(input=x, shape=(b * t, 8)), x[:1].expand(size=(b, t, 8)), x.repeat(repeats=(1, 2, 1))
    made = torch.arange(start=0, end=t, step=1), torch.arange(end=b), torch.full(size=(b, t), fill_value=b), x.new_zeros(size=(t, b))
    products = torch.matmul(input=x, other=torch.ones(8, 2)), torch.bmm(input=x, mat2=x.mT), x[0].mm(mat2=x[0].mT), x.tile(dims=(2, 1, 1))
    chosen = torch.where(condition=x > 0, input=x, other=-x), torch.where(other=x, input=x * 2, condition=x > 0)
    edges = torch.tensor([-1.0, 0.0, 1.0])
    places = torch.searchsorted(edges, input=x), torch.searchsorted(x[0, :, 0].sort().values, input=edges)
    return shapes, made, products, chosen, places, torch.equal(input=x, other=x * 1), x.allclose(other=x.abs(), atol=0.5)


def compared_and_multiplied(x):
    points, others = x[..., :3], x[..., 3:6]
    crosses = torch.linalg.cross(points, others), torch.cross(points, others, dim=-1), points.cross(other=others, dim=2)
    products = torch.tensordot(x, torch.ones(8, 2), 1), torch.tensordot(x, x, ([0, -1], [0, 2])), torch.tensordot(x, x, 3)
    equal = torch.equal(x, x.clone()), torch.equal(x, x[0]), torch.equal(x[:1], x[-1:]), torch.allclose(x, x + 1)
    return crosses, products, equal, torch.msort(x), x.cpu()


@pytest.mark.usefixtures("nothing_behind_the_sizes")
@pytest.mark.parametrize("program", [by_name, compared_and_multiplied], ids=lambda f: f.__name__)
def test_arguments_by_name_and_products(program):
    torch.manual_seed(0)
    check(program, [(sequences(*s),) for s in SIZES], dynamic_shapes={"x": {0: B, 1: T}})


def test_arguments_by_name_of_fixed_shapes():
    def model(x):
        same = torch.equal(input=x, other=x.abs()), x.equal(other=x), torch.allclose(input=x, other=x), x.allclose(other=-x)
        return same, torch.reshape(input=x, shape=(-1, 2)), torch.where(condition=x > 0), torch.masked_select(mask=x > 0, input=x)

    check(model, [(torch.ones(2, 3),), (torch.tensor([[1.0, -2.0, 0.5], [-1.0, 0.0, 3.0]]),)])


def of_nothing(x):
    made = x.split([0, x.shape[1]], 1), x.repeat(1, x.shape[0], 1), torch.arange(x.shape[1]).repeat(x.shape[0]), x.roll(1, 1)
    layers = F.conv_transpose1d(x.mT, torch.ones(8, 3, 4), stride=2), x.unflatten(2, (2, -1)), x.is_contiguous(), torch.eye(x.shape[1])
    return made, layers, x.diagonal(dim1=0, dim2=1), F.cross_entropy(x[..., :5].mT, x[..., 0].long().clamp(0, 4), reduction="none")


@pytest.mark.usefixtures("nothing_behind_the_sizes")
def test_empty_ones():
    none_b, none_t = Dim("B", min=0, max=3), Dim("T", min=0, max=4)
    inputs = [(sequences(*s),) for s in [(2, 3), (0, 0), (3, 4), (0, 2), (2, 0), (1, 1)]]
    check(of_nothing, inputs, dynamic_shapes={"x": {0: none_b, 1: none_t}}, paths=2)
    check(lambda x: x.chunk(2, 1), inputs, dynamic_shapes={"x": {0: none_b, 1: none_t}})
    check(lambda x: x.quantile(0.5, 1), inputs, dynamic_shapes={"x": {0: none_b, 1: none_t}}, paths=2)


def layers(x):
    columns = F.unfold(x, 3, padding=1, stride=2)
    patches = F.unfold(x[..., : x.shape[2] // 2 * 2, : x.shape[3] // 2 * 2], 2, stride=2)
    largest, at = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    back = F.fold(columns, x.shape[2:], 3, padding=1, stride=2), F.fold(patches, (x.shape[2] // 2 * 2, x.shape[3] // 2 * 2), 2, stride=2)
    unpooled = F.max_unpool2d(*F.max_pool2d(x[..., : x.shape[2] // 2 * 2, : x.shape[3] // 2 * 2], 2, return_indices=True), 2)
    return back, largest, at, unpooled, F.nll_loss(x.log_softmax(1), x.argmax(1))


def smoothed(x):
    fixed = [F.interpolate(x, size=(5, 3), mode=mode, antialias=True) for mode in ("bilinear", "bicubic")]
    by = (
        F.interpolate(x, scale_factor=0.7, mode="bilinear", antialias=True),
        F.interpolate(x, scale_factor=2, mode="bicubic", antialias=True),
    )
    grid = torch.arange(48.0).view(1, 1, 6, 8)
    return fixed, by, F.interpolate(grid, size=x.shape[2:], mode="bilinear", antialias=True)


@pytest.mark.usefixtures("nothing_behind_the_sizes")
@pytest.mark.parametrize("program", [layers, smoothed], ids=lambda f: f.__name__)
def test_images(program):
    torch.manual_seed(0)
    check(program, [(torch.randn(2, 4, h, w),) for h, w in IMAGES], dynamic_shapes={"x": {2: H, 3: W}})


@pytest.mark.usefixtures("nothing_behind_the_sizes")
def test_infinities_are_where_eager_has_them():
    """Which elements are looked at follows from the last bit of a quotient."""

    def model(x, y):
        return F.interpolate(torch.where(x > 1.5, float("inf"), x), size=y.shape, mode="bilinear", antialias=True)

    shapes = {"x": {2: H, 3: W}, "y": {0: Dim("M", min=2, max=7), 1: Dim("N", min=2, max=7)}}
    torch.manual_seed(0)
    inputs = [
        (torch.randn(1, 3, h, w), torch.ones(m, n)) for h, w, m, n in [(5, 6, 3, 4), (9, 8, 7, 7), (7, 5, 3, 3), (4, 8, 2, 6), (3, 3, 5, 3)]
    ]
    for w, n in [(5, 3), (7, 3), (5, 7), (8, 6)]:  # an infinity at each place of a row
        for at in range(w):
            row = torch.zeros(1, 3, 4, w)
            row[..., at] = 2.0
            inputs.append((row, torch.ones(3, n)))
    check(model, inputs, dynamic_shapes=shapes)


def laid_as(x):
    channels_last = x.permute(0, 2, 3, 1).relu().contiguous().permute(0, 3, 1, 2)
    grid = torch.linspace(0, 1, 36).view(1, 3, 3, 4).permute(0, 3, 1, 2)
    grown = F.interpolate(grid, size=x.shape[2:], mode="bicubic").permute(0, 2, 3, 1).view(1, -1, 4)
    windows = torch.cat([channels_last.permute(0, 2, 3, 1)[:, a::2, :2] for a in (0, 0)], -1).view(2, -1, 8)
    return grown, windows, F.interpolate(channels_last, scale_factor=2, mode="bilinear").permute(0, 2, 3, 1).flatten(1, 2).view(-1, 4)


@pytest.mark.usefixtures("nothing_behind_the_sizes")
def test_views_of_results_that_lie_as_their_operands_do():
    check(laid_as, [(torch.randn(2, 4, h, w),) for h, w in IMAGES], dynamic_shapes={"x": {2: H, 3: W}})


def test_what_is_refused_says_why():
    def written(x):
        y = x.clone()
        y.view(-1, 8)[0] = 0.0
        return y

    with pytest.raises(UnsupportedError, match="lengths are known only at run time is changed in place.*whose elements were copied"):
        stage(written, (sequences(4, 6),), dynamic_shapes={"x": {0: B, 1: T}})
    with pytest.raises(UnsupportedError, match=r"is_contiguous\(\) is not supported"):  # PyTorch may lay sizes of one otherwise
        stage(lambda x: (x.mT + 1).mT.is_contiguous(), (sequences(4, 6),), dynamic_shapes={"x": {0: B, 1: T}})


#: What PyTorch does not lay in order, or at some lengths only: of none of it a view is known to be one.
LIES_OTHERWISE = [
    lambda x: x.mT.sort(1)[0].view(-1),
    lambda x: x.mT.index_fill(1, torch.tensor([0, 3]), 1.0).view(-1),
    lambda x: x.mT.diff(dim=2).view(-1),
    lambda x: x.mT.flip(2).view(-1),
    lambda x: x.quantile(torch.tensor([0.1, 0.9]), 1).view(-1),
    lambda x: torch.einsum("btd,bsd->tbs", x, x).view(-1),
    lambda x: F.conv_transpose1d(x.mT, torch.ones(8, 4, 2), stride=2).view(-1),
    lambda x: F.adaptive_avg_pool1d(x.mT, 2).view(-1),
    lambda x: torch.stack([x.permute(0, 2, 1)] * 2, 1).view(-1),
    lambda x: x[:, :1].detach().stride(),
    lambda x: x[:, :1].clone().stride(),
    lambda x: x.mT.contiguous().stride(),
    lambda x: x[:, :1].reshape(-1).add_(1) + x.sum(),
    lambda x: (x.sum(-1) > 0).nonzero().reshape(-1).add_(1),
]


@pytest.mark.parametrize("program", LIES_OTHERWISE)
def test_what_does_not_surely_lie_in_order_is_no_view(program):
    with pytest.raises(UnsupportedError):
        stage(program, (sequences(2, 3),), dynamic_shapes={"x": {0: B, 1: T}})


def known_to_lie_in_order(x):
    scores = torch.einsum("btd,bsd->bts", x, x).view(x.shape[0], -1)
    part = x.detach()[..., :4].detach().flatten(1)
    return scores, part, x.detach().view(-1), x.mT.contiguous().is_contiguous(), x.flip(1).view(-1, 8), x.sort(1)[0].view(-1)


@pytest.mark.usefixtures("nothing_behind_the_sizes")
def test_what_lies_in_order():
    check(known_to_lie_in_order, [(sequences(*s),) for s in SIZES], dynamic_shapes={"x": {0: B, 1: T}})


@pytest.mark.usefixtures("nothing_behind_the_sizes")
def test_too_little_to_take_off_or_to_count():
    shapes, inputs = {"x": {1: Dim("T", min=0, max=4)}}, [(sequences(2, t),) for t in (3, 0, 4, 1)]
    check(lambda x: F.pad(x, (0, 0, -1, 1)), inputs, dynamic_shapes=shapes, paths=2)
    check(lambda x: torch.arange(1, x.shape[1], 3), inputs, dynamic_shapes=shapes, paths=2)

    def unpooled(x):
        return F.max_unpool1d(*F.max_pool1d(x.mT, 2, 2, 1, return_indices=True), 2, 2, 1)

    check(unpooled, [(sequences(2, t),) for t in (4, 1, 3, 2)], dynamic_shapes={"x": {1: Dim("T", max=4)}}, paths=2)


class Some(nn.Module):
    def forward(self, x, i, image):
        t, (largest, at) = x.shape[1], F.max_pool2d(image, 3, 2, 1, return_indices=True)
        put = x.scatter(1, (i % t)[..., None], 1.0), x.index_fill(1, torch.tensor([0]), -1.0), torch.arange(t).repeat(x.shape[0])
        parts = F.cross_entropy(x[..., :5].mT, i), x.chunk(2, 1)[-1].sum(0), x.as_strided((t, 4), (x.stride(1), 2)), x.roll(t // 2, 1)
        return put, parts, largest, at, F.interpolate(image, size=(4, 3), mode="bilinear", antialias=True)


def test_artefacts(tmp_path: Path):
    """What an earlier call left behind the sizes changes nothing."""
    torch.manual_seed(0)
    model, both = Some(), {0: B, 1: T}
    shapes = {"x": both, "i": both, "image": {2: H, 3: W}}
    art = dycl_tvm.build(model, (sequences(4, 6), ids(4, 6), torch.randn(2, 4, 9, 8)), dynamic_shapes=shapes, target="llvm")
    run = dycl_tvm.load(art.export_library(tmp_path / "m.so"), art.save_params(tmp_path / "m.params"))
    for size, image in zip(SIZES, IMAGES):
        run(torch.full((4, 6, 8), torch.nan), ids(4, 6), torch.full((2, 4, 9, 8), torch.nan))
        given = sequences(*size), ids(*size), torch.randn(2, 4, *image)
        torch.testing.assert_close(run(*given), model(*given), rtol=1e-4, atol=1e-5)
