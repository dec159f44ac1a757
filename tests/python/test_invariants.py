# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What holds of every build and every artefact, seen from outside; the table in docs/architecture.md says what the rooms' tests add."""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dycl_tvm
from dycl_tvm import codegen, passes
from dycl_tvm.compare import difference
from dycl_tvm.compile.program import KernelLibrary, Leave, Program, Site
from dycl_tvm.errors import ArtifactError, InputError, InvariantError, RunError
from dycl_tvm.hcfg.builder import GraphBuilder, tensor
from dycl_tvm.hcfg.nodes import HCFG, Value
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.runtime.trailer import MAGIC, append_trailer, read_trailer


class Steps(nn.Module):
    """Fails in many ways, on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> Any:
        kind = int(x[0, 0])
        assert kind < 8, "the kind is below 8"
        if kind == 7:
            raise ValueError("seven is not a kind")
        outputs = [layer(x) for layer in self.layers]
        chosen = outputs[kind]
        return chosen, 12 // int(x[0, 1]), kind


def _write(artifact: dycl_tvm.Artifact, folder: Path, name: str = "model") -> tuple[Path, Path]:
    return artifact.export_library(folder / f"{name}.so"), artifact.save_params(folder / f"{name}.params")


@pytest.fixture(scope="module")
def steps() -> Steps:
    torch.manual_seed(0)
    return Steps().eval()


@pytest.fixture(scope="module")
def files(steps: Steps, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return _write(dycl_tvm.build(steps, (torch.zeros(1, 4),)), tmp_path_factory.mktemp("steps"))


# -- every graph is verified


def _break_definition(graph: HCFG) -> int:
    del graph.blocks[0].steps[0]
    return 1


def _break_edge(graph: HCFG) -> int:
    """Give a parameter another type than its argument has."""
    last = graph.blocks[-1]
    last.params.append(Value(tensor(7)))
    for block in graph.blocks:
        for edge in block.edges():
            if edge.target is last:
                edge.args.append(graph.entry.params[0])
    return 1


def _break_end(graph: HCFG) -> int:
    graph.blocks[-1].terminator = None
    return 1


@pytest.mark.parametrize("broken", [_break_definition, _break_edge, _break_end])
@pytest.mark.parametrize("place", range(len(passes.PASSES)))
def test_a_pass_that_breaks_the_graph_is_named(broken: Callable[[HCFG], int], place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name, _ in passes.PASSES]
    changed = list(passes.PASSES)
    changed[place] = (names[place], broken)
    monkeypatch.setattr(passes, "PASSES", changed)
    g = GraphBuilder("graph", {"x": tensor(4)})
    end = g.block("end")
    h = g.op(g.entry, "aten.relu.default", g.params[0])
    condition = g.host(g.entry, "item", g.op(g.entry, "aten.gt.Scalar", g.op(g.entry, "aten.sum.default", h), 0.0))
    other = g.block("other")
    g.branch(g.entry, condition, end, other)
    g.leave(other, g.op(other, "aten.exp.default", h))
    g.leave(end, g.op(end, "aten.neg.default", h))
    with pytest.raises(InvariantError, match=f"after the pass {names[place]}"):
        passes.run_passes(g.graph)


def test_the_graph_of_an_artefact_is_sound(steps: Steps) -> None:
    verify(dycl_tvm.build(steps, (torch.zeros(1, 4),)).hcfg)


# -- equal builds

_BUILD = """
import hashlib, sys
import torch
from torch import nn
import dycl_tvm
from dycl_tvm.zoo.skipnet import FeedforwardSkipNet

class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleDict({name: nn.Linear(8, 8) for name in ("north", "south", "east", "west")})
        self.calls = torch.zeros(())

    def forward(self, x, gains):
        self.calls = self.calls + 1
        steps, seen = 0, {}
        while x.abs().sum().item() > 1.0 and steps < 20:
            for name in self.cells:
                if x.mean() > 0.1:
                    x = torch.tanh(self.cells[name](x)) * gains[name]
                    if x[0, 0] > 0.9:
                        return {"left": x, "at": name}
            steps += 1
        for name in set(self.cells):
            seen[name] = x.sum()
        return {"right": x, "steps": steps, "calls": self.calls, "seen": sum(seen.values())}

