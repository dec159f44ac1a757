# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Errors of eager that depend on the elements of tensors, compiled: an index out of range, a target that is no class, a zero divisor."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db

import dycl_tvm
from dycl_tvm.errors import CompileError, RunError


def gradient(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        return torch.autograd.grad(function(x).sum(), x)[0]


N = 3
X = torch.arange(12.0).reshape(N, 4)
WIDE = torch.arange(40.0).reshape(10, 4)
#: Operators of two places in three, each in a branch of one network.
OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "embedding": lambda i: F.embedding(i, X),
    "embedding of int32": lambda i: F.embedding(i.to(torch.int32), X),
    "embedding_bag": lambda i: F.embedding_bag(i.reshape(1, 2), X),
    "index_select": lambda i: X.index_select(0, i),
    "index_select of a row": lambda i: X[0, :N].index_select(0, i),
    "gather": lambda i: X.gather(0, i.reshape(2, 1)),
    "take": lambda i: X[0, :N].take(i),
    "take_along_dim": lambda i: torch.take_along_dim(X, i.reshape(2, 1), 0),
    "index": lambda i: X[i],
    "index of the second dimension": lambda i: X[:, :N][:, i],
    "index_put": lambda i: X.index_put((i,), torch.ones(4)),
    "index_put that adds": lambda i: X.index_put((i,), torch.ones(4), accumulate=True),
    "put": lambda i: X[0, :N].put(i, torch.ones(2)),
    "scatter": lambda i: X.scatter(0, i.reshape(2, 1), 1.0),
    "scatter of a tensor": lambda i: X.scatter(0, i.reshape(2, 1), -X[:2, :1]),
    "scatter_add": lambda i: X.scatter_add(0, i.reshape(2, 1), X[:2, :1]),
    "scatter_reduce": lambda i: X.scatter_reduce(0, i.reshape(2, 1), X[:2, :1], "amax"),
    "index_add": lambda i: X.index_add(0, i, X[:2]),
    "index_add of a row": lambda i: X[0, :N].index_add(0, i, X[1, :2]),
    "index_copy": lambda i: X.index_copy(0, i, -X[:2]),
    "index_fill": lambda i: X.index_fill(0, i, 7.0),
    "one_hot": lambda i: F.one_hot(i, N),
    "cross_entropy": lambda i: F.cross_entropy(X[:2, :N], i),
    "nll_loss that ignores": lambda i: F.nll_loss(X[:2, :N], i, ignore_index=-N - 1),
    "multi_margin_loss": lambda i: F.multi_margin_loss(X[:2, :N], i),
    "multilabel_margin_loss": lambda i: F.multilabel_margin_loss(X[:2, :N], i[:, None].expand(2, N)),
    "max_unpool": lambda i: F.max_unpool1d(X[:1, None, :2], i.reshape(1, 1, 2), 2, output_size=(N,)),
    "searchsorted": lambda i: torch.searchsorted(X[0, :2], X[0, :2], sorter=i - N + 2),
    "gradient of embedding": lambda i: gradient(lambda w: F.embedding(i, w), X),
    "gradient of cross_entropy": lambda i: gradient(lambda x: F.cross_entropy(x, i), X[:2, :N]),
    "floor division": lambda i: torch.tensor([7, -8]) // (i - N + 1),
    "remainder": lambda i: 7 % (i - N + 1),
    "fmod": lambda i: torch.fmod(torch.tensor([7, -8]), i - N + 1),
    "power of a number": lambda i: torch.tensor([3, -2]) ** i[1].item(),
    "truncated division": lambda i: torch.div(torch.tensor([7, -8]), i - N + 1, rounding_mode="trunc"),
}


class Any(torch.nn.Module):
    def forward(self, which, i):
        for k, operator in enumerate(OPERATORS.values()):
            if which == k:
                return operator(i)
        return i


def compiled(model, inputs, folder, **options):
    art = dycl_tvm.build(model, inputs, verify="off", **options)
    art.export_library(folder / "m.so")
    art.save_params(folder / "m.params")
    return dycl_tvm.load(folder / "m.so", folder / "m.params")


@pytest.fixture(scope="module")
def operators(tmp_path_factory):
    return compiled(Any(), (torch.tensor(0), torch.tensor([0, 1])), tmp_path_factory.mktemp("operators"))


def same(net, model, *inputs):
    """Compare a call with eager; return the type of eager's error."""
    try:
        expected = model(*inputs)
    except Exception as error:
        with pytest.raises(IndexError if isinstance(error, IndexError) else RuntimeError) as caught:
            net(*inputs)
        assert isinstance(caught.value, RunError)
        assert caught.value.kind == type(error).__name__
        assert "test_element_checks.py" in str(caught.value)
        return type(error)
    torch.testing.assert_close(net(*inputs), expected, equal_nan=True)
    return None


