# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Straight stretches of a network: the blocks between two decisions. Their ends are what a profile knows the moments of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dycl_tvm.errors import UsageError


@dataclass(frozen=True)
class Stretch:
    """Blocks that always run one after the other.

    Attributes
    ----------
    blocks : tuple of int
        The first names the stretch.
    decision : int or None
        The decision at its end, whose side ``k`` leads to the stretch ``targets[k]``; of a branch ``(false, true)``.
    targets : tuple of int
    end : str
        ``return``, ``raise``, or empty where a decision follows.
    recursive : bool
        Whether it is part of a call of a recursive function.
    """

    blocks: tuple[int, ...]
    decision: int | None
    targets: tuple[int, ...]
    end: str
    recursive: bool


def stretches_of(metadata: dict[str, Any]) -> dict[int, Stretch]:
    """Return the stretches of an artefact by their first blocks; the entry is 0.

    Raises
    ------
    UsageError
        If the artefact is of an earlier version.
    """
    if "blocks" not in metadata or "flow" not in metadata:
        raise UsageError("the library was built before there were profiles; build the model again")
    found: dict[int, Stretch] = {}
    todo = [0]
    while todo:
        head = todo.pop()
        if head not in found:
            found[head] = _stretch(metadata, head)
            todo += found[head].targets
    return found


def _stretch(metadata: dict[str, Any], head: int) -> Stretch:
    flow, blocks = metadata["flow"], [head]
    while flow[blocks[-1]][0] == "goto":
        if flow[blocks[-1]][1] in blocks:  # a loop that nothing leaves
            break
        blocks.append(flow[blocks[-1]][1])
    kind, *rest = flow[blocks[-1]]
    recursive = any(metadata["blocks"][b]["recursive"] for b in blocks)
    if kind == "decide":
        return Stretch(tuple(blocks), rest[0], tuple(rest[1]), "", recursive)
    return Stretch(tuple(blocks), None, (), kind, recursive)
