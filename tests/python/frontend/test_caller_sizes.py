# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sizes of inputs that each call decides (``dynamic_shapes``): Python code on them is control flow, and results have their sizes."""

from __future__ import annotations

import pytest
import torch
from differential import check
from torch import nn

import dycl_tvm
from dycl_tvm.errors import InputError, UnsupportedError, UsageError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import LimitError
from dycl_tvm.hcfg.nodes import TensorOp
from dycl_tvm.hcfg.sizes import Dim
from dycl_tvm.passes import run_passes

N = Dim("N", min=1, max=6)


def rows(*counts, width=4):
    return [(torch.randn(n, width, generator=torch.Generator().manual_seed(n)),) for n in counts]


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        y = self.last(torch.relu(self.norm(self.first(x))))
        return y.softmax(-1), y.mean(0), x.shape[0]


def test_sizes_in_specifications():
    wide = {"x": {0: Dim("N", min=2, max=6)}}
    for spec in (dycl_tvm.TensorSpec(("2<=N<=6", 4)), dycl_tvm.TensorSpec((Dim("N", min=2, max=6), 4))):
        for graph in (dycl_tvm.stage(by_its_size, spec), dycl_tvm.stage(by_its_size, None, example_kwargs={"x": spec})):
            assert graph.sizes == dycl_tvm.stage(by_its_size, rows(3)[0], dynamic_shapes=wide).sizes
            for given in rows(2, 5, 6):
                torch.testing.assert_close(graph.interpret()(*given), by_its_size(*given))
    assert dycl_tvm.stage(by_its_size, (dycl_tvm.TensorSpec((2 * Dim("N", max=3), 4)),)).sizes[0].dims[0].factor == 2
    with pytest.raises(UsageError, match="give them as dynamic_shapes"):
        dycl_tvm.stage(torch.add, (spec,), example_kwargs={"other": spec})
    with pytest.raises(UsageError, match="has the dimension 'N'"):
        dycl_tvm.stage(by_its_size, dycl_tvm.TensorSpec(("N", 4)))


def by_its_size(x):
    if x.shape[0] > 3:
        x = x * 2
    if x.sum() > 0:
        return x.mean(0)
    return (x[-1] - x[0]) / len(x)


def in_a_loop(x):
    total = torch.zeros(4)
    for k in range(x.shape[0]):
        total = total * 0.5 + x[k]
    return total, x.view(-1), x.reshape(len(x) * 2, 2).sum(0)


def early_exit(x):
    for _ in range(3):
        x = torch.tanh(x) * 1.5
        if (x.abs().mean(-1) > 0.8).all():
            return {"early": x}
    return {"late": x.cumsum(0)}


@pytest.mark.parametrize("model", [Layers(), by_its_size, in_a_loop, early_exit], ids=["layers", "by_its_size", "in_a_loop", "early_exit"])
def test_right(model):
    check(model, rows(2, 1, 3, 4, 5, 6), dynamic_shapes=({0: N},))


def known_first_trips(x):
    picked, last = [], None
    for k in range(len(x)):
        last = k
        if x[k].sum() > 0:
            picked.append(x[k])
    return picked, last


@pytest.mark.parametrize("least", [0, 1, 3])
def test_a_loop_whose_first_trips_there_are_for_sure(least):
    check(known_first_trips, rows(3, 4, 5), dynamic_shapes=[[Dim("N", min=least, max=5), None]], paths=3)


def test_more_trips_than_the_limit_for_sure():
    call = stage(known_first_trips, rows(3)[0], dynamic_shapes=[[Dim("N", min=3, max=5), None]], max_loop_trips=2).interpret()
    with pytest.raises(LimitError, match="a loop runs more than max_loop_trips = 2 times"):
        call(*rows(3)[0])


def blocks_in_a_loop(x, flags):
    for k in range(9):
        if flags[k] > 0:
            x = torch.relu(x) + k
    return x


def test_a_loop_around_a_tensor_of_open_size_does_not_ask_how_long_it_is():
    """There are enough trips to be rolled; whether the tensor grows in them is no reason to part the paths by its length."""
    flags = torch.ones(9), -torch.ones(9), torch.randn(9, generator=torch.Generator().manual_seed(0))
    inputs = [(*x, f) for x in rows(2, 5, 6) for f in flags]
    graph = check(lambda x, flags: blocks_in_a_loop(x, flags), inputs, paths=3, dynamic_shapes=({0: N}, None))
    assert len(graph.blocks) < 40


