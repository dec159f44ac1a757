# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Single elements are read by an index that is data: ``policy[0] == 1``, ``policy[1] == 1`` and so on are then one sub-DNN.

A number in a tensor operation is part of its kernel; a constant is an operand. Where a network reads one element after the
other (a policy, a list of gates), each read would be a kernel of its own, and their number would grow with the layers.

Invariant: only reads of one element change, of which there are several with different indices on tensors of one type;
``aten.index.Tensor`` with an index of rank 0 gives what ``aten.select.int`` gives.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dycl_tvm.hcfg.interpreter import tensor_type
from dycl_tvm.hcfg.nodes import HCFG, Constant, TensorOp, Value
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.passes.rewrite import static_argument


def index_as_data(graph: HCFG) -> int:
    """Turn the indices of single elements into constants; return the number of reads."""
    found: dict[tuple[TensorType, int], list[tuple[TensorOp, int]]] = {}
    for step, source, dim, index in _reads(graph):
        found.setdefault((source, dim), []).append((step, index))
    # equal indices have one constant, whatever they index
    constants: dict[int, Constant] = {}
    changes = 0
    for (_, dim), reads in found.items():
        if len({index for _, index in reads}) < 2:
            continue
        for step, index in reads:
            if index not in constants:
                data = torch.tensor(index)
                constants[index] = Constant(tensor_type(data), data, f"index.{index}")
            step.op = "aten.index.Tensor"
            step.args = (step.args[0], [*[None] * dim, constants[index]])
            step.kwargs = {}
            changes += 1
    return changes


def _reads(graph: HCFG) -> Iterator[tuple[TensorOp, TensorType, int, int]]:
    """Yield the steps that read one element by a number, with the tensor's type, the dimension and the index, counted from 0."""
    for block in graph.blocks:
        for step in block.steps:
            if not isinstance(step, TensorOp) or step.op != "aten.select.int":
                continue
            source, dim, index = (static_argument(step, name) for name in ("self", "dim", "index"))
            out = step.outputs[0]
            if not isinstance(source, Value) or out is None or not isinstance(source.type, TensorType):
                continue
            assert isinstance(out.type, TensorType)
            rank = len(source.type.shape)
            if out.type.numel == 1 and rank:
                yield step, source.type, dim % rank, index % source.type.shape[dim % rank]
