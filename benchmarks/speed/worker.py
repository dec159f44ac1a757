# Licensed under the Apache License, Version 2.0; see LICENSE.
"""One contender in a process of its own: commands in JSON on stdin, an answer in JSON for each on stdout.

    {"do": "open", "contender": "ort", "folder": "...", "threads": 2}   -> {}
    {"do": "prepare", "k": 0, "compiled": 1}                            -> {}  after its result was compared with eager's
    {"do": "burst", "k": 0, "seconds": 0.1, "least": 3}                 -> {"ns": median of a call, "calls": number}

An answer with "error" says in one line why not.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from dycl_tvm.compare import difference
from speed.contenders import Call, Contender, make
from speed.units import read_record

#: Bound on the relative error of a result that may be timed: engines sum in other orders, over a hundred layers.
TOLERANCE = 2e-3


def burst(call: Call, seconds: float, least: int) -> tuple[float, int]:
    """Return the median nanoseconds of a call, and the number of calls that were timed."""
    clock = time.perf_counter_ns
    call()  # wakes the threads, fills the caches
    times = []
    end = clock() + int(seconds * 1e9)
    while len(times) < least or clock() < end:
        begin = clock()
        call()
        times.append(clock() - begin)
    return statistics.median(times), len(times)


class Worker:
    """Obeys the commands."""

    def __init__(self) -> None:
        self.contender: Contender | None = None
        self.name = ""
        self.calls: dict[int, Call] = {}

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """Run one command and return the answer."""
        if command["do"] == "open":
            self.name = command["contender"]
            self.contender = make(command["contender"], Path(command["folder"]), command["threads"])
            return {}
        assert self.contender is not None
        k = command["k"]
        if command["do"] == "prepare":
            if self.contender.slow:
                if k >= command.get("compiled", 0):
                    return {"left_out": True}
                record = read_record(self.contender.folder, f"{self.name}-{k}")
                if record is None or record["error"] is not None:
                    return {"error": "not prepared" if record is None else record["error"]}
            call = self.contender.prepare(k)
            wrong = difference(self.contender.expected[k], self.contender.result(k, call), TOLERANCE)
            if wrong is not None:
                return {"error": f"wrong result: {wrong}"}
            self.calls[k] = call
            return {}
        ns, calls = burst(self.calls[k], command["seconds"], command["least"])
        return {"ns": ns, "calls": calls}


def main() -> None:
    """Serve until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print to stdout do not disturb the answers
    worker = Worker()
    for line in sys.stdin:
        try:
            answer = worker.obey(json.loads(line))
        except ImportError as error:
            answer = {"error": f"not installed: {error}"}
        except Exception as error:
            text = next((t.strip() for t in str(error).splitlines() if t.strip()), "")
            answer = {"error": f"{type(error).__name__}: {text[:300]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
