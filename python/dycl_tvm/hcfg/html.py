# Licensed under the Apache License, Version 2.0; see LICENSE.
"""One self-contained page for an HCFG: the picture with pan and zoom, and what a block holds on a click."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from dycl_tvm.hcfg.measured import Measured
from dycl_tvm.hcfg.nodes import HCFG, Block, Origin, SubDNNCall, printer
from dycl_tvm.hcfg.svg import to_svg
from dycl_tvm.hcfg.text import Names, origin_of_terminator, sub_dnn_lines, summary


@printer("html")
def to_html(graph: HCFG, measured: Measured | None = None) -> str:
    """Return the page, with the figures of a profile if there are. It needs nothing from outside: nothing is fetched."""
    names = Names(graph)
    data = {
        "blocks": {
            names.block(b): _block(names, b, measured.lines.get(k, ["never"]) if measured else ()) for k, b in enumerate(graph.blocks)
        },
        "bodies": {f.name: sub_dnn_lines(f) for f in graph.sub_dnns()},
        "first": names.block(graph.entry),
    }
    # A "<" inside a script could end it.
    embedded = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    page = _PAGE.replace("@TITLE@", escape(graph.name)).replace("@SUMMARY@", escape(summary(graph)))
    return page.replace("@SVG@", to_svg(graph, measured)).replace("@DATA@", embedded)


def _block(names: Names, block: Block, ran: Sequence[str]) -> dict[str, Any]:
    """Return what the side panel shows of a block."""
    steps = []
    for step in block.steps:
        called = step.callee.name if isinstance(step, SubDNNCall) else None
        steps.append({"text": names.step(step), "from": _place(step.origin), "call": called})
    return {
        "title": f"{names.block(block)} · {block.name}",
        "params": names.declared(block.params),
        "steps": steps,
        "end": {"text": names.terminator(block), "from": _place(origin_of_terminator(block))},
        "edges": [names.block(b) for b in dict.fromkeys(block.successors())],
        "source": _source(block),
        "ran": list(ran),
    }


def _source(block: Block) -> list[list[Any]]:
    """Return the lines of the user's source that a block comes from: file, line, code; sub-DNN bodies included."""
    found: dict[tuple[str, int], str] = {}

    def add(origin: Origin | None) -> None:
        if origin is not None:
            found.setdefault((origin.file, origin.line), origin.code)

    add(block.origin)
    for step in block.steps:
        add(step.origin)
        if isinstance(step, SubDNNCall):
            for op in step.callee.ops:
                add(op.origin)
    add(origin_of_terminator(block))
    return [[file, line, code] for (file, line), code in sorted(found.items())]


