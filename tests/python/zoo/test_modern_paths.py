# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The modern networks in eager: their paths vary, their decisions are those of the papers, and what is not needed does not run."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from torch import nn

from dycl_tvm import zoo
from dycl_tvm.zoo.modern.bert import entropy
from dycl_tvm.zoo.modern.moe import Expert, Top1Experts
from dycl_tvm.zoo.modern.recipes import RECIPES
from dycl_tvm.zoo.modern.tree_lstm import GatedTreeLSTM, TreeLSTM, leaves

#: The least number of paths that 32 inputs take.
PATHS = {
    "early_bert_entropy": 6,
    "early_bert_patience": 4,
    "gpt_greedy": 6,
    "gpt_greedy_static_cache": 6,
    "moe_top1": 24,
    "moe_top2": 24,
    "act_rnn": 16,
    "lightglue_adaptive": 5,
    "cascade": 2,
    "tree_lstm": 1,
    "tree_lstm_gated": 8,
}


def test_every_network_is_in_the_table():
    assert list(PATHS) == list(RECIPES)


@pytest.mark.parametrize("name", PATHS)
def test_inputs_take_many_paths(name, network):
    assert len(zoo.observed_paths(network(name), 32)) >= PATHS[name]


@pytest.mark.parametrize("name", [name for name, paths in PATHS.items() if paths > 1])
def test_another_seed_varies_too(name):
    assert len(zoo.observed_paths(zoo.load(name, seed=3), 32, seed=5)) >= min(4, PATHS[name])


@pytest.mark.parametrize("name", PATHS)
def test_rounding_does_not_decide_about_paths(name, network):
    entry = network(name)
    model = copy.deepcopy(entry.model).double()
    torch.set_default_dtype(torch.float64)
    try:
        found = Counter(
            zoo.path_of(model, tuple(x.double() if x.is_floating_point() else x for x in inputs)) for inputs in _float_inputs(entry)
        )
    finally:
        torch.set_default_dtype(torch.float32)
    assert found == zoo.observed_paths(entry, 32)


