# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Networks whose callers decide a size: one build for all sizes, against a static build of each size, and against ONNX Runtime and
OpenVINO with dynamic shapes.

Each contender is a process; they take turns, so that what else the machine does meets all of them. A row has the median of the rounds, in
microseconds: with one thread of the time of the processor, otherwise of the clock. Each size is called twice, and then another one. Peers
are compared by the first call, sizes changing as in life; static builds, of which each has weights of its own in the caches, by the second.

    python benchmarks/sizes.py [--networks NAME ...] [--rounds N] [--threads N]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from shared import geometric_mean, in_brief, loaded, onnxruntime_session, take_turns

_CONTENDERS = ("dynamic", "static", "onnxruntime", "openvino")


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


class Sentences(nn.Module):
    """BERT's shape, on batches of sentences: a number for each of five classes, from the first token."""

    def __init__(self, width: int = 256, most: int = 64) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(1000, width), nn.Embedding(most, width), nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(tokens) + self.places(torch.arange(tokens.shape[1])))
        return self.head(torch.tanh(self.layers(x)[:, 0]))


class Decoder(nn.Module):
    """A step of a decoder: a token, and the keys and values of those before it, which it returns with one more."""

    def __init__(self, width: int = 256, heads: int = 4, layers: int = 4, most: int = 128) -> None:
        super().__init__()
        self.words, self.places, self.heads = nn.Embedding(1000, width), nn.Embedding(most, width), heads
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, 1000)

    def forward(self, token: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Any:
        x = self.words(token) + self.places(torch.full((1, 1), keys.shape[3]))
        kept: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for i, layer in enumerate(self.layers):
            inner = nn.functional.linear(layer.norm1(x), layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias)
            q, k, v = (y.view(1, 1, self.heads, -1).transpose(1, 2) for y in inner.chunk(3, -1))
            k, v = torch.cat([keys[i], k], 2), torch.cat([values[i], v], 2)
            kept[0].append(k)
            kept[1].append(v)
            x = x + layer.self_attn.out_proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 1, -1))
            x = x + layer.linear2(nn.functional.gelu(layer.linear1(layer.norm2(x))))
        return self.head(x), torch.stack(kept[0]), torch.stack(kept[1])


class Patches(nn.Module):
    """A vision transformer for pictures of any height and width that are multiples of its patches."""

    def __init__(self, width: int = 192, patch: int = 16, most: int = 8) -> None:
        super().__init__()
        self.patch, self.places = nn.Conv2d(3, width, patch, patch), nn.Parameter(torch.randn(1, width, most, most) / 50)
        layer = nn.TransformerEncoderLayer(width, 3, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x)
        x = (x + self.places[:, :, : x.shape[2], : x.shape[3]]).flatten(2).transpose(1, 2)
        return self.head(self.layers(x).mean(1))


