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
from typing import Any

import torch

from dycl_tvm.hcfg.analysis import dominators, natural_loops
from dycl_tvm.hcfg.checks import NAMESPACE, OUTSIDE, Demand, demands
from dycl_tvm.hcfg.hostops import OF_CHECK
from dycl_tvm.hcfg.nodes import HCFG, Block, Constant, HostOp, Origin, Step, TensorOp, Value
from dycl_tvm.hcfg.types import BOOL, INT, TensorType
from dycl_tvm.passes.element_bounds import ElementBounds

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
        nest = natural_loops(graph, self._tree)
        self._bounds = ElementBounds(graph)
        #: Values that are made at most once in a call: what is known of one holds for all that is computed of it later.
        once = [] if nest.irreducible else [b for b in self._tree.order if b not in nest.innermost]
        self._once = {v for b in once for v in (*b.params, *(r for s in b.steps for r in s.results()))}
        self._passed: set[_FACT] = set()
        self._known: dict[Value, tuple[int, int]] = {}
        self._count = 0

    def run(self) -> int:
        """Go down the tree of dominators: what was checked above is known below."""
        stack: list[tuple[Block, Any]] = [(self._tree.order[0], None)]
        while stack:
            block, before = stack.pop()
            if before is not None:
                self._restore(before)
                continue
            stack.append((block, (set(self._passed), dict(self._known), dict(self._bounds.given))))
            self._visit(block)
            stack.extend((child, None) for child in self._tree.children[block])
        return self._count

    def _restore(self, before: Any) -> None:
        self._passed, self._known, given = before
        if given != self._bounds.given:
            self._bounds.given = given
            self._bounds.forget()

    def _visit(self, block: Block) -> None:
        steps: list[Step] = []
        for step in block.steps:
            if isinstance(step, HostOp) and step.op == "check":
                self._learn_of(step)
            elif isinstance(step, TensorOp):
                for demand in demands(step):
                    steps += self._checked(demand, step.origin)
            steps.append(step)
        if self._put:
            block.steps = steps

    def _checked(self, demand: Demand, origin: Origin | None) -> list[Step]:
        """Return the steps of the check that a demand needs: none if it is proved."""
        root = demand.value if demand.question else self._root(demand.value)
        if self._is_proved(demand, root):
            return []
        self._count += 1
        flag, answer, done = Value(TensorType((), "bool")), Value(BOOL), Value(INT)
        question = TensorOp(*demand.asked(root), {}, (flag,), origin)
        self._learn(question)
        return [
            question,
            HostOp("item", (flag,), answer, origin, OF_CHECK),
            HostOp("check", (answer,), done, origin, f"{demand.kind}: {demand.message}"),
        ]

    def _root(self, value: Value) -> Value:
        """Return the tensor whose elements are those of a value, in another shape perhaps."""
        while isinstance(maker := self._bounds.makers.get(value), TensorOp):
            source = maker.args[0] if maker.op in _SAME_ELEMENTS or _widens(maker) else None
            if not isinstance(source, Value) or value.type.numel == 0:  # type: ignore[union-attr]  # a tensor
                break
            value = source
        return value

    def _is_proved(self, demand: Demand, root: Value) -> bool:
        op, args = demand.asked(root)
        if (op, *args) in self._passed:
            return True
        if demand.question:
            return isinstance(root, Constant) and not operator.attrgetter(op)(torch.ops)(root.data, *args[1:])
        found = [b for b in (self._known.get(root), self._bounds.of(root), self._bounds.of(demand.value)) if b is not None]
        if demand.low is None:
            return any(low > 0 or high < 0 for low, high in found)
        assert demand.high is not None
        low, high = max([b[0] for b in found], default=None), min([b[1] for b in found], default=None)
        return low is not None and high is not None and demand.low <= low and high <= demand.high

    def _learn_of(self, check: HostOp) -> None:
        """Take to be known what a check of an earlier run of the pass says."""
        item = self._bounds.makers.get(check.args[0]) if isinstance(check.args[0], Value) else None
        question = self._bounds.makers.get(item.args[0]) if isinstance(item, HostOp) and isinstance(item.args[0], Value) else None
        if isinstance(question, TensorOp) and question.op.startswith(NAMESPACE):
            self._learn(question)

    def _learn(self, question: TensorOp) -> None:
        self._passed.add((question.op, *question.args))
        root, low, high, spared = question.args if question.op == OUTSIDE else (None, None, None, None)
        if root is None or spared is not None or isinstance(root, Constant):
            return
        known = self._known.get(root)
        self._known[root] = (low, high) if known is None else (max(low, known[0]), min(high, known[1]))
        if root in self._once:
            given = self._bounds.of(root)
            narrowed = (low, high) if given is None else (max(low, given[0]), min(high, given[1]))
            if narrowed[0] <= narrowed[1]:
                self._bounds.given[root] = narrowed
                self._bounds.forget()


def _widens(step: TensorOp) -> bool:
    """Tell whether an operator converts integers to a type that holds them all."""
    if step.op != "aten._to_copy.default" or step.outputs[0] is None:
        return False
    types = [v.type.dtype for v in (step.args[0], step.outputs[0])]  # type: ignore[union-attr]  # tensors
    return types[1] == "int64" and types[0] in ("int32", "int16", "int8", "uint8")
