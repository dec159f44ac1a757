# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Finds attention in a graph, softmax(f(q k^T)) v with f element-wise, and makes one node of it.

Transpositions, slices and broadcasts of the operands, and one transposition of the result, become strides of the kernel. A row
of -inf is NaN after a softmax; what PyTorch's own attention makes of it, 0, is written out by the importer as
:func:`dycl_tvm.compile.ops.linear.attention` says, and found here by its form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import TensorLoad

from dycl_tvm.backends.tir_cpu.graph import Graph, Node, Var
from dycl_tvm.backends.tir_cpu.reading.stages import read_stages
from dycl_tvm.backends.tir_cpu.strided import moved_from, row_major, source_of
from dycl_tvm.backends.tir_cpu.words.attention import Attention
from dycl_tvm.backends.tir_cpu.words.workload import Epilogue, Tensor

#: Operations of a step between the products, in floating point operations an element, and steps.
_MOST_STEPS = 12


@dataclass
class _Steps:
    """What lies between the first product and the softmax, in order; what is not element-wise is the causal mask."""

    product: Node
    nodes: list[Node]


def join(graph: Graph, mod: tvm.IRModule, takes: Callable[[Attention], bool]) -> None:
    """Replace the nodes of each attention that ``takes`` wants by one."""
    replaced: dict[Node, Node | None] = {}
    for node in graph.nodes:
        if node.anchor == "relax.nn.softmax":
            found = _Match(graph, mod, node).run()
            if found is not None and found[0].attention is not None and takes(found[0].attention[0]):
                new, old = found
                replaced |= {**dict.fromkeys(old), old[-1]: new}
                _rewire(new, old)
    graph.nodes = [kept for kept in (replaced.get(n, n) for n in graph.nodes) if kept is not None]


def _rewire(new: Node, old: Sequence[Node]) -> None:
    assert new.output is not None
    for node in old:
        for var in node.inputs:
            var.users = [u for u in var.users if u is not node]
    new.output.producer = new
    for var in dict.fromkeys(new.inputs):
        var.users.append(new)


