# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A server of one machine, asked by NVIDIA's client and by clients that behave badly."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import importlib
import importlib.util
import json
import queue
import random
import signal
import socket
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dycl_tvm

MISSING = [name for name in ("starlette", "grpc", "tritonclient") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.xdist_group("serve"),
    pytest.mark.skipif(bool(MISSING), reason=f"without {MISSING}: pip install dycl-tvm[serve] tritonclient[http,grpc]"),
]

PROTOCOLS = ("http", "grpc")
#: Steps that take longer than any test.
FOREVER = 10**12


def client_of(server: Any, protocol: str) -> tuple[Any, Any]:
    module = importlib.import_module(f"tritonclient.{protocol}")
    return module, module.InferenceServerClient(getattr(server, protocol))


def inputs_of(module: Any, x: np.ndarray, steps: int = 1, binary: bool = True) -> list[Any]:
    values = [
        ("x", "FP32", x),
        ("steps", "INT64", np.array(steps)),
        ("mixed['half']", "FP16", np.array([0.5, 1.5], np.float16)),
        ("mixed['brain']", "BF16", np.array([0.5, -3.0], np.float32)),
        ("mixed['flag']", "BOOL", np.array([True])),
    ]
    made = []
    for name, datatype, value in values:
        made.append(module.InferInput(name, list(value.shape), datatype))
        as_json = {} if binary or datatype in ("FP16", "BF16") else {"binary_data": False}
        made[-1].set_data_from_numpy(value, **as_json)
    return made


def expected(module: dycl_tvm.Module, x: np.ndarray, steps: int = 1) -> tuple[int, list[Any]]:
    module.reset_state()
    bits = np.array([0.5, -3.0], np.float32).view(np.uint32) >> 16
    leaves = [x, np.array(steps), np.array([0.5, 1.5], np.float16), bits.astype(np.uint16), np.array([True])]
    return module.run_leaves(leaves)


def document(x: Any = None, **changes: Any) -> dict[str, Any]:
    """Return a request as JSON; changes are to the first input."""
    first = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4] if x is None else x, **changes}
    others = [("steps", [], "INT64", [1]), ("mixed['half']", [2], "FP16", [0.5, 1.5]), ("mixed['brain']", [2], "BF16", [0.5, -3.0])]
    rest = [{"name": name, "shape": shape, "datatype": kind, "data": data} for name, shape, kind, data in others]
    return {"inputs": [first, *rest, {"name": "mixed['flag']", "shape": [1], "datatype": "BOOL", "data": [True]}]}


