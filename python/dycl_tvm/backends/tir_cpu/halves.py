# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which tensors between the kernels of a sub-DNN lie in memory as bfloat16, where ``accuracy="bf16"`` allows it.

A convolution of bfloat16 rounds what it reads, so of a tensor that only such convolutions read it is one rounding all the same. What enters
or leaves a sub-DNN stays float32: it may be compared, read by the host, or be a result.
"""

from __future__ import annotations

from dycl_tvm.backends.tir_cpu.fuse import operands_of
from dycl_tvm.backends.tir_cpu.graph import Graph, Node, Var
from dycl_tvm.backends.tir_cpu.kernels import Kernels
from dycl_tvm.backends.tir_cpu.match import image_shape
from dycl_tvm.backends.tir_cpu.words.bf16 import has_instructions
from dycl_tvm.backends.tir_cpu.words.workload import HALF

#: The share of L2 beyond which a tensor is worth storing in half of its bytes, whoever reads it.
_LARGE = 2


def store(graph: Graph, kernels: Kernels) -> int:
    """Mark the tensors of a function that are stored as bfloat16, once its layouts are planned; return how many there are.

    All kernels that write and read such a tensor can do so, and it is one that convolutions of bfloat16 read, or a large one: rounding and
    widening take instructions, which others save only where memory is slow.
    """
    if kernels.options.accuracy != "bf16" or not has_instructions(kernels.machine):
        return 0
    marked = 0
    for node in graph.nodes:
        if node.host is None and node.packed and node.output is not None and _is_worth(node, kernels):
            node.last.stored = HALF
            marked += 1
    return marked


def _is_worth(node: Node, kernels: Kernels) -> bool:
    """Whether the result of a packed node can be stored as bfloat16, and something is faster by it."""
    var = node.last
    if var.is_result or var.constant or not var.packable or var.tensor.dtype != "float32":
        return False
    readers = list(dict.fromkeys(user.host or user for user in var.users))
    if var.tensor.nbytes <= _LARGE * kernels.machine.l2 and not any(_saves(reader, var, kernels) for reader in readers):
        return False
    return _writes(node, kernels) and all(_reads(reader, var, kernels) for reader in readers)


def _writes(node: Node, kernels: Kernels) -> bool:
    """Whether the kernel of a packed node can store its result as bfloat16."""
    chosen = kernels.chosen(node)
    return chosen is None or bool(chosen.family.plans(chosen.work.stored(chosen.work.x.dtype, HALF), kernels.machine))


def _reads(node: Node, var: Var, kernels: Kernels) -> bool:
    """Whether the kernel of a node can read a tensor that is stored as bfloat16, in the layout in which it was written."""
    if not node.packed:
        return False
    operands = [shape for operand, shape in operands_of(node) if operand is var]
    if any(image_shape(shape) != image_shape(var.tensor.shape) for shape in operands):
        return False
    if var not in node.inputs:
        return bool(operands)
    chosen = kernels.chosen(node)
    return chosen is None or bool(chosen.family.plans(chosen.work.stored(HALF, chosen.work.y.dtype), kernels.machine))


def _saves(node: Node, var: Var, kernels: Kernels) -> bool:
    """Whether a kernel does less where it reads bfloat16: it need not round."""
    chosen = kernels.chosen(node)
    return chosen is not None and chosen.work.weights == "bfloat16" and node.inputs[0] is var
