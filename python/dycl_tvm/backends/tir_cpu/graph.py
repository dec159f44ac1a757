# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A sub-DNN as a graph of nodes that kernel families know: read from its Relax function, before operators become loops.

The function comes from TVM's ``LegalizeOps`` with the anchors left alone (:data:`ANCHORS`): every other operator is a
``call_tir`` of one unscheduled PrimFunc, in which element-wise and channel-wise operators are recognised whatever their name is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from dycl_tvm.backends.tir_cpu import rms_norm
from dycl_tvm.backends.tir_cpu.reading.borders import Border
from dycl_tvm.backends.tir_cpu.reading.channelwise_op import ChannelwiseOp, channelwise
from dycl_tvm.backends.tir_cpu.reading.expression import Elementwise, elementwise
from dycl_tvm.backends.tir_cpu.reading.stages import transposes
from dycl_tvm.backends.tir_cpu.words.attention import Attention
from dycl_tvm.backends.tir_cpu.words.loops import GROUP, SCHEDULED
from dycl_tvm.backends.tir_cpu.words.workload import PACKED_DTYPES, Epilogue, Tensor

#: Operators that the families take as they are.
ANCHORS = (
    "relax.nn.conv2d", "relax.nn.conv1d", "relax.matmul", "relax.nn.softmax", "relax.nn.log_softmax", "relax.nn.layer_norm",
    "relax.nn.group_norm", rms_norm.OPERATOR, "relax.concat",
)  # fmt: skip
#: Those whose kernels take no epilogue.
ALONE = ("relax.nn.softmax", "relax.nn.log_softmax", "relax.nn.layer_norm", "relax.nn.group_norm", rms_norm.OPERATOR)


@dataclass(eq=False)
class Var:
    """A tensor of the function, or a constant in it.

    Attributes
    ----------
    relax_var : relax.Var
    tensor : Tensor
    constant : bool
        Known at build time at all places that call the function.
    producer : Node, optional
    users : list of Node
    is_result : bool
    stored : str
        The type of its elements in memory, where that is another one than the tensor's.
    """

    relax_var: Any
    tensor: Tensor
    constant: bool
    producer: Node | None = None
    users: list[Node] = field(default_factory=list)
    is_result: bool = False
    stored: str = ""

    @property
    def memory(self) -> str:
        """The type of its elements in memory."""
        return self.stored or self.tensor.dtype

    @property
    def packable(self) -> bool:
        """Whether the tensor may have a packed layout."""
        return len(self.tensor.shape) >= 3 and self.tensor.shape[1] > 1 and self.tensor.dtype in PACKED_DTYPES and not self.constant


@dataclass(eq=False)
class Node:
    """One binding of the function.

    Attributes
    ----------
    value : relax.Expr
    inputs : list of Var
    outputs : list of Var
        One, or none if the binding is a tuple or part of one.
    anchor : str
        The Relax operator for anchors, ``tir`` for ``call_tir``, ``view``, ``attention`` for several nodes that became one, or empty.
    elementwise, channelwise, transposes : optional
        What was recognised; ``transposes``: the node exchanges the last two dimensions of its input.
    absorbed : list of Node
        Element-wise nodes that are computed in the epilogue of this one, in order.
    attention : tuple, optional
        The workload and what is done to its scores; ``inputs`` are queries, keys, values and the operands of that.
    group : int
        Of a node that dequantises weights (integers, scales): how many of a row have one scale.
    border : Border, optional
        Of a convolution: what it puts around its input.
    """

    value: Any
    relax_var: Any
    inputs: list[Var]
    output: Var | None
    anchor: str = ""
    elementwise: Elementwise | None = None
    channelwise: ChannelwiseOp | None = None
    transposes: bool = False
    absorbed: list[Node] = field(default_factory=list)
    host: Node | None = None
    packed: bool = False
    attention: tuple[Attention, Epilogue] | None = None
    group: int = 0
    border: Border | None = None

    @property
    def last(self) -> Var:
        """The tensor that the node and its epilogue leave."""
        found = self.absorbed[-1].output if self.absorbed else self.output
        assert found is not None
        return found


@dataclass
class Graph:
    """A function: its tensors by Relax variable, its nodes in order."""

    name: str
    function: Any
    vars: dict[Any, Var]
    nodes: list[Node]
    params: list[Var]
    results: list[Var]


