# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A picture of an HCFG as SVG, without Graphviz."""

from __future__ import annotations

import itertools
from html import escape

from dycl_tvm.hcfg.analysis import reverse_postorder
from dycl_tvm.hcfg.dot import edge_labels, shorten
from dycl_tvm.hcfg.layout import Layout, layered
from dycl_tvm.hcfg.measured import Measured
from dycl_tvm.hcfg.nodes import HCFG, Block, HostOp, Raise, Return, SubDNNCall, TensorOp, printer
from dycl_tvm.hcfg.text import Names

_CHARACTER = 6.7  # width of a character of the font
_LINE = 15
_PADDING = 8
_GAP = 28
_BETWEEN = 56  # between layers
_MARGIN = 70  # room for the edges that lead back
_TEXT_WIDTH = 52
_LISTED = 4  # steps shown in a box

STYLE = """
svg.hcfg{font:11px ui-monospace,Menlo,Consolas,monospace;background:#fff}
svg.hcfg .block rect{fill:#f6f8fa;stroke:#57606a}
svg.hcfg .entry rect{stroke-width:2.5}
svg.hcfg .return rect{fill:#e6f4ea;stroke:#1a7f37;rx:10}
svg.hcfg .raise rect{fill:#ffebe9;stroke:#cf222e}
svg.hcfg .selected rect{stroke:#0969da;stroke-width:3}
svg.hcfg .title{font-weight:bold}
svg.hcfg .source{fill:#0550ae}
svg.hcfg .measured{font-weight:bold;fill:#7d2d00}
svg.hcfg path{fill:none;stroke:#57606a;stroke-width:1.2}
svg.hcfg path.back{stroke:#8250df;stroke-dasharray:5 3}
svg.hcfg .label{fill:#953800;stroke:#fff;stroke-width:3px;paint-order:stroke}
"""


@printer("svg")
def to_svg(graph: HCFG, measured: Measured | None = None) -> str:
    """Return the picture of a graph: a box a block, edges labelled true, false or by index; loops lead back dashed.

    With the figures of a profile boxes are the warmer, and edges the thicker, the more there was of them.
    """
    names = Names(graph)
    reached = reverse_postorder(graph)
    seen = set(reached)
    blocks = reached + [b for b in graph.blocks if b not in seen]
    index = {b: k for k, b in enumerate(blocks)}
    place = {b: k for k, b in enumerate(graph.blocks)}
    texts = [box_lines(names, b) for b in blocks]
    if measured is not None:
        texts = [lines + [(text, "measured") for text in measured.lines.get(place[b], ())] for b, lines in zip(blocks, texts)]
    widths = [max(len(t) for t, _ in lines) * _CHARACTER + 2 * _PADDING for lines in texts]
    heights = [len(lines) * _LINE + 2 * _PADDING for lines in texts]
    edges = [(index[b], index[e.target]) for b in blocks for e in b.edges()]
    labels = [label for b in blocks for label in edge_labels(b)]
    thick: list[float | None] = [None] * len(edges)
    if measured is not None:
        ends = [(place[blocks[source]], place[blocks[target]]) for source, target in edges]
        labels = [f"{label} {measured.label(*both)}".strip() for label, both in zip(labels, ends)]
        thick = [measured.width(*both) for both in ends]
    plan = layered(list(range(len(blocks))), edges, widths, _GAP)

    rows = [0.0] * (max(plan.layer) + 1)
    for layer, height in zip(plan.layer, heights):
        rows[layer] = max(rows[layer], height)
    tops, at = [], _PADDING * 2.0
    for row in rows:
        tops.append(at)
        at += row + _BETWEEN
    right = max(x + w / 2 for x, w in zip(plan.x, widths))
    right = max([right, *(x for route in plan.routes for x, _ in route)]) + _MARGIN
    parts = [
        f'<svg class="hcfg" xmlns="http://www.w3.org/2000/svg" viewBox="{-_MARGIN} 0 {right + _MARGIN:.0f} {at:.0f}" '
        f'width="{right + _MARGIN:.0f}" height="{at:.0f}">',
        f"<title>{escape(graph.name)}</title><style>{STYLE}</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0L8,4L0,8z" style="fill:#57606a;stroke:none"/></marker></defs>',
    ]
    leaving = _ports([s for s, _ in edges], plan, 1)
    entering = _ports([t for _, t in edges], plan, -2)
    for k, (s, t) in enumerate(edges):
        start = (plan.x[s] + leaving[k] * widths[s], tops[plan.layer[s]] + heights[s])
        end = (plan.x[t] + entering[k] * widths[t], tops[plan.layer[t]])
        bow = None
        if plan.back[k]:
            side, bow = _way_back(plan, widths, s, t)
            bow += side * 5 * (k % 5)  # so that neighbouring loops do not draw one line
            start = (plan.x[s] + side * widths[s] / 2, start[1] - heights[s] / 3)
            end = (plan.x[t] + side * widths[t] / 2, end[1] + heights[t] / 3)
        rows_passed = [(x, tops[layer], tops[layer] + rows[layer]) for x, layer in plan.routes[k][1:-1]]
        parts.append(_edge(start, end, rows_passed, bow, labels[k], thick[k]))
    for k, block in enumerate(blocks):
        corner = (plan.x[k] - widths[k] / 2, tops[plan.layer[k]])
        fill = None if measured is None else measured.fill(place[block])
        parts.append(_box(_kind(graph, block), names.block(block), texts[k], corner, (widths[k], heights[k]), fill))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def box_lines(names: Names, block: Block) -> list[tuple[str, str]]:
    """Return the lines of a block's box, each with its style."""
    lines = [(shorten(f"{names.block(block)} · {block.name}", _TEXT_WIDTH), "title")]
    if block.origin is not None:
        place = f"{block.origin.file.rpartition('/')[2]}:{block.origin.line}"
        lines.append((shorten(f"{place} {block.origin.code}", _TEXT_WIDTH), "source"))
    calls = [s for s in block.steps if isinstance(s, SubDNNCall)]
    for call in calls[:_LISTED]:
        lines.append((shorten(f"call {call.callee.name} ({len(call.callee.ops)} ops)", _TEXT_WIDTH), "step"))
    tensor = [s for s in block.steps if isinstance(s, TensorOp)]
    host = [s for s in block.steps if isinstance(s, HostOp)]
    if len(calls) > _LISTED:
        lines.append((f"and {len(calls) - _LISTED} calls more", "step"))
    if tensor:
        lines.append(
            (shorten(f"{len(tensor)} tensor: " + " ".join(dict.fromkeys(s.op.split(".")[1] for s in tensor)), _TEXT_WIDTH), "step")
        )
    if host:
        lines.append((shorten(f"{len(host)} host: " + " ".join(dict.fromkeys(s.op for s in host)), _TEXT_WIDTH), "step"))
    lines.append((shorten(names.terminator(block), _TEXT_WIDTH), "end"))
    return lines


