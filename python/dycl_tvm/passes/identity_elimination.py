# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Identity elimination: operations whose output is their input become the value itself.

Invariant: a removed step gave, element for element and bit for bit, its operand; types are the same. Source: one half
of the "graph optimisation" of DyCL (Chen et al., ISSTA 2023), where outputs that are inputs leave the sub-network.
"""

from __future__ import annotations

from dycl_tvm.hcfg.analysis import reverse_postorder
from dycl_tvm.hcfg.hostops import NOT_PURE
from dycl_tvm.hcfg.nodes import HCFG, HostOp, Operand, TensorOp, Value, operand_type, rewrite_step
from dycl_tvm.hcfg.types import BOOL, FLOAT, INT, ScalarType, TensorType, Type
from dycl_tvm.passes.rewrite import count_uses, replacer, static_argument, substitute

#: Operations that hand on their first operand whenever the type stays the same.
_BY_TYPE = frozenset({
    "alias", "alias_copy", "detach", "detach_copy", "clone", "contiguous", "lift", "lift_fresh", "lift_fresh_copy", "positive",
    "_to_copy", "to", "type_as", "view", "view_copy", "view_as", "reshape", "_unsafe_view", "_reshape_alias", "_reshape_copy",
    "reshape_as", "unflatten", "flatten", "expand", "expand_copy", "expand_as", "broadcast_to", "squeeze", "squeeze_copy",
    "unsqueeze", "within", "ravel", "resolve_conj", "resolve_neg", "atleast_1d", "atleast_2d", "atleast_3d",
})  # fmt: skip

_DROPOUTS = frozenset({"dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"})

#: Operations that write to places of their first operand: none, if what says where, or what is written, has no elements.
_WRITES = frozenset({
    "index_put", "_unsafe_index_put", "index_add", "index_copy", "index_fill", "index_reduce", "put", "scatter", "scatter_add",
    "scatter_reduce", "slice_scatter",
})  # fmt: skip

#: Tensors that hold every scalar of a kind exactly.
_EXACT: dict[Type, ScalarType] = {TensorType((), "int64"): INT, TensorType((), "float64"): FLOAT, TensorType((), "bool"): BOOL}


def identity_elimination(graph: HCFG) -> int:
    """Replace the results of identities by their operands; return the number of removed steps."""
    uses = count_uses(graph)
    mapping: dict[Value, Operand] = {}
    follow = replacer(mapping)
    made: dict[Value, HostOp] = {}
    chosen: dict[Value, TensorOp] = {}
    changes = 0
    for block in reverse_postorder(graph):
        kept = []
        for step in block.steps:
            if any(v in mapping for v in step.operands()):
                rewrite_step(step, follow)
            same: Operand | None = None
            result: Value | None = None
            if isinstance(step, TensorOp):
                same = _tensor_identity(step, all(uses[v] == 0 for v in step.results()[1:]))
                result = step.outputs[0] if step.outputs else None
                if step.op == "aten.where.self" and result is not None:
                    same = same or _chosen_again(step, result, chosen)
                    chosen[result] = step
            elif isinstance(step, HostOp):
                same = _host_identity(step, made)
                result = step.output
                made[step.output] = step
            if same is None or result is None:
                kept.append(step)
            else:
                mapping[result] = same
                changes += 1
        block.steps = kept
    substitute(graph, mapping)
    return changes


def _tensor_identity(step: TensorOp, rest_unused: bool) -> Value | None:
    """Return the operand that the first result equals, if there is one."""
    if not step.op.startswith("aten.") or not step.args or not step.outputs or step.outputs[0] is None or not rest_unused:
        return None
    name = step.op.split(".")[1]
    source = step.args[0]
    joined = name in ("cat", "concat", "concatenate", "hstack", "vstack") and len(source) == 1
    if joined:
        source = source[0]
    if name == "slice_scatter" and isinstance(step.args[1], Value) and step.args[1].type == step.outputs[0].type:
        return step.args[1]  # what is as large as all of the tensor takes the place of all of it
    if not isinstance(source, Value) or source.type != step.outputs[0].type or not isinstance(source.type, TensorType):
        return None
    return source if joined or _hands_on(step, name, source.type) else None


def _hands_on(step: TensorOp, name: str, kind: TensorType) -> bool:
    """Tell whether an operation whose result has the type of its first operand gives that operand."""
    rank = len(kind.shape)
    if name in _BY_TYPE:
        # `to` and `view` by dtype keep the type only if they change nothing; so does a shape operation.
        return True
    if name in _WRITES:
        return any(isinstance(v.type, TensorType) and 0 in v.type.shape for v in step.operands())
    if name in _DROPOUTS:
        train = static_argument(step, "train")
        return train is False or static_argument(step, "p") == 0.0
    if name in ("slice", "slice_copy", "narrow", "narrow_copy"):
        # The same number of elements can only be all of them: in order, from the first, by steps of one.
        return True
    if name in ("permute", "permute_copy"):
        return [d % rank for d in static_argument(step, "dims")] == list(range(rank)) if rank else True
    if name in ("transpose", "transpose_copy") and step.op.endswith(".int"):
        return rank == 0 or static_argument(step, "dim0") % rank == static_argument(step, "dim1") % rank
    if name in ("repeat", "tile"):
        return all(r == 1 for r in step.args[1])
    if name in ("constant_pad_nd", "pad"):
        return all(p == 0 for p in step.args[1])
    if name == "as_strided":
        strides: list[int] = []
        running = 1
        for extent in reversed(kind.shape):
            strides.insert(0, running)
            running *= max(extent, 1)
        pairs = zip(kind.shape, step.args[2], strides)
        return not static_argument(step, "storage_offset") and all(given == want or extent == 1 for extent, given, want in pairs)
    return False


def _chosen_again(step: TensorOp, result: Value, chosen: dict[Value, TensorOp]) -> Value | None:
    """Return the operand of a choice that was made by the same condition, with the same other operand; ``chosen`` has those seen so far."""
    condition, source, other = step.args
    before = chosen.get(source) if isinstance(source, Value) else None
    if before is None or before.args[0] is not condition or before.args[2] is not other or source.type != result.type:
        return None
    return source  # type: ignore[no-any-return]


def _host_identity(step: HostOp, made: dict[Value, HostOp]) -> Operand | None:
    """Return the operand that a host operation hands on; ``made`` gives the operations seen so far."""
    op, args = step.op, step.args
    if op in NOT_PURE:
        return None
    source = made.get(args[0]) if isinstance(args[0], Value) else None
    if op in ("to_int", "to_float", "to_bool", "floor", "ceil", "round", "trunc"):
        return args[0] if operand_type(args[0]) == step.output.type else None
    if op == "select" and args[1] is args[2]:
        return args[1]
    if op == "select" and isinstance(args[1], bool) and isinstance(args[2], bool) and args[1] and not args[2]:
        return args[0]
    if op == "not" and source is not None and source.op == "not":
        return source.args[0]
    if op in ("and", "or"):
        neutral = op == "and"
        for one, other in (args, args[::-1]):
            if isinstance(one, bool):
                return other if one is neutral else one
        return args[0] if args[0] is args[1] else None
    if op == "item" and source is not None and source.op == "to_tensor":
        exact = _EXACT.get(source.output.type)
        return source.args[0] if operand_type(source.args[0]) == exact == step.output.type else None
    if op == "to_tensor" and source is not None and source.op == "item":
        read = source.args[0]
        # A tensor of rank 0 to a scalar and back: exact for every dtype, if the scalar is of the dtype's own kind.
        return read if isinstance(read, Value) and read.type == step.output.type and _own_kind(source) else None
    if op in ("add", "sub") and operand_type(args[0]) == INT and operand_type(args[1]) == INT and args[1] == 0:
        return args[0]
    return None


def _own_kind(step: HostOp) -> bool:
    """Tell whether an ``item`` gives the kind that the tensor's dtype has."""
    dtype = str(operand_type(step.args[0])).split("[")[0]
    return step.output.type == (BOOL if dtype == "bool" else FLOAT if "float" in dtype else INT)
