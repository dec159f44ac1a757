# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Who runs a network, each in a process of its own: compiled here, PyTorch, ONNX Runtime and OpenVINO.

In 8 bits the peers get the QDQ model that ONNX Runtime's quantiser makes, of the model that its preparation leaves, from the same
calibration inputs.
"""

from __future__ import annotations

import functools
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shared import in_another_process, in_brief, onnxruntime_session, take_turns

from real_size.networks import make

#: Seconds of one turn.
_TURN = 0.4
Run = Callable[[np.ndarray[Any, Any]], Any]


@dataclass
class Row:
    """What was measured of one network: by contender, and of those that could not run, why."""

    milliseconds: dict[str, float]
    megabytes: dict[str, float]
    missing: dict[str, str]


def _build(precision: str, name: str, batch: int, folder: Path) -> None:
    import dycl_tvm

    model, inputs = make(name, batch)
    if precision == "int8":
        art = dycl_tvm.build(dycl_tvm.quantize(model, inputs), target="native", verify="off")
    else:
        accuracy = "bf16" if precision == "bf16" else "default"
        art = dycl_tvm.build(model, (inputs[0],), target="native", verify="off", accuracy=accuracy)
    art.export_library(folder / "model.so")
    art.save_params(folder / "model.params")


def _load(name: str, batch: int, threads: int, folder: Path) -> Run:
    import dycl_tvm

    return dycl_tvm.load(folder / "model.so", folder / "model.params", num_threads=threads)


def _nothing(name: str, batch: int, folder: Path) -> None:
    """Prepare nothing."""


def _pytorch(name: str, batch: int, threads: int, folder: Path) -> Run:
    model, _ = make(name, batch)

    def run(x: np.ndarray[Any, Any]) -> Any:
        with torch.inference_mode():
            return model(torch.from_numpy(x))

    return run


def _onnx(name: str, batch: int, folder: Path) -> None:
    model, inputs = make(name, batch)
    torch.onnx.export(model, (inputs[0],), folder / "model.onnx", dynamo=False, input_names=["x"], opset_version=17)


def _qdq(name: str, batch: int, folder: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quant_pre_process, quantize_static

    rest = iter(make(name, batch)[1])

    class Reader(CalibrationDataReader):
        def get_next(self) -> Any:
            x = next(rest, None)
            return None if x is None else {"x": x.numpy()}

    _onnx(name, batch, folder)
    quant_pre_process(folder / "model.onnx", folder / "float.onnx", skip_symbolic_shape=True)
    quantize_static(
        folder / "float.onnx", folder / "model.onnx", Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip


def _onnxruntime(name: str, batch: int, threads: int, folder: Path) -> Run:
    session = onnxruntime_session(folder / "model.onnx", threads)
    return lambda x: session.run(None, {"x": x})


def _openvino(precision: str, name: str, batch: int, threads: int, folder: Path) -> Run:
    import openvino

    hints = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": precision}
    request = openvino.Core().compile_model(str(folder / "model.onnx"), "CPU", hints).create_infer_request()
    return lambda x: request.infer([x])


#: By precision who runs it: what writes files, of (name, batch, folder), in another process so that its memory does not count, and what
#: makes, of (name, batch, threads, folder), a function that runs an input.
PRECISIONS: dict[str, dict[str, tuple[Callable[[str, int, Path], None], Callable[[str, int, int, Path], Run]]]] = {
    "fp32": {
        "ours": (functools.partial(_build, "fp32"), _load),
        "pytorch": (_nothing, _pytorch),
        "onnxruntime": (_onnx, _onnxruntime),
        "openvino": (_onnx, functools.partial(_openvino, "f32")),
    },
    "bf16": {
        "ours": (functools.partial(_build, "bf16"), _load),
        "openvino": (_onnx, functools.partial(_openvino, "bf16")),
    },
    "int8": {
        "ours": (functools.partial(_build, "int8"), _load),
        "onnxruntime": (_qdq, _onnxruntime),
        "openvino": (_qdq, functools.partial(_openvino, "f32")),
    },
}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what libraries print in this process and those that it starts, unless it ends by an error of its own."""
    own = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        for stream in (1, 2):
            os.dup2(kept.fileno(), stream)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(own, kept.read())
            os.dup2(own, 2)  # for the error itself
            raise


def _worker(pipe: Any, contender: str, precision: str, name: str, batch: int, threads: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        prepare, load = PRECISIONS[precision][contender]
        try:
            in_another_process(prepare, name, batch, Path(folder))
            run = load(name, batch, threads, Path(folder))
        except Exception as error:  # a peer that is not installed, or that does not take the network
            pipe.send(in_brief(error))
            return
        x = make(name, batch)[1][0].numpy()
        for _ in range(3):
            run(x)
        pipe.send(())
        # the time of one thread is its own, that of several is what they take together
        clock = time.process_time if threads == 1 else time.perf_counter
        while pipe.recv():
            times, end = [], time.perf_counter() + _TURN
            while time.perf_counter() < end or len(times) < 3:
                start = clock()
                run(x)
                times.append(clock() - start)
            pipe.send((statistics.median(times), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def measure(name: str, precision: str, batch: int, threads: int, rounds: int) -> Row:
    """Return what the contenders of a precision take for a network."""
    said, found = take_turns(_worker, {c: (c, precision, name, batch, threads) for c in PRECISIONS[precision]}, rounds)
    return Row(
        {c: 1e3 * statistics.median(seconds for seconds, _ in turns) for c, turns in found.items()},
        {c: turns[-1][1] for c, turns in found.items()},
        {c: why for c, why in said.items() if isinstance(why, str)},
    )
