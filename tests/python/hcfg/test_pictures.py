# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Listing, Graphviz source, SVG and the page."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from xml.etree import ElementTree

import torch

from dycl_tvm.hcfg.builder import GraphBuilder, constant, tensor
from dycl_tvm.hcfg.layout import layered
from dycl_tvm.hcfg.nodes import HCFG, Edge, Origin, StateVar
from dycl_tvm.hcfg.types import INT
from dycl_tvm.passes import run_passes

V = tensor(4)


def example(gates: int = 2, outlined: bool = True) -> HCFG:
    g = GraphBuilder("net <&>", {"x": V}, [StateVar("seen", INT, 3)])
    x, seen = g.params
    block, end = g.entry, g.block("end", V)
    for k in range(gates):
        origin = Origin("/home/user/model.py", 10 + k, "Net.forward", 'if x.mean() > 0.5 and name != "</script>":')
        block.origin = origin
        y = g.op(block, "aten.mul.Tensor", x, constant(torch.full((4,), float(k)), "layer.weight"), origin=origin)
        high = g.host(block, "gt", g.host(block, "item", g.op(block, "aten.mean.default", y)), 0.5, origin=origin)
        nxt = g.block(f"next{k}")
        g.branch(block, high, Edge(end, [y]), nxt, origin)
        block, x = nxt, y
    head, body = g.block("head", INT), g.block("body")
    a, b, c = g.block("a"), g.block("b"), g.block("c")
    g.jump(block, head, 0)
    g.branch(head, g.host(head, "lt", head.params[0], seen), body, a)
    g.jump(body, head, g.host(body, "add", head.params[0], 1))
    g.switch(a, seen, b, c)
    g.fail(b, "ValueError", 'a "quoted"\nmessage')
    g.jump(c, end, x)
    g.leave(end, end.params[0], state=[seen])
    if outlined:
        run_passes(g.graph)
    return g.graph


def test_listing_shows_everything_and_is_stable() -> None:
    text = str(example())
    assert text == str(example())
    for part in ("hcfg net <&> {", "state seen: int = 3", "bb0(%0 x: float32[4], %1 seen: int):  # entry", "call sub_dnn_0(", "branch %",
                 "switch %1 [", "raise ValueError(", "/home/user/model.py:10: if x.mean()", "sub_dnn sub_dnn_0(", "@layer.weight#2",
                 "give %"):  # fmt: skip
        assert part in text, part
    assert "aten.mean.default(" in str(example(outlined=False))


def test_repr_does_not_follow_the_edges() -> None:
    """A failing assertion writes it: blocks written with what they lead to would be as many as there are paths."""
    assert len(repr(example(gates=40))) < 5_000


def test_dot_is_quoted_and_labelled() -> None:
    dot = example().to_dot()
    assert dot.count("{") - dot.count("}") == 0
    assert 'label="true"' in dot
    assert 'label="false"' in dot
    assert 'label="1"' in dot
    assert "style=dashed" in dot
    for line in dot.splitlines()[3:-1]:
        assert re.fullmatch(r'  bb\d+ (-> bb\d+ )?\[label="([^"\\]|\\.)*"[^"]*\];', line), line


def test_svg_has_all_blocks_and_edges() -> None:
    graph = example()
    tree = ElementTree.fromstring(graph.to_svg())
    space = "{http://www.w3.org/2000/svg}"
    boxes = [g for g in tree.iter(f"{space}g")]
    assert [b.get("data-block") for b in sorted(boxes, key=lambda b: int(b.get("data-block", "")[2:]))] == [
        f"bb{k}" for k in range(len(graph.blocks))
    ]
    paths = [p for p in tree.iter(f"{space}path") if p.get("marker-end")]
    assert len(paths) == sum(len(b.edges()) for b in graph.blocks)
    assert sum(p.get("class") == "back" for p in paths) == 1
    labels = [t.text for t in tree.iter(f"{space}text") if t.get("class") == "label"]
    assert labels.count("true") == labels.count("false") == 3
    assert {"0", "1"} <= set(labels)
    frames = [tuple(float(b[0].get(k, "")) for k in ("x", "y", "width", "height")) for b in boxes]
    for i, (x, y, w, h) in enumerate(frames):
        for x2, y2, w2, h2 in frames[i + 1 :]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y, "two boxes overlap"
    assert graph.to_svg() == example().to_svg()


def test_page_is_self_contained() -> None:
    graph = example()
    page = graph.to_html()
    assert not re.search(r"(src|href)\s*=(?!\"data:)|@import|url\((?!#)|https?://(?!www\.w3\.org/2000/svg)", page)
    assert page.count("</script>") == 2
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1))  # type: ignore[union-attr]
    assert list(data["blocks"]) == [f"bb{k}" for k in range(len(graph.blocks))]
    first = data["blocks"]["bb0"]
    assert first["steps"][0]["call"] in data["bodies"]
    assert ["/home/user/model.py", 10, 'if x.mean() > 0.5 and name != "</script>":'] in first["source"]


def test_large_graph_stays_usable() -> None:
    graph = example(gates=300)
    svg = graph.to_svg()
    ElementTree.fromstring(svg)
    assert len(svg) < 8 << 20


def test_layout_of_any_graph() -> None:
    plan = layered([0, 1, 2, 3], [(0, 1), (1, 3), (0, 3), (3, 1), (2, 2), (0, 1)], [10, 20, 30, 40], 5)
    assert plan.layer == [0, 1, 0, 2]
    assert plan.back == [False, False, False, True, True, False]
    assert abs(plan.x[0] - plan.x[2]) >= 10 / 2 + 30 / 2 + 5 - 1e-9
    for route, back in zip(plan.routes, plan.back):
        steps = [b[1] - a[1] for a, b in pairwise(route)]
        assert set(steps) <= ({-1, 0} if back else {1})


def test_single_block() -> None:
    g = GraphBuilder("one", {"x": V})
    g.leave(g.entry, g.params[0])
    for text in (str(g.graph), g.graph.to_dot(), g.graph.to_svg(), g.graph.to_html()):
        assert "bb0" in text