def _float_inputs(entry: zoo.Entry) -> list[tuple[torch.Tensor, ...]]:
    """Draw the inputs in single precision, whatever the default is."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        return list(entry.inputs(32))
    finally:
        torch.set_default_dtype(default)


def runs(executed: list[str], prefix: str, suffix: str) -> list[int]:
    """Return the numbers N of the modules prefix.N.suffix that ran, in order."""
    parts = [name.removeprefix(prefix + ".") for name in executed if name.startswith(prefix + ".") and name.endswith("." + suffix)]
    return [int(part.split(".")[0]) for part in parts]


def test_bert_leaves_where_the_entropy_is_low(network):
    entry = network("early_bert_entropy")
    model = entry.model
    for inputs in entry.inputs(16):
        with torch.no_grad(), zoo.executed_modules(model) as executed:
            logits, entropies, layers = model(*inputs)
        assert runs(executed, "layer", "output") == list(range(layers)) == runs(executed, "highway", "classifier")
        low = [bool(e < model.early_exit_entropy) for e in entropies]
        assert low == [False] * (len(low) - 1) + [layers < len(model.layer)]
        expected = torch.distributions.Categorical(logits=logits).entropy()
        torch.testing.assert_close(entropy(logits), expected)


def test_bert_ignores_padding(network):
    entry = network("early_bert_entropy")
    for ids, mask in entry.inputs(4):
        other = torch.where(mask == 1, ids, 7)
        torch.testing.assert_close(entry.model(other, mask)[0], entry.model(ids, mask)[0])


def test_patient_bert_leaves_after_two_equal_answers_in_a_row(network):
    entry = network("early_bert_patience")
    for inputs in entry.inputs(16):
        patient = copy.deepcopy(entry.model)
        patient.patience = 99
        answers = []
        for highway in patient.highway:
            highway.register_forward_hook(lambda _module, _args, logits, answers=answers: answers.append(int(logits.argmax())))
        patient(*inputs)
        same = [a == b for a, b in zip(answers, answers[1:])]
        expected = next((i + 3 for i in range(len(same) - 1) if same[i] and same[i + 1]), 6)
        assert entry.model(*inputs)[1] == expected


def test_gpt_caches_change_nothing(network):
    growing, static = network("gpt_greedy"), network("gpt_greedy_static_cache")
    for (prompt,), _ in zip(growing.inputs(12), range(12)):
        model = growing.model
        text = prompt
        for _ in range(model.max_new_tokens):
            # All that was written so far is read again.
            token = model.step(text, [None] * len(model.h))[0].argmax(-1, keepdim=True)
            if int(token) == model.eos_token:
                break
            text = torch.cat([text, token], 1)
        assert torch.equal(model(prompt), text)
        filled, length = static.model(prompt)
        assert torch.equal(filled[:, :length], text)
        assert bool((filled[:, length:] == model.eos_token).all())


@pytest.mark.parametrize("name, k", [("moe_top1", 1), ("moe_top2", 2)])
def test_only_chosen_experts_run(name, k, network):
    entry = network(name)
    model = copy.deepcopy(entry.model)
    chosen: list[list[int]] = []
    ran: list[int] = []
    for layer in model.modules():
        if isinstance(layer, Top1Experts):
            layer.router.register_forward_hook(lambda _m, _a, scores: chosen.append(sorted(scores[0].topk(k).indices.tolist())))
            for number, expert in enumerate(layer.experts):
                expert.register_forward_hook(lambda _m, _a, _o, number=number: ran.append(number))
    for inputs in entry.inputs(4):
        model(*inputs)
    assert len(chosen) == 4 * len(model.layers) * 4
    assert [sorted(ran[i : i + k]) for i in range(0, len(ran), k)] == chosen
    assert {number for pair in chosen for number in pair} == {0, 1, 2, 3}
    assert sum(isinstance(m, Expert) for m in model.modules()) == 4 * len(model.layers)


def test_ponder_steps_are_those_that_ran(network):
    entry = network("act_rnn")
    model = entry.model
    for inputs in entry.inputs(16):
        probabilities: list[float] = []
        handle = model.rnn.halting.register_forward_hook(lambda _m, _a, out, into=probabilities: into.append(float(out.sigmoid())))
        outputs, cost, steps = model(*inputs)
        handle.remove()
        assert outputs.shape == (1, 5, 8)
        assert sum(steps) == len(probabilities)
        assert sum(steps) < float(cost) < sum(steps) + 5
        for n in steps:
            mine, probabilities = probabilities[:n], probabilities[n:]
            assert sum(mine[:-1]) < 0.99
            assert sum(mine) >= 0.99 or n == model.rnn.max_ponder


def test_matcher_stops_when_points_are_sure_and_matches_are_mutual(network):
    entry = network("lightglue_adaptive")
    matched = 0
    for inputs in entry.inputs(16):
        with torch.no_grad(), zoo.executed_modules(entry.model) as executed:
            out = entry.model(*inputs)
        assert set(runs(executed, "transformers", "self_attn.Wqkv")) == set(range(out["stop"]))
        assert set(runs(executed, "log_assignment", "final_proj")) == {out["stop"] - 1}
        for i, j in enumerate(out["matches0"][0].tolist()):
            if j >= 0:
                assert out["matches1"][0, j] == i
                assert out["matching_scores0"][0, i] > entry.model.filter_threshold
                matched += 1
    assert 16 < matched < 16 * 16


def test_large_network_runs_only_if_the_small_one_is_unsure(network):
    entry = network("cascade")
    sources = Counter()
    for inputs in entry.inputs(32):
        with torch.no_grad(), zoo.executed_modules(entry.model) as executed:
            out = entry.model(*inputs)
        sure = float(entry.model.small(*inputs).softmax(1).max()) >= entry.model.threshold
        assert out["source"] == ("small" if sure else "large")
        assert any(name.startswith("large.") for name in executed) == (not sure)
        sources[out["source"]] += 1
    assert min(sources["small"], sources["large"]) >= 8


def test_tree_without_shortcuts_is_the_plain_tree(network):
    entry = network("tree_lstm_gated")
    plain = TreeLSTM()
    missing = plain.load_state_dict(entry.model.state_dict(), strict=False)
    assert all(key.startswith("gate.") for key in missing.unexpected_keys) and not missing.missing_keys
    open_to_the_bottom = copy.deepcopy(entry.model)
    open_to_the_bottom.gate[-1].bias.sub_(1e3)
    for inputs in entry.inputs(4):
        torch.testing.assert_close(open_to_the_bottom(*inputs), plain(*inputs))


def test_words_of_a_tree_in_any_shape():
    tree = ((1, 0), (2, ((3, 5), 4)))
    assert leaves(tree) == [1, 0, 2, 3, 5, 4]
    model = GatedTreeLSTM(tree).eval()
    assert model(torch.arange(6)[None]).shape == (1, 5)
    assert isinstance(model.gate[-1], nn.Linear)
