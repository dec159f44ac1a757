# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Images and maps of which callers decide several sizes: resizing, pooling, padding to multiples, and networks that do these.

What lies behind a size in a buffer is NaN here.
"""

from __future__ import annotations

import functools
import itertools
import math
import random

import pytest
import torch
import torch.nn.functional as F
from differential import check, compare_at_sizes
from torch import nn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import LimitError
from dycl_tvm.hcfg.sizes import Dim

pytestmark = pytest.mark.usefixtures("nothing_behind_the_sizes")


def compare(model, shape, sizes, cases=None, errors=None):
    """Compare a staged model with eager at sizes, those of dimensions of its one input; return what was staged.

    ``errors`` says whether eager raises at some sizes.
    """
    largest = [sizes[d].max if d in sizes else n for d, n in enumerate(shape)]
    every = list(itertools.product(*(range(s.min, s.max + 1) for s in sizes.values())))
    cases = cases or [every[0], every[-1], *random.Random(0).sample(every, min(len(every), 30))]
    graph = stage(model, (torch.ones(largest),), dynamic_shapes=(sizes,))
    refused = compare_at_sizes(model, graph.interpret(), shape, sizes, cases, equal_nan=True)
    assert errors is None or refused == errors
    return graph


# -- resizing ---------------------------------------------------------------------------------------------------------------------
MODES = [("nearest", None), ("nearest-exact", None), *itertools.product(("linear", "bicubic"), (False, True))]


@pytest.mark.parametrize(("mode", "align"), MODES)
def test_every_size_to_every_size(mode, align):
    """Places and weights are PyTorch's, to the last bit that decides which element is taken."""
    behind = (3,) if mode == "bicubic" else ()

    def model(x, y):
        return F.interpolate(x, size=(y.shape[0], *behind), mode=mode, align_corners=align)

    most = 24
    shapes = ({2: Dim("N", max=most)}, {0: Dim("M", max=most)})
    call = stage(model, (torch.ones(1, 2, 3, *behind), torch.ones(4)), dynamic_shapes=shapes).interpret()
    for n, m in itertools.product(range(1, most + 1), range(1, most + 1, 3 if behind else 1)):
        x, y = torch.randn(1, 2, n, *behind), torch.ones(m)
        torch.testing.assert_close(call(x, y), model(x, y), rtol=1e-4, atol=1e-5)


IMAGE = {0: Dim("B", max=2), 2: Dim("H", min=0, max=5), 3: Dim("W", max=6)}
RESIZED = {
    "bilinear by 2": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "aligned by 2": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
    "by parts": lambda x: F.interpolate(x, scale_factor=(1.5, 0.7), mode="bilinear"),
    "recomputed": lambda x: F.interpolate(x, scale_factor=0.6, mode="bilinear", recompute_scale_factor=True),
    "almost itself": lambda x: F.interpolate(x, scale_factor=1.03, mode="bilinear"),
    "nearest by half": lambda x: F.interpolate(x, scale_factor=0.5),
    "nearest by one and a half": lambda x: F.interpolate(x, scale_factor=1.5),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "area": lambda x: F.interpolate(x, scale_factor=(0.5, 1.5), mode="area"),
    "area to a size": lambda x: F.interpolate(x, size=(3, 2), mode="area"),
    "to a size": lambda x: F.interpolate(x, size=(3, 4), mode="bilinear"),
    "to a size of its own": lambda x: F.interpolate(x, size=(x.shape[2] + 1, 2), mode="bilinear"),
    "to another's": lambda x: F.interpolate(F.max_pool2d(x, 1, 2), size=x.shape[2:], mode="bilinear"),
    "a parameter": lambda x: x + F.interpolate(torch.arange(9.0).view(1, 1, 3, 3), size=x.shape[2:], mode="bicubic"),
}


@pytest.mark.parametrize("name", RESIZED)
def test_resized(name):
    compare(RESIZED[name], (2, 1, 5, 6), IMAGE, errors=True)


def test_what_is_no_number_stays_where_it_is():
    resized = functools.partial(F.interpolate, size=4, mode="linear")
    call = stage(
        lambda x: F.interpolate(x, size=4, mode="linear"), (torch.ones(1, 1, 5),), dynamic_shapes=({2: Dim("N", max=6)},)
    ).interpret()
    for n in range(1, 7):
        for value in (math.inf, math.nan):
            for at in range(n):
                x = torch.ones(1, 1, n)
                x[..., at] = value
                torch.testing.assert_close(call(x), resized(x), equal_nan=True)