def post(server: Any, body: bytes, headers: dict[str, str] | None = None, path: str = "/v2/models/net/infer") -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(server.http, timeout=30)
    try:
        connection.request("POST", path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def metrics(server: Any) -> str:
    connection = http.client.HTTPConnection(server.http, timeout=30)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_client_finds_the_server_and_the_model(server: Any, protocol: str) -> None:
    _, client = client_of(server, protocol)
    as_json = {"as_json": True} if protocol == "grpc" else {}
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("net") and client.is_model_ready("net", "1")
    assert client.get_server_metadata(**as_json)["name"] == "dycl-tvm"
    found = client.get_model_metadata("net", **as_json)
    shapes = {port["name"]: (port["datatype"], [int(n) for n in port.get("shape", [])]) for port in found["inputs"]}
    assert shapes["x"] == ("FP32", [-1, 4]) and shapes["steps"] == ("INT64", []) and shapes["mixed['brain']"] == ("BF16", [2])
    names = {port["name"]: port["datatype"] for port in found["outputs"]}
    assert names["output['scores']"] == "FP32" and names["output['exit']"] == "INT64" and names["output[1][1]"] == "BF16"
    assert names["output[3]"] == "BYTES"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("binary", [True, False])
def test_answers_are_those_of_the_runtime_on_every_path(server: Any, files: tuple[str, str], protocol: str, binary: bool) -> None:
    if protocol == "grpc" and not binary:
        pytest.skip("gRPC has bytes only")
    module, client = client_of(server, protocol)
    local = dycl_tvm.load(*files)
    sites = set()
    for seed in range(12):
        x = np.random.default_rng(seed).normal(size=(seed % 8 + 1, 4)).astype(np.float32)
        given = (
            {}
            if binary
            else {"outputs": [module.InferRequestedOutput(name, binary_data=False) for name in ("output[0]", "output['scores']")]}
        )
        answer = client.infer("net", inputs_of(module, x, steps=seed % 2, binary=binary), request_id=str(seed), **given)
        site, leaves = expected(local, x, seed % 2)
        sites.add(site)
        if site == 0:
            np.testing.assert_array_equal(answer.as_numpy("output['scores']"), leaves[0])
            if binary:
                assert answer.as_numpy("output['exit']").tolist() == [0] and answer.as_numpy("output['calls']").tolist() == [1]
        else:
            np.testing.assert_array_equal(answer.as_numpy("output[0]"), leaves[0])
            if binary:
                np.testing.assert_array_equal(answer.as_numpy("output[1][0]"), np.array([1.0, 3.0], np.float16))
                np.testing.assert_array_equal(answer.as_numpy("output[1][1]"), np.array([1.0, -6.0], np.float32))
                assert answer.as_numpy("output[1][2]").tolist() == [False] and answer.as_numpy("output[3]").tolist() == [b"late"]
    assert sites == {0, 1}


def test_json_has_the_same_numbers_as_bytes(server: Any, files: tuple[str, str]) -> None:
    x = np.random.default_rng(3).normal(size=(2, 4)).astype(np.float32)
    site, leaves = expected(dycl_tvm.load(*files), x)
    status, answer = post(server, json.dumps(document(x.tolist(), shape=[2, 4])).encode())
    assert status == 200 and answer["parameters"]["return_site"] == site
    first = answer["outputs"][0]
    assert np.array(first["data"], np.float32).tolist() == leaves[0].reshape(-1).tolist() and first["shape"] == [2, 4]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_sequence_keeps_its_state(server: Any, protocol: str) -> None:
    module, client = client_of(server, protocol)
    x = np.full((1, 4), 1.0, np.float32)

    def call(name: Any, start: bool = False, end: bool = False) -> int | None:
        given = {"sequence_id": name, "sequence_start": start, "sequence_end": end}
        return _calls(client.infer("net", inputs_of(module, x, 0), **given))

    assert [call(7, start=True), call(7), call("seven", start=True), call(7), call("seven")] == [1, 2, 1, 3, 2]
    assert _calls(client.infer("net", inputs_of(module, x, 0))) == 1  # of no sequence: from the beginning
    assert [call(7, end=True), call("seven", end=True)] == [4, 3]
    with pytest.raises(Exception, match="the sequence 7 is not open"):
        call(7)
    # A request that fails does not change the sequence.
    assert call(8, start=True) == 1
    with pytest.raises(Exception, match="shape"):
        client.infer("net", inputs_of(module, np.ones((9, 4), np.float32)), sequence_id=8)
    with pytest.raises(Exception, match="deadline"):
        client.infer("net", inputs_of(module, x, FOREVER), sequence_id=8, timeout=50_000)
    assert [call(8), call(8, start=True), call(8, end=True)] == [2, 1, 2]


def _calls(answer: Any) -> int | None:
    found = answer.as_numpy("output['calls']")
    return None if found is None else int(found[0])


def test_a_stream_answers_in_order_and_outlives_a_bad_request(server: Any) -> None:
    module, client = client_of(server, "grpc")
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put(error or _calls(result)))
    x = np.full((1, 4), 1.0, np.float32)
    for k in range(6):  # all are sent before the first is answered
        wrong = np.ones((9, 4), np.float32)
        client.async_stream_infer("net", inputs_of(module, wrong if k == 3 else x, 0), sequence_id=70, sequence_start=k == 0)
    found = [answers.get(timeout=20) for _ in range(6)]
    assert found[:3] + found[4:] == [1, 2, 3, 4, 5] and "shape" in str(found[3])
    # Who cancels a stream ends its run: the sequence has its next turn.
    client.async_stream_infer("net", inputs_of(module, x, FOREVER), sequence_id=70)
    wait_for(lambda: 'dycl_requests_present{model="net"} 1.0' in metrics(server))
    client.stop_stream(cancel_requests=True)
    assert _calls(client.infer("net", inputs_of(module, x, 0), sequence_id=70, sequence_end=True)) == 6


