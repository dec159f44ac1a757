# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The static network of the path that an input takes: what an oracle runs that knows the way for free.

The graph is walked with the input; the tensor operations that ran are copied into one block, loops unrolled, branches left out.
Numbers that were read from tensors and go back into tensors (a word's index) become tensors of rank 0. What only a branch
needed is dead and is removed; batch norms are folded.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.builder import GraphBuilder, constant
from dycl_tvm.hcfg.interpreter import graph_initial, resolve, run_step
from dycl_tvm.hcfg.nodes import HCFG, Branch, Constant, HostOp, Jump, Return, SubDNNCall, Switch, TensorOp, Value, map_operands
from dycl_tvm.hcfg.types import ScalarType, TensorType
from dycl_tvm.passes import run_passes
from dycl_tvm.runtime.structure import unflatten

SCALAR_DTYPE = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}
TENSOR_FORM = {
    **{op: f"aten.{op}.Tensor" for op in ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge")},
    **{op: f"aten.{op}.default" for op in ("neg", "abs", "floor", "ceil", "round", "trunc", "sqrt", "exp", "log", "sin", "cos", "tanh")},
    **{op: f"aten.logical_{op}.default" for op in ("not", "and", "or", "xor")},
    "truediv": "aten.div.Tensor", "mod": "aten.remainder.Tensor", "min": "aten.minimum.default", "max": "aten.maximum.default",
    "select": "aten.where.self",
}  # fmt: skip


@dataclass(eq=False)
class _Number:
    """A host scalar that depends on the input; it is written only where a tensor or a result needs it."""

    step: HostOp
    args: list[Any]


@dataclass
class StaticPath:
    """One path as a network without control flow.

    Attributes
    ----------
    graph : HCFG
        One block, which calls one sub-DNN; it returns a flat tuple of tensors.
    key : tuple
        Equal for inputs that this very network serves: the way, and the ints and bools that it returns.
    structure, leaves
        The result of the network: each leaf is ``("output", k)``, ``("float", k)`` or ``("number", value)``.
    """

    graph: HCFG
    key: tuple[Any, ...]
    structure: Any
    leaves: list[tuple[str, Any]]


def result_of(structure: Any, leaves: Sequence[tuple[str, Any]], outputs: Sequence[Any]) -> Any:
    """Return what the dynamic network returns, from the outputs of the static one."""

    def leaf(k: int, _type: str) -> Any:
        kind, value = leaves[k]
        if kind == "number":
            return value
        return outputs[value] if kind == "output" else float(outputs[value])

    return unflatten(structure, leaf)


class _Walk:
    def __init__(self, graph: HCFG, inputs: Sequence[torch.Tensor], decisions: bool) -> None:
        self.graph, self.decisions = graph, decisions
        #: What the decisions of the path are taken by.
        self.asked: dict[Value, None] = {}
        names = [f"x{k}" for k in range(len(inputs))]
        self.out = GraphBuilder(graph.name, {n: p.type for n, p in zip(names, graph.inputs, strict=True)})
        self.data: dict[Value, Any] = dict(zip(graph.inputs, inputs))
        self.sym: dict[Value, Any] = dict(zip(graph.inputs, self.out.params))
        for param, var in zip(graph.entry.params[len(inputs) :], graph.state, strict=True):
            self.data[param] = graph_initial(var.initial)
            self.sym[param] = var.initial
        self.written: dict[_Number, Value] = {}

    def read(self, operand: Any) -> Any:
        return self.sym[operand] if isinstance(operand, Value) and not isinstance(operand, Constant) else operand

    def value(self, operand: Any) -> Any:
        if isinstance(operand, Constant):
            return operand.data
        return self.data[operand] if isinstance(operand, Value) else operand

    def tensor(self, operand: Any, dtype: torch.dtype | None = None) -> Value:
        """Return what an operand is as a tensor."""
        found = self.read(operand)
        if isinstance(found, _Number):
            if found not in self.written:
                self.written[found] = self.write(found)
            return self.written[found]
        return found if isinstance(found, Value) else constant(torch.tensor(found, dtype=dtype))

    def write(self, number: _Number) -> Value:
        step, entry = number.step, self.out.entry
        assert isinstance(step.output.type, ScalarType)
        dtype = SCALAR_DTYPE[step.output.type.kind]
        args = [self.number_tensor(a) for a in number.args]
        if step.op == "item":
            flat = self.out.op(entry, "aten.reshape.default", args[0], [])
            return self.out.op(entry, "aten._to_copy.default", flat, dtype=dtype)
        if step.op in ("to_int", "to_float", "to_bool"):
            return self.out.op(entry, "aten._to_copy.default", args[0], dtype=dtype)
        if step.op not in TENSOR_FORM:
            raise UnsupportedError(f"the host operation {step.op} has no form on tensors here", step.origin)
        return self.out.op(entry, TENSOR_FORM[step.op], *args)

    def number_tensor(self, found: Any) -> Value:
        if isinstance(found, _Number):
            if found not in self.written:
                self.written[found] = self.write(found)
            return self.written[found]
        if isinstance(found, Value):
            return found
        return constant(torch.tensor(found, dtype=torch.float64 if isinstance(found, float) else None))

    def step(self, step: Any) -> None:
        if isinstance(step, TensorOp):
            outputs = tuple(None if o is None else Value(o.type, o.name) for o in step.outputs)
            self.sym.update((o, n) for o, n in zip(step.outputs, outputs) if o is not None)
            made = TensorOp(step.op, map_operands(step.args, self.tensor), map_operands(step.kwargs, self.tensor), outputs, step.origin)
            self.out.entry.steps.append(made)
            run_step(step, self.data)
            return
        assert isinstance(step, HostOp), "the graph is the one before outlining"
        run_step(step, self.data)
        args = [self.read(a) for a in step.args]
        if isinstance(step.output.type, TensorType):
            source = self.number_tensor(args[0])
            dtype = getattr(torch, step.output.type.dtype)
            self.sym[step.output] = self.out.op(self.out.entry, "aten._to_copy.default", source, dtype=dtype)
        elif any(isinstance(a, (_Number, Value)) for a in args):
            self.sym[step.output] = _Number(step, args)
        else:
            self.sym[step.output] = self.data[step.output]

    def run(self) -> StaticPath:
        block, way = self.graph.entry, []
        while True:
            for step in block.steps:
                self.step(step)
            if isinstance(block.terminator, Return):
                return self.leave(block.terminator, way)
            choice, edge = self.choose(block.terminator)
            if self.decisions and isinstance(block.terminator, (Branch, Switch)):
                by = block.terminator.cond if isinstance(block.terminator, Branch) else block.terminator.index
                if isinstance(self.read(by), (_Number, Value)):
                    self.asked[self.tensor(by)] = None
            way.append((block.name, choice))
            moved = [(self.read(a), self.value(a)) for a in edge.args]
            for param, (sym, datum) in zip(edge.target.params, moved, strict=True):
                self.sym[param], self.data[param] = sym, datum
            block = edge.target

    def choose(self, term: Any) -> tuple[int, Any]:
        if isinstance(term, Jump):
            return 0, term.edge
        if isinstance(term, Branch):
            return (0, term.then) if self.value(term.cond) else (1, term.orelse)
        if isinstance(term, Switch):
            index = self.value(term.index)
            return index, term.edges[index]
        raise UnsupportedError("the path ends in an exception")

    def leave(self, term: Return, way: list[Any]) -> StaticPath:
        outputs: list[Value] = []
        leaves: list[tuple[str, Any]] = []
        for operand in term.values:
            value = self.value(operand)
            if isinstance(value, torch.Tensor) or (isinstance(value, float) and isinstance(self.read(operand), _Number)):
                leaves.append(("output" if isinstance(value, torch.Tensor) else "float", len(outputs)))
                outputs.append(self.tensor(operand))
            else:
                leaves.append(("number", value))
        self.out.leave(self.out.entry, *outputs, *self.asked)
        run_passes(self.out.graph, ["element_checks"])  # a network that peers run has checks of theirs
        numbers = tuple(v for kind, v in leaves if kind == "number")
        return StaticPath(self.out.graph, (tuple(way), numbers), term.site.structure, leaves)


def static_path(graph: HCFG, inputs: Sequence[torch.Tensor], decisions: bool = False) -> StaticPath:
    """Return the static network of the path that an input takes.

    Parameters
    ----------
    graph : HCFG
        As the front end makes it, before the passes.
    inputs : sequence of torch.Tensor
        The leaves of its input structure. State variables have their initial values.
    decisions : bool
        Whether it gives also, behind its results, what the decisions of the path are taken by. Otherwise that is left out.
    """
    with torch.no_grad():
        return _Walk(graph, inputs, decisions).run()


def write_onnx(path: StaticPath, file: Path) -> None:
    """Write the static network as ONNX, weights inside."""
    from dycl_tvm.onnx_export import export_model

    export_model(path.graph, file)


def written(call: SubDNNCall, args: Sequence[torch.fx.Node], graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Write the operations of a sub-DNN into a graph of ATen operations; return its results."""
    inner = dict(zip(call.callee.params, args, strict=True))
    for op in call.callee.ops:
        target = resolve("aten.reshape.default" if op.op in ("aten.view.default", "aten._unsafe_view.default") else op.op)
        node = graph.call_function(target, map_operands(op.args, inner.__getitem__), map_operands(op.kwargs, inner.__getitem__))
        several = len(target._schema.returns) > 1 or str(target._schema.returns[0].type).startswith("List")
        for k, output in enumerate(op.outputs):
            if output is not None:
                inner[output] = graph.call_function(operator.getitem, (node, k)) if several else node
    return [inner[r] for r in call.callee.results]


def torch_module(path: StaticPath) -> torch.nn.Module:
    """Return the static network as a module of ATen operations; it gives a tuple of tensors."""
    entry = path.graph.entry
    root, graph = torch.nn.Module(), torch.fx.Graph()
    env: dict[Value, torch.fx.Node] = {p: graph.placeholder(p.name) for p in entry.params}

    def read(value: Value) -> torch.fx.Node:
        if value not in env and isinstance(value, Constant):
            name = f"weight_{len(env)}"
            root.register_buffer(name, value.data)
            env[value] = graph.get_attr(name)
        return env[value]

    for call in entry.steps:
        env.update(zip(call.outputs, written(call, [read(a) for a in call.args], graph), strict=True))
    assert isinstance(entry.terminator, Return)
    graph.output(tuple(read(v) for v in entry.terminator.values if isinstance(v, Value)))
    graph.eliminate_dead_code()
    return torch.fx.GraphModule(root, graph)
