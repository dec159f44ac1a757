# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Shapes that programs ask for by sizes that callers decide: made, joined, padded, split up, viewed, and filled where a mask says.

What lies behind a size in a buffer is NaN here, or a number that is no index.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from differential import check

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.sizes import Dim

#: Texts may be empty; the bounds are among the sizes.
B, T = Dim("B", min=1, max=4), Dim("T", min=0, max=6)
SIZES = [(2, 3), (4, 6), (1, 1), (3, 5), (1, 0), (4, 0), (3, 1), (1, 6)]
SHAPES = {"x": {0: B, 1: T}, "i": {0: B, 1: T}}


def calls(least=0):
    torch.manual_seed(0)
    return [(torch.randn(b, t, 4), torch.randint(0, 5, (b, t))) for b, t in SIZES if t >= least]


def made_by_keyword(x, i):
    return torch.ones(size=(x.shape[0], x.shape[1], 1)), torch.full(size=(x.shape[1],), fill_value=2.0), x.new_zeros(size=(2, x.shape[0]))


def made_alike(x, i):
    turned = x.transpose(0, 1)
    made = torch.zeros_like(turned, memory_format=torch.contiguous_format) + 1
    return made.view(-1, 4), torch.ones_like(turned, memory_format=torch.preserve_format), torch.zeros_like(x, memory_format=None)


def joined_of_several_types(x, i):
    front = torch.ones(x.shape[0], 3)
    return torch.cat([front, i], 1), torch.cat([i > 2, i.to(torch.int32), i]), torch.cat([i.to(torch.int16), i > 2], 1)


def padded_to_one_size(x, i):
    n, more = list(x.shape), -x.shape[1] % 8
    if not all(x.shape):
        n[1] += more
        return torch.zeros(n)
    return F.pad(x, (0, 0, 0, more))


def divided_as_tensors(x, i):
    half = torch.div(x.size(2), 2, rounding_mode="trunc")
    return x.view(x.size(0), x.size(1), half, 2), x.reshape(-1, half)


def filled_by_masks(x, i):
    mask = i > 2
    once = x.masked_scatter(mask.unsqueeze(-1), x[mask] * 2)
    again = once.masked_scatter(~mask.unsqueeze(-1), x[~mask] - 1)
    row = torch.arange(24.0).masked_scatter(torch.arange(24) < x.shape[1], x[0, :, 0])
    wide = torch.zeros(4).masked_scatter(mask.unsqueeze(-1), x)
    x.masked_scatter_(mask.unsqueeze(-1), torch.arange(200.0))
    return once, again, row, wide, x


def by_letters(x, i):
    y = x.transpose(0, 1)
    return (
        torch.einsum("...td,...sd->...ts", x, x),
        torch.einsum("...d,d", x, torch.arange(4.0)),
        torch.einsum("b...,b...->...", x, x),
        torch.einsum("...td,kd->...tk", y, torch.ones(3, 4)),
    )


def converted_in_order(x, i):
    y = x.transpose(1, 2)
    return y.to(torch.float64, memory_format=torch.contiguous_format).view(x.shape[0], -1), y.to(
        torch.float32, memory_format=torch.contiguous_format
    )


def taken_as_tensors(x, i):
    return torch.as_tensor(x), torch.as_tensor(i, dtype=torch.float32), torch.as_tensor(x, device=x.device)


@pytest.mark.usefixtures("nothing_behind_the_sizes")
@pytest.mark.parametrize(
    "program",
    [
        made_by_keyword,
        made_alike,
        joined_of_several_types,
        padded_to_one_size,
        divided_as_tensors,
        filled_by_masks,
        by_letters,
        taken_as_tensors,
    ],
    ids=lambda f: f.__name__,
)
def test_right(program):
    check(program, calls(), dynamic_shapes=SHAPES)


