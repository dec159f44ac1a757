# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Inputs take many paths, and what a path does not need does not run."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pytest
import torch
from torch import Tensor, nn

from dycl_tvm import zoo

#: The networks of the DyCL paper; the others have their own tests.
PAPER = [name for name in zoo.names() if name.startswith(("sdn_", "skipnet", "caption_", "blockdrop"))]
SDN = [name for name in zoo.names() if name.startswith("sdn_")]
CAPTIONING = [name for name in zoo.names() if name.startswith("caption_")]


@contextmanager
def recorded(modules: list[nn.Module]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Collect the argument and the result of every call, in order."""
    calls: list[tuple[Tensor, Tensor]] = []
    handles = [m.register_forward_hook(lambda module, args, output: calls.append((args[0], output))) for m in modules]
    yield calls
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("name", PAPER)
def test_inputs_take_many_paths(name, paths):
    assert len(paths(name)) >= 4


@pytest.mark.parametrize("name", SDN)
def test_every_classifier_is_an_early_exit_and_a_winner_at_the_end(name, network, paths):
    exits = sum(layer.output is not None for layer in network(name).model.layers)
    sites = {(int(output_id), is_early) for _, (_, (_, output_id, is_early)) in paths(name)}
    assert sites == {(i, True) for i in range(exits)} | {(i, False) for i in range(exits + 1)}


@pytest.mark.parametrize("name", SDN)
def test_nothing_runs_behind_an_early_exit(name, network, paths):
    exits = [i for i, layer in enumerate(network(name).model.layers) if layer.output is not None]
    for executed, (_, (_, output_id, is_early)) in paths(name):
        layers = [int(match[1]) for match in (re.match(r"layers\.(\d+)\.", module) for module in executed) if match]
        ran_to_the_end = any(module.startswith("end_layers.") for module in executed)
        assert ran_to_the_end == (not is_early)
        assert max(layers) == (exits[output_id] if is_early else len(network(name).model.layers) - 1)


@pytest.mark.parametrize("name", SDN)
def test_result_of_an_early_exit_network(name, network):
    entry = network(name)
    for inputs in entry.inputs(16):
        heads = [layer.output for layer in entry.model.layers if layer.output is not None] + [entry.model.end_layers]
        with recorded(heads) as calls:
            output, output_id, is_early = entry.model(*inputs)
        logits = [result for _, result in calls]
        confidence = [float(x.softmax(1).max()) for x in logits]
        assert output is logits[output_id]
        threshold = entry.model.confidence_threshold
        if is_early:
            assert output_id == len(logits) - 1
            assert confidence[-1] >= threshold > max(confidence[:-1], default=0.0)
        else:
            assert len(logits) == len(heads)
            assert max(confidence[:-1]) < threshold
            assert confidence[output_id] == max(confidence)


@pytest.mark.parametrize("name", [name for name in PAPER if name not in CAPTIONING])
def test_rounding_does_not_decide_about_paths(name, network, paths):
    """In double precision the same inputs take the same paths, so a compiled network must take them too."""
    entry = network(name)
    images = [x.double() for (x,) in entry.inputs(64)]
    model = copy.deepcopy(entry.model).double()
    torch.set_default_dtype(torch.float64)
    try:
        found = Counter(zoo.path_of(model, (x,)) for x in images)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found == paths(name)


def skip_net_blocks() -> list[str]:
    return [f"group{g}_layer{i}" for g in (1, 2, 3) for i in range(6)]


@pytest.mark.parametrize("name", ["skipnet38_rnn", "skipnet38_ff"])
def test_a_skipped_block_does_not_run(name, network):
    entry = network(name)
    decisions = []
    for inputs in entry.inputs(64):
        with torch.no_grad(), zoo.executed_modules(entry.model) as executed:
            logits, masks, gprobs = entry.model(*inputs)
        runs = [True] + [bool(mask == 1) for mask in masks]
        assert logits.shape == (1, 10)
        assert len(runs) == len(gprobs) == 18
        assert [f"{block}.conv1" in executed for block in skip_net_blocks()] == runs
        assert [bool(gprob[:, -1] > 0.5) for gprob in gprobs[:-1]] == runs[1:]
        # A projection runs whether its block runs (as its shortcut) or not.
        assert sum("_ds0.0" in module or "downsample.0" in module for module in executed) == 2
        decisions.append(runs[1:])
    for gate in zip(*decisions):
        assert {True, False} == set(gate)


def test_recurrent_gate_remembers_only_within_one_call(network):
    entry = network("skipnet38_rnn")
    first, second = islice(entry.inputs(2), 2)
    expected = entry.model(*first)
    state = entry.model.control.hidden
    entry.model(*second)
    assert not torch.equal(entry.model.control.hidden[0], state[0])
    again = entry.model(*first)
    assert torch.equal(expected[0], again[0])
    assert torch.equal(entry.model.control.hidden[0], state[0])


def test_a_dropped_block_does_not_run(network):
    entry = network("blockdrop_resnet110")
    names = [f"net.blocks.{s}.{b}.conv1" for s in range(3) for b in range(18)]
    policies = []
    for inputs in entry.inputs(64):
        with torch.no_grad(), zoo.executed_modules(entry.model) as executed:
            logits, policy = entry.model(*inputs)
        assert logits.shape == (1, 10)
        assert [name in executed for name in names] == (policy[0] == 1).tolist()
        policies.append(policy)
    both = torch.cat(policies).float().mean(0)
    assert bool(((both > 0) & (both < 1)).all())


@pytest.mark.parametrize("name", CAPTIONING)
def test_length_of_a_caption_depends_on_the_image(name, paths):
    lengths = {len(words) for _, (_, ((_, words), _)) in paths(name)}
    assert len(lengths) >= 4


@pytest.mark.parametrize("name", CAPTIONING)
def test_each_word_is_fed_back_and_the_end_word_stops(name, network):
    entry = network(name)
    model = entry.model
    for inputs in entry.inputs(2):
        with recorded([model.embedding]) as embeddings, recorded([model.fc]) as scores:
            words, alphas = model(*inputs)
        fed = [int(word) for word, _ in embeddings]
        best = [int(result.argmax()) for _, result in scores]
        caption = [int(word) for word in words]
        assert model.end_word not in caption
        assert best == caption + [model.end_word] * (len(caption) < model.max_steps)
        assert fed == [model.start_word, *caption][: len(best)]
        assert len(alphas) == len(words)
        for alpha in alphas:
            assert alpha.shape == (1, 14 * 14)
            assert float(alpha.sum()) == pytest.approx(1.0, abs=1e-5)
