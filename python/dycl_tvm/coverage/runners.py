# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Running a network for the sake of its path: an artefact, or a graph by the reference interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dycl_tvm.coverage.flow import Flow, Key, flow_of_artifact, flow_of_graph
from dycl_tvm.errors import RunError
from dycl_tvm.runtime.structure import unflatten_call

if TYPE_CHECKING:
    from dycl_tvm.hcfg.nodes import HCFG
    from dycl_tvm.runtime.module import Module


@dataclass(frozen=True)
class Outcome:
    """The path of one run, and the error in which it ended, if it did."""

    key: Key
    error: str = ""


class Runner(Protocol):
    """Runs a network from its initial state on the leaves of its inputs (NumPy arrays and numbers).

    ``names`` and ``types`` describe the leaves as the metadata of an artefact does.
    """

    flow: Flow
    names: list[str]
    types: list[dict[str, Any]]

    def run(self, leaves: Sequence[Any]) -> Outcome:
        """Run once."""


class ArtifactRunner:
    """Runs a loaded artefact. Needs neither torch nor TVM."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self.flow = flow_of_artifact(module.metadata)
        self.names: list[str] = list(module.metadata["input_names"])
        self.types: list[dict[str, Any]] = module.metadata["inputs"]

    def run(self, leaves: Sequence[Any]) -> Outcome:
        """Run once."""
        positional, named = unflatten_call(self._module.metadata["input_structure"], leaves)
        self._module.reset_state()
        error = ""
        try:
            self._module(*positional, **named)
        except RunError as raised:
            error = f"{raised.kind}: {raised}"
        path = self._module.last_path
        return Outcome(tuple((b.decision, int(b.choice)) for b in path.branches), error)


class GraphRunner:
    """Runs a graph by the reference interpreter: slow, but without compiling."""

    def __init__(self, graph: HCFG, max_blocks: int = 100_000) -> None:
        self._graph, self._max_blocks = graph, max_blocks
        self.flow = flow_of_graph(graph)
        self._index = {block: k for k, block in enumerate(graph.blocks)}
        self.names = list(graph.input_names)
        self.types: list[dict[str, Any]] = [_describe(v.type) for v in graph.inputs[: len(self.names)]]

    def run(self, leaves: Sequence[Any]) -> Outcome:
        """Run once."""
        import torch

        from dycl_tvm.hcfg.interpreter import graph_initial, run_step
        from dycl_tvm.hcfg.nodes import Branch, Constant, Raise, Return, Switch, Value, edges_of
        from dycl_tvm.hcfg.sizes import with_sizes

        def read(operand: Any) -> Any:
            if isinstance(operand, Constant):
                return operand.data
            return frame[operand] if isinstance(operand, Value) else operand

        block = self._graph.entry
        key: list[tuple[int, int]] = []
        types = [v.type for v in self._graph.inputs]
        given = with_sizes(self._graph.sizes, types, self.names, [_tensor(leaf, t) for leaf, t in zip(leaves, types)])
        frame: dict[Any, Any] = dict(zip(block.params, [*given, *(graph_initial(v.initial) for v in self._graph.state)]))
        try:
            with torch.no_grad():
                for _ in range(self._max_blocks):
                    for step in block.steps:
                        run_step(step, frame)
                    term = block.terminator
                    if isinstance(term, Return):
                        return Outcome(tuple(key))
                    if isinstance(term, Raise):
                        return Outcome(tuple(key), f"{term.kind}: {term.message}")
                    side = 0
                    edges = edges_of(term)
                    if isinstance(term, Branch):
                        side, edges = int(read(term.cond)), edges[::-1]
                    elif isinstance(term, Switch):
                        side = read(term.index)
                        if not 0 <= side < len(edges):
                            raise IndexError(f"index {side} of {len(edges)}")
                    decision = self.flow.blocks[self._index[block]].decision
                    if decision is not None:
                        key.append((decision, side))
                    moved = [read(a) for a in edges[side].args]
                    block = edges[side].target
                    frame.update(zip(block.params, moved))
        except (ArithmeticError, LookupError, ValueError, RuntimeError) as error:
            return Outcome(tuple(key), f"{type(error).__name__}: {error}")
        return Outcome(tuple(key), f"did not return within {self._max_blocks} blocks")


def _describe(type_: Any) -> dict[str, Any]:
    if hasattr(type_, "dtype"):
        return {"type": "tensor", "dtype": type_.dtype, "shape": list(type_.shape)}
    return {"type": type_.kind}


def _tensor(leaf: Any, type_: Any) -> Any:
    import torch

    if not hasattr(type_, "dtype"):
        return leaf
    array = torch.from_numpy(leaf.copy())
    return array.view(torch.bfloat16) if type_.dtype == "bfloat16" else array
