# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The benchmark: static networks of paths, refusal of wrong results, figures and the page."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from dycl_tvm.backends.tir_cpu.database import Database
from dycl_tvm.build import simplify
from dycl_tvm.compare import difference
from dycl_tvm.compile.program import KernelCall, Slot
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.nodes import SubDNNCall
from dycl_tvm.hcfg.sizes import Dim
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.progress import Phases
from dycl_tvm.staging import stage_model
from dycl_tvm.target import resolve_target
from dycl_tvm.zoo.images import batch_of_images

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import control_flow  # noqa: E402
import tune  # noqa: E402
from sod2 import gated  # noqa: E402
from speed import (  # noqa: E402
    ablations,
    compiling,
    contenders,
    measuring,
    pool,
    preparing,
    results,
    roofline,
    static,
    tables,
    units,
    worker,
)


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


@pytest.mark.parametrize("expected, refused", [(2.0, False), (2.1, True)])
def test_a_wrong_result_is_not_timed(tmp_path, monkeypatch, expected, refused):
    one = torch.ones(3).numpy()
    (tmp_path / "about.json").write_text(json.dumps({"weights": [1], "static": []}))
    (tmp_path / "data.pickle").write_bytes(pickle.dumps({"inputs": [(one,)], "expected": [one * expected]}))
    monkeypatch.setitem(contenders.CONTENDERS, "stub", (Stub, "stub"))
    obeying = worker.Worker()
    assert obeying.obey({"do": "open", "contender": "stub", "folder": str(tmp_path), "threads": 1}) == {}
    answer = obeying.obey({"do": "prepare", "k": 0})
    assert ("wrong result" in answer.get("error", "")) == refused
    assert (0 in obeying.calls) != refused


def test_a_slow_contender_runs_only_what_was_prepared(tmp_path, monkeypatch):
    one = torch.ones(3).numpy()
    (tmp_path / "about.json").write_text(json.dumps({"weights": [1, 1, 1], "static": []}))
    (tmp_path / "data.pickle").write_bytes(pickle.dumps({"inputs": [(one,)] * 3, "expected": [one * 2] * 3}))
    monkeypatch.setitem(contenders.CONTENDERS, "stub", (type("Slow", (Stub,), {"slow": True}), "stub"))
    obeying = worker.Worker()
    obeying.obey({"do": "open", "contender": "stub", "folder": str(tmp_path), "threads": 1})
    assert obeying.obey({"do": "prepare", "k": 0, "compiled": 2}) == {"error": "not prepared"}
    units.write_record(tmp_path, "stub-0", {"key": "", "seconds": 1.0, "error": "not ready within 240 s"})
    assert obeying.obey({"do": "prepare", "k": 0, "compiled": 2}) == {"error": "not ready within 240 s"}
    units.write_record(tmp_path, "stub-1", {"key": "", "seconds": 1.0, "error": None})
    assert obeying.obey({"do": "prepare", "k": 1, "compiled": 2}) == {} and list(obeying.calls) == [1]
    assert obeying.obey({"do": "prepare", "k": 2, "compiled": 2}) == {"left_out": True}


