# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The dispatch-bound case: an early-exit MLP of 6 stages, 128 wide, so small that what is between the kernels counts.

    python -m speed.dispatch_bound WORK OUT.json [--rounds 15]

All with one thread (no layer is worth two), in one process, taking turns. dycl_run() is timed by a loop in C. ONNX Runtime and
AOTInductor are called from Python by the shortest way that their packages have; what that way costs is measured with a model
that does nothing, and is shown taken off. What AOTInductor runs must have been compiled by :func:`build_peers`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dycl_tvm
from dycl_tvm.compare import difference
from speed.contenders import ready

STAGES, WIDTH, CLASSES, CONFIDENT = 6, 128, 10, 0.9


class EarlyExitMLP(nn.Module):
    """Leaves at the first stage whose classifier is confident."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(STAGES))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(STAGES))

    def forward(self, x: Tensor) -> Tensor:
        for k in range(STAGES - 1):
            x = torch.relu(self.stages[k](x))
            logits = self.heads[k](x)
            if torch.softmax(logits, -1).max() > CONFIDENT:
                return logits
        return self.heads[-1](torch.relu(self.stages[-1](x)))


class CondMLP(nn.Module):
    """The same by ``torch.cond``, for AOTInductor."""

    def __init__(self, model: EarlyExitMLP) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.stage(0, x)

    def stage(self, k: int, x: Tensor) -> Tensor:
        x = torch.relu(self.model.stages[k](x))
        logits = self.model.heads[k](x)
        if k == STAGES - 1:
            return logits
        confident = torch.softmax(logits, -1).max() > CONFIDENT
        return torch.cond(confident, lambda x, logits: logits.clone(), lambda x, logits: self.stage(k + 1, x), (x, logits))


class Nothing(nn.Module):
    """What a call costs when there is nothing to do."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1] + 1


def inputs() -> dict[str, Tensor]:
    """Return an input that leaves at the first exit, and one that goes all the way."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, WIDTH, generator=generator)
    return {"exit 1": 200 * x, "full path": 0.01 * x}


def median(call: Callable[[], Any], calls: int = 200) -> float:
    """Return the median nanoseconds of a call from Python."""
    clock, times = time.perf_counter_ns, []
    for _ in range(calls):
        begin = clock()
        call()
        times.append(clock() - begin)
    return statistics.median(times)


def ours(model: nn.Module, work: Path) -> tuple[Any, Callable[[Tensor], Callable[[], float]]]:
    """Return the artefact, and a function from an input to the nanoseconds of a call."""
    artifact = dycl_tvm.build(model, torch.zeros(1, WIDTH), target="native")
    artifact.export_library(work / "mlp.so")
    artifact.save_params(work / "mlp.params")
    loop_file = work / "loop.so"
    source = Path(__file__).with_name("loop.c")
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", str(source), "-o", str(loop_file)], check=True, timeout=60)
    time_calls = ctypes.CDLL(str(loop_file)).time_calls
    time_calls.restype = ctypes.c_double
    time_calls.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
    module = dycl_tvm.load(work / "mlp.so", work / "mlp.params", 1)

    def timed(x: Tensor) -> Callable[[], float]:
        wrong = difference(model(x), module(x), 1e-4)
        assert wrong is None, wrong
        values, count, keep = ready(module, (x,))
        run = ctypes.cast(module._library.dycl_run, ctypes.c_void_p)

        def once(_keep: Any = keep) -> float:
            return float(time_calls(run, module._session, values, count, 500))

        return once

    return artifact, timed


def onnx_runtime(file: Path, x: Tensor, expected: Any, threads: int = 1) -> Callable[[], float]:
    """Return what times a call of an ONNX model with bound input and outputs; ``expected`` is compared with its result."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x.numpy())
    name = session.get_inputs()[0].name
    binding.bind_ortvalue_input(name, value)
    found = session.run(None, {name: x.numpy()})
    bound = [onnxruntime.OrtValue.ortvalue_from_numpy(v) for v in found]
    for output, place in zip(session.get_outputs(), bound):
        binding.bind_ortvalue_output(output.name, place)
    session.run_with_iobinding(binding)
    assert any(difference(expected, v.numpy(), 1e-4) is None for v in bound), "wrong result of ONNX Runtime"
    run = session.run_with_iobinding
    return lambda: median(lambda: run(binding))


