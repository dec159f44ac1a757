# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The file of a profile: a trace that Perfetto and Chrome open, with the figures of all runs beside it.

It is a JSON object of the Trace Event Format. ``traceEvents`` are the last runs: complete events (``"ph": "X"``, ``ts`` and ``dur`` in
microseconds) for runs, stretches between decisions and kernels, nested by their times, and instants (``"i"``) for decisions. Viewers
leave keys alone that they do not know; ``dycl_profile`` holds what :meth:`Profile.from_dict` reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dycl_tvm.errors import UsageError
from dycl_tvm.runtime.path import source_line
from dycl_tvm.runtime.profile.profile import Profile
from dycl_tvm.runtime.profile.ring import RecordedRun
from dycl_tvm.runtime.writing import replacing

_WHERE = {"pid": 1, "tid": 1}


def write_trace(profile: Profile, path: str) -> None:
    """Write a profile to a file."""
    text = json.dumps({"traceEvents": list(trace_events(profile)), "displayTimeUnit": "ns", "dycl_profile": profile.to_dict()})
    with replacing(path) as file:
        file.write(text.encode())


def load_profile(path: str) -> Profile:
    """Return a profile from a file that :func:`write_trace` wrote.

    Raises
    ------
    UsageError
        If the file is something else.
    """
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        return Profile.from_dict(data["dycl_profile"])
    except OSError as error:
        raise UsageError(f"cannot read {path!r}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UsageError(f"{path!r} is no profile; make one with dycl-tvm profile -o FILE, or p.save(FILE)") from None


def trace_events(profile: Profile) -> Iterator[dict[str, Any]]:
    """Yield the events of the last runs."""
    yield {**_WHERE, "name": "process_name", "ph": "M", "args": {"name": profile.metadata["name"]}}
    yield {**_WHERE, "name": "thread_name", "ph": "M", "args": {"name": "session"}}
    first = profile.last_runs[0].begin if profile.last_runs else 0
    for run in profile.last_runs:
        yield from _run(profile, run, first)


def _complete(name: str, kind: str, begin: int, end: int, first: int, **args: Any) -> dict[str, Any]:
    # Three digits: nanoseconds.
    times = {"ts": round((begin - first) / 1e3, 3), "dur": round((end - begin) / 1e3, 3)}
    return {**_WHERE, "name": name, "cat": kind, "ph": "X", **times, "args": args}


def _run(profile: Profile, run: RecordedRun, first: int) -> Iterator[dict[str, Any]]:
    metadata = profile.metadata
    site = source_line(metadata["sites"][run.site]["origin"])
    yield _complete("run", "run", run.begin, run.end, first, **{"return": str(site), "decisions": len(run.decisions)})
    yield _complete("inputs", "inputs", run.begin, run.started, first)
    head, start = 0, run.started
    for decision, choice, at in [*run.decisions, (None, 0, run.end)]:
        stretch = profile.stretches[head]
        blocks = [profile.block_name(b) for b in stretch.blocks]
        yield _complete(metadata["blocks"][head]["name"], "block", start, at, first, blocks=blocks)
        if decision is None:
            break
        (taken,) = profile.describe(((decision, choice),))
        yield {**_WHERE, "name": str(taken), "cat": "decision", "ph": "i", "s": "t", "ts": round((at - first) / 1e3, 3)}
        head, start = stretch.targets[choice], at
    for number, begin, end in run.calls:
        call = metadata["calls"][number]
        kernel = metadata["kernels"][call["kernel"]]
        lines = [str(source_line(metadata["lines"][k])) for k in call["lines"]]
        told = {"sub_dnn": call["sub_dnn"], "backend": kernel["backend"], "bytes": call["bytes"], "lines": lines}
        yield _complete(kernel["symbol"], "kernel", begin, end, first, **told)
