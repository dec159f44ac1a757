# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kernels that compute as much as a size of the call says: which ones they are, and that nothing behind it counts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dycl_tvm
from dycl_tvm.backends.extents import Bounds, Digits, Extent, Wanted
from dycl_tvm.errors import VerificationError

N, M = Extent(0, 1, 0), Extent(1, 1, 0)
BOUNDS = Bounds([(1, 8), (0, 5)])


def test_what_covers_two_extents() -> None:
    assert BOUNDS.joined(N, N.scaled(2)) == N.scaled(2)
    assert BOUNDS.joined(N.scaled(1, 1), Extent.number(2)) == N.scaled(1, 1)
    assert BOUNDS.joined(N, Extent.number(2)) is None  # N may be 1
    assert BOUNDS.joined(N, Extent(1, 1, 0)) is None
    assert BOUNDS.joined(N.scaled(1, 5), Extent(1, 1, 0)) == N.scaled(1, 5)
    assert BOUNDS.clipped(N.scaled(1, 7), 8) is None
    assert BOUNDS.union(None, (N, None)) == (N, None)


@pytest.mark.parametrize(
    ("wanted", "shape", "other", "found"),
    [
        ((N, None), (8, 6), (8, 2, 3), (N, None, None)),
        ((N, None, None), (8, 2, 3), (48,), (N.scaled(6),)),
        ((N.scaled(6),), (48,), (8, 6), (N, None)),
        ((N,), (48,), (8, 6), (None, None)),  # the last row is wanted in part
        ((None, N), (2, 8), (16,), (Digits((2, 8), (None, N)),)),
        ((M, N, None), (5, 8, 6), (40, 6), (Digits((5, 8), (M, N)), None)),
        ((M, N, None), (5, 8, 6), (240,), (Digits((5, 48), (M, N.scaled(6))),)),
        ((Digits((5, 48), (M, N.scaled(6))),), (240,), (5, 8, 2, 3), (M, N, None, None)),
        ((Digits((5, 8), (M, N)), None), (40, 6), (1, 40, 2, 3), (None, Digits((5, 8), (M, N)), None, None)),
        ((M, None, N), (5, 3, 8), (15, 8), (M.scaled(3), N)),
        ((Digits((5, 8), (M, N)),), (40,), (10, 4), (M.scaled(2), None)),
        ((None, N, None), (1, 8, 6), (8, 6), (N, None)),
        ((None, N, None), (2, 8, 6), (2, 8, 3, 2), (None, N, None, None)),
    ],
)
def test_the_same_elements_in_another_shape(wanted: Any, shape: Any, other: Any, found: Any) -> None:
    assert BOUNDS.reshaped(wanted, shape, other) == found


def cells(wanted: Wanted, shape: tuple[int, ...], sizes: tuple[int, int]) -> torch.Tensor:
    """Return where in a tensor of a shape something is wanted."""
    found = torch.ones(shape, dtype=torch.bool)
    for d, (n, limit) in enumerate(zip(shape, wanted)):
        there = range(n) if limit is None else limit.places(sizes) if isinstance(limit, Digits) else range(max(0, limit.at(sizes)))
        found &= torch.tensor([k in there for k in range(n)]).reshape([n if k == d else 1 for k in range(len(shape))])
    return found


def test_regions_in_other_shapes_and_together_cover_what_they_are_made_of() -> None:
    """Random limits of random shapes of as many elements: nothing that is wanted is ever left out."""
    random.seed(0)
    shapes = [(24,), (4, 6), (2, 2, 6), (3, 8), (6, 4), (2, 3, 4), (8, 3), (2, 12), (1, 24), (4, 1, 3, 2)]
    bounds, exact = Bounds([(0, 6), (1, 4)]), 0

    def some(shape: tuple[int, ...]) -> Wanted:
        return tuple(
            bounds.clipped(random.choice([None, N, M, N.scaled(2), M.scaled(3, 1), Extent.number(random.randint(0, n))]), n) for n in shape
        )

    for _ in range(400):
        first, second, third = (random.choice(shapes) for _ in range(3))
        wanted = some(first)
        moved = bounds.reshaped(wanted, first, second)
        again = bounds.reshaped(moved, second, third)
        union = bounds.union(moved, some(second))
        assert union is not None
        for sizes in ((0, 1), (3, 2), (6, 4), (1, 3), (5, 1)):
            there = cells(wanted, first, sizes).reshape(-1)
            for other, shape in ((moved, second), (again, third), (union, second)):
                assert not (there & ~cells(other, shape, sizes).reshape(-1)).any(), (wanted, first, other, shape)
            exact += bool((there == cells(moved, second, sizes).reshape(-1)).all())
    assert exact > 900  # of 2000: most shapes say what is wanted as it is


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.second, self.down = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 24, 1, stride=2)
        self.head = nn.Linear(24, 5)

    def forward(self, x):
        y = torch.relu_(self.norm(self.first(x)))
        y = torch.cat([self.second(y).add_(y), y], 1)[:, :16]
        return self.head(nn.functional.max_pool2d(self.down(y), 2).mean((2, 3)))


