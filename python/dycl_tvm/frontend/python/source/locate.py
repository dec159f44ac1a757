# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The user's source: finding the syntax tree of a function, and the line that is being run."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import linecache
import sys
import sysconfig
import types
from collections.abc import Sequence
from pathlib import Path

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.by_code import by_code
from dycl_tvm.frontend.trace.heap.compiled import LIBRARY_PACKAGES
from dycl_tvm.hcfg.nodes import Origin

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_PACKAGE = str(Path(__file__).resolve().parents[3])


@functools.cache
def _library_roots() -> tuple[str, ...]:
    roots = []
    for name in LIBRARY_PACKAGES:
        module = sys.modules.get(name)
        if module is not None and getattr(module, "__file__", None):
            roots.append(str(Path(str(module.__file__)).parent) + "/")
    return tuple(roots)


@functools.cache
def _standard_library() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(str(Path(paths[k])) + "/" for k in ("stdlib", "platstdlib"))


@functools.cache
def is_library_file(filename: str) -> bool:
    """Whether a file belongs to Python, to PyTorch and its kind, or to the compiler: code that is never rewritten."""
    if filename.startswith("<frozen"):
        return True
    if filename.startswith(_PACKAGE + "/") and not filename.startswith(_PACKAGE + "/zoo/"):
        return True
    if filename.startswith(_library_roots()):
        return True
    return filename.startswith(_standard_library()) and "site-packages" not in filename and "dist-packages" not in filename


def is_library_package(name: str) -> bool:
    """Whether a package belongs to Python, or to PyTorch and its kind."""
    return name in sys.stdlib_module_names or name in sys.builtin_module_names or name in LIBRARY_PACKAGES


def user_frame() -> types.FrameType | None:
    """Return the innermost frame of the user's code."""
    frame = sys._getframe(1)
    while frame is not None:
        if not is_library_file(frame.f_code.co_filename):
            return frame
        frame = frame.f_back  # type: ignore[assignment]
    return None


def current_origin() -> Origin | None:
    """Return the place in the user's code that is being run."""
    frame = user_frame()
    if frame is None:
        return None
    return origin_in(frame.f_code, frame.f_lineno, frame.f_lasti)


