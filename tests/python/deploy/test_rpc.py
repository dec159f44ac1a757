# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Artefacts over TVM's RPC: our server and TVM's own, the tracker, and everything that can go wrong on the way."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
import tvm.rpc
from boards import Deployed
from servers import Server, python_server, running, soon, tracker

import dycl_tvm
from dycl_tvm.cli.deploy import _shortly
from dycl_tvm.cli.main import main
from dycl_tvm.compare import difference
from dycl_tvm.deploy import RemoteModule, connect, record_cases
from dycl_tvm.errors import InputError, RemoteError, UsageError

pytestmark = pytest.mark.xdist_group("deploy")
MAGIC = 0xFF271


@pytest.fixture(scope="module")
def server(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests: it must outlive what each of them does to it."""
    work = tmp_path_factory.mktemp("work")
    with running([program, "--port", 0, "--work", work, "--memory", 1024, "--sessions", 3], work) as found:
        yield found
    assert found.process.returncode == 0
    assert list(work.iterdir()) == []


@pytest.fixture
def net(deployed: Callable[..., Deployed]) -> Deployed:
    return deployed("cascade")


def _agrees(net: Deployed, module: RemoteModule, count: int = 4) -> set[str]:
    paths = set()
    for k in range(count):
        assert difference(net.outputs[k], module(*net.inputs[k]), rtol=1e-4) is None, f"input {k}"
        paths.add(module.last_path)
    return paths


def _still_serves(server: Server, net: Deployed) -> None:
    """The server lives on, and nothing of earlier sessions is left."""
    assert server.leftovers() == []
    module = RemoteModule(connect(server.address), net.library, net.params)
    _agrees(net, module, 1)
    del module
    assert server.leftovers() == []


def test_a_remote_module_is_called_like_a_local_one(server: Server, deployed: Callable[..., Deployed]) -> None:
    for name, fewest in (("cascade", 2), ("act_rnn", 3), ("moe_top1", 3)):
        net = deployed(name)
        module = RemoteModule(connect(server.address), net.library, net.params)
        assert len(_agrees(net, module, len(net.inputs))) >= fewest
        assert 0 < module.seconds(*net.inputs[0], number=2, repeat=1) < 10
        module.close()
        del module
    assert server.leftovers() == []


def test_sizes_that_each_call_decides(server: Server, tmp_path: Path) -> None:
    """Inputs go with the shape that they have, results come with theirs, and a size out of its bounds is an error."""
    rows, steps = dycl_tvm.Dim("B", min=0, max=3), dycl_tvm.Dim("T", min=0, max=4)

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x.cumsum(1), torch.cat([x, x], 1).sum(0), x[x > 0]

    artifact = dycl_tvm.build(model, (torch.ones(2, 2),), dynamic_shapes={"x": {0: rows, 1: steps}}, verify="off")
    library = artifact.export_library(tmp_path / "net.so", embed_params=True)
    module = RemoteModule(connect(server.address), library)
    for b, t in ((3, 4), (0, 4), (2, 0), (1, 1), (2, 3)):
        x = torch.randn(b, t, generator=torch.Generator().manual_seed(b + t))
        for got, want in zip(module(x.numpy()), model(x), strict=True):
            torch.testing.assert_close(torch.as_tensor(got), want)
    for b, t, message in ((4, 2, "dimension 0 is 4, expected B = 0 to 3"), (2, 5, "dimension 1 is 5, expected T = 0 to 4")):
        with pytest.raises(RemoteError, match=message):
            module(np.zeros((b, t), np.float32))
    small = RemoteModule(connect(server.address), library, largest_sizes={"T": 2, "B": 1})
    with pytest.raises(RemoteError, match="dimension 1 is 3, expected T = 0 to 2"):
        small(np.zeros((1, 3), np.float32))
    with pytest.raises(RemoteError, match="has no size 'N'"):
        RemoteModule(connect(server.address), library, largest_sizes={"N": 2})
    for each in (module, small):
        np.testing.assert_array_equal(each(np.ones((1, 2), np.float32))[0], [[1, 2]])


def test_an_error_of_the_network_is_told_with_its_line_and_leaves_the_state(server: Server, tmp_path: Path) -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            self.calls = self.calls + 1
            return x[i] + 7 // (i - 1) + self.calls

    artifact = dycl_tvm.build(Counts(), (torch.tensor([0, 2]), torch.ones(4)), verify="off")
    module = RemoteModule(connect(server.address), artifact.export_library(tmp_path / "net.so", embed_params=True))
    x, calls = torch.arange(4.0), 0
    for at in (0, 4, 1, 3, -5, 1, 2):
        i = torch.tensor([0, at])
        if at in (4, -5, 1):
            with pytest.raises(
                RemoteError, match=r'(?s)(out of range|divisor is zero).*File ".*test_rpc.py", line \d+ in .*forward\n    return x'
            ):
                module(i, x)
        else:
            calls += 1
            np.testing.assert_array_equal(module(i, x), x[i] + 7 // (i - 1) + calls)
    module.close()


def test_by_tvms_own_habit(server: Server, net: Deployed) -> None:
    host, port = server.address.split(":")
    remote = tvm.rpc.connect(host, int(port))
    remote.upload(str(net.library))
    remote.upload(str(net.params), target="weights.params")
    module = remote.load_module("model.so")
    session = module["create"]("weights.params")
    inputs = [tvm.runtime.tensor(leaf, remote.cpu()) for leaf in net.leaves(0)]
    site = module["run"](session, *inputs)
    assert 0 <= site < len(net.metadata["sites"])
    assert module["num_outputs"](session) == len(net.metadata["sites"][site]["types"])
    assert module.time_evaluator("run", remote.cpu(), number=3)(session, *inputs).mean > 0


def test_tvms_own_server(net: Deployed, tmp_path: Path) -> None:
    with python_server(tmp_path, "--key", "mine") as found:
        module = RemoteModule(soon(lambda: connect(found.address, key="mine")), net.library, net.params)
        _agrees(net, module)
        del module  # it serves one client at a time
        with pytest.raises(RemoteError, match="another key"):
            connect(found.address, key="other")


def test_the_command(server: Server, net: Deployed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record_cases(tmp_path / "cases.npz", net.entry.model, net.inputs) == len(net.inputs)
    command = ["deploy", str(net.library), str(net.params), "--rpc", server.address, "--repeat", "2"]
    assert main([*command, "--cases", str(tmp_path / "cases.npz")]) == 0
    text = capsys.readouterr().out
    assert f"{len(net.inputs)} of {len(net.inputs)} calls agree" in text
    assert sorted(re.findall(r"calls +\d+\.\d+ ms  (\w)  return ", text)) == ["F", "T"]
    assert main([*command, "-n", "2"]) == 0
    assert "2 of 2 calls agree" in capsys.readouterr().out

    def other(*args: object) -> object:
        found = net.entry.model(*args)
        return {**found, "confidence": found["confidence"] + 1}

    record_cases(tmp_path / "wrong.npz", other, net.inputs[:3])
    assert main([*command, "--cases", str(tmp_path / "wrong.npz")]) == 1
    captured = capsys.readouterr()
    assert "0 of 3 calls agree" in captured.out
    assert "output['confidence']" in captured.err


def test_paths_in_short() -> None:
    assert _shortly([]) == ""
    assert _shortly(["(7 earlier decisions)", "true  a.py:1: if x:", "false a.py:2: if y:", "case 12 a.py:3: z[i]"]) == "...TF[12]  "
    assert _shortly(["true  a.py:1: while x:"] * 40) == "T" * 32 + "... of 40 decisions  "


def test_keys(program: Path, net: Deployed, tmp_path: Path) -> None:
    with running([program, "--port", 0, "--work", tmp_path, "--key", "secret"], tmp_path) as found:
        with pytest.raises(RemoteError, match="another key"):
            connect(found.address)
        _agrees(net, RemoteModule(connect(found.address, key="secret"), net.library, net.params), 1)


def test_the_tracker(program: Path, net: Deployed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tracker(tmp_path) as track:
        command = [program, "--port", 0, "--work", tmp_path, "--key", "board", "--tracker", track.address, "--sessions", 2]
        with running(command, tmp_path) as found:
            for _ in range(2):
                module = RemoteModule(soon(lambda: connect(tracker=track.address, key="board")), net.library, net.params)
                _agrees(net, module, 1)
                del module
            command = ["deploy", str(net.library), str(net.params), "-n", "2", "--repeat", "1", "--tracker", track.address]
            assert main([*command, "--key", "board"]) == 0
            assert "2 of 2 calls agree" in capsys.readouterr().out
            with pytest.raises(RemoteError, match="no server with the key 'other' was free for 1 s"):
                connect(tracker=track.address, key="other", wait=1)
            # Only who has the tracker's ticket may come in.
            with pytest.raises(RemoteError, match="another key"):
                connect(found.address, key="board")


def test_listens_to_this_machine_alone_unless_told(program: Path, tmp_path: Path) -> None:
    with running([program, "--port", 0, "--work", tmp_path], tmp_path) as found:
        listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        local = [words[1] for words in listening if words[3] == "0A" and int(words[1].split(":")[1], 16) == found.port]
        assert local == [f"0100007F:{found.port:04X}"]


@pytest.mark.parametrize(
    "options, warned",
    [(("--host", "127.0.0.1"), False), (("--host", "0.0.0.0"), True), (("--host", "0.0.0.0", "--key", "secret"), False)],
)
def test_an_open_port_without_a_key_is_said(program: Path, tmp_path: Path, options: tuple[str, ...], warned: bool) -> None:
    command = [program, "--port", "0", "--work", tmp_path, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        if not lines[0].startswith("listening"):
            lines.append(process.stdout.readline())
        process.terminate()
    assert lines[-1].startswith(f"listening on {options[1]}:")
    assert lines[:-1] == (["without --key everybody in this network can run code here\n"] if warned else [])


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "..", ".", "a/b", "", "new\nline", "x" * 300])
def test_names_do_not_lead_out_of_the_folder(server: Server, net: Deployed, name: str) -> None:
    remote = connect(server.address)
    for attempt in (
        lambda: remote.get_function("tvm.rpc.server.upload")(name, bytearray(b"x")),
        lambda: remote.download(name),
        lambda: remote.remove(name),
        lambda: remote.load_module(name),
    ):
        with pytest.raises(tvm.error.RPCError, match="is not a plain file name"):
            attempt()
    remote.upload(bytearray(b"text"), target="plain.txt")
    assert remote.download("plain.txt") == b"text"
    remote.remove("plain.txt")


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda data: data[: len(data) // 2], "cut short"),
        (lambda data: data[:-1], "cut short"),
        (lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:], "damaged"),
        (lambda data: b"not a library", "is not a shared library"),
        (lambda data: b"", "is not a shared library"),
    ],
)
def test_damaged_libraries(server: Server, net: Deployed, damage: Callable[[bytes], bytes], words: str) -> None:
    remote = connect(server.address)
    remote.upload(bytearray(damage(net.library.read_bytes())), target="model.so")
    with pytest.raises(tvm.error.RPCError, match=words):
        remote.load_module("model.so")
    del remote
    _still_serves(server, net)


def test_damaged_params_and_those_of_another_model(
    server: Server, net: Deployed, deployed: Callable[..., Deployed], tmp_path: Path
) -> None:
    cut = tmp_path / "cut.params"
    cut.write_bytes(net.params.read_bytes()[:-100])
    with pytest.raises(RemoteError, match="is cut short"):
        RemoteModule(connect(server.address), net.library, cut)
    with pytest.raises(RemoteError, match="does not belong to this library"):
        RemoteModule(connect(server.address), net.library, deployed("act_rnn").params)
    _still_serves(server, net)


def test_a_library_for_another_machine(server: Server, net: Deployed, deployed: Callable[..., Deployed]) -> None:
    from emulated_boards import TX2

    other = deployed("cascade", TX2)
    with pytest.raises(RemoteError, match="was built for aarch64; this machine is x86_64"):
        RemoteModule(connect(server.address), other.library, other.params)
    _still_serves(server, net)


def test_wrong_inputs(server: Server, net: Deployed) -> None:
    module = RemoteModule(connect(server.address), net.library, net.params)
    with pytest.raises(InputError, match=r"expected float32\[1, 3"):
        module(np.zeros((2, 3, 4, 4), "float32"))
    with pytest.raises(InputError):
        module()
    assert _agrees(net, module, 1)


def test_a_tensor_that_is_too_large(server: Server, net: Deployed) -> None:
    """The bound of the session's memory is 1 GiB; asked for are 4 TiB, then 1.5 GiB that the machine would have."""
    remote = connect(server.address)
    for elements in (1 << 40, 3 << 27):
        with pytest.raises(tvm.error.RPCError, match="bad_alloc|memory"):
            tvm.runtime.empty((elements,), "float32", remote.cpu())
    assert tvm.runtime.empty((4,), "float32", remote.cpu()).shape == (4,)
    del remote
    _still_serves(server, net)


def _children(server: Server) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(server.process.pid)], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def test_a_session_that_is_killed_in_mid_run(server: Server, net: Deployed) -> None:
    module = RemoteModule(connect(server.address), net.library, net.params)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            module.seconds(*net.inputs[0], number=1_000_000, repeat=100)
        except RemoteError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.5)
    (pid,) = _children(server)
    os.kill(pid, signal.SIGSEGV)
    thread.join(20)
    assert not thread.is_alive()
    assert "the session on the server died: Segmentation fault" in str(raised[0])
    _still_serves(server, net)