class Attention(nn.Module):
    """A layer of a transformer, and what mixes all rows."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layer = nn.Embedding(11, 32), nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.causal = causal

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = (x.unflatten(-1, (2, 16)).transpose(1, 2) for _ in range(3))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)
        z = self.layer(x + y)
        return z, z.mean(1), z.softmax(1), z[:, -1]


class Places(nn.Module):
    """Numbers of the run that say where to read: no garbage may be one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = nn.Embedding(7, 16), nn.Linear(16, 16)

    def forward(self, x):
        h = self.out(x)
        at = (h[:, 0].abs() * 100).long() % 7
        y = self.table(at) + torch.relu(h)
        return y, y.sum(0), x.sum(1) // 1.5, at


def images(n: int) -> torch.Tensor:
    return torch.randn(n, 3, 12, 12, generator=torch.Generator().manual_seed(n))


def tokens(n: int) -> torch.Tensor:
    return torch.randint(0, 11, (1, n), generator=torch.Generator().manual_seed(n))


def vectors(n: int) -> torch.Tensor:
    return torch.randn(n, 16, generator=torch.Generator().manual_seed(n))


CASES = {
    "convolutions": (Convolutions, images, 0, 5, {"conv2d", "matmul"}),
    "attention": (Attention, tokens, 1, 40, {"attention", "layer_norm", "matmul", "softmax"}),
    "causal": (lambda: Attention(True), tokens, 1, 40, {"attention"}),
    "places": (Places, vectors, 0, 9, {"embedding", "relu"}),
}


def built(model: nn.Module, example: torch.Tensor, dim: int, most: int, folder: Path) -> tuple[Any, list[str]]:
    artifact = dycl_tvm.build(model, (example,), dynamic_shapes=({dim: dycl_tvm.Dim("N", min=1, max=most)},))
    artifact.export_library(folder / "net.so")
    artifact.save_params(folder / "net.params")
    symbols = [kernel.symbol for kernel in artifact._lowered.program.kernels]
    return dycl_tvm.load(folder / "net.so", folder / "net.params"), symbols