class _Match:
    """One softmax and what is around it."""

    def __init__(self, graph: Graph, mod: tvm.IRModule, softmax: Node) -> None:
        self.graph, self.mod, self.softmax = graph, mod, softmax

    def run(self) -> tuple[Node, list[Node]] | None:
        """Return the node of the attention, and those that it replaces, the last one last."""
        softmax = self.softmax
        scores = softmax.inputs[0] if len(softmax.inputs) == 1 else None
        if scores is None or softmax.output is None or scores.tensor.dtype != "float32" or scores.constant or len(scores.tensor.shape) < 2:
            return None
        if int(softmax.value.attrs.axis) % len(scores.tensor.shape) != len(scores.tensor.shape) - 1:
            return None
        weights, after, empty_rows = self._weights(scores)
        steps = self._steps(scores, {softmax, *after})
        last = _only_user(weights)
        while last is not None and last.anchor == "view" and last.output is not None:
            after.append(last)
            weights = last.output
            last = _only_user(weights)
        if steps is None or last is None or last.anchor != "relax.matmul" or len(last.inputs) != 2 or last.inputs[0] is not weights:
            return None
        if weights.tensor.shape[-2:] != scores.tensor.shape[-2:]:
            return None
        return self._node(steps, after, last, empty_rows)

    def _weights(self, scores: Var) -> tuple[Var, list[Node], bool]:
        """Return the softmax's result, zero in rows of -inf if that follows, the nodes that do it, and whether it does."""
        out = self.softmax.output
        assert out is not None
        user = _only_user(out)
        if user is not None and user.output is not None and user.inputs == [scores, out] and user.anchor == "tir":
            if _clears_lost(self.mod[user.value.args[0]]):
                return user.output, [user], True
        return out, [], False

    def _steps(self, scores: Var, users: set[Node]) -> _Steps | None:
        """Follow the scores back to the product that they come from.

        Views are free to do anything: where a shape ends with rows and keys, an element is where it was.
        """
        nodes: list[Node] = []
        var = scores
        while True:
            node = var.producer
            if node is None or var.is_result or any(u not in users for u in var.users) or len(nodes) > _MOST_STEPS:
                return None
            if node.anchor == "relax.matmul":
                return _Steps(node, nodes[::-1])
            before = self._continued(node)
            if before is None:
                return None
            nodes.append(node)
            var, users = before, {node}

    def _continued(self, node: Node) -> Var | None:
        """Return the tensor of scores that an element-wise node, a view or the causal mask works on."""
        if node.output is None or node.output.constant:
            return None
        if node.anchor == "view":
            return node.inputs[0]
        if node.output.tensor.shape[-2:] != self.softmax.inputs[0].tensor.shape[-2:]:
            return None
        if node.elementwise is not None:
            full = [v for v, t in zip(node.inputs, node.elementwise.inputs) if t.shape == node.output.tensor.shape and _from_product(v)]
            return full[0] if len(dict.fromkeys(full)) == 1 and full[0].tensor.dtype == "float32" else None
        return node.inputs[0] if len(node.inputs) == 1 and self._is_causal(node) else None

    def _is_causal(self, node: Node) -> bool:
        return node.anchor == "tir" and _is_causal(self.mod[node.value.args[0]])

    def _node(self, steps: _Steps, after: list[Node], last: Node, empty_rows: bool) -> tuple[Node, list[Node]] | None:
        assert last.output is not None
        scores = self.softmax.inputs[0].tensor
        *lead, rows, keys = scores.shape
        q, k = steps.product.inputs if len(steps.product.inputs) == 2 else (None, None)
        v = last.inputs[1]
        if q is None or k is None or any(len(t.tensor.shape) < 2 or t.tensor.dtype != "float32" or t.constant for t in (q, k, v)):
            return None
        depth, width = q.tensor.shape[-1], v.tensor.shape[-1]
        if q.tensor.shape[-2] != rows or k.tensor.shape[-2:] != (depth, keys) or v.tensor.shape[-2] != keys:
            return None
        sources = []
        for var, shape, swapped in ((q, (rows, depth), False), (k, (keys, depth), True), (v, (keys, width), False)):
            strides = _lead_strides(var.tensor.shape, lead)
            if strides is None:
                return None
            inner = var.tensor.shape[-1]
            sources.append(source_of(self.mod, var, (*lead, *shape), (*strides, *((1, inner) if swapped else (inner, 1)))))
        between = self._between(steps, scores)
        result = self._result(last, [*lead, rows, width])
        if between is None or result is None:
            return None
        epilogue, operands, causal = between
        out, order, passed = result
        old = [steps.product, *steps.nodes, self.softmax, *after, last, *passed]
        (q, at_q), (k, at_k), (v, at_v) = sources
        work = Attention(tuple(lead), rows, keys, depth, width, at_q, at_k, at_v, order, causal, empty_rows)
        new = Node(old[-1].value, old[-1].relax_var, [q, k, v, *operands], out, "attention", attention=(work, epilogue))
        return new, old

    def _result(self, last: Node, shape: list[int]) -> tuple[Var, tuple[int, ...], list[Node]] | None:
        """Return the result in the form ``shape``, its dimensions among those, and the views and the transposition that lead to it."""
        var, passed = last.output, []
        while var is not None and list(var.tensor.shape) != shape:
            user = _only_user(var)
            if user is None or user.anchor != "view":
                return None
            passed.append(user)
            var = user.output
        assert var is not None
        user = _only_user(var)
        order = None if user is None else self._transposition(user, shape)
        if user is None or user.output is None or order is None:
            return var, tuple(range(len(shape))), passed
        return user.output, order, [*passed, user]

    def _transposition(self, node: Node, shape: list[int]) -> tuple[int, ...] | None:
        """Return which dimensions of ``shape`` those of a node's output are, if it does nothing but exchange all but the last one."""
        moved = moved_from(self.mod, node)
        if moved is None or any(number or list(factors.values()) != [1] for number, factors in moved):
            return None
        axes = [next(iter(factors)) for _, factors in moved]  # of each dimension, which one of the output it is
        if sorted(axes) != list(range(len(shape))) or axes[-1] != len(shape) - 1:
            return None
        order = tuple(axes.index(k) for k in range(len(shape)))
        assert node.output is not None and node.output.tensor.shape == tuple(shape[k] for k in order)
        return order

    def _between(self, steps: _Steps, scores: Tensor) -> tuple[Epilogue, list[Var], bool] | None:
        """Return the steps as an epilogue of the scores, the operands that it reads, and whether there is a causal mask."""
        operands: dict[tuple[Var, tuple[int, ...]], None] = {}
        program: list[tuple[Any, list[Any]]] = []
        keys, causal, operations = [], False, 0
        for position, node in enumerate(steps.nodes):
            op = node.elementwise
            if op is None:
                if node.anchor != "view":
                    if any(n.elementwise is not None for n in steps.nodes[position + 1 :]):
                        return None  # the kernel masks last
                    causal = True
                continue
            chain = self._continued(node)
            reads: list[Any] = []
            for var, tensor in zip(node.inputs, op.inputs):
                if var is chain:
                    reads.append(None)
                    continue
                shape = _broadcast(tensor.shape, op.out.shape, scores.shape)
                if shape is None:
                    return None
                operands[var, shape] = None
                reads.append((var, shape))
            program.append((op, reads))
            operations += op.operations
        place = {o: k for k, o in enumerate(operands)}
        for op, reads in program:
            keys.append(f"{op.key}({','.join('x' if r is None else f'o{place[r]}' for r in reads)})")

        def element(value: Any, loads: Sequence[Any]) -> Any:
            for op, reads in program:
                value = op.element([value if r is None else loads[place[r]] for r in reads])
            return value

        tensors = tuple(Tensor(shape, var.tensor.dtype) for var, shape in operands)
        return Epilogue(tensors, element, ";".join(keys), operations), [v for v, _ in operands], causal


