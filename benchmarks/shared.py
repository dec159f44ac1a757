# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What the benchmarks share: artefacts and sessions that are loaded, processes that take turns, means of ratios."""

from __future__ import annotations

import concurrent.futures
import math
import multiprocessing
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any


def loaded(model: Any, example: tuple[Any, ...], folder: Path, **options: Any) -> Any:
    """Return the loaded artefact of a model, for this CPU."""
    import dycl_tvm

    artifact = dycl_tvm.build(model, example, target="native", verify="off", **options)
    artifact.export_library(folder / "net.so")
    artifact.save_params(folder / "net.params")
    return dycl_tvm.load(folder / "net.so", folder / "net.params")


def onnxruntime_session(path: Path, threads: int) -> Any:
    """Return a session of ONNX Runtime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def take_turns(
    work: Callable[..., None], contenders: Mapping[str, tuple[Any, ...]], rounds: int
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Run each contender in a process of its own, all in turn, so that what else the machine does meets all of them.

    Parameters
    ----------
    work : callable
        Is called with a connection and the arguments of a contender. It sends what it has to say, a text if it takes no part, and then
        something for each true value that comes, until another one does.
    contenders : mapping
        The arguments of each.
    rounds : int
        How many turns each has.

    Returns
    -------
    tuple of dict
        What each said, and of those that took part what they sent, a list of one for each round.
    """
    context = multiprocessing.get_context("spawn")
    said: dict[str, Any] = {}
    links = {}
    try:
        for contender, arguments in contenders.items():
            ours, theirs = context.Pipe()
            context.Process(target=work, args=(theirs, *arguments)).start()
            theirs.close()
            try:
                said[contender] = ours.recv()
            except EOFError:
                said[contender] = "its process ended"
            if not isinstance(said[contender], str):
                links[contender] = ours
        found: dict[str, list[Any]] = {c: [] for c in links}
        for _ in range(rounds):
            for contender, link in links.items():
                link.send(True)
                found[contender].append(link.recv())
    finally:
        for link in links.values():
            link.send(False)
    return said, found


def in_another_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process, so that its memory is not this one's."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
        return other.submit(_called, function, *arguments).result()


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # some hold what cannot go to another process
        raise RuntimeError(in_brief(error)) from None


def in_brief(error: Exception) -> str:
    """Return the kind of an error and the beginning of what it says."""
    said = next(filter(None, str(error).splitlines()), "")[:100]
    return said if type(error) is RuntimeError else f"{type(error).__name__}: {said}"  # of another process, in brief


def geometric_mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.mean(map(math.log, ratios)))