@dataclass(frozen=True)
class Network:
    """A network: its inputs of a size, of each of them the dimensions that a size decides, with the factor, and the largest size."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[torch.Tensor, ...]]
    dims: tuple[dict[int, tuple[str, int]], ...]
    most: int
    least: int = 1

    def shapes(self, dim: Callable[..., Any]) -> tuple[dict[int, Any] | None, ...]:
        """Return the dynamic shapes, in the words of ``dim``, a ``Dim``."""
        named: dict[str, Any] = {}
        for of in self.dims:
            for name, _ in of.values():
                named.setdefault(name, dim(name, min=self.least, max=self.most))
        return tuple({d: named[n] * k if k != 1 else named[n] for d, (n, k) in of.items()} or None for of in self.dims)


def _of_one(make: Callable[[], nn.Module], inputs: Callable[[int], torch.Tensor], dim: int, most: int) -> Network:
    return Network(make, lambda n: (inputs(n),), ({dim: ("N", 1)},), most)


def _cache(n: int) -> torch.Tensor:
    return torch.randn(4, 1, 4, n, 64)


_PICTURE = ({2: ("H", 16), 3: ("W", 16)},)
NETWORKS = {
    "perceptron, batch": _of_one(
        lambda: nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.GELU(), nn.Linear(256, 10)),
        lambda n: torch.randn(n, 256),
        0,
        64,
    ),
    "convolutions, batch": _of_one(_convolutions, lambda n: torch.randn(n, 3, 32, 32), 0, 16),
    "u-net, batch": _of_one(UNet, lambda n: torch.randn(n, 3, 64, 64), 0, 8),
    "u-net, height and width": Network(UNet, lambda n: (torch.randn(1, 3, 4 * n, 4 * n),), ({2: ("H", 4), 3: ("W", 4)},), 16),
    "transformer, tokens": _of_one(_encoder, lambda n: torch.randn(1, n, 256), 1, 128),
    "transformer, batch": _of_one(_encoder, lambda n: torch.randn(n, 32, 256), 0, 8),
    "sentences, batch and tokens": Network(Sentences, lambda n: (torch.randint(1000, (n, 8 * n)),), ({0: ("B", 1), 1: ("T", 8)},), 8),
    "vision transformer, height and width": Network(Patches, lambda n: (torch.randn(1, 3, 16 * n, 16 * n),), _PICTURE, 8),
    "decoder, cache": Network(Decoder, lambda n: (torch.full((1, 1), n), _cache(n), _cache(n)), ({}, {3: ("T", 1)}, {3: ("T", 1)}), 127),
}


def sizes_of(most: int) -> list[int]:
    """Return about ten sizes, from 1 to the largest."""
    return sorted({max(1, round(most * k / 9)) for k in range(10)})


def _calls(contender: str, name: str, threads: int, folder: Path) -> tuple[dict[int, Callable[..., Any]], float]:
    """Return what computes the network at each size, and the seconds that one build takes, of the largest size where there are several."""
    network = NETWORKS[name]
    torch.manual_seed(0)
    model, sizes = network.make().eval(), sizes_of(network.most)
    if contender in ("static", "dynamic"):
        loaded(nn.Linear(1, 1), (torch.zeros(1, 1),), Path(tempfile.mkdtemp(dir=folder)))  # imports and the compiler's start are no one's
    start = time.process_time()
    if contender == "static":
        found = {}
        for n in sizes:
            start = time.process_time()
            (folder / str(n)).mkdir()
            found[n] = loaded(model, network.inputs(n), folder / str(n))
        return found, time.process_time() - start
    if contender == "dynamic":
        import dycl_tvm

        call = loaded(model, network.inputs(network.most), folder, dynamic_shapes=network.shapes(dycl_tvm.Dim))
    else:
        path = str(folder / "net.onnx")
        example, shapes = network.inputs(max(2, network.most // 2)), network.shapes(torch.export.Dim)
        torch.onnx.export(model, example, path, dynamic_shapes=shapes, dynamo=True, verbose=False)
        call = (_onnxruntime if contender == "onnxruntime" else _openvino)(path, threads)
    return dict.fromkeys(sizes, call), time.process_time() - start


def _onnxruntime(path: str, threads: int) -> Callable[..., Any]:
    session = onnxruntime_session(Path(path), threads)
    names = [i.name for i in session.get_inputs()]
    return lambda *given: session.run(None, {name: x.numpy() for name, x in zip(names, given)})


def _openvino(path: str, threads: int) -> Callable[..., Any]:
    import openvino

    exact = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(path, "CPU", exact).create_infer_request()
    return lambda *given: list(request.infer([x.numpy() for x in given], share_inputs=True).values())


def _first(got: Any) -> torch.Tensor:
    return torch.as_tensor(got[0] if isinstance(got, (list, tuple)) else got)


def _work(connection: Any, contender: str, network: str, threads: int) -> None:
    """Build, say so, and then measure all sizes for each message that comes."""
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    of = NETWORKS[network]
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.environ["DYCL_CACHE_DIR"] = f"{folder}/cache"  # builds are to be whole
            calls, seconds = _calls(contender, network, threads, Path(folder))
            torch.manual_seed(0)
            model = of.make().eval()
            given = {n: of.inputs(n) for n in calls}
            with torch.no_grad():
                for n, call in calls.items():
                    torch.testing.assert_close(_first(call(*given[n])), _first(model(*given[n])), rtol=1e-3, atol=1e-4)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            connection.send((seconds, memory))
        except Exception as error:
            connection.send(in_brief(error))
            return
        while connection.recv():
            times: dict[int, list[tuple[float, float]]] = {n: [] for n in calls}
            for _ in range(8):
                for n, call in calls.items():  # another size at each call, and the same once more
                    clocks = [clock()]
                    for _ in range(2):
                        call(*given[n])
                        clocks.append(clock())
                    times[n].append((clocks[1] - clocks[0], clocks[2] - clocks[1]))
            connection.send({n: tuple(map(statistics.median, zip(*t))) for n, t in times.items()})


def measure(network: str, rounds: int, threads: int, contenders: Sequence[str]) -> None:
    """Print the table of a network."""
    os.environ["DYCL_NUM_THREADS"] = str(threads)
    print(f"\n{network}: float32, {threads} thread{'s' if threads > 1 else ''}", flush=True)
    said, found = take_turns(_work, {c: (c, network, threads) for c in contenders}, rounds)
    for c, of in said.items():
        if isinstance(of, str):
            print(f"  {c} takes no part: {of}")
        else:
            print(f"  {c}: {of[0]:.1f} s to build (export to ONNX counts), {of[1]:.0f} MiB at most")
    if "dynamic" not in found:
        return
    others = [c for c in found if c != "dynamic"]
    # a static build has run at its size just before; a peer has not
    again = {c: int(c == "static") for c in found}
    median = {c: {n: [statistics.median(r[n][k] for r in runs) for k in range(2)] for n in runs[0]} for c, runs in found.items()}
    print(f"  {'size':>5}" + "".join(f"{c:>13}" for c in found) + "".join(f"{'/ ' + c:>15}" for c in others))
    for n in median["dynamic"]:
        ratios = [median[c][n][again[c]] / median["dynamic"][n][again[c]] for c in others]
        times = [1e6 * median[c][n][again[c]] for c in found]
        print(f"  {n:>5}" + "".join(f"{t:>13.0f}" for t in times) + "".join(f"{r:>14.2f}x" for r in ratios))
    for c in others:
        ratios = [median[c][n][again[c]] / median["dynamic"][n][again[c]] for n in median["dynamic"]]
        print(f"  dynamic is {geometric_mean(ratios):.2f} times as fast as {c} (geometric mean), at worst {min(ratios):.2f} times")


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
    contenders = [c for c in _CONTENDERS if c in ("dynamic", "static") or importlib.util.find_spec(c)]
    for network in given.networks:
        measure(network, given.rounds, given.threads, contenders)


if __name__ == "__main__":
    main()
