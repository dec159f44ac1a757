# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Element checks: where eager raises an error because of an element of a tensor, so does the graph.

Before an operator that reads or writes at places, or divides integers, a check of its operand is put (:mod:`dycl_tvm.hcfg.checks`), unless
bounds of the elements prove it superfluous, or a check that has been passed on all ways there. Kernels of the operator may run before
the check is looked at, for they bring places into range by themselves; what the program does to others happens after it.

Invariant: on every way the graph raises what the operators of it raise by themselves, and the first of these. Sources: the analysis,
:mod:`dycl_tvm.hcfg.elements`; what is known behind a check, R. Bodik et al., "ABCD: eliminating array bounds checks on demand", PLDI 2000.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch

from dycl_tvm.hcfg.analysis import dominators
from dycl_tvm.hcfg.checks import NAMESPACE, OF_ANY_ELEMENT, OF_INTEGERS, OUTSIDE, Demand, demands, follows_from
from dycl_tvm.hcfg.hostops import OF_CHECK
from dycl_tvm.hcfg.nodes import HCFG, Block, Constant, HostOp, Origin, Step, TensorOp, Value
from dycl_tvm.hcfg.ranges import ALL, Range
from dycl_tvm.hcfg.types import BOOL, INT, TensorType
from dycl_tvm.passes.element_bounds import ElementBounds
from dycl_tvm.passes.scopes import Scopes

#: Operators whose result holds all elements of their first operand and no others.
_SAME_ELEMENTS = frozenset(
    f"aten.{name}"
    for name in (
        *("view.default", "reshape.default", "_unsafe_view.default", "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims"),
        *("clone.default", "alias.default", "detach.default", "permute.default", "transpose.int", "t.default", "expand.default"),
        *("flip.default", "contiguous.default"),
    )
)
#: A question whose answer was no, with its arguments.
_FACT = tuple[Any, ...]


def element_checks(graph: HCFG) -> int:
    """Put the checks; return their number."""
    return _Checks(graph).run()


def missing_checks(graph: HCFG) -> int:
    """Return how many checks the pass would put; the graph stays as it is."""
    return _Checks(graph, put=False).run()


class _Checks:
    def __init__(self, graph: HCFG, put: bool = True) -> None:
        self._put = put
        self._tree = dominators(graph)
        self._scopes = Scopes()
        self._bounds = ElementBounds(graph, self._tree, self._scopes)
        self._passed: dict[_FACT, bool] = {}
        self._roots: dict[Value, Value] = {}
        self._count = 0

    def run(self) -> int:
        """Go down the tree of dominators: what was checked above is known below."""
        stack: list[tuple[Block, int | None]] = [(self._tree.order[0], None)]
        while stack:
            block, entered = stack.pop()
            if entered is not None:
                self._scopes.leave(entered)
                continue
            stack.append((block, self._scopes.enter()))
            self._visit(block)
            stack.extend((child, None) for child in self._tree.children[block])
        return self._count

    def _visit(self, block: Block) -> None:
        steps: list[Step] = []
        for step in block.steps:
            if isinstance(step, HostOp) and step.op == "check":
                self._learn_of(step)
            elif isinstance(step, TensorOp):
                for demand in demands(step):
                    steps += self._checked(demand, block, step.origin)
            steps.append(step)
        if self._put:
            block.steps = steps

    def _checked(self, demand: Demand, block: Block, origin: Origin | None) -> list[Step]:
        """Return the steps of the check that a demand needs: none if it is proved."""
        root = self._root(demand.value) if demand.question[0] in OF_ANY_ELEMENT else demand.value
        if self._is_proved(demand, root, block):
            return []
        self._count += 1
        flag, answer, done = Value(TensorType((), "bool")), Value(BOOL), Value(INT)
        op, *args = demand.asked(root)
        question = TensorOp(op, tuple(args), {}, (flag,), origin)
        self._learn(question)
        return [
            question,
            HostOp("item", (flag,), answer, origin, OF_CHECK),
            HostOp("check", (answer,), done, origin, f"{demand.kind}: {demand.message}"),
        ]

    def _root(self, value: Value) -> Value:
        """Return the tensor whose elements are those of a value, in another shape perhaps."""
        passed = []
        while value not in self._roots and isinstance(maker := self._bounds.makers.get(value), TensorOp):
            source = maker.args[0] if maker.op in _SAME_ELEMENTS or _widens(maker) else None
            if not isinstance(source, Value) or value.type.numel == 0:  # type: ignore[union-attr]  # a tensor
                break
            passed.append(value)
            value = source
        root = self._roots.get(value, value)
        self._roots.update(dict.fromkeys(passed, root))
        return root

    def _is_proved(self, demand: Demand, root: Value, block: Block) -> bool:
        op, *args = asked = demand.asked(root)
        if tuple(asked) in self._passed:
            return True
        if isinstance(root, Constant) and not operator.attrgetter(op)(torch.ops)(root.data, *args[1:]):
            return True
        found = ALL
        for bounds in self._bounds_of(demand.value, root, block) if op in OF_INTEGERS else ():
            found = found.meet(bounds)
            if follows_from(demand.question, *found):
                return True
        return False

    def _bounds_of(self, value: Value, root: Value, block: Block) -> Iterator[Range]:
        """Yield bounds of what is read in a block, those that are found soonest first."""
        for x in dict.fromkeys((root, value)):
            if known := self._bounds.of(x):
                yield Range(*known)
        for x in dict.fromkeys((root, value)):
            if here := self._bounds.here(x, block):
                yield here

    def _learn_of(self, check: HostOp) -> None:
        """Take to be known what a check of an earlier run of the pass says."""
        item = self._bounds.makers.get(check.args[0]) if isinstance(check.args[0], Value) else None
        question = self._bounds.makers.get(item.args[0]) if isinstance(item, HostOp) and isinstance(item.args[0], Value) else None
        if isinstance(question, TensorOp) and question.op.startswith(NAMESPACE):
            self._learn(question)

    def _learn(self, question: TensorOp) -> None:
        self._scopes.learn(self._passed, (question.op, *question.args), True)
        if question.op == OUTSIDE and question.args[3:] in ((), (None,)) and not isinstance(question.args[0], Constant):
            self._bounds.learn(*question.args[:3])


def _widens(step: TensorOp) -> bool:
    """Tell whether an operator converts integers to a type that holds them all."""
    if step.op != "aten._to_copy.default" or step.outputs[0] is None:
        return False
    types = [v.type.dtype for v in (step.args[0], step.outputs[0])]  # type: ignore[union-attr]  # tensors
    return types[1] == "int64" and types[0] in ("int32", "int16", "int8", "uint8")