def test_a_session_whose_time_is_over(server: Server, net: Deployed) -> None:
    module = RemoteModule(connect(server.address, timeout=1), net.library, net.params)
    with pytest.raises(RemoteError, match="the time of the session is over"):
        module.seconds(*net.inputs[0], number=1_000_000, repeat=100)
    _still_serves(server, net)


def _wait_until_gone(pid: int) -> None:
    """The process runs no more; whether its parent has taken notice does not matter."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} still runs")


def test_a_server_that_is_killed_in_mid_run(program: Path, net: Deployed, tmp_path: Path) -> None:
    with running([program, "--port", 0, "--work", tmp_path], tmp_path) as found:
        module = RemoteModule(connect(found.address), net.library, net.params)
        (child,) = _children(found)
        threading.Timer(0.5, found.process.kill).start()
        with pytest.raises(RemoteError, match="connection is lost"):
            module.seconds(*net.inputs[0], number=1_000_000, repeat=100)
        found.process.wait()
        _wait_until_gone(child)
    assert len(list(tmp_path.iterdir())) == 1
    # It could not clean up; the next one does.
    with running([program, "--port", 0, "--work", tmp_path], tmp_path) as found:
        assert len(list(tmp_path.iterdir())) == 1
        _agrees(net, RemoteModule(connect(found.address), net.library, net.params), 1)
    assert list(tmp_path.iterdir()) == []


def test_a_connection_that_is_cut_in_mid_upload(server: Server, net: Deployed) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(struct.pack("<ii", MAGIC, 7) + b"client:")
        assert struct.unpack("<i", raw.recv(4))[0] == MAGIC
        # A packet that announces 100 MB and brings 1 MB.
        raw.sendall(struct.pack("<Q", 100 << 20) + bytes(1 << 20))
    _still_serves(server, net)


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.0\r\n\r\n", struct.pack("<ii", MAGIC, 1 << 30), struct.pack("<ii", MAGIC, -1)])
def test_strangers(server: Server, net: Deployed, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.settimeout(5)
        try:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            answer = raw.recv(4)
        except (ConnectionError, OSError) as error:  # it has hung up already
            assert not isinstance(error, TimeoutError)
            answer = b""
        assert answer == b""
    _still_serves(server, net)


def test_a_client_that_is_too_slow(server: Server, net: Deployed) -> None:
    """It sends a byte a second: each of them comes in time, the whole does not."""
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.settimeout(0.5)
        begin, ended = time.monotonic(), False
        for byte in struct.pack("<ii", MAGIC, 100) + bytes(30):
            try:
                raw.sendall(bytes([byte]))
                ended = raw.recv(1) == b""
            except TimeoutError:
                time.sleep(0.5)
            except ConnectionError:
                ended = True
            if ended:
                break
        assert ended
        assert time.monotonic() - begin < 15
    _still_serves(server, net)


@pytest.mark.parametrize("seed", range(3))
def test_packets_of_nonsense(server: Server, net: Deployed, seed: int) -> None:
    """After a good handshake: packets of random bytes, some with the code of a message, and sizes that no packet has."""
    random = np.random.default_rng(seed)
    for k in range(12):
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.settimeout(10)
            raw.sendall(struct.pack("<ii", MAGIC, 7) + b"client:")
            assert struct.unpack("<i", raw.recv(4))[0] == MAGIC
            body = random.bytes(int(random.integers(1, 300)))
            size = [len(body), len(body), 1 << 40, (1 << 64) - 1][k % 4]
            try:
                raw.sendall(struct.pack("<Q", size) + struct.pack("<i", k)[: k % 2 * 4] + body)
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(4096):
                    pass
            except OSError as error:  # it has hung up already
                assert not isinstance(error, TimeoutError)
    _still_serves(server, net)


def test_two_clients_at_once(server: Server, net: Deployed, deployed: Callable[..., Deployed]) -> None:
    other = deployed("act_rnn")
    first = RemoteModule(connect(server.address), net.library, net.params)
    second = RemoteModule(connect(server.address), other.library, other.params)
    for _ in range(2):
        _agrees(net, first, 2)
        _agrees(other, second, 2)
    # What one does is not the other's concern.
    os.kill(max(_children(server)), signal.SIGKILL)
    _agrees(net, first, 2)
    with pytest.raises(RemoteError, match="died: Killed|connection is lost"):
        second(*other.inputs[0])
    del first, second
    _still_serves(server, net)


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(RemoteError, match=f"^127.0.0.1:{port}: Connect to 127.0.0.1:{port} failed$"):
        connect(f"127.0.0.1:{port}")
    with pytest.raises(RemoteError, match=f"nobody answers at 127.0.0.1:{port}: Connection refused"):
        connect(tracker=f"127.0.0.1:{port}", key="board")  # at once: TVM would try for a minute
    with pytest.raises(RemoteError, match="^no.such.host.invalid:1: cannot obtain address of no.such.host.invalid$"):
        connect("no.such.host.invalid:1")
    with pytest.raises(UsageError, match="HOST:PORT"):
        connect("nowhere")
    with pytest.raises(UsageError, match="a server or that of a tracker"):
        connect()


def test_a_run_whose_client_has_left_is_ended(server: Server, net: Deployed) -> None:
    """Its place is free again, without any time-out."""
    code = """
