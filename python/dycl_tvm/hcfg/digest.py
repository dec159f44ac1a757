# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Digests by which graphs are known again."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from dycl_tvm.hcfg.nodes import HCFG, Branch, Constant, HostOp, Raise, Return, SubDNNCall, Switch, Value


def digest(graph: HCFG) -> str:
    """Return a digest of what a graph computes, its weights included: the same on every machine, whatever the files are called."""
    found = hashlib.sha256()
    values: dict[Value, str] = {}
    weights: dict[int, str] = {}
    blocks = {b: str(k) for k, b in enumerate(graph.blocks)}

    def value(v: Any) -> str:
        if isinstance(v, Constant):
            if id(v.data) not in weights:
                weights[id(v.data)] = hashlib.sha256(_bytes(v.data)).hexdigest()
            return f"{v.type}={weights[id(v.data)]}"
        if isinstance(v, Value):
            return values.setdefault(v, f"%{len(values)}:{v.type}")
        return f"{type(v).__name__}={v!r}"

    def operands(node: Any) -> str:
        if isinstance(node, (list, tuple)):
            return "(" + ",".join(operands(n) for n in node) + ")"
        if isinstance(node, dict):
            return "{" + ",".join(f"{k}:{operands(node[k])}" for k in sorted(node)) + "}"
        return value(node)

    def say(*words: Any) -> None:
        found.update("\0".join(map(str, words)).encode() + b"\n")

    say("graph", graph.input_structure, graph.input_names, graph.sizes)
    for variable in graph.state:
        say("state", variable.name, variable.type, value(variable.initial))
    for block in graph.blocks:
        say("block", blocks[block], operands(block.params))
        for step in block.steps:
            if isinstance(step, SubDNNCall):
                say("call", step.callee.name, operands(step.args), operands(step.outputs))
            elif isinstance(step, HostOp):
                say("host", step.op, operands(step.args), value(step.output), step.text)
            else:
                say("tensor", step.op, operands(step.args), operands(step.kwargs), operands(step.outputs))
        end = block.terminator
        for edge in block.edges():
            say("edge", blocks[edge.target], operands(edge.args))
        if isinstance(end, Branch):
            say("branch", operands(end.cond))
        elif isinstance(end, Switch):
            say("switch", operands(end.index))
        elif isinstance(end, Return):
            say("return", end.site.structure, operands(end.values), operands(end.state))
        elif isinstance(end, Raise):
            say("raise", end.kind, end.message)
    return found.hexdigest()


def _bytes(t: torch.Tensor) -> bytes:
    if t.is_meta:
        return b""
    flat = t.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().data) if flat.numel() else b""
