# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors with several dimensions whose lengths are known only at run time: batches of sequences, images, scores of attention.

What lies behind a size in a buffer is NaN here, or a number that is no index.
"""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from differential import check, compare_at_sizes
from torch import nn

from dycl_tvm.errors import InputError, UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import LimitError
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.sizes import Dim

B, T, M = Dim("B", max=4), Dim("T", max=6), Dim("M", max=5)
H, W = Dim("H", min=3, max=9), Dim("W", min=3, max=8)
#: The bounds, after the largest a smaller one, and sizes in between.
SIZES = [(2, 3), (4, 6), (1, 1), (3, 5), (1, 6), (4, 1)]
pytestmark = pytest.mark.usefixtures("nothing_behind_the_sizes")


def of(*shape, sizes=None):
    """Return tensors of a shape in which -1 and -2 stand for the two sizes, one for each pair of them."""
    return [(torch.randn([dict(zip((-1, -2), pair)).get(n, n) for n in shape]),) for pair in sizes or SIZES]


def masks(b, t):
    made = torch.rand(b, t) > 0.4
    made[:, 0] = True
    return made


def with_masks(*make):
    return [(*(m(b, t) for m in make), masks(b, t)) for b, t in SIZES]


def sequences(b, t):
    return torch.randn(b, t, 8)


def ids(b, t):
    return torch.randint(0, 20, (b, t))


torch.manual_seed(0)
LINEAR, EMBEDDING = nn.Linear(8, 8), nn.Embedding(20, 8)


# -- functions ------------------------------------------------------------------------------------------------------------------
def elements(x):
    row = x.mean((1, 2))
    return LINEAR(x).relu() + x[:, :1] - row[:, None, None], x * torch.arange(x.shape[1])[:, None], x.clamp(min=0).sqrt(), -x.mT


def reduced(x):
    some = x.mean(1), x.mean(0), x.mean(), x.sum((0, 1)), x.amax(1), x.max(), x.min(1), x.argmax(1), x.var(1), x.std(0), x.norm(dim=1)
    return some, x.softmax(1), x.log_softmax(-1), x.logsumexp(0), (x > 0).any(1), (x > 0).all(), x.cumsum(1), x.prod(1)


def shaped(x):
    b, t, _ = x.shape
    heads = x.view(b, t, 2, 4).transpose(1, 2)
    rows = x.view(-1, 8)
    known = x.view(b * t, 8).view(b, -1, 8), rows.view(b, t, -1), x.reshape(b, -1), x.flatten(2), x.flatten(), x.flatten(0, 1)
    turned = x.transpose(0, 1).reshape(-1, 8), x.transpose(0, 1).reshape(t, b * 8), heads.reshape(b * 2, t, 4), heads.flatten(1)
    return heads.transpose(1, 2).reshape(b, t, 8), known, turned, rows.sum(0), x.unflatten(-1, (2, -1)), x.view(b, -1).view(x.shape)


def parts(x):
    places = torch.arange(x.shape[0])
    items = x[0], x[:, 0], x[:, -1], x[-1, -1], x[..., 2], x[:, None], x[:, 1:], x[:, :-1], x[1:], x[:, ::2], x[:2, :3], x.unbind(2)[1]
    picked = x[places, x[:, :, 0].argmax(1)], x[x.sum(-1) > 0], x[:, :, 0].nonzero(), x.masked_select(x > 0), x.index_select(1, places[:1])
    return items, picked, x.gather(1, (x > 9).long()), x.narrow(1, 0, 1), x[places[:, None], torch.zeros_like(x[0, :, 0]).long()]


def made(x):
    b, t, _ = x.shape
    plain = torch.zeros(b, t), torch.full((t, t), 2.0), torch.ones_like(x), x.new_zeros(b, 3), torch.arange(t)[None].expand(b, -1)
    longer = F.pad(x, (0, 0, 1, 2)), F.pad(x, (0, 0, 0, 6 - t)), x[:1].expand(b, -1, -1), x.expand(2, -1, -1, -1), x.tril()
    return plain, longer, torch.cat([x, x], 1), torch.cat([x, x]), torch.stack([x, -x], 2), torch.cat([x.new_zeros(b, 1, 8), x], 1)


def products(x):
    scores = x @ x.mT / 3
    causal = (scores + torch.full(scores.shape[1:], float("-inf")).triu(1)).softmax(-1) @ x
    return causal, torch.bmm(x, x.transpose(1, 2)), torch.einsum("bid,bjd->bij", x, x), torch.einsum("bid,bie->de", x, x), x @ x[0].T


def in_order(x):
    some = (
        x.topk(min(2, len(x)), 0)[0],
        x.sum(-1).topk(1, 1),
        x.median(1)[0],
        x.median(2)[1],
        x.kthvalue(1, 0, keepdim=True),
        x.unfold(1, 1, 2),
    )
    return some, x.sort(1)[0], x.sort(0)[1], x.flip(1), x.flip(0, 1), x.topk(2, -1)[0], x.roll(1, 1), x.diff(dim=1), x.numel(), len(x)


def in_place(x):
    y = torch.zeros(x.shape[0], x.shape[1])
    y[:, 0] = 1
    y += x.mean(-1)
    y[y > 0] = -1
    z = x.clone()
    z[:, 0] = 0.0
    z[0].mul_(2)
    return y, z.masked_fill_(z > 1, 0.5)


def trips(x):
    h, rows = torch.zeros(x.shape[0], 8), 0
    for t in range(x.shape[1]):
        h = torch.tanh(h + x[:, t])
    for row in x:
        rows = rows * 0.5 + row.sum(0)
    return h, rows, x.shape


def until_small(x):
    n = 0
    while x.abs().mean() > 0.2:
        x, n = torch.tanh(LINEAR(x)) * 0.7 + x * 0.1, n + 1
    return x, n


def by_sizes(x):
    if x.shape[0] > 2 and x.shape[1] > 3:
        x = x[:, 1:] if x.sum() > 0 else x
    return LINEAR(x) if x.size(1) > 1 else x[:, 0] * 2


def pruned(x):
    for _ in range(2):
        x = LINEAR(x) + x
        scores = x.mean((0, 2))
        x = x[:, (scores > scores.mean()) | (torch.arange(x.shape[1]) == 0)]
    return x, x[x[:, 0, 0] > 0, 0], x[:, :, x[0, 0] > 0]


def changed_in_trips(x):
    y, n = x.clone(), 0
    while y.abs().mean() > 0.3 and n < 4:
        y[:, 0] = y[:, 0] * 0.5
        y = y * 0.6
        y += x * 0.01
        n = n + 1
    return y, n


def longer_in_trips(x):
    n = 0
    while n < 3 and x.sum() < 20:
        x, n = torch.cat([x, LINEAR(x[:, -1:]).tanh()], 1), n + 1
    return x


FUNCTIONS = [
    elements,
    reduced,
    shaped,
    parts,
    made,
    products,
    in_order,
    in_place,
    trips,
    until_small,
    by_sizes,
    pruned,
    changed_in_trips,
    longer_in_trips,
]


@pytest.mark.parametrize("program", FUNCTIONS, ids=lambda f: f.__name__)
def test_right(program):
    check(program, of(-1, -2, 8), dynamic_shapes={"x": {0: B, 1: T}})


def test_empty_ones():
    sizes = [(2, 3), (0, 3), (2, 0), (0, 0), (3, 2)]
    shapes = {"x": {0: Dim("B", min=0, max=3), 1: Dim("T", min=0, max=3)}}
    check(
        lambda x: (x.sum(1), x.mean(), x.flatten(), torch.cat([x, x], 1), x.reshape(-1, 8)),
        of(-1, -2, 8, sizes=sizes),
        dynamic_shapes=shapes,
    )
    check(lambda x: x.view(x.shape[0], -1), of(-1, -2, 8, sizes=sizes), dynamic_shapes=shapes, paths=2)
    check(lambda x: x.amax(1), of(-1, -2, 8, sizes=sizes), dynamic_shapes=shapes, paths=2)


def of_data(x):
    some, others = x[x > 0], x[x < 0.5]
    scores = some[:, None] * others
    return some + some[:, None], torch.outer(x, x)[: len(some), len(some) :], torch.meshgrid(some, others), scores.softmax(0), scores.sum()


def test_lengths_that_the_data_decides():
    check(of_data, [(x,) for x in (torch.randn(5), torch.ones(5), -torch.ones(5), torch.randn(5))])


def test_a_product_is_known_again():
    def model(x):
        b, t, _ = x.shape
        return (x.view(b * t, 8) + x.flatten(0, 1) * x.reshape(-1, 8)).view(b, t, 8)

    graph = check(model, of(-1, -2, 8), dynamic_shapes={"x": {0: B, 1: T}})
    assert len(graph.blocks) == 1  # no test of sizes


# -- models ---------------------------------------------------------------------------------------------------------------------
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x, mask=None, causal=False):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return x + self.out(y.transpose(1, 2).contiguous().view(b, t, d))


class Decoder(nn.Module):
    """Leaves early where the whole batch is sure."""

    def __init__(self):
        super().__init__()
        self.ids, self.places = nn.Embedding(20, 8), nn.Embedding(6, 8)
        self.blocks, self.head = nn.ModuleList([Attention() for _ in range(2)]), nn.Linear(8, 20)

    def forward(self, ids):
        x = self.ids(ids) + self.places(torch.arange(ids.size(1)))
        for number, block in enumerate(self.blocks):
            x = block(x, causal=True)
            if (self.head(x[:, -1]).softmax(-1).max(-1)[0] > 0.12).all():
                return self.head(x), number
        return self.head(x), -1


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.ids, self.block, self.head = nn.Embedding(20, 8), Attention(), nn.Linear(8, 3)

    def forward(self, ids, mask):
        x = self.block(self.ids(ids), mask[:, None, None] | mask[:, None, :, None])
        weights = mask.to(x.dtype).unsqueeze(-1)
        return self.head((x * weights).sum(1) / weights.sum(1).clamp(min=1)), mask.sum(1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x, mask):
        return self.layers(x, src_key_padding_mask=~(mask | (torch.arange(mask.shape[1]) == 0)))


class BothSides(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, x, other):
        return self.layers(other, x, tgt_mask=self.layers.generate_square_subsequent_mask(x.shape[1]))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.LSTM(8, 5, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.net(x)


SEQUENCES = {"x": {0: B, 1: T}}
MASKED = {"mask": {0: B, 1: T}}
MODELS = {
    "decoder": (Decoder, [(ids(b, t),) for b, t in SIZES], {"ids": {0: B, 1: T}}),
    "pooled": (Pooled, with_masks(ids), {"ids": {0: B, 1: T}, **MASKED}),
    "encoder": (Encoder, with_masks(sequences), {**SEQUENCES, **MASKED}),
    "both sides": (BothSides, [(sequences(b, t), sequences(b, t % 5 + 1)) for b, t in SIZES], {**SEQUENCES, "other": {0: B, 1: M}}),
    "recurrent": (Recurrent, of(-1, -2, 8), SEQUENCES),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    torch.manual_seed(2)
    make, inputs, shapes = MODELS[name]
    check(make().eval(), inputs, dynamic_shapes=shapes)


IMAGES = [(5, 6), (9, 8), (3, 3), (3, 8), (9, 3), (8, 7)]


def layers(x):
    weight = torch.linspace(-1, 1, 36).view(2, 2, 3, 3)
    wide = F.conv2d(x, weight, stride=2, padding=1), F.conv_transpose2d(x, weight[..., :2, :2], stride=2), F.interpolate(x, scale_factor=2)
    pooled = F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1), x.mean((2, 3)), x.amax((-2, -1))
    return wide, pooled, F.group_norm(x, 1), F.instance_norm(x), F.pad(x, (1, 1, 2, 0)), x.flatten(2).transpose(1, 2).softmax(1)


def test_images():
    check(layers, of(2, 2, -1, -2, sizes=IMAGES), dynamic_shapes={"x": {2: H, 3: W}})
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, 2, 1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
    )
    inputs = [(torch.randn(h % 3 + 1, 2, h, w),) for h, w in IMAGES]
    check(net.eval(), inputs, dynamic_shapes={"input": {0: Dim("N", max=3), 2: H, 3: W}})


EDGES = {
    "batch": (
        lambda x: (
            F.instance_norm(x),
            F.group_norm(x, 2),
            F.pad(x, (1, 2, 0, 0), mode="replicate"),
            F.pad(x, (2, 2, 0, 1), mode="reflect"),
        ),
        {0: Dim("N", min=0, max=3)},
    ),
    "images": (
        lambda x: tuple(F.pad(x, (1, 2, 1, 0), mode=mode) for mode in ("reflect", "replicate", "circular")),
        {0: Dim("N", min=0, max=2), 2: Dim("H", min=0, max=4), 3: Dim("W", min=1, max=4)},
    ),
    "one side": (lambda x: F.pad(x, (1, 1, 0, 0), mode="reflect"), {2: Dim("H", min=0, max=4)}),
    "means": (
        lambda x: (F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), F.avg_pool2d(x, (3, 2), (2, 1), (1, 0), False, False)),
        {0: Dim("N", min=0, max=2), 2: Dim("H", min=1, max=4), 3: Dim("W", min=1, max=4)},
    ),
    "repeated": (lambda x: (x.repeat(2, 1, 1, 3), x.repeat(1, 2, 2, 1, 1)), {0: Dim("N", min=0, max=2), 3: Dim("W", min=0, max=4)}),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_of_images(name):
    """At every size what eager gives, or an error where it raises one."""
    model, sizes = EDGES[name]
    call = stage(model, (torch.ones(2, 2, 4, 4),), dynamic_shapes=(sizes,)).interpret()
    every = itertools.product(*(range(s.min, s.max + 1) for s in sizes.values()))
    assert (name in ("images", "one side", "means")) == compare_at_sizes(model, call, (2, 2, 4, 4), sizes, every)


def test_sizes_at_random():
    """Each dimension of any size, in any order: what a larger call left behind changes nothing."""
    torch.manual_seed(3)
    model, draw = Pooled().eval(), random.Random(0)
    graph: HCFG = stage(model, (ids(2, 3), masks(2, 3)), dynamic_shapes={"ids": {0: B, 1: T}, **MASKED})
    for _ in range(12):
        given = [make(*pair) for pair in [(draw.randint(1, 4), draw.randint(1, 6))] for make in (ids, masks)]
        for got, want in zip(graph.interpret()(*given), model(*given), strict=True):
            torch.testing.assert_close(got, want)


def test_beyond_the_bounds():
    call = stage(lambda x, y: x.sum() + y.sum(), (torch.ones(2, 3), torch.ones(3, 2)), dynamic_shapes=[[B, T], [T, B]]).interpret()
    assert call(torch.ones(4, 6), torch.ones(6, 4)) == 48
    for shape, other, message in [
        ((5, 3), (3, 5), "dimension 0 is 5, expected B = 1 to 4"),
        ((2, 7), (7, 2), "dimension 1 is 7, expected T = 1 to 6"),
        ((2, 3), (3, 4), "dimension 1 is 4, expected 2, because dimension 0 of 'x' is 2"),
    ]:
        with pytest.raises(InputError, match=message):
            call(torch.ones(shape), torch.ones(other))


def test_refused():
    with pytest.raises(UnsupportedError, match=r"one such dimension only, not of a tensor \[n, m, 8\].*lengths n, m .*at most 4, 6"):
        stage(lambda x: x.tolist(), of(-1, -2, 8)[0], dynamic_shapes={"x": {0: B, 1: T}})


# -- sizes of zero and one --------------------------------------------------------------------------------------------------------
NONE_B, NONE_T = Dim("B", min=0, max=2), Dim("T", min=0, max=3)


def behind_the_first(x):
    parts = x[:, 1:].flatten(1), x[:, 2:].flatten(1), x[1:, 1:].flatten(0, 1), x[:, 1:][:, 1:].flatten(1)
    return parts, x[:, x.shape[0] :].flatten(1), x[:, 1:].reshape(-1, 4)


def eights(x):
    return F.pad(x, (0, 0, 0, -x.shape[1] % 3)).unflatten(1, (-1, 3)).amax(2), x.unflatten(2, (-1, 2))


@pytest.mark.parametrize("program", [behind_the_first, eights], ids=lambda f: f.__name__)
def test_parts_that_may_be_empty(program):
    """A part is no longer than what is left of its tensor, and the parts of a dimension follow from it alone."""
    call = stage(program, (torch.zeros(2, 3, 4),), dynamic_shapes=({0: NONE_B, 1: NONE_T},)).interpret()
    for b, t in itertools.product(range(3), range(4)):
        x = torch.randn(b, t, 4)
        torch.testing.assert_close(call(x), program(x), msg=lambda text: f"at {b}, {t}: {text}")  # noqa: B023


def merged_heads(x):
    b, t, _ = x.shape
    q = x.view(b, t, 2, 4).transpose(1, 2)
    return ((q @ q.mT).softmax(-1) @ q).transpose(1, 2).reshape(b, t, 8).view(b * t, 8)


def out_of_order(x):
    b, t, _ = x.shape
    return x.view(b, t, 2, 2).permute(0, 3, 1, 2).flatten(0, 1).view(b * 2, t * 2)


def merged_lengths(x):
    b, t, _ = x.shape
    return x.view(b, t, 2, 2).permute(0, 1, 3, 2).transpose(0, 1).flatten(0, 1).view(b * t * 2, 2)


def test_a_copy_lies_in_order():
    """What eager copies, or leaves in order where it does not, is viewed further."""
    check(merged_heads, of(-1, -2, 8), dynamic_shapes=({0: B, 1: T},))
    for program in (out_of_order, merged_lengths):
        with pytest.raises(UnsupportedError, match="view"):  # of one sequence, or one token, the first is a view, and not in order
            stage(program, (torch.zeros(4, 6, 4),), dynamic_shapes=({0: B, 1: T},))


@pytest.mark.parametrize(
    "program", [F.instance_norm, lambda x: F.group_norm(x, 2), lambda x: F.group_norm(x.flatten(2), 2), lambda x: F.group_norm(x, 1)]
)
def test_no_mean_of_one_element(program):
    """Several lengths may be 1 together: PyTorch refuses what is normalised then."""
    sizes = {0: Dim("B", min=0, max=2), 2: Dim("H", max=3), 3: Dim("W", max=2)}
    call = stage(lambda x: program(x), (torch.zeros(2, 2, 3, 2),), dynamic_shapes=(sizes,)).interpret()
    for b, h, w in itertools.product(range(3), range(1, 4), range(1, 3)):
        x = torch.randn(b, 2, h, w)
        try:
            want = program(x)
        except ValueError:
            with pytest.raises(ValueError, match="Expected more than 1"):
                call(x)
            continue
        torch.testing.assert_close(call(x), want)


def test_grids_and_pixels_of_no_images():
    sizes = {0: NONE_B, 2: Dim("H", max=3)}
    grid = stage(
        lambda x: F.affine_grid(x[:, :2, 0], list(x.shape), False), (torch.zeros(2, 3, 3, 3),), dynamic_shapes=(sizes,)
    ).interpret()
    with pytest.raises(ValueError, match="output size"):
        grid(torch.zeros(0, 3, 2, 3))
    apart = stage(lambda x: F.pixel_unshuffle(torch.cat([x, x], 2), 2), (torch.zeros(2, 3, 3, 4),), dynamic_shapes=(sizes,)).interpret()
    x = torch.randn(1, 3, 2, 4)
    torch.testing.assert_close(apart(x), F.pixel_unshuffle(torch.cat([x, x], 2), 2))
    with pytest.raises(LimitError, match="no pixels"):
        apart(torch.zeros(0, 3, 2, 4))