@pytest.mark.parametrize("which", range(len(OPERATORS)), ids=list(OPERATORS))
def test_as_eager_in_range_and_out_of_it(operators, which):
    raised = [
        same(operators, Any(), torch.tensor(which), torch.tensor([1, at])) for at in (0, N - 1, N, -1, -N, -N - 1, 2**40 * N, -(2**40) * N)
    ]
    assert None in raised
    assert (raised.count(None) == len(raised)) == (list(OPERATORS)[which] == "take_along_dim")  # eager takes its places modulo the size


def test_of_error_inputs_of_pytorch(tmp_path):
    """What PyTorch's own tests say is out of range."""
    tried = 0
    for name in ("gather", "scatter", "scatter_add", "take", "index_select"):
        info = next(o for o in op_db if o.name == name)
        for error in info.error_inputs_func(info, "cpu") if info.error_inputs_func else ():
            sample, op = error.sample_input, info.op
            tensors = [a for a in (sample.input, *sample.args) if isinstance(a, torch.Tensor)]
            places = [t for t in tensors[1:] if t.dtype == torch.int64]
            if "out of bounds" not in error.error_regex and "out of range" not in error.error_regex or len(places) != 1 or sample.kwargs:
                continue
            rest = sample.args

            def model(i, x=sample.input, rest=rest, places=places, op=op):
                return op(x, *(i if a is places[0] else a for a in rest))

            net = compiled(model, (torch.zeros_like(places[0]),), tmp_path)
            with pytest.raises(RunError):
                net(places[0])
            net.unload()
            tried += 1
    assert tried


class Factorised(torch.nn.Module):
    def forward(self, which, a):
        if which == 0:
            return torch.linalg.inv(a)
        if which == 1:
            return torch.linalg.solve(a, a)
        if which == 2:
            return torch.linalg.cholesky(a, upper=True)
        if which == 3:
            return torch.linalg.cholesky(a)
        if which == 4:
            return torch.linalg.lu_factor(a)[0]
        if which == 5:
            return torch.linalg.svdvals(a)
        if which == 6:
            return F.binary_cross_entropy(a, a.abs().clamp(max=1))
        return torch.linalg.inv_ex(a).info.to(a.dtype)


def test_matrices_that_have_no_factors_and_floats_out_of_range(tmp_path):
    net = compiled(Factorised(), (torch.tensor(0), torch.eye(3)), tmp_path)
    matrices = [
        torch.eye(3),
        -torch.eye(3),
        torch.ones(3, 3),
        torch.zeros(3, 3),
        torch.eye(3).flip(0),
        torch.eye(3) + 1,
        torch.eye(3) / torch.eye(3),
    ]
    raised = {which: [same(net, Factorised(), torch.tensor(which), a) for a in matrices] for which in range(8)}
    assert {which: len(matrices) - found.count(None) for which, found in raised.items()} == {0: 2, 1: 2, 2: 5, 3: 5, 4: 2, 5: 1, 6: 3, 7: 0}