def build_peers(work: Path) -> None:
    """Compile what AOTInductor runs: the MLP, and the model that does nothing."""
    import torch._inductor as inductor
    from torch._inductor import config

    config.freezing = True
    work.mkdir(parents=True, exist_ok=True)
    for module, name in ((CondMLP(make_model()), "mlp"), (Nothing(), "nothing")):
        with torch.no_grad():
            program = torch.export.export(module, (torch.zeros(1, WIDTH),))
            inductor.aoti_compile_and_package(program, package_path=str(work / f"{name}.pt2"))


def make_model() -> EarlyExitMLP:
    """Return the MLP, with the same weights each time."""
    torch.manual_seed(0)
    return EarlyExitMLP().eval().requires_grad_(False)


def aot_inductor(package: Path) -> Callable[[Tensor, Any], Callable[[], float]]:
    """Load a package; return a function from an input and the expected result to what times a call."""
    import torch._inductor as inductor

    loader = inductor.aoti_load_package(str(package)).loader

    def timed(x: Tensor, expected: Any) -> Callable[[], float]:
        wrong = difference(expected, loader.boxed_run([x])[0], 1e-4)
        assert wrong is None, wrong
        return lambda: median(lambda: loader.boxed_run([x]))

    return timed


def measure(work: Path, rounds: int) -> dict[str, Any]:
    """Return the table."""
    work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    model = make_model()
    columns = ["dycl-tvm", "ONNX Runtime, nested If", "less the call", "AOTInductor, torch.cond", "less the call"]
    artifact, timed = ours(model, work)
    ready: dict[tuple[str, str], Callable[[], float]] = {}
    failed: dict[str, str] = {}
    given = inputs()
    expected = {row: model(x) for row, x in given.items()}
    ready.update({(row, "ours"): timed(x) for row, x in given.items()})
    nothing = Nothing()
    x = torch.zeros(1, WIDTH)
    try:
        dycl_tvm.build(nothing, x).export_onnx(work / "nothing.onnx")
        artifact.export_onnx(work / "mlp.onnx")
        ready.update({(row, "ort"): onnx_runtime(work / "mlp.onnx", v, expected[row]) for row, v in given.items()})
        ready["call", "ort"] = onnx_runtime(work / "nothing.onnx", x, nothing(x))
    except Exception as error:
        failed["ort"] = f"failed: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
    try:
        compiled = aot_inductor(work / "mlp.pt2")
        ready.update({(row, "aoti"): compiled(v, expected[row]) for row, v in given.items()})
        ready["call", "aoti"] = aot_inductor(work / "nothing.pt2")(x, nothing(x))
    except Exception as error:
        failed["aoti"] = f"failed: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
    samples: dict[tuple[str, str], list[float]] = {key: [] for key in ready}
    for _ in range(rounds):
        for key, call in ready.items():
            samples[key].append(call())
    best = {key: statistics.median(values) for key, values in samples.items()}
    rows: dict[str, list[Any]] = {}
    for row in given:
        cells: list[Any] = [best[row, "ours"]]
        for peer in ("ort", "aoti"):
            cells += [failed[peer]] * 2 if peer in failed else [best[row, peer], best[row, peer] - best["call", peer]]
        rows[row] = cells
    spent = [f"{best['call', p] / 1000:.2f} µs for {n}" for p, n in (("ort", "ONNX Runtime"), ("aoti", "AOTInductor")) if p not in failed]
    how = (
        "One thread, one process, taking turns. dycl-tvm: `dycl_run` in a loop in C. The peers are called from Python by their shortest "
        "way (bound inputs and outputs; the package loader's `boxed_run`); *less the call* is without what a model that does nothing "
        f"takes that way: {', '.join(spent)}."
    )
    return {"columns": columns, "rows": rows, "how": how}


def main() -> None:
    """Measure and write the JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    args.out.write_text(json.dumps(measure(args.work, args.rounds)))


if __name__ == "__main__":
    main()
