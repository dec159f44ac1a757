# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What several passes need: replacing values, counting uses, purity, keys of operations."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from dycl_tvm.hcfg.interpreter import resolve
from dycl_tvm.hcfg.nodes import (
    HCFG,
    Block,
    Operand,
    Step,
    TensorOp,
    Value,
    block_operands,
    rewrite_step,
    rewrite_terminator,
    terminator_operands,
)

Replacement = Callable[[Any], Any]


def replacer(mapping: Mapping[Value, Operand]) -> Replacement:
    """Return the function that follows ``mapping`` to its end, for operands of any kind."""

    def follow(operand: Any) -> Any:
        while isinstance(operand, Value) and operand in mapping:
            operand = mapping[operand]
        return operand

    return follow


def substitute(graph: HCFG, mapping: Mapping[Value, Operand]) -> None:
    """Replace every use of the keys of ``mapping`` in the whole graph, in one sweep; the mapping may have chains."""
    if not mapping:
        return
    fn = replacer(mapping)
    for block in graph.blocks:
        for step in block.steps:
            if any(v in mapping for v in step.operands()):
                rewrite_step(step, fn)
        if any(v in mapping for v in terminator_operands(block.terminator)):
            rewrite_terminator(block.terminator, fn)


def count_uses(graph: HCFG) -> Counter[Value]:
    """Return how often each value is read."""
    return Counter(v for block in graph.blocks for v in block_operands(block))


def local_uses(block: Block) -> Counter[Value]:
    """Return how often a block reads each value."""
    return Counter(block_operands(block))


@functools.cache
def _tags(op: str) -> frozenset[str]:
    overload = resolve(op)
    found = {t.name for t in overload.tags}
    if overload._schema.is_mutable:
        found.add("mutable")
    return frozenset(found)


@functools.cache
def _training_switch(op: str) -> str | None:
    """Return the name of the argument that switches training or randomness on, such as ``train`` of ``dropout``."""
    names = [a.name for a in resolve(op)._schema.arguments]
    return next((n for n in ("train", "training", "dropout_p") if n in names), None)


def static_argument(step: TensorOp, name: str) -> Any:
    """Return an argument by its name in the operator's schema, the default where the step does not give it."""
    for k, argument in enumerate(resolve(step.op)._schema.arguments):
        if argument.name == name:
            if name in step.kwargs:
                return step.kwargs[name]
            return step.args[k] if k < len(step.args) else argument.default_value
    raise KeyError(f"{step.op} has no argument {name!r}")


def is_pure(step: Step) -> bool:
    """Tell whether running the step twice gives the same, so that it may be folded, shared or moved.

    Random operations (PyTorch tags them) are not pure, unless their training flag or probability turns the randomness
    off. Neither are allocations without contents, and mutations, which the front end should have removed.
    """
    if not isinstance(step, TensorOp):
        return True
    name = step.op.split(".")[1]
    if name.startswith(("empty", "new_empty")):
        return False
    switch = _training_switch(step.op)
    if switch is not None:
        # In training: random, or with new running statistics. `native_dropout` takes None for "as in training".
        return static_argument(step, switch) in (False, 0.0)
    return not _tags(step.op) & {"mutable", "nondeterministic_seeded"}


def freeze(node: Any, name: Callable[[Value], Any]) -> Any:
    """Return a hashable key of an argument structure; ``name`` gives the key of a value.

    Numbers carry their type (``1``, ``1.0`` and ``True`` are equal in Python), floats their exact digits.
    """
    if isinstance(node, Value):
        return ("value", name(node))
    if isinstance(node, (list, tuple)):
        return ("sequence", *(freeze(n, name) for n in node))
    if isinstance(node, dict):
        return ("dict", *((k, freeze(node[k], name)) for k in sorted(node)))
    if isinstance(node, float):
        return ("float", node.hex())
    return (type(node).__name__, node)
