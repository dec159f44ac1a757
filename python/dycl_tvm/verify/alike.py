# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which numbers a graph reads of tensors that are computed alike: an answer to one of them is an answer to all.

The passes find more than this; it is written apart from them, so that what they find is checked by something else.
"""

from __future__ import annotations

from typing import Any

from dycl_tvm.hcfg.hostops import EFFECTS
from dycl_tvm.hcfg.nodes import HCFG, Constant, HostOp, TensorOp, Value

#: Operators that give their first operand, where the result has its type.
_SAME = frozenset(
    f"aten.{name}"
    for name in (
        "slice.Tensor",
        "view.default",
        "_unsafe_view.default",
        "reshape.default",
        "expand.default",
        "alias.default",
        "detach.default",
    )
)


def alike(graph: HCFG) -> dict[int, int]:
    """Return a number for each step, by its position among all: that of the first one that computes the same by equal operations.

    Parameters of blocks are equal to themselves only.
    """
    numbers: dict[Value, Any] = {}
    first: dict[Any, int] = {}
    found: dict[int, int] = {}
    steps = (step for block in graph.blocks for step in block.steps)
    for k, step in enumerate(steps):
        found[k] = k
        if isinstance(step, TensorOp):
            results = step.results()
            operands = step.operands()
            if step.op in _SAME and results[0].type == operands[0].type:
                numbers[results[0]] = _number(operands[0], numbers)
                continue
            key = (step.op, _key(step.args, numbers), _key(step.kwargs, numbers))
        elif isinstance(step, HostOp) and step.op not in EFFECTS:
            results, key = [step.output], (step.op, _key(step.args, numbers), str(step.output.type))
        else:
            continue
        found[k] = first.setdefault(key, k)
        numbers.update({value: (found[k], i) for i, value in enumerate(results)})
    return found


def _number(value: Value, numbers: dict[Value, Any]) -> Any:
    """Return what is equal for values that are known to be equal."""
    return id(value.data) if isinstance(value, Constant) else numbers.get(value, value)


def _key(node: Any, numbers: dict[Value, Any]) -> Any:
    if isinstance(node, Value):
        return "value", _number(node, numbers)
    if isinstance(node, (list, tuple)):
        return tuple([_key(x, numbers) for x in node])
    if isinstance(node, dict):
        return tuple([(k, _key(x, numbers)) for k, x in node.items()])
    return type(node), repr(node)