class Stateful(torch.nn.Module):
    """Counts its calls, prints nothing, and looks a row up only where it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(5, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, ids, steps):
        self.calls = self.calls + 1
        total = torch.zeros(2)
        while steps > 0:
            if steps < 3:
                total = total + self.rows(ids[steps - 1])
            steps = steps - 1
        return total + self.calls


def test_in_a_branch_of_a_loop_and_the_state_is_kept(tmp_path):
    model = Stateful().eval()
    eager = copy.deepcopy(model)
    net = compiled(model, (torch.zeros(4, dtype=torch.long), torch.tensor(1)), tmp_path)
    for ids, steps in (([1, 2, 9, 9], 4), ([9, 2, 0, 0], 0), ([1, 9, 0, 0], 1), ([4, 4, 0, 0], 2)):
        assert same(net, eager, torch.tensor(ids), torch.tensor(steps)) is None
    for ids, steps in (([5, 0, 0, 0], 1), ([0, -1, 0, 0], 4)):
        with torch.no_grad(), pytest.raises(IndexError):
            copy.deepcopy(eager)(torch.tensor(ids), torch.tensor(steps))
        with pytest.raises(IndexError, match="embedding"):
            net(torch.tensor(ids), torch.tensor(steps))
    assert same(net, eager, torch.tensor([1, 2, 3, 4]), torch.tensor(2)) is None  # the calls that failed were not counted


def test_a_loop_that_goes_one_too_far(tmp_path):
    """Places that are counted beside the trips: in range they are not checked, and one too many still ends the call."""

    class Decoder(torch.nn.Module):
        def __init__(self, trips: int) -> None:
            super().__init__()
            self.trips = trips

        def forward(self, x, stop):
            at, total = 1, torch.zeros(4)
            for _ in range(self.trips):
                total = total + F.embedding(torch.arange(at, at + 1), WIDE)[0] * x
                at = at + 1
                if total.sum() > stop:
                    break
            return total

    for trips, expected in ((9, {None}), (10, {None, IndexError})):
        model = Decoder(trips)
        net = compiled(model, (torch.ones(4), torch.tensor(0.0)), tmp_path)
        assert {same(net, model, torch.ones(4), torch.tensor(stop)) for stop in (0.0, 300.0, 1e9)} == expected
        net.unload()


def test_the_error_that_eager_meets_first(tmp_path):
    class Two(torch.nn.Module):
        def forward(self, i):
            y = X[i] + 1
            z = 12 // (i - 3)
            if y.sum() > 1e9:
                return y
            return X.gather(0, i.reshape(2, 1)) + z

    net = compiled(Two(), (torch.tensor([0, 1]),), tmp_path)
    for at, text in ((4, "index()"), (3, "index()"), (-1, "gather()"), (-4, "index()"), (2, None)):
        raised = same(net, Two(), torch.tensor([0, at]))
        if text is None:
            assert raised is None
        else:
            with pytest.raises(RunError) as caught:
                net(torch.tensor([0, at]))
            assert text in str(caught.value)


def test_sizes_of_the_run_are_checked_as_far_as_they_go(tmp_path):
    class Looked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = torch.nn.Embedding(5, 2)

        def forward(self, ids):
            return self.rows(ids).sum(0)

    model = Looked().eval()
    net = compiled(model, (torch.zeros(3, dtype=torch.long),), tmp_path, dynamic_shapes={"ids": {0: dycl_tvm.Dim("T", max=6)}})
    with torch.no_grad():
        for ids in ([4] * 6, [1, 9], [1], [2, 3, 4, -1], [0, 5, 0]):
            same(net, model, torch.tensor(ids))


def test_offsets_of_bags(tmp_path):
    class Bags(torch.nn.Module):
        def __init__(self, **options) -> None:
            super().__init__()
            self.options = options

        def forward(self, offsets):
            return F.embedding_bag(torch.tensor([0, 1, 2]), X, offsets, **self.options)

    net = compiled(Bags(mode="max"), (torch.tensor([0, 1, 2]),), tmp_path)
    for offsets in ([0, 1, 2], [0, 3, 3], [0, 0, 0], [1, 1, 2], [0, 1, 4]):
        same(net, Bags(mode="max"), torch.tensor(offsets))
    model = Bags(mode="sum", include_last_offset=True)
    net = compiled(model, (torch.tensor([0, 1, 3]),), tmp_path)
    assert same(net, model, torch.tensor([0, 2, 3])) is None
    for offsets in ([0, 1, 4], [1, 2, 3], [0, 1, 2], [0, 4, 3]):  # eager takes the third in one way or another
        with pytest.raises(RunError, match="offset"):
            net(torch.tensor(offsets))


def test_a_mask_with_more_places_than_there_are_elements(tmp_path):
    def model(mask):
        return X.masked_scatter(mask, X[0])

    net = compiled(model, (torch.zeros(4, dtype=torch.bool),), tmp_path)
    assert [same(net, model, torch.arange(4) < n) for n in range(4)] == [None, None, RuntimeError, RuntimeError]


def test_bicubic_interpolation_and_gradients_have_places_of_their_own(tmp_path):
    def model(x):
        return (
            F.interpolate(x[None, None], size=(5, 7), mode="bicubic"),
            gradient(lambda x: F.pad(x[None], (2, 1), mode="reflect") ** 2, x),
            F.fold(F.unfold(x[None, None], 2), (N, 4), 2),
            F.multilabel_margin_loss(x[:2, :N], torch.tensor([[-1, 0, 1], [2, -1, 0]])),
        )

    assert same(compiled(model, (X,), tmp_path), model, X) is None


def test_an_operator_without_a_check_has_no_places():
    from dycl_tvm.compile.ops.context import OpContext
    from dycl_tvm.compile.ops.indexing import wrapped

    with pytest.raises(CompileError, match="nothing checks"):
        wrapped(OpContext(None, [], "aten.relu.default"), None, 3)
