# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Compiles an early-exit network, runs inputs that leave at different exits, and compares each with PyTorch.

Ends with 0 if all agree.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import dycl_tvm
from dycl_tvm.compare import difference, relative_error

NETWORK = "sdn_mobilenet"
PER_EXIT = 2  # inputs shown for each exit
CANDIDATES = 48  # inputs among which they are looked for


def main() -> int:
    """Run the demonstration."""
    entry = dycl_tvm.zoo.load(NETWORK)
    print(f"{entry.name}: {entry.description}")
    print("The forward is ordinary PyTorch: it loops over its blocks and returns as soon as an exit is confident.\n")

    artifact = dycl_tvm.build(entry.model, entry.example_inputs, target="native", name=entry.name, progress=True)
    with tempfile.TemporaryDirectory() as folder:
        library = artifact.export_library(Path(folder) / "model.so")
        params = artifact.save_params(Path(folder) / "model.params")
        print(f"\n{artifact.report()}")
        print(f"  {'files':<13}{library.name} {library.stat().st_size:,} bytes, {params.name} {params.stat().st_size:,} bytes\n")
        return compare(entry, dycl_tvm.load(library, params))


def compare(entry: Any, module: Any) -> int:
    """Print one line for each input; return the exit code."""
    row = "{:>4}  {:>4}  {:>5}  {:>9}  {:>7}  {:>9}  {:>9}  {}"
    print(row.format("exit", "sure", "class", "decisions", "kernels", "model.so", "PyTorch", "agrees with eager"))
    shown: dict[int, int] = {}
    wrong = 0
    for inputs in entry.inputs(CANDIDATES):
        expected = eager(entry.model, *inputs)
        scores, exit_number, sure = expected
        shown[exit_number] = shown.get(exit_number, 0) + 1
        if shown[exit_number] > PER_EXIT:
            continue
        actual = module(*inputs)
        decisions, kernels = len(module.last_path.branches), sum(module.kernels_run.values())
        found = difference(expected, actual)
        wrong += found is not None
        ours, theirs = (f"{1e3 * latency(*call):.2f} ms" for call in ((module, *inputs), (eager, entry.model, *inputs)))
        verdict = found or f"yes, relative error {relative_error(expected, actual):.0e}"
        print(row.format(exit_number, "yes" if sure else "no", int(scores.argmax()), decisions, kernels, ours, theirs, verdict))
    print(f"\nThe path of the last input:\n{module.last_path}")
    if len(shown) < 2:
        print("all inputs left at the same exit", file=sys.stderr)
    if wrong:
        print(f"{wrong} inputs disagree with eager", file=sys.stderr)
    return 1 if wrong or len(shown) < 2 else 0


@torch.no_grad()
def eager(model: torch.nn.Module, *inputs: Any) -> Any:
    """Run PyTorch."""
    return model(*inputs)


def latency(call: Callable[..., Any], *args: Any) -> float:
    """Return the seconds of a call when nothing disturbs it: the best of several."""
    seconds = []
    for _ in range(7):
        begin = time.perf_counter()
        call(*args)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


if __name__ == "__main__":
    sys.exit(main())