def test_an_empty_batch():
    check(lambda x: (x * 2, x.sum(0), len(x)), rows(2, 0, 1, 3), dynamic_shapes=[[Dim("N", min=0, max=3), None]])


def test_along_the_sequence():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval()
    inputs = [(torch.randn(2, n, 8),) for n in (3, 1, 2, 7)]
    check(encoder, inputs, dynamic_shapes={"src": {1: torch.export.Dim("T", min=1, max=7)}})


def test_sizes_that_agree():
    def model(pair, mask, *, doubled):
        return pair["a"] * mask + pair["b"], doubled.view(2, -1).sum(0) + mask, doubled[1:].sum()

    shapes = {"pair": {"a": {0: N}, "b": None}, "mask": [N], "doubled": {0: 2 * N}}

    def given(n):
        return ({"a": torch.randn(n), "b": torch.ones(1)}, torch.rand(n)), {"doubled": torch.randn(2 * n)}

    args, kwargs = given(3)
    call = stage(model, args, kwargs, dynamic_shapes=shapes).interpret()
    for n in (1, 3, 6):
        args, kwargs = given(n)
        for got, want in zip(call(*args, **kwargs), model(*args, **kwargs)):
            torch.testing.assert_close(got, want)
    args, _ = given(2)
    with pytest.raises(InputError, match=r"'doubled': dimension 0 is 6, expected 4, because dimension 0 of .* is 2"):
        call(*args, doubled=torch.randn(6))
    with pytest.raises(InputError, match="dimension 0 is 7, expected N = 1 to 6"):
        call({"a": torch.randn(7), "b": torch.ones(1)}, torch.rand(7), doubled=torch.randn(14))


def test_of_pytorch():
    size = torch.export.Dim("T", min=2, max=5)
    graph = stage(lambda a, b: a.sum() + b.sum(), (torch.ones(3), torch.ones(7)), dynamic_shapes={"a": {0: size}, "b": {0: 2 * size + 1}})
    assert [(s.name, s.least, s.most, [(d.factor, d.constant) for d in s.dims]) for s in graph.sizes] == [("T", 2, 5, [(1, 0), (2, 1)])]
    assert graph.interpret()(torch.ones(5), torch.ones(11)).item() == 16


@pytest.mark.parametrize(
    ("shapes", "error", "message"),
    [
        ({"y": {0: N}}, UsageError, "names y; the model is given x"),
        ({"x": {2: N}}, UsageError, r"names dimension 2 of `x`, whose shape is \[2, 4\]"),
        ({"x": {0: 3}}, UsageError, "says 3 of dimension 0"),
        ({"x": {0: torch.export.Dim("N")}}, UsageError, "has no largest value"),
        ({"x": {0: Dim("N", min=3, max=9)}}, UsageError, "is 2, which is no N with N from 3 to 9"),
        ({"x": {0: 3 * N}}, UsageError, r"is 2, which is no 3\*N"),
        ({"x": [N]}, UsageError, "of the tensor `x`"),
        (7, UsageError, "dynamic_shapes is 7"),
    ],
)
def test_what_cannot_be_meant(shapes, error, message):
    with pytest.raises(error, match=message):
        stage(lambda x: x, (torch.ones(2, 4),), dynamic_shapes=shapes)


def test_a_fixed_size_is_no_size():
    graph = stage(lambda x: x + 1, (torch.ones(2, 4),), dynamic_shapes={"x": {0: 2, 1: None}})
    assert not graph.sizes and dycl_tvm.Dim is Dim


def by_other_names(x):
    turned, mean = x.flip(dims=(0, 1)), torch.var(x, False)
    return turned, torch.linalg.norm(x), torch.linalg.norm(x, 1, 0), mean, torch.unsafe_chunk(x, 2, 1), torch.unsafe_split(x, 3, 1)


def test_functions_that_are_others_by_another_name():
    check(by_other_names, rows(3, 2, 4, 6), dynamic_shapes=({0: N},))
    check(lambda x: (x.argmax(), x.argmin()), rows(3, 1, 2, 6), dynamic_shapes=({0: N},))