def origin_in(code: types.CodeType, line: int, instruction: int) -> Origin:
    """Return the origin of an instruction of a function."""
    known = _origins(code)
    found = known.get((line, instruction))
    if found is None:
        found = known[line, instruction] = origin_at(code.co_filename, line, code.co_name, _columns(code)[instruction // 2])
    return found


@by_code
def _origins(code: types.CodeType) -> dict[tuple[int, int], Origin]:
    """Return the origins of a function's instructions, by line and place, that were asked for so far."""
    return {}


def origin_at(filename: str, line: int, function: str = "", column: int | None = None) -> Origin:
    """Return an origin with its source line; ``column`` counts bytes of the line as it is in the file."""
    return _origin(filename, line, function, linecache.getline(filename, line), column)


@functools.lru_cache(maxsize=65536)
def _origin(filename: str, line: int, function: str, text: str, column: int | None) -> Origin:
    code = text.strip()
    start = len(text.encode()[:column].decode(errors="ignore")) - (len(text) - len(text.lstrip()))
    return Origin(filename, line, function, code, start if column is not None and 0 <= start < len(code) else 0)


@by_code
def _columns(code: types.CodeType) -> Sequence[int | None]:
    """Return the column at which the expression of each instruction begins; Python 3.11 and later know it."""
    if not hasattr(code, "co_positions"):
        return [None] * (len(code.co_code) // 2)
    return [column for _, _, column, _ in code.co_positions()]


@functools.lru_cache(maxsize=256)
def _module_functions(filename: str, text: str) -> tuple[FunctionNode, ...]:
    tree = ast.parse(text, filename)
    return tuple(n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))


def _library_functions(code: types.CodeType, text: str) -> tuple[FunctionNode, ...]:
    """Parse one function of a library: its files are long, and little of them is wanted."""
    first = code.co_firstlineno
    block = "".join(inspect.getblock(text.splitlines(keepends=True)[first - 1 :]))
    indented = block[:1].isspace()
    tree = ast.parse(f"if 1:\n{block}" if indented else block, code.co_filename)
    ast.increment_lineno(tree, first - 1 - indented)
    return tuple(n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))


def function_node(code: types.CodeType) -> FunctionNode:
    """Return the syntax tree of a function.

    Raises
    ------
    UnsupportedError
        If the source cannot be found.
    """
    origin = Origin(code.co_filename, code.co_firstlineno, code.co_name)
    text = "".join(linecache.getlines(code.co_filename))
    if not text:
        raise UnsupportedError(
            f"the source of {code.co_name}() cannot be found, so its control flow cannot be compiled",
            origin,
            "define the function in a file (not by exec or on stdin)",
        )
    try:
        nodes = _library_functions(code, text) if is_library_file(code.co_filename) else _module_functions(code.co_filename, text)
    except SyntaxError as error:
        raise UnsupportedError(
            f"the source file of {code.co_name}() has changed or cannot be parsed: {error}", origin, "restart Python after editing"
        ) from error
    found = [n for n in nodes if _matches(n, code)]
    if len(found) > 1:
        found = [n for n in found if _positions_match(n, code)] or found
        if any(_columns(code)):  # what lies within the innermost lies within those around it too
            found = [n for n in found if not any(m is not n and m in ast.walk(n) for m in found)]
        elif not is_library_file(code.co_filename):
            found = compiled_to(code, found, text) or found
    if not found:
        raise UnsupportedError(
            f"the source of {code.co_name}() was not found where Python says it is", origin, "restart Python after editing the file"
        )
    if len(found) > 1 and len({ast.dump(n) for n in found}) > 1:
        raise UnsupportedError("several lambdas on one line cannot be told apart", origin, "put each on a line of its own, or use def")
    return copy.deepcopy(found[0])  # the rewriting changes it; the parsed file is kept for the next function


#: Beyond the last line of any file.
_FAR = 1 << 24


def compiled_to(code: types.CodeType, nodes: list[FunctionNode], text: str) -> list[FunctionNode]:
    """Return those of several functions of one line that Python makes such code of, where it does not know columns (3.10).

    The file is compiled again with each of them on a line of its own.
    """
    tree = ast.parse(text, code.co_filename)
    same = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and _matches(n, code)]
    for number, node in enumerate(same):
        node.lineno = node.end_lineno = _FAR + number
    made = {c.co_firstlineno: c for c in _codes_in(compile(tree, code.co_filename, "exec", dont_inherit=True))}
    return [n for number, n in enumerate(nodes) if _FAR + number in made and _is_same(made[_FAR + number], code)]


def _codes_in(code: types.CodeType) -> list[types.CodeType]:
    return [code, *(found for c in code.co_consts if isinstance(c, types.CodeType) for found in _codes_in(c))]


def _is_same(a: object, b: object) -> bool:
    """Whether two constants are one to a program; two code objects, if they do the same."""
    if not isinstance(a, types.CodeType) or not isinstance(b, types.CodeType):
        return type(a) is type(b) and repr(a) == repr(b)
    fields = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags")
    return (
        all(getattr(a, f) == getattr(b, f) for f in fields)
        and len(a.co_consts) == len(b.co_consts)
        and all(map(_is_same, a.co_consts, b.co_consts))
    )


def _matches(node: FunctionNode, code: types.CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        if code.co_name != "<lambda>" or node.lineno != code.co_firstlineno:
            return False
    else:
        first = min([node.lineno] + [d.lineno for d in node.decorator_list])
        if node.name != code.co_name.rpartition(".")[2] or code.co_firstlineno not in (first, node.lineno):
            return False
    a = node.args
    names = [x.arg for x in a.posonlyargs + a.args + a.kwonlyargs]
    return len(names) == code.co_argcount + code.co_kwonlyargcount and all(
        x == y or y.endswith(x) for x, y in zip(names, code.co_varnames[: len(names)])
    )


def _positions_match(node: FunctionNode, code: types.CodeType) -> bool:
    """Whether the columns of the byte code lie within the node (Python 3.11 and later know them)."""
    if not hasattr(code, "co_positions") or not isinstance(node, ast.Lambda):
        return True
    body = node.body
    for line, end_line, column, _ in code.co_positions():
        if line is None or column is None or end_line is None or (column == 0 and line == node.lineno and body.col_offset > 0):
            continue
        if not ((body.lineno, body.col_offset) <= (line, column) <= (body.end_lineno or line, body.end_col_offset or column)):
            return False
    return True
