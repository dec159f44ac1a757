# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Rewriting comprehensions and generator expressions: what they do with one item stands beside them as a function.

A comprehension stays what it is where Python knows how many items there are. Where the run tells, a rolled loop calls that function.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

from dycl_tvm.frontend.python.source.choices import ChoiceRewriter
from dycl_tvm.frontend.python.source.syntax import bound_to_its_frame, operator_call, placed, thunk


class ComprehensionRewriter(ChoiceRewriter):
    """Rewrites what makes items of other items."""

    #: Whether functions that stand in the code see its variables.
    repeats = True

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        """Note what a comprehension goes over."""
        made: ast.comprehension = self.generic_visit(node)  # type: ignore[assignment]
        made.iter = operator_call("unpacked", made.iter, made.iter)
        return made

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        """Note that a list is made here."""
        if not self._can_be_functions(node):
            return operator_call("new", node, self.generic_visit(node))  # type: ignore[arg-type]
        iterable, each = self.visit(copy.deepcopy(node.generators[0].iter)), self._each(node)
        return operator_call("list_of", node, placed(ast.List([], ast.Load()), node), iterable, self._whole(node), each)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.expr:
        """Note that a generator is made here, and with it the iterator of what it goes over first."""
        if not self._can_be_functions(node):
            first = self.generic_visit(node).generators[0]  # type: ignore[attr-defined]
            first.iter = operator_call("started", first.iter, first.iter)
            return operator_call("new", node, node)
        iterable, each = self.visit(copy.deepcopy(node.generators[0].iter)), self._each(node)
        one_by_one = ast.Constant(len(node.generators) == 1 and not node.generators[0].ifs)
        short = ast.Constant(len(node.generators) == 1)
        return operator_call("generator_of", node, iterable, self._whole(node), each, one_by_one, short)

    def _can_be_functions(self, node: ast.ListComp | ast.GeneratorExp) -> bool:
        """Whether all of an expression does the same in functions of its own."""
        plain = (ast.Name, ast.Tuple, ast.List, ast.Starred, ast.expr_context)
        targets = [n for g in node.generators for n in ast.walk(g.target)]
        is_async = any(g.is_async for n in ast.walk(node) for g in getattr(n, "generators", ()))
        return self.repeats and not is_async and not bound_to_its_frame(node) and all(isinstance(n, plain) for n in targets)

    def _whole(self, node: ast.ListComp | ast.GeneratorExp) -> ast.expr:
        """Return the function that does all of it, given what it goes over first."""
        name, made = self._fresh("item"), copy.deepcopy(node)
        made.generators[0].iter = placed(ast.Constant(None), node)
        self.generic_visit(made)
        given = operator_call("unpacked", node, ast.Name(name, ast.Load()))
        made.generators[0].iter = given if isinstance(node, ast.ListComp) else operator_call("started", node, given)
        return _function([name], made, node)

    def _each(self, node: ast.ListComp | ast.GeneratorExp) -> ast.expr:
        """Return the function that gives what is made of one item to another function, and returns what that returns."""
        put = self._fresh("value")
        return self._step(put, node.elt, node.generators, node, [put])

    def _step(self, put: str, element: ast.expr, loops: list[ast.comprehension], where: ast.expr, outer: list[str]) -> ast.expr:
        first, *rest = loops
        item = self._fresh("item")
        if rest:
            inner = operator_call("each_of", where, self.visit(copy.deepcopy(rest[0].iter)), self._step(put, element, rest, where, []))
        else:
            inner = placed(ast.Call(ast.Name(put, ast.Load()), [self.visit(copy.deepcopy(element))], []), element)
        for test in reversed(first.ifs):
            inner = operator_call(
                "ifexp", test, self._condition(copy.deepcopy(test)), thunk(inner), thunk(placed(ast.Constant(False), test))
            )
        one = ast.comprehension(copy.deepcopy(first.target), ast.Tuple([ast.Name(item, ast.Load())], ast.Load()), [], 0)
        bound = placed(ast.Subscript(ast.ListComp(inner, [one]), ast.Constant(0), ast.Load()), where)
        return _function([*outer, item], bound, where)


def _function(names: list[str], body: ast.expr, where: ast.expr) -> ast.expr:
    arguments = ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])
    made: Any = placed(ast.Lambda(arguments, body), where)
    return made  # type: ignore[no-any-return]
