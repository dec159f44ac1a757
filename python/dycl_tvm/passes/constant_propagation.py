# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Constant propagation: what does not depend on the inputs is computed when the network is built.

Invariant: only pure steps fold, with the results that they would have at run time; a step that raises stays where it
is. Folding may not blow up the weights: see :data:`MAX_BYTES`. Source: the other half of DyCL's "graph optimisation"
(Chen et al., ISSTA 2023), here over whole graphs, host scalars and branches too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dycl_tvm.hcfg.analysis import reverse_postorder
from dycl_tvm.hcfg.cuda_draws import is_of_device
from dycl_tvm.hcfg.hostops import NOT_PURE
from dycl_tvm.hcfg.interpreter import run_host_op, run_tensor_op, tensor_type
from dycl_tvm.hcfg.nodes import (
    HCFG,
    Block,
    Branch,
    Constant,
    HostOp,
    Jump,
    Operand,
    Switch,
    TensorOp,
    Value,
    map_operands,
    rewrite_step,
    rewrite_terminator,
    terminator_operands,
)
from dycl_tvm.hcfg.quantized import is_dequantize
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.passes.rewrite import freeze, is_pure, replacer, substitute

#: A folded result is at most this large, or :data:`GROWTH` times its operands.
MAX_BYTES = 16 << 20
GROWTH = 4

#: Creations whose contents depend on the type of their first operand only.
_BY_TYPE = ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")


def constant_propagation(graph: HCFG) -> int:
    """Fold what is constant; return the number of removed steps and decided terminators."""
    mapping: dict[Value, Operand] = {}
    follow = replacer(mapping)
    memo: dict[Any, list[Constant | None]] = {}
    changes = 0
    for block in reverse_postorder(graph):
        kept = []
        for step in block.steps:
            if any(v in mapping for v in step.operands()):
                rewrite_step(step, follow)
            if isinstance(step, TensorOp):
                folded = _fold_tensor_op(step, mapping, memo)
            else:
                folded = isinstance(step, HostOp) and _fold_host_op(step, mapping)
            if folded:
                changes += 1
            else:
                kept.append(step)
        block.steps = kept
        if any(v in mapping for v in terminator_operands(block.terminator)):
            rewrite_terminator(block.terminator, follow)
        changes += _decide(block)
    substitute(graph, mapping)
    return changes


def _fold_tensor_op(step: TensorOp, mapping: dict[Value, Operand], memo: dict[Any, list[Constant | None]]) -> bool:
    operands = step.operands()
    by_type = step.op.split(".")[1] in _BY_TYPE
    if (not by_type and not all(isinstance(v, Constant) for v in operands)) or is_dequantize(step.op):
        return False  # quantised weights stay what they are; their dequantised form is computed when kernels are
    limit = max(MAX_BYTES, GROWTH * _bytes(v for v in set(operands) if isinstance(v, Constant)))
    if _bytes(step.results()) > limit or not is_pure(step) or is_of_device(step.op, _most_elements(step)):
        return False
    # Copies of a step that a fork made must give one constant, not one each.
    key = (step.op, freeze((step.args, step.kwargs), lambda v: v.type if by_type else v), tuple(o is None for o in step.outputs))
    folded = memo.get(key)
    if folded is None:
        try:
            with torch.no_grad():
                args, kwargs = map_operands((step.args, step.kwargs), _stand_in)
                tensors = run_tensor_op(step, args, kwargs)
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
            return False  # eager raises here too; it is for the run to say so
        if any(out is not None and tensor is None for out, tensor in zip(step.outputs, tensors)):
            return False
        name = next((f"{v.name}.folded".replace(".folded.folded", ".folded") for v in operands if v.name and isinstance(v, Constant)), "")
        folded = [None if out is None else _constant(out.name or name, tensor) for out, tensor in zip(step.outputs, tensors)]
        memo[key] = folded
    for out, value in zip(step.outputs, folded):
        if out is not None and value is not None:
            mapping[out] = value
    return True


def _bytes(values: Iterable[Value]) -> int:
    """Return the size of tensors in bytes."""
    return sum(v.type.nbytes for v in values if isinstance(v.type, TensorType))


def _most_elements(step: TensorOp) -> int:
    return max((v.type.numel for v in step.results() if isinstance(v.type, TensorType)), default=0)


def _stand_in(value: Value) -> torch.Tensor:
    """Return a constant's data; for a creation that reads the type only, a tensor of that type without contents."""
    if isinstance(value, Constant):
        return value.data
    assert isinstance(value.type, TensorType)
    return torch.zeros((), dtype=getattr(torch, value.type.dtype)).expand(value.type.shape)


def _constant(name: str, tensor: torch.Tensor) -> Constant:
    tensor = tensor.detach()
    # A view of a part of a large constant must not keep the whole alive.
    # An expanded tensor of one element counts as contiguous, and cannot be seen as bytes.
    copied = tensor._is_view() or 0 in tensor.stride()
    tensor = tensor.clone(memory_format=torch.contiguous_format) if copied else tensor.contiguous()
    return Constant(tensor_type(tensor), tensor, name)


def _fold_host_op(step: HostOp, mapping: dict[Value, Operand]) -> bool:
    if step.op in NOT_PURE:
        return False
    if step.op == "item":
        data = [a.data for a in step.args if isinstance(a, Constant)]
    elif not any(isinstance(a, Value) for a in step.args):
        data = list(step.args)
    else:
        return False
    if not data:
        return False
    try:
        found = run_host_op(step, data)
    except (ArithmeticError, ValueError, RuntimeError):
        return False
    mapping[step.output] = _constant(step.output.name, found) if isinstance(found, torch.Tensor) else found
    return True


def _decide(block: Block) -> int:
    """Make a branch or switch on a literal a jump; an index out of range stays, to raise."""
    term = block.terminator
    if isinstance(term, Branch) and isinstance(term.cond, bool):
        block.terminator = Jump(term.then if term.cond else term.orelse)
        return 1
    if isinstance(term, Switch) and not isinstance(term.index, Value) and 0 <= term.index < len(term.edges):
        block.terminator = Jump(term.edges[int(term.index)])
        return 1
    return 0
