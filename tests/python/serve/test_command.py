# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What ``dycl-tvm serve`` says where it cannot serve."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from dycl_tvm.cli.main import main


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("grpc", "ray") else find(name))
    assert main(["serve", "net.so"]) == 2
    assert "grpc" in (said := capsys.readouterr().err) and "pip install 'dycl-tvm[serve]'" in said
    assert main(["serve", "net.so", "--ray"]) == 2
    assert "pip install 'dycl-tvm[serve,ray]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "give a LIBRARY"),
        (["--model", "net.so"], "NAME=LIBRARY"),
        (["{files[0]}", "{files[1]}", "--model", "net={files[0]},{files[1]}"], "two models have the name 'net'"),
        (["{files[0]}", "--largest-sizes", "small:B=2"], "--largest-sizes is for --model small, which there is not"),
        (["{files[0]}", "--largest-sizes", "B"], "write the largest value of each size by its name"),
        (["{files[0]}", "--largest-sizes", "N=2"], "has no size 'N'"),
        (["{files[0]}", "--queue", "-1"], "queue must not be negative"),
        (["{files[0]}", "--http-port", "-1", "--grpc-port", "-1"], "give a port"),
    ],
)
def test_arguments_that_make_no_sense(files: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    if importlib.util.find_spec("starlette") is None:
        pytest.skip("pip install dycl-tvm[serve]")
    assert main(["serve", *(text.format(files=files) for text in arguments)]) == 2
    assert words in capsys.readouterr().err