import sys, numpy as np
from dycl_tvm.deploy import RemoteModule, connect
module = RemoteModule(connect(sys.argv[1]), sys.argv[2], sys.argv[3])
inputs = [np.zeros(leaf["shape"], leaf["dtype"]) for leaf in module.metadata["inputs"]]
print("runs", flush=True)
module.seconds(*inputs, number=1_000_000, repeat=100)
"""
    command = [sys.executable, "-c", code, server.address, str(net.library), str(net.params)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "runs\n"
        time.sleep(0.5)
        (session,) = _children(server)
        client.kill()
    _wait_until_gone(session)
    _still_serves(server, net)


def test_strangers_take_no_place(server: Server, net: Deployed) -> None:
    with contextlib.ExitStack() as stack:
        for k in range(40):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            raw.sendall(struct.pack("<ii", MAGIC, 100)[: k % 9])
        begin = time.monotonic()
        module = RemoteModule(connect(server.address, wait=30), net.library, net.params)
        assert time.monotonic() - begin < 8, "a stranger is shown out after 10 s only"
        _agrees(net, module, 1)
        assert len(_children(server)) <= 16 + 1
        del module
    _still_serves(server, net)


def test_a_place_is_waited_for_so_long(server: Server, net: Deployed) -> None:
    taken = [connect(server.address) for _ in range(3)]
    with pytest.raises(RemoteError, match="no answer for 1 s; all places of the server are taken"):
        connect(server.address, wait=1)
    waiting = threading.Timer(0.5, taken.pop)
    waiting.start()
    _agrees(net, RemoteModule(connect(server.address, wait=30), net.library, net.params), 1)
    taken.clear()
    _still_serves(server, net)
