# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The same network on a real Ray Serve: replicas, one that dies, an update, autoscaling, several applications, the command."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import dycl_tvm

MISSING = [name for name in ("ray", "starlette", "grpc", "tritonclient") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.xdist_group("serve"),
    pytest.mark.skipif(bool(MISSING), reason=f"without {MISSING}: make serve-load installs them"),
]

#: A process of its own, so that Ray is not in that of the tests.
HOST = """
import os, signal, sys, time
import ray
from ray import serve
import dycl_tvm.serve
from dycl_tvm.serve import ray_cluster

ray_cluster.start(None, "127.0.0.1", int(sys.argv[3]), int(sys.argv[4]), num_cpus=2, log_to_driver=False, logging_level="error")

OPTIONS = {"ray_actor_options": {"num_cpus": 0.4}, "health_check_period_s": 1}

def deploy(settings=None):
    made = dycl_tvm.serve.deployment(sys.argv[1], sys.argv[2], settings=settings, sticky=True, num_replicas=2, **OPTIONS)
    serve.run(made, name="net")

def deploy_another():
    scaling = {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 1, "upscale_delay_s": 0.5, "metrics_interval_s": 0.2}
    made = dycl_tvm.serve.deployment(sys.argv[1], sys.argv[2], autoscaling_config=scaling, **OPTIONS)
    serve.run(made, name="another", route_prefix="/another")

def replicas(name):
    return sum(sum(d.replica_states.values()) for d in serve.status().applications[name].deployments.values())

deploy()
print("ready", flush=True)
for line in sys.stdin:
    word, answer = line.strip(), "done"
    if word == "kill":
        actor = next(a for a in ray.util.list_named_actors(all_namespaces=True) if "SERVE_REPLICA" in a["name"])
        ray.kill(ray.get_actor(**actor), no_restart=True)
    elif word == "update":
        deploy(dycl_tvm.serve.Settings(sessions=1, queue=3, threads=1))
    elif word == "another":
        deploy_another()
    elif word == "replicas":
        answer = str(replicas("another"))
    elif word == "end another":
        serve.delete("another")
    print("answer", answer, flush=True)
serve.shutdown()
ray.shutdown()
"""
HTTP, GRPC = 18700, 18701


@pytest.fixture(scope="module")
def cluster(files: tuple[str, str]) -> Any:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-c", HOST, *files, str(HTTP), str(GRPC)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert process.stdout is not None and process.stdin is not None
    while (line := process.stdout.readline()) != "ready\n":
        assert line, "Ray did not start"
    yield process
    process.stdin.close()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)


def tell(cluster: Any, word: str) -> str:
    cluster.stdin.write(f"{word}\n")
    cluster.stdin.flush()
    return next(line.split()[1] for line in iter(cluster.stdout.readline, "") if line.startswith("answer "))


def request(x: np.ndarray[Any, Any], steps: int = 2, **parameters: Any) -> bytes:
    values = [
        ("x", "FP32", x),
        ("steps", "INT64", np.array(steps)),
        ("mixed['half']", "FP16", np.ones(2)),
        ("mixed['brain']", "BF16", np.ones(2)),
    ]
    inputs = [{"name": name, "datatype": kind, "shape": value.shape, "data": value.reshape(-1).tolist()} for name, kind, value in values]
    inputs.append({"name": "mixed['flag']", "datatype": "BOOL", "shape": [1], "data": [True]})
    return json.dumps({"inputs": inputs, "parameters": parameters}).encode()


def post(body: bytes, route: str = "", port: int = HTTP, **headers: str) -> dict[str, Any]:
    address = f"http://127.0.0.1:{port}{route}/v2/models/net/infer"
    with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=60) as answer:
        return json.loads(answer.read())


def post_until_answered(body: bytes) -> tuple[dict[str, Any], int]:
    """A replica that dies takes what it has in hand with it: Ray says so (5xx), and the client asks again."""
    for again in range(100):
        try:
            return post(body), again
        except urllib.error.HTTPError as error:
            assert error.code >= 500, error.read()
            time.sleep(0.1)
    raise AssertionError("no answer")


class Expected:
    """What the network gives in this process."""

    def __init__(self, files: tuple[str, str]) -> None:
        self.local = dycl_tvm.load(*files)
        self.draw = np.random.default_rng(0)

    def inputs(self, k: int) -> np.ndarray[Any, Any]:
        return self.draw.normal(size=(k % 8 + 1, 4)).astype(np.float32)

    def check(self, answer: dict[str, Any], x: np.ndarray[Any, Any], steps: int = 2) -> None:
        self.local.reset_state()
        others = [np.ones(2, np.float16), np.full(2, 0x3F80, np.uint16), np.array([True])]
        site, leaves = self.local.run_leaves([x, np.array(steps), *others])
        assert answer["parameters"]["return_site"] == site
        assert np.array(answer["outputs"][0]["data"], np.float32).tolist() == leaves[0].reshape(-1).tolist()


