# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A readable listing of an HCFG, with names that depend on nothing but the graph."""

from __future__ import annotations

import re
from typing import Any

from dycl_tvm.hcfg.analysis import count_paths
from dycl_tvm.hcfg.nodes import (
    HCFG,
    Block,
    Branch,
    Constant,
    Edge,
    HostOp,
    Jump,
    Origin,
    Raise,
    Return,
    Step,
    SubDNN,
    SubDNNCall,
    Switch,
    Value,
    printer,
)
from dycl_tvm.hcfg.sizes import shape_text, sizes_text
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.runtime.structure import cuts_of


@printer("text")
def to_text(graph: HCFG) -> str:
    """Return the listing of a graph: header, blocks, and the bodies of the sub-DNNs."""
    names = Names(graph)
    lines = [f"hcfg {graph.name} {{  # {summary(graph)}"]
    for var in graph.state:
        initial = names.operand(var.initial)
        lines.append(f"  state {var.name}: {var.type} = {initial}")
    for block in graph.blocks:
        lines.append("")
        lines.append(_commented(f"{names.block(block)}({names.declared(block.params)}):", block.origin, block.name))
        for step in block.steps:
            lines.append("  " + _commented(names.step(step), step.origin))
        lines.append("  " + _commented(names.terminator(block), origin_of_terminator(block)))
    lines.append("}")
    for callee in graph.sub_dnns():
        lines += ["", *sub_dnn_lines(callee)]
    return "\n".join(lines) + "\n"


def summary(graph: HCFG) -> str:
    """Return the sizes of a graph in one line."""
    steps = sum(len(b.steps) for b in graph.blocks)
    parts = [
        f"{len(graph.blocks)} blocks", f"{steps} steps", f"{len(graph.sub_dnns())} sub-DNNs",
        f"{len(graph.return_sites())} return sites", f"{_big(count_paths(graph))} paths",
    ]  # fmt: skip
    parts += [f"{size.name} from {size.least} to {size.most}" for size in graph.sizes]
    return ", ".join(parts + [f"a path for {sizes_text(of)}" for of in graph.special_sizes])


def sub_dnn_lines(callee: SubDNN) -> list[str]:
    """Return the listing of one sub-DNN; its values are numbered from 0."""
    names = Names()
    lines = [f"sub_dnn {callee.name}({names.declared(callee.params)}) {{"]
    for op in callee.ops:
        lines.append("  " + _commented(names.step(op), op.origin))
    lines.append(f"  give {', '.join(names.operand(r) for r in callee.results)}")
    lines.append("}")
    return lines


def origin_of_terminator(block: Block) -> Origin | None:
    """Return the place in the user's source that a block's terminator comes from."""
    term = block.terminator
    if isinstance(term, Return):
        return term.site.origin
    return term.origin if isinstance(term, (Branch, Switch, Raise)) else None


