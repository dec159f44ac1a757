# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Models that set something up in their first call: right where all calls compute the same, else refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from differential import check, same
from judge import outcome
from torch import nn

from dycl_tvm.errors import StateError
from dycl_tvm.frontend.python import stage

X = [(torch.tensor([a, -0.5, 2.0]),) for a in (0.5, -3.0)]
#: Less than the sum of what the linear layer gives for the first of these.
Y = -10.0


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).relu()


class Mode:
    pass


class Other:
    pass


class Net(nn.Module):
    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.hook, self.how = nn.Linear(3, 3), None, how

    def forward(self, x):
        return self.how(self, x)


def hooks(net, x):
    if net.hook is None:
        net.hook = net.linear.register_forward_hook(lambda module, given, made: made * 2)
    y = net.linear(x)
    return y * 3 if y.sum() > 0 else y


def another_module(net, x):
    if not isinstance(net.linear, Around):
        net.linear = Around(net.linear)
    return net.linear(x) if x.sum() > 0 else x


def weights_are_thrown_away(net, x):
    if not isinstance(net.linear, Around):
        new = Around(nn.Linear(3, 3))
        new.inner.weight = net.linear.weight
        new.inner.bias = net.linear.bias
        net.linear = new
    return net.linear(x) if x.sum() > 0 else x


def frozen(net, x):
    for p in net.linear.parameters():
        p.requires_grad_(False)
    return {"y": net.linear(x)} if x.sum() > 0 else net.linear(x)


def two_ends(net, x):
    if net.hook is None:
        factor = [2.0, {"of": Mode()}]
        net.hook = net.linear.register_forward_hook(lambda module, given, made: made * factor[0])
    return {"y": net.linear(x)} if x.sum() > 0 else net.linear(x)


def errors_once_it_is_ready(net, x):
    """And before anything of it was done."""
    if x[0] > 90:
        raise ValueError("too large")
    if net.hook is None:
        net.hook = net.linear.register_forward_hook(lambda module, given, made: made * 2)
    rows = [x, x + 1][int(x[0] * 4)]  # an index out of range is an error of the third kind of input
    return net.linear(rows) if x.sum() > 0 else rows


@pytest.mark.parametrize("how", [hooks, another_module, weights_are_thrown_away, two_ends, frozen])
def test_all_calls_compute_the_same(how):
    net = Net(how)
    before = {name: type(value) for name, value in [*vars(net).items(), *net.named_children()]}
    graph = check(net, X, paths=2)
    assert not graph.state and not net.linear._forward_hooks
    assert {name: type(value) for name, value in [*vars(net).items(), *net.named_children()]} == before, "staging leaves no trace"
    model, call = copy.deepcopy(net), graph.interpret()
    for (x,) in [*X, *X]:
        want, got = model(x), call(x)
        assert type(got) is type(want) and torch.allclose(*[y["y"] if isinstance(y, dict) else y for y in (want, got)])


def test_errors_are_as_in_eager_where_nothing_or_all_was_set_up():
    net, large = Net(errors_once_it_is_ready), torch.full((3,), 99.0)
    graph = check(net, [(torch.tensor([0.25, 1.0, 2.0]),), *X, (large,), (large / 20,)], paths=3)
    assert not graph.state and not net.linear._forward_hooks


def after_the_hook(net, x):
    y = net.linear(x)
    if net.hook is None:
        net.hook = net.linear.register_forward_hook(lambda module, given, made: made * 2)
    return y


def mode_of_the_data(net, x):
    mode = getattr(net, "mode", None)
    if mode is None:
        net.mode = Mode() if x.sum() > 0 else Other()
    return x if mode is None or isinstance(mode, Mode) else x * 3


def other_results_later(net, x):
    if not hasattr(net, "mode"):
        net.mode = Mode()
        return x
    return x * 2


def values_kept(net, x):
    if not isinstance(net.linear, Around):
        net.linear = Around(net.linear)
        net.linear.first = x * 2
    return net.linear(x)


