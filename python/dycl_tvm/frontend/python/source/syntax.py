# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Syntax trees: looking at the user's, and making new ones from templates."""

from __future__ import annotations

import ast
import re
import sys
import types
from typing import Any

#: Name under which the operators are visible in rewritten code.
OPERATORS = "_dy"
#: Names that the rewriting gives to its own variables.
OWN_NAME = re.compile(r"_dy|_frame|_(if|for|while|item|value|part|decorator|rest|final)\d+")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
#: Statements of which some others are parts.
COMPOUND = (ast.If, ast.For, ast.While, ast.Try, getattr(ast, "TryStar", ast.Try), ast.With, ast.Match)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

#: Names of the functions of `operator` that stand for binary operators.
BINARY_NAMES = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
}
COMPARISON_NAMES = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Is: "is",
    ast.IsNot: "is_not",
    ast.In: "in",
    ast.NotIn: "not_in",
}


def type_params() -> dict[str, Any]:
    return {"type_params": []} if sys.version_info >= (3, 12) else {}


_rewritten: dict[int, types.CodeType] = {}


def note_rewritten(code: types.CodeType) -> types.CodeType:
    """Note that code, and all that it defines, was made by the rewriting; return it."""
    _rewritten[id(code)] = code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            note_rewritten(inner)
    return code


def is_rewritten(code: types.CodeType) -> bool:
    """Whether code is that of a rewritten function, or of one that it defines."""
    return id(code) in _rewritten


def walk_scope(statements: list[Any]) -> list[ast.AST]:
    """Return all nodes below statements that belong to the same scope (nested functions and comprehensions are leaves)."""
    found: list[ast.AST] = []
    todo: list[ast.AST] = list(reversed(statements))
    while todo:
        node = todo.pop()
        found.append(node)
        if isinstance(node, (*FUNCTIONS, *COMPREHENSIONS)):
            continue
        todo.extend(reversed(list(ast.iter_child_nodes(node))))
    return found


def jumps(statements: list[ast.stmt]) -> set[str]:
    """Return the kinds of jumps that leave the statements."""
    kinds: set[str] = set()
    for node in statements:
        if isinstance(node, ast.Return):
            kinds.add("return")
        elif isinstance(node, ast.Break):
            kinds.add("break")
        elif isinstance(node, ast.Continue):
            kinds.add("continue")
        elif isinstance(node, (ast.For, ast.While)):
            kinds |= jumps(node.body) & {"return"}
            kinds |= jumps(node.orelse)
        elif not isinstance(node, FUNCTIONS):
            for _, value in ast.iter_fields(node):
                if isinstance(value, list):
                    for v in value:
                        if isinstance(v, ast.stmt):
                            kinds |= jumps([v])
                        elif isinstance(v, (ast.ExceptHandler, ast.match_case)):
                            kinds |= jumps(v.body)
    return kinds


_YIELDS = (ast.Yield, ast.YieldFrom, ast.Await)


def bound_to_its_frame(node: ast.expr) -> bool:
    """Whether an expression would do something else in a function of its own: it binds a name, yields, or asks where it is."""
    return any(isinstance(n, (ast.NamedExpr, *_YIELDS)) or asks_for_variables(n) for n in ast.walk(node))


#: How many arguments a call has at most that is about the variables where it stands.
_ABOUT_VARIABLES = {"locals": 0, "vars": 0, "dir": 0, "eval": 1, "exec": 1}


def asks_for_variables(node: ast.AST) -> bool:
    """Whether a node is a call that reads, or may write, the variables where it stands: ``locals()``, ``exec(text)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in _ABOUT_VARIABLES:
        return False
    if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg in (None, "globals", "locals") for k in node.keywords):
        return False
    return len(node.args) <= _ABOUT_VARIABLES[node.func.id]


def is_about_namespaces(node: ast.Call) -> bool:
    """Whether a call is about variables, if the name that it calls is Python's own: where it stands, of the module, or of a given dict."""
    if not isinstance(node.func, ast.Name):
        return False
    return asks_for_variables(node) or node.func.id in ("eval", "exec") or (node.func.id == "globals" and not node.args)


def locals_call() -> ast.expr:
    return ast.Call(operator_named("locals"), [], [])


def yields(body: list[Any]) -> bool:
    """Whether statements of a function give values to its caller before they are done."""
    return any(isinstance(n, _YIELDS) for n in walk_scope(body))


def in_block(body: list[ast.stmt]) -> list[ast.stmt]:
    """Note that statements run within a ``try`` or ``with``, if they yield."""
    return statements_from("with DY.block():\n    BODY", body[0], DY=operators_name(), BODY=body) if yields(body) else body


_BINDING = (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Match)
_OF_FRAMES = frozenset(["super", "__class__", "locals", "vars", "dir", "eval", "exec"])


