# Licensed under the Apache License, Version 2.0; see LICENSE.
"""One token of a decoder whose weights are kept in 32, 8 and 4 bits, next to PyTorch, ONNX Runtime and OpenVINO.

All contenders are in one process and take turns, each on one thread; a cell is the median of the CPU time of calls, and the size of the
weights on disk. The network is GPT-2 with 124M parameters and random weights, which reads all of them for a token; and single products.

    PYTHONPATH=benchmarks python -m real_size.decoders [--networks NAME ...] [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

Call = Callable[[], Any]


class _Step(nn.Module):
    """The numbers of the next token behind one."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        self.model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x, return_dict=False)[0]


def _product(inputs: int, outputs: int) -> tuple[nn.Module, torch.Tensor]:
    return nn.Linear(inputs, outputs, bias=False), torch.randn(1, inputs)


#: Name to what makes a network and its input.
NETWORKS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "768x3072": lambda: _product(768, 3072),
    "768x50257": lambda: _product(768, 50257),
    "4096x4096": lambda: _product(4096, 4096),
    "GPT-2 124M, a token": lambda: (_Step(), torch.randint(0, 50000, (1, 1))),
}
PRECISIONS = ("fp32", "int8", "int4")


def _ours(precision: str, model: nn.Module, x: torch.Tensor, folder: Path) -> tuple[Call, Path]:
    import dycl_tvm

    if precision == "fp32":
        art = dycl_tvm.build(model, (x,), target="native", verify="off")
    else:
        quantised = dycl_tvm.quantize(model, [x], weights_only=precision)  # type: ignore[arg-type]
        art = dycl_tvm.build(quantised, target="native", verify="off")
    params = art.save_params(folder / "model.params")
    module = dycl_tvm.load(art.export_library(folder / "model.so"), params, num_threads=1)
    return lambda: module(x), params


def _pytorch(precision: str, model: nn.Module, x: torch.Tensor, folder: Path) -> tuple[Call, Path]:
    if precision != "fp32":
        raise ValueError("has no such kernels without further packages")
    torch.save(model.state_dict(), folder / "model.pt")

    def run() -> Any:
        with torch.inference_mode():
            return model(x)

    return run, folder / "model.pt"


def _onnx(model: nn.Module, x: torch.Tensor, folder: Path) -> Path:
    torch.onnx.export(model, (x,), folder / "float.onnx", dynamo=False, input_names=["x"], opset_version=17)
    return folder / "float.onnx"


def _onnxruntime(precision: str, model: nn.Module, x: torch.Tensor, folder: Path) -> tuple[Call, Path]:
    import onnx
    import onnxruntime

    path = _onnx(model, x, folder)
    if precision != "fp32":
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        made = MatMulNBitsQuantizer(onnx.load(path), bits=int(precision[3:]), block_size=64, is_symmetric=True, accuracy_level=1)
        made.process()
        path = folder / "quantised.onnx"
        onnx.save(made.model.model, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x.numpy()}), path


def _openvino(precision: str, model: nn.Module, x: torch.Tensor, folder: Path) -> tuple[Call, Path]:
    import openvino

    made = openvino.Core().read_model(_onnx(model, x, folder))
    if precision != "fp32":
        import nncf

        mode = nncf.CompressWeightsMode.INT8_SYM if precision == "int8" else nncf.CompressWeightsMode.INT4_SYM
        made = nncf.compress_weights(made, mode=mode, **({} if precision == "int8" else {"group_size": 64, "all_layers": True}))
    openvino.save_model(made, folder / "model.xml", compress_to_fp16=False)
    hints = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(made, "CPU", hints).create_infer_request()
    return lambda: request.infer([x.numpy()]), folder / "model.bin"


CONTENDERS = {"ours": _ours, "pytorch": _pytorch, "onnxruntime": _onnxruntime, "openvino": _openvino}


def _clock(call: Call) -> float:
    """Return the CPU seconds of a call, of all threads of the process."""
    start = time.process_time()
    call()
    return time.process_time() - start


def measure(name: str, rounds: int) -> None:
    """Print a row for each contender of a network."""
    torch.manual_seed(0)
    model, x = NETWORKS[name]()
    model = model.eval().requires_grad_(False)
    with tempfile.TemporaryDirectory() as folder:
        calls: dict[tuple[str, str], Call] = {}
        sizes: dict[tuple[str, str], float] = {}
        for precision in PRECISIONS:
            for who, make in CONTENDERS.items():
                own = Path(folder) / f"{who} {precision}"
                own.mkdir()
                try:
                    calls[who, precision], path = make(precision, model, x, own)
                    calls[who, precision]()
                except Exception as error:  # a peer that is not installed, or that does not take the network
                    calls.pop((who, precision), None)
                    print(f"| {name} | {precision} | {who}: {type(error).__name__}: {str(error).partition(chr(10))[0][:80]} |", flush=True)
                    continue
                sizes[who, precision] = path.stat().st_size / 1e6
        times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
        for _ in range(rounds):
            for key, call in calls.items():
                times[key] += [_clock(call) for _ in range(3)]
    for (who, precision), found in times.items():
        own, whole = statistics.median(found), statistics.median(times.get((who, "fp32"), found))
        print(f"| {name} | {precision} | {who} | {1e3 * own:.3f} ms | {whole / own:.2f} | {sizes[who, precision]:.1f} MB |", flush=True)


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(prog="real_size.decoders", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| network | weights | who | CPU time | faster than its fp32 | on disk |\n|---|---|---|---|---|---|")
    for name in args.networks:
        measure(name, args.rounds)


if __name__ == "__main__":
    main()
