# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Fusion: element-wise nodes move into the epilogue of the node that makes their operand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dycl_tvm.backends.tir_cpu.graph import ALONE, Graph, Node, Var
from dycl_tvm.backends.tir_cpu.match import is_integer
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, PACKED_DTYPES, Epilogue, Tensor

#: Element-wise nodes of one epilogue; an operand that several of them read is written out each time.
_LONGEST = 12
#: Nodes that are looked at for one answer about dependence; beyond it the answer is yes, so that time stays linear in the network.
_FARTHEST = 1000


def fuse(graph: Graph, views: bool = False) -> None:
    """Give each anchor the element-wise nodes that follow it, as far as its own result is read by nothing else.

    With ``views``, those behind a view of a product's result too: a linear layer of three dimensions is a product of two, seen as three.
    """
    position = {id(node): k for k, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node.host is None and node.output is not None and not node.output.constant and _is_anchor(node):
            for follower in _closed(node, position, views and node.anchor == "relax.matmul"):
                follower.host = node
                node.absorbed.append(follower)


def _is_anchor(node: Node) -> bool:
    return node.anchor not in ("", "view", *ALONE) and (node.anchor != "tir" or node.channelwise is not None)


def _closed(node: Node, position: Mapping[int, int], views: bool) -> list[Node]:
    """Return the longest run of followers after which only the last result is read from outside."""
    assert node.output is not None
    shape, dtype = node.output.tensor.shape, node.output.tensor.dtype
    quantised = is_integer(node) or node.anchor == "tir"  # kernels whose results may have another type than what they compute
    inside: dict[Var, None] = {node.output: None}
    taken: list[Node] = []
    best: list[Node] = []
    while len(taken) < _LONGEST:
        candidates = [u for v in inside for u in v.users if u not in taken]
        following = next(
            (u for u in candidates if _fits(u, shape, None if quantised else dtype, views) and _ready(u, inside, node, position)), None
        )
        if following is None or any(v.is_result for v in inside):
            break
        assert following.output is not None
        taken.append(following)
        inside[following.output] = None
        open_vars = [v for v in inside if v.is_result or any(u not in taken for u in v.users)]
        if open_vars in ([following.output], []) and following.elementwise is not None:
            best = list(taken)
    return best


def _fits(node: Node, shape: tuple[int, ...], dtype: str | None, views: bool) -> bool:
    """Whether a node may be part of an epilogue; ``dtype`` is the one type that its tensors must have, None if they may have others."""
    if node.host is not None or node.output is None or node.output.constant:
        return False
    if node.elementwise is None:
        return views and node.anchor == "view"
    if node.output.tensor.shape != shape:
        # a view shows the same elements; what is broadcast to more of them has no place in the epilogue
        same = views and node.output.tensor.numel == math.prod(shape)
        if not same or any(beside is None for _, beside in _reads(node, shape)):
            return False
    if dtype is None:
        return all(v.tensor.dtype in PACKED_DTYPES for v in (node.output, *node.inputs))
    return all(v.tensor.dtype == dtype for v in (node.output, *node.inputs))


def _ready(node: Node, inside: dict[Var, None], anchor: Node, position: Mapping[int, int]) -> bool:
    """Whether the other operands do not depend on what is being fused: then the group can stand where its last node does."""
    assert anchor.output is not None
    for operand, shape in _reads(node, anchor.output.tensor.shape):
        if operand in inside:
            if shape != anchor.output.tensor.shape:
                return False
        elif _depends(operand, anchor, position):
            return False
    return True


def _depends(var: Var, anchor: Node, position: Mapping[int, int]) -> bool:
    """Whether a tensor depends on a node; what stands before the node in the graph does not."""
    first = position[id(anchor)]
    seen: set[int] = set()
    waiting = [var.producer]
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen or position[id(node)] < first:
            continue
        if node is anchor or len(seen) == _FARTHEST:
            return True
        seen.add(id(node))
        waiting += (i.producer for i in node.inputs)
    return False


Operand = tuple[Var, tuple[int, ...]]


def _reads(node: Node, shape: tuple[int, ...]) -> list[Operand]:
    """Return the inputs of an element-wise node or a view, with the shapes that they have beside a result of ``shape``.

    Where that is another shape than the node's own, an operand that is not broadcast alike has none.
    """
    assert node.output is not None
    if node.elementwise is None:
        return [(v, shape) for v in node.inputs]
    own = node.output.tensor.shape
    return [(v, _beside(t.shape, own, shape)) for v, t in zip(node.inputs, node.elementwise.inputs)]


def _beside(operand: tuple[int, ...], own: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """Return the shape of an operand beside ``shape``, given that beside ``own``, the same elements; None if it is broadcast otherwise."""
    if own == shape:
        return operand
    if math.prod(operand) == math.prod(own):
        return shape
    last = len(operand) - next((k for k, size in enumerate(operand) if size > 1), len(operand))  # of these dimensions it has elements
    same = not last or operand[-last:] == own[-last:] == shape[-last:]
    return (*(1,) * (len(shape) - last), *operand[len(operand) - last :]) if same else None


def operands_of(node: Node) -> list[Operand]:
    """Return what the epilogue of a node reads beside the node's own result, each once, with its shape beside the output."""
    inside = {node.output, *(a.output for a in node.absorbed)}
    return list(dict.fromkeys(o for a in node.absorbed for o in _reads(a, _shape(node)) if o[0] not in inside))


def _shape(node: Node) -> tuple[int, ...]:
    assert node.output is not None
    return node.output.tensor.shape


def epilogue_of(node: Node, operands: Sequence[Tensor]) -> Epilogue:
    """Return the epilogue of a node.

    Parameters
    ----------
    node : Node
    operands : sequence of Tensor
        What :func:`operands_of` returns, as the kernel sees them.
    """
    if not node.absorbed:
        return NOTHING
    position = {o: k for k, o in enumerate(operands_of(node))}
    first, last = node.output, node.last
    steps = [(a.elementwise, [position.get(o, o[0]) for o in _reads(a, _shape(node))], a.output) for a in node.absorbed]
    number = {first: "x"}
    for k, a in enumerate(node.absorbed):
        number[a.output] = f"t{k}" if a.elementwise is not None else number[a.inputs[0]]

    def element(value: Any, loads: Sequence[Any]) -> Any:
        env: dict[Any, Any] = {first: value}
        for step, inputs, output in steps:
            values = [loads[i] if isinstance(i, int) else env[i] for i in inputs]
            env[output] = values[0] if step is None else step.element(values)
        return env[last]

    def name(i: Any) -> str:
        return f"o{i}" if isinstance(i, int) else number[i]

    key = ";".join(f"{step.key}({','.join(name(i) for i in inputs)})" for step, inputs, _ in steps if step is not None)
    return Epilogue(tuple(operands), element, key, sum(step.operations for step, _, _ in steps if step is not None))
