# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Layout planning over the whole graph: which tensors are packed, so that as few bytes as possible are converted.

Values of the HCFG that meet (a value and the block parameter that it is passed to, an argument and the sub-DNN's parameter) have one
layout; inside of sub-DNNs, kernels that want a layout are fixed and those that take any follow their neighbours. A conversion costs the
bytes that it moves. The cheapest labelling is a minimum cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tvm import relax

from dycl_tvm.backends.tir_cpu.graph import Graph, Node, Var
from dycl_tvm.backends.tir_cpu.kernels import Kernels, Want
from dycl_tvm.compile.min_cut import MinCut
from dycl_tvm.hcfg.nodes import HCFG, Constant, Return, SubDNNCall, Value
from dycl_tvm.hcfg.types import TensorType

#: A conversion is a kernel call too: what that costs, in bytes moved.
_CALL_BYTES = 8192
#: What the generic schedule takes for one element of a window, about 3 ns, in bytes moved.
_GENERIC_TAP_BYTES = 16


@dataclass
class Layouts:
    """The plan.

    Attributes
    ----------
    block_of : dict
        ``id(Value)`` of each packed value of the HCFG to its block.
    params, results : dict
        Name of a sub-DNN to the block of each parameter and result.
    """

    block_of: dict[int, int] = field(default_factory=dict)
    params: dict[str, list[int]] = field(default_factory=dict)
    results: dict[str, list[int]] = field(default_factory=dict)

    def physical(self, value: Value) -> TensorType:
        """Return the type of the array that holds a value."""
        assert isinstance(value.type, TensorType)
        return packed_type(value.type, self.block_of.get(id(value), 1))


def packed_type(type_: TensorType, block: int) -> TensorType:
    """Return the type of the array of a tensor whose channels are in blocks."""
    if block == 1:
        return type_
    shape = type_.shape
    return TensorType((shape[0], -(-shape[1] // block), *shape[2:], block), type_.dtype)


def constant_params(graph: HCFG) -> dict[str, set[int]]:
    """Return, for each sub-DNN, the parameters that are constants at all its calls."""
    found: dict[str, set[int]] = {}
    for block in graph.blocks:
        for step in block.steps:
            if isinstance(step, SubDNNCall):
                constant = {k for k, a in enumerate(step.args) if isinstance(a, Constant)}
                name = step.callee.name
                found[name] = found[name] & constant if name in found else constant
    return found


def plan_layouts(graph: HCFG, functions: dict[str, Graph], kernels: Kernels, across: bool = True) -> Layouts:
    """Choose the layout of every tensor; the nodes of ``functions`` that become packed kernels are marked.

    Parameters
    ----------
    graph : HCFG
    functions : dict
        Name of a sub-DNN to its graph, fused.
    kernels : Kernels
        Says what each node wants.
    across : bool
        False keeps every tensor plain between kernels (the ablation).
    """
    return _Planner(graph, functions, kernels, across).run()


class _Planner:
    def __init__(self, graph: HCFG, functions: dict[str, Graph], kernels: Kernels, across: bool) -> None:
        self.graph, self.functions, self.kernels, self.across = graph, functions, kernels, across
        self.cut = MinCut()
        self._plain = self.cut.node()
        self.cut.fix(self._plain, False)
        self.of_value: dict[int, int] = {}
        self.of_var: dict[int, int] = {}
        self.of_node: dict[int, int] = {}
        self.classes = _Classes()

    def run(self) -> Layouts:
        self._tie_values()
        for function in self.functions.values():
            self._function(function)
        self._fix_borders()
        label = self.cut.solve()
        lanes = self.kernels.machine.lanes
        out = Layouts()
        for key, value in self.classes.members():
            number = self.of_value.get(self.classes.root(key))
            if number is not None and label[number]:
                out.block_of[id(value)] = lanes
        for function in self.functions.values():
            out.params[function.name] = [lanes if self._packed(label, v) else 1 for v in function.params]
            out.results[function.name] = [1] * len(function.results)
            for node in function.nodes:
                if id(node) in self.of_node:
                    node.packed = label[self.of_node[id(node)]]
        for block in self.graph.blocks:
            for step in block.steps:
                if isinstance(step, SubDNNCall) and step.callee.name in self.functions:
                    blocks = [out.block_of.get(id(v), 1) if isinstance(v, Value) else 1 for v in step.outputs]
                    out.results[step.callee.name] = blocks
        return out

    def _packed(self, label: list[bool], var: Var) -> bool:
        number = self.of_var.get(id(var))
        return number is not None and label[number]

    # -- values of the HCFG --------------------------------------------------------------------------------------------

    def _tie_values(self) -> None:
        """Values that must have one layout become one class; parameters and results of sub-DNNs are members by (name, kind, number)."""
        for block in self.graph.blocks:
            for edge in block.edges():
                for p, a in zip(edge.target.params, edge.args):
                    if isinstance(a, Value) and not isinstance(a, Constant) and isinstance(p.type, TensorType):
                        self.classes.join(id(p), id(a), p, a)
            for step in block.steps:
                if isinstance(step, SubDNNCall) and step.callee.name in self.functions:
                    for k, arg in enumerate(step.args):
                        if isinstance(arg, Value) and not isinstance(arg, Constant):
                            self.classes.join(id(arg), (step.callee.name, "param", k), arg, None)
                    for k, out in enumerate(step.outputs):
                        self.classes.join(id(out), (step.callee.name, "result", k), out, None)

    def _fix_borders(self) -> None:
        """Inputs, state, results, values that the dispatcher reads, and what constants flow into are plain."""
        plain: list[Any] = [*self.graph.blocks[0].params]
        for block in self.graph.blocks:
            for step in block.steps:
                if not isinstance(step, SubDNNCall):
                    plain += [v for v in (*step.operands(), *step.results()) if isinstance(v, Value)]
                    continue
                known = self.functions.get(step.callee.name)
                if known is None:
                    plain += [v for v in (*step.args, *step.outputs) if isinstance(v, Value)]
                    continue
                for k, arg in enumerate(step.args):
                    if isinstance(arg, Constant) and not known.params[k].constant:
                        self._fix((step.callee.name, "param", k))
            if isinstance(block.terminator, Return):
                plain += [v for v in (*block.terminator.values, *block.terminator.state) if isinstance(v, Value)]
            for edge in block.edges():
                plain += [p for p, a in zip(edge.target.params, edge.args) if not isinstance(a, Value) or isinstance(a, Constant)]
        values = [v for b in self.graph.blocks for v in (*b.params, *(r for s in b.steps for r in s.results()))]
        plain += [v for v in values if isinstance(v.type, TensorType) and v.type.is_complex]  # a part is no channel
        for value in plain:
            self._fix(id(value))

    def _fix(self, key: Any) -> None:
        number = self.of_value.get(self.classes.root(key))
        if number is not None:
            self.cut.fix(number, False)

    def _class(self, key: Any) -> int:
        root = self.classes.root(key)
        if root not in self.of_value:
            number = self.of_value[root] = self.cut.node()
            if not self.across:
                self.cut.fix(number, False)
        return self.of_value[root]

    # -- nodes of sub-DNNs ---------------------------------------------------------------------------------------------

    def _function(self, function: Graph) -> None:
        for k, param in enumerate(function.params):
            if not param.constant:
                self.of_var[id(param)] = self._class((function.name, "param", k))
                if not param.packable:
                    self.cut.fix(self.of_var[id(param)], False)
        readers: dict[Var, list[int]] = {}
        for node in function.nodes:
            if node.host is None and not isinstance(node.value, relax.Tuple):  # of a tuple, each part is read where it is used
                self._node(node, readers)
        for k, result in enumerate(function.results):
            number = self._class((function.name, "result", k))
            if not result.packable:
                self.cut.fix(number, False)
            if result.constant:
                self.cut.fix(number, False)
            else:
                readers.setdefault(result, []).append(number)
        for var, numbers in readers.items():  # a tensor is converted once in a function, however many read it
            self.cut.any_different(self._var(var), numbers, _cost(var))

    def _var(self, var: Var) -> int:
        if id(var) not in self.of_var:
            number = self.of_var[id(var)] = self.cut.node()
            if not var.packable or not self.across:
                self.cut.fix(number, False)
        return self.of_var[id(var)]

    def _node(self, node: Node, readers: dict[Var, list[int]]) -> None:
        want = self.kernels.want(node)
        mine = self.of_node[id(node)] = self.cut.node()
        if want is not Want.FOLLOW:
            self.cut.fix(mine, want is Want.PACKED)
        elif node.elementwise is None:  # plain pooling and resizing run by the generic schedule, element by element
            self.cut.fix(mine, True, _cost(node.last) + _GENERIC_TAP_BYTES * _taps(node))
        packed = self.kernels.read_packed(node) if want is not Want.PLAIN else node.inputs
        for var in packed:
            if var.packable:
                readers.setdefault(var, []).append(mine)
        for var in node.inputs:  # a convolution reads images of few channels plain
            if var.packable and var not in packed:
                readers.setdefault(var, []).append(self._plain)
        out = node.last if node.output is not None else None
        if out is not None and out.packable:
            self.cut.different(mine, self._var(out), _cost(out))


def _taps(node: Node) -> int:
    """Return how many elements the windows of a pooling have in all; what leaves one element of an image has no window."""
    op = node.channelwise
    if op is None or op.reduction is None or math.prod(op.extents[2:]) == 1:
        return 0
    return math.prod(op.extents) * math.prod(op.reduction.extents)


def _cost(var: Var) -> float:
    return 2.0 * var.tensor.nbytes + _CALL_BYTES


class _Classes:
    """Disjoint sets of keys; values that are members are kept."""

    def __init__(self) -> None:
        self._parent: dict[Any, Any] = {}
        self._values: dict[Any, Value] = {}

    def root(self, key: Any) -> Any:
        self._parent.setdefault(key, key)
        while self._parent[key] != key:
            self._parent[key] = self._parent[self._parent[key]]
            key = self._parent[key]
        return key

    def join(self, a: Any, b: Any, *values: Value | None) -> None:
        for key, value in zip((a, b), values):
            if value is not None:
                self._values[key] = value
        ra, rb = self.root(a), self.root(b)
        if ra != rb:
            self._parent[rb] = ra

    def members(self) -> list[tuple[Any, Value]]:
        return list(self._values.items())
