# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The same network on a real Ray Serve: replicas, one that dies, an update."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
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

def deploy(settings=None):
    options = {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0.5}, "health_check_period_s": 1}
    serve.run(dycl_tvm.serve.deployment(sys.argv[1], sys.argv[2], settings=settings, sticky=True, **options), name="net")

deploy()
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "kill":
        actor = next(a for a in ray.util.list_named_actors(all_namespaces=True) if "SERVE_REPLICA" in a["name"])
        ray.kill(ray.get_actor(**actor), no_restart=True)
    elif line.strip() == "update":
        deploy(dycl_tvm.serve.Settings(sessions=1, queue=3, threads=1))
    print("done", flush=True)
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


def tell(cluster: Any, word: str) -> None:
    cluster.stdin.write(f"{word}\n")
    cluster.stdin.flush()
    assert "done\n" in iter(cluster.stdout.readline, "")


def request(x: np.ndarray[Any, Any], **parameters: Any) -> bytes:
    values = [
        ("x", "FP32", x),
        ("steps", "INT64", np.array(2)),
        ("mixed['half']", "FP16", np.ones(2)),
        ("mixed['brain']", "BF16", np.ones(2)),
    ]
    inputs = [{"name": name, "datatype": kind, "shape": value.shape, "data": value.reshape(-1).tolist()} for name, kind, value in values]
    inputs.append({"name": "mixed['flag']", "datatype": "BOOL", "shape": [1], "data": [True]})
    return json.dumps({"inputs": inputs, "parameters": parameters}).encode()


def post(body: bytes, **headers: str) -> dict[str, Any]:
    address = f"http://127.0.0.1:{HTTP}/v2/models/net/infer"
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


def test_answers_are_right_while_replicas_die_and_are_replaced(cluster: Any, files: tuple[str, str]) -> None:
    local = dycl_tvm.load(*files)
    rng = np.random.default_rng(0)
    for k in range(60):
        if k == 20:
            tell(cluster, "kill")
        if k == 40:
            tell(cluster, "update")
        x = rng.normal(size=(k % 8 + 1, 4)).astype(np.float32)
        answer, _ = post_until_answered(request(x))
        local.reset_state()
        site, leaves = local.run_leaves([x, np.array(2), np.ones(2, np.float16), np.full(2, 0x3F80, np.uint16), np.array([True])])
        assert answer["parameters"]["return_site"] == site
        assert np.array(answer["outputs"][0]["data"], np.float32).tolist() == leaves[0].reshape(-1).tolist()


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