@pytest.fixture
def expected(files: tuple[str, str]) -> Expected:
    return Expected(files)


def test_answers_are_right_while_replicas_die_and_are_replaced(cluster: Any, expected: Expected) -> None:
    for k in range(40):
        if k == 20:
            tell(cluster, "kill")
        x = expected.inputs(k)
        answer, _ = post_until_answered(request(x))
        expected.check(answer, x)


def test_an_update_has_no_gap(cluster: Any, expected: Expected) -> None:
    """Requests go on while replicas are replaced, and none is asked again."""
    for _ in range(100):  # the replica that was killed is back
        post_until_answered(request(expected.inputs(1)))
    with ThreadPoolExecutor(1) as beside:
        update, asked = beside.submit(tell, cluster, "update"), 0
        while not update.done() or asked < 20:
            x = expected.inputs(asked)
            expected.check(post(request(x)), x)
            asked += 1
        update.result()


def test_another_application_grows_with_its_load(cluster: Any, expected: Expected) -> None:
    tell(cluster, "another")
    assert tell(cluster, "replicas") == "1"
    ended, asked = threading.Event(), []

    def load(k: int) -> None:
        x = expected.inputs(k)
        while not ended.is_set():
            asked.append((x, post(request(x, 2000), "/another")))

    with ThreadPoolExecutor(4) as users:
        loads = [users.submit(load, k) for k in range(4)]
        try:
            deadline = time.monotonic() + 120
            while tell(cluster, "replicas") == "1" and time.monotonic() < deadline:
                x = expected.inputs(0)
                expected.check(post(request(x)), x)  # the first application goes on
        finally:
            grown = tell(cluster, "replicas")
            ended.set()
        for one in loads:
            one.result()
    assert grown == "2"
    for x, answer in asked[:: len(asked) // 8]:
        expected.check(answer, x, 2000)
    tell(cluster, "end another")


def test_an_answer_over_grpc(cluster: Any, expected: Expected) -> None:
    triton = importlib.import_module("tritonclient.grpc")
    client, x = triton.InferenceServerClient(f"127.0.0.1:{GRPC}"), np.ones((3, 4), np.float32)
    given = []
    for name, kind, value in (
        ("x", "FP32", x),
        ("steps", "INT64", np.array(2)),
        ("mixed['half']", "FP16", np.ones(2, np.float16)),
        ("mixed['brain']", "BF16", np.ones(2, np.float32)),
        ("mixed['flag']", "BOOL", np.array([True])),
    ):
        given.append(triton.InferInput(name, list(value.shape), kind))
        given[-1].set_data_from_numpy(value)
    answer = client.infer("net", given, headers={"application": "net"})
    first = answer.get_response().outputs[0].name
    body = {"parameters": {"return_site": answer.get_response().parameters["return_site"].int64_param}}
    expected.check(body | {"outputs": [{"data": answer.as_numpy(first).reshape(-1).tolist()}]}, x)


def test_the_command(files: tuple[str, str], expected: Expected) -> None:
    """``dycl-tvm serve --ray`` on a cluster of its own: it answers, and ends with 0 when it is told to."""
    ports = ["--http-port", str(HTTP + 2), "--grpc-port", str(GRPC + 2)]
    command = [sys.executable, "-m", "dycl_tvm.cli", "serve", *files, "--ray", "--cpus", "0.4", "--max-replicas", "2", *ports]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    assert process.stdout is not None
    assert "serving on Ray" in next(iter(process.stdout.readline, ""))
    for k in range(10):
        x = expected.inputs(k)
        expected.check(post(request(x), port=HTTP + 2), x)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0


def test_errors_are_those_of_the_protocol(cluster: Any) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(request(np.ones((9, 4))))
    assert caught.value.code == 400 and "has the shape [-1, 4]" in json.loads(caught.value.read())["error"]
    client = importlib.import_module("tritonclient.grpc").InferenceServerClient(f"127.0.0.1:{GRPC}")
    assert client.is_server_ready() and client.is_model_ready("net")
    with pytest.raises(Exception, match="the input 'x' is missing"):
        client.infer("net", [])
    with pytest.raises(Exception, match="there is no model 'other'"):
        client.get_model_metadata("other")


def test_a_sequence_finds_its_replica(cluster: Any) -> None:
    for name in range(1, 7):
        counts = []
        for k in range(3):
            answer = post(request(np.ones((1, 4)), sequence_id=name, sequence_start=k == 0), **{"x-session-id": str(name)})
            counts.append(next(output["data"] for output in answer["outputs"] if output["name"] == "output['calls']")[0])
        assert counts == [1, 2, 3]
