# Licensed under the Apache License, Version 2.0; see LICENSE.
# ruff: noqa: UP031, UP032  (the older ways to make texts are what is tested)
"""Items and parts of modules that a text names which has a number in it that is known only at run time."""

from __future__ import annotations

import pytest
import torch
from differential import check
from torch import nn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage

X = [(torch.tensor([float(a), b, 1.0]),) for a in (0, 1, 2, 3, -1, 5) for b in (-0.5, 0.5)]
#: Names that follow one another, and others.
KEYS = [(0, 1, 2), (1, 5, -1), (10, 11, 12), (7,)]


class Net(nn.Module):
    def __init__(self, how, keys):
        super().__init__()
        torch.manual_seed(0)
        self.experts = nn.ModuleDict({f"expert_{k}": nn.Linear(3, 3) for k in keys})
        self.experts["expert_01"] = self.experts["expert_x"] = self.experts["other_1"] = nn.Identity()
        for k in keys:
            setattr(self, f"layer{k}", nn.Linear(3, 3))
            setattr(self, f"scale{k}of3", nn.Parameter(torch.full((3,), k + 2.0)))
        self.numbers = {str(k): k * 2.0 for k in keys}
        self.how = how

    def forward(self, x):
        return self.how(self, x)


def item(net, x):
    return net.experts[f"expert_{int(x[0])}"](x)


def item_by_a_tensor(net, x):
    return net.experts[f"{'expert'}_{x[0].long()}"](x)


def item_by_a_sum(net, x):
    return net.experts["expert_" + str(int(x[0]))](x)


def item_by_percent(net, x):
    return net.experts["expert_%d" % int(x[0])](x)


def item_by_format(net, x):
    return net.experts["expert_{:d}".format(int(x[0]))](x) + net.experts["_".join(["expert", f"{x[0].long()}"])](x)


def compared(net, x):
    name = f"expert_{int(x[0])}"
    if name == "expert_1" or "expert_x" == name:
        return x * 3
    return x + 1 if name != "expert_2" else x


def looked_for(net, x):
    name = str(int(x[0]))
    return x * net.numbers[name] if name in net.numbers else x - float(name not in ("5", "-1", "05"))


def part_of_an_item(net, x):
    return net.experts[f"expert_{int(x[0])}"].weight @ x


def attribute(net, x):
    return getattr(net, f"layer{int(x[0])}")(x) * getattr(net, f"scale{int(x[0])}of3")


def number(net, x):
    return x * net.numbers[f"{int(x[0])}"]


def set_before_a_branch(net, x):
    name = f"layer{int(x[0])}"
    if x[1] > 0:
        x = x * 2
    return getattr(net, name)(x)


def missing_name_is_caught(net, x):
    try:
        return net.experts[f"expert_{int(x[0])}"](x)
    except KeyError:
        return x


@pytest.mark.parametrize("keys", KEYS, ids=str)
@pytest.mark.parametrize(
    "how",
    [
        item,
        item_by_a_tensor,
        item_by_a_sum,
        item_by_percent,
        item_by_format,
        compared,
        looked_for,
        part_of_an_item,
        attribute,
        number,
        set_before_a_branch,
        missing_name_is_caught,
    ],
)
def test_the_item_is_chosen_by_the_number(how, keys):
    check(Net(how, keys), X, paths=2 if any(-2 < k < 6 for k in keys) else 1)


def test_a_choice_in_a_loop_is_part_of_the_loop():
    def f(net, x):
        y, k = x, torch.tensor([0.0, 1.0, 2.0])
        while k.max() > -1:
            at = k.argmax()
            y = net.experts[f"expert_{at}"](y)
            k = torch.where(torch.arange(3) == at, torch.full((3,), -2.0), k - (x[0] > 2) * 0.6 - (x[0] > 4) * 5)
        return y

    graph = check(Net(f, (0, 1, 2)), X, paths=3, max_paths=1)
    assert len(graph.blocks) < 10


class Asked(Net):
    """Its attributes are found by code."""

    def __getattr__(self, name):
        return super().__getattr__(name.replace("named", "layer"))


class Counted(dict):
    def __missing__(self, key):
        return len(key)


def text_returned(net, x):
    return f"{int(x[0])}", x


def text_ordered(net, x):
    return x * 2 if f"{int(x[0])}" < "1" else x


def default(net, x):
    return getattr(net, f"layer{int(x[0])}", net.layer1)(x)


def found_by_code(net, x):
    return getattr(net, f"named{int(x[0])}")(x)


def made_where_missing(net, x):
    return x * Counted(a=1.0)[f"{int(x[0])}"]


@pytest.mark.parametrize("how", [text_returned, text_ordered, default, found_by_code, made_where_missing])
def test_other_uses_are_refused(how):
    with pytest.raises(UnsupportedError, match="its text"):
        stage(Asked(how, (0, 1, 2)), X[0])


def test_switch_transformers():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {"vocab_size": 37, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2, "num_layers": 2, "num_decoder_layers": 2}
    config = transformers.SwitchTransformersConfig(
        **sizes, num_sparse_encoder_layers=2, num_sparse_decoder_layers=2, num_experts=3, decoder_start_token_id=0, use_cache=False
    )
    model = transformers.SwitchTransformersForConditionalGeneration(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0 if p.dim() > 1 else 1.0)
    texts = [torch.randint(1, 37, (1, 6), generator=torch.Generator().manual_seed(k)) for k in range(3)]
    calls = [(ids, None, ids[:, :4]) for ids in (*texts, torch.full((1, 6), 7))]
    graph = stage(model, calls[0])
    call = graph.interpret()
    for args in calls:
        with torch.no_grad():
            assert torch.allclose(model(*args).logits, call(*args).logits, atol=1e-5)
    assert len(graph.blocks) < 60