def test_a_size_as_one_of_two_bounds():
    check(lambda x: (torch.arange(8).clamp(0, len(x) - 1), x.clamp(max=len(x), min=0.5)), rows(3, 1, 2, 6), dynamic_shapes=({0: N},))


def test_adding_to_the_product_of_an_empty_matrix():
    """PyTorch leaves what it adds as small as it is then, so the result would have another shape."""
    size = Dim("N", min=0, max=4)
    call = stage(torch.addmv, (torch.ones(1), torch.ones(2, 3), torch.ones(3)), dynamic_shapes=[None, {0: size}, None]).interpret()
    for n in (1, 2, 4):
        torch.testing.assert_close(call(torch.ones(1), torch.ones(n, 3), torch.ones(3)), torch.full((n,), 4.0))
    with pytest.raises(LimitError, match="addmv"):
        call(torch.ones(1), torch.ones(0, 3), torch.ones(3))
    same = stage(torch.addmv, (torch.ones(2), torch.ones(2, 3), torch.ones(3)), dynamic_shapes=[{0: size}, {0: size}, None]).interpret()
    assert same(torch.ones(0), torch.ones(0, 3), torch.ones(3)).shape == (0,)


def test_an_argument_that_the_rule_of_a_layer_does_not_know():
    with pytest.raises(UnsupportedError, match="with these arguments"):
        stage(lambda x: torch.nn.functional.avg_pool2d(x, 3, 2, 1, False, True, 2), (torch.ones(1, 3, 9, 9),), dynamic_shapes=({1: N},))


def on_a_batch(x, y):
    if x.sum() > 0:
        return {"product": x @ y, "width": x.shape[1], "rows": x.reshape(-1)}
    return x.mean(1), y[: len(x)]


def batch(b, t, sign=1.0):
    generator = torch.Generator().manual_seed(10 * b + t)
    return sign * torch.rand(b, t, generator=generator), torch.randn(t, 3, generator=generator)


B, T = Dim("B", min=0, max=4), Dim("T", min=1, max=6)
BATCH = ({0: B, 1: T}, {0: T})


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.seen = self.seen + x.sum(0)
        return self.seen * self.calls, x.cumsum(0)


@pytest.mark.parametrize(
    "model", [Layers(), by_its_size, in_a_loop, early_exit, Counting()], ids=lambda model: getattr(model, "__name__", None)
)
def test_sizes_with_a_path_of_their_own(model):
    """The least size, one in between and the largest have one; all others share one, and go on to be right."""
    graph = check(model, rows(2, 1, 3, 4, 5, 6, 1, 2), dynamic_shapes=({0: N},), specialize=[3, {"N": 6}, 1], paths=4)
    assert graph.special_sizes == [{"N": (3, 3)}, {"N": (6, 6)}, {"N": (1, 1)}]
    with pytest.raises(InputError, match="dimension 0 is 7, expected N = 1 to 6"):
        graph.interpret()(torch.ones(7, 4))


def test_several_sizes_together_and_some_of_them():
    inputs = [batch(b, t, sign) for b in (2, 0, 1, 3, 4) for t in (1, 5, 6) for sign in (1, -1)]
    graph = check(on_a_batch, inputs, dynamic_shapes=BATCH, specialize=[{"B": 1, "T": 6}, {"T": 5}, {"B": 0}], paths=7)
    taken = {(b, t): path_of(graph, batch(b, t)) for b, t in ((1, 6), (1, 5), (3, 5), (0, 6), (0, 5), (1, 1), (3, 6))}
    assert taken == {(1, 6): 0, (1, 5): 1, (3, 5): 1, (0, 6): 2, (0, 5): 1, (1, 1): 3, (3, 6): 3}


def path_of(graph, inputs):
    """Return which of the special sizes a call takes; their number if it takes none."""
    call = graph.interpret()
    call(*inputs)
    told = [d.choice for d in call.last_path.branches if d.origin.file == "specialize"]
    return len(told) - 1 if told[-1] else len(told)


def test_on_a_path_of_its_own_a_size_is_a_plain_number():
    graph = stage(lambda x: x.view(-1, 2) * x.shape[0], rows(3)[0], dynamic_shapes=({0: N},), specialize=[2, 6])
    steps = [(step.op, step.outputs[0].type.shape) for block in graph.blocks for step in block.steps if isinstance(step, TensorOp)]
    assert steps.count(("aten.slice.Tensor", (2, 4))) == 1 and ("aten.view.default", (4, 2)) in steps


