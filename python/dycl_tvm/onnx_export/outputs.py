# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The outputs of the one ONNX model of a network whose return sites differ in structure.

ONNX has a fixed list of outputs. The first says which return site was reached (``-1 - k`` for the k-th error); the others are slots
that the sites share: a leaf takes the first slot of its type that its site has not used. A slot that a site does not use holds a tensor
of the slot's rank without elements (a zero, if the rank is 0), or zeros where the site is reached from within a loop: ONNX importers want
the state of a loop to keep its shape.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from dycl_tvm.hcfg.nodes import HCFG, Operand, Raise, Return, operand_type
from dycl_tvm.hcfg.types import INT, TensorType, Type
from dycl_tvm.onnx_export.scope import Scope, dtype_of, shape_of
from dycl_tvm.onnx_export.sizes import cut
from dycl_tvm.runtime.structure import parts_of

SITE_OUTPUT = "return_site"
FORMAT_VERSION = 1


class Outputs:
    """The plan of the outputs of one graph.

    Attributes
    ----------
    slots : list of Type
    used : list of bool
        Whether every return site uses the slot, so that its shape is always that of its type.
    parts : dict
        Of slots that hold more than there is: for each site where that is so, the dimensions that are shorter, with the slot that says how
        long each is.
    leaves, state : list of str
        The names of the slots, and of the state variables, which may have the names of each other or of an input in the program.
    """

    def __init__(self, graph: HCFG) -> None:
        self.graph = graph
        self.sites = graph.return_sites()
        self.slots: list[Type] = []
        self.of_site: list[list[int]] = []
        returns = {id(t.site): t for b in graph.blocks if isinstance(t := b.terminator, Return)}
        for site in self.sites:
            taken: list[int] = []
            for value in returns[id(site)].values:
                type_ = operand_type(value)
                free = [k for k, t in enumerate(self.slots) if t == type_ and k not in taken]
                if not free:
                    free = [len(self.slots)]
                    self.slots.append(type_)
                taken.append(free[0])
            self.of_site.append(taken)
        self.parts: dict[int, dict[int, dict[int, int]]] = {}
        for k, (site, taken) in enumerate(zip(self.sites, self.of_site)):
            for leaf, cuts in parts_of(site.structure).items():
                self.parts.setdefault(taken[leaf], {})[k] = {along: taken[length] for along, length in cuts}
        self.raises: list[Raise] = [t for b in graph.blocks if isinstance(t := b.terminator, Raise)]
        always = not self.raises
        everywhere = [all(k in taken for taken in self.of_site) for k in range(len(self.slots))]
        self.used = [always and found and k not in self.parts for k, found in enumerate(everywhere)]
        self.types: list[Type] = [INT, *self.slots, *(v.type for v in graph.state)]
        names = set(graph.input_names)
        which = _distinct(SITE_OUTPUT, names)
        self.leaves = [_distinct(f"output_{k}", names) for k in range(len(self.slots))]
        self.state = [_distinct(v.name, names, ".next") for v in graph.state]
        self.names = [which, *self.leaves, *(f"{name}.next" for name in self.state)]

    def leave(self, scope: Scope, term: Return | Raise, read: Callable[[Operand], str]) -> list[str]:
        """Return what the outputs are where a path ends."""
        if isinstance(term, Raise):
            number = -1 - next(k for k, t in enumerate(self.raises) if t is term)
            return [scope.constant(number, "int64"), *(scope.spare(t, scope.in_loop) for t in self.types[1:])]
        site = next(k for k, s in enumerate(self.sites) if s is term.site)
        given = dict(zip(self.of_site[site], term.values))
        leaves = [read(given[k]) if k in given else scope.spare(t, scope.in_loop) for k, t in enumerate(self.slots)]
        return [scope.constant(site, "int64"), *leaves, *(read(v) for v in term.state)]

    def cut(self, scope: Scope, results: list[str]) -> list[str]:
        """Append the nodes that leave of each result what there is of it."""
        made = list(results)
        for slot, sites in self.parts.items():
            parts = []
            for site, lengths in sites.items():
                holds = scope.emit("Equal", [results[0], scope.constant(site, "int64")], "bool")
                parts.append((holds, {along: results[1 + length] for along, length in lengths.items()}))
            type_ = self.slots[slot]
            assert isinstance(type_, TensorType)
            made[1 + slot] = cut(scope, made[1 + slot], type_, parts)
        return made

    def infos(self) -> list[tuple[str, str, tuple[int | str, ...]]]:
        """Return name, dtype and shape of each output; dimensions that depend on the path have names."""
        sure = [True, *self.used, *([not self.raises] * len(self.graph.state))]
        return [
            (name, dtype_of(t), shape_of(t) if fixed else tuple(f"{name}_{k}" for k in range(len(shape_of(t)))))
            for name, t, fixed in zip(self.names, self.types, sure, strict=True)
        ]

    def description(self) -> dict[str, Any]:
        """Return the JSON description from which results are put together again."""
        graph = self.graph
        return {
            "version": FORMAT_VERSION,
            "name": graph.name,
            "inputs": graph.input_structure,
            "input_names": graph.input_names,
            "state": self.state,
            "sites": [
                {"structure": s.structure, "outputs": [self.leaves[k] for k in taken], "origin": str(s.origin) if s.origin else None}
                for s, taken in zip(self.sites, self.of_site)
            ],
            "errors": [{"kind": t.kind, "message": t.message, "origin": str(t.origin) if t.origin else None} for t in self.raises],
        }


def _distinct(name: str, taken: set[str], also: str = "") -> str:
    """Return a name that is not taken, nor with ``also`` behind it, and take both."""
    found = next(n for k in itertools.count(1) if (n := name if k == 1 else f"{name}#{k}") not in taken and n + also not in taken)
    taken.update((found, found + also))
    return found
