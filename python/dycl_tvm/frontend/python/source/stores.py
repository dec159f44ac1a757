# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The part of the rewriting that has to do with stores: assignments to attributes and items, and names."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from dycl_tvm.frontend.python.source.syntax import (
    BINARY_NAMES,
    COMPOUND,
    COMPREHENSIONS,
    asks_for_variables,
    locals_call,
    operator_call,
    operator_named,
    placed,
    statements_from,
    walk_scope,
)


class StoreRewriter(ast.NodeTransformer):
    """Rewrites stores, so that what they change can be saved before."""

    def __init__(self, filename: str, class_name: str) -> None:
        self.filename, self.class_name = filename, class_name
        self.counter = 0
        self.function_name = ""
        self.globals: set[str] = set()
        #: The variables whose value depends on the path so that they may have none.
        self.unsure: set[str] = set()

    def _fresh(self, kind: str) -> str:
        self.counter += 1
        return f"_{kind}{self.counter}"

    def _mangle(self, name: str) -> str:
        if self.class_name and name.startswith("__") and not name.endswith("__"):
            return f"_{self.class_name.lstrip('_')}{name}"
        return name

    def visit_Assign(self, node: ast.Assign) -> Any:
        """Rewrite stores into attributes and items."""
        value = self.visit(node.value)
        if len(node.targets) == 1:
            return self._store(node.targets[0], value, node)
        temporary = self._fresh("value")
        made: list[ast.stmt] = [placed(ast.Assign([ast.Name(temporary, ast.Store())], value), node)]
        for target in node.targets:
            made += self._store(target, ast.Name(temporary, ast.Load()), node)
        return made

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Drop the annotation of an assignment; without a value it makes a name local, and of anything else the parts are evaluated."""
        if node.value is not None:
            return self._store(node.target, self.visit(node.value), node)
        if isinstance(node.target, ast.Name):
            return placed(ast.AnnAssign(node.target, ast.Constant(None), None, node.simple), node)
        return self._parts_of(node.target, node)

    def _parts_of(self, target: ast.Attribute | ast.Subscript, node: ast.stmt) -> list[ast.stmt]:
        """Return what Python does of a target to which nothing is assigned."""
        parts = [self.visit(target.value), *([self._index(target.slice)] if isinstance(target, ast.Subscript) else [])]
        return [placed(ast.Expr(part), node) for part in parts]

    def _store(self, target: ast.expr, value: ast.expr, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(target, ast.Attribute):
            return [
                placed(
                    ast.Expr(operator_call("setattr", target, value, self.visit(target.value), ast.Constant(self._mangle(target.attr)))),
                    node,
                )
            ]
        if isinstance(target, ast.Subscript):
            return [placed(ast.Expr(operator_call("setitem", target, value, self.visit(target.value), self._index(target.slice))), node)]
        if isinstance(target, (ast.Tuple, ast.List)):
            after: list[ast.stmt] = []  # targets are stored into from left to right: a name may be a part of the next target
            elements: list[ast.expr] = []
            for element in target.elts:
                inner = element.value if isinstance(element, ast.Starred) else element
                if isinstance(inner, ast.Name) and not after:
                    elements.append(element)
                    continue
                temporary = self._fresh("part")
                name: ast.expr = ast.Name(temporary, ast.Store())
                elements.append(ast.Starred(name, ast.Store()) if isinstance(element, ast.Starred) else name)
                after += self._store(inner, ast.Name(temporary, ast.Load()), node)
            value = operator_call("unpacked", node, value)
            return [placed(ast.Assign([ast.Tuple(elements, ast.Store())], value), node), *after]
        return [placed(ast.Assign([target], value), node)]

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """Rewrite ``x += y``, which may change an object in place."""
        op, target = ast.Constant(BINARY_NAMES[type(node.op)]), node.target
        if isinstance(target, ast.Name):
            call = operator_call("augment", node, op, ast.Name(target.id, ast.Load()), self.visit(node.value))
            return placed(ast.Assign([target], call), node)
        what, part = (
            ("attr", ast.Constant(self._mangle(target.attr))) if isinstance(target, ast.Attribute) else ("item", self._index(target.slice))
        )
        found = operator_call(f"{what}_to_augment", node, self.visit(target.value), part)
        value = self.visit(node.value)
        return placed(ast.Expr(operator_call(f"augment_{what}", node, op, ast.Starred(found, ast.Load()), value)), node)

    def visit_Delete(self, node: ast.Delete) -> Any:
        """Rewrite ``del`` of attributes and items, in brackets too."""
        return [statement for target in node.targets for statement in self._delete(target, node)]

    def _delete(self, target: ast.expr, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(target, (ast.Tuple, ast.List)):
            return [statement for part in target.elts for statement in self._delete(part, node)] or [placed(ast.Pass(), node)]
        if isinstance(target, ast.Attribute):
            call = operator_call("delattr", target, self.visit(target.value), ast.Constant(self._mangle(target.attr)))
            return [placed(ast.Expr(call), node)]
        if isinstance(target, ast.Subscript):
            return [placed(ast.Expr(operator_call("delitem", target, self.visit(target.value), self._index(target.slice))), node)]
        name = ast.Name(target.id, ast.Load())  # type: ignore[attr-defined]  # nothing else can be deleted
        return [placed(ast.Expr(operator_call("bound", node, name)), node), placed(ast.Delete([target]), node)]

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        """Let modules be imported as if no stage were under way."""
        return [*[self._import(node, a.name, (), 0) for a in node.names], node]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.stmt]:
        """Let the module be imported as if no stage were under way."""
        return [self._import(node, node.module or "", tuple([a.name for a in node.names]), node.level), node]

    def _import(self, node: ast.stmt, name: str, parts: tuple[str, ...], level: int) -> ast.stmt:
        given = [ast.Constant(name), ast.Constant(parts), ast.Constant(level)]  # type: ignore[arg-type]  # a constant of byte code
        spaces = operator_call("own_globals", node)
        made: ast.stmt = placed(ast.Expr(operator_call("importing", node, spaces, *given)), node)
        return made

    def _index(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Slice):
            parts = [ast.Constant(None) if p is None else self.visit(p) for p in (node.lower, node.upper, node.step)]
            return placed(ast.Call(operator_named("slice"), parts, []), node)
        if isinstance(node, ast.Tuple):
            return placed(ast.Tuple([self._index(e) for e in node.elts], ast.Load()), node)
        if isinstance(node, ast.Starred):
            return placed(ast.Starred(self._index(node.value), ast.Load()), node)
        made: ast.expr = self.visit(node)
        return made

    def _save_globals(self, where: ast.stmt | ast.expr) -> list[ast.stmt]:
        """Save the global variables that a statement, or a target, assigns, as often as it runs."""
        names = [n for n in self._assigned([where]) if n in self.globals] if self.globals else []
        return [placed(ast.Expr(self._saved(names, where)), where)] if names else []

    def _saved(self, names: list[str], where: ast.AST) -> ast.expr:
        return operator_call("changing_globals", where, operator_call("own_globals", where), self._names(names))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        """Save a global variable that an expression assigns: it may stand in the condition of a loop."""
        node.value = self.visit(node.value)
        if node.target.id not in self.globals:
            return node
        both = placed(ast.Tuple([self._saved([node.target.id], node), node], ast.Load()), node)
        return placed(ast.Subscript(both, ast.Constant(1), ast.Load()), node)  # type: ignore[no-any-return]

    # -- names ------------------------------------------------------------------------------------------------------------
    def _about_namespaces(self, node: ast.Call) -> ast.expr:
        """Rewrite a call that is about names if Python's own function is called."""
        if asks_for_variables(node):
            return self._about_variables(node)
        if node.func.id == "globals":  # type: ignore[attr-defined]
            return operator_call("module_globals", node, node)
        node = self.generic_visit(node)  # type: ignore[assignment]
        node.args[1:] = [operator_call("unpacked", a, a) for a in node.args[1:]]  # the variables, which have to be a real dict
        for keyword in node.keywords:
            keyword.value = operator_call("unpacked", keyword.value, keyword.value)
        return node

    def _about_variables(self, node: ast.Call) -> ast.expr:
        """Rewrite a call that asks for the variables where it stands, or runs a text among them."""
        name = node.func.id  # type: ignore[attr-defined]
        if name in ("eval", "exec"):
            node = self.generic_visit(node)  # type: ignore[assignment]
            node.args += [operator_call("own_globals", node), operator_call("users_locals", node, locals_call())]
            return node
        return operator_call("users_names" if name == "dir" else "users_locals", node, locals_call())

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Rewrite a read of a variable that may not be set: reading it is an error there, whatever is done with the value."""
        if not isinstance(node.ctx, ast.Load) or node.id not in self.unsure:
            return node
        return operator_call("bound", node, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Rewrite a read of an attribute, which may not be set; some of what Python itself keeps have operators."""
        if not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)  # type: ignore[return-value]
        if node.attr == "__class__":
            return operator_call("class_of", node, self.visit(node.value))
        if node.attr == "__code__":
            return operator_call("code", node, self.visit(node.value))
        if node.attr == "__dict__":
            return operator_call("namespace", node, self.visit(node.value))
        value: Any = self.visit(node.value)
        node.value = value.args[0] if isinstance(node.value, ast.Attribute) and value.func.attr == "bound" else value
        return operator_call("bound", node, node)

    def _may_be_unset(self, statements: list[ast.stmt]) -> set[str]:
        """Return the local names that statements bind, or delete, on some paths only."""
        return set(self._stored([s for s in statements if isinstance(s, COMPOUND)]))

    def _stored(self, statements: list[ast.stmt]) -> list[str]:
        """Return the local names that statements may bind: global variables are places of the heap."""
        return [name for name in self._assigned(statements) if name not in self.globals]

    def _assigned(self, statements: Sequence[ast.AST]) -> list[str]:
        """Return the names that statements may bind, in order."""
        found: dict[str, None] = {}
        for n in walk_scope([*statements]):
            if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)):
                found.setdefault(n.id)
            elif isinstance(n, (ast.FunctionDef, ast.ClassDef)):
                found.setdefault(n.name)
            elif isinstance(n, (ast.Import, ast.ImportFrom)):
                for alias in n.names:
                    found.setdefault((alias.asname or alias.name).split(".")[0])
            elif isinstance(n, (ast.MatchAs, ast.MatchStar, ast.ExceptHandler)) and n.name:  # a handler deletes its name at its end
                found.setdefault(n.name)
            elif isinstance(n, ast.MatchMapping) and n.rest:
                found.setdefault(n.rest)
            elif isinstance(n, COMPREHENSIONS):
                for inner in ast.walk(n):
                    if isinstance(inner, ast.NamedExpr):
                        found.setdefault(inner.target.id)
        return list(found)

    def _names(self, names: list[str]) -> ast.expr:
        return ast.Constant(tuple(self._mangle(n) for n in names))  # type: ignore[arg-type]  # a constant of byte code

    def _restore(self, flag: str, env: str, names: list[str], node: ast.AST) -> list[ast.stmt]:
        """Set the local names from an environment; a name that it does not hold becomes unbound."""
        if not names:
            return []
        lines = [f"if {flag}:"]
        for name in names:
            key = self._mangle(name)
            lines += [
                f"    if {key!r} in {env}:",
                f"        {name} = {env}[{key!r}]",
                "    else:",
                f"        {name} = None",
                f"        del {name}",
            ]
        return statements_from("\n".join(lines), node)
