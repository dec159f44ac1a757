# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A built network, and servers of it as processes of their own."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dycl_tvm


class RunningServer:
    """``dycl-tvm serve`` in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "dycl_tvm.cli", "serve", "--http-port", "0", "--grpc-port", "0", *arguments]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.http, self.grpc = (f"127.0.0.1:{port}" for port in re.findall(r"127\.0\.0\.1:(\d+)", self.line))

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    spec = importlib.util.spec_from_file_location("served_network", Path(__file__).with_name("network.py"))
    assert spec is not None and spec.loader is not None
    network: Any = importlib.util.module_from_spec(spec)
    sys.modules["served_network"] = network
    spec.loader.exec_module(network)
    torch.manual_seed(0)
    mixed = {"half": torch.ones(2, dtype=torch.float16), "brain": torch.ones(2, dtype=torch.bfloat16), "flag": torch.tensor([True])}
    inputs = (torch.randn(2, 4), torch.tensor(3), mixed)
    art = dycl_tvm.build(network.Net().eval(), inputs, dynamic_shapes={"x": {0: dycl_tvm.Dim("B", max=8)}}, name="net", verify="off")
    folder = tmp_path_factory.mktemp("serve")
    art.export_library(folder / "net.so")
    art.save_params(folder / "net.params")
    return str(folder / "net.so"), str(folder / "net.params")


@pytest.fixture
def start(files: tuple[str, str]) -> Iterator[Callable[..., RunningServer]]:
    """Start servers of the network, with further arguments; they end with the test."""
    servers: list[RunningServer] = []

    def started(*arguments: str) -> RunningServer:
        servers.append(RunningServer(*files, *arguments))
        return servers[-1]

    yield started
    for server in servers:
        server.process.kill()
        server.process.wait(30)


@pytest.fixture(scope="module")
def server(files: tuple[str, str]) -> Iterator[RunningServer]:
    """A server that the tests of a file share."""
    running = RunningServer(*files, "--sessions", "2")
    yield running
    running.process.kill()
    running.process.wait(30)
