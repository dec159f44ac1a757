# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sizes that the data decide and that nothing bounds but the user: what is computed along them, and random numbers of such sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from differential import check, same, stage
from torch import nn
from torch.utils._pytree import tree_leaves

import dycl_tvm
from dycl_tvm.errors import UnsupportedError, UsageError

MOST = 12
LENGTHS = (MOST, 5, 2, 1, 0, MOST - 1, 3, 4, -1)


def given(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(n + 7)), torch.tensor(n)


INPUTS = [given(n) for n in LENGTHS]


class Network(nn.Module):
    """Layers, and one of the programs below, which uses them."""

    def __init__(self, program):
        super().__init__()
        torch.manual_seed(0)
        self.program = program
        self.same, self.wide = nn.Conv1d(4, 4, 3, padding=1), nn.Conv1d(4, 4, 5, padding=4, dilation=2)
        self.apart, self.plain = nn.Conv1d(4, 4, 3, padding=1, groups=4), nn.Conv1d(4, 4, 3)
        self.fewer, self.even = nn.Conv1d(4, 4, 4, stride=2, padding=1), nn.Conv1d(4, 4, 4, padding="same", dilation=3)
        self.up, self.odd = nn.ConvTranspose1d(4, 4, 8, 4, 2), nn.ConvTranspose1d(4, 3, 5, 3, 1, output_padding=2)
        self.planes = nn.Conv2d(1, 2, 3, padding=1, stride=(1, 2))
        self.batch, self.group, self.instance = nn.BatchNorm1d(4), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True)
        self.heads, self.rows = nn.MultiheadAttention(4, 2, batch_first=True), nn.MultiheadAttention(4, 2)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True), 2)
        self.decoder = nn.TransformerDecoderLayer(4, 2, 8, batch_first=True)
        self.eval()

    def forward(self, x, n):
        return self.program(self, x, int(n))


def frames(x, n):
    """Return a tensor of four channels, what lies behind whose end goes on."""
    return torch.arange(n).float().view(1, 1, -1) * x.mean() + x[:, :, :1]


def beyond(x, n):
    """Return a tensor in whose place of the end, and behind it, there is an infinity, or no number."""
    return 1 / (n - torch.arange(n).float()).view(1, 1, -1) * x[:, :, :1]


def made(net, x, n):
    return torch.arange(n), torch.arange(0, n) + 1, torch.arange(2, n + 2), torch.zeros(2, n), torch.ones(n, 3).cumsum(0), x.new_zeros(1, n)


def masks(net, x, n):
    y = frames(x, n)
    kept = (torch.arange(n) % 2 == 0).float()
    return (y * kept).sum(-1) / kept.sum().clamp_min(1), y.softmax(2), y.cumsum(2), torch.where(kept > 0, y, -y), y.flip(2), n, y.shape


def convolved(net, x, n):
    y = frames(x, n)
    return net.same(y), net.wide(y), net.apart(y), net.even(y), net.same(y[0]), net.planes(y.unsqueeze(1)), net.up(y), net.odd(y)


def too_short(net, x, n):
    return net.plain(frames(x, n))


def striding(net, x, n):
    y = frames(x, n)
    return net.fewer(y) + F.conv1d(y, torch.ones(4, 4, 2), stride=2), net.fewer(net.fewer(net.same(y)))


def down_and_up(net, x, n):
    return net.up(net.fewer(frames(x, n)))


def not_numbers(net, x, n):
    y = beyond(x, n)
    return net.same(y), net.up(y), net.batch(y), net.group(y), net.same(torch.log(MOST - torch.arange(n)).expand(1, 4, -1) * 1.0)


def pooled(net, x, n):
    y = beyond(x, n)
    return F.max_pool1d(y, 3, 2, 1), F.avg_pool1d(y, 3, 1, 1), F.max_pool1d(-y, 2)


def padded(net, x, n):
    y = beyond(x, n)
    return (
        net.same(F.pad(y, (2, 1))),
        F.pad(y, (1, 1), mode="replicate"),
        F.pad(y, (1, 0), mode="reflect"),
        F.pad(y, (1, 1), mode="circular"),
    )


def resampled(net, x, n):
    return F.interpolate(beyond(x, n), scale_factor=3), F.glu(beyond(x, n), 1), beyond(x, n).chunk(2, 1)[1]


def normalised(net, x, n):
    return net.batch(frames(x, n)), net.group(frames(x, n)), net.group(frames(x, n).unsqueeze(2).expand(1, 4, 2, -1) * 1.0)


def by_instance(net, x, n):
    return net.instance(beyond(x, n))


def attended(net, x, n):
    y, heads = beyond(x, n).transpose(1, 2), frames(x, n).transpose(1, 2).reshape(1, n, 2, 2).transpose(1, 2)
    several = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(1, n, 4)
    causal = F.scaled_dot_product_attention(y, y, y, is_causal=True)
    return several, causal, F.scaled_dot_product_attention(y, y, y, attn_mask=torch.arange(n)[None] > 0)


