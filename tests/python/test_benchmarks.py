# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The benchmark: static networks of paths, refusal of wrong results, figures and the page."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from dycl_tvm.build import stage_model
from dycl_tvm.compare import difference
from dycl_tvm.hcfg.nodes import SubDNNCall
from dycl_tvm.progress import Phases

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from speed import compiling, contenders, pool, results, static, tables, worker  # noqa: E402


class Looping(nn.Module):
    """A loop whose trips, and a branch whose side, hang on the input; a number goes from a tensor to a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(8, 8)
        self.words = nn.Embedding(8, 8)

    def forward(self, x):
        trips = 0
        while x.abs().max() > 0.5 and trips < 6:
            x = self.step(x) * 0.6 + 0.01 * trips
            trips += 1
        word = int(x.argmax())
        if x.sum() > 0:
            return x + self.words(torch.tensor([word])), trips
        return torch.relu(x), trips, x.max().item()


@pytest.fixture(scope="module")
def looping():
    torch.manual_seed(0)
    model = Looping().eval().requires_grad_(False)
    return model, stage_model(model, torch.zeros(1, 8), phases=Phases())


def test_the_static_network_is_the_path_and_agrees_with_eager(looping):
    model, graph = looping
    generator = torch.Generator().manual_seed(1)
    trips = set()
    for scale in (0.01, 1.0, 3.0, 9.0, 40.0, -3.0):
        x = scale * torch.randn(1, 8, generator=generator)
        path = static.static_path(graph, [x])
        (block,) = path.graph.blocks
        assert [type(s) for s in block.steps] == [SubDNNCall]
        expected = model(x)
        found = static.result_of(path.structure, path.leaves, static.torch_module(path)(x))
        assert difference(expected, found, 1e-5) is None
        ops = [op.op for op in block.steps[0].callee.ops]
        assert sum("addmm" in op or "linear" in op for op in ops) == expected[1], "each trip is there once"
        trips.add(expected[1])
    assert len(trips) > 2


def test_inputs_of_one_path_share_a_network_and_others_do_not(looping):
    _, graph = looping
    small = torch.full((1, 8), -0.01)
    keys = [static.static_path(graph, [x]).key for x in (small, small * 2, small + 30)]
    assert keys[0] == keys[1] != keys[2]


class Stub(contenders.Contender):
    """Runs nothing."""

    def prepare(self, k):
        return lambda: self.inputs[k][0] + 1

    exported_only = False


@pytest.mark.parametrize("expected, refused", [(2.0, False), (2.1, True)])
def test_a_wrong_result_is_not_timed(tmp_path, monkeypatch, expected, refused):
    one = torch.ones(3).numpy()
    (tmp_path / "about.json").write_text(json.dumps({"weights": [1], "exported": 0, "static": []}))
    (tmp_path / "data.pickle").write_bytes(pickle.dumps({"inputs": [(one,)], "expected": [one * expected]}))
    monkeypatch.setitem(contenders.CONTENDERS, "stub", (Stub, "stub"))
    obeying = worker.Worker()
    assert obeying.obey({"do": "open", "contender": "stub", "folder": str(tmp_path), "threads": 1}) == {}
    answer = obeying.obey({"do": "prepare", "k": 0})
    assert ("wrong result" in answer.get("error", "")) == refused
    assert (0 in obeying.calls) != refused


def record(**ns):
    return {"error": None, "refused": {}, "prepare_seconds": 0.0, "ns": {k[1:]: v for k, v in ns.items()}}


@pytest.fixture
def network():
    return {
        "weights": [3, 1],
        "drawn": 8,
        "contenders": {
            "ours": record(k0=[100.0] * 5, k1=[500.0] * 5),
            "ort": record(k0=[300.0] * 5, k1=[100.0] * 5),
            "aoti": record(k1=[250.0, 250.0, 250.0, 900.0, 250.0]),
            "openvino": record() | {"error": "not installed: openvino | /some/users/folder/file.so"},
        },
    }


def test_figures_are_weighted_and_on_common_paths(network):
    assert results.times(network["contenders"]["ours"], network["weights"]).median == 200
    assert results.speedup(network, "ours", "ort") == pytest.approx(250 / 200)
    assert results.speedup(network, "ours", "aoti") == pytest.approx(0.5), "only the path that both ran"
    assert results.speedup(network, "ours", "openvino") is None
    assert results.fastest_peer(network) == ("aoti", pytest.approx(0.5))


def test_the_page_shows_losses_and_what_was_not_timed(network):
    page = tables.document({"networks": {"net": network}}, ["net"])
    row = next(line for line in page.splitlines() if line.startswith("| `net` | 2 paths"))
    assert "0.50x **(loss)**" in row and "1.25x |" in row and "on 1 of 2 paths" in row and "failed, see below" in row
    assert "not installed: openvino \\| .../file.so" in page


def test_results_survive_a_run_that_is_ended(tmp_path, network):
    kept = results.Results(tmp_path / "results.json")
    kept.section("networks")["net"] = network
    kept.save()
    assert results.Results(tmp_path / "results.json").section("networks") == {"net": network}


def test_what_the_compiler_does_not_take_is_named(tmp_path):
    found = compiling.compile_network(tmp_path, tmp_path, {"no_such_option": 1, "lower": {"nor_such": 2}})
    assert found == {"error": "build() does not take no_such_option, nor_such"}


def test_a_worker_that_takes_too_long_is_ended_and_said_so(tmp_path):
    process = pool.WorkerProcess("eager", tmp_path / "log", pool.environment(tmp_path, 1))
    try:
        assert "error" in process.ask(60, do="open", contender="eager", folder=str(tmp_path / "missing"), threads=1)
        assert process.ask(0.0, do="open", contender="eager", folder=str(tmp_path), threads=1) == {"error": "not ready in time"}
        assert "ended" in process.ask(5, do="open", contender="eager", folder=str(tmp_path), threads=1)["error"]
    finally:
        process.close()