def can_stand_alone(statements: list[ast.stmt]) -> bool:
    """Whether statements do the same in a function of their own: they set no variables, do not leave, and do not ask where they are."""
    nodes = [n for s in statements for n in ast.walk(s)]
    if jumps(statements) or any(isinstance(n, (*FUNCTIONS, *COMPREHENSIONS, *_YIELDS, *_BINDING)) for n in nodes):
        return False
    if any(isinstance(n, ast.ExceptHandler) and n.name for n in nodes):
        return False
    return all(isinstance(n.ctx, ast.Load) and n.id not in _OF_FRAMES for n in nodes if isinstance(n, ast.Name))


def captured_names(statements: list[ast.stmt]) -> frozenset[str]:
    """Return the names that functions, lambdas and generators within statements read or write."""
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.GeneratorExp, ast.ClassDef)
    inner = [n for s in statements for n in ast.walk(s) if isinstance(n, scopes)]
    return frozenset(n.id for scope in inner for n in ast.walk(scope) if isinstance(n, ast.Name))


def names_of(expressions: list[ast.expr | None]) -> str:
    """Return the text of a tuple of expressions if all are names, attributes of names, and tuples of them; else nothing."""
    plain = (ast.Name, ast.Attribute, ast.Tuple, ast.expr_context)
    if any(e is None or not all(isinstance(n, plain) for n in ast.walk(e)) for e in expressions):
        return ""
    return ast.unparse(ast.Tuple([e for e in expressions if e is not None], ast.Load()))


#: How many tests of a chain of ``elif`` may stand in each other: Python nests 20 blocks at most, and each becomes two.
_LONGEST_CHAIN = 8


def middle_of_chain(node: ast.If) -> ast.If | None:
    """Return the test behind which a chain of ``elif`` is to be cut in two; None for a chain that is not too long."""
    chain = [node]
    while len(chain[-1].orelse) == 1 and isinstance(chain[-1].orelse[0], ast.If):
        chain.append(chain[-1].orelse[0])
    return chain[len(chain) // 2 - 1] if len(chain) > _LONGEST_CHAIN else None


def only_raises(handler: ast.ExceptHandler) -> bool:
    """Whether whatever comes to a handler leaves it as an exception: its last statement is ``raise``, and none before it can leave it."""
    inner = [n for s in handler.body for n in ast.walk(s)]
    return isinstance(handler.body[-1], ast.Raise) and not any(isinstance(n, _LEAVING) for n in inner)


#: What is left in another way than by an exception, or may be.
_LEAVING = (
    *(ast.If, ast.For, ast.While, ast.Try, getattr(ast, "TryStar", ast.Try), ast.With, ast.Match),
    *(ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom),
)


def last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def without_annotations(args: ast.arguments) -> ast.arguments:
    def bare(a: ast.arg | None) -> Any:
        return None if a is None else ast.copy_location(ast.arg(a.arg), a)

    return ast.arguments(
        [bare(a) for a in args.posonlyargs],
        [bare(a) for a in args.args],
        bare(args.vararg),
        [bare(a) for a in args.kwonlyargs],
        args.kw_defaults,
        bare(args.kwarg),
        args.defaults,
    )


def operators_name() -> ast.expr:
    return ast.Name(OPERATORS, ast.Load())


def operator_named(name: str) -> ast.expr:
    return ast.Attribute(operators_name(), name, ast.Load())


def placed(node: Any, where: ast.AST) -> Any:
    place(node, where)
    return node


def operator_call(name: str, where: ast.AST, *args: ast.expr) -> ast.expr:
    made: ast.expr = placed(ast.Call(operator_named(name), list(args), []), where)
    return made


def thunk(node: ast.expr) -> ast.expr:
    empty = ast.arguments([], [], None, [], [], None, [])
    made: ast.expr = placed(ast.Lambda(empty, node), node)
    return made


class _Fill(ast.NodeTransformer):
    """Puts nodes in place of the names of a template."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self.parts = parts

    def visit_Expr(self, node: ast.Expr) -> Any:
        if isinstance(node.value, ast.Name) and isinstance(self.parts.get(node.value.id), list):
            return self.parts[node.value.id]
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        return self.parts.get(node.id, node)


def statements_from(template: str, where: ast.AST, **parts: Any) -> list[ast.stmt]:
    """Parse statements, fill in parts (expressions, or lists of statements), and place them where the user's code was."""
    tree = ast.parse(template)
    parts = {"locals": operator_named("locals"), **parts}  # whatever that name is for the program
    for n in ast.walk(tree):
        for field in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            if hasattr(n, field):
                delattr(n, field)
    made = []
    for s in tree.body:
        new = _Fill(parts).visit(s)
        made += new if isinstance(new, list) else [new]
    for s in made:
        place(s, where)
    return made


def place(node: ast.AST, where: Any) -> None:
    """Place new nodes at the first line of ``where``: Python would report a method call that spans lines at its last."""
    for n in ast.walk(node):
        if isinstance(n, (ast.stmt, ast.expr, ast.ExceptHandler)) and not hasattr(n, "lineno"):
            n.lineno = n.end_lineno = where.lineno
            n.col_offset = n.end_col_offset = where.col_offset
