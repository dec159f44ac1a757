# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Zoo networks out to ONNX, both forms, run by ONNX Runtime against eager; and read again, against the graph that was written.

As a program (``make onnx-zoo``) it prints the table of docs/front-ends.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import torch.utils._pytree as pytree

from dycl_tvm import passes, zoo
from dycl_tvm.hcfg.analysis import count_paths
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.onnx_export import OnnxModel, SplitModel, export_model, export_split
from dycl_tvm.onnx_export.guards import with_guards
from dycl_tvm.progress import Phases
from dycl_tvm.runtime.structure import unflatten
from dycl_tvm.staging import stage_model


def graph_of(model: Any, args: Any) -> HCFG:
    graph = stage_model(model, args, phases=Phases(None))
    passes.run_passes(graph)
    return graph


def both(graph: HCFG, folder: Path) -> tuple[OnnxModel, SplitModel]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return OnnxModel(export_model(graph, folder / "model.onnx"), options), SplitModel(export_split(graph, folder / "split"), options)


def assert_same(got: Any, want: Any, rtol: float = 1e-3, atol: float = 1e-4) -> None:
    assert pytree.tree_structure(got) == pytree.tree_structure(want)
    found, wanted = (pytree.tree_leaves(x, is_leaf=lambda x: x is None) for x in (got, want))
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        if isinstance(b, torch.Tensor):
            assert str(a.dtype).removeprefix("torch.") == str(b.dtype).removeprefix("torch.")
            np.testing.assert_allclose(a, b.detach().numpy(), rtol=rtol, atol=atol)
        else:
            b = b.item() if isinstance(b, np.generic) else b
            assert type(a) is type(b) and (a == b or (isinstance(b, float) and np.isclose(a, b, rtol, atol)))


@dataclass
class Row:
    """What was seen of one network.

    Attributes
    ----------
    ways : set of (path, path)
        The way of the original with that of the graph that was read again, over the inputs.
    sites : set of int
    """

    name: str
    graph: HCFG
    again: HCFG | None = None
    runs: int = 0
    worst: float = 0.0
    ways: set[Any] = field(default_factory=set)
    sites: set[int] = field(default_factory=set)
    seconds: float = 0.0

    @property
    def paths(self) -> tuple[int, int]:
        """The number of paths of the original, its errors as ways of their own as ONNX must write them, and of what was read again."""
        return count_paths(with_guards(self.graph)), count_paths(self.again) if self.again is not None else 0

    @property
    def one_to_one(self) -> bool:
        """Whether inputs that part in one graph part in the other."""
        return len(self.ways) == len({a for a, _ in self.ways}) == len({b for _, b in self.ways})


def out(entry: zoo.Entry, runs: int, folder: Path) -> Row:
    """Write a network in both forms and run it against eager: same return site and values."""
    row = Row(entry.name, graph_of(entry.model, entry.example_inputs))
    one, split = both(row.graph, folder)
    onnx.checker.check_model(str(folder / "model.onnx"))
    for inputs in entry.inputs(runs):
        want = entry.model(*inputs)
        for got in (one(*inputs), split(*inputs)):
            assert_same(got, want)
            row.worst = max(row.worst, distance(got, want))
        value, way = interpret(row.graph, inputs)
        assert_same(value, want)
        assert one.last_site == site_of(row.graph, way) and split.last_path == way
        row.sites.add(one.last_site)
        row.ways.add((tuple(way),) * 2)
        row.runs += 1
    return row


def back(entry: zoo.Entry, graph: HCFG, runs: int, folder: Path) -> Row:
    """Read a network again that :func:`out` wrote, and run both graphs: same values; ``ways`` pairs their paths."""
    row, path = Row(entry.name, graph), folder / "model.onnx"
    row.again = graph_of(str(path), None)
    sites = OnnxModel(path).description["sites"]
    for inputs in entry.inputs(runs):
        want, way = interpret(row.graph, inputs)
        got, way_again = interpret(row.again, inputs)
        site = site_of(row.graph, way)
        assert int(got["return_site"]) == site
        leaves = [got[n].numpy() for n in sites[site]["outputs"]]

        def leaf(k: int, kind: str, leaves: Any = leaves) -> Any:
            return leaves[k] if kind == "tensor" else leaves[k].item()

        assert_same(unflatten(sites[site]["structure"], leaf), want)
        row.ways.add((tuple(way), tuple(way_again)))
        row.runs += 1
    return row


def site_of(graph: HCFG, way: Any) -> int:
    """Return the number of the return site to which a path of the interpreter leads."""
    block = graph.entry
    if way:
        name, edge = way[-1]
        block = next(b for b in graph.blocks if b.name == name).edges()[edge].target
    return next(k for k, s in enumerate(graph.return_sites()) if s is block.terminator.site)  # type: ignore[union-attr]


def distance(got: Any, want: Any) -> float:
    """Return the largest difference of two results, of finite elements."""
    pairs = zip(pytree.tree_leaves(got), pytree.tree_leaves(want))
    floats = [(a, b.numpy()) for a, b in pairs if isinstance(b, torch.Tensor) and b.is_floating_point()]
    return max((float(np.nanmax(np.abs(a - b), initial=0)) for a, b in floats), default=0.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=zoo.names(), metavar="NAME")
    parser.add_argument("--runs", type=int, default=12, help="inputs for each network")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| network | bodies | return sites seen | paths seen | largest difference | paths of the graph, and read again | one to one | s |"
    )
    print("|---|---|---|---|---|---|---|---|")
    bad = 0
    for name in args.names:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            entry = zoo.load(name)
            row = out(entry, args.runs, Path(folder))
            again = back(entry, row.graph, args.runs, Path(folder))
            nested = depth(onnx.load(Path(folder) / "model.onnx").graph)
        before, after = again.paths
        bad += not again.one_to_one or before != after
        print(
            f"| `{name}` | {nested} | {len(row.sites)} of {len(row.graph.return_sites())} | {len(row.ways)} | {row.worst:.1e} "
            f"| {before}{'' if before == after else f', NOT {after}'} | {'yes' if again.one_to_one else 'NO'} "
            f"| {time.perf_counter() - start:.0f} |",
            flush=True,
        )
    return 1 if bad else 0


def depth(graph: Any) -> int:
    """Return how many bodies of a model lie in one another."""
    bodies = [a.g for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]
    return max((1 + depth(b) for b in bodies), default=0)


if __name__ == "__main__":
    sys.exit(main())