def _kind(graph: HCFG, block: Block) -> str:
    kind = "return" if isinstance(block.terminator, Return) else "raise" if isinstance(block.terminator, Raise) else ""
    return " ".join(["block", *(["entry"] if block is graph.entry else []), *([kind] if kind else [])])


def _box(
    kind: str, name: str, lines: list[tuple[str, str]], corner: tuple[float, float], size: tuple[float, float], fill: str | None
) -> str:
    (x, y), (width, height) = corner, size
    style = f' style="fill:{fill}"' if fill else ""
    drawn = [
        f'<g class="{kind}" data-block="{escape(name)}">',
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="3"{style}/>',
    ]
    for k, (text, style) in enumerate(lines):
        drawn.append(f'<text class="{style}" x="{x + _PADDING:.0f}" y="{y + _PADDING + 11 + k * _LINE:.0f}">{escape(text)}</text>')
    return "".join(drawn) + "</g>"


def _ports(nodes: list[int], plan: Layout, neighbour: int) -> list[float]:
    """Spread the ends of the edges over the side of each box, from -0.35 to 0.35 of its width, as their next points lie."""
    by_node: dict[int, list[int]] = {}
    for k, node in enumerate(nodes):
        by_node.setdefault(node, []).append(k)
    found = [0.0] * len(nodes)
    for ends in by_node.values():
        ends.sort(key=lambda k: (plan.routes[k][neighbour][0], k))
        for i, k in enumerate(ends):
            found[k] = 0.7 * ((i + 0.5) / len(ends) - 0.5)
    return found


def _way_back(plan: Layout, widths: list[float], source: int, target: int) -> tuple[int, float]:
    """Return the side, 1 for the right and -1 for the left, by which an edge leads back, and how far out it goes."""
    ends = (plan.layer[source], plan.layer[target])
    across = {1: 0, -1: 0}
    far = {1: plan.x[source], -1: plan.x[source]}
    for node, (x, layer) in enumerate(zip(plan.x, plan.layer)):
        if not min(ends) <= layer <= max(ends):
            continue
        for side in (1, -1):
            far[side] = max(far[side] * side, x * side + widths[node] / 2) * side
            end = source if layer == ends[0] else target
            across[side] += layer in ends and node not in (source, target) and (x - plan.x[end]) * side > 0
    side = 1 if across[1] <= across[-1] else -1
    return side, far[side] + side * 24


def _edge(
    start: tuple[float, float],
    end: tuple[float, float],
    passed: list[tuple[float, float, float]],
    bow: float | None,
    label: str,
    thick: float | None,
) -> str:
    """Draw an edge through the rows that it passes (x, top, bottom); one that leads back goes around them at ``bow``."""
    path = f"M{start[0]:.0f},{start[1]:.0f}"
    if bow is not None:
        (x0, y0), (x1, y1) = start, end
        path += f"C{bow:.0f},{y0:.0f} {bow:.0f},{y0:.0f} {bow:.0f},{(y0 + y1) / 2:.0f}S{bow:.0f},{y1:.0f} {x1:.0f},{y1:.0f}"
    else:
        points = [start, *((x, y) for x, top, bottom in passed for y in (top - 8, bottom + 8)), end]
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            middle = (y0 + y1) / 2
            path += f"C{x0:.0f},{middle:.0f} {x1:.0f},{middle:.0f} {x1:.0f},{y1:.0f}"
    style = ' class="back"' if bow is not None else ""
    if thick is not None:
        style += f' style="stroke-width:{thick:.1f}"'
    drawn = f'<path{style} d="{path}" marker-end="url(#arrow)"/>'
    if label:
        x, y = (start[0] + 5, start[1] + 16) if bow is None else (start[0] + (4 if bow > start[0] else -34), start[1] - 4)
        drawn += f'<text class="label" x="{x:.0f}" y="{y:.0f}">{escape(label)}</text>'
    return drawn
