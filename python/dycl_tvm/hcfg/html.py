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
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<link rel="icon" href="data:,"><title>@TITLE@</title><style>
*{box-sizing:border-box}body{margin:0;height:100vh;display:flex;flex-direction:column;font:13px system-ui,sans-serif;color:#1f2328}
header{padding:6px 12px;border-bottom:1px solid #d0d7de;display:flex;gap:16px;align-items:center}header h1{font-size:15px;margin:0}
header span{color:#57606a;flex:1}header nav{display:flex;gap:6px}button{cursor:pointer}
#find.nothing{background:#ffebe9}
main{flex:1;display:flex;min-height:0}#view{flex:1;overflow:hidden;cursor:grab;touch-action:none}
#view svg{width:100%;height:100%}#view .block{cursor:pointer}
#panel{width:40%;max-width:720px;overflow:auto;border-left:1px solid #d0d7de;padding:8px 12px}
pre,.code{font:12px ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:0}
h2{font-size:14px;margin:4px 0}h3{font-size:12px;margin:12px 0 4px;color:#57606a}
.row{padding:2px 0;border-bottom:1px solid #f0f2f4}
.row small{color:#0550ae;margin-left:8px}details{margin:2px 0 4px 12px}
summary{cursor:pointer;color:#57606a}
#panel button{border:0;background:none;padding:2px 8px 2px 0;font:inherit;color:#0969da;text-align:left}
#view .block:focus-visible{outline:none}#view .block:focus-visible rect{stroke:#0969da;stroke-dasharray:4 2}
@media(max-width:760px){header{flex-wrap:wrap;gap:4px 12px}header span{flex-basis:100%;order:1}
header nav{flex:1}#find{flex:1;min-width:0;font-size:16px}
main{flex-direction:column}
#panel{width:100%;max-width:none;height:45%;border-left:0;border-top:1px solid #d0d7de}button{min-width:34px;min-height:30px}}
</style></head><body>
<header><h1>@TITLE@</h1><span>@SUMMARY@</span><nav><input id="find" type="search" placeholder="find block, operation, source"
aria-label="find"><button id="in" title="closer">+</button>
<button id="out" title="farther">&minus;</button>
<button id="fit" title="all of it">fit</button></nav></header>
<main><div id="view">@SVG@</div><aside id="panel"></aside></main>
<script type="application/json" id="data">@DATA@</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const svg = document.querySelector("#view svg"), panel = document.getElementById("panel");
const whole = svg.getAttribute("viewBox").split(" ").map(Number);
svg.removeAttribute("width"); svg.removeAttribute("height");
let box = whole.slice(), moved = false;
const pointers = new Map();
function show() { svg.setAttribute("viewBox", box.join(" ")); }
function point(x, y) {
  const p = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM().inverse());
  return [p.x, p.y];
}
function zoom(f, x, y) {
  const p = point(x, y);
  box = [p[0] - (p[0] - box[0]) * f, p[1] - (p[1] - box[1]) * f, box[2] * f, box[3] * f];
  show();
}
function zoomCentre(f) {
  const r = svg.getBoundingClientRect();
  zoom(f, r.x + r.width / 2, r.y + r.height / 2);
}
function middle() {
  const all = [...pointers.values()], sum = all.reduce((s, p) => [s[0] + p[0], s[1] + p[1]]);
  return [sum[0] / all.length, sum[1] / all.length];
}
function spread() {
  const [a, b] = pointers.values();
  return b ? Math.hypot(a[0] - b[0], a[1] - b[1]) : 0;
}
svg.addEventListener("wheel", e => { e.preventDefault(); zoom(Math.exp(e.deltaY * 0.0015), e.clientX, e.clientY); }, {passive: false});
// One pointer moves the picture, two also change its size.
svg.addEventListener("pointerdown", e => {
  if (!pointers.size) moved = false;
  pointers.set(e.pointerId, [e.clientX, e.clientY, e.clientX, e.clientY]);
});
window.addEventListener("pointermove", e => {
  const p = pointers.get(e.pointerId);
  if (!p) return;
  if (Math.hypot(e.clientX - p[2], e.clientY - p[3]) > 4) moved = true;
  if (!moved) return;
  const before = middle(), apart = spread();
  p[0] = e.clientX; p[1] = e.clientY;
  const now = middle(), from = point(...before), to = point(...now);
  box[0] += from[0] - to[0]; box[1] += from[1] - to[1];
  show();
  if (apart && spread()) zoom(apart / spread(), ...now);
});
for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, e => pointers.delete(e.pointerId));
document.getElementById("in").onclick = () => zoomCentre(1 / 1.4);
document.getElementById("out").onclick = () => zoomCentre(1.4);
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
    const w = svg.clientWidth * 1.1, h = svg.clientHeight * 1.1;
    box = [r.x + r.width / 2 - w / 2, r.y + r.height / 2 - h / 2, w, h];
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
    for (const other of block.edges) add(panel, "button", data.blocks[other].title).onclick = () => select(other, true);
  }
  if (block.source.length) add(panel, "h3", "source");
  let file = "";
  for (const [name, line, code] of block.source) {
    if (name !== file) { add(panel, "div", name); file = name; }
    add(panel, "pre", String(line).padStart(5) + "  " + code);
  }
}
for (const g of svg.querySelectorAll(".block")) {
  g.setAttribute("tabindex", "0");
  g.setAttribute("role", "button");
  g.addEventListener("click", () => { if (!moved) select(g.dataset.block, false); });
  g.addEventListener("keydown", e => { if (e.key === "Enter") select(g.dataset.block, false); });
}
document.getElementById("find").addEventListener("keydown", e => {
  if (e.key !== "Enter") return;
  const word = e.target.value.toLowerCase(), ids = Object.keys(data.blocks);
  const now = svg.querySelector(".selected"), start = now ? ids.indexOf(now.dataset.block) + 1 : 0;
  const found = ids.map((_, k) => ids[(start + k) % ids.length]).find(id => {
    const bodies = data.blocks[id].steps.map(step => data.bodies[step.call]);
    return JSON.stringify([data.blocks[id], bodies]).toLowerCase().includes(word);
  });
  e.target.classList.toggle("nothing", found === undefined);
  if (found !== undefined) select(found, true);
});
// A large graph begins where it is entered, at a size that can be read.
const pixels = svg.getBoundingClientRect();
select(data.first, Math.max(whole[2] / pixels.width, whole[3] / pixels.height) > 2.2);
</script></body></html>
"""