def test_sequences_are_bounded_and_forgotten(start: Any) -> None:
    server = start("--sequences", "2", "--sequence-idle", "0.5")
    module, client = client_of(server, "http")
    given = inputs_of(module, np.ones((1, 4), np.float32), 0)
    for name in (1, 2):
        client.infer("net", given, sequence_id=name, sequence_start=True)
    with pytest.raises(Exception, match="all 2 sequences") as caught:
        client.infer("net", given, sequence_id=3, sequence_start=True)
    assert caught.value.status() == "503"
    time.sleep(1.6)
    client.infer("net", given, sequence_id=3, sequence_start=True)
    with pytest.raises(Exception, match="not open"):
        client.infer("net", given, sequence_id=1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_run_ends_at_its_deadline(server: Any, protocol: str) -> None:
    module, client = client_of(server, protocol)
    begun = time.monotonic()
    if protocol == "http":  # so that a server without deadlines fails here, and does not stop here
        client = module.InferenceServerClient(server.http, network_timeout=20)
    given = {"client_timeout": 20} if protocol == "grpc" else {}
    with pytest.raises(Exception, match="deadline") as caught:
        client.infer("net", inputs_of(module, np.ones((1, 4), np.float32), FOREVER), timeout=100_000, **given)
    assert time.monotonic() - begun < 5
    assert caught.value.status() in ("504", "StatusCode.DEADLINE_EXCEEDED")
    client.infer("net", inputs_of(module, np.ones((1, 4), np.float32)))


def test_a_client_that_goes_away_ends_its_run(start: Any) -> None:
    server = start("--sessions", "1")
    body = (
        json.dumps(document() | {"inputs": [*document()["inputs"]]})
        .replace('"shape": [], "datatype": "INT64", "data": [1]', f'"shape": [], "datatype": "INT64", "data": [{FOREVER}]')
        .encode()
    )
    assert str(FOREVER).encode() in body
    connection = socket.create_connection(tuple(server.http.split(":")))
    connection.sendall(b"POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    wait_for(lambda: 'dycl_requests_present{model="net"} 1.0' in metrics(server))
    connection.close()
    wait_for(lambda: 'code="499"' in metrics(server))
    module, client = client_of(server, "grpc")
    running = client.async_infer("net", inputs_of(module, np.ones((1, 4), np.float32), FOREVER), callback=lambda **_: None)
    wait_for(lambda: 'dycl_requests_present{model="net"} 1.0' in metrics(server))
    running.cancel()
    wait_for(lambda: 'code="CANCELLED"' in metrics(server))
    client.infer("net", inputs_of(module, np.ones((1, 4), np.float32)), client_timeout=20)  # the only session is free again


def test_what_is_more_than_may_wait_is_refused(start: Any) -> None:
    server = start("--sessions", "1", "--queue", "1")
    module, client = client_of(server, "grpc")
    slow = inputs_of(module, np.ones((1, 4), np.float32), FOREVER)
    running = [client.async_infer("net", slow, callback=lambda **_: None) for _ in range(2)]
    wait_for(lambda: 'dycl_requests_present{model="net"} 2.0' in metrics(server))
    assert post(server, json.dumps(document()).encode())[0] == 503
    with pytest.raises(Exception, match="RESOURCE_EXHAUSTED"):
        client.infer("net", inputs_of(module, np.ones((1, 4), np.float32)), client_timeout=20)
    for call in running:
        call.cancel()
    wait_for(lambda: 'dycl_requests_present{model="net"} 0.0' in metrics(server))
    assert post(server, json.dumps(document()).encode())[0] == 200


def test_connections_and_calls_are_bounded(start: Any) -> None:
    server = start("--sessions", "1", "--max-connections", "3")
    module, client = client_of(server, "grpc")
    slow = inputs_of(module, np.ones((1, 4), np.float32), FOREVER)
    running = [client.async_infer("net", slow, callback=lambda **_: None) for _ in range(3)]
    wait_for(lambda: 'dycl_requests_present{model="net"} 3.0' in metrics(server))
    with pytest.raises(Exception, match="RESOURCE_EXHAUSTED"):
        client.is_server_ready() and client.get_server_metadata()
    for call in running:
        call.cancel()
    idle = [socket.create_connection(tuple(server.http.split(":"))) for _ in range(3)]
    connection = http.client.HTTPConnection(server.http, timeout=10)
    connection.request("GET", "/v2")
    assert connection.getresponse().status == 503
    for opened in (*idle, connection):
        opened.close()
    wait_for(lambda: "dycl_requests" in metrics(server))


def test_the_end_is_graceful(start: Any, files: tuple[str, str]) -> None:
    server = start("--sessions", "1")
    module, client = client_of(server, "grpc")
    x, answers = np.ones((1, 4), np.float32), []
    steps = 2_000_000
    client.async_infer("net", inputs_of(module, x, steps), callback=lambda result, error: answers.append((result, error)))
    wait_for(lambda: 'dycl_requests_present{model="net"} 1.0' in metrics(server))
    server.process.send_signal(signal.SIGTERM)
    # New connections are taken, and told that the server is ending, as long as it waits.
    wait_for(lambda: post(server, json.dumps(document()).encode())[0] == 503)
    assert server.process.wait(30) == 0
    wait_for(lambda: bool(answers))
    result, error = answers[0]
    assert error is None
    site, leaves = expected(dycl_tvm.load(*files), x, steps)
    np.testing.assert_array_equal(result.as_numpy("output['scores']" if site == 0 else "output[0]"), leaves[0])


def test_a_second_signal_does_not_wait(start: Any) -> None:
    server = start()
    module, client = client_of(server, "grpc")
    client.async_infer("net", inputs_of(module, np.ones((1, 4), np.float32), FOREVER), callback=lambda **_: None)
    wait_for(lambda: 'dycl_requests_present{model="net"} 1.0' in metrics(server))
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10) == 0


def test_metrics_tell_paths_apart(server: Any) -> None:
    for x in ([1, 2, 3, 4], [-1, -2, -3, -4], [4, -3, 2, -1], [-4, 3, -2, 1]):
        assert post(server, json.dumps(document(x)).encode())[0] == 200
    text = metrics(server)
    paths = {line.split('path="')[1].split('"')[0] for line in text.splitlines() if line.startswith("dycl_run_seconds_count")}
    assert {path.split(":")[-1] for path in paths} == {"26", "27"}, paths
    assert 'dycl_request_seconds_count{model="net",protocol="http"}' in text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_the_network_raises_is_told(server: Any, protocol: str) -> None:
    module, client = client_of(server, protocol)
    with pytest.raises(Exception, match="ValueError: steps must not be negative") as caught:
        client.infer("net", inputs_of(module, np.ones((1, 4), np.float32), -1))
    assert caught.value.status() in ("422", "StatusCode.INVALID_ARGUMENT")


def test_a_seed_is_that_of_torch(server: Any) -> None:
    module, client = client_of(server, "http")

    def noise(**given: Any) -> list[float]:
        return client.infer("net", inputs_of(module, np.ones((1, 4), np.float32)), **given).as_numpy("output['noise']").tolist()

    torch.manual_seed(5)
    assert noise(parameters={"seed": 5}) == torch.rand(3).tolist() != noise()
    assert noise() == noise()


@pytest.mark.parametrize("encoding, compress", [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_bodies(server: Any, encoding: str, compress: Any) -> None:
    body = json.dumps(document()).encode()
    headers = {"Content-Encoding": encoding}
    assert post(server, compress(body), headers) == post(server, body)
    assert post(server, compress(b" " * 10**8), headers)[0] == 413
    assert post(server, compress(body)[:-4], headers)[0] == 400
    assert post(server, b"\x00" + compress(body), headers)[0] == 400
    assert post(server, body, {"Content-Encoding": "br"})[0] == 415


@pytest.mark.parametrize("path", ["/v2/models/other/infer", "/v2/models/net/versions/2/infer", "/v2/models/net/inferno", "/v3"])
def test_what_is_not_there(server: Any, path: str) -> None:
    status, answer = post(server, b"{}", path=path)
    assert status in (404, 405) and answer["error"]


def test_several_models(start: Any, files: tuple[str, str]) -> None:
    server = start("--model", f"again={files[0]},{files[1]}")
    body = json.dumps(document()).encode()
    first, second = (post(server, body, path=f"/v2/models/{name}/infer")[1] for name in ("net", "again"))
    assert first.pop("model_name") == "net" and second.pop("model_name") == "again" and first == second


def test_a_server_that_is_killed_leaves_its_place(start: Any) -> None:
    server = start()
    server.process.kill()
    server.process.wait(10)
    again = start("--http-port", server.http.split(":")[1])
    assert post(server, json.dumps(document()).encode())[0] == 200 and again.process.poll() is None


def test_neither_torch_nor_tvm_is_loaded(server: Any) -> None:
    mapped = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "net.so" in mapped and "libtorch" not in mapped and "libtvm" not in mapped


def test_clients_that_let_the_server_wait_are_left(start: Any) -> None:
    server = start("--patience", "0.5")
    address = tuple(server.http.split(":"))
    heads = [b"", b"POST /v2/models/net/infer HTTP/1.1\r\nHo", b"POST /v2/models/net/infer HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"]
    for head in heads:
        with socket.create_connection(address, timeout=10) as connection:
            connection.sendall(head)
            answer = connection.recv(1000)  # nothing, or, of a head that was complete, the status
            assert answer == b"" or b" 408 " in answer
    assert post(server, json.dumps(document()).encode())[0] == 200


def test_a_head_that_does_not_end_is_left(server: Any) -> None:
    begun, sent = time.monotonic(), 0
    with socket.create_connection(tuple(server.http.split(":")), timeout=10) as connection, pytest.raises(OSError):
        connection.sendall(b"GET /v2 HTTP/1.1\r\n")
        while sent < 10**8:
            connection.sendall(b"X: " + b"y" * 1000 + b"\r\n")
            sent += 1005
    assert sent < 10**7 and time.monotonic() - begun < 20  # before the server lost patience
    assert post(server, json.dumps(document()).encode())[0] == 200


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_body_that_is_too_large_is_refused(server: Any, protocol: str) -> None:
    module, client = client_of(server, protocol)
    with pytest.raises(Exception, match="larger than|RESOURCE_EXHAUSTED"):
        client.infer("net", inputs_of(module, np.ones((10**6, 4), np.float32)))
    client.infer("net", inputs_of(module, np.ones((1, 4), np.float32)))


def test_bad_requests_among_good_ones(server: Any, files: tuple[str, str]) -> None:
    """A small form of ``make serve-load``."""
    local = dycl_tvm.load(*files)
    outcomes: list[str] = []

    async def call(clients: dict[str, tuple[Any, Any]], k: int) -> None:
        x = np.random.default_rng(k).normal(size=(k % 8 + 1, 4)).astype(np.float32)
        module, client = clients[PROTOCOLS[k % 2]]
        if k % 10 < 2:
            with pytest.raises(Exception, match="shape"):
                await client.infer("net", inputs_of(module, x[:, :3]))
            outcomes.append("refused")
            return
        answer = await client.infer("net", inputs_of(module, x, k % 5))
        site, leaves = expected(local, x, k % 5)
        np.testing.assert_array_equal(answer.as_numpy("output['scores']" if site == 0 else "output[0]"), leaves[0])
        outcomes.append("right")

    async def all_calls() -> None:
        clients = {}
        for protocol in PROTOCOLS:
            module = importlib.import_module(f"tritonclient.{protocol}.aio")
            clients[protocol] = module, module.InferenceServerClient(getattr(server, protocol))
        order = list(range(300))
        random.Random(0).shuffle(order)
        for begin in range(0, len(order), 30):
            await asyncio.gather(*[call(clients, k) for k in order[begin : begin + 30]])
        for _, client in clients.values():
            await client.close()

    asyncio.run(all_calls())
    assert outcomes.count("right") == 240 and outcomes.count("refused") == 60


def test_models_of_one_library_for_other_sizes(files: tuple[str, str], start: Any) -> None:
    server = start("--model", f"small={files[0]},{files[1]}", "--largest-sizes", "small:B=2", "--largest-sizes", "B=7")
    for protocol in PROTOCOLS:
        module, client = client_of(server, protocol)
        for name, most in (("small", 2), ("net", 7)):
            for n in (1, most):
                x = np.ones((n, 4), np.float32)
                got = client.infer(name, inputs_of(module, x)).as_numpy("output['scores']")
                assert np.array_equal(got, expected(dycl_tvm.load(*files), x)[1][0])
            with pytest.raises(importlib.import_module("tritonclient.utils").InferenceServerException, match=f"with at most .{most}, 4"):
                client.infer(name, inputs_of(module, np.ones((most + 1, 4), np.float32)))