# -- pooling ----------------------------------------------------------------------------------------------------------------------
POOLED = {
    "largest": lambda x: F.max_pool2d(x, 2, ceil_mode=True),
    "largest of three": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "largest apart": lambda x: F.max_pool2d(x, (2, 3), (3, 2), (1, 1), (1, 2), ceil_mode=True),
    "means": lambda x: F.avg_pool2d(x, 2, ceil_mode=True),
    "means with padding": lambda x: F.avg_pool2d(x, 3, (2, 3), 1, ceil_mode=True),
    "means without padding": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "means of a module": torch.nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False),
    "steps beyond the window": lambda x: F.avg_pool2d(x, 1, 3, ceil_mode=True),
    "means of three": lambda x: F.adaptive_avg_pool2d(x, 3),
    "as many as there are": lambda x: F.adaptive_avg_pool2d(x, (None, 2)),
    "largest of two": lambda x: F.adaptive_max_pool2d(x, (2, 4)),
    "largest of all": lambda x: F.adaptive_max_pool2d(x, 1),
    "pyramid": lambda x: torch.cat([F.adaptive_avg_pool2d(x, k).flatten(1) for k in (1, 2, 4)], 1),
}


@pytest.mark.parametrize("name", POOLED)
def test_pooled(name):
    compare(POOLED[name], (2, 2, 5, 6), IMAGE, errors=True)


@pytest.mark.parametrize("name", ["largest of three", "means without padding", "largest apart"])
def test_pooled_with_any_number_of_channels(name):
    compare(POOLED[name], (2, 2, 5, 6), {1: Dim("C", max=3), **IMAGE}, errors=True)


@pytest.mark.parametrize(
    ("layer", "masks"),
    [
        (lambda x: F.max_pool2d(x, 2), 0),
        (lambda x: F.avg_pool2d(x, (3, 2), (2, 3), (1, 0)), 1),
        (lambda x: F.max_pool2d(x, 2, ceil_mode=True), 2),
        (lambda x: F.interpolate(x, scale_factor=2.0), 0),
        (lambda x: F.conv2d(x, torch.ones(4, 3, 1, 1), stride=2), 0),
        (lambda x: F.conv2d(x, torch.ones(4, 3, 1, 1), padding=(0, 1)), 2),
        (lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3), padding="same"), 2),
    ],
)
def test_only_what_is_read_behind_an_image_is_masked(layer, masks):
    shapes = ({2: Dim("H", min=2, max=9), 3: Dim("W", min=3, max=8)},)
    graph = stage(layer, (torch.ones(1, 3, 6, 6),), dynamic_shapes=shapes)
    assert sum("aten.where" in getattr(step, "op", "") for block in graph.blocks for step in block.steps) == masks
    for size in ((2, 3), (9, 8), (5, 6), (9, 3)):
        x = torch.randn(1, 3, *size)
        torch.testing.assert_close(graph.interpret()(x), layer(x))


def test_windows_of_all_that_there_is():
    model = lambda x: (F.avg_pool2d(x, x.shape[2:]), F.max_pool2d(x, (x.shape[2], x.shape[3])), F.avg_pool2d(x, x.size()[-2:]).flatten(1))  # noqa: E731
    compare(model, (2, 2, 5, 6), {**IMAGE, 2: Dim("H", max=5)})
    with pytest.raises(UnsupportedError, match="avg_pool2d"):
        compare(lambda x: F.avg_pool2d(x, (x.shape[3], 2)), (2, 2, 5, 6), IMAGE)


def test_volumes():
    sizes = {2: Dim("T", min=2, max=3), 3: Dim("H", min=2, max=5), 4: Dim("W", min=2, max=4)}
    compare(
        lambda x: (F.max_pool3d(x, 2, ceil_mode=True), F.avg_pool3d(x, 2), F.interpolate(x, scale_factor=2, mode="trilinear")),
        (1, 2, 3, 5, 4),
        sizes,
    )