def blocks(x, i):
    """Split a text that is padded to the length of a block into blocks."""
    if x.shape[1] % 8 != 0:
        x = F.pad(x, (0, 0, 0, -x.shape[1] % 8))
    y = x.reshape(x.shape[:1] + (x.shape[1] // 8, 8) + x.shape[2:])
    return torch.einsum("...qd,...kd->...qk", y, torch.cat([y, y], 2))


def of_one_dimension(x, i):
    """Squeeze all dimensions of one element, and give what is left the shape that is asked for."""
    return (i > 2).int().squeeze().repeat(1, 2, 1).reshape(x.shape[0] * 2, x.shape[1])


def viewed_by_another_number(x, i):
    """View a part by the size that it surely has, though that does not follow from how it was made."""
    n = x.shape[1]
    y = x.transpose(1, 2)
    if n < 4:
        y = F.pad(y, (4 - n, 0))
    y = F.conv1d(y, torch.ones(4, 1, 3), groups=4, padding=2)[:, :, : y.shape[2]][:, :, -n:]
    a, b = y.transpose(1, 2).split([2, 2], -1)
    return a.view(x.shape[0], n, -1, 1) + b.view(x.shape[0], n, 2, 1)


def rows_of_a_part(x, i):
    """Merge dimensions of a part between whose rows others lie: a view, which can be viewed again."""
    y = torch.cat([x, x], 1).unflatten(2, (2, 2))[:, : x.shape[1]]
    return y.reshape(x.shape[0], x.shape[1], 4).view(x.shape[0], x.shape[1], 2, 2)[:, :, 0]


def of_fixed_shape(x, i):
    """Give a tensor of fixed shape one by sizes of the run: there is one size that fits, or the call is an error, as in eager."""
    b = x.shape[0]
    y = torch.arange(12.0)
    return y.view(b, -1) if 12 % b == 0 else y, y.reshape(3, b, -1) if 4 % b == 0 else y


@pytest.mark.usefixtures("nothing_behind_the_sizes")
@pytest.mark.parametrize(
    "program",
    [blocks, of_one_dimension, viewed_by_another_number, rows_of_a_part, of_fixed_shape, converted_in_order],
    ids=lambda f: f.__name__,
)
def test_of_one_token_and_more(program):
    shapes = {name: {0: B, 1: Dim("T", min=1, max=6)} for name in SHAPES}
    check(program, calls(1), dynamic_shapes=shapes)


def test_a_shape_that_does_not_fit_is_the_error_that_it_is_in_eager():
    def program(x, i):
        return torch.arange(4.0).reshape(x.shape[0], 2)

    run = stage(program, calls()[0], dynamic_shapes=SHAPES).interpret()
    assert torch.equal(run(*calls()[0]), torch.arange(4.0).reshape(2, 2))
    with pytest.raises(RuntimeError, match="invalid for the number of elements"):
        run(*calls()[3])


def test_a_source_of_too_few_elements_is_an_error():
    def program(x, i):
        return x.masked_scatter((i < 9).unsqueeze(-1), torch.zeros(9))

    run = stage(program, calls()[0], dynamic_shapes=SHAPES).interpret()
    assert not run(torch.ones(2, 1, 4), torch.zeros(2, 1, dtype=torch.int64)).sum()
    with pytest.raises(RuntimeError, match="at least as many elements"):
        run(*calls()[0])


def test_a_view_by_another_number_than_the_size_ends_the_call():
    def program(x, i):
        count = int((i[0] > 2).sum())
        y = x.transpose(0, 1).contiguous().transpose(0, 1)[:, :count]
        return y.view(x.shape[0], x.shape[1], -1, 2)

    run = stage(program, calls()[0], dynamic_shapes={name: {0: B, 1: Dim("T", min=1, max=6)} for name in SHAPES}).interpret()
    for x, _ in calls(1):
        assert torch.equal(run(x, torch.full(x.shape[:2], 3)), x.unflatten(2, (2, 2)))
    with pytest.raises(RuntimeError, match="another size"):
        run(torch.ones(2, 4, 4), torch.tensor([[3, 3, 0, 0]] * 2))


REFUSED = {
    "a view across what lies between rows": lambda x, i: rows_of_a_part(x, i).flatten(2).view(-1, 2),
    "a view of merged rows across what lies between them": lambda x, i: (
        torch.cat([x, x], 1).unflatten(2, (2, 2))[:, : x.shape[1]].reshape(x.shape[0], x.shape[1], 4).view(-1, 4)
    ),
    "channels_last": lambda x, i: torch.zeros_like(x[None], memory_format=torch.channels_last),
    "an order that is not known": lambda x, i: x[None].to(torch.float32, memory_format=torch.channels_last),
    "letters that PyTorch does not read": lambda x, i: torch.einsum("......d->d", x),
    "a mask of numbers": lambda x, i: x.masked_scatter(i[..., None], x),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    with pytest.raises(UnsupportedError):
        stage(REFUSED[name], calls()[0], dynamic_shapes=SHAPES)
