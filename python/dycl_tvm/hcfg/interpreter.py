# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A reference interpreter: runs an HCFG with PyTorch, one operation at a time.

It is the oracle of the tests of the front end, the passes and the compiled artefact, and it evaluates the operations
that constant propagation folds. It is not fast.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import dycl_tvm.hcfg.checks
import dycl_tvm.hcfg.cuda_draws
import dycl_tvm.hcfg.draws
import dycl_tvm.hcfg.grouped
import dycl_tvm.hcfg.moving
import dycl_tvm.hcfg.orders
import dycl_tvm.hcfg.quantized  # noqa: F401  (their operators become PyTorch's)
from dycl_tvm.errors import InvariantError
from dycl_tvm.hcfg.clocks import read_clock
from dycl_tvm.hcfg.hostops import Number, checked_int, error_of, evaluate
from dycl_tvm.hcfg.nodes import (
    HCFG,
    Block,
    Branch,
    Constant,
    Edge,
    HostOp,
    Jump,
    Raise,
    Return,
    Step,
    SubDNNCall,
    Switch,
    TensorOp,
    Value,
    map_operands,
)
from dycl_tvm.hcfg.sizes import with_sizes
from dycl_tvm.hcfg.types import INT, ScalarType, TensorType
from dycl_tvm.hcfg.vectors import FACTORS
from dycl_tvm.runtime.structure import unflatten

#: A run-time value: a tensor or a host scalar.
Datum = Any

Path = list[tuple[str, int]]

#: Where a frame has the stack of recursive functions.
_STACK = Value(INT, "stack")

_EXCEPTIONS: dict[str, type[Exception]] = {
    e.__name__: e
    for e in (
        ArithmeticError, AssertionError, AttributeError, IndexError, KeyError, LookupError, NotImplementedError, UnboundLocalError,
        OverflowError, RuntimeError, StopIteration, TypeError, ValueError, ZeroDivisionError, torch.linalg.LinAlgError,
    )
}  # fmt: skip


class LimitError(RuntimeError):
    """The graph ends a call at a bound that the program does not have."""


class Watcher:
    """Sees a run of :func:`interpret` and may answer for its tensors; this one sees nothing and answers the truth."""

    def item(self, step: HostOp, tensor: torch.Tensor) -> Number:
        """Return the number that ``item`` reads from a tensor of one element."""
        return tensor.item()

    def took(self, block: Block, index: int) -> None:
        """Hear by which edge a block is left."""

    def defined(self, value: Value, datum: Datum) -> None:
        """Hear what a value is: an input, a block's parameter, or the result of an operation outside of sub-DNNs."""

    def ran(self, step: TensorOp, frame: Mapping[Value, Datum], results: Sequence[Datum]) -> None:
        """Hear of a tensor operation that ran, the values that it could read, and what it gave."""


def interpret(
    graph: HCFG,
    inputs: Sequence[torch.Tensor | Number],
    state: list[Datum] | None = None,
    *,
    counts: Counter[str] | None = None,
    watcher: Watcher | None = None,
    max_blocks: int = 1_000_000,
) -> tuple[Any, Path]:
    """Run a graph.

    Parameters
    ----------
    graph : HCFG
    inputs : sequence
        The leaves of ``graph.input_structure``, in order; of those whose sizes the caller decides any size.
    state : list, optional
        The values of the state variables; replaced in place by the new ones when the graph returns. None: the
        initial values.
    counts : collections.Counter, optional
        Gets the number of times that each operation ran, by its name.
    watcher : Watcher, optional
        Answers what ``item`` reads, and hears the path.
    max_blocks : int
        Bound on the number of blocks entered.

    Returns
    -------
    values : Any
        What the user's function returns, by the structure of the return site.
    path : list of (str, int)
        The block names passed and the number of the edge by which each was left; the block that returns is not in it.

    Raises
    ------
    Exception
        What the graph raises, as the Python exception of that name.
    InvariantError
        If a tensor operation gives another type than the graph says.
    """
    given = [graph_initial(v.initial) for v in graph.state] if state is None else list(state)
    args = [*with_sizes(graph.sizes, [v.type for v in graph.inputs], graph.input_names, inputs), *given]
    if len(args) != len(graph.entry.params):
        raise ValueError(f"{graph.name} takes {len(graph.entry.params)} inputs and state variables, got {len(args)}")
    frame: dict[Value, Datum] = {}
    for param, arg in zip(graph.entry.params, args):
        frame[param] = _accept(param, arg)
        if watcher is not None:
            watcher.defined(param, frame[param])
    path: Path = []
    block = graph.entry
    with torch.no_grad():
        for _ in range(max_blocks):
            for step in block.steps:
                run_step(step, frame, counts, watcher)
            term = block.terminator
            if isinstance(term, Return):
                if state is not None:
                    state[:] = [_read(frame, v) for v in term.state]
                return _build(term.site.structure, [_read(frame, v) for v in term.values]), path
            index, edge = _choose(block, frame)
            path.append((block.name, index))
            if watcher is not None:
                watcher.took(block, index)
            moved = [_read(frame, a) for a in edge.args]  # all read before any is written: the moves are parallel
            frame.update(zip(edge.target.params, moved, strict=True))
            if watcher is not None:
                for param, datum in zip(edge.target.params, moved):
                    watcher.defined(param, datum)
            block = edge.target
    raise RuntimeError(f"{graph.name} did not return within {max_blocks} blocks")