def transformed(net, x, n):
    """Attention of a module, of what has a length to itself, and to and of a tensor of fixed length."""
    y, fixed, turned = beyond(x, n).transpose(1, 2), x.transpose(1, 2), frames(x, n).permute(2, 0, 1)
    out = [net.heads(q, k, k, need_weights=False)[0] for q, k in ((y, y), (y, fixed), (fixed, y))]
    return out, net.rows(turned, turned, turned, need_weights=False)[0], net.encoder(y), net.decoder(y, fixed)


def transformed_in_part(net, x, n):
    n = max(n, 1)  # what attention of no rows does with a mask is another test
    y, left_out = frames(x, n).transpose(1, 2), (torch.arange(n) > 1)[None]
    return net.heads(y, y, y, key_padding_mask=left_out, need_weights=False)[0], net.encoder(y, src_key_padding_mask=left_out)


def activated(net, x, n):
    y = beyond(x, n)
    return F.selu(y), F.hardswish(y), F.logsigmoid(y), torch.lerp(y, y * 2, 0.3), torch.addcmul(y, y, x[:, :, :1]), frames(x, n).cumprod(2)


def split_views(net, x, n):
    y = frames(x, n).transpose(1, 2)
    return [part.view(1, n, 2, 1).transpose(1, 2) for part in y.chunk(2, 2)]


