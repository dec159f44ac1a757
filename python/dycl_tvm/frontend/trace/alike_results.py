# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Results of several paths by the same numbers, for hosts that ask for them by number.

Where sizes have a path of their own, shapes and numbers are known there that are outputs on the path for all sizes: the length of a tensor,
a size that is returned. They become outputs there too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from dycl_tvm.hcfg.nodes import HCFG, Operand, Return, ReturnSite, operand_type
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.runtime.structure import Structure, cuts_of

_NUMBERS = {bool: "bool", int: "int", float: "float"}


def number_alike(graph: HCFG) -> None:
    """Let the return sites of one line that return the same structure number its parts alike."""
    groups: dict[Any, list[tuple[Return, list[Structure]]]] = {}
    for block in graph.blocks:
        end = block.terminator
        if isinstance(end, Return):
            parts: list[Structure] = []
            whole = _rebuilt(end.site.structure, lambda part, parts=parts: parts.append(part) or _kind_of(part))  # type: ignore[misc, func-returns-value]
            groups.setdefault((end.site.origin, repr(whole)), []).append((end, parts))
    for group in groups.values():
        alike = list(zip(*(parts for _, parts in group)))
        outputs = [any("leaf" in part for part in of) for of in alike]
        cuts = [sorted({along for part in of for along, _ in cuts_of(part)}) for of in alike]
        sites: dict[int, ReturnSite] = {}
        for end, _ in group:
            structure, end.values = _numbered(end, outputs, cuts)
            end.site = sites.setdefault(id(end.site), ReturnSite(structure, end.site.origin))


def _numbered(end: Return, outputs: Sequence[bool], cuts: Sequence[Sequence[int]]) -> tuple[Structure, list[Operand]]:
    """Return the structure of what a path returns, and its outputs, with those parts as outputs, cut along those dimensions."""
    values: list[Operand] = []
    numbers = itertools.count()

    def output(operand: Operand, **rest: Any) -> Structure:
        values.append(operand)
        return {"leaf": len(values) - 1, **rest}

    def part(node: Structure) -> Structure:
        k = next(numbers)
        if not outputs[k]:
            return node
        if "leaf" not in node:
            return output(node["const"], type=_NUMBERS[type(node["const"])])
        operand, known = end.values[node["leaf"]], dict(cuts_of(node))
        made = {**output(operand), **{key: x for key, x in node.items() if key not in ("leaf", "along", "length")}}
        if not cuts[k]:
            return made
        type_ = operand_type(operand)
        assert isinstance(type_, TensorType)
        lengths = [output(end.values[known[d]["leaf"]] if d in known else type_.shape[d], type="int") for d in cuts[k]]
        several = len(lengths) > 1
        return {**made, "along": list(cuts[k]) if several else cuts[k][0], "length": lengths if several else lengths[0]}

    return _rebuilt(end.site.structure, part), values


def _kind_of(part: Structure) -> Structure:
    """Return what is the same of a part on all paths."""
    if "leaf" not in part:
        return {"type": _NUMBERS[type(part["const"])]}
    return {key: x for key, x in part.items() if key not in ("leaf", "along", "length")}


def _rebuilt(node: Structure, part: Callable[[Structure], Structure]) -> Structure:
    """Return a structure with others in the place of its tensors and numbers, in the order in which they are outputs."""
    if "leaf" in node or (type(node.get("const")) in _NUMBERS and node.keys() == {"const"}):
        return part(node)
    made = dict(node)
    for key in ("tuple", "list", "items", "rows"):
        if key in node:
            made[key] = [_rebuilt(child, part) for child in node[key]]
    for key in ("dict", "attributes"):
        if key in node:
            made[key] = [[name, _rebuilt(child, part)] for name, child in node[key]]
    return made