def graph_initial(initial: Any) -> Datum:
    """Return the run-time value that a state variable begins with."""
    return initial.data if isinstance(initial, Constant) else initial


def run_step(step: Step, frame: dict[Value, Datum], counts: Counter[str] | None = None, watcher: Watcher | None = None) -> None:
    """Run one step; ``frame`` maps the values defined so far and gets the new ones."""
    if isinstance(step, SubDNNCall):
        inner = {p: _read(frame, a) for p, a in zip(step.callee.params, step.args, strict=True)}
        for op in step.callee.ops:
            run_step(op, inner, counts)
        for output, inside in zip(step.outputs, step.callee.results, strict=True):
            frame[output] = _read(inner, inside)
        return
    if counts is not None:
        counts[step.op] += 1
    if isinstance(step, HostOp):
        args = [_read(frame, a) for a in step.args]
        if step.op in ("push", "pop"):
            stack = frame.setdefault(_STACK, [])
            frame[step.output] = stack.append(args[0]) or 0 if step.op == "push" else stack.pop()
        elif watcher is not None and step.op == "item" and isinstance(step.output.type, ScalarType):
            frame[step.output] = evaluate(f"to_{step.output.type.kind}", [watcher.item(step, args[0])], step.output.type)
        else:
            frame[step.output] = run_host_op(step, args)
        return
    read = functools.partial(_read, frame)
    results = run_tensor_op(step, map_operands(step.args, read), map_operands(step.kwargs, read))
    for result, tensor in zip(step.outputs, results, strict=True):
        if result is not None and tensor is not None:
            frame[result] = tensor
            if watcher is not None:
                watcher.defined(result, tensor)
    if watcher is not None:
        watcher.ran(step, frame, results)


#: What PyTorch does by a mark on the tensor, and how it is done at once: values of the graph are what they stand for.
_IN_FULL = {"aten._conj.default": "aten.conj_physical.default", "aten._neg_view.default": "aten.neg.default"}
_IN_FULL |= {op: chosen for op, (chosen, _) in FACTORS.items()}