def _only_user(var: Var | None) -> Node | None:
    return var.users[0] if var is not None and len(var.users) == 1 and not var.is_result else None


def _from_product(var: Var) -> bool:
    """Whether a tensor comes from a product by element-wise steps, views and masks only."""
    for _ in range(2 * _MOST_STEPS):
        node = var.producer
        if node is None:
            return False
        if node.anchor == "relax.matmul":
            return True
        if node.anchor not in ("view", "tir") or not node.inputs:
            return False
        same = [v for v in node.inputs if v.tensor.numel == var.tensor.numel and v.tensor.dtype == "float32"]
        if len(dict.fromkeys(same)) != 1:
            return False
        var = same[0]
    return False


def _lead_strides(shape: Sequence[int], lead: Sequence[int]) -> list[int] | None:
    """Return the strides of the leading dimensions ``lead`` in an array whose own are the same ones, as one or more, or 1."""
    *own, rows, columns = shape
    size = rows * columns
    if math.prod(own) == math.prod(lead):
        return [size * s for s in row_major(lead)]
    own = [1] * (len(lead) - len(own)) + own
    if len(own) != len(lead) or any(a not in (1, b) for a, b in zip(own, lead)):
        return None
    return [0 if a == 1 else size * s for a, s in zip(own, row_major(own))]


def _broadcast(shape: tuple[int, ...], out: tuple[int, ...], scores: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of an operand beside the scores, given that beside ``out``, which are the scores with other leading dimensions."""
    if out == scores:
        return shape
    if math.prod(shape[:-2]) == 1:
        return (*(1,) * (len(scores) - 2), *shape[-2:])
    return (*scores[:-2], *shape[-2:]) if shape[:-2] == out[:-2] else None


def _is_causal(fn: tirx.PrimFunc) -> bool:
    """Whether a function is ``where(column <= row, x, -inf)`` of the last two dimensions."""
    stages = read_stages(fn)
    if stages is None or len(stages) != 1 or stages[0].reduced or len(stages[0].axes) < 2:
        return False
    value, axes = stages[0].value, stages[0].axes
    if not isinstance(value, tirx.Select) or not isinstance(value.condition, tirx.LE):
        return False
    if not value.condition.a.same_as(axes[-1]) or not value.condition.b.same_as(axes[-2]):
        return False
    return _is_minus_infinity(value.false_value) and _is_at(value.true_value, axes, fn.params[0])


def _clears_lost(fn: tirx.PrimFunc) -> bool:
    """Whether a function is ``where(x == -inf, 0, y)``."""
    stages = read_stages(fn)
    if stages is None or len(stages) != 1 or stages[0].reduced or len(fn.params) != 3:
        return False
    value, axes = stages[0].value, stages[0].axes
    if not isinstance(value, tirx.Select) or not isinstance(value.condition, tirx.EQ):
        return False
    zero = isinstance(value.true_value, tirx.FloatImm) and float(value.true_value.value) == 0
    same = _is_at(value.condition.a, axes, fn.params[0]) and _is_minus_infinity(value.condition.b)
    return zero and same and _is_at(value.false_value, axes, fn.params[1])


def _is_at(expr: Any, axes: Sequence[Any], source: Any) -> bool:
    """Whether an expression is the element of ``source`` at the axes."""
    return (
        isinstance(expr, TensorLoad)
        and expr.source.same_as(source)
        and len(expr.indices) == len(axes)
        and all(i.same_as(a) for i, a in zip(expr.indices, axes))
    )


def _is_minus_infinity(expr: Any) -> bool:
    if isinstance(expr, tirx.FloatImm):
        return float(expr.value) == -math.inf
    return False
