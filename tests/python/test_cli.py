# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The command line: what it writes and prints, its exit codes, its errors."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dycl_tvm
from dycl_tvm import cache
from dycl_tvm.cli.exit_codes import FAILURE, OK, UNSUPPORTED, USAGE
from dycl_tvm.cli.main import main, parser
from dycl_tvm.cli.models import load_model, parse_inputs
from dycl_tvm.errors import UsageError

SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, x):
        h = self.first(x)
        if h.sum() > 0:
            return {"early": h}
        return {"late": self.second(h), "steps": 2}


net = Net().eval()
training = Net()
training.drop = nn.Dropout()


def make():
    return Net().eval(), (torch.zeros(2, 8),)


def masks(x):
    return x.histogram(3)


def needs(argument):
    return argument
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model file, and the artefact compiled from it."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "user_net.py").write_text(textwrap.dedent(SOURCE), encoding="utf-8")
    where = f"{folder}/user_net.py:net"
    code = main(
        ["compile", where, "-i", "2x8", "-o", f"{folder}/net.so", "-q", "--hcfg", f"{folder}/net.html", "--emit-source", f"{folder}/net.cc"]
    )
    assert code == OK
    return folder


def test_compile_writes_what_was_asked_for(folder: Path) -> None:
    assert (folder / "net.so").stat().st_size > 0
    assert (folder / "net.params").stat().st_size > 0
    assert "user_net.py" in (folder / "net.html").read_text(encoding="utf-8")
    assert "Dispatcher of Net" in (folder / "net.cc").read_text(encoding="utf-8")


def test_the_artefact_computes_what_the_model_does(folder: Path) -> None:
    module = dycl_tvm.load(folder / "net.so", folder / "net.params")
    model, _ = load_model(f"{folder}/user_net.py:net")
    keys = set()
    for seed in range(8):
        x = torch.randn(2, 8, generator=torch.Generator().manual_seed(seed))
        expected, actual = model(x), module(x)
        assert list(expected) == list(actual)
        keys.add(next(iter(expected)))
    assert keys == {"early", "late"}