def _place(origin: Origin | None) -> str:
    return "" if origin is None else f"{origin.file.rpartition('/')[2]}:{origin.line}"


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>@TITLE@</title><style>
*{box-sizing:border-box}body{margin:0;height:100vh;display:flex;flex-direction:column;font:13px system-ui,sans-serif;color:#1f2328}
header{padding:6px 12px;border-bottom:1px solid #d0d7de;display:flex;gap:16px;align-items:center}header h1{font-size:15px;margin:0}
header span{color:#57606a;flex:1}main{flex:1;display:flex;min-height:0}#view{flex:1;overflow:hidden;cursor:grab;touch-action:none}
#view svg{width:100%;height:100%}#view .block{cursor:pointer}
#panel{width:40%;max-width:720px;overflow:auto;border-left:1px solid #d0d7de;padding:8px 12px}
pre,.code{font:12px ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:0}
h2{font-size:14px;margin:4px 0}h3{font-size:12px;margin:12px 0 4px;color:#57606a}
.row{padding:2px 0;border-bottom:1px solid #f0f2f4}
.row small{color:#0550ae;margin-left:8px}details{margin:2px 0 4px 12px}
summary{cursor:pointer;color:#57606a}
a{color:#0969da;cursor:pointer;margin-right:8px}
</style></head><body>
<header><h1>@TITLE@</h1><span>@SUMMARY@</span><input id="find" type="search" placeholder="find block, operation, source">
<button id="fit">fit</button></header>
<main><div id="view">@SVG@</div><aside id="panel"></aside></main>
<script type="application/json" id="data">@DATA@</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const svg = document.querySelector("#view svg"), panel = document.getElementById("panel");
const whole = svg.getAttribute("viewBox").split(" ").map(Number);
svg.removeAttribute("width"); svg.removeAttribute("height");
let box = whole.slice(), dragged = null, moved = false;
function show() { svg.setAttribute("viewBox", box.join(" ")); }
function scale() { return Math.max(box[2] / svg.clientWidth, box[3] / svg.clientHeight); }
function point(e) {
  const p = new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse());
  return [p.x, p.y];
}
svg.addEventListener("wheel", e => {
  e.preventDefault();
  const f = Math.exp(e.deltaY * 0.0015), p = point(e);
  box = [p[0] - (p[0] - box[0]) * f, p[1] - (p[1] - box[1]) * f, box[2] * f, box[3] * f];
  show();
}, {passive: false});
svg.addEventListener("pointerdown", e => { dragged = [e.clientX, e.clientY, box[0], box[1]]; moved = false; });
window.addEventListener("pointermove", e => {
  if (!dragged) return;
  const dx = e.clientX - dragged[0], dy = e.clientY - dragged[1];
  if (Math.abs(dx) + Math.abs(dy) > 4) moved = true;
  if (moved) { box[0] = dragged[2] - dx * scale(); box[1] = dragged[3] - dy * scale(); show(); }
});
window.addEventListener("pointerup", () => { dragged = null; });
document.getElementById("fit").onclick = () => { box = whole.slice(); show(); };
function add(parent, tag, text, name) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (name) e.className = name;
  parent.appendChild(e);
  return e;
}
function select(id, centre) {
  const block = data.blocks[id];
  if (!block) return;
  for (const g of svg.querySelectorAll(".block")) g.classList.toggle("selected", g.dataset.block === id);
  if (centre) {
    const r = svg.querySelector('.block[data-block="' + id + '"] rect').getBBox();
    box = [r.x + r.width / 2 - 450, r.y + r.height / 2 - 300, 900, 600];
    show();
  }
  panel.textContent = "";
  add(panel, "h2", block.title);
  if (block.params) { add(panel, "h3", "parameters"); add(panel, "pre", block.params); }
  if (block.ran.length) { add(panel, "h3", "ran"); for (const text of block.ran) add(panel, "div", text); }
  add(panel, "h3", block.steps.length + " steps");
  for (const step of [...block.steps, block.end]) {
    const row = add(panel, "div", undefined, "row");
    add(row, "span", step.text, "code");
    if (step.from) add(row, "small", step.from);
    if (step.call) {
      const body = add(row, "details");
      add(body, "summary", "body of " + step.call);
      add(body, "pre", data.bodies[step.call].join("\\n"));
    }
  }
  if (block.edges.length) {
    add(panel, "h3", "leads to");
    for (const other of block.edges) add(panel, "a", data.blocks[other].title).onclick = () => select(other, true);
  }
  if (block.source.length) add(panel, "h3", "source");
  let file = "";
  for (const [name, line, code] of block.source) {
    if (name !== file) { add(panel, "div", name); file = name; }
    add(panel, "pre", String(line).padStart(5) + "  " + code);
  }
}
for (const g of svg.querySelectorAll(".block"))
  g.addEventListener("click", () => { if (!moved) select(g.dataset.block, false); });
document.getElementById("find").addEventListener("keydown", e => {
  if (e.key !== "Enter") return;
  const word = e.target.value.toLowerCase(), ids = Object.keys(data.blocks);
  const now = svg.querySelector(".selected"), start = now ? ids.indexOf(now.dataset.block) + 1 : 0;
  for (let k = 0; k < ids.length; k++) {
    const id = ids[(start + k) % ids.length];
    if (JSON.stringify(data.blocks[id]).toLowerCase().includes(word)) { select(id, true); return; }
  }
});
select(data.first, false);
</script></body></html>
"""