def values_kept_in_a_closure(net, x):
    if net.hook is None:
        y = x * 2
        net.hook = net.linear.register_forward_hook(lambda module, given, made: made + 0 * y)
    return x * 3


def something_new_each_time(net, x):
    net.mode = {**getattr(net, "mode", {}), len(getattr(net, "mode", {})): Mode()}
    return x


def an_error_before_it_is_ready(net, x):
    if not hasattr(net, "mode"):
        net.mode = Mode()
        if x.sum() < 0:
            raise ValueError("not ready")
    return x * 2


def an_error_in_the_midst(net, x):
    if net.hook is None:
        net.hook = net.linear.register_forward_hook(lambda module, given, made: made * 2)
        if x[0] > 9:
            raise ValueError("not ready")
        net.linear.register_forward_hook(lambda module, given, made: made * 3)
    return net.linear(x)


def undone_in_part(net, x):
    if net.hook is None:
        net.hook = net.linear.register_forward_hook(lambda module, given, made: made * 2)
        net.linear.register_forward_hook(lambda module, given, made: made * 3)
    try:
        if x[0] > 9:
            raise ValueError("not ready")
    except ValueError:
        net.hook.remove()
        raise
    return net.linear(x)


def weights_are_drawn(net, x):
    if not isinstance(net.linear, Around):
        net.linear = Around(nn.Linear(3, 3))
    return net.linear(x)


def draws_later_too(net, x):
    if not hasattr(net, "mode"):
        net.mode = Mode()
        torch.rand(3)
    return x + torch.rand(3)


def another_on_each_path(net, x):
    """The graph of a first call is that of all calls after one that takes the path of the example."""
    y, first = net.linear(x), not hasattr(net, "mode")
    if y.sum() < Y:
        net.mode = [Mode(), 3.0] if first else net.mode
        return {"y": y}
    net.mode = [Mode(), 2.0] if first else net.mode
    return y * net.mode[1]


def another_array_on_each_path(net, x):
    y, first = net.linear(x), not hasattr(net, "mode")
    if first:
        net.mode = {"mode": Mode(), "kept": np.ones(1)}
    if y.sum() < Y:
        net.mode["kept"][0] = 3.0 if first else net.mode["kept"][0]
        return {"y": y}
    net.mode["kept"][0] = 2.0 if first else net.mode["kept"][0]
    return y * float(net.mode["kept"][0])


@pytest.mark.parametrize(
    "how",
    [
        *(after_the_hook, values_kept, values_kept_in_a_closure, something_new_each_time),
        *(weights_are_drawn, another_array_on_each_path, an_error_in_the_midst, undone_in_part),
    ],
)
def test_what_may_differ_is_refused(how):
    net = Net(how)
    with pytest.raises(StateError):
        stage(net, X[0])
    assert not hasattr(net, "mode") and type(net.linear) is nn.Linear and net.hook is None


@pytest.mark.parametrize("how", [mode_of_the_data, other_results_later, an_error_before_it_is_ready, draws_later_too, another_on_each_path])
def test_an_object_that_is_all_that_differs_is_kept(how):
    graph = stage(Net(how), X[0])
    for calls in ([*X, *X], [*X[::-1], *X]):
        net, call = Net(how), graph.interpret()
        torch.default_generator.manual_seed(67280421310721)
        for (x,) in calls:
            want = outcome(lambda x=x, net=net: net(x))
            assert same(want, outcome(lambda x=x, call=call: call(x))) or isinstance(want, ValueError)
            if isinstance(want, ValueError):
                break


def test_hooks_of_a_library():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = transformers.BertModel(transformers.BertConfig(**sizes, attn_implementation="eager")).eval()
    ids = torch.randint(5, 30, (1, 6))
    call = stage(model, (ids,), example_kwargs={"output_attentions": True}).interpret()
    got, want = call(ids, output_attentions=True), model(ids, output_attentions=True)
    assert len(got.attentions) == 2 and all(torch.allclose(a, b, atol=1e-6) for a, b in zip(got.attentions, want.attentions))