def test_attention_reads_the_keys_that_are_returned():
    """What is behind the new row is zero already, so a step of a decoder writes its keys and values once."""

    def step(q, keys, values, row):
        keys, values = torch.cat([keys, row], 2), torch.cat([values, row], 2)
        return torch.nn.functional.scaled_dot_product_attention(q, keys, values), keys, values

    inputs = tuple(torch.randn(1, 2, n, 4) for n in (1, 3, 3, 1))
    graph = stage(step, inputs, dynamic_shapes=(None, {2: N}, {2: N}, None))
    run_passes(graph, outlined=False)
    steps = [step for block in graph.blocks for step in block.steps if isinstance(step, TensorOp)]
    read = next(step.args[1:3] for step in steps if "scaled_dot_product" in step.op)
    assert [step.args[0] for step in steps if step.op == "dycl_moving.together.default"] == list(read)


def test_outputs_have_the_same_numbers_on_all_paths():
    """A host in C asks for them by number, and does not choose the path."""
    graph = stage(on_a_batch, batch(2, 3), dynamic_shapes=BATCH, specialize=[{"B": 1, "T": 6}, {"T": 5}])
    structures = {repr(site.structure) for site in graph.return_sites()}
    assert len(structures) == 2 and len(graph.return_sites()) == 6
    assert {len(block.terminator.values) for block in graph.blocks if type(block.terminator).__name__ == "Return"} == {5, 4}


@pytest.mark.parametrize(
    ("special", "message"),
    [
        (["N<=6"], "N <= 6, which is from 1 to 5"),
        (["N<=0"], "N <= 0, which is from 1 to 5"),
        (["N<5"], "has 'N<5'; write"),
        (["N=2,"], "has 'N=2,'; write"),
        (["N<=4", "N <= 3"], "N <= 3 behind N <= 4, which serves it"),
        (["N<=4", 4], "N = 4 behind N <= 4"),
        ([7], "N = 7, which is from 1 to 6"),
        ([0], "N = 0, which is from 1 to 6"),
        ([True], "has True; write"),
        ([{"M": 3}], "names the size 'M'; there is N"),
        ([{}], "has {}; write specialize="),
        (["N=3, N=5"], "says two things of N in 'N=3, N=5'"),
        ([2.0], "has 2.0"),
        (3, "specialize is 3; write"),
        ([3, {"N": 3}], "N = 3 behind N = 3, which serves it"),
    ],
)
def test_special_sizes_that_cannot_be_meant(special, message):
    with pytest.raises(UsageError, match=message):
        stage(by_its_size, rows(3)[0], dynamic_shapes=({0: N},), specialize=special)


def test_special_sizes_of_several_that_cannot_be_meant():
    with pytest.raises(UsageError, match="no input has a size that calls decide: give such sizes as dynamic_shapes"):
        dycl_tvm.stage(by_its_size, rows(3)[0], specialize=[3])
    for special, message in (([3], "specialize has 3; write"), ([{"T": 5}, {"B": 1, "T": 5}], "B = 1, T = 5 behind T = 5")):
        with pytest.raises(UsageError, match=message):
            stage(on_a_batch, batch(2, 3), dynamic_shapes=BATCH, specialize=special)


@pytest.mark.parametrize("model", [Layers(), by_its_size, in_a_loop, early_exit, Counting()])
def test_sizes_up_to_another_bound_with_a_path_of_their_own(model):
    graph = check(model, rows(2, 1, 3, 4, 5, 6, 1, 2), dynamic_shapes=({0: N},), specialize=["N=2", "N<=4"], paths=3)
    assert graph.special_sizes == [{"N": (2, 2)}, {"N": (1, 4)}]
    inputs = [batch(b, t, sign) for b in (2, 0, 1, 3, 4) for t in (1, 4, 5, 6) for sign in (1, -1)]
    graph = check(on_a_batch, inputs, dynamic_shapes=BATCH, specialize=["B<=1, T<=4", {"T": 5}], paths=5)
    assert [path_of(graph, batch(b, t)) for b, t in ((1, 4), (0, 1), (1, 5), (2, 4))] == [0, 0, 1, 2]