@pytest.mark.parametrize("name", list(CASES))
def test_right_at_every_size_after_every_other(name: str, tmp_path: Path) -> None:
    make, inputs, dim, most, families = CASES[name]
    model = make().eval()
    call, symbols = built(model, inputs(most // 2), dim, most, tmp_path)
    fronts = {s for s in symbols if "_front_" in s}
    assert all(any(family in s for s in fronts) for family in families), symbols
    with torch.no_grad():
        for n in (most, 1, most - 1, 2, most // 2, most, 3):
            want, got = model(inputs(n)), call(inputs(n))
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_static_models_have_no_fronts(tmp_path: Path) -> None:
    artifact = dycl_tvm.build(Places(), (vectors(4),))
    assert not any("_front_" in k.symbol for k in artifact._lowered.program.kernels)


def test_what_others_read_whole_is_computed_whole(tmp_path: Path) -> None:
    """Two rows that a call may not have are read by their number: the front is no answer to that."""

    def model(x, y):
        h = torch.relu(x) + 1
        return h, (h @ y), h[0]

    given = [torch.randn(n, 4) for n in (3, 1, 6)]
    y = torch.randn(4, 2)
    artifact = dycl_tvm.build(model, (given[0], y), dynamic_shapes=({0: dycl_tvm.Dim("N", min=1, max=6)}, None))
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    call = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")
    for x in given:
        torch.testing.assert_close(call(x, y), model(x, y))


def test_what_a_long_delay_line_wants_reaches_its_beginning(tmp_path: Path) -> None:
    """More tensors than the rounds before widening: what is wanted of the last one goes back by one in each round."""

    def model(x, a, b, trips):
        line = tuple(x * float(k) for k in range(30))
        while trips > 0:
            line = (torch.sin(line[0] + line[-1] * 0.5), *line[:-1])
            trips = trips - 1
        return *(t[: len(a)] for t in line[:-1]), line[-1][: len(b)]

    dims = (None, {0: dycl_tvm.Dim("A", min=1, max=8)}, {0: dycl_tvm.Dim("B", min=1, max=8)}, None)
    x, trips = torch.randn(8, 4), torch.tensor(40)
    given = [(x, torch.zeros(n, 1), torch.zeros(m, 1), trips) for n, m in ((8, 8), (1, 8), (2, 7), (7, 2))]
    artifact = dycl_tvm.build(model, given[2], dynamic_shapes=dims)
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    call = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")
    for args in given:
        torch.testing.assert_close(call(*args), model(*args))


def test_a_mask_of_rows_closes_no_keys(tmp_path: Path) -> None:
    def model(q, x):
        mask = torch.where(torch.arange(40)[:, None] < len(x), 0.0, -torch.inf).expand(40, 40)
        return nn.functional.scaled_dot_product_attention(q, q * 2, q + 1, attn_mask=mask)[:, :, : len(x)]

    q = torch.randn(1, 2, 40, 16)
    artifact = dycl_tvm.build(model, (q, torch.zeros(3, 1)), dynamic_shapes=(None, {0: dycl_tvm.Dim("N", min=1, max=40)}))
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    assert any("attention" in k.symbol for k in artifact._lowered.program.kernels)
    call = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")
    for n in (40, 1, 39, 2, 7):
        torch.testing.assert_close(call(q, torch.zeros(n, 1)), model(q, torch.zeros(n, 1)), rtol=1e-4, atol=1e-5)


def test_the_check_sees_a_front_that_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    from dycl_tvm.backends import extents

    clipped = Bounds.clipped

    def less(self: Bounds, extent: Extent | None, whole: int) -> Extent | None:
        found = clipped(self, extent, whole)
        return None if found is None else found.scaled(1, -1)

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    monkeypatch.setattr(extents.Bounds, "clipped", less)
    with pytest.raises(VerificationError):
        dycl_tvm.build(model, (torch.randn(3, 8),), dynamic_shapes=({0: dycl_tvm.Dim("N", min=1, max=6)},))


LAYERS = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16))


def over_the_batch(x):
    y = torch.relu(LAYERS(x.softmax(1)).sum(0))
    return torch.relu(y.softmax(0) + y.mean(0))


BATCH, STEPS = dycl_tvm.Dim("B", max=3), dycl_tvm.Dim("T", max=8)


@pytest.mark.parametrize(
    ("model", "sizes", "special"),
    [
        (LAYERS, {0: BATCH}, [3]),
        (over_the_batch, {0: BATCH, 1: STEPS}, [{"B": 3}]),
    ],
)
def test_a_path_for_the_largest_size_leaves_the_fronts_of_the_other(model: Any, sizes: Any, special: list[Any]) -> None:
    """There all is computed of what is one sub-DNN, or one tail, with what computes the first elements elsewhere."""

    def symbols(special: list[Any] | None) -> set[str]:
        artifact = dycl_tvm.build(model, torch.ones(2, 3, 16), dynamic_shapes=(sizes,), specialize=special, verify="off")
        return {k.symbol for k in artifact._lowered.program.kernels if "_front_" in k.symbol}

    alone, beside = symbols(None), symbols(special)
    assert alone and alone <= beside


class Images(nn.Module):
    """Convolutions of Winograd's, behind masks that they apply themselves, over images down to one place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(20, 96, 3, padding=1), nn.Conv2d(96, 40, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.first(x))))


@pytest.mark.parametrize("target", ["llvm -mcpu=x86-64-v3", "native"])
def test_images_of_few_places(target: str, tmp_path: Path) -> None:
    """They are sums of the plain weights; every build of open images is checked, whose masks no kernel reads any more."""
    model, dims = Images().eval(), {0: dycl_tvm.Dim("B", max=2), 2: dycl_tvm.Dim("H", max=16), 3: dycl_tvm.Dim("W", max=12)}
    artifact = dycl_tvm.build(model, (torch.randn(2, 20, 16, 12),), dynamic_shapes=(dims,), target=target)
    assert artifact.certificate is not None
    assert any("pack_few" in w.name for w in artifact._lowered.program.weights)
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    call = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")
    sizes = [(b, h, w) for b in (1, 2) for h in (1, 2, 3, 4, 5) for w in (1, 2, 4)] + [(2, 16, 12), (1, 15, 9)]
    with torch.no_grad():
        for b, h, w in sizes:
            call(torch.full((2, 20, 16, 12), torch.nan))  # no sum may take what lies behind an image
            x = torch.randn(b, 20, h, w)
            torch.testing.assert_close(call(x), model(x), rtol=1e-3, atol=1e-4)


def test_no_weights_are_kept_twice_where_no_call_has_few_places() -> None:
    dims = {2: dycl_tvm.Dim("H", min=3, max=16)}
    artifact = dycl_tvm.build(Images().eval(), (torch.randn(1, 20, 16, 12),), dynamic_shapes=(dims,), target="native", verify="off")
    assert not any("pack_few" in w.name for w in artifact._lowered.program.weights)
