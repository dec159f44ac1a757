# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Rewriting what decides within an expression: conditions, ``a if c else b``, ``and``, ``or``, ``not``, comparisons."""

from __future__ import annotations

import ast

from dycl_tvm.frontend.python.source.stores import StoreRewriter
from dycl_tvm.frontend.python.source.syntax import COMPARISON_NAMES, bound_to_its_frame, operator_call, thunk


class ChoiceRewriter(StoreRewriter):
    """Rewrites expressions of which a part may not be evaluated, and what their truth is asked by."""

    def _needs_its_frame(self, nodes: list[ast.expr]) -> bool:
        """Whether one of some expressions has to stay where it is, and cannot be a function of its own."""
        return any(map(bound_to_its_frame, nodes))

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """Rewrite ``a if c else b``."""
        if self._needs_its_frame([node.body, node.orelse]):
            return self.generic_visit(node)  # type: ignore[return-value]
        test = self._condition(node.test)
        return operator_call("ifexp", node.test, test, thunk(self.visit(node.body)), thunk(self.visit(node.orelse)))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Rewrite ``and`` and ``or``."""
        return self._bool_op(node, condition=False)

    def _bool_op(self, node: ast.BoolOp, condition: bool, operator: str = "bool_op") -> ast.expr:
        if self._needs_its_frame(node.values[1:]):
            return self._decided_in_its_frame(node) if condition else self.generic_visit(node)  # type: ignore[return-value]
        kind = "and" if isinstance(node.op, ast.And) else "or"
        # Python asks for the truth of each operand where that stands, or for all where the expression begins if their values are wanted
        first, *rest = (
            [operator_call("tested", v, self._condition(v)) for v in node.values]
            if condition
            else [
                self._bool_op(v, False, "bool_op_within") if isinstance(v, ast.BoolOp) and v is not node.values[-1] else self.visit(v)
                for v in node.values
            ]
        )
        return operator_call(operator, node, ast.Constant(kind), ast.Constant(condition), first, *map(thunk, rest))

    def _decided_in_its_frame(self, node: ast.BoolOp) -> ast.expr:
        """Rewrite a condition that stays an ``and`` or ``or`` of Python's: it asks all operands but the last, once as in a test."""
        *asked, last = [self._condition(v) for v in node.values]
        return ast.copy_location(ast.BoolOp(node.op, [*[operator_call("decided", v, v) for v in asked], last]), node)

    def _condition(self, node: ast.expr) -> ast.expr:
        """Rewrite an expression of which only the truth is wanted."""
        if isinstance(node, ast.BoolOp):
            return self._bool_op(node, condition=True)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return operator_call("not_", node.operand, self._condition(node.operand))
        made: ast.expr = self.visit(node)
        return made

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Rewrite ``not``."""
        if isinstance(node.op, ast.Not):
            return operator_call("not_", node, self._condition(node.operand))
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Rewrite identity, membership and chained comparisons (a single ``<`` is an operator call as it is)."""
        if len(node.ops) == 1:
            op = COMPARISON_NAMES[type(node.ops[0])]
            if op in ("is", "is_not", "in", "not_in"):
                return operator_call("compare", node, ast.Constant(op), self.visit(node.left), self.visit(node.comparators[0]))
            return self.generic_visit(node)  # type: ignore[return-value]
        if self._needs_its_frame(node.comparators):
            return self.generic_visit(node)  # type: ignore[return-value]
        ops = ast.Tuple([ast.Constant(COMPARISON_NAMES[type(o)]) for o in node.ops], ast.Load())
        return operator_call("chain", node, ops, self.visit(node.left), *[thunk(self.visit(c)) for c in node.comparators])
