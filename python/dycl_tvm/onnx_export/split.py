# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The network as one ONNX model a sub-DNN, a file of weights, and a JSON description of the graph around them.

    hcfg.json          blocks, host operations, terminators, return sites
    weights.params     the constants, in the layout of safetensors
    sub_dnn_0.onnx     ...

Values are numbers in the description. An operand is a value ``{"value": n}``, a weight ``{"weight": "name"}`` or a number.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import onnx
import torch

from dycl_tvm.errors import UsageError
from dycl_tvm.hcfg.nodes import HCFG, Block, Branch, Constant, Edge, HostOp, Jump, Operand, Raise, Return, SubDNNCall, Switch, Value
from dycl_tvm.hcfg.types import ScalarType, Type
from dycl_tvm.onnx_export.operators import export_sub_dnns
from dycl_tvm.onnx_export.scope import dtype_of, shape_of
from dycl_tvm.runtime.params import ParamTensor, write_params

FORMAT = "dycl-split"
FORMAT_VERSION = 1
GRAPH_FILE, WEIGHTS_FILE = "hcfg.json", "weights.params"


def export_split(graph: HCFG, folder: str | os.PathLike[str]) -> Path:
    """Write a graph, after the passes, into a folder; what lies there under the same names is replaced.

    Raises
    ------
    UsageError
        If the folder is a file, or onnxscript is missing.
    UnsupportedError
        For an operator that has no form in ONNX.
    """
    out = Path(folder)
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; export_onnx(..., split=True) writes a folder")
    out.mkdir(parents=True, exist_ok=True)
    writer = _Writer(graph)
    description = writer.graph_json()
    for sub, model in export_sub_dnns(graph.sub_dnns()).items():
        onnx.save_model(model, str(out / f"{sub.name}.onnx"))
    text = json.dumps(description, indent=1)
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    write_params(out / WEIGHTS_FILE, writer.weights(), fingerprint)
    (out / GRAPH_FILE).write_text(text, encoding="utf-8")
    return out


class _Writer:
    def __init__(self, graph: HCFG) -> None:
        self.graph = graph
        self.numbers: dict[Value, int] = {}
        self.names: dict[Constant, str] = {}
        self.blocks = {b: k for k, b in enumerate(graph.blocks)}

    def graph_json(self) -> dict[str, Any]:
        graph = self.graph
        sites = graph.return_sites()
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "name": graph.name,
            "inputs": graph.input_structure,
            "input_names": graph.input_names,
            "input_types": [_type(p.type) for p in graph.inputs],
            "sizes": [dataclasses.asdict(size) for size in graph.sizes],
            "state": [{"name": v.name, "initial": self.operand(v.initial)} for v in graph.state],
            "sub_dnns": [s.name for s in graph.sub_dnns()],
            "sites": [{"structure": s.structure, "origin": str(s.origin) if s.origin else None} for s in sites],
            "blocks": [self.block(b, sites) for b in graph.blocks],
        }

    def block(self, block: Block, sites: list[Any]) -> dict[str, Any]:
        return {
            "name": block.name,
            "origin": str(block.origin) if block.origin else None,
            "params": [self.number(p) for p in block.params],
            "steps": [self.step(s) for s in block.steps],
            "end": self.end(block.terminator, sites),
        }

    def step(self, step: Any) -> dict[str, Any]:
        if isinstance(step, SubDNNCall):
            return {
                "call": step.callee.name,
                "args": [self.operand(a) for a in step.args],
                "results": [self.number(o) for o in step.outputs],
            }
        assert isinstance(step, HostOp), "tensor operations are outlined"
        found = {
            "host": step.op,
            "args": [self.operand(a) for a in step.args],
            "result": self.number(step.output),
            "type": _type(step.output.type),
        }
        text = getattr(step, "text", None)  # the template of a print
        return found if text is None else {**found, "text": text}

    def end(self, term: Any, sites: list[Any]) -> dict[str, Any]:
        if isinstance(term, Jump):
            return {"jump": self.edge(term.edge)}
        if isinstance(term, Branch):
            return {"branch": self.operand(term.cond), "then": self.edge(term.then), "else": self.edge(term.orelse)}
        if isinstance(term, Switch):
            return {"switch": self.operand(term.index), "edges": [self.edge(e) for e in term.edges]}
        if isinstance(term, Return):
            site = next(k for k, s in enumerate(sites) if s is term.site)
            return {"return": site, "values": [self.operand(v) for v in term.values], "state": [self.operand(v) for v in term.state]}
        assert isinstance(term, Raise)
        return {"raise": term.kind, "message": term.message}

    def edge(self, edge: Edge) -> dict[str, Any]:
        return {"block": self.blocks[edge.target], "args": [self.operand(a) for a in edge.args]}

    def number(self, value: Value) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def operand(self, operand: Operand) -> Any:
        if isinstance(operand, Constant):
            if operand not in self.names:
                taken = set(self.names.values())
                name = operand.name or f"constant_{len(self.names)}"
                self.names[operand] = name if name not in taken else f"{name}#{len(self.names)}"
            return {"weight": self.names[operand]}
        return {"value": self.number(operand)} if isinstance(operand, Value) else operand

    def weights(self) -> list[ParamTensor]:
        found = []
        for constant, name in self.names.items():
            data = constant.data.contiguous()
            raw = data.reshape(-1).view(torch.uint8).numpy() if data.numel() else torch.empty(0, dtype=torch.uint8).numpy()
            found.append(ParamTensor(name, dtype_of(constant.type), shape_of(constant.type), raw.data))
        return found


def _type(type_: Type) -> Any:
    return type_.kind if isinstance(type_, ScalarType) else {"dtype": type_.dtype, "shape": list(type_.shape)}
