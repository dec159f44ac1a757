# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Positions and masks of any rank in an index, beside each other and beside slices, where the run decides how many there are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from differential import check
from mask_rows import ROWS

import dycl_tvm
from dycl_tvm.hcfg.nodes import Raise

#: Two rows that differ, and two that do not.
INPUTS = [(torch.tensor([a, b]),) for a, b in zip(ROWS, ROWS[1:] + ROWS[:1])] + [(torch.tensor([r, r]),) for r in ROWS]


def places(x, row=0):
    return torch.where(x[row] > 0)[0]


def grid(x):
    return torch.arange(30.0).reshape(2, 5, 3) * x[0, 0]


def assigned_beside_slices(x):
    keep, y, g, h = x[0] > 0, x.clone(), grid(x), grid(x)
    y[:, keep] = x[:, keep] * 2
    y[:, x[1] > 0] += 1
    g[:, keep] = g[:, keep] - x[1, keep][:, None]
    h[1:, keep, :2] = torch.tensor([7.0, 8.0])
    return y, g, h


def rows_of_positions(x):
    at, y = torch.arange(5)[None].index_select(1, places(x)), x.clone()
    y[:, at] += 1
    y[1, at] *= 2
    return y, x[:, at], grid(x)[:, at], grid(x)[..., at % 3], at.shape[1]


def beside_other_positions(x):
    n = (x > 0).sum(1).max()
    order, y, g = x.argsort(dim=1, descending=True, stable=True)[:, :n], x.clone(), grid(x)
    rows = torch.arange(2)[:, None]
    y[rows, order] = torch.arange(5.0)[:n]
    g[rows, order] = g[rows, order] * 2 + 1
    return x[rows, order], grid(x)[rows, order], grid(x)[rows, order, order % 3], y, g


def of_two_lengths(x):
    i, j, g = places(x), places(x, 1), grid(x)
    g[1, i[:, None], j % 3] = 0.0
    m = torch.zeros(5, 5)
    m[i[:, None], j] = x[0, i][:, None] * x[1, j]
    return g[0, i[:, None], j[None] % 3], g, m


def of_one_or_as_many(x):
    i, j = places(x), places(x, 1)
    return torch.arange(25.0).reshape(5, 5)[i, j]


def as_many_or_one_are_assigned(x):
    y, g = torch.zeros(5), grid(x)
    y[places(x)] = x[1, places(x, 1)]
    g[0, places(x)] = x[1, places(x, 1)][:, None]
    return y, g


def masks_beside_positions(x):
    keep, i = x[0] > 0, places(x)
    g = grid(x)
    g[:, keep, i % 3] = -1.0
    return grid(x)[:, keep, i % 3], grid(x)[x[:, 0] > 0, 1], grid(x)[1, keep, [0]], g


def masks_beside_masks(x):
    return torch.arange(25.0).reshape(5, 5)[x[0] > 0, x[1] > 0]


def of_tensors_of_the_run(x):
    i, g = places(x), grid(x)
    m = g[:, i]
    k = torch.arange(2)[:, None]
    j = torch.arange(len(i))[None]
    m[k, j, 1] = x[:, i] * 3
    return m, m[k, j, j % 3], m[:, j], m[:, [1, 0, 2], 1] if len(i) == 5 else m.sum()


def before_the_front(x):
    y, n = x.clone(), (x > 0).sum()
    at = torch.arange(n) - 3
    y[1, at[None]] = 4.0
    return y, x[:, at[None]]


def without_elements(x):
    i = places(x)
    return torch.zeros(5, 0)[i], torch.zeros(2, 5, 0)[:, i[None]], x[:, i][:, :0].shape


def of_none(x):
    return x[:, :0][:, places(x)[None]]


def beside_numbers_and_new_ones(x):
    y = x[0, places(x)]
    return torch.max(x[1, x[0].argmax()], y), torch.min(x[0, 0], other=y), y.new_tensor([1, 2.5]), torch.where(y > 1, y, y.new_tensor(0))


def read_from_images(x):
    image = torch.arange(48.0).reshape(1, 3, 4, 4)
    at = x[:, places(x)].T / 4
    made = F.grid_sample(image, at[None, None], mode="bilinear", align_corners=True)
    several = F.grid_sample(image.expand(5, -1, -1, -1)[places(x)], at.reshape(-1, 1, 1, 2), align_corners=False)
    return made.reshape(1, 3, -1), F.grid_sample(image, at[None, :, None], "nearest", "border", align_corners=False), several


