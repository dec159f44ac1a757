# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Load on servers of one early-exit network: wrong and lost replies, and latency at several rates, while a replica is killed.

Requests are sent by NVIDIA's client at moments that were drawn before (an open loop), whether or not earlier ones are answered. One in
fifty is bad and has to be refused. An answer of 5xx, or a connection that breaks, is asked again; what is never answered is lost. The
latency is from the moment at which a request was to be sent to its answer, tries included.

    python benchmarks/serve_load.py --requests 20000 --rates 50,100,200 --servers here,ray,onnxruntime
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import dycl_tvm

HTTP, GRPC = 18800, 18801
DISTINCT, BAD = 64, 50
TRIES = 200


class EarlyExit(nn.Module):
    """Three blocks of convolutions; what is sure of itself leaves after the first or second."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv2d(n, m, 3, stride=2, padding=1) for n, m in ((3, 16), (16, 32), (32, 64)))
        self.heads = nn.ModuleList(nn.Linear(n, 10) for n in (16, 32, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for k, (block, head) in enumerate(zip(self.blocks, self.heads)):
            x = torch.relu(block(x))
            y = torch.softmax(head(x.mean((2, 3))) * 20, 1)
            if k == 2 or y.max() > 0.45:
                return y
        raise AssertionError


@dataclass
class Tally:
    """What became of the requests of one rate."""

    seconds: list[float] = field(default_factory=list)
    wrong: int = 0
    lost: int = 0
    refused: int = 0
    again: int = 0


async def send(client: Any, module: Any, k: int, inputs: Any, expected: Any, at: float, tally: Tally) -> None:
    await asyncio.sleep(at - time.perf_counter())
    bad = k % BAD == BAD - 1
    x = inputs[k % DISTINCT][:, :, :31] if bad else inputs[k % DISTINCT]
    given = module.InferInput("x", list(x.shape), "FP32")
    given.set_data_from_numpy(x)
    for _ in range(TRIES):
        try:
            answer = await client.infer("net", [given])
        except Exception as error:
            status = str(error.status()) if isinstance(error, module.InferenceServerException) else ""
            if bad and status in ("400", "StatusCode.INVALID_ARGUMENT"):
                tally.refused += 1
                return
            if status.startswith("4") or "INVALID" in status:
                tally.wrong += 1
                print(error, file=sys.stderr)
                return
            tally.again += 1
            await asyncio.sleep(0.1)
            continue
        tally.seconds.append(time.perf_counter() - at)
        tally.wrong += bad or not np.allclose(answer.as_numpy("output"), expected[k % DISTINCT], rtol=1e-4, atol=1e-5)
        return
    tally.lost += 1


async def load(protocol: str, port: int, rate: float, number: int, inputs: Any, expected: Any, halfway: Callable[[], None]) -> Tally:
    import importlib

    module = importlib.import_module(f"tritonclient.{protocol}.aio")
    tally = Tally()
    client = module.InferenceServerClient(f"127.0.0.1:{port}")
    begin, moments = time.perf_counter() + 0.2, np.cumsum(np.random.default_rng(0).exponential(1 / rate, number))
    calls = [asyncio.ensure_future(send(client, module, k, inputs, expected, begin + at, tally)) for k, at in enumerate(moments)]
    await asyncio.sleep(float(moments[-1]) / 2)
    await asyncio.to_thread(halfway)
    await asyncio.gather(*calls)
    await client.close()
    return tally


@contextmanager
def here(folder: Path) -> Iterator[tuple[dict[str, int], Callable[[], None]]]:
    command = [sys.executable, "-m", "dycl_tvm.cli", "serve", str(folder / "net.so"), str(folder / "net.params"), "--queue", "1000"]
    process = subprocess.Popen([*command, "--http-port", "0", "--grpc-port", "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    http, grpc = (int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", process.stdout.readline()))
    yield {"http": http, "grpc": grpc}, lambda: None
    process.terminate()
    assert process.wait(60) == 0


@contextmanager
def on_ray(folder: Path, engine: str, replicas: int) -> Iterator[tuple[dict[str, int], Callable[[], None]]]:
    import ray
    from ray import serve

    from dycl_tvm.serve import ray_cluster
    from dycl_tvm.serve.ray_serve import deployment

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    ray_cluster.start(None, "127.0.0.1", HTTP, GRPC, num_cpus=2, log_to_driver=False, logging_level="error")
    options: dict[str, Any] = {"num_replicas": replicas, "ray_actor_options": {"num_cpus": 0.5}, "health_check_period_s": 1}
    if engine == "ray":
        application = deployment(folder / "net.so", folder / "net.params", **options)
    else:
        from serve_onnxruntime import application_of

        application = application_of(str(folder / "net.onnx"), options)
    serve.run(application, name="net")

    def kill() -> None:
        replica = next(a for a in ray.util.list_named_actors(all_namespaces=True) if "SERVE_REPLICA" in a["name"])
        ray.kill(ray.get_actor(**replica), no_restart=True)

    yield ({"http": HTTP, "grpc": GRPC} if engine == "ray" else {"http": HTTP}), kill
    serve.shutdown()
    ray.shutdown()


def main() -> None:
    """Print a line for each server, protocol and rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="to each server, over all protocols and rates")
    parser.add_argument("--rates", default="25,50,100", help="requests a second")
    parser.add_argument("--servers", default="here,ray,onnxruntime")
    parser.add_argument("--replicas", type=int, default=2, help="on Ray")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = EarlyExit().eval()
    inputs = [np.random.default_rng(k).normal(size=(1, 3, 32, 32)).astype(np.float32) * (k % 3 + 0.3) for k in range(DISTINCT)]
    art = dycl_tvm.build(model, (torch.from_numpy(inputs[0]),), name="net")
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        art.export_library(folder / "net.so")
        art.save_params(folder / "net.params")
        if "onnxruntime" in args.servers:
            art.export_onnx(folder / "net.onnx")
        with torch.no_grad():
            expected = [model(torch.from_numpy(x)).numpy() for x in inputs]
        print("| server | protocol | requests a second | requests | wrong | lost | bad, refused | asked again | p50 ms | p99 ms |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        for server in args.servers.split(","):
            with here(folder) if server == "here" else on_ray(folder, server, args.replicas) as (ports, halfway):
                rates = [float(rate) for rate in args.rates.split(",")]
                number = args.requests // (len(rates) * len(ports))
                for protocol, port in ports.items():
                    for rate in rates:
                        t = asyncio.run(load(protocol, port, rate, number, inputs, expected, halfway))
                        p50, p99 = (float(np.quantile(t.seconds, q)) * 1e3 for q in (0.5, 0.99))
                        counts = f"{number} | {t.wrong} | {t.lost} | {t.refused} | {t.again}"
                        print(f"| {server} | {protocol} | {rate:g} | {counts} | {p50:.1f} | {p99:.1f} |", flush=True)
                        failed |= bool(t.wrong or t.lost) or t.refused != number // BAD
    sys.exit("replies are wrong or lost" if failed else 0)


if __name__ == "__main__":
    main()
