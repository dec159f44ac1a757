# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Choosing among Python objects by an index known only at run time (``outputs[int(torch.argmax(c))]``).

Tensors and numbers meet in a block parameter. Modules, functions and other objects stay "one of these" until they are
called or an attribute is read: then each of them is, on its own side of a switch. What is left (passing such an object to
a library, testing its identity) is chosen by a fork.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dycl_tvm.errors import DyclError, UnsupportedError
from dycl_tvm.frontend.python.flow.branches import Scope, ifexp, join_paths
from dycl_tvm.frontend.python.flow.exits import exits
from dycl_tvm.frontend.trace.control_flow import Dead
from dycl_tvm.frontend.trace.join.captured import PathState, capture_path
from dycl_tvm.frontend.trace.join.mismatch import between_paths
from dycl_tvm.frontend.trace.join.poison import Poison, Why
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.indices import check_index
from dycl_tvm.hcfg.nodes import Edge, Switch, Value

#: Sequences of Python's, whose items are found by their positions.
_SEQUENCES = (list, tuple, deque, str)
#: What a method is that a class of the user's has not put another in the place of.
_COMPILED = (types.WrapperDescriptorType, types.MethodDescriptorType)


def by_position(obj: Any, method: str) -> bool:
    """Whether a method of an object finds, or sets, an item of a sequence by its position, and does nothing else."""
    return isinstance(obj, _SEQUENCES) and isinstance(getattr(type(obj), method), _COMPILED)


def _items_of(sequence: Sequence[Any]) -> tuple[Any, ...]:
    """Return the items of a sequence of Python's as they are now, whatever the methods are that a class of the user's has."""
    base: Any = next(kind for kind in _SEQUENCES if isinstance(sequence, kind))
    made: tuple[Any, ...] = tuple(base.__iter__(sequence))
    return made


class Chosen(Poison):
    """One of several objects, by an index known only at run time."""

    __slots__ = ("_items", "_position")

    def __init__(self, items: Sequence[Any], position: Any, decision: Any) -> None:
        super().__init__(decision, Why("one of several objects is chosen by an index known only at run time"))
        object.__setattr__(self, "_items", items)
        object.__setattr__(self, "_position", position)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return super().__getattribute__(name)
        return over(self, lambda item: getattr(item, name))


def over(chosen: Chosen, function: Callable[[Any], Any]) -> Any:
    """Return ``function`` of the chosen object: each on its own side of a switch."""
    items, position = object.__getattribute__(chosen, "_items"), object.__getattribute__(chosen, "_position")
    return explore(items, position, function)


def put(obj: list[Any], index: Any, value: Any) -> None:
    """Store at a position known only at run time: each item becomes the new value or stays."""
    there = _items_of(obj)
    position = check_index(index, len(there))
    items = [ifexp(position == i, lambda: value, lambda old=old: old) for i, old in enumerate(there)]
    current().heap.changing(obj)
    list.__setitem__(obj, slice(None), items)


def switch(items: Sequence[Any], index: Any, inside: bool = False) -> Any:
    """Return ``items[index]``; ``inside`` says that the index is known to be one of them."""
    session = current()
    items = _items_of(items)  # which of them it is may be asked when the sequence has others
    if (loop := scalars.counted_by(index)) is not None:
        session.decisions.unroll(loop, UnsupportedError("the number of a trip chooses one of several objects", session.origin()))
    if len(items) == 0:
        raise of_program(IndexError("index out of range"))
    if scalars.is_symbolic(index) and index.node.kind == "bool":  # 0 or 1
        index = scalars.convert(index, "int")
    position = index if inside else check_index(index, len(items))
    if not isinstance(scalars.operand_of(position), Value):
        return items[int(position)]
    if all(isinstance(item, (torch.Tensor, bool, int, float, tuple, list, dict)) or scalars.is_symbolic(item) for item in items):
        return explore(items, position, lambda item: item)
    if session.decisions.chosen_by_tests():
        return _by_tests(items, position)
    return Chosen(items, position, session.decisions.choice())


def explore(items: Sequence[Any], position: Any, function: Callable[[Any], Any]) -> Any:
    """Return ``function`` of the item at a position that is one of them: each on its own side of a switch."""
    session = current()
    if session.decisions.chosen_by_tests():
        return function(_by_tests(items, position))
    operand = scalars.operand_of(position)
    scope = Scope()
    decision = session.decisions.open(operand, choice=True)
    blocks = [session.builder.new_block("case") for _ in items]
    session.builder.terminate(Switch(operand, [Edge(b) for b in blocks], session.origin()))
    paths: list[PathState] = []
    for block, item in zip(blocks, items):
        session.builder.block = block
        session.heap.undoable.append((scope.clock, decision))
        try:
            paths.append(capture_path({}, scope.mark, function(item), has_value=True))
        except Dead:
            pass
        except DyclError:
            raise
        except Exception as error:
            if not exits().may_raise(error):
                session.decisions.fork(decision.target, f"one of several cases raises {type(error).__name__}")
            exits().leave_by_raise(error)
        finally:
            session.heap.undoable.remove((scope.clock, decision))
        session.journal.rollback(scope.mark)
    scope.close()
    if not paths:
        session.decisions.close(decision)
        raise Dead
    _, value = join_paths(paths, scope, decision.target, "chosen", between_paths([decision]))
    session.decisions.close(decision)
    return value


def _by_tests(items: Sequence[Any], position: Any) -> Any:
    """Choose by one test an item; the tests fork, so that each path knows its item."""
    for i, item in enumerate(items[:-1]):
        if position == i:
            return item
    return items[-1]