def in_rows(op: str, args: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments of an operator, made row-major if it takes elements for ones that lie side by side."""
    return [a.contiguous() if isinstance(a, torch.Tensor) else a for a in args] if op in _ROWS else args


#: PyTorch's kernel of attention reads rows as if no element of one lay apart, and asks nobody whether it is so.
_ROWS = ("aten.view_as_complex.default", "aten.view.dtype", "aten._scaled_dot_product_flash_attention_for_cpu.default")


@functools.cache
def resolve(op: str) -> Any:
    """Return the PyTorch operator overload of that name, such as ``aten.relu.default``."""
    if op in ("aten.view.default", "aten._unsafe_view.default"):
        op = "aten.reshape.default"  # values of the graph are row-major; the interpreter's tensors may be strided views of others
    op = _IN_FULL.get(op, op)
    return operator.attrgetter(op)(torch.ops)


def _run(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operator; one that takes row-major tensors only is given such."""
    try:
        return op(*args, **kwargs)
    except RuntimeError:
        rows = [x.contiguous() if isinstance(x, torch.Tensor) else x for x in args]
        if all(map(operator.is_, rows, args)):
            raise
        return op(*rows, **kwargs)


def run_tensor_op(step: TensorOp, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Run one tensor operation on tensors and check the results against the types of ``step.outputs``.

    Returns
    -------
    list of torch.Tensor or None
        One for each of ``step.outputs``. None: a side result of another type than the graph says. On the CPU the
        saved statistics of a batch norm in inference are empty, on other devices they are not; nothing may read them.
    """
    found: list[Any] = []
    _flatten(_run(resolve(step.op), in_rows(step.op, args), kwargs), found)
    if len(found) != len(step.outputs):
        raise InvariantError(f"{step.op} gives {len(found)} tensors, the graph says {len(step.outputs)} ({step.origin})")
    for k, (out, tensor) in enumerate(zip(step.outputs, found)):
        if out is None or (tensor is not None and tensor_type(tensor) == out.type):
            continue
        if k == 0:
            raise InvariantError(f"{step.op} gives {tensor_type(tensor)}, the graph says {out.type} for {out.name!r} ({step.origin})")
        found[k] = None
    return found


def run_host_op(step: HostOp, args: Sequence[Datum]) -> Datum:
    """Run one host operation on numbers and, for ``item``, on a tensor."""
    kind = step.output.type
    if isinstance(kind, TensorType):
        return torch.tensor(args[0], dtype=getattr(torch, kind.dtype))
    if step.op == "print":
        assert step.text is not None
        sys.stdout.write(step.text.format(*args))
        return 0
    if step.op == "check":
        error, message = error_of(step.text or "")
        if args[0]:
            raise exception_of(error)(message)
        return 0
    if step.op == "clock":
        return read_clock(step.text or "", step.origin)
    if step.op == "item":
        return evaluate(f"to_{kind.kind}", [args[0].item()], kind)
    return evaluate(step.op, args, kind)


def tensor_type(tensor: Any) -> TensorType:
    """Return the type of a ``torch.Tensor``."""
    return TensorType(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def exception_of(kind: str) -> type[Exception]:
    """Return the exception type of a name; the user's own classes are made by their names."""
    return _EXCEPTIONS.get(kind) or type(kind, (RuntimeError,), {})


def _choose(block: Block, frame: dict[Value, Datum]) -> tuple[int, Edge]:
    term = block.terminator
    if isinstance(term, Jump):
        return 0, term.edge
    if isinstance(term, Branch):
        return (0, term.then) if _read(frame, term.cond) else (1, term.orelse)
    if isinstance(term, Switch):
        index = _read(frame, term.index)
        if not 0 <= index < len(term.edges):
            raise IndexError(f"index {index} of {len(term.edges)} ({term.origin})")
        return index, term.edges[index]
    if isinstance(term, Raise):
        if term.limit:
            raise LimitError(term.message)
        raise exception_of(term.kind)(term.message)
    raise InvariantError(f"block {block.name} has no terminator")


def _build(structure: Any, leaves: list[Datum]) -> Any:
    return unflatten(structure, lambda k, _type: leaves[k])


def _accept(param: Value, arg: Datum) -> Datum:
    """Check an argument of the graph and bring a number to the kind of its parameter."""
    if isinstance(param.type, ScalarType):
        if isinstance(arg, torch.Tensor):
            raise TypeError(f"{param.name}: expected {param.type}, got a tensor")
        return checked_int(arg) if param.type == INT else evaluate(f"to_{param.type.kind}", [arg], param.type)
    if not isinstance(arg, torch.Tensor) or tensor_type(arg) != param.type:
        raise TypeError(f"{param.name}: expected {param.type}, got {tensor_type(arg) if isinstance(arg, torch.Tensor) else type(arg)}")
    return arg


def _read(frame: dict[Value, Datum], operand: Any) -> Datum:
    if isinstance(operand, Constant):
        return operand.data
    if not isinstance(operand, Value):
        return operand
    if operand not in frame:
        raise InvariantError(f"{operand!r} is read, but no step that ran gave it with its type")
    return frame[operand]


def _flatten(result: Any, found: list[Any]) -> None:
    if isinstance(result, (list, tuple)):
        for item in result:
            _flatten(item, found)
    else:
        found.append(result)
