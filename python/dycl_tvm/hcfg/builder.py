# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Build an HCFG by hand: types of results are inferred, terminators are methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from dycl_tvm.hcfg.hostops import ARITHMETIC, COMPARISONS, LOGIC, MATH
from dycl_tvm.hcfg.interpreter import resolve, tensor_type
from dycl_tvm.hcfg.nodes import (
    HCFG,
    Block,
    Branch,
    Constant,
    Edge,
    HostOp,
    Jump,
    Operand,
    Origin,
    Raise,
    Return,
    ReturnSite,
    StateVar,
    Switch,
    TensorOp,
    Value,
    map_operands,
    operand_type,
)
from dycl_tvm.hcfg.types import BOOL, FLOAT, INT, ScalarType, TensorType, Type


def tensor(*shape: int, dtype: str = "float32") -> TensorType:
    """Return a tensor type."""
    return TensorType(shape, dtype)


def constant(data: torch.Tensor, name: str = "") -> Constant:
    """Return a constant that holds ``data``."""
    data = data.detach().contiguous()
    return Constant(tensor_type(data), data, name)


def leaf_structure(types: Sequence[Type]) -> dict[str, Any]:
    """Return the structure of a tuple of leaves of these types."""
    kinds = [t.kind if isinstance(t, ScalarType) else "tensor" for t in types]
    return {"tuple": [{"leaf": k, "type": kind} for k, kind in enumerate(kinds)]}


class GraphBuilder:
    """Builds one graph; the entry block is there from the start.

    Parameters
    ----------
    name : str
    inputs : dict
        Name and type of each input.
    state : sequence of StateVar
    """

    def __init__(self, name: str, inputs: dict[str, Type], state: Sequence[StateVar] = ()) -> None:
        params = [Value(t, n) for n, t in inputs.items()] + [Value(v.type, v.name) for v in state]
        self.entry = Block("entry", params)
        self.graph = HCFG(name, leaf_structure(list(inputs.values())), list(inputs), [self.entry], list(state))

    @property
    def params(self) -> list[Value]:
        """The inputs, then the state variables."""
        return self.entry.params

    def block(self, name: str, *params: Type, origin: Origin | None = None) -> Block:
        """Add a block."""
        found = Block(name, [Value(t, f"{name}.{k}") for k, t in enumerate(params)], origin=origin)
        self.graph.blocks.append(found)
        return found

    def ops(self, block: Block, op: str, *args: Any, origin: Origin | None = None, **kwargs: Any) -> list[Value]:
        """Add a tensor operation and return its results."""

        def fake(value: Value) -> torch.Tensor:
            assert isinstance(value.type, TensorType)
            return torch.empty(value.type.shape, dtype=getattr(torch, value.type.dtype))

        # Not the meta device: it disagrees with the CPU about the statistics that a batch norm gives.
        with FakeTensorMode():
            found = resolve(op)(*map_operands(args, fake), **map_operands(kwargs, fake))
        outputs = [Value(tensor_type(t)) for t in (found if isinstance(found, (tuple, list)) else [found])]
        block.steps.append(TensorOp(op, args, kwargs, tuple(outputs), origin))
        return outputs

    def op(self, block: Block, op: str, *args: Any, origin: Origin | None = None, **kwargs: Any) -> Value:
        """Add a tensor operation and return its first result."""
        return self.ops(block, op, *args, origin=origin, **kwargs)[0]

    def host(self, block: Block, op: str, *args: Operand, type: Type | None = None, origin: Origin | None = None) -> Value:
        """Add a host operation; ``type`` is needed where the operands do not tell it (``to_tensor``)."""
        output = Value(type or _host_type(op, [operand_type(a) for a in args]))
        block.steps.append(HostOp(op, args, output, origin))
        return output

    @staticmethod
    def jump(block: Block, target: Block, *args: Operand) -> None:
        """End a block by a jump."""
        block.terminator = Jump(Edge(target, list(args)))

    @staticmethod
    def branch(block: Block, cond: Operand, then: Block | Edge, orelse: Block | Edge, origin: Origin | None = None) -> None:
        """End a block by a two-way branch."""
        block.terminator = Branch(cond, _edge(then), _edge(orelse), origin)

    @staticmethod
    def switch(block: Block, index: Operand, *targets: Block | Edge, origin: Origin | None = None) -> None:
        """End a block by a switch."""
        block.terminator = Switch(index, [_edge(t) for t in targets], origin)

    @staticmethod
    def leave(block: Block, *values: Operand, state: Sequence[Operand] = (), origin: Origin | None = None) -> None:
        """End a block by a return of a tuple."""
        site = ReturnSite(leaf_structure([operand_type(v) for v in values]), origin)
        block.terminator = Return(site, list(values), list(state))

    @staticmethod
    def fail(block: Block, kind: str, message: str, origin: Origin | None = None) -> None:
        """End a block by an exception."""
        block.terminator = Raise(kind, message, origin)


def _edge(target: Block | Edge) -> Edge:
    return target if isinstance(target, Edge) else Edge(target)


def _host_type(op: str, args: list[Type]) -> Type:
    if op == "item":
        dtype = args[0].dtype if isinstance(args[0], TensorType) else ""
        return BOOL if dtype == "bool" else FLOAT if "float" in dtype else INT
    if op in COMPARISONS or op in LOGIC or op in ("not", "to_bool"):
        return BOOL
    if op in MATH or op in ("truediv", "to_float", "round_to"):
        return FLOAT
    if op in ARITHMETIC or op in ("neg", "abs", "pow"):
        return FLOAT if FLOAT in args else INT
    return args[1] if op == "select" else INT
