# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The folder for a board, and the calls that are recorded for it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from boards import Deployed

from dycl_tvm.cli.main import main
from dycl_tvm.deploy import bundle, read_cases, record_cases
from dycl_tvm.errors import ArtifactError, UsageError

pytestmark = pytest.mark.xdist_group("deploy")


def test_the_command_for_this_machine(deployed: Callable[..., Deployed], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, folder = deployed("cascade"), tmp_path / "board"
    assert main(["bundle", str(net.library), str(net.params), "--target", "llvm", "-o", str(folder)]) == 0
    assert "wrote" in capsys.readouterr().out
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert names == ["README.txt", "dycl-rpc-server", "lib/libtvm_ffi.so", "lib/libtvm_runtime.so", "model.params", "model.so"]
    assert (folder / "model.so").read_bytes() == net.library.read_bytes()
    help_text = subprocess.run([folder / "dycl-rpc-server", "--help"], capture_output=True, text=True, check=True).stdout
    assert "127.0.0.1" in help_text
    for words in (["--port", "x"], ["--nonsense", "1"], ["--port"], ["--tracker", "host:1"], ["--key", 'a"b']):
        assert subprocess.run([folder / "dycl-rpc-server", *words], capture_output=True, check=False).returncode == 2, words
    with pytest.raises(UsageError, match="is there already"):
        bundle(folder, "llvm")


def test_a_model_of_another_machine(deployed: Callable[..., Deployed], tmp_path: Path) -> None:
    net = deployed("cascade")
    with pytest.raises(UsageError, match="is for x86_64, the target is aarch64"):
        bundle(tmp_path / "board", "nvidia/jetson-tx2", net.library, net.params)
    with pytest.raises(UsageError, match="has its weights in a params file"):
        bundle(tmp_path / "board", "llvm", net.library)
    other = deployed("act_rnn")
    with pytest.raises(UsageError, match="model.params' does not belong to "):
        bundle(tmp_path / "board", "llvm", net.library, other.params)
    with pytest.raises(ArtifactError, match="is not a params file"):
        bundle(tmp_path / "board", "llvm", net.library, net.library)
    with pytest.raises(UsageError, match="is for x86-64-v3; the target, x86-64, lacks .*avx2"):
        bundle(tmp_path / "board", "llvm -mcpu=x86-64", net.library, net.params)
    assert not (tmp_path / "board").exists()


def test_recorded_calls(tmp_path: Path) -> None:
    def model(x, n):
        x += 1  # what is recorded is the input before the call
        return {"sum": x.sum(), "parts": [x.bfloat16(), (n, None, 0.5, True)]}

    assert record_cases(tmp_path / "c.npz", model, [(torch.zeros(2, 3), 4)]) == 1
    (case,) = read_cases(tmp_path / "c.npz")
    np.testing.assert_array_equal(case.inputs[0], np.zeros((2, 3), "float32"))
    assert case.inputs[1] == 4
    assert case.output["sum"] == 6
    assert case.output["parts"][1] == (4, None, 0.5, True)
    np.testing.assert_array_equal(case.output["parts"][0], np.full((2, 3), 0x3F80, "uint16"))
    with pytest.raises(UsageError, match="cannot be recorded"):
        record_cases(tmp_path / "d.npz", lambda: object(), [()])


def test_recorded_random_numbers_are_those_of_a_new_session(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    record_cases(tmp_path / "c.npz", lambda: torch.rand(3), [(), ()])
    generator = torch.Generator()
    for case in read_cases(tmp_path / "c.npz"):
        np.testing.assert_array_equal(case.output, torch.rand(3, generator=generator).numpy())
    assert torch.equal(before, torch.get_rng_state())


def test_files_without_recorded_calls(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_cases(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(UsageError, match="holds no recorded calls"):
        read_cases(tmp_path / "other.npz")
    (tmp_path / "text.npz").write_text("text")
    with pytest.raises(UsageError, match="holds no recorded calls"):
        read_cases(tmp_path / "text.npz")


def test_recording_at_compile_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "user_net.py").write_text("def net(x):\n    return (x + 1, 'high') if x.sum() > 0 else (x * 2, 'low')\n")
    command = ["compile", f"{tmp_path / 'user_net.py'}:net", "-i", "2x3", "-o", str(tmp_path / "net.so"), "-q"]
    assert main([*command, "--cases", str(tmp_path / "net.npz"), "--num-cases", "5"]) == 0
    cases = read_cases(tmp_path / "net.npz")
    assert len(cases) == 5
    assert {case.output[1] for case in cases} == {"high", "low"}
    for case in cases:
        x = case.keywords["x"]
        want = x + 1 if case.output[1] == "high" else x * 2
        np.testing.assert_array_equal(case.output[0], want)
