# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Functions in rewritten form: the source is found, rewritten and compiled, with the original's globals and closure cells."""

from __future__ import annotations

import ast
import types
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.source.locate import FunctionNode, function_node, origin_at
from dycl_tvm.frontend.python.source.ownership import code_of, with_code
from dycl_tvm.frontend.python.source.rewrite import Rewriter
from dycl_tvm.frontend.python.source.syntax import OPERATORS, note_rewritten, type_params
from dycl_tvm.frontend.trace.by_code import by_code


def rewritten(function: types.FunctionType, operators: Any) -> types.FunctionType:
    """Return the function with its control flow rewritten to calls of ``operators``.

    Raises
    ------
    UnsupportedError
        If the source is not there, or uses what cannot be rewritten (``async``, ``global`` assignment).
    """
    original = code_of(function)
    code = _code(original, function.__qualname__)
    cells = dict(zip(original.co_freevars, function.__closure__ or ()))
    cells[OPERATORS] = types.CellType(operators)
    closure = tuple(cells[name] for name in code.co_freevars)
    made = with_code(function, code, closure)
    made.__qualname__ = function.__qualname__
    made.__dict__.update(function.__dict__)
    return made


@by_code
def _code(original: types.CodeType, qualname: str) -> types.CodeType:
    node = function_node(original)
    return note_rewritten(_compile(node, original, _class_of(node, original, qualname), tuple(original.co_freevars)))


def _class_of(node: FunctionNode, code: types.CodeType, qualname: str) -> str:
    """Return the class whose private names a function uses: a decorator may have given it another name, or it is within a method."""
    texts = [getattr(n, field, None) for n in ast.walk(node) for field in ("id", "attr", "arg")]
    private = [t for t in texts if isinstance(t, str) and t.startswith("__") and not t.endswith("__")]
    spelt = _names_in(code) if private else ()
    for name in private:
        for mangled in spelt if name not in spelt else ():
            if mangled.startswith("_") and mangled.endswith(name):
                return mangled[1 : -len(name)]
    parts = qualname.split(".")
    return parts[-2] if len(parts) > 1 and parts[-2] != "<locals>" else ""


def _names_in(code: types.CodeType) -> list[str]:
    inner = [n for c in code.co_consts if isinstance(c, types.CodeType) for n in _names_in(c)]
    return [*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars, *inner]


def _compile(node: FunctionNode, original: types.CodeType, class_name: str, freevars: tuple[str, ...]) -> types.CodeType:
    if isinstance(node, ast.AsyncFunctionDef):
        raise UnsupportedError(
            "async functions are not supported", origin_at(original.co_filename, node.lineno, node.name), "use a plain function"
        )
    made = Rewriter(original.co_filename, class_name).function(node, frozenset(original.co_freevars))
    name = "__dycl_lambda" if isinstance(made, ast.Lambda) else made.name
    body: list[ast.stmt] = [ast.Assign([ast.Name(name, ast.Store())], made)] if isinstance(made, ast.Lambda) else [made]
    if class_name:
        body = [ast.ClassDef(class_name, [], [], body, [], **type_params())]
    outer = class_name or name
    if outer not in freevars:
        body = [ast.Global([outer]), *body]  # or the function would take its own name for a variable of the factory
    params = [ast.arg(n) for n in (OPERATORS, *freevars) if n != "__class__" or not class_name]
    factory = ast.FunctionDef("__dycl_factory", ast.arguments([], params, None, [], [], None, []), body, [], None, **type_params())
    module = ast.Module([factory], [])
    for n in ast.walk(module):
        if isinstance(n, (ast.stmt, ast.expr, ast.arg)) and not hasattr(n, "lineno"):
            ast.copy_location(n, node)
    ast.fix_missing_locations(module)
    wanted = "<lambda>" if isinstance(made, ast.Lambda) else made.name
    code: Any = compile(module, original.co_filename, "exec", dont_inherit=True, flags=original.co_flags & _FUTURE_FLAGS)
    for name in ["__dycl_factory", *([class_name] if class_name else []), wanted]:
        code = next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name)
    result: types.CodeType = code
    return result


_FUTURE_FLAGS = 0x1000000  # from __future__ import annotations