def times(x, n):
    """Return how often each of three rows is repeated: ``n`` times together."""
    return (torch.arange(3) < 1).long() * (n - n // 2) + (torch.arange(3) == 2).long() * (n // 2)


def repeated(net, x, n):
    y = x.repeat_interleave(times(x, n), 2)
    return y, torch.repeat_interleave(x[0, 0], times(x, n)), torch.arange(n).repeat_interleave(torch.arange(n) % 2), net.same(y)


def repeated_within_bounds(net, x, n):
    return x.repeat_interleave(times(x, n).clamp(0, 4), 2), x[:, :, :1].repeat(1, 2, n), x[0, 0, :2].repeat(min(n, 5) if n > 0 else 0)


def repeated_alike(net, x, n):
    return x.repeat_interleave(n // 3, 2), torch.repeat_interleave(x[0, 0], n // 3)


def made_one_tensor(net, x, n):
    ys = [x[0].t().repeat_interleave(times(x, n) // k, 0) for k in (1, 2)]
    return torch.nn.utils.rnn.pad_sequence(ys, batch_first=True), torch.nn.utils.rnn.pad_sequence([*ys, x[0].t()], padding_value=2.0)


def regulated(net, x, n):
    """Repeat rows one by one, as a length regulator does, for two sequences that are padded to the longer one."""
    outs = []
    for k in (1, 2):
        rows = [row.expand(max(int(t), 0), -1) for row, t in zip(x[0].t(), times(x, n) // k)]
        outs.append(torch.cat(rows, 0))
    most = max(o.size(0) for o in outs)
    return torch.stack([F.pad(o, (0, 0, 0, most - o.size(0))) for o in outs])


def alignment(net, x, n):
    """Spread columns over frames by sums of durations, as in VITS."""
    durations = F.softplus(x[:, :1]).ceil()
    count = durations.sum([1, 2]).clamp_min(1).long() * 0 + n
    ends = durations.cumsum(-1).view(3, 1)
    inside = (torch.arange(count.max(), dtype=torch.float32).unsqueeze(0) < ends).float().view(1, 3, -1)
    path = inside - F.pad(inside, [0, 0, 1, 0, 0, 0])[:, :-1]
    return torch.matmul(path.transpose(1, 2), x.transpose(1, 2)).transpose(1, 2)


def in_branches_and_loops(net, x, n):
    y = x.sum()
    if x[0, 0, 0] > 0:
        y = y + torch.arange(n).sum()
    z = frames(x, n)
    for _ in range(3):
        z = z + net.same(z)
    return y, z, n + 1


PROGRAMS = [
    *(
        made,
        masks,
        convolved,
        too_short,
        striding,
        down_and_up,
        not_numbers,
        pooled,
        padded,
        resampled,
        normalised,
        by_instance,
        attended,
    ),
    *(transformed, transformed_in_part, activated, split_views, repeated, repeated_within_bounds, repeated_alike, made_one_tensor),
    *(regulated, alignment, in_branches_and_loops),
]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_right(program):
    check(Network(program), INPUTS, max_length=MOST)


@pytest.mark.parametrize("program", [convolved, not_numbers, padded, attended, transformed, repeated], ids=lambda f: f.__name__)
def test_compiled(program, tmp_path: Path):
    net = Network(program)
    art = dycl_tvm.build(net, INPUTS[0], target="llvm", max_length=MOST)
    run = dycl_tvm.load(art.export_library(tmp_path / "m.so"), art.save_params(tmp_path / "m.params"))
    for n in (MOST, 1, MOST, 3, 2, 6):
        try:
            with torch.no_grad():
                want = net(*given(n))
        except RuntimeError:
            with pytest.raises(dycl_tvm.RunError):
                run(*given(n))
        else:
            got = run(*given(n))
            pairs = list(zip(tree_leaves(want), tree_leaves(got), strict=True))
            for a, b in pairs:
                assert a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)
    with pytest.raises(dycl_tvm.RunError, match=rf"a size is above max_length = {MOST}\n.*test_bounded_sizes.py"):
        run(*given(MOST + 1))


@pytest.mark.parametrize("program", [made, convolved, repeated, regulated, alignment], ids=lambda f: f.__name__)
def test_beyond_the_bound(program):
    call = stage(Network(program), INPUTS[0], max_length=MOST).interpret()
    for n in (MOST + 1, 1000, 2**40):
        with pytest.raises(RuntimeError, match=f"a size is above max_length = {MOST}"):
            call(*given(2 * n if program is regulated else n))


def test_a_handler_of_the_programs_does_not_see_the_bound():
    def program(net, x, n):
        try:
            return torch.arange(n).sum()
        except RuntimeError:
            return torch.zeros(3)

    call = stage(Network(program), INPUTS[0], max_length=MOST).interpret()
    assert same(call(*given(4)), torch.tensor(6))
    with pytest.raises(RuntimeError, match="max_length"):
        call(*given(MOST + 1))


@pytest.mark.parametrize("program", [made, repeated, padded], ids=lambda f: f.__name__)
def test_without_a_bound(program):
    with pytest.raises(UnsupportedError, match=r"nothing bounds it(.|\n)*max_length=1000"):
        stage(Network(program), INPUTS[0])


def test_what_bounds_itself_needs_none():
    def program(net, x, n):
        return net.same(torch.zeros(1, 4, max(min(n, 9), 1)) + x[:, :, :1])

    check(Network(program), [*INPUTS, given(1000)])


def test_a_bound_that_is_none():
    for most in (0, -1, 2.5):
        with pytest.raises(UsageError, match="is no length"):
            dycl_tvm.build(Network(made), INPUTS[0], max_length=most)  # type: ignore[arg-type]


def always_too_short(net, x, n):
    """What there may be is shorter than the kernel, and its buffer is not."""
    return F.conv1d((torch.ones(1, 4, 12) * x.mean())[:, :, : int((x[0, 0] > 0).sum())], torch.ones(2, 4, 5))


REFUSED = {
    "for every length": always_too_short,
    "means by a number": lambda net, x, n: F.avg_pool2d(frames(x, n), 3, 1, 1, divisor_override=2),
    "another device": lambda net, x, n: torch.randn(n, device="meta"),
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
def test_refused(program):
    with pytest.raises(UnsupportedError):
        stage(Network(program), INPUTS[0], max_length=MOST)


DRAWS = {
    "row": lambda net, x, n: torch.randn(n),
    "rows": lambda net, x, n: (torch.randn(3, 2, n), torch.rand(2, n), torch.rand(1)),
    "planes": lambda net, x, n: torch.randn(2, n, 3),
    "like": lambda net, x, n: torch.randn_like(frames(x, n).contiguous()),
    "like a sum": lambda net, x, n: torch.randn_like(frames(x, n)),
    "like what is turned": lambda net, x, n: torch.randn_like(torch.ones(1, n, 20).transpose(1, 2)),
    "like several": lambda net, x, n: (torch.randn_like(torch.ones(2, 3, n).permute(2, 0, 1)), torch.rand_like(torch.ones(2, n, 3).mT)),
    "types": lambda net, x, n: (torch.randn(2, n, dtype=torch.float64), torch.rand(n, dtype=torch.bfloat16)),
    "in a branch": lambda net, x, n: (torch.randn(2, n) if x.sum() > 0 else torch.rand(n), torch.rand(2)),
}


def check_draws(net, call):
    for n in (MOST, 7, 1, 2, 0, 8, 5, MOST):
        torch.manual_seed(n)
        call.manual_seed(n)
        for _ in range(2):
            with torch.no_grad():
                want = net(*given(n))
            assert same(want, call(*given(n))), n


@pytest.mark.parametrize("program", DRAWS.values(), ids=DRAWS)
def test_as_many_are_drawn_as_in_eager(program):
    net = Network(lambda net, x, n: (program(net, x, n), torch.rand(3)))
    check_draws(net, stage(net, INPUTS[0], max_length=MOST).interpret())


def test_artefacts_draw_as_many(tmp_path: Path):
    net = Network(lambda net, x, n: (*[program(net, x, n) for name, program in DRAWS.items() if name != "in a branch"], torch.rand(3)))
    art = dycl_tvm.build(net, INPUTS[0], target="llvm", max_length=MOST)
    check_draws(net, dycl_tvm.load(art.export_library(tmp_path / "m.so"), art.save_params(tmp_path / "m.params")))
