# Licensed under the Apache License, Version 2.0; see LICENSE.
"""RPC servers and a tracker as processes of a test."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dycl_tvm.codegen.machine import machine_of
from dycl_tvm.deploy.bundle import tvm_libraries
from dycl_tvm.deploy.server import build_server
from dycl_tvm.errors import RemoteError
from dycl_tvm.target import resolve_target


@dataclass
class Server:
    """A server that is running."""

    process: subprocess.Popen[str]
    port: int
    work: Path
    log: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def leftovers(self, seconds: float = 5) -> list[str]:
        """Return the files of sessions, when no more are going away."""
        end = time.monotonic() + seconds
        while True:
            # os.walk passes over folders that go away meanwhile
            found = [name for _, folders, _ in os.walk(self.work) for name in folders if name.startswith("session")]
            if not found or time.monotonic() > end:
                return found
            time.sleep(0.05)


def make_program(folder: Path) -> Path:
    """Make the folder of a server for this machine and return the program."""
    target = resolve_target("llvm")
    program = build_server(target, folder / "dycl-rpc-server")
    (folder / "lib").mkdir()
    for path in tvm_libraries(machine_of(target.target)):
        (folder / "lib" / path.name).symlink_to(path)
    return program


@contextlib.contextmanager
def running(command: Sequence[object], work: Path, ready: str = r"listening on .*:(\d+)", seconds: float = 60) -> Iterator[Server]:
    """Run a server until the block ends; it must then have ended well."""
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=work, start_new_session=True
    )
    try:
        yield Server(process, int(_wait_for(process, ready, seconds)), work)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # TVM's servers leave the process behind that they have started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()


def _wait_for(process: subprocess.Popen[str], pattern: str, seconds: float) -> str:
    assert process.stdout is not None
    end, text = time.monotonic() + seconds, ""
    while time.monotonic() < end:
        if select.select([process.stdout], [], [], 0.1)[0]:
            line = process.stdout.readline()
            text += line
            if found := re.search(pattern, text):
                return found[1]
            if not line:
                break
    raise AssertionError(f"the server did not start:\n{text}")


def python_server(work: Path, *arguments: object) -> contextlib.AbstractContextManager[Server]:
    """Run TVM's own server."""
    command = [sys.executable, "-m", "tvm.exec.rpc_server", "--host", "127.0.0.1", "--port", "29100", "--port-end", "29900", *arguments]
    return running(command, work, ready=r"bind to 127.0.0.1:(\d+)")


def tracker(work: Path) -> contextlib.AbstractContextManager[Server]:
    """Run TVM's tracker."""
    command = [sys.executable, "-m", "tvm.exec.rpc_tracker", "--host", "127.0.0.1", "--port", "28100", "--port-end", "28900"]
    return running(command, work, ready=r"bind to 127.0.0.1:(\d+)")


def soon(connect: Callable[[], Any], seconds: float = 20) -> Any:
    """Connect to a server that says a little too early that it listens."""
    end = time.monotonic() + seconds
    while True:
        try:
            return connect()
        except RemoteError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
