# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The skeleton of a network's control flow, and the list of its paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dycl_tvm.errors import UsageError
from dycl_tvm.hcfg.analysis import components
from dycl_tvm.runtime.path import Decision, SourceLine, source_line

if TYPE_CHECKING:
    from dycl_tvm.hcfg.nodes import HCFG, Origin

#: A path: the decisions in order, each with the number of the side taken (a branch: 1 is true, as in runtime.path).
Key = tuple[tuple[int, int], ...]


_NOWHERE = SourceLine("", 0, "", "")


@dataclass(frozen=True)
class FlowBlock:
    """A block: where it leads, or how the network ends in it.

    Attributes
    ----------
    targets : tuple of int
        By the number of the side; of a branch ``(false, true)``.
    decision : int or None
        The number of the branch or switch at its end.
    end : str
        ``return``, ``raise`` or empty.
    detail : str
        Of a raise: the exception's type and message.
    """

    targets: tuple[int, ...] = ()
    decision: int | None = None
    end: str = ""
    origin: SourceLine = _NOWHERE
    detail: str = ""


@dataclass(frozen=True)
class Flow:
    """The blocks (0 is the entry), and for each decision its kind (``branch`` or ``switch``) and line."""

    name: str
    blocks: tuple[FlowBlock, ...]
    decisions: tuple[tuple[str, SourceLine], ...]

    def describe(self, key: Key) -> list[Decision]:
        """Return the decisions of a path in the user's terms."""
        return [Decision(d, side if self.decisions[d][0] == "switch" else bool(side), self.decisions[d][1]) for d, side in key]

    def sides(self) -> list[tuple[int, int]]:
        """Return every side of every decision that the flow can come to."""
        return [(b.decision, side) for b in self.blocks if b.decision is not None for side in range(len(b.targets))]


@dataclass(frozen=True)
class ListedPath:
    """One path and the number of the block in which it ends."""

    key: Key
    end: int


@dataclass(frozen=True)
class Listing:
    """The paths of a flow.

    ``complete`` says that there are no others but those with more trips through a loop; ``loops`` that there is a loop.
    ``total`` is the number of paths, a loop counted as one block with all its ways out.
    """

    paths: tuple[ListedPath, ...]
    complete: bool
    loops: bool
    total: int


def flow_of_artifact(metadata: dict[str, Any]) -> Flow:
    """Return the flow of an artefact from its metadata.

    Raises
    ------
    UsageError
        If the artefact was written before its metadata held the control flow.
    """
    if "flow" not in metadata:
        raise UsageError("this library does not hold its control flow; compile it anew, or give the model instead of the library")
    blocks = []
    for kind, *rest in metadata["flow"]:
        if kind == "goto":
            blocks.append(FlowBlock((rest[0],)))
        elif kind == "decide":
            blocks.append(FlowBlock(tuple(rest[1]), rest[0]))
        elif kind == "return":
            blocks.append(FlowBlock(end="return", origin=source_line(metadata["sites"][rest[0]]["origin"])))
        else:
            blocks.append(FlowBlock(end="raise", origin=source_line(rest[1]), detail=rest[0]))
    decisions = tuple((d["kind"], source_line(d["origin"])) for d in metadata["decisions"])
    return Flow(metadata["name"], tuple(blocks), decisions)


def flow_of_graph(graph: HCFG) -> Flow:
    """Return the flow of a graph; its decisions are numbered in the order of the blocks."""
    from dycl_tvm.hcfg.nodes import Branch, Raise, Return, Switch, edges_of

    index = {block: k for k, block in enumerate(graph.blocks)}
    blocks: list[FlowBlock] = []
    decisions: list[tuple[str, SourceLine]] = []
    for block in graph.blocks:
        term = block.terminator
        if isinstance(term, Return):
            blocks.append(FlowBlock(end="return", origin=_line(term.site.origin)))
        elif isinstance(term, Raise):
            blocks.append(FlowBlock(end="raise", origin=_line(term.origin), detail=f"{term.kind}: {term.message}"))
        elif isinstance(term, Branch):
            blocks.append(FlowBlock((index[term.orelse.target], index[term.then.target]), len(decisions)))
            decisions.append(("branch", _line(term.origin)))
        elif isinstance(term, Switch):
            blocks.append(FlowBlock(tuple(index[e.target] for e in term.edges), len(decisions)))
            decisions.append(("switch", _line(term.origin)))
        else:
            blocks.append(FlowBlock(tuple(index[e.target] for e in edges_of(term))))
    return Flow(graph.name, tuple(blocks), tuple(decisions))


def _line(origin: Origin | None) -> SourceLine:
    return _NOWHERE if origin is None else SourceLine(origin.file, origin.line, origin.function, origin.code)


def list_paths(flow: Flow, limit: int = 1000, max_trips: int = 1) -> Listing:
    """List the paths in the order in which their decisions fall (false before true).

    Parameters
    ----------
    limit : int
        Stop after that many.
    max_trips : int
        A block of a loop comes at most ``max_trips + 1`` times on a listed path.
    """
    looping = _in_loops(flow.blocks)
    found: list[ListedPath] = []
    # Which blocks lead out of the loops at all is not looked at: a walk that ends nowhere is given up, and their number bounded.
    steps, most = 0, 1000 * limit + 100_000
    todo: list[tuple[int, Key, dict[int, int]]] = [(0, (), {})]
    complete = True
    while todo:
        block, key, trips = todo.pop()
        while True:
            steps += 1
            if block in looping:
                trips = {**trips, block: trips.get(block, 0) + 1}
                if trips[block] > max_trips + 1:
                    break
            here = flow.blocks[block]
            if here.end:
                if len(found) == limit:
                    complete = False
                    break
                found.append(ListedPath(key, block))
                break
            for side in range(len(here.targets) - 1, 0, -1):
                todo.append((here.targets[side], (*key, (here.decision or 0, side)), trips))
            if here.decision is not None:
                key = (*key, (here.decision, 0))
            block = here.targets[0]
        if not complete or steps > most:
            complete = complete and not todo
            break
    return Listing(tuple(found), complete, bool(looping), count_paths(flow))


def count_paths(flow: Flow) -> int:
    """Return the exact number of paths; a loop counts as one block that has all its ways out."""
    ways = [0] * len(flow.blocks)
    for component in components([b.targets for b in flow.blocks]):
        inside = set(component)
        total = sum(bool(flow.blocks[n].end) + sum(ways[t] for t in flow.blocks[n].targets if t not in inside) for n in component)
        for n in component:
            ways[n] = total
    return ways[0]


def _in_loops(blocks: Sequence[FlowBlock]) -> set[int]:
    found: set[int] = set()
    for component in components([b.targets for b in blocks]):
        if len(component) > 1 or component[0] in blocks[component[0]].targets:
            found.update(component)
    return found