class Reading(nn.Module):
    """Words by their numbers, which are checked, as long as they are the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8, 4)

    def forward(self, ids):
        x = self.words(ids)
        if x.sum() > 0:
            x = x * 2
        return x.mean(0)


@pytest.mark.parametrize("options", [{"verify": "off"}, {"lower": {"dedup": False}}])
def test_what_is_timed_of_an_artefact_runs_on_ready_inputs(tmp_path, options):
    torch.manual_seed(0)
    model, ids = Reading().eval(), [torch.tensor(x) for x in ([1, 2, 3], [7, 0, 0])]
    torch.save(model, tmp_path / "model.pt")
    data = {"inputs": [(x.numpy(),) for x in ids], "expected": [model(x).detach().numpy() for x in ids]}
    (tmp_path / "data.pickle").write_bytes(pickle.dumps(data))
    (tmp_path / "about.json").write_text(json.dumps({"weights": [1, 1], "static": []}))
    record = compiling.compile_network(tmp_path, tmp_path / "artefact", options)
    (tmp_path / "artefact.json").write_text(json.dumps({**record, "error": None}))
    timed = contenders.Ours(tmp_path, 1, tmp_path / "artefact")
    for k, call in enumerate([timed.prepare(0), timed.prepare(1)]):
        assert difference(data["expected"][k], timed.result(k, call)) is None


def test_a_trace_may_give_what_its_decisions_were_taken_by():
    model, ids = Reading().eval(), torch.tensor([1, 2, 3])
    graph = stage_model(model, (ids,), phases=Phases())
    for decisions in (False, True):
        got = static.torch_module(static.static_path(graph, (ids,), decisions))(ids)
        assert difference(model(ids).detach(), got[0]) is None
        assert [bool(x) for x in got[1:]] == ([bool(model.words(ids).sum() > 0)] if decisions else [])


def test_paths_are_spread_between_the_shortest_and_the_longest():
    assert control_flow.chosen([10, 3, 7, 10, 5, 8]) == [1, 4, 2, 5, 0]
    assert control_flow.chosen([4, 4]) == [0]


SIZES = units.Sizes(draw=4, paths=2, compiled_paths=1, threads=1)


def test_units_are_done_once_and_failures_on_request_only(tmp_path, monkeypatch):
    ran, fails = [], {"aoti-0"}

    def run(unit, launcher, env):
        ran.append(unit.what)
        record = {"key": unit.key, "seconds": 0.0, "error": "no" if unit.what in fails else None}
        unit.folder.mkdir(exist_ok=True)
        units.write_record(unit.folder, unit.what, record)
        return record

    monkeypatch.setattr(units.Unit, "run", run)
    wanted = units.needed(tmp_path, ["net"], ["ours", "aoti", "eager"], ["net"], False, SIZES, 9.0)
    assert [u.what for u in wanted] == ["network", "aoti-0", "ours", *(f"ours-{ablations.folder_name(a)}" for a in ablations.ABLATIONS)]
    preparing.prepare(wanted, tmp_path, "", False, print)
    assert ran == [u.what for u in wanted]
    preparing.prepare(wanted, tmp_path, "", False, print)
    assert len(ran) == len(wanted), "nothing is left to do"
    preparing.prepare(wanted, tmp_path, "", True, print)
    assert ran[len(wanted) :] == ["aoti-0"]
    monkeypatch.setattr(units, "compiler_key", lambda: "other sources")
    preparing.prepare(units.needed(tmp_path, ["net"], ["ours", "aoti"], [], False, SIZES, 9.0), tmp_path, "", False, print)
    assert ran[len(wanted) + 1 :] == ["ours"], "only artefacts depend on the compiler"
    fails.add("network")
    preparing.prepare(units.needed(tmp_path, ["other"], ["ours"], [], False, SIZES, 9.0), tmp_path, "", False, print)
    assert ran[-1] == "network", "nothing can be done for a network that cannot be prepared"


def test_a_unit_that_fails_or_takes_too_long_says_so(tmp_path):
    env = pool.environment(tmp_path, 1)
    failed = units.make_unit(tmp_path / "net", "aoti-0", SIZES, 60.0).run("nice -n 1", env)
    assert "about.json" in failed["error"]
    late = units.make_unit(tmp_path / "net", "network", SIZES, 0.0)
    assert late.run("", env)["error"].startswith("not ready within 0 s")
    assert late.record() is not None, "it is not tried again"


def test_results_of_other_sources_are_measured_again(tmp_path, network, monkeypatch):
    def run(**how):
        kept = results.Results(tmp_path / "results.json")
        plan = pool.Plan(1, 1, 0.01, 1.0)
        return measuring.Measurement(tmp_path, kept, SIZES, plan, how.get("again", False), how.get("keep", False), print)

    first = run()
    assert not first.known("networks", "net")
    first.put("networks", "net", network)
    assert run().known("networks", "net", ["ours", "aoti"]) and not run(again=True).known("networks", "net")
    assert not run().known("networks", "net", ["ours", "eager"]), "contenders of one network are measured in one run"
    assert run().short(["net"]) == ["net"]
    monkeypatch.setattr(measuring, "compiler_key", lambda: "other sources")
    assert not run().known("networks", "net") and run(keep=True).known("networks", "net")


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


def test_the_page_says_why_a_network_falls_short(network):
    kernels = [
        {"symbol": "conv", "runs": 2, "ns": 20000.0, "bytes": 4000, "weight_bytes": 2**20, "flops": 3_000_000},
        {"symbol": "add", "runs": 1, "ns": 10000.0, "bytes": 90_000, "weight_bytes": 0, "flops": None},
        {"symbol": "unused", "runs": 0, "ns": 10000.0, "bytes": 1, "weight_bytes": 0, "flops": None},
    ]
    record = {"kernels": kernels, "sub_dnns": [{"name": "sub", "operators": "mm", "flops": 1_000_000, "ns": 20000.0}]}
    data = {"machine": {"peaks": [200.0, 10.0]}, "networks": {"net": network}, "roofline": {"net": record}}
    page = tables.document(data, ["net"])
    row = next(line for line in page.splitlines() if line.startswith("| `net` | 0.50 of 1.0"))
    assert "80% in `conv` (75% of the FMA peak, 2% of the memory bandwidth, arithmetic)" in row
    assert "20% in `add` (90% of the memory bandwidth, bandwidth)" in row and "unused" not in row
    assert "50.0 in 3 kernel calls" in row and "FMA peak: 30.0 µs" in row and "2.0 MiB of weights at the memory bandwidth: 210 µs" in row
    for value in network["contenders"]["ours"]["ns"].values():
        value[:] = [1.0] * 5
    assert "falls short" not in tables.document(data, ["net"])


def test_operations_are_those_of_the_kernel_that_has_the_result():
    def call(kernel, *shape):
        return KernelCall(0, kernel, (Slot(TensorType(shape, "float32"), "arena"),), "sub")

    calls = [call(0, 1, 3, 8, 8, 4), call(1, 1, 5, 8, 8), call(2, 1, 3, 8, 8, 4), call(3, 1, 7)]
    ops = [(100, (1, 10, 8, 8)), (200, (1, 9, 8, 8)), (300, (4, 4)), (400, (7,))]
    assert roofline.attributed(ops, calls) == {0: 100, 2: 200, 3: 400}


def test_networks_of_several_states_of_the_sources_are_told_apart(network):
    page = tables.document({"networks": {"a": {**network, "key": "1"}, "b": {**network, "key": "2"}}}, ["a", "b"])
    assert "## States of the sources" in page and "- `a`\n- `b`" in page
    assert "States" not in tables.document({"networks": {"a": network, "b": network}}, ["a", "b"])


def test_results_survive_a_run_that_is_ended(tmp_path, network):
    kept = results.Results(tmp_path / "results.json")
    kept.section("networks")["net"] = network
    kept.save()
    assert results.Results(tmp_path / "results.json").section("networks") == {"net": network}


def test_the_database_gets_what_is_better_and_is_measured_once(tmp_path, monkeypatch):
    target = resolve_target({"kind": "llvm", "mcpu": "x86-64-v3"}).target
    graph = stage_model(nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()).eval(), torch.randn(1, 16, 8, 8), phases=Phases())
    simplify(graph, (), Phases())
    (task,) = tune.tasks_of(graph, target)
    assert task.work.kernel == (3, 3) and {c.name for c in task.plans} >= {"direct", "winograd"}
    gains = iter([[1.4, 0.9], [1.2, 1.1]])
    other = next(c for c in task.plans if c.family is not task.plans[0].family)

    def measure(_task):
        return {
            "fingerprint": task.fingerprint(),
            "gains": next(gains),
            "family": other.name,
            "params": dict(other.plan.params),
            "seconds": 1e-6,
        }

    monkeypatch.setattr(tune, "measure", measure)
    state, out = tmp_path / "state.json", tmp_path / "tuned.json"
    tune.run([task], state, out, 1.0)
    assert Database(out).find(task.key) is None, "slower with one number of threads"
    tune.run([task], state, out, 1.0)  # nothing is measured
    state.unlink()
    tune.run([task], state, out, 1.0)
    found = Database(out).find(task.key)
    assert found is not None and (found.family, found.params) == (other.name, other.plan.params)


def test_candidates_are_measured(monkeypatch):
    target = resolve_target({"kind": "llvm", "mcpu": "x86-64-v3"}).target
    graph = stage_model(nn.Conv2d(16, 16, 1).eval(), torch.randn(1, 16, 4, 4), phases=Phases())
    simplify(graph, (), Phases())
    monkeypatch.setattr(tune, "CANDIDATES", 2)
    (task,) = tune.tasks_of(graph, target)
    record = tune.measure(task)
    assert record["seconds"] > 0 and len(record["gains"]) == min(2, os.cpu_count() or 1)
    assert (record["family"], tuple(record["params"].items())) in [(c.name, c.plan.params) for c in task.candidates()]


def test_what_the_compiler_does_not_take_is_named(tmp_path):
    found = compiling.compile_network(tmp_path, tmp_path, {"no_such_option": 1, "lower": {"nor_such": 2}})
    assert found == {"error": "build() does not take no_such_option, nor_such"}


def test_a_worker_that_takes_too_long_is_ended_and_said_so(tmp_path):
    process = pool.WorkerProcess("eager", tmp_path / "log", pool.environment(tmp_path, 1))
    try:
        assert "error" in process.ask(60, do="open", contender="eager", folder=str(tmp_path / "missing"), threads=1)
        process._process.send_signal(signal.SIGSTOP)
        assert process.ask(0.1, do="open", contender="eager", folder=str(tmp_path), threads=1) == {"error": "not ready in time"}
        assert "ended" in process.ask(5, do="open", contender="eager", folder=str(tmp_path), threads=1)["error"]
    finally:
        process.close()


def test_no_helper_of_the_tests_hides_a_benchmark() -> None:
    """Both lie on the path of the process that runs all tests: of two files with one name the other would be imported."""
    root = Path(__file__).parents[2]
    names = [
        f.stem
        for folder in ("benchmarks", "tests/python")
        for f in (root / folder).rglob("*.py")
        if not (f.parent / "__init__.py").exists()
    ]
    helpers = [name for name in names if name != "conftest" and not name.startswith("test_")]
    assert sorted(helpers) == sorted(set(helpers))


SOD2 = {
    "ConvNet-AIG": (lambda: gated.ConvNetAIG(1), gated.calibrate_aig),
    "DGNet": (lambda: gated.DGNet(1), gated.calibrate_dual),
}


@pytest.mark.parametrize("name", SOD2)
def test_networks_of_sod2_take_several_paths_at_several_sizes(name):
    make, calibrate = SOD2[name]
    torch.manual_seed(0)
    model = make().eval().requires_grad_(False)
    images = batch_of_images(24, 16, torch.Generator().manual_seed(0))
    calibrate(model, images[:16])
    sizes = {2: 4 * Dim("H", max=4), 3: 4 * Dim("W", max=4)}
    call, taken = stage(model, (images[:1],), dynamic_shapes=(sizes,)).interpret(), set()
    for k, image in enumerate(images[16:].split(1)):  # of those that it was calibrated with, some are at the edge of a gate
        x = image[:, :, : 16 - 4 * (k % 3), : 16 - 4 * (k % 2)].contiguous()
        assert difference(model(x), call(x), rtol=1e-3) is None
        taken.add(call.last_path.key())
    assert len(taken) > 2
