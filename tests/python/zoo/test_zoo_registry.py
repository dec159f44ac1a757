# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Names, descriptions, and equal networks for equal seeds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from dycl_tvm import zoo

NAMES = [
    "sdn_mobilenet",
    "sdn_vgg16bn",
    "sdn_resnet56",
    "sdn_wideresnet32_4",
    "skipnet38_rnn",
    "skipnet38_ff",
    "caption_resnext50",
    "caption_googlenet",
    "blockdrop_resnet110",
    "early_bert_entropy",
    "early_bert_patience",
    "gpt_greedy",
    "gpt_greedy_static_cache",
    "moe_top1",
    "moe_top2",
    "act_rnn",
    "lightglue_adaptive",
    "cascade",
    "tree_lstm",
    "tree_lstm_gated",
]


def test_names_and_descriptions():
    assert zoo.names() == NAMES
    assert len({zoo.describe(name) for name in NAMES}) == len(NAMES)


def test_unknown_name_lists_the_names():
    with pytest.raises(ValueError, match=r"'resnet'.*sdn_resnet56"):
        zoo.load("resnet")
    with pytest.raises(ValueError, match="no network"):
        zoo.describe("resnet")


@pytest.mark.parametrize("name", NAMES)
def test_entry_is_ready_to_run(name, network):
    entry = network(name)
    assert entry.name == name
    assert entry.description == zoo.describe(name)
    assert not any(m.training for m in entry.model.modules())
    assert not any(p.requires_grad for p in entry.model.parameters())
    assert not any(m._forward_hooks for m in entry.model.modules())
    assert all(bool(value.isfinite().all()) for value in entry.model.state_dict().values())
    norms = [m for m in entry.model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert all(int(m.num_batches_tracked) > 0 and m.momentum == 0.1 for m in norms)
    inputs = list(entry.inputs(3))
    assert [tuple(x.shape for x in i) for i in inputs] == [tuple(x.shape for x in entry.example_inputs)] * 3


@pytest.mark.parametrize(
    "name", ["sdn_mobilenet", "skipnet38_rnn", "skipnet38_ff", "blockdrop_resnet110", "caption_googlenet", "gpt_greedy"]
)
def test_seed_decides_everything(name, network):
    before = torch.get_rng_state()
    same = zoo.load(name)
    assert torch.equal(torch.get_rng_state(), before)
    weights = network(name).model.state_dict()
    assert weights.keys() == same.model.state_dict().keys()
    for key, value in same.model.state_dict().items():
        torch.testing.assert_close(value, weights[key], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(same.example_inputs, network(name).example_inputs, rtol=0, atol=0)


def test_another_seed_gives_another_network_that_also_varies(network):
    other = zoo.load("sdn_mobilenet", seed=7)
    assert not torch.equal(other.model.end_layers[-1].weight, network("sdn_mobilenet").model.end_layers[-1].weight)
    assert len(zoo.observed_paths(other, 64)) >= 8


def test_inputs_depend_on_their_seed_only(network):
    entry = network("sdn_mobilenet")
    first, again, other = (torch.cat([x for (x,) in entry.inputs(4, seed)]) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_zoo_does_not_load_the_compiler():
    code = "import sys, dycl_tvm.zoo; print(*(m for m in sys.modules if m.split('.')[0] == 'tvm' or m.startswith('dycl_tvm.')))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    loaded = [m for m in done.stdout.split() if not m.startswith("dycl_tvm.zoo") and m != "dycl_tvm._version"]
    assert loaded == []