# -- sizes ------------------------------------------------------------------------------------------------------------------------
def to_multiple(x):
    h, w = x.shape[-2:]
    y = F.pad(x, (0, -w % 4, 0, (4 - h % 4) % 4))
    b, c, hp, wp = y.shape
    blocks = y.view(b, c, hp // 4, 4, wp // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, c)
    y = (blocks + blocks.mean(1, keepdim=True)).view(b, hp // 4, wp // 4, 4, 4, c).permute(0, 5, 1, 3, 2, 4).reshape(b, c, hp, wp)
    return F.pixel_shuffle(F.pixel_unshuffle(y, 2), 2)[:, :, :h, :w] + x


SIZES = {
    "multiples": to_multiple,
    "both sides": lambda x: F.pad(x, (-x.shape[3] % 4 // 2, -x.shape[3] % 4 - -x.shape[3] % 4 // 2)).view(*x.shape[:3], -1, 4),
    "even": lambda x: F.pixel_unshuffle(x[:, :, : x.shape[2] // 2 * 2, : x.shape[3] - x.shape[3] % 2], 2),
    "as long as it was": lambda x: (
        x + F.conv_transpose2d(F.max_pool2d(x, 2), torch.ones(2, 2, 3, 3), stride=2)[:, :, : x.shape[2], : x.shape[3]]
    ),
    "tokens": lambda x: (x.flatten(2).mT * 2 + x.flatten(2).mT.mean(1, keepdim=True)).mT.view(x.shape),
    "rows": lambda x: (x.flatten(1, 2), x.reshape(x.shape[0], 2 * x.shape[2], -1), x.transpose(1, 2).reshape(x.shape[0], -1, x.shape[3])),
    "channels": lambda x: F.channel_shuffle(x, 2).unflatten(1, (2, 1)),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_known_again(name):
    graph = compare(SIZES[name], (2, 2, 5, 6), {0: Dim("B", max=2), 2: Dim("H", min=2, max=5), 3: Dim("W", min=2, max=6)})
    assert len(graph.blocks) == 1  # nothing of them is asked at run time


def computed(draw, depth):
    if not depth:
        return draw.choice(["h", "w", str(draw.randint(-3, 7))])
    one, other, by = computed(draw, depth - 1), computed(draw, depth - 1), draw.choice([2, 3, 4, 6])
    return draw.choice(
        [f"({one} + {other})", f"({one} - {other})", f"(-{one})", f"({one} * {by - 4})", *(f"({one} {op} {by})" for op in ("//", "%"))]
    )


def of_sizes(a, b):
    def model(x):
        names = dict(zip("hw", x.shape))
        p, q = eval(a, {}, names), eval(b, {}, names)
        made = torch.zeros(max(p % 7 - q % 5, 0) + 1), x.new_ones(x.shape[0] + -x.shape[0] % 3, p % 3)
        return p, q, p - q, p == q, p < q, p <= q, *made

    return model


def test_sums_and_quotients_at_random():
    """What is known of numbers is so: comparisons, bounds and sizes that follow from it are those of eager."""
    draw = random.Random(1)
    for _ in range(20):
        model = of_sizes(computed(draw, 4), computed(draw, 4))
        call = stage(model, (torch.ones(3, 4),), dynamic_shapes=({0: Dim("H", max=9), 1: Dim("W", max=7)},)).interpret()
        for h, w in itertools.product((1, 2, 5, 9), (1, 4, 6, 7)):
            want, got = model(torch.ones(h, w)), call(torch.ones(h, w))
            assert want[:6] == got[:6], (h, w)
            assert [t.shape for t in want[6:]] == [t.shape for t in got[6:]], (h, w)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_pads_of_numbers_of_the_run(mode):
    sizes = {0: Dim("B", max=2), 2: Dim("H", max=5), 3: Dim("W", max=6)}
    model = lambda x: F.pad(x, (x.shape[3] % 3, -x.shape[3] % 4, 1, -x.shape[2] % 4), mode)  # noqa: E731
    compare(model, (2, 1, 5, 6), sizes, errors=mode != "replicate")


EMPTY = {0: Dim("B", min=0, max=2), 2: Dim("H", min=0, max=4), 3: Dim("W", min=0, max=4)}


def test_empty_ones():
    for model in (
        to_multiple_of_two,
        lambda x: F.pixel_shuffle(x, 2),
        lambda x: F.unfold(x, 2),
        lambda x: x + torch.linspace(0, 2, x.shape[3]),
    ):
        compare(model, (2, 4, 4, 4), EMPTY)
    compare(lambda x: (F.unfold(x, 2), x.reshape(x.shape[3] - 1, 0)), (0, 1, 4, 4), {3: Dim("W", min=2, max=4)})
    with pytest.raises(LimitError, match="pixel_unshuffle"):
        compare(lambda x: F.pixel_unshuffle(x, 2), (2, 4, 4, 4), {2: Dim("H", min=0, max=4)})


def to_multiple_of_two(x):
    return F.max_pool2d(F.pad(x, (0, x.shape[3] % 2, 0, -x.shape[2] % 2)), 2, ceil_mode=True) if x.shape[2] * x.shape[3] else x


# -- between pixels ---------------------------------------------------------------------------------------------------------------
def warped(x):
    b, _, h, w = x.shape
    y, rows = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    grid = torch.stack([(rows + x[:, 0]) / max(w - 1, 1) * 2 - 1, (y + x[:, 1]) / max(h - 1, 1) * 2 - 1], -1)
    return F.grid_sample(x, grid, align_corners=True), F.grid_sample(x, grid * 2, padding_mode="border", align_corners=False)


def turned(x):
    theta = torch.tensor([[1.0, 0.2, 0.1], [-0.3, 0.9, 0]]).expand(x.shape[0], -1, -1)
    return [F.grid_sample(x, F.affine_grid(theta, x.shape, align_corners=a), align_corners=a) for a in (False, True)]


def test_between_pixels():
    sizes = {0: Dim("B", max=2), 2: Dim("H", max=5), 3: Dim("W", max=6)}
    compare(warped, (2, 2, 5, 6), sizes)
    compare(turned, (2, 2, 5, 6), sizes)
    compare(lambda x: F.unfold(x, (2, 3), dilation=(1, 2), padding=2, stride=(2, 1)), (2, 2, 5, 6), sizes)
    with pytest.raises(UnsupportedError, match="grid_sample"):
        compare(lambda x: F.grid_sample(x, x.permute(0, 2, 3, 1), mode="bicubic", align_corners=False), (2, 2, 5, 6), sizes)


# -- networks ---------------------------------------------------------------------------------------------------------------------
class UNet(nn.Module):
    def __init__(self, mode, ceil):
        super().__init__()
        self.down, self.up = nn.ModuleList([nn.Conv2d(i, o, 3, padding=1) for i, o in ((3, 4), (4, 6), (6, 8))]), nn.ModuleList()
        self.up.extend([nn.Conv2d(14, 6, 3, padding=1), nn.Conv2d(10, 4, 3, padding=1)])
        self.mode, self.ceil = mode, ceil

    def forward(self, x):
        skips = []
        for k, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2, ceil_mode=self.ceil) if k else x).relu()
            skips.append(x)
        for layer, skip in zip(self.up, skips[1::-1]):
            align = True if self.mode == "bilinear" else None
            x = layer(torch.cat([skip, F.interpolate(x, size=skip.shape[-2:], mode=self.mode, align_corners=align)], 1)).relu()
        return x


class Windows(nn.Module):
    """Attention in windows that are moved by half of one, as Swin's."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x):
        b, h, w, c = x.shape
        k, half, whole = 4, 2, x
        x = F.pad(x, (0, 0, 0, (k - w % k) % k, 0, (k - h % k) % k))
        _, hp, wp, _ = x.shape
        parts = torch.roll(x, (-half, -half), (1, 2)).view(b, hp // k, k, wp // k, k, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, k * k, c)
        q, key, v = self.qkv(parts).chunk(3, -1)
        regions, number = torch.zeros(1, hp, wp, 1), 0
        for rows, columns in itertools.product((slice(0, -k), slice(-k, -half), slice(-half, None)), repeat=2):
            regions[:, rows, columns, :] = number
            number += 1
        of = regions.view(hp // k, k, wp // k, k).permute(0, 2, 1, 3).reshape(-1, k * k)
        mask = (of.unsqueeze(1) != of.unsqueeze(2)) * -100.0
        scores = (q @ key.mT).view(b, -1, k * k, k * k) + mask
        y = (scores.view(-1, k * k, k * k).softmax(-1) @ v).view(b, hp // k, wp // k, k, k, c).permute(0, 1, 3, 2, 4, 5)
        return whole + torch.roll(y.reshape(b, hp, wp, c), (half, half), (1, 2))[:, :h, :w]


NETWORKS = {
    "nearest": (lambda: UNet("nearest", False), (2, 3, 9, 8), {2: Dim("H", min=4, max=9), 3: Dim("W", min=4, max=8)}),
    "bilinear": (lambda: UNet("bilinear", True), (2, 3, 9, 8), {2: Dim("H", max=9), 3: Dim("W", max=8)}),
    "windows": (Windows, (2, 9, 7, 4), {1: Dim("H", max=9), 2: Dim("W", max=7)}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name):
    torch.manual_seed(0)
    make, shape, sizes = NETWORKS[name]
    compare(make().eval(), shape, {0: Dim("B", max=2), **sizes}, [(2, 9, 7), (1, 4, 4), (2, 5, 6), (1, 7, 7), (2, 8, 5)])


def test_a_complex_rotation():
    def model(x):
        b, t, _ = x.shape
        angles = torch.outer(torch.arange(t).float(), torch.tensor([1.0, 0.1]))
        z = torch.view_as_complex(x.view(b, t, 2, 2)) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(z).flatten(2)

    inputs = [(torch.randn(b, t, 4),) for b, t in [(2, 5), (1, 1), (3, 4)]]
    check(model, inputs, dynamic_shapes={"x": {0: Dim("B", max=3), 1: Dim("T", max=5)}})
