# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Cost of a call from Python: microseconds beyond the same call in C, through the extension module and through ctypes.

The network adds two tensors of 16 numbers, so a call is nothing but a call. C copies the result too. All ways take turns, and the best of
many short turns counts.

    python benchmarks/calls.py [--turns N]
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dycl_tvm
from dycl_tvm.codegen import toolchain
from dycl_tvm.runtime import Module, calls, load

_SOURCE = """
#include <string.h>
#include "dycl/dycl.h"
using Run = decltype(&dycl_run_with);
using Output = decltype(&dycl_output);
extern "C" int turn(Run run, Output output, DyclSession* session, const DyclValue* values, void* to, size_t bytes, int calls) {
  int32_t site = 0;
  DyclValue result;
  for (int k = 0; k < calls; ++k) {
    if (run(session, values, 1, nullptr, &site) != 0 || output(session, 0, &result) != 0) return 1;
    memcpy(to, result.u.tensor->data, bytes);
  }
  return 0;
}
"""
#: Calls of one turn: few, so that some turns are not interrupted on a busy machine.
_CALLS = 300


class Double(torch.nn.Module):
    """The least that a network can do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return twice the input."""
        return x + x


def in_c(module: Module, x: np.ndarray[Any, Any], folder: Path) -> Callable[[], None]:
    """Return what makes one turn of calls in C."""
    source, library = folder / "turn.cc", folder / "turn.so"
    source.write_text(_SOURCE)
    toolchain.find_compiler().run(["-O2", "-shared", "-fPIC", *toolchain.include_flags(), str(source), "-o", str(library)], "compile")
    turn = ctypes.CDLL(str(library)).turn
    inputs, result = module._inputs, np.empty_like(x)
    inputs.fill([inputs.prepared(0, x)])
    functions = [ctypes.cast(f, ctypes.c_void_p) for f in (module._library.dycl_run_with, module._library.dycl_output)]
    size = ctypes.c_size_t(x.nbytes)
    return lambda: turn(*functions, module._session, inputs.values, ctypes.c_void_p(result.ctypes.data), size, _CALLS)


def in_python(call: Callable[[Any], Any], x: Any) -> Callable[[], None]:
    """Return what makes one turn of calls in Python."""

    def turn() -> None:
        for _ in range(_CALLS):
            call(x)

    return turn


def measure(turns: int) -> dict[str, float]:
    """Return the microseconds of one call, by the way that it takes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        artifact = dycl_tvm.build(Double(), torch.zeros(1, 16), target="native", verify="off")
        library = artifact.export_library(folder / "double.so", embed_params=True)
        array = np.arange(16, dtype="float32").reshape(1, 16)
        tensor = torch.from_numpy(array.copy())
        ways = {"C": in_c(load(library, num_threads=1), array, folder)}
        extension = calls._extension
        for what in ("the extension", "ctypes"):
            if what == "ctypes":
                calls._extension = None
            elif extension is None:
                continue
            module = load(library, num_threads=1)
            ways[f"NumPy, {what}"] = in_python(module, array)
            ways[f"NumPy, {what}, bind"] = in_python(module.bind(out=np.empty_like(array)), array)
            ways[f"PyTorch, {what}"] = in_python(module, tensor)
            ways[f"PyTorch, {what}, bind"] = in_python(module.bind(out=torch.empty_like(tensor)), tensor)
        calls._extension = extension
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(turns):
            for way, turn in ways.items():
                start = time.perf_counter_ns()
                turn()
                best[way] = min(best[way], (time.perf_counter_ns() - start) / _CALLS / 1000)
        return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--turns", type=int, default=200, help=f"of {_CALLS} calls, for each way")
    best = measure(parser.parse_args().turns)
    print(f"{'us':>6} {'beyond C':>9}")
    for way, value in best.items():
        print(f"{value:6.2f} {value - best['C']:9.2f}  {way}")


if __name__ == "__main__":
    main()
