# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Functions of tensors whose length is known only at run time: by what PyTorch says of them, of others, at places, in layers, in place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from differential import check, stage

import dycl_tvm
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.values.grown_rules import functional_of, is_elementwise

#: None, one, some and all of six elements are positive; there are NaN, an infinity and both zeros among them.
INPUTS = [
    (torch.tensor(row),)
    for row in (
        [1.0, -2.0, 3.0, -4.0, 0.5, 0.5],
        [1.0, 2.0, 3.0, 4.0, 0.5, 1.5],
        [-1.0] * 6,
        [0.5, -1.0, -1.0, -1.0, -1.0, -1.0],
        [-0.5, -1.0, -1.0, -1.0, -1.0, 2.0],
        [2.0, 2.0, float("nan"), 1.0, -1.0, 5.0],
        [1.0, -0.0, 0.0, 2.0, float("inf"), -3.0],
    )
]


def some(x):
    return x[x > 0]


def whole(x):
    return (x.nan_to_num(0, 9, -9) * 2).long()[x > 0]


def rows(x):
    return torch.outer(x, x[:3])[x > 0]


def columns(x):
    return torch.outer(x[:3], x)[:, x > 0]


def stacked(x):
    return torch.stack([rows(x), rows(x) * 2])


def places(x):
    return torch.where(x > 0)[0]


def element_by_element(x):
    y, i = some(x), whole(x)
    return (
        *(
            torch.lerp(y, y * 2, 0.5),
            torch.addcmul(y, y, y),
            torch.hypot(y, y),
            torch.atan2(y, y),
            y.logit(eps=1e-3),
            y.frac(),
            y.signbit(),
        ),
        *(torch.xlogy(y, y), y.lgamma(), torch.logaddexp(y, y), y.copysign(torch.tensor(-1.0)), y.isposinf(), torch.isclose(y, y), i << 1),
        *(torch.gcd(i, i), torch.fmax(y, y), F.hardsigmoid(y), F.hardswish(y), F.logsigmoid(y), F.softsign(y), F.tanhshrink(y), F.celu(y)),
        *(
            F.threshold(y, 1.0, 0.0),
            F.softmin(rows(x), 1),
            F.prelu(y, torch.tensor([0.5])),
            torch.max(y, y * 2 - 1),
            torch.maximum(y, x[0]),
        ),
    )


def changed_in_place(x):
    y, z, w, b, i = some(x) * 1, some(x) * 1, some(x) * 1, some(x) > 1, whole(x)
    y.pow_(2).add_(1).mul_(2).sqrt_().clamp_(max=3.0).round_()
    z.log_().copy_(z + 1).neg_()
    w.sub_(0.5).relu_().tanh_().cumsum_(0)
    b.logical_not_()
    i <<= 1
    i //= 3
    i %= 2
    w.index_fill_(0, torch.where(w > 2)[0], 0.0)
    return y, z, w, b, i.bitwise_not_(), torch.zeros(6).scatter_(0, places(x), 1.0), x.clone().masked_scatter_(x > 0, y)


def filled_from(x):
    out, y = torch.zeros(6), some(x) * 1
    out[: len(y)].copy_(y)
    y.copy_(torch.tensor(3.0))
    return out, y


def read_at_places(x):
    y, m, k = some(x), rows(x), columns(x)
    i = torch.argsort(y)
    return (
        *(
            y[torch.where(y > 1)[0]],
            y[i],
            m[i],
            k[:, i],
            y.index_select(0, i),
            m.index_select(0, torch.where(y > 1)[0]),
            y.take(i),
            x.take(i),
        ),
        *(torch.take_along_dim(y, i, 0), y.gather(0, i), m.gather(0, m.argsort(0)), k.gather(1, k.argsort(1)), stacked(x)[:, :, [2, 0]]),
        *(y[torch.arange(len(y)) - 1], m[:, torch.tensor([2, 0])], stacked(x).gather(1, stacked(x).argsort(1))),
    )


