# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The zoo on the NVIDIA GPU of this machine: are the results right on many paths, and how long does a call take next to PyTorch.

Every network is built for the GPU's architecture, called on inputs that take different paths, and compared with eager on the CPU. Then the
contenders take turns on the same inputs: the artefact, eager on the GPU, and ``torch.compile`` with CUDA graphs; those of PyTorch
only if it is installed with CUDA. Last, random numbers are compared (``gpu_draws.py``). Ends in an error if a result is wrong, or if
there is no GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from gpu_draws import check_draws

import dycl_tvm
from dycl_tvm import zoo
from dycl_tvm.compare import difference

Load = Callable[["dycl_tvm.Artifact", Path], "dycl_tvm.Module"]


@dataclass
class Row:
    """One network: what was checked, and the median milliseconds of a call by contender."""

    name: str
    inputs: int
    paths: int
    wrong: list[str] = field(default_factory=list)
    milliseconds: dict[str, float] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def gpu_architecture() -> str:
    """Return the architecture of GPU 0, such as ``sm_87``.

    Raises
    ------
    RuntimeError
        If there is no NVIDIA driver or no GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RuntimeError(f"there is no NVIDIA driver on this machine ({error})") from None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    code = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
    code = code or driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
    code = code or driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    if code:
        raise RuntimeError(f"the NVIDIA driver finds no GPU that can be used (error {code})")
    return f"sm_{major.value}{minor.value}"


def write_and_load(artifact: dycl_tvm.Artifact, folder: Path) -> dycl_tvm.Module:
    """Write an artefact and load it."""
    return dycl_tvm.load(artifact.export_library(folder / "model.so"), artifact.save_params(folder / "model.params"))


def measure(name: str, arch: str, inputs: int, rounds: int, load: Load = write_and_load) -> Row:
    """Build a network, check it on all inputs, and time the contenders on them."""
    entry = zoo.load(name)
    calls = list(entry.inputs(inputs))
    with torch.no_grad():
        expected = [entry.model(*args) for args in calls]
    with tempfile.TemporaryDirectory() as folder:
        module = load(dycl_tvm.build(entry.model, entry.example_inputs, target=f"cuda -arch={arch}", host="llvm"), Path(folder))
        row = Row(name, inputs, 0)
        paths = set()
        for k, (args, want) in enumerate(zip(calls, expected)):
            found = difference(want, module(*args), rtol=1e-3)
            paths.add(module.last_path.key())
            if found is not None:
                row.wrong.append(f"input {k}: {found}")
        row.paths = len(paths)
        _time(row, _contenders(entry.model, module, calls, row), rounds)
    return row


def _contenders(model: Any, module: Any, calls: Sequence[tuple[Any, ...]], row: Row) -> dict[str, list[Callable[[], Any]]]:
    """Return for each contender its calls; each leaves nothing to wait for."""
    found = {"host tensors": [lambda a=args: module(*a) for args in calls]}
    if not torch.cuda.is_available():
        row.remarks.append("PyTorch has no CUDA here")
        return found
    there = [tuple(a.cuda() if isinstance(a, torch.Tensor) else a for a in args) for args in calls]
    found["GPU tensors"] = [lambda a=args: module(*a) for args in there]
    on_gpu = model.cuda()

    def waited(run: Any, args: tuple[Any, ...]) -> None:
        with torch.no_grad():
            run(*args)
        torch.cuda.synchronize()

    found["eager"] = [lambda a=args: waited(on_gpu, a) for args in there]
    try:
        compiled = torch.compile(on_gpu, mode="reduce-overhead")
        for args in there:
            waited(compiled, args)
        found["torch.compile"] = [lambda a=args: waited(compiled, a) for args in there]
    except Exception as error:  # what it cannot take is part of the result
        row.remarks.append(f"torch.compile: {type(error).__name__}")
    return found


def _time(row: Row, contenders: dict[str, list[Callable[[], Any]]], rounds: int) -> None:
    """Let the contenders take turns; the first rounds warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 3):
        for name, calls in contenders.items():
            for call in calls:
                start = time.perf_counter()
                call()
                if turn >= 3:
                    seconds[name].append(time.perf_counter() - start)
    row.milliseconds = {name: 1000 * statistics.median(values) for name, values in seconds.items()}


def table(rows: Sequence[Row], arch: str) -> str:
    """Return the results as a table in Markdown."""
    columns = ["host tensors", "GPU tensors", "eager", "torch.compile"]
    lines = [
        f"Batch 1 on {arch}, median milliseconds of a call over inputs that take different paths. The first two columns are artefacts.",
        "",
        f"| network | results | paths | {' | '.join(columns)} | faster than the best of PyTorch |",
        "|---|---|---|" + "---|" * (len(columns) + 1),
    ]
    for row in rows:
        times = [f"{row.milliseconds[c]:.3f}" if c in row.milliseconds else "" for c in columns]
        ours = min((row.milliseconds[c] for c in columns[:2] if c in row.milliseconds), default=None)
        theirs = min((row.milliseconds[c] for c in columns[2:] if c in row.milliseconds), default=None)
        ratio = f"{theirs / ours:.2f}" if ours and theirs else ""
        state = "right" if not row.wrong else f"{len(row.wrong)} of {row.inputs} WRONG"
        remarks = f" ({'; '.join(row.remarks)})" if row.remarks else ""
        lines.append(f"| {row.name}{remarks} | {state} | {row.paths} | {' | '.join(times)} | {ratio} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; the exit status is 1 without a GPU or with a wrong result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=zoo.names(), choices=zoo.names(), metavar="NAME")
    parser.add_argument("--inputs", type=int, default=32, help="inputs of each network")
    parser.add_argument("--rounds", type=int, default=20, help="timed calls of each input")
    parser.add_argument("--out", type=Path, default=Path("out/gpu.md"))
    options = parser.parse_args(arguments)
    try:
        arch = gpu_architecture()
    except RuntimeError as error:
        print(f"make gpu needs an NVIDIA GPU: {error}. Without one, `make test` runs the same kernels on an emulated one.", file=sys.stderr)
        return 1
    rows = []
    for name in options.networks:
        rows.append(measure(name, arch, options.inputs, options.rounds))
        print(f"{name}: {rows[-1].paths} paths, {rows[-1].wrong or 'right'}, {rows[-1].milliseconds}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        wrong, reference = check_draws(arch, Path(folder), write_and_load)
    text = f"{table(rows, arch)}\nRandom numbers, compared with {reference}: {'; '.join(wrong) or 'right'}\n"
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text)
    print(text)
    return 1 if wrong or any(row.wrong for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
