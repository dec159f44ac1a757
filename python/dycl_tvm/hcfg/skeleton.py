# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The graph of an artefact as far as its metadata tell it: blocks and edges with the user's lines, but no steps. For pictures."""

from __future__ import annotations

from typing import Any

from dycl_tvm.hcfg.nodes import HCFG, Block, Branch, Edge, Jump, Origin, Raise, Return, ReturnSite, Switch, Terminator, Value
from dycl_tvm.hcfg.types import BOOL, INT


def skeleton(metadata: dict[str, Any]) -> HCFG:
    """Return a graph whose blocks are those of the artefact, in its order.

    Parameters
    ----------
    metadata : dict
        Of an artefact that tells the names of its blocks.
    """
    blocks = [Block(block["name"], origin=_origin(block["origin"])) for block in metadata["blocks"]]
    sites = [ReturnSite(site["structure"], _origin(site["origin"])) for site in metadata["sites"]]
    for block, flow in zip(blocks, metadata["flow"], strict=True):
        block.terminator = _terminator(flow, blocks, sites, metadata["decisions"])
    return HCFG(metadata["name"], {"tuple": [{"tuple": []}, {"dict": []}]}, [], blocks)


def _terminator(flow: list[Any], blocks: list[Block], sites: list[ReturnSite], decisions: list[dict[str, Any]]) -> Terminator:
    kind, *rest = flow
    if kind == "goto":
        return Jump(Edge(blocks[rest[0]]))
    if kind == "return":
        structure = sites[rest[0]].structure
        return Return(sites[rest[0]], [Value(INT) for _ in range(_leaves(structure))])
    if kind == "raise":
        name, _, message = rest[0].partition(": ")
        return Raise(name, message, _origin(rest[1]))
    decision = decisions[rest[0]]
    edges, origin = [Edge(blocks[target]) for target in rest[1]], _origin(decision["origin"])
    if decision["kind"] == "switch":
        return Switch(Value(INT), edges, origin)
    return Branch(Value(BOOL), edges[1], edges[0], origin)


def _leaves(structure: Any) -> int:
    """Return how many values a structure numbers."""
    if isinstance(structure, dict):
        own = [structure["leaf"] + 1] if isinstance(structure.get("leaf"), int) else []
        return max([*own, *map(_leaves, structure.values())], default=0)
    return max(map(_leaves, structure), default=0) if isinstance(structure, list) else 0


def _origin(origin: dict[str, Any] | None) -> Origin | None:
    return None if origin is None else Origin(origin["file"], origin["line"], origin["function"], origin["code"])