class Names:
    """Names for printing: ``bb0`` for blocks in list order, ``%0`` for values in order of definition.

    Constants are ``@`` and their name, with a number where two have the same.
    """

    def __init__(self, graph: HCFG | None = None) -> None:
        self._values: dict[Value, str] = {}
        self._blocks: dict[Block, str] = {}
        self._constants: set[str] = set()
        #: How the types of values are written whose sizes the caller decides.
        self._types: dict[Value, str] = {}
        if graph is None:
            return
        if graph.sizes:
            self._types = {v: shape_text(v.type, k, graph.sizes) for k, v in enumerate(graph.inputs) if isinstance(v.type, TensorType)}
            self._types |= {v: f"{v.type} from {size.least} to {size.most}" for v, size in zip(graph.size_params, graph.sizes)}
        for k, block in enumerate(graph.blocks):
            self._blocks[block] = f"bb{k}"
        for block in graph.blocks:
            for param in block.params:
                self.operand(param)
            for step in block.steps:
                for value in step.results():
                    self.operand(value)

    def block(self, block: Block) -> str:
        """Return the name of a block."""
        return self._blocks.get(block, f"<{block.name}, not in the graph>")

    def operand(self, operand: Any) -> str:
        """Return the name of a value, or a static argument as Python would write it."""
        if isinstance(operand, Constant):
            return self._values.get(operand) or self._name_constant(operand)
        if isinstance(operand, Value):
            return self._values.setdefault(operand, f"%{len(self._values) - len(self._constants)}")
        if isinstance(operand, list):
            return "[" + ", ".join(map(self.operand, operand)) + "]"
        if isinstance(operand, tuple):
            return "(" + ", ".join(map(self.operand, operand)) + ")"
        return str(operand) if type(operand).__module__ == "torch" else repr(operand)

    def declared(self, values: list[Value]) -> str:
        """Return a parameter list, with types and with the hints of the front end."""
        return ", ".join(f"{self.operand(v)}{f' {v.name}' if v.name else ''}: {self._types.get(v, v.type)}" for v in values)

    def step(self, step: Step) -> str:
        """Return one step as a line."""
        if isinstance(step, SubDNNCall):
            return f"{self._results(step.outputs)} = call {step.callee.name}({', '.join(map(self.operand, step.args))})"
        if isinstance(step, HostOp):
            text = [repr(step.text)] if step.text is not None else []
            return f"{self._results([step.output])} = {step.op}({', '.join([*text, *map(self.operand, step.args)])})"
        args = [self.operand(a) for a in step.args]
        args += [f"{k}={self.operand(v)}" for k, v in step.kwargs.items()]
        return f"{self._results(step.outputs)} = {step.op}({', '.join(args)})"

    def terminator(self, block: Block) -> str:
        """Return the terminator of a block as a line."""
        term = block.terminator
        if isinstance(term, Jump):
            return f"jump {self.edge(term.edge)}"
        if isinstance(term, Branch):
            return f"branch {self.operand(term.cond)} ? {self.edge(term.then)} : {self.edge(term.orelse)}"
        if isinstance(term, Switch):
            return f"switch {self.operand(term.index)} [{', '.join(map(self.edge, term.edges))}]"
        if isinstance(term, Return):
            state = f" state ({', '.join(map(self.operand, term.state))})" if term.state else ""
            return f"return {self.structure(term.site.structure, term.values)}{state}"
        if isinstance(term, Raise):
            return f"raise {term.kind}({term.message!r})"
        return "<no terminator>"

    def edge(self, edge: Edge) -> str:
        """Return an edge: target and arguments."""
        return f"{self.block(edge.target)}({', '.join(map(self.operand, edge.args))})"

    def structure(self, node: Any, leaves: list[Any]) -> str:
        """Return an output structure as Python would write it, with the names of the leaves."""
        if "leaf" in node:
            cuts = {along: f":{self.structure(length, leaves)}" for along, length in cuts_of(node)}
            part = f"[{', '.join(cuts.get(d, ':') for d in range(max(cuts) + 1))}]" if cuts else ""
            return self.operand(leaves[node["leaf"]]) + part if node["leaf"] < len(leaves) else "<missing>"
        if "const" in node:
            return repr(node["const"])
        if "tuple" in node:
            inner = ", ".join(self.structure(n, leaves) for n in node["tuple"])
            return f"({inner},)" if len(node["tuple"]) == 1 else f"({inner})"
        if "rows" in node:
            return f"[rows of {', '.join(self.structure(n, leaves) for n in node['rows'])}]"
        if "list" in node:
            return "[" + ", ".join(self.structure(n, leaves) for n in node["list"]) + "]"
        if "namedtuple" in node:
            fields = zip(node["fields"], node["items"])
            return node["namedtuple"] + "(" + ", ".join(f"{f}={self.structure(n, leaves)}" for f, n in fields) + ")"
        if "object" in node:
            return node["object"] + "(" + ", ".join(f"{f}={self.structure(n, leaves)}" for f, n in node.get("attributes", ())) + ")"
        return "{" + ", ".join(f"{k!r}: {self.structure(n, leaves)}" for k, n in node["dict"]) + "}"

    def _results(self, values: Any) -> str:
        return ", ".join("_" if v is None else f"{self.operand(v)}: {v.type}" for v in values) or "_"

    def _name_constant(self, constant: Constant) -> str:
        stem = "@" + (re.sub(r"[^\w.]", "_", constant.name) or "constant")
        name, k = stem, 1
        while name in self._constants:
            k += 1
            name = f"{stem}#{k}"
        self._constants.add(name)
        self._values[constant] = name
        return name


def _commented(line: str, origin: Origin | None, note: str = "") -> str:
    parts = [note] if note else []
    if origin is not None:
        parts.append(f"{origin}: {origin.code}" if origin.code else str(origin))
    return f"{line}  # {', '.join(parts)}" if parts else line


def _big(number: int) -> str:
    """Write a number; a huge one by its power of ten, for Python refuses to print thousands of digits."""
    if number < 10**15:
        return str(number)
    return f"about 10^{round(number.bit_length() * 0.30103)}"
