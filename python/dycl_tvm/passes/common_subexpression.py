# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Common subexpression elimination: a step that a dominating step has computed already is not run again.

Invariant: only pure steps with the same operation and operands are shared, and the one that stays dominates the one
that goes. Small constants of equal contents count as one. Source: P. Briggs et al., "Value numbering", SP&E 1997
(dominator-based).
"""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.hcfg.analysis import dominators
from dycl_tvm.hcfg.hostops import NOT_PURE
from dycl_tvm.hcfg.nodes import (
    HCFG,
    Block,
    Constant,
    HostOp,
    Operand,
    Step,
    SubDNNCall,
    TensorOp,
    Value,
    block_operands,
    rewrite_step,
    rewrite_terminator,
)
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.passes.rewrite import freeze, is_pure, replacer, substitute

#: Constants up to this size (scalars, in the main) are compared by their contents.
SMALL_BYTES = 64


def common_subexpression(graph: HCFG) -> int:
    """Share common subexpressions; return the number of removed steps and constants."""
    mapping: dict[Value, Operand] = {}
    changes = _share_constants(graph)
    follow = replacer(mapping)
    tree = dominators(graph)
    table: dict[Any, Step] = {}
    stack: list[tuple[Block, list[Any] | None]] = [(graph.entry, None)]
    while stack:
        block, added = stack.pop()
        if added is not None:  # left: what it computed is not known elsewhere
            for key in added:
                del table[key]
            continue
        added = []
        kept = []
        for step in block.steps:
            if any(v in mapping for v in step.operands()):
                rewrite_step(step, follow)
            key = _key(step)
            if key is None:
                kept.append(step)
            elif key in table:
                _share(table[key], step, mapping)
            else:
                table[key] = step
                added.append(key)
                kept.append(step)
        changes += len(block.steps) - len(kept)
        block.steps = kept
        rewrite_terminator(block.terminator, follow)
        stack.append((block, added))
        stack.extend((child, None) for child in tree.children[block])
    substitute(graph, mapping)
    return changes


def _key(step: Step) -> Any:
    """Return a key that equal steps have in common, None for a step that cannot be shared."""
    if isinstance(step, HostOp):
        if step.op in NOT_PURE:
            return None
        return ("host", step.op, step.text, freeze(step.args, lambda v: v), step.output.type)
    if isinstance(step, SubDNNCall) or not is_pure(step):
        return None
    return ("tensor", step.op, freeze(step.args, lambda v: v), freeze(step.kwargs, lambda v: v), len(step.outputs))


def _share(leader: Step, step: Step, mapping: dict[Value, Operand]) -> None:
    if isinstance(leader, HostOp) and isinstance(step, HostOp):
        mapping[step.output] = leader.output
    elif isinstance(leader, TensorOp) and isinstance(step, TensorOp):
        outputs = list(leader.outputs)
        for k, out in enumerate(step.outputs):
            if outputs[k] is None:
                outputs[k] = out  # nobody read this result of the leader; now somebody does
            elif out is not None:
                mapping[out] = outputs[k]  # type: ignore[assignment]  # just seen not to be None
        leader.outputs = tuple(outputs)


def _share_constants(graph: HCFG) -> int:
    """Make small constants with the same bits one; the first keeps its name."""
    mapping: dict[Value, Operand] = {}
    first: dict[Any, Constant] = {}
    seen: set[Value] = set()
    for block in graph.blocks:
        for value in block_operands(block):
            if not isinstance(value, Constant) or value in seen:
                continue
            seen.add(value)
            if isinstance(value.type, TensorType) and value.type.nbytes <= SMALL_BYTES:
                data = value.data.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.type.numel else b""
                leader = first.setdefault((value.type, data), value)
                if leader is not value:
                    mapping[value] = leader
    substitute(graph, mapping)
    return len(mapping)
