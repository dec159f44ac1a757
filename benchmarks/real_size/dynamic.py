# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Milliseconds of a call and memory of networks of real size with control flow, float32, batch 1.

A row is a path: of the inputs that are drawn those are taken whose paths have the fewest operations, the most, and as many as half
of the paths have. Next to ours are eager PyTorch, ONNX Runtime and OpenVINO on the straight network of that path, which are told it for
free and do not compute what only decisions need, and ONNX Runtime on the whole network as ``If`` and ``Loop`` (``export_onnx``).
Results were compared with eager before they were timed. Processes take turns as in ``python -m real_size``.

    PYTHONPATH=benchmarks python -m real_size.dynamic [--networks NAME ...] [--threads N] [--rounds N] [--drawn N]
"""

from __future__ import annotations

import argparse
import functools
import pickle
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from shared import in_another_process, in_brief, take_turns

from real_size.branching import NETWORKS
from real_size.contenders import Run, compare, eager, fed_onnxruntime, fed_openvino, peak_megabytes, ready, row, serve
from real_size.tables import Table

#: Operators of straight networks that are written as ONNX: PyTorch's exporter takes more than minutes for 13,000.
_MOST_OPERATORS = 5000


def _prepare(name: str, folder: Path, drawn: int) -> list[int]:
    """Write a network, inputs with what eager returns, and the straight networks of their paths; return how often each was taken."""
    from speed.static import static_path, write_onnx

    from dycl_tvm.progress import Phases
    from dycl_tvm.staging import stage_model

    model, inputs = NETWORKS[name].model(), NETWORKS[name].inputs(drawn)
    torch.save(model, folder / "model.pt")
    graph = stage_model(model, inputs[0], phases=Phases())
    paths = [static_path(graph, x) for x in inputs]
    often = Counter(p.key for p in paths)
    first = {p.key: k for k, p in reversed(list(enumerate(paths)))}
    ranked = sorted(first.values(), key=lambda k: _operators(paths[k]))
    taken = sorted({0, len(ranked) // 2, len(ranked) - 1})
    for n, k in enumerate(ranked[t] for t in taken):
        (folder / str(n)).mkdir()
        operators = _operators(paths[k])
        if operators <= _MOST_OPERATORS:
            write_onnx(paths[k], folder / str(n) / "model.onnx")
        else:
            (folder / str(n) / "model.txt").write_text(f"not written: its straight network has {operators} operators")
        with torch.inference_mode():
            held = ([x.numpy() for x in inputs[k]], model(*inputs[k]), paths[k].structure, paths[k].leaves)
        (folder / str(n) / "data.pickle").write_bytes(pickle.dumps(held))
    return [often[paths[ranked[t]].key] for t in taken]


def _operators(path: Any) -> int:
    """Return how many operators a straight network has."""
    return sum(len(call.callee.ops) for call in path.graph.entry.steps)


def _build(folder: Path) -> tuple[float, float]:
    """Write the artefact; return the seconds and the peak of memory in megabytes."""
    import dycl_tvm

    inputs = tuple(map(torch.from_numpy, pickle.loads((folder / "0" / "data.pickle").read_bytes())[0]))
    start = time.perf_counter()
    artifact = dycl_tvm.build(torch.load(folder / "model.pt", weights_only=False), inputs, target="native", verify="off")
    artifact.export_library(folder / "model.so")
    artifact.save_params(folder / "model.params")
    seconds, peak = time.perf_counter() - start, peak_megabytes()
    try:
        artifact.export_onnx(folder / "whole.onnx")
    except Exception as error:
        (folder / "whole.txt").write_text(in_brief(error))
    return seconds, peak


def _ours(folder: Path, threads: int) -> Run:
    import dycl_tvm

    return dycl_tvm.load(folder.parent / "model.so", folder.parent / "model.params", num_threads=threads)


def _pytorch(folder: Path, threads: int) -> Run:
    return eager(torch.load(folder.parent / "model.pt", weights_only=False))


def _whole(folder: Path, threads: int) -> Run:
    import onnxruntime

    from dycl_tvm.onnx_export import OnnxModel

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return OnnxModel(_written(folder.parent / "whole.onnx"), options)


def _written(model: Path) -> Path:
    """Return an ONNX model that was written; raise the reason if it was not."""
    if (why := model.with_suffix(".txt")).exists():
        raise RuntimeError(why.read_text())
    return model


#: Of (folder of the path, threads): what makes a function that runs an input.
CONTENDERS: dict[str, Callable[[Path, int], Run]] = {
    "ours": _ours,
    "pytorch": _pytorch,
    "onnxruntime": lambda folder, threads: fed_onnxruntime(_written(folder / "model.onnx"), threads),
    "openvino": lambda folder, threads: fed_openvino(_written(folder / "model.onnx"), threads),
    "onnxruntime, whole": _whole,
}


def _worker(pipe: Any, contender: str, folder: Path, threads: int) -> None:
    with ready(threads):
        inputs, expected, structure, leaves = pickle.loads((folder / "data.pickle").read_bytes())
        start = time.perf_counter()
        try:
            run = CONTENDERS[contender](folder, threads)
            seconds = time.perf_counter() - start
            found = run(*inputs)
            if contender in ("onnxruntime", "openvino"):
                from speed.static import result_of

                found = result_of(structure, leaves, list(found)[1:])  # the first is the number of the return site
            compare(expected, found)
        except Exception as error:
            pipe.send(in_brief(error))
            return
        pipe.send((seconds, 0.0))
        serve(pipe, functools.partial(run, *inputs), threads)


def main() -> None:
    """Print a row for each path of each network."""
    parser = argparse.ArgumentParser(prog="real_size.dynamic", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--drawn", type=int, default=12)
    args = parser.parse_args()
    table = Table("network, inputs of this path", list(CONTENDERS))
    for name in args.networks:
        with tempfile.TemporaryDirectory() as folder:
            often = in_another_process(_prepare, name, Path(folder), args.drawn)
            built = in_another_process(_build, Path(folder))
            for n, count in enumerate(often):
                given = {c: (c, Path(folder) / str(n), args.threads) for c in CONTENDERS}
                found = row(*take_turns(_worker, given, args.rounds))
                for kept, value in zip((found.seconds, found.building), built):
                    kept["ours"] = value
                table.show(f"{name}, {count} of {args.drawn}", found)
    table.end()


if __name__ == "__main__":
    main()