def read_from_as_many_images(x):
    images = torch.arange(80.0).reshape(5, 1, 4, 4)[places(x)]
    return F.grid_sample(images, torch.zeros(3, 2, 2, 2), align_corners=False)


def written_beside_a_length(x):
    keep, i, n, m, k = x[0] > 0, places(x), int((x[0] > 0).sum()), torch.zeros(5, 5), torch.zeros(5, 5)
    m[i, :n] = 1.5  # what is behind the slice stays as it is
    m[:n, i] += x[0, i]
    m[:, :n][keep] -= 2
    k[:, :n][[0, 2]] = x[:, i]
    k[:, 1:][:, n:][keep] = 4.0
    return m, k


def written_to_positions_of_a_tensor_of_the_run(x):
    i = places(x)
    h, t = grid(x)[:, i], grid(x)[i % 2]
    h[[0, 1]] = h[[1, 0]]
    h[..., [0, 2]] = h[..., [2, 0]] + 1
    h[[1, 0], :, [0, 1]] = x[:, i]
    h[torch.tensor([True, False]), 0:1] = 9.0
    t[torch.arange(len(i)), i] = -1
    t[:, x[0] > 0, 1] = x[1, i]
    return h, t, h[[[0], [1]], i % 1], h[[False, True]]


def at_items_beside_slices(x):
    i, m = places(x), torch.zeros(5, 4, 5)
    m[0, :, i] = 2.0
    m[:, 1, i] = x[1, i]
    return m, m[0, :, i], m[:, 0, i], m[i, :, 0]


def between_several_numbers_of_the_run(x):
    i, j, m, k = places(x), places(x, 1), torch.zeros(2, 5, 5), torch.zeros(2, 5, 5, dtype=torch.bool)
    m[:, : len(i), : len(j)] = x[0, i][:, None] * x[1, j]
    m[0, len(i) :, len(j) :] -= 1
    k[:, len(i) :, : len(j)] = True
    return m, k


def beside_numbers_of_the_run(x):
    i, y, g = places(x), x.clone(), grid(x)
    y[len(i) % 2, i] = 3.0
    g[len(i) % 2, i, len(i) % 3] += x[1, i]
    return y, g, x[len(i) % 2, i], g[len(i) % 2, i, len(i) % 3]


def added_up_in_several_dimensions(x):
    i, j = places(x), places(x, 1)
    y, z, w = torch.zeros(3, 3), torch.zeros(3, 3, 2), x.clone()
    y.index_put_((i - 3, torch.tensor(-1)), x[0, i], accumulate=True)
    y.index_put_((i[:, None] % 3, j % 3), torch.tensor(1.0), accumulate=True)
    w.index_put_((x > 0,), torch.tensor(2.0), accumulate=True)
    return y, z.index_put((i % 3, (i + 1) % 3), grid(x)[0, i, :2], accumulate=True), w


def added_up_out_of_range(x):
    return torch.zeros(3, 3).index_put((places(x) * 0, places(x)), torch.tensor(1.0), accumulate=True)


def written_out_of_range(x):
    y, z = x.clone(), x.clone()
    y[0, places(x) + 1] = 1.0
    z[places(x, 1) - 5, 0] = 2.0
    return y, z


def out_of_range_from_the_end(x):
    i, y = places(x), x.clone()
    if x[0, 0] > 0.75:
        y[:, i - 6] += 1
    elif x[0, 4] > 1:
        y = y.index_fill(1, i - 10, 1.0)
    return y, x[0, i - 6], torch.arange(25.0).reshape(5, 5)[i, i - 6]


def along_a_dimension_the_others_broadcast(x):
    i = places(x)
    order = x[:, i].argsort(1)[..., None]
    return torch.take_along_dim(x, i[None], 1), torch.take_along_dim(grid(x)[:1, i], order, dim=-2)


def assigned_another_type(x):
    i, y = places(x), x.long()
    y[:, x[0] > 0] = torch.tensor(3.5)  # one mask is filled, whatever the type
    if x[0, 0] > 0.75:
        y[:, i] = x[:, i]
    return y


def picked_by_signs_of_zeros(x):
    above, below = (x[0][torch.copysign(x[1], torch.full((), zero)) > 0] for zero in (0.0, -0.0))
    return above + 1, below + 1, len(above), len(below)