class Reader:
    """Reads the functions of one module; what a PrimFunc is, is found out once."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod
        self._known: dict[str, tuple[Elementwise | None, ChannelwiseOp | None, bool, bool]] = {}

    def read(self, name: str, constant_params: Collection[int]) -> Graph:
        """Return the graph of a function.

        Parameters
        ----------
        name : str
        constant_params : collection of int
            Parameters that are weights wherever the function is called.
        """
        fn = self.mod[name]
        graph = Graph(name, fn, {}, [], [], [])
        for k, param in enumerate(fn.params):
            graph.params.append(self._var(graph, param, k in constant_params))
        for block in fn.body.blocks:
            for binding in block.bindings:
                self._binding(graph, binding.var, binding.value)
        body = fn.body.body
        if body in graph.vars or not isinstance(body, relax.Tuple):
            body = next(n.value for n in graph.nodes if n.relax_var.same_as(body)) if isinstance(body, relax.Var) else body
        for leaf in body.fields:
            var = graph.vars.get(leaf) if isinstance(leaf, relax.Var) else None
            if var is not None:
                var.is_result = True
                graph.results.append(var)
            else:
                raise AssertionError(f"a result of {name} that is no tensor variable: {leaf}")
        return graph

    def _var(self, graph: Graph, var: Any, constant: bool) -> Var:
        tensor = Tensor(tuple(int(d) for d in var.ty.shape), str(var.ty.dtype.dtype))
        found = graph.vars[var] = Var(var, tensor, constant)
        return found

    def _binding(self, graph: Graph, var: Any, value: Any) -> None:
        inputs = self._operands(graph, value)
        node = Node(value, var, inputs, None)
        if isinstance(var.ty, relax.TensorType):
            alias = isinstance(value, relax.Var) and value in graph.vars
            if alias:  # lv = x: one tensor
                graph.vars[var] = graph.vars[value]
                return
            constant = isinstance(value, tvm.ir.GenericConst) or (bool(inputs) and all(i.constant for i in inputs) and _is_kernel(value))
            node.output = self._var(graph, var, constant)
            node.output.producer = node
        self._recognise(node)
        graph.nodes.append(node)
        for i in dict.fromkeys(inputs):
            i.users.append(node)

    def _operands(self, graph: Graph, value: Any) -> list[Var]:
        """Return the tensors that a value reads: of a kernel's or anchor's call all arguments in order, repeated ones too."""
        args: Any = None
        if isinstance(value, relax.Call):
            op = getattr(value.op, "name", "")
            args = value.args[1] if op == "relax.call_tir" else relax.Tuple(value.args) if op in ANCHORS else None
            if op == "relax.concat":
                args = value.args[0]
        if isinstance(args, relax.Tuple) and all(isinstance(a, tvm.ir.GenericConst) or a in graph.vars for a in args.fields):
            for a in args.fields:
                if isinstance(a, tvm.ir.GenericConst) and a not in graph.vars:
                    self._var(graph, a, True)
            return [graph.vars[a] for a in args.fields]
        return [graph.vars[v] for v in _free_vars(value) if v in graph.vars]

    def _recognise(self, node: Node) -> None:
        value = node.value
        if not isinstance(value, relax.Call) or node.output is None:
            return
        op = getattr(value.op, "name", "")
        if op in ANCHORS:
            node.anchor = op
        elif op == "relax.call_tir":
            gv = value.args[0]
            if gv.name_hint not in self._known:
                fn = self.mod[gv]
                view = SCHEDULED not in fn.attrs and bool(relax.analysis.has_reshape_pattern(fn))
                self._known[gv.name_hint] = (elementwise(fn), channelwise(fn), transposes(fn), view)
            node.elementwise, node.channelwise, node.transposes, view = self._known[gv.name_hint]
            if len(node.inputs) != len(self.mod[gv].params) - 1:  # something else than tensors among the arguments
                node.elementwise = node.channelwise = None
            attrs = self.mod[gv].attrs
            node.group = int(attrs[GROUP]) if attrs and GROUP in attrs else 0
            same_size = len(node.inputs) == 1 and node.inputs[0].tensor.numel == node.output.tensor.numel
            node.anchor = "view" if view and same_size and node.inputs[0].tensor.dtype == node.output.tensor.dtype else "tir"


def _is_kernel(value: Any) -> bool:
    return isinstance(value, relax.Call) and getattr(value.op, "name", "").startswith("relax.") and value.op.name != "relax.call_dps_packed"


def _free_vars(value: Any) -> list[Any]:
    """Return the variables that a value reads, each once, in order of first use."""
    found: dict[Any, None] = {}

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Var) and not isinstance(expr, tvm.ir.GlobalVar):
            found.setdefault(expr, None)

    relax.analysis.post_order_visit(value, visit)
    return list(found)