torch.manual_seed(0)
gains = {name: torch.ones(8) for name in ("north", "south", "east", "west")}
models = {
    "skip": (FeedforwardSkipNet((1, 1, 1)).eval().requires_grad_(False), (torch.zeros(1, 3, 32, 32),)),
    "loop": (Loop().eval().requires_grad_(False), (torch.zeros(1, 8), gains)),
}
for name, (model, inputs) in models.items():
    artifact = dycl_tvm.build(model, inputs)
    files = artifact.export_library(f"{sys.argv[1]}/{name}.so"), artifact.save_params(f"{sys.argv[1]}/{name}.params")
    texts = [artifact.source(), str(artifact.hcfg), *(path.read_bytes().hex() for path in files)]
    print(name, *(hashlib.sha256(text.encode()).hexdigest() for text in texts))
"""


def test_two_processes_build_the_same_bytes(tmp_path: Path) -> None:
    """Source, graph, library and params do not depend on hash seeds or addresses."""
    script = tmp_path / "build_twice.py"
    script.write_text(_BUILD)
    processes = []
    for seed in ("1", "4242"):
        (tmp_path / seed).mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-W", "ignore", str(script), str(tmp_path / seed)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment))
    results = [process.communicate() for process in processes]
    for process, (_, error) in zip(processes, results):
        assert process.returncode == 0, error
    first, second = (output.splitlines() for output, _ in results)
    assert [line.split()[0] for line in first] == ["skip", "loop"]
    for kind, a, b in zip(
        ("source", "graph", "library", "params") * 2, *(sum((x.split()[1:] for x in lines), []) for lines in (first, second))
    ):
        assert a == b, kind


# -- files that do not belong together, and hostile ones


def test_params_of_another_model_are_refused(steps: Steps, files: tuple[Path, Path], tmp_path: Path) -> None:
    """Of the same code with other weights, and of other code."""
    torch.manual_seed(1)
    library, params = _write(dycl_tvm.build(Steps().eval(), (torch.zeros(1, 4),)), tmp_path)
    assert read_trailer(library)["code"] == read_trailer(files[0])["code"]
    other = _write(dycl_tvm.build(nn.Linear(4, 4).eval(), (torch.zeros(1, 4),)), tmp_path, "other")
    for so, weights in ((files[0], params), (library, files[1]), (files[0], other[1]), (other[0], files[1])):
        with pytest.raises(ArtifactError, match="does not belong to this library"):
            dycl_tvm.load(so, weights)
    # the same model again: equal weights belong to each other's library
    again = _write(dycl_tvm.build(steps, (torch.ones(1, 4),)), tmp_path, "again")
    dycl_tvm.load(files[0], again[1])


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_no_pickle_is_read(files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "exploded"
    bomb = pickle.dumps(_Bomb(mark))
    hostile = tmp_path / "hostile.params"
    torch.save({"w": torch.zeros(2)}, tmp_path / "torch.params")
    hostile.write_bytes(bomb)
    end = tmp_path / "hostile.so"
    end.write_bytes(bomb + len(bomb).to_bytes(8, "little") + hashlib.sha256(bomb).digest() + MAGIC)
    for library, params in ((files[0], hostile), (files[0], tmp_path / "torch.params"), (end, files[1]), (hostile, None)):
        with pytest.raises(ArtifactError):
            dycl_tvm.load(library, params)
    assert not mark.exists()
    pickle.loads(bomb)
    assert mark.exists(), "the bomb works"

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a pickle is read")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    module = dycl_tvm.load(*files)
    module(np.array([[1, 2, 3, 4]], "float32"))


_CONSTRUCTOR = """
#include <cstdio>
#include <cstdlib>
__attribute__((constructor)) static void Announce() {
  const char* path = std::getenv("DYCL_TEST_CODE_RAN");
  if (path != nullptr) std::fclose(std::fopen(path, "w"));
}
"""


@pytest.mark.parametrize("damage", ["arch", "cpu", "abi_version", "code", "trailer"])
def test_no_code_runs_before_the_checks(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library whose code announces itself when it is loaded: not if the trailer says that it is not for here."""
    mark = tmp_path / "code ran"
    monkeypatch.setenv("DYCL_TEST_CODE_RAN", str(mark))
    structure = {"tuple": [{"tuple": []}, {"dict": []}]}
    block = dycl_tvm.compile.program.CodeBlock("entry", [], Leave(0, ()))
    program = Program("Announce", structure, [], [], [block], [Site({"const": 5}, [])], [], [], [], 64)
    library = tmp_path / "model.so"
    machine = codegen.Machine(platform.machine(), f"{platform.machine()}-linux-gnu", "", ())
    codegen.link(program, KernelLibrary((), (("constructor.cc", _CONSTRUCTOR),)), library, machine)
    metadata = read_trailer(library)
    data = bytearray(library.read_bytes())
    elf = len(data) - 48 - int.from_bytes(data[-48:-40], "little")
    broken = tmp_path / "broken.so"
    if damage in ("code", "trailer"):
        data[elf // 2 if damage == "code" else elf + 9] ^= 1
        broken.write_bytes(data)
    else:
        broken.write_bytes(data[:elf])
        target = {**metadata["target"], **{"arch": {"arch": "riscv64"}, "cpu": {"cpu_flags": ["avx9000"]}}.get(damage, {})}
        append_trailer(broken, {**metadata, "target": target, "abi_version": 99 if damage == "abi_version" else metadata["abi_version"]})
    with pytest.raises(ArtifactError):
        dycl_tvm.load(broken)
    assert not mark.exists()
    assert dycl_tvm.load(library)() == 5
    assert mark.exists()


# -- failed calls


def test_failed_calls_leave_the_session_usable(steps: Steps, files: tuple[Path, Path]) -> None:
    """Whatever raises: the caller's mistake, the network's own error, an operation of the dispatcher."""
    module = dycl_tvm.load(*files)
    good = torch.tensor([[2.0, 5.0, 0.5, -1.0]])

    def with_head(*head: float) -> torch.Tensor:
        return torch.tensor([[*head, 0.5, -1.0]])

    failures: list[tuple[Any, type, str]] = [
        (with_head(9, 1), RunError, "below 8"),
        (with_head(7, 1), RunError, "seven is not a kind"),
        (with_head(5, 1), RunError, "IndexError|index"),
        (with_head(1, 0), RunError, "ZeroDivisionError|division"),
        (torch.zeros(2, 4), InputError, r"float32\[1, 4\], got float32\[2, 4\]"),
        (torch.zeros(1, 4, dtype=torch.float64), InputError, "float64"),
        (None, InputError, "tensor"),
    ]
    for x, error, words in failures:
        with pytest.raises(error, match=words):
            module(x)
        assert module.last_path.site is None
        assert error is RunError or not (module.last_path.branches or module.kernels_run or module.sub_dnns_run)
        assert difference(steps(good), module(good)) is None
        assert module.last_path.site is not None
    eager: list[str] = []
    for x, error, _ in failures:
        if error is RunError:
            with pytest.raises(Exception) as caught:
                steps(x)
            with pytest.raises(RunError) as compiled:
                module(x)
            eager.append(type(caught.value).__name__)
            assert compiled.value.kind == eager[-1]
    assert eager == ["AssertionError", "ValueError", "IndexError", "ZeroDivisionError"]


def test_the_table_in_the_documentation_names_tests_that_exist() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "architecture.md").read_text()
    table = text[text.index("## Invariants") :]
    named = [word.strip("`;,") for line in table.splitlines() if line.startswith("|") for word in line.split("|")[2].split() if "`" in word]
    files = [name for name in named if name.endswith((".py", "/"))]
    assert len(files) >= 10
    for name in files:
        assert (root / "tests" / "python" / name).exists(), name