PROGRAMS = [
    written_beside_a_length,
    written_to_positions_of_a_tensor_of_the_run,
    at_items_beside_slices,
    between_several_numbers_of_the_run,
    beside_numbers_of_the_run,
    added_up_in_several_dimensions,
    added_up_out_of_range,
    written_out_of_range,
    out_of_range_from_the_end,
    along_a_dimension_the_others_broadcast,
    assigned_another_type,
    picked_by_signs_of_zeros,
    assigned_beside_slices,
    rows_of_positions,
    beside_other_positions,
    of_two_lengths,
    of_one_or_as_many,
    as_many_or_one_are_assigned,
    masks_beside_positions,
    masks_beside_masks,
    of_tensors_of_the_run,
    before_the_front,
    without_elements,
    of_none,
    beside_numbers_and_new_ones,
    read_from_images,
    read_from_as_many_images,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_right(program):
    check(program, INPUTS)


def of_one_mask_computed_twice(x, sure):
    y, stops = x[:, x[0] > 0], sure.repeat_interleave(2)
    z, there = y, y > 3
    if sure.any():
        y, z, there = (t[~stops] for t in (y, y * 2, y > 1))
    return (y + z).masked_fill(there == 0, 0.0)


def test_what_a_mask_picks_that_is_computed_again_is_as_long():
    """Nothing is left to be found out at run time, not behind the branch either."""
    x = torch.tensor([*ROWS[:4]])
    inputs = [(x, torch.tensor(sure)) for sure in ([True, False], [False, False], [True, True])]
    graph = check(of_one_mask_computed_twice, inputs, paths=2)
    assert not any(isinstance(block.terminator, Raise) for block in graph.blocks)


def test_a_number_of_the_run_picks_where_the_caller_decides_the_size():
    def set_one(x):
        i, y = places(x), x.clone()
        y[:, i[-1]] = 3.0
        y[[1, 0], : len(i)] += x[:, i]
        return y, y[[1, 0]], y[torch.tensor([False, True])]

    inputs = [(torch.tensor(rows)[:, :n].clone(),) for rows in (ROWS[:2], ROWS[2:4]) for n in (4, 1, 2, 5, 0)]
    check(set_one, inputs, dynamic_shapes=({1: dycl_tvm.Dim("N", min=0, max=5)},))


class Tokens(torch.nn.Module):
    """Tokens that a gate keeps go through a block, sorted by score, and are put back where they were."""

    def __init__(self):
        super().__init__()
        self.gate, self.block = torch.nn.Linear(4, 1), torch.nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)

    def forward(self, x):
        scores = self.gate(x)[0, :, 0]
        keep = scores > 0
        x[:, keep] = self.block(x[:, keep])
        order = scores.argsort(descending=True)[None, : keep.sum()]
        return x, x[torch.arange(1)[:, None], order]


def filled_beside_slices(x):
    y, g = x.clone(), grid(x)
    y[:, x[0] > 0] = 5
    g[1, x[1] > 0, 1:] = 0.5
    g[:, :, :1][:, x[0] > 0] += 3
    g[:, x[0] > 0, [1]] = -1.0
    return y, g


def test_what_a_mask_picks_beside_slices_is_filled(tmp_path: Path) -> None:
    check(filled_beside_slices, INPUTS)
    artifact = dycl_tvm.build(filled_beside_slices, INPUTS[0])
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    call = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")
    for args in INPUTS:
        torch.testing.assert_close(tuple(map(torch.as_tensor, call(*args))), filled_beside_slices(*args))


def test_built(tmp_path: Path) -> None:
    torch.manual_seed(1)
    net = Tokens().eval()
    noise = torch.Generator().manual_seed(3)
    inputs = [torch.randn(1, 6, 4, generator=noise) + more * net.gate.weight.detach() for more in (0.0, 1.0, 0.0, 20.0, -20.0)]
    artifact = dycl_tvm.build(net, (inputs[0].clone(),))
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    call = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")
    found = set()
    for x in [*inputs, *reversed(inputs)]:
        with torch.no_grad():
            wanted = net(x.clone())
        torch.testing.assert_close(tuple(torch.as_tensor(t) for t in call(x.clone())), wanted)
        found.add(wanted[1].shape[1])
    assert {0, 6} < found