def written_at_places(x):
    y, i, m = some(x), whole(x) % 3, rows(x)
    kinds = (m.nan_to_num(0, 9, -9).long() % 4).abs()
    return (
        *(torch.zeros(6).scatter(0, places(x), y), y.scatter(0, torch.argsort(y), y), torch.zeros(6).scatter_add(0, places(x) // 2, y)),
        *(torch.zeros(3).scatter_reduce(0, i, y, "amax"), torch.zeros(3).index_add(0, i, y), torch.zeros(3).index_reduce(0, i, y, "amax")),
        *(x.index_fill(0, places(x), 7.0), y.index_fill(0, torch.where(y > 1)[0], 7.0), x.index_copy(0, places(x), y * 2)),
        *(x.index_put((places(x),), y * 2), torch.zeros(6).index_put((places(x) // 2,), y, accumulate=True)),
        *(y.index_add(0, torch.arange(len(y)), y), torch.zeros(6, 4).scatter_add(1, kinds, m), torch.zeros(4, 6).scatter(0, kinds.T, m.T)),
    )


def shaped(x):
    y, m, k, s = some(x), rows(x), columns(x), stacked(x)
    return (
        *(y[::2], m[1::2], m[:, ::2], y[:4:3], m.movedim(0, 1), torch.moveaxis(k, 1, 0), m.ravel(), k.flatten(), k.reshape(-1, 3)),
        *(s.flatten(0, 1), s.flatten(1, 2), s.flatten(), s.reshape(2, -1), s.reshape(-1, 3), m.unflatten(1, (3, 1)), torch.atleast_2d(y)),
        *(torch.hstack([y, y]), torch.vstack([y, y]), torch.column_stack([y, y]), torch.dstack([m, m]), torch.hstack([m, m]), m.rot90()),
        *(
            y[:, None].expand_as(m),
            *torch.broadcast_tensors(y[:, None], m),
            *torch.meshgrid(y, x, indexing="ij"),
            m.mH,
            y[:1].expand(len(y)),
        ),
        *(
            y.tensor_split(2),
            m.tensor_split([1, 2], 1),
            s.tensor_split(3, 1),
            torch.cat(y.tensor_split(3)),
            m.view_as(m),
            s.unfold(1, 1, 1),
        ),
    )


def parted(x):
    return [p.sum() for p in some(x).split(2)], [p.sum() for p in some(x).chunk(3)], columns(x).chunk(2)


def turned(x):
    y, m, s = some(x), rows(x), stacked(x)
    return y.roll(1), m.roll(2, 0), m.roll(1, 1), columns(x).roll(-1, 1), m.roll((1, 1), (0, 1)), m.roll(1), s.roll(1, 1), whole(x).roll(2)


def differences(x):
    return some(x).diff(), rows(x).diff(dim=0), rows(x).diff(dim=1), stacked(x).diff(dim=1), whole(x).diff()


def made(x):
    n = (x > 0).sum()
    return (
        torch.zeros(n),
        torch.ones(n, 2),
        torch.full((n,), 2.5),
        torch.arange(n),
        x.new_zeros(n),
        torch.empty(n).fill_(1),
        x.new_ones(n, 2),
    )


def in_the_middle(x):
    y, k = x[x != 1], torch.stack([x, x * 2])[:, x != 1]
    if y.shape[0] < 2:
        return None
    return (
        *(y.median(), y.quantile(0.3), y.quantile(torch.tensor([0.2, 0.9])), k.median(1)[0], k.median(0)[0], k.quantile(0.25, 1)),
        *(
            k.quantile(0.25, 0),
            k.quantile(torch.tensor([0.5, 0.1]), 1, keepdim=True),
            y.kthvalue(2)[0],
            k.kthvalue(1, 1)[0],
            k.kthvalue(2, 0)[0],
        ),
        *(k.median(1, keepdim=True)[0], k.long().kthvalue(2)[0]),
    )


def median_of_what_may_be_none(x):
    return some(x).median()


def none_to_choose_from(x):
    return some(x).quantile(0.5)


def kth_of_too_few(x):
    return some(x).kthvalue(3)[0]


def running(x):
    y, m = some(x), rows(x)
    return y.cumprod(0), m.cumprod(0), m.cumprod(1), y.cummax(0), m.cummin(0), y.logcumsumexp(0), stacked(x).cumprod(1), whole(x).cummax(0)


def placed(x):
    y, steps = some(x), torch.arange(5.0)
    return (
        *(
            torch.searchsorted(steps, y),
            torch.searchsorted(y.sort()[0], x),
            torch.searchsorted(y, y, right=True),
            torch.bucketize(y, steps),
        ),
        *(torch.bucketize(x, y.sort()[0]), torch.searchsorted(x[x != 1], torch.tensor([0.0, 3.0, float("nan")])), torch.histc(y, 4, 0, 4)),
        *(torch.isin(y, torch.tensor([1.0, 2.0])), torch.isin(x, y), torch.isin(y, y[:2]), torch.isin(x, y, invert=True)),
        *(F.one_hot(whole(x).clamp(0, 10), 11), whole(x).unique()),
    )


def as_many_classes(x):
    at, kinds = x.argsort(), (x > 0).long()
    n = at[:3].max() + 1
    return F.one_hot(at[:3], max(n, 2))[..., :2], F.one_hot(kinds).float().mean(0), F.one_hot(at, int(n)) if n == 6 else F.one_hot(at, 6)


def too_few_classes(x):
    return F.one_hot(x.argsort(), int((x > 0).sum()))


def classes_that_are_none(x):
    return F.one_hot(whole(x), 3)


def chosen(x):
    y, k = some(x), columns(x)
    n = min(3, y.shape[0])
    return y.topk(n), whole(x).topk(min(2, whole(x).shape[0])), k.topk(n, 1), k.topk(2, 0), y.topk(n, largest=False), y[y.topk(n)[1]]


def chosen_of_too_few(x):
    return some(x).topk(2)


def chosen_of_all(x):
    return x.topk((x > 0).sum().item()), x.topk(int((x > 0).sum()), largest=False)[0]


def measured(x):
    y, m = some(x), rows(x)
    return (
        *(torch.var_mean(y), torch.std_mean(m, 0), torch.var_mean(m, 1, keepdim=True), y.nansum(), y.nanmean(), m.nansum(0)),
        *(F.cosine_similarity(m, m + 1), F.pairwise_distance(m, m + 1), torch.cdist(m, x[:3].outer(x[:3])), torch.dist(y, y * 2)),
    )


def multiplied(x):
    y, m, k = some(x), rows(x), columns(x)
    square = x[:3].outer(x)
    return (
        *(y.dot(y), y @ y, torch.inner(y, y), m.mv(x[:3]), k.mv(y), m @ x[:3], y @ m, m.mm(square), torch.outer(y, x), x.outer(y)),
        *(torch.addmm(torch.ones(3, 3), k, m), torch.addmm(x[:3], m, square[:, :3], beta=0.5, alpha=2), torch.mm(k, m)),
    )


def layers(x):
    m = rows(x.nan_to_num(0, 9, -9)) * 0.1
    images = m[:, :, None, None].expand(-1, 3, 4, 4)
    return (
        *(
            F.conv2d(images, torch.ones(2, 3, 3, 3), padding=1),
            F.max_pool2d(images, 2),
            F.adaptive_avg_pool2d(images, 2),
            F.avg_pool2d(images, 2),
        ),
        *(F.interpolate(images, scale_factor=2), F.batch_norm(images, torch.zeros(3), torch.ones(3)), F.group_norm(images, 3)),
        *(
            F.conv1d(m[..., None], torch.ones(4, 3, 1)),
            F.conv_transpose2d(images, torch.ones(3, 2, 2, 2)),
            torch.pixel_shuffle(images.repeat(1, 4, 1, 1), 2),
        ),
        F.scaled_dot_product_attention(m[None], m[None], m[None]),
    )


def beyond_the_end(x):
    return some(x)[torch.tensor([2])]


def beyond_the_end_of_another(x):
    return some(x).gather(0, places(x))


def beyond_the_end_where_written(x):
    return some(x).scatter(0, places(x), 1.0)


def beyond_the_end_of_rows(x):
    return some(x).index_add(0, places(x), some(x))


def another_number_of_elements(x):
    return some(x).reshape(2, -1)


def the_number_of_elements(x):
    return some(x).reshape(4)


def of_another_length(x):
    y = some(x) * 1
    y.copy_(x)
    return y


def into_a_fixed_length(x):
    y = torch.zeros(4)
    y += some(x)
    return y


def views_of_what_changes(x):
    a, b, c, d = rows(x) * 1, rows(x) * 1, rows(x) * 1, some(x) * 1
    a.reshape(-1).add_(1)
    b[::2].mul_(0)
    b.tensor_split(2)[0].add_(5)
    c.movedim(0, 1).add_(1)
    c.tensor_split([1, 2], 1)[0].mul_(0)
    torch.atleast_2d(d).add_(1)
    e, f = a.flatten(0, 1), a.roll(1, 0)
    f.add_(3)
    return a, b, c, d, e, f


def written_after_a_copy(x):
    y = rows(x) * 1
    z = y.index_select(0, torch.arange(len(y)))
    z.add_(1)
    return y, z


PROGRAMS = [
    *(element_by_element, changed_in_place, filled_from, read_at_places, written_at_places, shaped, parted, turned, differences, made),
    *(in_the_middle, median_of_what_may_be_none, none_to_choose_from, kth_of_too_few, running, placed, classes_that_are_none, chosen),
    *(
        chosen_of_too_few,
        chosen_of_all,
        measured,
        multiplied,
        layers,
        beyond_the_end,
        beyond_the_end_of_another,
        beyond_the_end_where_written,
    ),
    *(beyond_the_end_of_rows, another_number_of_elements, the_number_of_elements, of_another_length, into_a_fixed_length),
    *(views_of_what_changes, written_after_a_copy, as_many_classes, too_few_classes),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_right(program):
    check(program, INPUTS)


REFUSED = {
    "which of equal ones is most frequent": (lambda x: some(x).mode(), r"mode\(\) is not supported"),
    "as many classes as the largest": (lambda x: F.one_hot(whole(x)), "one_hot"),
    "a copy that stands for a view is changed": (lambda x: columns(x).reshape(-1).add_(1), "changed in place"),
    "other types in place": (lambda x: whole(x).mul_(0.5), "mul_"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    program, message = REFUSED[name]
    with pytest.raises(UnsupportedError, match=message):
        stage(program, INPUTS[0])


def test_what_pytorch_says_of_functions():
    assert is_elementwise(torch.lerp) and is_elementwise(torch.Tensor.lgamma)
    assert not any(map(is_elementwise, (torch.sort, torch.cumsum, torch.rrelu, torch.equal, torch.frexp, torch.Tensor.relu_)))
    assert functional_of(torch.Tensor.pow_) is torch.Tensor.pow and functional_of(torch.Tensor.__ilshift__) is torch.Tensor.__lshift__
    assert not any(map(functional_of, (torch.Tensor.t_, torch.Tensor.unsqueeze_, torch.Tensor.bernoulli_, torch.Tensor.pow, torch.pow)))


def test_nothing_is_left_of_longer_calls(tmp_path: Path) -> None:
    def program(x):
        y, m = x[x > 0], torch.outer(x, x[:3])[x > 0]
        n = min(3, y.shape[0])
        order = torch.argsort(y)
        return (
            *(y.topk(n), m[order], m.reshape(-1), y.roll(1), y.diff(), torch.zeros(6).scatter(0, torch.where(x > 0)[0], y), y.cumprod(0)),
            *(
                y.quantile(0.5) if y.shape[0] else y,
                torch.searchsorted(y, x),
                y.tensor_split(2),
                m[::2],
            ),
        )

    example = (torch.randn(6),)
    artifact = dycl_tvm.build(program, example)
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    call = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")
    x = torch.tensor([4.0, 1.0, 3.0, 2.0, 5.0, 1.0])
    for positive in (6, 5, 3, 1, 0, 2, 6):
        given = torch.where(torch.arange(6) < positive, x, -x)
        pairs = zip(*[torch.utils._pytree.tree_leaves(f(given)) for f in (program, call)], strict=True)
        for want, got in pairs:
            torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(want))


def test_equal_elements_are_chosen_as_in_eager(tmp_path: Path) -> None:
    """Which of them PyTorch takes follows from its algorithm, and from how many there are."""

    def program(x):
        y = x[x > 0]
        return y.topk(min(2, y.shape[0]))

    artifact = dycl_tvm.build(program, (torch.ones(300),))
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    call = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")
    noise = torch.Generator().manual_seed(0)
    for values in (1, 2, 5):
        for _ in range(4):
            x = torch.randint(0, values + 1, (300,), generator=noise).float()
            for want, got in zip(program(x), call(x)):
                assert torch.equal(want, torch.as_tensor(got))


def test_spread_of_numbers_that_are_nearly_alike():
    """The mean is ten million times as large as the spread: PyTorch adds up in double precision."""

    def program(x):
        y = x[:, x[0] != 0] * 1e-3 + 1e4
        return y.std(unbiased=False), y.var(1), y.std(0), torch.var_mean(y, 1)

    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    graph = stage(program, (x,))
    y = (x * 1e-3 + 1e4).double()
    wanted = [y.std(unbiased=False), y.var(1), y.std(0), *torch.var_mean(y, 1)]
    for got, want in zip(torch.utils._pytree.tree_leaves(graph.interpret()(x)), wanted, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=0)


def test_mean_beside_a_spread_of_infinities():
    """As PyTorch adds up: an infinity makes the mean NaN, unless it is the last element."""

    def program(x):
        y = rows(x)
        return *torch.var_mean(y, 0), *torch.std_mean(y, 1), *torch.var_mean(y), *torch.var_mean(columns(x), 1, keepdim=True)

    inf = float("inf")
    check(
        program,
        [(torch.tensor(row),) for row in ([1.0, 2, inf, -1, -2, 3], [1.0, 2, -1, -2, 3, inf], [1.0, -1, 2, 3, -inf, 1], [-1.0] * 6)],
    )


@pytest.mark.parametrize("shape", [lambda n: (n, -1), lambda n: (-1, n), lambda n: (2 * n, -1), lambda n: (n, -1, 1)], ids=range(4))
@pytest.mark.parametrize("function", ["view", "reshape"])
def test_a_size_that_no_elements_decide(shape, function):
    """No elements leave a size open: PyTorch raises there."""

    def program(x):
        y = x.reshape(3, 2)[x[::2] > 0]
        return getattr(y, function)(shape(len(y)))

    call = dycl_tvm.stage(program, INPUTS[0]).interpret()
    for (x,) in INPUTS:
        if (x[::2] > 0).any():
            torch.testing.assert_close(call(x), program(x), equal_nan=True)
        else:
            for run in (program, call):
                with pytest.raises(RuntimeError, match="cannot reshape tensor of 0 elements"):
                    run(x)
