# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Graphviz source of an HCFG."""

from __future__ import annotations

from dycl_tvm.hcfg.analysis import reverse_postorder
from dycl_tvm.hcfg.nodes import HCFG, Block, Branch, Raise, Return, Switch, printer
from dycl_tvm.hcfg.text import Names

#: Longest line in a box.
WIDTH = 88


@printer("dot")
def to_dot(graph: HCFG) -> str:
    """Return the graph in the DOT language: a box a block, with its steps; edges labelled by what decides them."""
    names = Names(graph)
    position = {b: i for i, b in enumerate(reverse_postorder(graph))}
    lines = [
        f"digraph {_quoted(graph.name)} {{",
        '  node [shape=box, fontname="monospace", fontsize=10];',
        '  edge [fontname="monospace", fontsize=9];',
    ]
    for block in graph.blocks:
        text = [f"{names.block(block)} {block.name}({names.declared(block.params)})"]
        if block.origin is not None:
            text.append(f"# {block.origin}: {block.origin.code}")
        text += [names.step(step) for step in block.steps]
        text.append(names.terminator(block))
        label = "".join(_escaped(shorten(line, WIDTH)) + "\\l" for line in text)
        lines.append(f'  {names.block(block)} [label="{label}"{_look(graph, block)}];')
    for block in graph.blocks:
        for label, edge in zip(edge_labels(block), block.edges()):
            back = position.get(edge.target, 0) <= position.get(block, -1)
            look = f'label="{label}"' + (", style=dashed, constraint=false" if back else "")
            lines.append(f"  {names.block(block)} -> {names.block(edge.target)} [{look}];")
    lines.append("}")
    return "\n".join(lines) + "\n"


def edge_labels(block: Block) -> list[str]:
    """Return a label for each outgoing edge: true and false, or the index of a switch."""
    if isinstance(block.terminator, Branch):
        return ["true", "false"]
    if isinstance(block.terminator, Switch):
        return [str(k) for k in range(len(block.terminator.edges))]
    return [""] * len(block.edges())


def shorten(text: str, width: int) -> str:
    """Cut a text to ``width`` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def _look(graph: HCFG, block: Block) -> str:
    if block is graph.entry:
        return ", penwidth=2"
    if isinstance(block.terminator, Return):
        return ", style=rounded"
    return ", color=red" if isinstance(block.terminator, Raise) else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'
