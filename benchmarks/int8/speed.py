# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Milliseconds of a call in int8, against float32 and against ONNX Runtime and OpenVINO on a model that the former quantised.

Each contender is a process; they take turns, so that what else the machine does meets all of them. A row has medians.

    python -m benchmarks.int8.speed [--networks NAME ...] [--rounds N] [--threads N]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.int8.networks import NETWORKS, make

CONTENDERS = ("float32", "int8", "onnxruntime", "openvino")
#: Seconds of one turn.
_TURN = 0.4


def _ours(name: str, threads: int, quantised: bool, folder: Path) -> Callable[[Any], Any]:
    import dycl_tvm

    model, inputs = make(name)
    if quantised:
        art = dycl_tvm.build(dycl_tvm.quantize(model, inputs), target="native", verify="off")
    else:
        art = dycl_tvm.build(model, (inputs[0],), target="native", verify="off")
    art.export_library(folder / "model.so")
    art.save_params(folder / "model.params")
    module = dycl_tvm.load(folder / "model.so", folder / "model.params", num_threads=threads)
    print(art.report(), flush=True)
    return lambda x: module(x)


def _qdq(name: str, folder: Path) -> Path:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    model, inputs = make(name)
    torch.onnx.export(model, (inputs[0],), folder / "float.onnx", dynamo=False, input_names=["x"], opset_version=17)

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rest = iter(inputs)

        def get_next(self) -> Any:
            x = next(self.rest, None)
            return None if x is None else {"x": x.numpy()}

    quantize_static(
        folder / "float.onnx", folder / "int8.onnx", Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    return folder / "int8.onnx"


def _onnxruntime(name: str, threads: int, folder: Path) -> Callable[[Any], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(_qdq(name, folder), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})


def _openvino(name: str, threads: int, folder: Path) -> Callable[[Any], Any]:
    import openvino

    hints = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
    request = openvino.Core().compile_model(str(_qdq(name, folder)), "CPU", hints).create_infer_request()
    return lambda x: request.infer([x])


def _worker(contender: str, name: str, threads: int, pipe: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        try:
            if contender in ("float32", "int8"):
                run = _ours(name, threads, contender == "int8", folder)
            else:
                run = (_onnxruntime if contender == "onnxruntime" else _openvino)(name, threads, folder)
        except ImportError as missing:
            pipe.send(str(missing))
            return
        x = make(name)[1][0].numpy()
        for _ in range(3):
            run(x)
        pipe.send(None)
        while pipe.recv():
            times, end = [], time.perf_counter() + _TURN
            while time.perf_counter() < end or len(times) < 3:
                start = time.perf_counter()
                run(x)
                times.append(time.perf_counter() - start)
            pipe.send(float(np.median(times)))


def measure(name: str, rounds: int, threads: int, contenders: tuple[str, ...] = CONTENDERS) -> dict[str, float]:
    """Return the median of the rounds' medians, in milliseconds, of each contender that is installed."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Any] = {}
    for contender in contenders:
        ours, theirs = context.Pipe()
        context.Process(target=_worker, args=(contender, name, threads, theirs), daemon=True).start()
        missing = ours.recv()
        if missing is None:
            pipes[contender] = ours
        else:
            print(f"{contender}: {missing}")
    found: dict[str, list[float]] = {c: [] for c in pipes}
    for _ in range(rounds):
        for contender, pipe in pipes.items():
            pipe.send(True)
            found[contender].append(pipe.recv())
    for pipe in pipes.values():
        pipe.send(False)
    return {c: 1e3 * statistics.median(times) for c, times in found.items()}


def main() -> None:
    """Print a row a network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--contenders", nargs="*", default=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    for name in args.networks:
        row = measure(name, args.rounds, args.threads, tuple(args.contenders))
        print(f"{name}: " + ", ".join(f"{c} {t:.2f}" for c, t in row.items()), flush=True)


if __name__ == "__main__":
    main()
