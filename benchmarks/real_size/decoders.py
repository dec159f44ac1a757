# Licensed under the Apache License, Version 2.0; see LICENSE.
"""One token of a decoder whose weights are kept in 32, 8 and 4 bits, next to PyTorch, ONNX Runtime and OpenVINO.

All contenders are in one process and take turns, each on one thread; a cell is the median of the CPU time of calls, the size of the
weights on disk, and how many bytes of weights a second that is, each counted once, and
in percent of what PyTorch's sum of 256 MB reads in a turn of its own.
Results were compared before: of float32 with eager, ours of fewer bits with PyTorch on the same integers.
The networks are decoders of one token behind a cache, with random weights, which read all of them; and single products.

    PYTHONPATH=benchmarks python -m real_size.decoders [--networks NAME ...] [--precisions P ...] [--contenders WHO ...] [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from shared import onnxruntime_session
from torch import Tensor, nn
from torch.nn import functional

from real_size.contenders import compare
from real_size.networks import Inputs, make

Call = Callable[[], Any]


class _Norm(nn.Module):
    """Divides by the root of the mean square, in the operators that Llama has, which go to ONNX."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class _Layer(nn.Module):
    """A layer of Llama's: grouped heads with rotary places, a gated perceptron, each behind the root of the mean square."""

    def __init__(self, width: int, heads: int, kept: int, inner: int) -> None:
        super().__init__()
        self.size = width // heads
        self.norms = nn.ModuleList(_Norm(width) for _ in range(2))
        self.q, self.o = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, kept * self.size) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.norms[0](x)
        q, k, v = (p(y).unflatten(2, (-1, self.size)).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = (t * cos + torch.cat([-t[..., self.size // 2 :], t[..., : self.size // 2]], -1) * sin for t in (q, k))
        grouped = q.view(*k.shape[:2], -1, self.size)  # the heads that share keys are queries of one
        y = functional.scaled_dot_product_attention(grouped, torch.cat([keys, k], 2), torch.cat([values, v], 2))
        x = x + self.o(y.view(x.shape))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), k, v


class _Llama(nn.Module):
    """A token of a decoder with 0.5B parameters (Qwen2's smallest) behind others whose keys and values are known."""

    def __init__(self, tokens: int, width: int = 896, layers: int = 24, heads: int = 14, kept: int = 2, inner: int = 4864) -> None:
        super().__init__()
        self.table = nn.Embedding(151936, width)
        nn.init.normal_(self.table.weight, std=0.02)
        self.layers = nn.ModuleList(_Layer(width, heads, kept, inner) for _ in range(layers))
        self.norm = _Norm(width)
        angles = tokens * 1e6 ** -(torch.arange(0, 64, 2) / 64)
        self.register_buffer("cos", angles.cos().repeat(2))
        self.register_buffer("sin", angles.sin().repeat(2))

    def forward(self, token: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, new = self.table(token), []
        for layer, k, v in zip(self.layers, keys.unbind(), values.unbind()):
            x, *kept = layer(x, k, v, self.cos, self.sin)
            new.append(kept)
        return functional.linear(self.norm(x), self.table.weight), torch.stack([k for k, _ in new]), torch.stack([v for _, v in new])


def _product(inputs: int, outputs: int) -> tuple[nn.Module, Inputs]:
    return nn.Linear(inputs, outputs, bias=False), (torch.randn(1, inputs),)


def _llama(tokens: int) -> tuple[nn.Module, Inputs]:
    return _Llama(tokens), (torch.randint(0, 151936, (1, 1)), *(torch.randn(24, 1, 2, tokens, 64) for _ in range(2)))


def _gpt2() -> tuple[nn.Module, Inputs]:
    model, inputs = make("GPT-2 124M, a token behind 256")
    return model, inputs[0]


#: Name to what makes a network and its inputs.
NETWORKS: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    "768x3072": lambda: _product(768, 3072),
    "768x50257": lambda: _product(768, 50257),
    "4096x4096": lambda: _product(4096, 4096),
    "GPT-2 124M, a token behind 256": _gpt2,
    "Llama 0.5B, a token behind 256": lambda: _llama(256),
}
PRECISIONS = ("fp32", "int8", "int4")


def _ours(precision: str, model: nn.Module, x: Inputs, folder: Path) -> tuple[Call, Path]:
    import dycl_tvm

    reference: Any = model
    if precision == "fp32":
        art = dycl_tvm.build(model, x, target="native", verify="off")
    else:
        reference = dycl_tvm.quantize(model, [x], weights_only=precision)  # type: ignore[arg-type]
        art = dycl_tvm.build(reference, target="native", verify="off")
    params = art.save_params(folder / "model.params")
    module = dycl_tvm.load(art.export_library(folder / "model.so"), params, num_threads=1)
    with torch.inference_mode():
        compare(reference(*x), module(*x))
    return lambda: module(*x), params


def _pytorch(precision: str, model: nn.Module, x: Inputs, folder: Path) -> tuple[Call, Path]:
    if precision != "fp32":
        raise ValueError("has no such kernels without further packages")
    torch.save(model.state_dict(), folder / "model.pt")

    def run() -> Any:
        with torch.inference_mode():
            return model(*x)

    return run, folder / "model.pt"


def _onnx(model: nn.Module, x: Inputs, folder: Path) -> Path:
    names = [f"x{k}" for k in range(len(x))]
    torch.onnx.export(model, x, folder / "float.onnx", dynamo=False, input_names=names, opset_version=17)
    return folder / "float.onnx"


def _onnxruntime(precision: str, model: nn.Module, x: Inputs, folder: Path) -> tuple[Call, Path]:
    import onnx

    path = _onnx(model, x, folder)
    if precision != "fp32":
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        made = MatMulNBitsQuantizer(onnx.load(path), bits=int(precision[3:]), block_size=64, is_symmetric=True, accuracy_level=1)
        made.process()
        path = folder / "quantised.onnx"
        onnx.save(made.model.model, path)
    session = onnxruntime_session(path, 1)
    return lambda: session.run(None, {f"x{k}": t.numpy() for k, t in enumerate(x)}), path


def _openvino(precision: str, model: nn.Module, x: Inputs, folder: Path) -> tuple[Call, Path]:
    import openvino

    made = openvino.convert_model(model, example_input=x)  # a file of ONNX has no more than 2 GiB
    if precision != "fp32":
        import nncf

        mode = nncf.CompressWeightsMode.INT8_SYM if precision == "int8" else nncf.CompressWeightsMode.INT4_SYM
        made = nncf.compress_weights(made, mode=mode, **({} if precision == "int8" else {"group_size": 64, "all_layers": True}))
    openvino.save_model(made, folder / "model.xml", compress_to_fp16=False)
    hints = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(made, "CPU", hints).create_infer_request()
    return lambda: list(request.infer([t.numpy() for t in x]).values()), folder / "model.bin"


CONTENDERS = {"ours": _ours, "pytorch": _pytorch, "onnxruntime": _onnxruntime, "openvino": _openvino}


def _weights(model: nn.Module, precision: str) -> float:
    """Return the megabytes of the weights of products, each once: a step reads them all, and little else."""
    a_weight = {"fp32": 4.0, "int8": 1.0, "int4": 0.5 + 4 / 64}[precision]  # with a scale for each 64
    return sum(p.numel() for p in model.parameters() if p.dim() > 1) * a_weight / 1e6


def _clock(call: Call) -> float:
    """Return the CPU seconds of a call, of all threads of the process."""
    start = time.process_time()
    call()
    return time.process_time() - start


def measure(name: str, precisions: Sequence[str], contenders: Sequence[str], rounds: int) -> None:
    """Print a row for each contender of a network."""
    torch.manual_seed(0)
    model, x = NETWORKS[name]()
    model = model.eval().requires_grad_(False)
    with tempfile.TemporaryDirectory() as folder:
        calls: dict[tuple[str, str], Call] = {}
        sizes: dict[tuple[str, str], float] = {}
        for precision in precisions:
            for who in contenders:
                own = Path(folder) / f"{who} {precision}"
                own.mkdir()
                try:
                    calls[who, precision], path = CONTENDERS[who](precision, model, x, own)
                    if precision == "fp32":
                        with torch.inference_mode():
                            compare(model(*x), calls[who, precision]())
                except Exception as error:  # a peer that is not installed, or that does not take the network
                    calls.pop((who, precision), None)
                    print(f"| {name} | {precision} | {who}: {type(error).__name__}: {str(error).partition(chr(10))[0][:80]} |", flush=True)
                    continue
                sizes[who, precision] = path.stat().st_size / 1e6
        memory = torch.zeros(1 << 26)
        calls["sum", ""] = memory.sum
        times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
        for _ in range(rounds):
            for key, call in calls.items():
                times[key] += [_clock(call) for _ in range(3)]
    most = memory.nbytes / 1e9 / statistics.median(times.pop(("sum", "")))
    print(f"| {name} | | sum | | | | {most:.1f} GB/s |", flush=True)
    for (who, precision), found in times.items():
        size, own, whole = sizes[who, precision], statistics.median(found), statistics.median(times.get((who, "fp32"), found))
        rate = _weights(model, precision) / own / 1e3
        cells = [f"{1e3 * own:.3f} ms", f"{whole / own:.2f}", f"{size:.1f} MB", f"{rate:.1f} GB/s, {100 * rate / most:.0f} %"]
        print(f"| {name} | {precision} | {who} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(prog="real_size.decoders", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--precisions", nargs="*", default=PRECISIONS, choices=PRECISIONS)
    parser.add_argument("--contenders", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    head = ("network", "weights", "who", "CPU time", "faster than its fp32", "on disk", "weights a second")
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|", flush=True)
    for name in args.networks:
        measure(name, args.precisions, args.contenders, args.rounds)


if __name__ == "__main__":
    main()
