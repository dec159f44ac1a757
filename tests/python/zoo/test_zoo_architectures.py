# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The networks are those of the papers: layers, shapes, parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dycl_tvm.zoo.encoders import GoogLeNetTrunk, ResNeXtTrunk
from dycl_tvm.zoo.sdn import InternalClassifier
from dycl_tvm.zoo.skipnet import FeedforwardGate, RNNGate


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def convolutions(module: nn.Module, kernel: int | None = None) -> int:
    return sum(isinstance(m, nn.Conv2d) and kernel in (None, m.kernel_size[0]) for m in module.modules())


SDN = {
    # name: blocks, blocks with a classifier, layers with weights, parameters without internal classifiers
    "sdn_mobilenet": (13, [2, 4, 6, 8, 11], 28, 3_217_226),
    "sdn_vgg16bn": (14, [1, 3, 5, 6, 8, 9], 16, 15_253_578),
    "sdn_resnet56": (27, [3, 7, 11, 15, 19, 23], 56, 855_770),
    "sdn_wideresnet32_4": (15, [2, 4, 6, 8, 10, 12], 32, 7_404_074),
}


@pytest.mark.parametrize("name", SDN)
def test_shallow_deep_network_is_that_of_the_paper(name, network):
    model = network(name).model
    blocks, exits, depth, size = SDN[name]
    assert len(model.layers) == blocks
    assert [i for i, layer in enumerate(model.layers) if layer.output is not None] == exits
    heads = [m for m in model.modules() if isinstance(m, InternalClassifier)]
    inside_heads = {id(m) for head in heads for m in head.modules()}
    shortcuts = {id(m) for layer in model.layers for m in getattr(layer, "shortcut", nn.Sequential()).modules()}
    weighted = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear)) and id(m) not in inside_heads | shortcuts]
    assert len(weighted) == depth
    assert parameters(model) - sum(map(parameters, heads)) == size


PLACES = {
    "sdn_mobilenet": [16, 16, 16, 16, 4],
    "sdn_vgg16bn": [16, 16, 16, 16, 16, 4],
    "sdn_resnet56": [16] * 6,
    "sdn_wideresnet32_4": [16] * 6,
}


@pytest.mark.parametrize("name", SDN)
def test_internal_classifiers_see_maps_of_side_four_or_less(name, network):
    found = []
    for layer in network(name).model.layers:
        if layer.output is not None:
            channels = [m.out_channels for m in layer.layers if isinstance(m, nn.Conv2d)][-1]
            found.append(layer.output.linear.in_features // channels)
    assert found == PLACES[name]


def test_internal_classifier_mixes_max_and_average_pooling():
    head = InternalClassifier(8, 3, 5)
    x = torch.randn(2, 3, 8, 8)
    mixed = head.alpha * nn.functional.max_pool2d(x, 2) + (1 - head.alpha) * nn.functional.avg_pool2d(x, 2)
    torch.testing.assert_close(head(x), head.linear(mixed.flatten(1)))
    assert not InternalClassifier(2, 3, 5).pooled


@pytest.mark.parametrize("name", ["skipnet38_rnn", "skipnet38_ff"])
def test_skip_net_is_resnet_38(name, network):
    model = network(name).model
    blocks = {n: m for n, m in model.named_children() if "_layer" in n}
    assert list(blocks) == [f"group{g}_layer{i}" for g in (1, 2, 3) for i in range(6)]
    assert 1 + sum(convolutions(b, 3) for b in blocks.values()) + 1 == 38
    assert [b.conv2.out_channels for b in blocks.values()] == [16] * 6 + [32] * 6 + [64] * 6
    downsampling = [n for n in (f"group{g}_ds{i}" for g in (1, 2, 3) for i in range(6)) if getattr(model, n) is not None]
    assert downsampling == ["group2_ds0", "group3_ds0"]
    assert parameters(model.conv1) + parameters(model.bn1) + sum(map(parameters, blocks.values())) + parameters(model.fc) == 564_122


def test_recurrent_gate_is_one_lstm_for_all_blocks(network):
    model = network("skipnet38_rnn").model
    gates = [m for m in model.modules() if isinstance(m, RNNGate)]
    assert len(gates) == 1
    assert (gates[0].rnn.input_size, gates[0].rnn.hidden_size) == (10, 10)
    assert gates[0].hidden is None or gates[0].hidden[0].shape == (1, 1, 10)


def test_feedforward_gates_are_one_for_each_block(network):
    gates = [m for m in network("skipnet38_ff").model.modules() if isinstance(m, FeedforwardGate)]
    assert len(gates) == 18
    assert all(convolutions(g) == 3 and g.linear_layer.out_channels == 2 for g in gates)


def test_block_drop_is_resnet_110_with_a_resnet_8_policy(network):
    model = network("blockdrop_resnet110").model
    assert [len(blocks) for blocks in model.net.blocks] == [18, 18, 18]
    assert convolutions(model.net) + 1 == 110
    assert parameters(model.net) == 1_727_962
    assert convolutions(model.agent) + 1 == 8
    assert model.agent.logit.out_features == 54


@pytest.mark.parametrize(
    "trunk, layers, size, channels",
    [
        # The sizes are those of the whole classifiers for 1000 classes, less the last layer.
        (ResNeXtTrunk, 49, 25_028_904 - 1000 * (2048 + 1), 2048),
        (GoogLeNetTrunk, 57, 6_624_904 - 1000 * (1024 + 1), 1024),
    ],
)
def test_encoders_are_those_of_the_papers(trunk, layers, size, channels):
    with torch.device("meta"):
        model = trunk()
        assert model(torch.empty(1, 3, 256, 256)).shape == (1, channels, 8, 8)
    downsampling = sum(convolutions(m.downsample) for m in model.modules() if getattr(m, "downsample", None) is not None)
    assert convolutions(model) - downsampling == layers
    assert parameters(model) == size


@pytest.mark.parametrize("name, channels", [("caption_resnext50", 2048), ("caption_googlenet", 1024)])
def test_captioning_dimensions(name, channels, network):
    entry = network(name)
    model = entry.model
    assert entry.example_inputs[0].shape == (1, 3, 256, 256)
    assert model.encoder(entry.example_inputs[0]).shape == (1, 14, 14, channels)
    assert model.embedding.weight.shape == (2633, 512)
    assert model.fc.out_features == 2633
    assert (model.decode_step.input_size, model.decode_step.hidden_size) == (512 + channels, 512)
    assert (model.attention.encoder_att.in_features, model.attention.encoder_att.out_features) == (channels, 512)
    assert model.f_beta.out_features == channels
    assert model.max_steps == 20
