# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Networks whose callers decide a size: one build for all sizes, against a static build of each size, and against ONNX Runtime.

Each contender is a process; they take turns, so that what else the machine does meets all of them. A row has the median of the rounds, in
microseconds, at sizes that change with each call.

    python benchmarks/sizes.py [--networks NAME ...] [--rounds N] [--threads N]
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

_CONTENDERS = ("dynamic", "static", "onnxruntime")


class UNet(nn.Module):
    """Two levels down and up again, with what is kept of each."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.down = _block(3, width), _block(width, 2 * width)
        self.bottom, self.up = _block(2 * width, 4 * width), _block(6 * width, 2 * width)
        self.last, self.head = _block(3 * width, width), nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.first(x)
        b = self.down(nn.functional.max_pool2d(a, 2))
        c = self.bottom(nn.functional.max_pool2d(b, 2))
        b = self.up(torch.cat([nn.functional.interpolate(c, scale_factor=2.0), b], 1))
        return self.head(self.last(torch.cat([nn.functional.interpolate(b, scale_factor=2.0), a], 1)))


def _block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


def _convolutions() -> nn.Module:
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    return nn.Sequential(_block(3, 32), nn.MaxPool2d(2), _block(32, 64), nn.MaxPool2d(2), _block(64, 128), *pooled)


def _encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), 4, enable_nested_tensor=False)


#: Name to the network, the input of a size, the dimension that is the size, and the largest.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor], int, int]] = {
    "perceptron, batch": (
        lambda: nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.GELU(), nn.Linear(256, 10)),
        lambda n: torch.randn(n, 256),
        0,
        64,
    ),
    "convolutions, batch": (_convolutions, lambda n: torch.randn(n, 3, 32, 32), 0, 16),
    "u-net, batch": (UNet, lambda n: torch.randn(n, 3, 64, 64), 0, 8),
    "transformer, tokens": (_encoder, lambda n: torch.randn(1, n, 256), 1, 128),
    "transformer, batch": (_encoder, lambda n: torch.randn(n, 32, 256), 0, 8),
}


def sizes_of(most: int) -> list[int]:
    """Return about ten sizes, from 1 to the largest."""
    return sorted({max(1, round(most * k / 9)) for k in range(10)})


def _loaded(model: nn.Module, example: torch.Tensor, folder: Path, **options: Any) -> Callable[[torch.Tensor], Any]:
    import dycl_tvm

    artifact = dycl_tvm.build(model, (example,), verify="off", **options)
    artifact.export_library(folder / "net.so")
    artifact.save_params(folder / "net.params")
    return dycl_tvm.load(folder / "net.so", folder / "net.params")


def _calls(contender: str, network: str, threads: int, folder: Path) -> dict[int, Callable[[torch.Tensor], Any]]:
    """Return what computes the network at each size."""
    make, inputs, dim, most = NETWORKS[network]
    torch.manual_seed(0)
    model, sizes = make().eval(), sizes_of(most)
    if contender == "static":
        found = {}
        for n in sizes:
            (folder / str(n)).mkdir()
            found[n] = _loaded(model, inputs(n), folder / str(n))
        return found
    if contender == "dynamic":
        import dycl_tvm

        call = _loaded(model, inputs(most), folder, dynamic_shapes=({dim: dycl_tvm.Dim("N", min=1, max=most)},))
        return dict.fromkeys(sizes, call)
    import onnxruntime

    path = str(folder / "net.onnx")
    size = torch.export.Dim("N", min=1, max=most)
    torch.onnx.export(model, (inputs(max(2, most // 2)),), path, dynamic_shapes=({dim: size},), dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return dict.fromkeys(sizes, lambda x: session.run(None, {name: x.numpy()}))


def _work(connection: Any, contender: str, network: str, threads: int) -> None:
    """Build, say so, and then measure all sizes for each message that comes."""
    torch.set_num_threads(threads)
    make, inputs, _, _ = NETWORKS[network]
    with tempfile.TemporaryDirectory() as folder:
        try:
            start = time.perf_counter()
            calls = _calls(contender, network, threads, Path(folder))
            torch.manual_seed(0)
            model = make().eval()
            given = {n: inputs(n) for n in calls}
            with torch.no_grad():
                for n, call in calls.items():
                    got = call(given[n])
                    got = torch.as_tensor(got[0] if isinstance(got, list) else got)
                    torch.testing.assert_close(got, model(given[n]), rtol=1e-3, atol=1e-4)
            connection.send(time.perf_counter() - start)
        except Exception as error:
            connection.send(f"{type(error).__name__}: {str(error).splitlines()[0][:100]}")
            return
        while connection.recv():
            times: dict[int, list[float]] = {n: [] for n in calls}
            for _ in range(8):
                for n, call in calls.items():  # another size at each call
                    start = time.perf_counter()
                    call(given[n])
                    times[n].append(time.perf_counter() - start)
            connection.send({n: statistics.median(t) for n, t in times.items()})


def measure(network: str, rounds: int, threads: int, contenders: Sequence[str]) -> None:
    """Print the table of a network."""
    context = multiprocessing.get_context("spawn")
    os.environ["DYCL_NUM_THREADS"] = str(threads)
    links: dict[str, Any] = {}
    print(f"\n{network}: float32, {threads} thread{'s' if threads > 1 else ''}", flush=True)
    for contender in contenders:
        ours, theirs = context.Pipe()
        context.Process(target=_work, args=(theirs, contender, network, threads), daemon=True).start()
        said = ours.recv()
        if isinstance(said, str):
            print(f"  {contender} takes no part: {said}")
        else:
            links[contender] = ours
    found: dict[str, list[dict[int, float]]] = {c: [] for c in links}
    for _ in range(rounds):
        for contender, link in links.items():
            link.send(True)
            found[contender].append(link.recv())
    for link in links.values():
        link.send(False)
    if "dynamic" not in links:
        return
    median = {c: {n: statistics.median(r[n] for r in runs) for n in runs[0]} for c, runs in found.items()}
    others = [c for c in links if c != "dynamic"]
    print(f"  {'size':>5}" + "".join(f"{c:>13}" for c in links) + "".join(f"{'/ ' + c:>15}" for c in others))
    for n in median["dynamic"]:
        ratios = [median[c][n] / median["dynamic"][n] for c in others]
        print(f"  {n:>5}" + "".join(f"{1e6 * median[c][n]:>13.0f}" for c in links) + "".join(f"{r:>14.2f}x" for r in ratios))
    for c in others:
        ratios = [median[c][n] / median["dynamic"][n] for n in median["dynamic"]]
        mean = math.exp(statistics.mean(map(math.log, ratios)))
        print(f"  dynamic is {mean:.2f} times as fast as {c} (geometric mean), at worst {min(ratios):.2f} times")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), metavar="NAME", help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("--rounds", type=int, default=7, help="how often the contenders take turns (default: 7)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each contender (default: 1)")
    given = parser.parse_args()
    unknown = [n for n in given.networks if n not in NETWORKS]
    if unknown:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(NETWORKS)}")
    contenders = [c for c in _CONTENDERS if c != "onnxruntime" or importlib.util.find_spec("onnxruntime")]
    for network in given.networks:
        measure(network, given.rounds, given.threads, contenders)


if __name__ == "__main__":
    main()