def test_compile_gives_regions_to_a_backend_on_request(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A backend that has nothing for the target says so, which shows that the option arrives."""
    where = f"{folder}/user_net.py:net"
    assert main(["compile", where, "-i", "2x8", "-o", f"{folder}/asked.so", "-q", "--enable-backend", "cublas"]) == USAGE
    assert "cublas" in capsys.readouterr().err


def test_compile_prints_a_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "again.so"
    assert main(["compile", f"{folder}/user_net.py:make()", "-o", str(out), "--embed-params", "--json"]) == OK
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["return_sites"] == 2
    assert "compile:" in captured.err, "progress is on by default"
    assert not out.with_suffix(".params").exists()
    assert main(["run", str(out), "-q"]) == OK


def test_run_on_random_inputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{folder}/net.so", "--seed", "5", "--repeat", "3"]) == OK
    first = capsys.readouterr().out
    assert "user_net.py" in first, "the path shows the user's lines"
    assert "median" in first
    assert main(["run", f"{folder}/net.so", "--seed", "5"]) == OK
    assert _outputs(capsys.readouterr().out) == _outputs(first), "a seed gives the same inputs"


def _outputs(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("output")]


@pytest.mark.parametrize("kind", ["npy", "npz", "bin"])
def test_run_on_files(folder: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    path = folder / f"x.{kind}"
    if kind == "npy":
        np.save(path, x)
    elif kind == "npz":
        np.savez(path, x=x)
    else:
        path.write_bytes(x.tobytes())
    out = folder / f"out_{kind}.npz"
    assert main(["run", f"{folder}/net.so", "-i", str(path), "-o", str(out)]) == OK
    model, _ = load_model(f"{folder}/user_net.py:net")
    key, expected = next(iter(model(torch.from_numpy(x)).items()))
    got = np.load(out)[f"output[{key!r}]"]
    np.testing.assert_allclose(got, expected.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_run_needs_no_torch(folder: Path) -> None:
    code = "import sys; sys.modules['torch'] = sys.modules['tvm'] = None; from dycl_tvm.cli.main import main; sys.exit(main(sys.argv[1:]))"
    package = str(Path(dycl_tvm.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code, "run", str(folder / "net.so")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": package},
    )
    assert done.returncode == OK, done.stderr
    assert "output" in done.stdout


def test_inspect_an_artefact(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{folder}/net.so"]) == OK
    text = capsys.readouterr().out
    for word in ("Net", "float32[2, 8]", "user_net.py", "early", "late"):
        assert word in text
    assert main(["inspect", f"{folder}/net.so", "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["name"] == "Net"


@pytest.mark.parametrize("fmt, begin", [("text", ""), ("dot", "digraph"), ("svg", "<"), ("html", "<!")])
def test_inspect_a_model(folder: Path, fmt: str, begin: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = f"{folder}/user_net.py:net"
    assert main(["inspect", where, "-i", "2x8", "-q", "--format", fmt]) == OK
    text = capsys.readouterr().out
    assert text.lstrip().lower().startswith(begin)
    suffix = {"text": "txt"}.get(fmt, fmt)
    out = folder / f"graph.{suffix}"
    assert main(["inspect", where, "-i", "2x8", "-q", "-o", str(out)]) == OK
    assert out.read_text(encoding="utf-8").strip() == text.strip()
    assert capsys.readouterr().out == ""


def test_inspect_before_passes_shows_the_staged_graph(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = f"{folder}/user_net.py:net"
    assert main(["inspect", where, "-i", "2x8", "-q", "--before-passes"]) == OK
    assert "aten." in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["compile", "F:net", "-o", "D/x.so"], USAGE, ["say what inputs"]),
        (["compile", "F:nut", "-i", "2x8", "-o", "D/x.so"], USAGE, ["'nut'", "net"]),
        (["compile", "F:needs", "-i", "2y8", "-o", "D/x.so"], USAGE, ["'2y8'", "1x3x32x32"]),
        (["compile", "F", "-i", "2x8", "-o", "D/x.so"], USAGE, ["names no model"]),
        (["compile", "D/nothing.py:net", "-i", "2x8", "-o", "D/x.so"], USAGE, ["no file"]),
        (["compile", "no.such.module:net", "-i", "2x8", "-o", "D/x.so"], USAGE, ["no.such.module"]),
        (["compile", "zoo:nothing", "-o", "D/x.so"], USAGE, ["sdn_mobilenet"]),
        (["compile", "F:training", "-i", "2x8", "-o", "D/x.so"], USAGE, ["model.eval()"]),
        (["compile", "F:net", "-i", "2x8", "-o", "D/x.so", "-t", "opencl"], USAGE, ["opencl", "yet"]),
        (["compile", "F:net", "-i", "2x8", "-o", "D/x.so", "--disable-pass", "no"], USAGE, ["no pass 'no'"]),
        (["compile", "F:net", "-i", "2x8", "-o", "D/none/x.so"], USAGE, ["no folder"]),
        (["compile", "F:masks", "-i", "2x8", "-o", "D/x.so"], UNSUPPORTED, ["user_net.py", "return x.histogram(3)"]),
        (["run", "D/nothing.so"], FAILURE, ["nothing.so"]),
        (["run", "D/user_net.py"], FAILURE, ["user_net.py"]),
        (["run", "D/net.so", "-i", "D/nothing.npy"], USAGE, ["nothing.npy"]),
        (["inspect", "D/net.so", "--format", "svg"], USAGE, ["--hcfg"]),
        (["inspect", "F:net", "-i", "2x8", "-q", "-o", "D/x.pdf"], USAGE, [".svg"]),
        (["zoo", "describe", "nothing"], USAGE, ["sdn_mobilenet"]),
    ],
)
def test_errors_have_a_code_and_no_traceback(
    folder: Path, arguments: list[str], code: int, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [a.replace("F", f"{folder}/user_net.py", 1) if a.startswith("F") else a.replace("D/", f"{folder}/", 1) for a in arguments]
    assert main(filled) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert "dycl-tvm: error: " in captured.err
    for word in words:
        assert word in captured.err


def test_debug_shows_the_traceback(folder: Path) -> None:
    with pytest.raises(UsageError):
        main(["compile", "zoo:nothing", "-o", f"{folder}/x.so", "--debug"])


def test_wrong_options_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["nonsense"], ["compile"], ["run", "x.so", "--repeat", "0"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == USAGE
    assert "usage: dycl-tvm" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", "compile", "run", "inspect", "zoo", "zoo list", "zoo describe", "zoo check"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args([*command.split(), "--help"])
    assert caught.value.code == OK
    text = capsys.readouterr().out
    assert "usage: dycl-tvm" in text
    if command in ("", "compile", "run", "inspect", "zoo"):
        assert "examples:" in text
    assert max(map(len, text.splitlines())) <= 140


def test_zoo_lists_its_networks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "list"]) == OK
    text = capsys.readouterr().out
    assert len(text.splitlines()) == len(dycl_tvm.zoo.names()) >= 9
    assert "sdn_mobilenet" in text


class Small(torch.nn.Module):
    """In the place of a network of the zoo, so that the tests are quick."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return (x + 1, 0) if x.sum() > 0 else (self.scale(x), 1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The zoo has one network, ``small``."""

    def load(name: str) -> Any:
        assert name == "small"
        return types.SimpleNamespace(
            name="small", description="a small network", model=Small().eval(), example_inputs=(torch.zeros(3),), inputs=inputs
        )

    def inputs(n: int, seed: int = 1) -> list[tuple[torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        return [(torch.randn(3, generator=generator),) for _ in range(n)]

    zoo = dycl_tvm.zoo
    monkeypatch.setattr(zoo, "names", lambda: ["small"])
    monkeypatch.setattr(zoo, "load", load)
    return zoo


def test_zoo_describes(small: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "describe", "small", "-n", "8"]) == OK
    text = capsys.readouterr().out
    assert "float32[3]" in text
    assert "2 different on 8 inputs" in text
    assert "weights  12" in text


def test_zoo_check_compares_with_eager(small: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["zoo", "check", "small", "-n", "6", "-q"]) == OK
    text = capsys.readouterr().out
    assert "6 of 6 inputs agree" in text
    assert "2 different" in text

    entry = small.load("small")
    real_export = dycl_tvm.Artifact.export_library

    def export_then_drift(self: Any, *args: Any, **kwargs: Any) -> Any:
        entry.model.register_forward_hook(lambda module, inputs, output: (output[0] + 1, output[1]))
        return real_export(self, *args, **kwargs)

    monkeypatch.setattr(dycl_tvm.Artifact, "export_library", export_then_drift)
    monkeypatch.setattr(small, "load", lambda name: entry)
    assert main(["zoo", "check", "small", "-n", "4", "-q"]) == FAILURE, "a result that differs must be found out"
    assert "relative error" in capsys.readouterr().out


def test_input_specs() -> None:
    positional, named = parse_inputs(["1x3x32x32", "4:int64", "scalar:float64", "mask=2x2:bool", "int:5", "float:0.5", "flag=bool:true"])
    (sized,), _ = parse_inputs(["1xT<=512x2<=Max_x<=3:int64"])
    assert sized.shape == (1, "T<=512", "2<=Max_x<=3")
    assert [(t.shape, t.dtype) for t in positional[:3]] == [((1, 3, 32, 32), "float32"), ((4,), "int64"), ((), "float64")]
    assert positional[3:] == (5, 0.5)
    assert named["mask"].dtype == "bool"
    assert named["flag"] is True
    for wrong in ("1x3:float31", "1x", "int:a", "bool:2", "=1", "-1x2", "1xT<5", "1xt<=5"):
        with pytest.raises(UsageError) as caught:
            parse_inputs([wrong])
        assert repr(wrong) in str(caught.value)


def test_state_dict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, examples = load_model(f"{folder}/user_net.py:make()")
    assert examples is not None
    with torch.no_grad():
        model.first.bias.fill_(7)
    torch.save(model.state_dict(), folder / "weights.pt")
    loaded, _ = load_model(f"{folder}/user_net.py:net", str(folder / "weights.pt"))
    assert loaded.first.bias.eq(7).all()
    (folder / "bad.pt").write_bytes(b"no weights")
    with pytest.raises(UsageError, match="cannot be read safely|do not fit"):
        load_model(f"{folder}/user_net.py:net", str(folder / "bad.pt"))


def test_run_takes_the_weights_as_deploy_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{folder}/net.so", f"{folder}/net.params", "-q"]) == OK
    assert main(["run", f"{folder}/net.so", f"{folder}/net.params", "--params", f"{folder}/net.params"]) == USAGE
    assert "given twice" in capsys.readouterr().err


def test_inputs_that_do_not_fit_the_model_are_no_fault_of_its_control_flow(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["compile", "-o", f"{folder}/x.so"], ["inspect"]):
        assert main([*command, f"{folder}/user_net.py:net", "-i", "2x9", "-q"]) == USAGE
        text = capsys.readouterr().err
        assert "does not run on such inputs in PyTorch either: RuntimeError" in text
        assert "h = self.first(x)" in text
    assert main(["inspect", f"{folder}/user_net.py:net", "-q"]) == USAGE
    assert "such as -i 1x3x32x32" in capsys.readouterr().err
    assert not (folder / "x.so").exists()


def test_outputs_are_checked_before_the_work(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["/nonexistent.py:net", "-q", "-i", "2x8"]  # which no command gets to see
    for command, message in (
        (["inspect", "-o", "x.foo"], "the ending says no format"),
        (["inspect", "-o", f"{folder}/none/x.svg"], "there is no folder"),
        (["compile", "-o", f"{folder}/y.so", "--hcfg", "x.foo"], "the ending says no format"),
        (["compile", "-o", f"{folder}/y.so", "--emit-source", f"{folder}/none/x.cc"], "there is no folder"),
        (["compile", "-o", str(folder)], "is a folder"),
    ):
        assert main([*command, *where]) == USAGE
        assert message in capsys.readouterr().err


def test_a_pair_is_written_as_a_whole(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """What a full disk leaves is the pair of before, and the error names the file."""
    import errno

    link, params = (importlib.import_module(f"dycl_tvm.{name}") for name in ("codegen.link", "runtime.params"))
    build = ["compile", f"{folder}/user_net.py:net", "-i", "2x8", "-o", f"{tmp_path}/net.so", "-q", "--verify", "off"]
    assert main(build) == OK
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    real = link.replacing
    for module in (link, params):

        @contextlib.contextmanager
        def full(path: Any, mode: int | None = None) -> Any:
            with real(path, mode):
                yield types.SimpleNamespace(write=lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))

        with monkeypatch.context() as patch:
            patch.setattr(module, "replacing", full)
            capsys.readouterr()
            assert main(build) == FAILURE
        assert "No space left on device: '" in capsys.readouterr().err
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_zoo_says_that_it_calibrates(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dycl_tvm.zoo, "load", lambda name: types.SimpleNamespace(model=name, example_inputs=()))
    assert load_model(f"zoo:{dycl_tvm.zoo.names()[0]}", quiet=False) == (dycl_tvm.zoo.names()[0], ())
    assert "calibrate its branches" in capsys.readouterr().err


def test_what_a_library_tells(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where, told = f"{folder}/user_net.py:net", ["--user-metadata", "version=3", "--user-metadata", "by=me=you"]
    assert main(["compile", where, "-i", "2x8", "-o", f"{tmp_path}/net.so", "-q", "--strip-source", "--verify", "off", *told]) == OK
    capsys.readouterr()
    assert main(["inspect", f"{tmp_path}/net.so"]) == OK
    assert "user metadata\n  by: me=you\n  version: 3\n" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["compile", where, "-i", "2x8", "-o", f"{tmp_path}/net.so", "--user-metadata", "version"])
    assert "it is KEY=TEXT" in capsys.readouterr().err
    data = (tmp_path / "net.so").read_bytes()
    assert b"h.sum()" not in data
    assert str(folder).encode() not in data
    assert b"user_net.py" in data


def test_the_cache_is_shown_and_cleared(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYCL_CACHE_DIR", str(tmp_path))
    cache.write(cache.KERNELS, "abcd", bytes(1 << 20))
    assert main(["cache"]) == OK
    assert "objects of kernels: 1 files, 1.0 MiB" in capsys.readouterr().out
    assert main(["cache", "clear"]) == OK
    assert "objects of kernels: 0 files, 0.0 MiB" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_sizes_that_have_a_path_of_their_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where, given = f"{folder}/user_net.py:net", ["-i", "N<=4x8", "--specialize", "N=2", "--specialize", "N<=3", "-q"]
    assert main(["inspect", where, *given]) == OK
    assert "N from 1 to 4, a path for N = 2, a path for N <= 3" in capsys.readouterr().out
    assert main(["compile", where, *given, "-o", f"{folder}/sized.so", "--verify", "off"]) == OK
    assert "specialised  N = 2; N <= 3" in capsys.readouterr().out
    assert main(["inspect", f"{folder}/sized.so"]) == OK
    told = capsys.readouterr().out
    assert "  N = 2: has a path of its own" in told and "branch specialize: N = 2" in told
    assert main(["inspect", where, "-i", "N<=4x8", "--specialize", "N=two"]) == USAGE
    assert "specialize has 'N=two'; write" in capsys.readouterr().err
