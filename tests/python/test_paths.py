# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``dycl-tvm paths`` and the library behind it: listing, searching, and saying what was exercised."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dycl_tvm
from dycl_tvm.cli.exit_codes import FAILURE, OK, USAGE
from dycl_tvm.cli.main import main
from dycl_tvm.coverage import ArtifactRunner, Coverage, GraphRunner, flow_of_artifact, flow_of_graph, list_paths, search
from dycl_tvm.errors import UsageError
from dycl_tvm.frontend.python import stage
from dycl_tvm.passes import run_passes
from dycl_tvm.runtime.trailer import read_trailer

SOURCE = """
import torch


def net(x, k):
    s = x.sum()
    if s > 1:
        if x[0] > 100:
            return "large", x
        return "middle", x * 2
    if int(k) == 1:
        raise ValueError("one")
    if x[1] > x[2]:
        return [x, x + 1]
    return -x


def loop(x):
    n = 0
    while x.abs().sum() > 1:
        x = x * 0.5
        n += 1
    return x, n
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paths")
    (folder / "user.py").write_text(textwrap.dedent(SOURCE), encoding="utf-8")
    code = main(["compile", f"{folder}/user.py:net", "-i", "3", "-i", "1:int64", "-o", f"{folder}/net.so", "-q"])
    assert code == OK
    return folder


def save(folder: Path, name: str, x: list[float], k: int) -> str:
    path = folder / f"{name}.npz"
    np.savez(path, x=np.array(x, dtype=np.float32), k=np.array([k]))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["paths", *arguments])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


# -- listing ----------------------------------------------------------------------------------------------------------------
class Gates(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def forward(self, x):
        for i in range(self.n):
            if x.sum() > i:
                x = x * 2
        return x


def test_all_paths_of_gates_are_listed_once():
    listing = list_paths(flow_of_graph(stage(Gates(5), (torch.ones(2),))))
    assert listing.complete and not listing.loops and listing.total == 32
    assert len({p.key for p in listing.paths}) == 32 and all(len(p.key) == 5 for p in listing.paths)


def test_the_list_is_bounded_and_the_total_exact():
    listing = list_paths(flow_of_graph(stage(Gates(60), (torch.ones(2),))), limit=100)
    assert not listing.complete and len(listing.paths) == 100 and listing.total == 2**60


def test_loops_are_listed_up_to_a_number_of_trips():
    def f(x):
        while x.sum() > 0:
            x = x - 1
        return x

    flow = flow_of_graph(stage(f, (torch.ones(2),)))
    for trips in (1, 3):
        listing = list_paths(flow, max_trips=trips)
        assert listing.loops and listing.complete
        assert sorted(len(p.key) for p in listing.paths) == list(range(1, trips + 2))


def test_a_loop_without_a_way_out_ends():
    def f(x):
        while True:
            x = x + 1
            if x.sum() > 5:
                raise RuntimeError("too far")

    listing = list_paths(flow_of_graph(stage(f, (torch.ones(2),))))
    assert [len(p.key) for p in listing.paths] == [2, 1]


def test_graph_and_artefact_have_the_same_paths(folder: Path):
    artefact = list_paths(flow_of_artifact(read_trailer(folder / "net.so")))
    assert artefact.complete and len(artefact.paths) == 5
    ends = sorted(flow_of_artifact(read_trailer(folder / "net.so")).blocks[p.end].end for p in artefact.paths)
    assert ends == ["raise", "return", "return", "return", "return"]


def test_an_artefact_without_its_flow_is_refused(folder: Path):
    metadata = {k: v for k, v in read_trailer(folder / "net.so").items() if k != "flow"}
    with pytest.raises(UsageError, match="compile it anew"):
        flow_of_artifact(metadata)


# -- exercising and searching -----------------------------------------------------------------------------------------------
def test_interpreter_and_artefact_take_the_same_paths():
    model = Gates(4)
    art = dycl_tvm.build(model, (torch.ones(3),))
    graph = stage(model, (torch.ones(3),))
    run_passes(graph)
    runners: list[Any] = [GraphRunner(graph), GraphRunner(art.hcfg)]
    for x in (-1.0, 0.1, 0.4, 1.0, 3.0):
        keys = {tuple(side for _, side in r.run([np.full(3, x, dtype=np.float32)]).key) for r in runners}
        assert len(keys) == 1


def test_search_finds_every_path_and_says_which_input_takes_it(folder: Path):
    runner = ArtifactRunner(dycl_tvm.load(folder / "net.so", folder / "net.params"))
    listing = list_paths(runner.flow)
    coverage = Coverage(runner.flow, listing)
    runs = search(runner, coverage, 3000, seed=1)
    assert coverage.done and not coverage.missing() and runs < 3000
    for key, seen in coverage.seen.items():
        assert runner.run(seen.found).key == key
    again = Coverage(runner.flow, listing)
    assert search(runner, again, 3000, seed=1) == runs


def test_search_changes_inputs_of_every_dtype():
    def f(i, b, h, d, p):
        if i[0] > 5 and b[1] and h.sum() > 1 and d.max() < 0 and p[0] != p[1]:
            return 1
        return 0

    dtypes = (torch.int32, torch.bool, torch.bfloat16, torch.float64, torch.float16)
    inputs = tuple(torch.zeros(2, dtype=d) for d in dtypes)
    graph = stage(f, inputs)
    run_passes(graph)  # jump threading takes away the paths on which the parts of the condition contradict the whole
    runner = GraphRunner(graph)
    coverage = Coverage(runner.flow, list_paths(runner.flow))
    search(runner, coverage, 2000, int_high=10)
    assert coverage.done


def test_state_begins_anew_at_every_run():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = 0

        def forward(self, x):
            self.n += 1
            return x if self.n > 1 else -x

    runner = GraphRunner(stage(Counter(), (torch.ones(1),)))
    keys = {runner.run([np.ones(1, dtype=np.float32)]).key for _ in range(3)}
    assert len(keys) == 1


def test_a_switch_and_the_path_that_no_input_takes():
    def f(x):
        return [1, x, None][int(x.sum().abs() % 3)]

    runner = GraphRunner(stage(f, (torch.ones(3),)))
    coverage = Coverage(runner.flow, list_paths(runner.flow))
    assert search(runner, coverage, 100) == 100
    assert all(runner.flow.blocks[p.end].detail.startswith("IndexError") for p in coverage.missing())
    assert {side for (d, side) in coverage.sides if runner.flow.decisions[d][0] == "switch"} <= {0, 1, 2}


# -- the command --------------------------------------------------------------------------------------------------------------
def test_command_lists_and_says_what_was_exercised(folder: Path, capsys: pytest.CaptureFixture[str]):
    large, one = save(folder, "large", [200, 0, 0], 0), save(folder, "one", [0, 0, 0], 1)
    code, text = run(capsys, f"{folder}/net.so", "-e", large, "-e", one, "--search", "0")
    assert code == OK
    assert "5 paths, 4 decisions" in text and "exercised 2 of 5 listed paths" in text
    assert f"exercised by {large}" in text and f"exercised by {one}" in text and "raise ValueError: one" in text
    assert 'return "large", x' in text and "never taken" in text and "not exercised" in text
    code, text = run(capsys, f"{folder}/net.so", "-e", large, "--search", "0", "--require-all", "--brief")
    assert code == FAILURE and len([line for line in text.splitlines() if line.startswith("path ")]) == 5


def test_command_searches_and_saves_inputs_that_exercise_all(folder: Path, capsys: pytest.CaptureFixture[str]):
    found = folder / "found"
    code, text = run(capsys, f"{folder}/net.so", "--search", "3000", "--seed", "1", "--save", str(found), "-q", "--require-all")
    assert code == OK and "exercised 5 of 5" in text
    files = [arg for f in sorted(found.glob("*.npz")) for arg in ("-e", str(f))]
    assert len(files) == 10
    code, text = run(capsys, f"{folder}/net.so", *files, "--search", "0", "--require-all", "--json")
    described = json.loads(text)
    assert code == OK and all(p["exercised"] for p in described["paths"]) and described["sides"] == {"taken": 8, "all": 8}


def test_command_on_a_model_with_a_loop(folder: Path, capsys: pytest.CaptureFixture[str]):
    np.save(folder / "x.npy", np.full(2, 9, dtype=np.float32))
    code, text = run(capsys, f"{folder}/user.py:loop", "-i", "2", "-e", f"{folder}/x.npy", "--search", "50", "--max-trips", "2", "-q")
    assert code == OK
    assert "3 paths, loops cut short, 1 decisions" in text and "that are not listed (more trips" in text
    assert "exercised 3 of 3 listed paths, 2 of 2 sides" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-e", "{f}/missing.npz"], "cannot read"),
        (["-e", "{f}/half.npz"], "holds no array 'k'"),
        (["-e", "{f}/shape.npz"], r"input 'x' is float32[3], got float32[2]"),
        (["-e", "{f}/text.txt"], "must be an .npz file with x, k"),
    ],
)
def test_command_refuses_inputs_that_do_not_fit(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str):
    np.savez(folder / "half.npz", x=np.zeros(3, dtype=np.float32))
    np.savez(folder / "shape.npz", x=np.zeros(2, dtype=np.float32), k=np.array([0]))
    code, text = run(capsys, f"{folder}/net.so", "--search", "0", *[a.format(f=folder) for a in arguments])
    assert code == USAGE and message in text


def test_help_has_examples(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["paths", "--help"])
    text = capsys.readouterr().out
    assert "examples:" in text and "--exercised" in text and "--require-all" in text


def test_an_artefact_needs_neither_torch_nor_tvm(folder: Path):
    script = (
        "import sys\nfrom dycl_tvm.cli.main import main\n"
        f"code = main(['paths', {str(folder / 'net.so')!r}, '--search', '50', '-q'])\n"
        "print(sorted(m for m in ('torch', 'tvm') if m in sys.modules), code)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines()[-1] == "[] 0", done.stdout + done.stderr
