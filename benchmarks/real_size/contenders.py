# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Who runs a network, each in a process of its own: compiled here, PyTorch, ONNX Runtime and OpenVINO.

In 8 bits the peers get the QDQ model that ONNX Runtime's quantiser makes, of the model that its preparation leaves, from the same
calibration inputs.
"""

from __future__ import annotations

import functools
import os
import pickle
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

from dycl_tvm.compare import difference
from real_size.networks import make

#: Seconds of one turn.
_TURN = 0.4
#: Bound on the relative error of a result that may be timed, of float32: engines sum in other orders, over a hundred layers.
_TOLERANCE = 2e-3
Run = Callable[..., Any]


@dataclass
class Row:
    """What was measured of one network: by contender, and of those that could not run, why.

    Attributes
    ----------
    milliseconds, megabytes : dict
        Of a call, and the peak of its process.
    seconds, building : dict
        Until a network is ready (written, compiled and loaded), and the peak of memory in megabytes of the process that wrote it.
    """

    milliseconds: dict[str, float]
    megabytes: dict[str, float]
    seconds: dict[str, float]
    building: dict[str, float]
    missing: dict[str, str]


def _build(precision: str, name: str, batch: int, folder: Path) -> None:
    import dycl_tvm

    model, inputs = make(name, batch)
    if precision == "int8":
        art = dycl_tvm.build(dycl_tvm.quantize(model, inputs), target="native", verify="off")
    else:
        accuracy = "bf16" if precision == "bf16" else "default"
        art = dycl_tvm.build(model, inputs[0], target="native", verify="off", accuracy=accuracy)
    art.export_library(folder / "model.so")
    art.save_params(folder / "model.params")


def _load(name: str, batch: int, threads: int, folder: Path) -> Run:
    import dycl_tvm

    return dycl_tvm.load(folder / "model.so", folder / "model.params", num_threads=threads)


def _nothing(name: str, batch: int, folder: Path) -> None:
    """Prepare nothing."""


def _pytorch(name: str, batch: int, threads: int, folder: Path) -> Run:
    model, _ = make(name, batch)

    return eager(model)


def eager(model: Any) -> Run:
    """Return what runs a model of PyTorch."""

    def run(*inputs: np.ndarray[Any, Any]) -> Any:
        with torch.inference_mode():
            return model(*map(torch.from_numpy, inputs))

    return run


def _onnx(name: str, batch: int, folder: Path) -> None:
    model, inputs = make(name, batch)
    names = [f"x{k}" for k in range(len(inputs[0]))]
    torch.onnx.export(model, inputs[0], folder / "model.onnx", dynamo=False, input_names=names, opset_version=17)


def _qdq(name: str, batch: int, folder: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quant_pre_process, quantize_static

    rest = iter(make(name, batch)[1])

    class Reader(CalibrationDataReader):
        def get_next(self) -> Any:
            x = next(rest, None)
            return None if x is None else {f"x{k}": t.numpy() for k, t in enumerate(x)}

    _onnx(name, batch, folder)
    quant_pre_process(folder / "model.onnx", folder / "float.onnx", skip_symbolic_shape=True)
    quantize_static(
        folder / "float.onnx", folder / "model.onnx", Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip


def _onnxruntime(name: str, batch: int, threads: int, folder: Path) -> Run:
    return fed_onnxruntime(folder / "model.onnx", threads)


def fed_onnxruntime(model: Path, threads: int) -> Run:
    """Return what runs an ONNX model whose inputs are x0, x1, and so on, with ONNX Runtime."""
    session = onnxruntime_session(model, threads)
    return lambda *inputs: session.run(None, {f"x{k}": x for k, x in enumerate(inputs)})


def _openvino(precision: str, name: str, batch: int, threads: int, folder: Path) -> Run:
    return fed_openvino(folder / "model.onnx", threads, precision)


def fed_openvino(model: Path, threads: int, precision: str = "f32") -> Run:
    """Return what runs an ONNX model with OpenVINO."""
    import openvino

    hints = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": precision}
    request = openvino.Core().compile_model(str(model), "CPU", hints).create_infer_request()
    return lambda *inputs: list(request.infer(inputs).values())


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


def _prepare(prepare: Callable[[str, int, Path], None], name: str, batch: int, folder: Path) -> float:
    """Write the files of a contender, and what eager returns; return the peak of memory in megabytes of the first."""
    prepare(name, batch, folder)
    peak = peak_megabytes()  # before eager runs
    model, inputs = make(name, batch)
    with torch.inference_mode(), (folder / "expected.pickle").open("wb") as file:
        pickle.dump(model(*inputs[0]), file)
    return peak


def _worker(pipe: Any, contender: str, precision: str, name: str, batch: int, threads: int) -> None:
    with ready(threads), tempfile.TemporaryDirectory() as folder:
        prepare, load = PRECISIONS[precision][contender]
        inputs = [x.numpy() for x in make(name, batch)[1][0]]
        start = time.perf_counter()
        try:
            peak = in_another_process(_prepare, prepare, name, batch, Path(folder))
            run = load(name, batch, threads, Path(folder))
            seconds = time.perf_counter() - start
            if precision == "fp32":
                compare(pickle.loads((Path(folder) / "expected.pickle").read_bytes()), run(*inputs))
        except Exception as error:  # a peer that is not installed, or that does not take the network
            pipe.send(in_brief(error))
            return
        pipe.send((seconds, peak))
        serve(pipe, functools.partial(run, *inputs), threads)


@contextmanager
def ready(threads: int) -> Iterator[None]:
    """Let this process, that of one contender, use so many threads and print nothing."""
    os.environ["OMP_NUM_THREADS"] = os.environ["DYCL_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    with _quiet():
        yield


def compare(expected: Any, found: Any) -> None:
    """Raise an error if a result is not eager's, or its tensors in the same order are not."""
    wrong = difference(list(leaves(expected)), list(leaves(found)), _TOLERANCE)
    if wrong is not None:
        raise RuntimeError(f"wrong result: {wrong}")


def leaves(value: Any) -> Iterator[Any]:
    """Return the tensors and numbers of a structure."""
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        yield from leaves(part)
    if not isinstance(value, (dict, list, tuple)):
        yield value


def peak_megabytes() -> float:
    """Return the largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def serve(pipe: Any, call: Callable[[], Any], threads: int) -> None:
    """Send for each true value that comes the median seconds of a call, and the peak of memory in megabytes."""
    for _ in range(3):
        call()
    # the time of one thread is its own, that of several is what they take together
    clock = time.process_time if threads == 1 else time.perf_counter
    while pipe.recv():
        times, end = [], time.perf_counter() + _TURN
        while time.perf_counter() < end or len(times) < 3:
            start = clock()
            call()
            times.append(clock() - start)
        pipe.send((statistics.median(times), peak_megabytes()))


def row(said: dict[str, Any], found: dict[str, list[Any]]) -> Row:
    """Return what was measured, of what :func:`shared.take_turns` returns for workers that :func:`serve`."""
    return Row(
        {c: 1e3 * statistics.median(seconds for seconds, _ in turns) for c, turns in found.items()},
        {c: turns[-1][1] for c, turns in found.items()},
        {c: said[c][0] for c in found},
        {c: said[c][1] for c in found},
        {c: why for c, why in said.items() if isinstance(why, str)},
    )


def measure(name: str, precision: str, batch: int, threads: int, rounds: int) -> Row:
    """Return what the contenders of a precision take for a network."""
    return row(*take_turns(_worker, {c: (c, precision, name, batch, threads) for c in PRECISIONS[precision]}, rounds))
