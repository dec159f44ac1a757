# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The driver's side of the workers: one process a contender, commands with time limits, rounds that take turns."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Tell = Callable[[str], None]


def environment(work: Path, threads: int) -> dict[str, str]:
    """Return the environment of a process of the benchmark."""
    here = str(Path(__file__).parents[1])
    paths = [here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
    }


def run_job(module: str, args: Sequence[str], log: Path, env: dict[str, str], seconds: float) -> str | None:
    """Run a module as a process; return why it failed, or None."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-m", module, *args], stdout=file, stderr=file, env=env, start_new_session=True)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"not ready after {seconds:.0f} s"
    if status == 0:
        return None
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"exit status {status}: {lines[-1][:300] if lines else ''}"


class WorkerProcess:
    """A contender's process."""

    def __init__(self, contender: str, log: Path, env: dict[str, str]) -> None:
        self.contender = contender
        self._log = log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "speed.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=env,
            start_new_session=True,
        )  # fmt: skip
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")  # it has ended

    def ask(self, limit: float, **command: Any) -> dict[str, Any]:
        """Send a command and return the answer; a worker that dies or takes too long is ended, and the answer says so."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=max(limit, 0.0))
        except queue.Empty:
            self.close()
            return {"error": "not ready in time"}
        except OSError:
            line = ""
        if not line:
            return {"error": f"the process ended (status {self._process.wait()})"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process and those that it started."""
        _end(self._process)
        self._log.close()


def _end(process: subprocess.Popen[Any]) -> None:
    """End a process that is the leader of a session of its own, with its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


@dataclass
class Measured:
    """What is known of one contender on one network.

    Attributes
    ----------
    error : str or None
        Why it was not timed at all.
    refused : dict
        Why an input was not timed, by the input's number.
    prepare_seconds : float
    ns : dict
        By the input's number: the median nanoseconds of a call, one figure a round.
    """

    error: str | None = None
    refused: dict[int, str] = field(default_factory=dict)
    prepare_seconds: float = 0.0
    ns: dict[int, list[float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a form for JSON, whose keys are text."""
        return {
            "error": self.error,
            "refused": {str(k): v for k, v in self.refused.items()},
            "prepare_seconds": self.prepare_seconds,
            "ns": {str(k): v for k, v in self.ns.items()},
        }


@dataclass(frozen=True)
class Plan:
    """How long and how often to measure.

    ``limit`` is in seconds, for all that a contender does before it is timed; ``compiled`` is the number of paths for which slow
    contenders were prepared.
    """

    threads: int
    rounds: int
    seconds: float
    limit: float
    least: int = 3
    compiled: int = 1


def measure(folder: Path, contenders: Sequence[str], inputs: int, plan: Plan, work: Path, tell: Tell) -> dict[str, Measured]:
    """Prepare all contenders on a network, two at a time, then time them in turns.

    Each round runs every input by every contender; the contender that begins moves on by one from round to round.
    """
    env = environment(work, plan.threads)
    workers = {name: WorkerProcess(name, folder / f"worker-{name.replace(':', '-')}.log", env) for name in contenders}
    found = {name: Measured() for name in contenders}
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda name: _prepare(workers[name], found[name], folder, inputs, plan, tell), contenders))
        ready = [name for name in contenders if found[name].ns]
        for turn in range(plan.rounds):
            tell(f"  round {turn + 1} of {plan.rounds}")
            shift = turn % max(len(ready), 1)
            for k in range(inputs):
                for name in ready[shift:] + ready[:shift]:
                    if k in found[name].ns:
                        answer = workers[name].ask(120, do="burst", k=k, seconds=plan.seconds, least=plan.least)
                        if "error" in answer:
                            del found[name].ns[k]
                            found[name].refused[k] = answer["error"]
                        else:
                            found[name].ns[k].append(answer["ns"])
    finally:
        for worker in workers.values():
            worker.close()
    return found


def _prepare(worker: WorkerProcess, found: Measured, folder: Path, inputs: int, plan: Plan, tell: Tell) -> None:
    begin = time.monotonic()

    def left() -> float:
        return plan.limit - (time.monotonic() - begin)

    answer = worker.ask(left(), do="open", contender=worker.contender, folder=str(folder), threads=plan.threads)
    found.error = answer.get("error")
    longest = 0.0
    for k in range(inputs):
        if found.error is not None:
            break
        if found.ns and left() < longest:
            # To be ended in the midst of this input would lose those that are ready.
            found.refused[k] = f"would not be ready within {plan.limit:.0f} s (--limit)"
            continue
        start = time.monotonic()
        answer = worker.ask(left(), do="prepare", k=k, compiled=plan.compiled)
        longest = max(longest, time.monotonic() - start)
        if answer.get("error", "").startswith(("not ready", "the process ended", "not installed")):
            found.error = answer["error"].replace("in time", f"within {plan.limit:.0f} s (--limit)")
            found.ns.clear()
        elif "error" in answer:
            found.refused[k] = answer["error"]
        elif "left_out" not in answer:
            found.ns[k] = []
    found.prepare_seconds = time.monotonic() - begin
    reason = found.error or next(iter(found.refused.values()), "")
    tell(f"  {worker.contender}: {len(found.ns)} of {inputs} inputs ready after {found.prepare_seconds:.0f} s {reason}".rstrip())
