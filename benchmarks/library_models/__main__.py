# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``make models``: compile models that others have written, compare them with eager, and write docs/models.md.

    PYTHONPATH=benchmarks python -m library_models [--suites NAME,...] [--models PATTERN] [--built N] [--again STATE,...] [--page]

Each model has a process of its own, and its result is kept, so that a run that was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from library_models import SUITES, torchvision_cpu
from library_models.page import document
from library_models.results import Results

ROOT = Path(__file__).parents[2]


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="library_models", description="Compile models of public libraries and compare them with eager.")
    parser.add_argument("--suites", default=",".join(SUITES), help="names with commas between (default: all)")
    parser.add_argument("--models", default="*", metavar="PATTERN", help="those whose name fits, such as 'Bert*' (default: all)")
    parser.add_argument(
        "--built", type=int, metavar="N", help="build and load one in N; the others are staged and interpreted (default: 1)"
    )
    parser.add_argument("--again", default="", metavar="STATE,...", help="repeat those in these states, or 'all'")
    parser.add_argument("--limit", type=float, default=600.0, metavar="SECONDS", help="that one model may take (default 600)")
    parser.add_argument("--candidates", metavar="SUITE", help="print the names that the rule of a suite gives, and run nothing")
    parser.add_argument("--page", action="store_true", help="write the page of what is there, and run nothing")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "models", help="folder of the results")
    return parser.parse_args()


class Worker:
    """The process that runs models."""

    def __init__(self, variables: dict[str, str]) -> None:
        command = [sys.executable, "-m", "library_models.worker"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1, env=variables
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def run(self, suite: str, name: str, built: bool, limit: float) -> dict[str, Any]:
        """Run one model; what takes longer than ``limit`` seconds is ended."""
        assert self._process.stdin is not None
        print(suite, name, "built" if built else "staged", limit * 0.8, file=self._process.stdin, flush=True)
        process = int(self._lines.get())
        try:
            found = json.loads(self._lines.get(timeout=limit))
        except queue.Empty:
            os.killpg(process, signal.SIGKILL)
            self._lines.get()
            found = {"state": "too slow", "why": f"not ready after {limit:.0f} s"}
        return {"built": built, **found}


def main() -> None:
    """Run what is missing, and write the page."""
    asked = options()
    if asked.candidates:
        print(*SUITES[asked.candidates].candidates(), sep="\n")
        return
    results = Results(asked.work / "results.json")
    here = [str(Path(__file__).parents[1]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(here), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    variables = {"OMP_NUM_THREADS": "1", **variables, **torchvision_cpu.environment(asked.work / "torchvision")}
    again = set(asked.again.split(","))
    worker: Worker | None = None
    for suite in asked.suites.split(",") if not asked.page else ():
        names = SUITES[suite].names()
        if not names:
            print(f"{suite} is not installed", file=sys.stderr)
        for k, name in enumerate(names):
            built = k % (asked.built or 1) == 0
            known = results.of(suite).get(name)
            done = known is not None and (known["built"] or not built) and not again & {known["state"], "all"}
            if done or not fnmatch.fnmatch(name, asked.models):
                continue
            begin = time.monotonic()
            worker = worker or Worker(variables)
            found = worker.run(suite, name, built, asked.limit)
            results.put(suite, name, found)
            why = " ".join(found.get("why", "").split())
            print(
                f"{suite:14} {k + 1:4}/{len(names)} {name:44} {found['state']:9} {time.monotonic() - begin:6.1f} s  {why[:160]}", flush=True
            )
    for suite in SUITES:
        print(suite, dict(Counter(r["state"] for r in results.of(suite).values())))
    page = ROOT / "docs" / "models.md"
    page.write_text(document(results, page.read_text() if page.exists() else ""))


if __name__ == "__main__":
    main()
