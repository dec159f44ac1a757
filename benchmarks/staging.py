# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What staging costs: CPU milliseconds for networks of 1,000 branches and for those of the zoo, next to another version of the project.

Each version runs in a process of its own. The processes take turns, so that other work on the machine meets both alike; medians.

    python benchmarks/staging.py [--against CHECKOUT] [--rounds N] [NETWORK ...]
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_BRANCHES = 1000
_GROWING = ("SkipGates", "Exits", "Nested")


def _staging_of(name: str) -> Callable[[], Any]:
    """Make a network, and return what stages it."""
    from dycl_tvm import zoo
    from dycl_tvm.frontend.python import stage

    if name not in _GROWING:
        entry = zoo.load(name)
        return lambda: stage(entry.model, entry.example_inputs)
    spec = importlib.util.spec_from_file_location("test_cost", _ROOT / "tests/python/frontend/test_cost.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    model = getattr(made, name)(_BRANCHES).eval()
    return lambda: stage(model, made.X)


def _serve() -> None:
    """Stage the network that each line of the input names, and answer with the seconds."""
    import torch

    torch.set_num_threads(1)
    known = ""
    for line in sys.stdin:
        if line != known:
            known, run = line, _staging_of(line.strip())
            run()  # the first staging of a network pays for imports and for parsing its source
        gc.collect()
        start = time.process_time()
        run()
        print(time.process_time() - start, flush=True)


class _Version:
    """A version of the project, in a process of its own."""

    def __init__(self, checkout: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout / "python"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--serve"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def seconds(self, name: str) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(name, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"{name} could not be staged")
        return float(answer)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"{', '.join(_GROWING)}, or a network of the zoo; all of them")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="a checkout of the version to compare with")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each network is staged")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve()
        return
    from dycl_tvm import zoo

    versions = [_Version(_ROOT), *([_Version(options.against.resolve())] if options.against else [])]
    print(f"{'network':24} {'ms':>8}" + (f" {'before':>8} {'ratio':>6}" if options.against else ""))
    for name in options.networks or [*_GROWING, *zoo.names()]:
        taken = zip(*[[version.seconds(name) for version in versions] for _ in range(options.rounds)])
        medians = [statistics.median(seconds) for seconds in taken]
        line = f"{name:24}" + "".join([f" {1e3 * seconds:8.1f}" for seconds in medians])
        print(line + (f" {medians[0] / medians[1]:6.2f}" if len(medians) > 1 else ""), flush=True)


if __name__ == "__main__":
    _main()
