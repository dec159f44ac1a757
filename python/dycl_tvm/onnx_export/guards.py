# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Errors that host operations and switches raise at run time, made explicit as branches: ONNX has no exceptions."""

from __future__ import annotations

from collections.abc import Iterator

from dycl_tvm.hcfg.hostops import NOT_PURE, error_of
from dycl_tvm.hcfg.nodes import HCFG, Block, Branch, Edge, HostOp, Jump, Operand, Raise, Return, Switch, Terminator, Value, operand_type
from dycl_tvm.hcfg.ranges import Ranges
from dycl_tvm.hcfg.types import BOOL, FLOAT, INT, TensorType

#: A condition under which an operation raises, its exception type and its message.
Guard = tuple[Value, str, str]


def with_guards(graph: HCFG) -> HCFG:
    """Return a graph of new blocks (and the same steps) in which each operation that may raise stands behind a branch to a raise."""
    copies = {b: Block(b.name, b.params, origin=b.origin) for b in graph.blocks}
    blocks: list[Block] = []
    ranges = Ranges(graph)

    def guard(block: Block, cond: Value, kind: str, message: str) -> Block:
        bad, rest = Block(f"{block.name}.raise", origin=block.origin), Block(f"{block.name}.rest", origin=block.origin)
        bad.terminator = Raise(kind, message, block.origin)
        block.terminator = Branch(cond, Edge(bad), Edge(rest), block.origin)
        blocks.extend((bad, rest))
        return rest

    for old in graph.blocks:
        block = copies[old]
        blocks.append(block)
        for step in old.steps:
            if isinstance(step, HostOp):
                for cond, kind, message in _guards(step, block):
                    block = guard(block, cond, kind, message)
            if not isinstance(step, HostOp) or step.op != "check":
                block.steps.append(step)
        if isinstance(old.terminator, Switch) and not _in_range(old, old.terminator, ranges):
            index, size = old.terminator.index, len(old.terminator.edges)
            outside = _host(block, "or", _host(block, "lt", index, 0), _host(block, "ge", index, size))
            block = guard(block, outside, "IndexError", f"index out of range: there are {size}")
        block.terminator = _moved(old.terminator, copies)
    return HCFG(graph.name, graph.input_structure, graph.input_names, blocks, graph.state, graph.input_pairs, graph.left_out)


def _in_range(block: Block, switch: Switch, ranges: Ranges) -> bool:
    """Tell whether the index of a switch is one of its sides on all ways that lead there."""
    known = ranges.of(switch.index, block)
    return known is not None and known.low >= 0 and known.high < len(switch.edges)


def _host(block: Block, op: str, *args: Operand, type_: object = BOOL) -> Value:
    output = Value(type_)  # type: ignore[arg-type]
    block.steps.append(HostOp(op, args, output))
    return output


def _guards(step: HostOp, block: Block) -> Iterator[Guard]:
    """Yield the guard of an operation, if it needs one; the steps that compute its condition go into ``block``."""
    op, args = step.op, step.args
    if op == "check" and isinstance(args[0], Value):
        yield args[0], *error_of(step.text or "")
    if op in NOT_PURE:
        return
    first = operand_type(args[0])
    if op in ("truediv", "floordiv", "mod") and (isinstance(args[1], Value) or args[1] == 0):
        yield _host(block, "eq", args[1], 0), "ZeroDivisionError", "division by zero"
    elif op == "item" and step.output.type == INT and isinstance(first, TensorType) and "float" in first.dtype:
        number = _host(block, "item", args[0], type_=FLOAT)
        yield from _integral(block, number)
    elif op in ("to_int", "floor", "ceil", "round", "trunc") and first == FLOAT and isinstance(args[0], Value):
        yield from _integral(block, args[0])
    elif op in ("sqrt", "log") and isinstance(args[0], Value):
        yield _host(block, "lt" if op == "sqrt" else "le", args[0], 0.0), "ValueError", "math domain error"
    elif op == "exp" and isinstance(args[0], Value):
        # Beyond it the result is no double; infinity itself is fine.
        large = _host(block, "and", _host(block, "gt", args[0], 709.782712893384), _host(block, "lt", args[0], float("inf")))
        yield large, "OverflowError", "math range error"
    elif op in ("sin", "cos") and isinstance(args[0], Value):
        yield _host(block, "eq", _host(block, "abs", args[0], type_=FLOAT), float("inf")), "ValueError", "math domain error"
    elif op == "pow" and step.output.type == FLOAT:
        base, exponent = args
        zero = _host(block, "and", _host(block, "eq", base, 0), _host(block, "lt", exponent, 0))
        whole = _host(block, "eq", _host(block, "mod", exponent, 1.0, type_=FLOAT), 0.0)
        complex_ = _host(block, "and", _host(block, "lt", base, 0), _host(block, "not", whole))
        yield (
            _host(block, "or", zero, complex_),
            "ZeroDivisionError",
            "0.0 cannot be raised to a negative power, nor a negative number to a fraction",
        )
    elif op == "pow" and isinstance(args[1], Value):
        yield _host(block, "lt", args[1], 0), "ValueError", "a negative power of an int is not an int"


def _integral(block: Block, number: Operand) -> Iterator[Guard]:
    """Yield the one guard of a conversion to int: NaN, infinity and what does not fit are told apart by nobody who handles errors."""
    nan = _host(block, "ne", number, number)
    huge = _host(block, "or", _host(block, "ge", number, 2.0**63), _host(block, "lt", number, -(2.0**63)))
    yield _host(block, "or", nan, huge), "ValueError", "a float that is NaN, infinite or too large was converted to an int"


def _moved(term: Terminator | None, copies: dict[Block, Block]) -> Terminator | None:
    def edge(e: Edge) -> Edge:
        return Edge(copies[e.target], e.args)

    if isinstance(term, Jump):
        return Jump(edge(term.edge))
    if isinstance(term, Branch):
        return Branch(term.cond, edge(term.then), edge(term.orelse), term.origin)
    if isinstance(term, Switch):
        return Switch(term.index, [edge(e) for e in term.edges], term.origin)
    assert term is None or isinstance(term, (Return, Raise))
    return term
